"""The control that breaks the implementation: verdicts by the vectors' rule, swapping in and out, and the fallback."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from rlcorr_ref import ContractError, evaluate_case, mutants, teaching, teaching_break, teaching_page, vectors
from rlcorr_ref.mutants import matrix

FOLDER = Path(teaching.__file__).parents[1] / "notebooks"
NAMES = ("centering-sign", "centering-without-advantage")
IDS = ("centre.0102", "centre.0007", "grad.0012")


def controls():
    """(notebook, mutants, vector ids, shown) of every control, read from the notebooks' source."""
    for path in sorted(FOLDER.glob("[0-9][0-9]_*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            source = "".join(cell["source"])
            if "teaching.break_it(" not in source:
                continue
            assert cell["id"] == "break-it-control"
            tree = ast.parse(source)
            named = {
                node.targets[0].id: node.value
                for node in tree.body
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            }
            call = named["verdicts"]
            assert ast.unparse(call.func) == "teaching.break_it" and ast.unparse(call.args[0]) == "MUTANTS"
            yield path.stem, ast.literal_eval(named["MUTANTS"]), *map(ast.literal_eval, call.args[1:3])


def test_the_notebooks_that_have_a_control():
    assert [name[:2] for name, *_ in controls()] == ["03", "04", "05", "06", "07", "08", "09"]


@pytest.mark.parametrize(("name", "broken", "ids", "shown"), list(controls()), ids=lambda value: str(value)[:2])
def test_controls_agree_with_the_kill_matrix(name, broken, ids, shown):
    """Red is what the stored matrix says is killed, by a wide margin; nothing lies between 1 and 16 tolerances."""
    kills = matrix.stored()
    assert shown in kills and len(set(ids)) == len(ids) > 3
    assert all(found.passed for found in teaching.judged(evaluate_case, ids))
    for mutant in broken:
        red = {found.id for found in teaching.judged(mutants.get(mutant).answer, ids) if not found.passed}
        assert red == {vector for vector in ids if mutant in kills[vector]}, mutant
        assert red and red != set(ids), f"{mutant}: a control needs a vector that sees it and one that does not"


def test_judged_names_the_worst_entry_and_the_share_of_the_tolerance():
    right = teaching.judged(evaluate_case, IDS)
    assert [found.id for found in right] == list(IDS) and all(found.passed for found in right)
    assert re.fullmatch(r"uses [\d.e-]+ of the tolerance", right[0].line)
    wrong = teaching.judged(mutants.get("centering-sign").answer, IDS)
    assert [found.passed for found in wrong] == [False, False, True]
    assert re.match(r"grad_\w+\[[\d, ]+\]: wanted \S+, got \S+ \(\S+ x tolerance\)", wrong[0].line)


def test_an_answer_that_raises_or_has_another_shape_fails():
    def raises(case):
        raise ZeroDivisionError("0/0")

    found = teaching.judged(raises, IDS[:1])[0]
    assert not found.passed and found.line == "raises ZeroDivisionError: 0/0"

    def short(case):
        return evaluate_case(case) | {"grad_logits": []}

    found = teaching.judged(short, IDS[:1])[0]
    assert not found.passed and "expected a list of 3" in found.line
    with pytest.raises(ContractError, match="centre.9999"):
        teaching.judged(evaluate_case, ["centre.9999"])


def test_a_small_error_within_the_tolerance_passes_and_a_larger_one_does_not():
    def off_by(relative):
        def answer(case):
            out = evaluate_case(case)
            return out | {"grad_logits": [[[x * (1 + relative) for x in t] for t in b] for b in out["grad_logits"]]}

        return teaching.judged(answer, ["centre.0007"])[0].passed

    assert off_by(1e-9) and not off_by(1e-4)


def test_entries_are_taken_from_valid_tokens():
    inputs = {"mask": [[0, 1], [1, 1]], "tokens": [[7, 1], [0, 2]]}
    outputs = {"grad_logits": [[[9, 9, 9], [1, 2, 3]], [[4, 5, 6], [7, 8, 9]]]}
    assert teaching_break.first_token(outputs, inputs) == {0: 1, 1: 2, 2: 3}
    assert teaching.each_token(outputs, inputs) == {"0,1": 2, "1,0": 4, "1,1": 9}


@pytest.fixture
def page(monkeypatch):
    """What is put on the page without a front end: (kind, arguments, keywords)."""
    shown = []
    monkeypatch.setenv("RLCORR_WIDGETS", "0")
    monkeypatch.setattr(teaching_page, "display", lambda kind, *args, **kwargs: shown.append((kind, args, kwargs)))
    return shown


def test_without_a_front_end_one_mutant_is_worked_and_all_are_judged(page):
    verdicts = teaching.break_it(NAMES, IDS, "centre.0007")
    assert list(verdicts) == ["right", *NAMES]
    assert verdicts["right"] == dict.fromkeys(IDS, True)
    assert verdicts["centering-sign"] == {"centre.0102": False, "centre.0007": False, "grad.0012": True}
    assert verdicts["centering-without-advantage"]["centre.0102"]  # A = 1: cannot show there
    assert [kind for kind, _, _ in page] == ["Image", "HTML", "Markdown"]
    assert page[0][2]["data"][1:4] == b"PNG" and "right and centering-sign, which differ by up to" in page[0][2]["alt"]
    body = page[1][1][0]
    assert "the drift is doubled" in body
    assert body.count("&#10007;&nbsp;fails") == 3 and body.count("&#10003;&nbsp;passes") == 6
    right = evaluate_case(vectors.envelope(vectors.get("centre.0007")))["grad_logits"][0][0]
    assert all(f">{x:.4g}<" in body for x in right)


def test_bars_are_the_right_and_the_wrong_gradient(page, monkeypatch):
    drawn = []
    monkeypatch.setattr(teaching_page, "png", lambda figure: drawn.append(figure) or b"\x89PNG")
    teaching.break_it(NAMES, IDS, "centre.0007")
    heights = [[bar.get_height() for bar in bars] for bars in drawn[0].axes[0].containers]
    case = vectors.envelope(vectors.get("centre.0007"))
    assert heights[0] == pytest.approx(evaluate_case(case)["grad_logits"][0][0])
    assert heights[1] == pytest.approx(mutants.get("centering-sign").answer(case)["grad_logits"][0][0])
    assert drawn[0].axes[0].get_title(loc="left") == "on the input of centre.0007"


def test_the_button_swaps_the_mutant_in_and_out(monkeypatch):
    displayed = []
    monkeypatch.setenv("RLCORR_WIDGETS", "1")
    monkeypatch.setattr("IPython.display.display", displayed.append)
    verdicts = teaching.break_it(NAMES, IDS, "centre.0007")
    row, image, numbers, table = displayed[0].children
    choice, button = row.children
    healthy = image.value
    assert choice.options == NAMES and button.description == "Break it"
    assert (
        "fails" not in table.value and table.value.count("passes") == len(IDS) and "nothing is broken" in numbers.value
    )
    button.click()
    assert button.description == "Repair it" and image.value != healthy
    assert table.value.count("&nbsp;fails") == 2 and "x tolerance" in table.value and "doubled" in numbers.value
    choice.value = "centering-without-advantage"
    assert table.value.count("&nbsp;fails") == 1 and "without A" in numbers.value
    button.click()
    assert button.description == "Break it" and image.value == healthy and "fails" not in table.value
    choice.value = "centering-sign"
    assert "fails" not in table.value, "choosing is not breaking"
    assert verdicts["right"] == dict.fromkeys(IDS, True)


def test_a_mutant_that_raises_on_the_shown_input_has_no_bars(page):
    teaching.break_it(("log-of-lower-bound",), ("grad.0012", "centre.0007"), "grad.0012", teaching.each_token)
    body = page[1][1][0]
    assert "Largest difference here: inf" in body and ">nan<" in body and body.count("&nbsp;fails") == 1


def test_break_it_refuses_what_it_does_not_know():
    with pytest.raises(ContractError, match="unknown name 'centering-sine'"):
        teaching.break_it(("centering-sine",), IDS, "centre.0007")
    with pytest.raises(ContractError, match=r"at least one mutant and one vector, got \[\]"):
        teaching.break_it((), IDS, "centre.0007")
    with pytest.raises(ContractError, match="centre.9999"):
        teaching.break_it(NAMES, IDS, "centre.9999")
