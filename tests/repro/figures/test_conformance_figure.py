"""The conformance matrix: what is drawn and written is what the report says, on invented reports and on the shipped one."""

from __future__ import annotations

import copy
import json
import re

import pytest
from matplotlib import colors

from repro.cells import publication
from repro.cells.publication import PublicationError
from repro.figures import conformance, conformance_report, training
from repro.figures.conformance_report import OUTPUT, RAN, REPORT, SYMBOLS
from repro.figures.training import FigureDataError
from repro.provenance import ROOT, file_sha256, read_figure

MADE = ["caption.md", "conformance_matrix.ipynb", "conformance_matrix.png", "conformance_matrix.svg", "meta.json"]
STATES = {  # family, package: states of its vectors in order, or None where the package was not run
    ("adv", "good"): ("pass", "pass", "not supported"), ("adv", "odd"): ("departs", "pass", "by definition"),
    ("agg", "good"): ("not supported",), ("agg", "odd"): ("not supported",),
    ("kl", "good"): ("pass", "by definition"), ("kl", "odd"): ("pass", "pass"),
}  # fmt: skip
SERIOUS = ("departs", "by definition", "pass", "not supported")


def cell(family: str, package: str, states: tuple[str, ...]) -> dict:
    ids = [f"{family}.{serial:04d}" for serial in range(1, len(states) + 1)]
    cases = [{"id": i, "state": s, "level": "weights"} for i, s in zip(ids, states, strict=True) if s in RAN]
    declined = [i for i, s in zip(ids, states, strict=True) if s == "not supported"]
    return {
        "family": family,
        "package": package,
        "state": next((s for s in SERIOUS if s in states), "not run"),
        "counts": {s: states.count(s) for s in dict.fromkeys(states)},
        "cases": cases,
        "declined": {"no such option": declined} if declined else {},
    }


@pytest.fixture
def report() -> dict:
    """Two packages that ran and one that is not installed."""
    packages = [
        {"name": name, "title": name.title(), "version": version, "status": status, "reason": reason,
         "entry": "functions, from log-probs", "dtype": "fp32"}
        for name, version, status, reason in (
            ("good", "1.2.3", "ready", ""), ("odd", "0.4", "ready", ""), ("absent", "", "not run", "not installed"),
        )
    ]  # fmt: skip
    families = ["adv", "agg", "kl"]
    cells = [cell(f, p["name"], STATES.get((f, p["name"]), ())) for f in families for p in packages]
    findings = [
        {"id": "odd-sign", "package": "odd", "cases": []},
        {"id": "odd-mean", "package": "odd", "cases": ["adv.0001", "adv.0003"]},
        {"id": "good-k3", "package": "good", "cases": ["kl.0002"]},
    ]
    return {
        "date": "2026-01-31", "rlcorr_ref": "0.1.0", "set_version": "2026.1", "environment": {"numpy": "2.4.6"},
        "packages": packages, "families": families, "titles": {f: f"Area {f}" for f in families}, "cells": cells,
        "findings": findings, "unexplained": [],
    }  # fmt: skip


@pytest.fixture(scope="module")
def shipped() -> dict:
    return json.loads(REPORT.read_text(encoding="utf-8"))


