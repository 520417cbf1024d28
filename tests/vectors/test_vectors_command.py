"""`rlcorr vectors ...`: exit statuses, one clear line on malformed input, and nothing half-written."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys

import pytest

from rlcorr_ref import evaluate_case
from rlcorr_ref.vectors import store

CASES = {case["id"]: case for case in store.load()}


def malformed(result, *words):
    status, out, err = result
    assert status == 2 and out == "", (status, out)
    assert err.count("\n") == 1 and err.startswith("rlcorr: ")
    for word in words:
        assert word in err


def test_list(rlcorr):
    status, out, err = rlcorr("vectors", "list")
    assert status == 0 and len(out.splitlines()) == len(CASES) and f"{len(CASES)} cases, set 2026.1" in err
    status, out, _ = rlcorr("vectors", "list", "--family", "grad", "--flag", "WeightNotDetached", "--dtype", "bf16")
    assert status == 0 and {line.split()[0].split(".")[0] for line in out.splitlines()} == {"grad"}
    assert "grad.0002" in out and "grad.0001" not in out  # log 4 is not on the bf16 grid
    malformed(rlcorr("vectors", "list", "--family", "gradient"), "unknown name 'gradient'", "grad")


def test_show(rlcorr):
    status, out, _ = rlcorr("vectors", "show", "ratio.0004")
    assert status == 0
    for text in (
        "Sequence level is the product",
        "SeqProductVsGeomean",
        "dialect geometric",
        "TRL #5814",
        "0.367879441",
        f"rlcorr-vectors 2026.1, ratio.0004, sha256:{CASES['ratio.0004']['sha256'][:12]}",
        "notebook 04#levels",
    ):
        assert text in out, text
    malformed(rlcorr("vectors", "show", "ratio.9999"), "unknown case 'ratio.9999'", "ratio.0001 to")
    malformed(rlcorr("vectors", "show", "ratios.0001"), "unknown case", "families:")


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_case_can_be_shown(rlcorr, name):
    status, out, _ = rlcorr("vectors", "show", name)
    assert status == 0 and max(map(len, out.splitlines())) < 600


def test_blind_round_trip(rlcorr, tmp_path):
    """Questions out, answered by code that sees nothing else, judged: all pass; a missing answer is told and counted."""
    status, out, _ = rlcorr("vectors", "export", tmp_path / "q", "--prompt-only")
    assert status == 0 and f"{len(CASES)} cases" in out
    assert sorted(p.name for p in (tmp_path / "q").iterdir()) == ["cases.json", "levels"]
    questions = json.loads((tmp_path / "q" / "cases.json").read_text())
    assert all(set(q) <= {"function", "inputs", "definition", "parameters"} for q in questions.values())
    answers = {name: evaluate_case(q) for name, q in questions.items()}
    response = tmp_path / "response.json"
    response.write_text(json.dumps(answers))
    status, out, _ = rlcorr("vectors", "check", response, "--require-all")
    assert status == 0 and f"{len(CASES)} passed, 0 failed, 0 not answered" in out

    del answers["grad.0012"]
    response.write_text(json.dumps(answers))
    assert rlcorr("vectors", "check", response)[0] == 0
    status, out, _ = rlcorr("vectors", "check", response, "--require-all")
    assert status == 1 and "not answered: grad.0012" in out


def test_exported_answers_and_levels(rlcorr, tmp_path):
    rlcorr("vectors", "export", tmp_path, "--family", "grad")
    status, out, _ = rlcorr("vectors", "check", tmp_path / "answers.json")
    assert status == 0 and "0 failed" in out
    given = json.loads((tmp_path / "levels" / "weights.json").read_text())["grad.0012"]
    assert set(given) == {"logp_trainer", "weights", "mask_kept"}
    assert given["weights"] == CASES["grad.0012"]["expected"]["weights"]["data"]
    again = (tmp_path / "cases.json").read_bytes()
    rlcorr("vectors", "export", tmp_path, "--family", "grad")
    assert (tmp_path / "cases.json").read_bytes() == again
    (tmp_path / "file").write_text("")
    malformed(rlcorr("vectors", "export", tmp_path / "file"), "expected a folder")


def test_check_reports_failures(rlcorr, tmp_path):
    wrong = evaluate_case(store.envelope(CASES["weight.0002"]))
    wrong["weights"][0][0] = 3.03246
    response, report = tmp_path / "r.json", tmp_path / "report.json"
    response.write_text(json.dumps({"weight.0002": wrong, "dtype": "fp32"}))
    status, out, _ = rlcorr("vectors", "check", response, "--report", report)
    assert status == 1
    assert "FAILED weight.0002 tis-2 (logprobs, fp32)" in out and "DEFINITION LowerClip" in out
    assert "weights[0, 0]: wanted 2, got 3.03246" in out
    assert list(json.loads(report.read_text())["failed"]) == ["weight.0002"]


@pytest.mark.parametrize(
    "text, words",
    [
        ('{"grad.0001": {"loss": NaN}}', "bare NaN is not JSON"),
        ('{"grad.0001": {"loss": 1}', "not valid JSON"),
        ('{"grad.0001": {"loss": 1}, "grad.0001": {}}', "'grad.0001' appears twice"),
        ('{"grad.1": {}}', "unknown id 'grad.1'"),
        ('{"grad.0001": {"los": 1}}', "unknown key 'los'"),
        ('{"grad.0001": {"loss": [1]}}', "loss: expected a number"),
        ('{"grad.0001": {"grad_logits": [[[1]]]}}', "expected a list of 2, got a list of 1"),
        ('{"grad.0001": {"loss": "nan"}}', "got 'nan'"),
        ('{"grad.0001": {"dtype": "float32"}}', "dtype 'float32'"),
        ("[]", "expected an object"),
    ],
)
def test_malformed_responses(rlcorr, tmp_path, monkeypatch, text, words):
    path = tmp_path / "response.json"
    path.write_text(text)
    malformed(rlcorr("vectors", "check", path), words)
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    malformed(rlcorr("vectors", "check", "-"), words)


def test_missing_response(rlcorr, tmp_path):
    malformed(rlcorr("vectors", "check", tmp_path / "none.json"), "cannot be read")


def test_verify_accepts_the_set_a_folder_and_a_vendored_file(rlcorr, tmp_path):
    status, out, _ = rlcorr("vectors", "verify", store.ROOT)
    assert status == 0 and len(out.splitlines()) == len(store.manifest()["files"])
    shutil.copy(store.ROOT / "v1" / "grad.json", tmp_path / "vendored.json")
    status, out, _ = rlcorr("vectors", "verify", tmp_path / "vendored.json")
    count = store.manifest()["files"]["grad.json"]["cases"]
    assert status == 0 and count >= 56 and f"{count} cases, checksums agree" in out
    malformed(rlcorr("vectors", "verify", tmp_path / "none.json"), "cannot be read")
    (tmp_path / "empty").mkdir()
    malformed(rlcorr("vectors", "verify", tmp_path / "empty"), "no vector files")


def damaged(path, edit):
    doc = json.loads(path.read_text())
    edit(doc)
    path.write_text(json.dumps(doc))


@pytest.mark.parametrize(
    "edit, words",
    [
        (lambda d: d["cases"][3]["inputs"]["advantages"][0].__setitem__(0, 9.0), "its values were edited"),
        (lambda d: d["cases"][3]["expected"]["loss"].update(data=0.0), "its values were edited"),
        (lambda d: d["cases"].pop(), "truncated?"),
        (lambda d: d["cases"][3].pop("sha256"), "lacks id, sha256"),
        (lambda d: d.pop("cases"), "not a vector file"),
    ],
)
def test_verify_sees_an_edited_vendored_file(rlcorr, tmp_path, edit, words):
    path = tmp_path / "grad.json"
    shutil.copy(store.ROOT / "v1" / "grad.json", path)
    damaged(path, edit)
    malformed(rlcorr("vectors", "verify", path), words)


def test_verify_sees_a_consistent_forgery(rlcorr, tmp_path):
    """A value edited together with its own checksum still differs from the installed manifest."""
    from rlcorr_ref.vectors.canonical import sha256
    from rlcorr_ref.vectors.model import value_part

    def forge(doc):
        case = doc["cases"][0]
        case["expected"]["loss"]["data"] = 0.5
        case["sha256"] = sha256(value_part(case))

    path = tmp_path / "grad.json"
    shutil.copy(store.ROOT / "v1" / "grad.json", path)
    damaged(path, forge)
    malformed(rlcorr("vectors", "verify", path), "differs from the installed set")


def test_a_truncated_file_is_refused_by_every_verb(rlcorr, copy):
    path = copy / "v1" / "grad.json"
    path.write_bytes(path.read_bytes()[:-2000])
    malformed(rlcorr("vectors", "verify", copy), "sha256 differs from MANIFEST.json")
    malformed(rlcorr("vectors", "show", "grad.0001", "--root", copy), "edited or truncated")
    malformed(rlcorr("vectors", "list", "--root", copy), "edited or truncated")
    path.unlink()
    malformed(rlcorr("vectors", "verify", copy), "MANIFEST.json lists")
    malformed(rlcorr("vectors", "list", "--root", copy), "cannot be read")


def test_diff(rlcorr, copy, tmp_path):
    same = rlcorr("vectors", "diff", store.ROOT, copy)
    assert same[0] == 0 and "0 added, 0 withdrawn, 0 changed, 0 removed" in same[1]
    assert rlcorr("vectors", "diff", store.ROOT / "MANIFEST.json", copy / "MANIFEST.json")[0] == 0
    damaged(copy / "v1" / "adv.json", lambda d: d["cases"].pop())
    status, out, _ = rlcorr("vectors", "diff", store.ROOT, copy)
    assert status == 1 and "removed   adv.0013" in out
    status, out, _ = rlcorr("vectors", "diff", copy, store.ROOT)
    assert status == 0 and "added     adv.0013" in out
    damaged(copy / "v1" / "adv.json", lambda d: d["cases"][0].update(sha256="0" * 64))
    status, out, _ = rlcorr("vectors", "diff", store.ROOT, copy)
    assert status == 1 and "changed   adv.0001" in out
    damaged(copy / "v1" / "agg.json", lambda d: d["cases"][0].update(status="withdrawn"))
    assert "withdrawn agg.0001" in rlcorr("vectors", "diff", store.ROOT, copy)[1]
    (tmp_path / "other.json").write_text("[]")
    malformed(rlcorr("vectors", "diff", store.ROOT, tmp_path / "other.json"), "expected a set")


def test_withdraw(rlcorr, copy):
    name = "grad.0012"
    args = (
        "vectors",
        "withdraw",
        name,
        "--reason",
        "the cap was wrong",
        "--superseded-by",
        "grad.0013",
        "--root",
        copy,
    )
    assert rlcorr(*args)[0] == 0
    case = store.get(name, copy)
    assert (case["status"], case["superseded_by"], case["withdrawn_because"]) == (
        "withdrawn",
        "grad.0013",
        "the cap was wrong",
    )
    assert case["expected"] == CASES[name]["expected"] and case["sha256"] == CASES[name]["sha256"]
    assert name not in {c["id"] for c in store.load(root=copy)}
    assert store.manifest(copy)["counts"]["withdrawn"] == 1
    assert "grad.0012: the cap was wrong (superseded by grad.0013)" in (copy / "CHANGES.md").read_text()
    assert rlcorr("vectors", "verify", copy)[0] == 0
    assert "withdrawn: the cap was wrong" in rlcorr("vectors", "show", name, "--root", copy)[1]
    assert "(withdrawn)" in rlcorr("vectors", "list", "--family", "grad", "--root", copy)[1]
    malformed(rlcorr(*args), "already withdrawn")


@pytest.mark.parametrize(
    "args, words",
    [
        (("grad.9999", "--reason", "x"), "unknown case"),
        (("nothing.0001", "--reason", "x"), "unknown case"),
        (("grad.0012", "--reason", "  "), "expected a sentence"),
        (("grad.0012", "--reason", "x", "--superseded-by", "grad.0012"), "add it first"),
        (("grad.0012", "--reason", "x", "--superseded-by", "grad.8888"), "add it first"),
    ],
)
def test_withdraw_refuses(rlcorr, copy, args, words):
    before = {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()}
    malformed(rlcorr("vectors", "withdraw", *args, "--root", copy), words)
    assert {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()} == before


ENVELOPE = {
    "function": "ratio",
    "inputs": {"logp_trainer": [[-1.0, -2.5]], "logp_sampler": [[-1.5, -2.0]], "mask": [[1, 1]]},
    "parameters": {"level": "sequence"},
}


def new(rlcorr, copy, tmp_path, envelope, slug="a-new-word", flag="Basic", family="ratio"):
    path = tmp_path / "case.json"
    path.write_text(json.dumps(envelope))
    text = ("--title", "A new case", "--description", "What it is and which mistake it exposes.", "--flag", flag)
    return rlcorr("vectors", "new", family, slug, path, *text, "--root", copy)


def test_new_appends_a_working_case_with_the_next_id(rlcorr, copy, tmp_path):
    status, out, _ = new(rlcorr, copy, tmp_path, ENVELOPE)
    highest = max(name for name in CASES if name.startswith("ratio."))
    assert status == 0 and f"ratio.{int(highest[-4:]) + 1:04d} appended to cases/ratio.py" in out
    source = (copy / "cases" / "ratio.py").read_text()
    assert source.startswith((store.ROOT / "cases" / "ratio.py").read_text().rstrip("\n"))
    added = source[len((store.ROOT / "cases" / "ratio.py").read_text()) :]
    scope = {"FAMILY": __import__("rlcorr_ref.vectors.registry", fromlist=["Family"]).Family("ratio", "x", "04#levels")}
    exec(
        compile(
            "from rlcorr_ref.vectors.registry import Draft, envelope\n" + added, "added", "exec", dont_inherit=True
        ),
        scope,
    )
    (draft,) = [build() for build in scope["FAMILY"].builders.values()]
    assert draft.envelope == ENVELOPE and draft.title == "A new case" and draft.flags == ["Basic"]


def test_new_never_reuses_a_serial(rlcorr, copy, tmp_path):
    """Serials of withdrawn and of merely published cases are taken for ever."""
    damaged(copy / "v1" / "ratio.json", lambda d: d["cases"][0].update(id="ratio.0500", status="withdrawn"))
    assert "ratio.0501" in new(rlcorr, copy, tmp_path, ENVELOPE)[1]
    (copy / "published").mkdir()
    (copy / "published" / "2025.9.json").write_text('{"cases": {"ratio.0700": "00"}}')
    assert "ratio.0701" in new(rlcorr, copy, tmp_path, ENVELOPE, slug="another-word")[1]


@pytest.mark.parametrize(
    "change, options, words",
    [
        ({"inputs": {**ENVELOPE["inputs"], "mask": [[1, 2]]}}, {}, "mask: expected 0 and 1"),
        ({"parameters": {"level": "row"}}, {}, "level: expected one of"),
        ({"inputs": {**ENVELOPE["inputs"], "logp_trainer": [[-1.0, -0.1]]}}, {}, "cannot claim fp32"),
        ({"answer": 1}, {}, "unknown key 'answer'"),
        ({}, {"slug": "Not A Slug"}, "words-with-hyphens"),
        ({}, {"slug": "direction"}, "already used"),
        ({}, {"flag": "Nonsense"}, "unknown name 'Nonsense'"),
        ({}, {"family": "nothing"}, "unknown name 'nothing'"),
    ],
)
def test_new_refuses_and_leaves_the_file_alone(rlcorr, copy, tmp_path, change, options, words):
    before = (copy / "cases" / "ratio.py").read_bytes()
    malformed(new(rlcorr, copy, tmp_path, {**ENVELOPE, **change}, **options), words)
    assert (copy / "cases" / "ratio.py").read_bytes() == before


def test_a_refused_source_is_kept_beside(rlcorr, copy, tmp_path):
    bad = {**ENVELOPE, "parameters": {"level": "row"}}
    assert "ratio.py.rej" in new(rlcorr, copy, tmp_path, bad)[2]
    assert "'level': 'row'" in (copy / "cases" / "ratio.py.rej").read_text()


def test_lint_statuses(rlcorr, copy, monkeypatch):
    from rlcorr_ref.vectors import lint, registry

    monkeypatch.setattr(lint, "families", lambda: [registry.family("adv")])
    for path in (copy / "v1").glob("*.json"):
        if path.stem != "adv":
            path.unlink()
    status, out, _ = rlcorr("vectors", "lint", "--keep-scales", "--root", copy)
    assert status == 1 and "MANIFEST.json: not what the cases give" in out
    assert rlcorr("vectors", "lint", "--write", "--publish", "--root", copy)[0] == 0
    assert json.loads((copy / "published" / "2026.1.json").read_text())["cases"].keys() == {
        name for name in CASES if name.startswith("adv.")
    }
    assert rlcorr("vectors", "lint", "--root", copy)[:2] == (0, "no problems\n")
    malformed(rlcorr("vectors", "lint", "--publish", "--root", copy), "goes with --write")


def test_the_consumer_side_needs_no_generator():
    """Loading, checking and verifying import neither mpmath nor torch; the maintainer's verbs say what they need."""
    code = (
        "import sys; sys.modules['mpmath'] = None\n"
        "from rlcorr_ref import cli, vectors\n"
        "assert len(vectors.load()) >= 500\n"
        "assert cli.main(['vectors', 'list', '--family', 'adv']) == 0\n"
        "assert 'torch' not in sys.modules and 'pandas' not in sys.modules\n"
        "raise SystemExit(cli.main(['vectors', 'lint']))\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.returncode == 2 and "needs mpmath: pip install 'rlcorr-ref[derive]'" in out.stderr