def words(figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def of(figure, family: str, package: str) -> list[str]:
    """The texts beside the symbol of one cell."""
    texts = figure.axes[0].texts
    (symbol,) = (t for t in texts if t.get_gid() == f"state-{family}-{package}")
    x, y = symbol.get_position()
    return [t.get_text() for t in texts if 0 < t.get_position()[0] - x < 0.3 and abs(t.get_position()[1] - y) < 0.15]


def test_symbols_counts_and_findings_of_an_invented_report(report):
    figure = conformance.matrix(report)
    drawn = conformance.drawn_states(figure)
    assert drawn == {(c["family"], c["package"]): c["state"] for c in report["cells"]}
    assert drawn["adv", "odd"] == "departs" and drawn["adv", "absent"] == "not run"
    assert of(figure, "adv", "odd") == ["1 ✓  1 ≠  1 ✕", "# 2"]
    assert of(figure, "adv", "good") == ["2 ✓"] and of(figure, "kl", "good") == ["1 ✓  1 ≠", "# 1"]
    texts = words(figure)
    assert texts[0] == "1 of 3 packages depart from at least one vector; 1 of 3 areas are reached in none"
    assert {"1.2.3", "0.4", "no version", "3 vectors", "2 vectors", "1 vectors", "1 sign", "2 mean"} <= set(texts)
    places = {t.get_text(): t.get_position()[1] for t in figure.axes[0].texts}
    assert places["adv"] < places["kl"] < places["agg"], "departures first, what nobody supports last"


def test_the_bar_is_the_share_of_the_areas_vectors(report):
    patches = conformance.matrix(report).axes[0].patches
    departs, third = conformance.COLOURS["departs"][1], conformance.COLUMN / 3
    bars = [p for p in patches if colors.to_hex(p.get_facecolor()) == departs.lower()]
    assert [round(p.get_width(), 6) for p in bars] == [round(third, 6)]


def test_states_differ_without_colour_and_text_is_legible_on_its_tint():
    assert len({symbol for symbol, _ in SYMBOLS.values()}) == len(SYMBOLS) == len(conformance.COLOURS)

    def luminance(colour: str) -> float:
        channels = colors.to_rgb(colour)
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for tint, colour in conformance.COLOURS.values():
        assert (luminance(tint) + 0.05) / (luminance(colour) + 0.05) > 3, "contrast of WCAG for large text"


def test_the_caption_counts_and_links(report):
    text = conformance_report.caption(report, {"data": "d", "commit": "abc", "command": "c", "dirty": True})
    assert "6 vectors of set 2026.1 in 3 areas" in text and "all packages together 6 ✓  2 ≠  1 ✕" in text
    assert "| Odd | 0.4 | functions, from log-probs, fp32 | 3 | 1 | 1 | 1 |" in text
    assert "| Absent | - | not run: not installed, fp32 | 0 | 0 | 0 | 0 |" in text
    assert "#2 [odd-mean](../conformance/findings/odd-mean.md)" in text and "Every departing vector belongs" in text
    assert "commit abc, changed since or unknown" in text
    report["unexplained"] = [{"package": "odd", "case": "adv.0001"}]
    assert "1 departing vectors belong to no finding" in conformance_report.caption(report, {**dict.fromkeys(
        ("data", "commit", "command")), "dirty": False})  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r["cells"][0]["counts"].update({"pass": 3}), "cell adv/good: counts 3 'pass', lists 2"),
        (lambda r: r["cells"][0].update(state="fine"), "cell adv/good: unknown state among 'fine'"),
        (lambda r: r["cells"].pop(), "exactly one cell per family and package"),
        (lambda r: r["cells"].append(r["cells"][0]), "exactly one cell per family and package"),
    ],
)
def test_a_report_that_contradicts_itself_is_refused(report, change, message):
    broken = copy.deepcopy(report)
    change(broken)
    with pytest.raises(FigureDataError, match=message):
        conformance.matrix(broken)


def test_the_same_report_gives_the_same_bytes(report, tmp_path):
    record = {"data_sha256": "ab", "vectors": "rlcorr-vectors 2026.1"}
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        training.save(conformance.matrix(report), folder, "m", record, "t")
    for name in ("m.svg", "m.png"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
        assert read_figure(tmp_path / "a" / name) == record


def test_report_and_record_must_belong_together(report, tmp_path):
    file, meta = tmp_path / "report.json", tmp_path / "meta.json"
    with pytest.raises(PublicationError, match="report.json: not there; make the report with `rlcorr conformance"):
        conformance_report.load(file, meta)
    file.write_text(json.dumps(report))
    meta.write_text("{")
    with pytest.raises(PublicationError, match="meta.json: not valid JSON"):
        conformance_report.load(file, meta)
    meta.write_text(json.dumps({"data_sha256": "0" * 64}))
    with pytest.raises(PublicationError, match="sha256 .*, its record says 000000000000"):
        conformance_report.load(file, meta)
    meta.write_text(json.dumps(conformance_report.record_of(file, meta)))
    assert conformance_report.load(file, meta)[0] == report


def test_the_record_says_what_ran_and_is_kept_while_the_report_is_the_same(report, tmp_path):
    file, meta = tmp_path / "report.json", tmp_path / "meta.json"
    file.write_text(json.dumps(report))
    record = conformance_report.record_of(file, meta)
    assert record["packages"] == {"Good": "1.2.3", "Odd": "0.4", "Absent": None}
    assert record["commit"] is None and record["dirty"] is None, "outside the checkout git knows nothing of it"
    assert record["data_sha256"] == file_sha256(file) and str(tmp_path) not in json.dumps(record)
    meta.write_text(json.dumps({**record, "commit": "abc", "dirty": False}))
    assert conformance_report.record_of(file, meta)["commit"] == "abc"
    meta.write_text(json.dumps({**record, "commit": "abc", "dirty": True}))
    assert conformance_report.record_of(file, meta)["commit"] is None, "drawn before the report was committed"
    file.write_text(json.dumps(report | {"date": "2026-02-01"}))
    assert conformance_report.record_of(file, meta)["date"] == "2026-02-01"


def test_what_is_no_report_is_one_message(tmp_path):
    file = tmp_path / "report.json"
    for content in (None, "{", "{}"):
        if content is not None:
            file.write_text(content)
        with pytest.raises(PublicationError, match="no conformance report .*make it with `rlcorr conformance"):
            conformance.draw_conformance(tmp_path / "figure", file)
    assert not (tmp_path / "figure").exists()


def test_the_shipped_figure_shows_the_shipped_report(shipped):
    figure = conformance.matrix(shipped)
    cells = {(c["family"], c["package"]): c for c in shipped["cells"]}
    assert conformance.drawn_states(figure) == {place: c["state"] for place, c in cells.items()}
    texts = words(figure)
    for package in shipped["packages"]:
        assert {package["title"], package["version"]} <= set(texts)
    assert len([t for t in texts if re.fullmatch(r"\d+ (?!vectors)[a-z]\S+", t)]) == len(shipped["findings"])
    record = json.loads((OUTPUT / "meta.json").read_text(encoding="utf-8"))
    assert record["data_sha256"] == file_sha256(REPORT) and record["data"] == "paper_figures/conformance/report.json"
    for name in ("conformance_matrix.png", "conformance_matrix.svg"):
        assert read_figure(OUTPUT / name) == record, f"{name} was drawn from another report; redraw it"
    assert (OUTPUT / "caption.md").read_text(encoding="utf-8") == conformance_report.caption(shipped, record)
    for finding in re.findall(r"\]\(\.\./conformance/(\S+)\)", (OUTPUT / "caption.md").read_text(encoding="utf-8")):
        assert (REPORT.parent / finding).is_file()


def test_nothing_drawn_on_the_shipped_figure_overlaps_or_leaves_the_page(shipped):
    figure = conformance.matrix(shipped)
    renderer = figure.canvas.get_renderer()
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in figure.axes[0].texts]
    for text, box in boxes:
        assert box.x0 > 0 and box.y0 > 0 and box.x1 < figure.bbox.x1 and box.y1 < figure.bbox.y1, text
        starts_left = box.x0 < 0.2 * figure.dpi  # the labels of the rows, beside the cells
        page_wide = figure.bbox.y1 - box.y0 < 1.1 * figure.dpi  # the title, what was run, the legend
        assert not starts_left or page_wide or box.x1 < conformance.LABEL * figure.dpi, text
    # ascenders and descenders leave empty strips at the edges of a text's box: two pixels may be shared
    inner = [(text, box.padded(-2)) for text, box in boxes]
    clash = [(a, b) for i, (a, one) in enumerate(inner) for b, other in inner[:i] if one.overlaps(other)]
    assert clash == []


@pytest.mark.slow
def test_the_notebook_draws_the_same_bytes_wherever_it_runs(tmp_path):
    first = conformance.draw_conformance(tmp_path / "figure")
    assert sorted(path.name for path in first.parent.iterdir()) == MADE
    for name in MADE:
        assert (first.parent / name).read_bytes() == (OUTPUT / name).read_bytes(), f"{name} is not the shipped one"
        assert str(ROOT).encode() not in (OUTPUT / name).read_bytes()


@pytest.mark.slow
def test_a_departure_without_a_finding_fails_the_notebook(report, tmp_path):
    report["unexplained"] = [{"package": "odd", "case": "adv.0001"}]
    folder = tmp_path / "figure"
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps(report))
    with pytest.raises(PublicationError, match="AssertionError: a departing vector has no finding"):
        conformance.draw_conformance(folder, folder / "report.json")
    assert not (folder / publication.CAPTION).exists()
