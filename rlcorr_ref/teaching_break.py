"""Break it: swap a named wrong implementation in for the right one; see the gradient change and the oracle vectors turn red.

    judged(answer, ids)                any implementation `case -> answer` judged by vectors, by the vectors' own rule
    break_it(names, ids, shown)        the control: a list of mutants and a button where a front end listens,
                                       one worked mutant and the table of all where none does

Nothing is stored: every verdict comes from evaluating and judging at the moment it is shown.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import mutants, teaching_page, vectors
from .errors import ContractError
from .vectors.judge import judge
from .vectors.model import LEVELS
from .wire import evaluate_case

RIGHT = "right"
DTYPE = "fp32"  # the precision in which a trainer would be judged
FAULTS = (ArithmeticError, AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError)
PASSES, FAILS = f"{teaching_page.GREEN}2b", f"{teaching_page.VERMILLION}66"  # the colour at 17 and 40 per cent
CELL = "padding: 2px 10px; text-align: left; color: #000; background: {}"

Answer = Callable[[Mapping[str, Any]], Mapping[str, Any]]
Entries = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[Any, Any]]


@dataclass(frozen=True)
class Judged:
    """One vector's verdict on one implementation: `line` names the worst entry, or says how much of the tolerance was used."""

    id: str
    title: str
    passed: bool
    line: str


def judged(answer: Answer, ids: Iterable[str]) -> list[Judged]:
    """Judge an implementation by vectors, at float32 tolerances: m (u err_scale + u_acc acc_scale) + eta per entry.

    `answer` takes a case in the wire format and returns its outputs, as `rlcorr_ref.evaluate_case` does. An answer that
    raises or has another shape fails. Raises `ContractError` for an unknown id.
    """
    return [_judged(answer, vectors.get(name)) for name in ids]


def _judged(answer: Answer, case: dict[str, Any]) -> Judged:
    level = next(name for name in LEVELS if name in case["levels"])
    try:
        verdict = judge(case, answer(vectors.envelope(case)), DTYPE, level)
    except FAULTS as error:
        return Judged(case["id"], case["title"], False, f"raises {type(error).__name__}: {error}")
    if verdict.passed:
        return Judged(case["id"], case["title"], True, f"uses {verdict.used:.1g} of the tolerance")
    return Judged(case["id"], case["title"], False, max(verdict.misses, key=lambda miss: miss.used).line())


def first_token(outputs: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[int, float]:
    """The gradient on the logits of the first valid token [V], one entry per vocabulary entry."""
    b, t = next((b, t) for b, row in enumerate(inputs["mask"]) for t, valid in enumerate(row) if valid)
    return dict(enumerate(outputs["grad_logits"][b][t]))


def each_token(outputs: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, float]:
    """The gradient on the logit of the sampled token, one entry "b,t" per valid token."""
    valid = [(b, t) for b, row in enumerate(inputs["mask"]) for t, valid in enumerate(row) if valid]
    return {f"{b},{t}": outputs["grad_logits"][b][t][inputs["tokens"][b][t]] for b, t in valid}


def break_it(
    names: Sequence[str],
    ids: Sequence[str],
    shown: str,
    entries: Entries = first_token,
    axis: tuple[str, str] = ("token v", "dL/dz_v [reward/logit]"),
) -> dict[str, dict[str, bool]]:
    """Show mutants beside the right implementation; return {"right" or mutant: {vector id: passes}}.

    `names` are mutants of `rlcorr_ref.mutants`, `ids` the vectors that judge, `shown` the vector on whose input the bars
    are computed. `entries(outputs, inputs)` picks {label: number}; `axis` labels them and their unit. With a front end: a
    list of the mutants and a button that swaps the chosen one in and out. Without: the first mutant worked, and the
    verdicts on all. Raises `ContractError` for an unknown mutant or id.
    """
    if not names or not ids:
        raise ContractError(f"break_it: expected at least one mutant and one vector, got {list(names)} and {list(ids)}")
    answers: dict[str, Answer] = {RIGHT: evaluate_case} | {name: mutants.get(name).answer for name in names}
    verdicts = {name: judged(answer, ids) for name, answer in answers.items()}
    bench = _Bench(answers, verdicts, vectors.envelope(vectors.get(shown)), shown, entries, axis)
    if teaching_page.front_end():
        _control(bench, names)
    else:
        name = names[0]
        teaching_page.show(bench.draw(name), bench.alt(name))
        teaching_page.display("HTML", bench.numbers(name) + bench.table(verdicts))
        note = f"No front end: {name} worked, the others judged. In JupyterLab this is a list of mutants and a button."
        teaching_page.display("Markdown", f"*{note}*")
    return {name: {verdict.id: verdict.passed for verdict in found} for name, found in verdicts.items()}


@dataclass(frozen=True)
class _Bench:
    """What is on the bench: implementations, their verdicts, and the case on which their numbers are drawn."""

    answers: Mapping[str, Answer]
    verdicts: Mapping[str, Sequence[Judged]]
    case: Mapping[str, Any]
    shown: str
    entries: Entries
    axis: tuple[str, str]

    def values(self, name: str) -> dict[str, float]:
        """The picked numbers of one implementation; NaN where it raises."""
        right = self.entries(self.answers[RIGHT](self.case), self.case["inputs"])
        try:
            found = self.entries(self.answers[name](self.case), self.case["inputs"])
        except FAULTS:
            found = {}
        return {str(key): float(found.get(key, np.nan)) for key in right}

    def draw(self, name: str) -> Any:
        """Bars of the right numbers and, unless `name` is the right implementation, of the mutant's beside them."""
        right = self.values(RIGHT)
        drawn, axes = teaching_page.figure(1, teaching_page.LIVE_WIDTH, teaching_page.PANEL_HEIGHT)
        at, broken = np.arange(len(right)), name != RIGHT
        width, shift = (0.4, 0.2) if broken else (0.6, 0.0)
        axes.bar(at - shift, list(right.values()), width, color=teaching_page.BLUE, label="right")
        if broken:
            bars = list(self.values(name).values())
            look = {"color": "white", "edgecolor": teaching_page.VERMILLION, "hatch": "////", "linewidth": 1.0}
            axes.bar(at + shift, bars, width, label=name, **look)
        axes.axhline(0, color=teaching_page.BLACK, lw=0.8)
        axes.set(xlabel=self.axis[0], ylabel=self.axis[1], title=f"on the input of {self.shown}")
        axes.set_xticks(at, list(right))
        axes.grid(axis="x", visible=False)
        teaching_page.legend(drawn, axes)
        return drawn

    def alt(self, name: str) -> str:
        gap = self.gap(name)
        return f"Bars on the input of {self.shown}: right and {name}, which differ by up to {gap:.3g}."

    def gap(self, name: str) -> float:
        """Largest difference from the right numbers; infinite where there is no finite number."""
        both = np.array([list(self.values(who).values()) for who in (RIGHT, name)])
        return float(np.nan_to_num(np.abs(both[1] - both[0]), nan=np.inf).max())

    def numbers(self, name: str) -> str:
        """What is wrong in words, and the numbers behind the bars, as HTML."""
        who = list(dict.fromkeys((RIGHT, name)))
        heads = [self.axis[0], *self.values(RIGHT)]
        rows = [[one, *(f"{x:.4g}" for x in self.values(one).values())] for one in who]
        says = "The right implementation: nothing is broken."
        if name != RIGHT:
            mutant = mutants.get(name)
            seen = f" Seen in {mutant.threads}." if mutant.threads else ""
            says = f"{mutant.says}{seen} Largest difference here: {self.gap(name):.3g}."
        return f"<p><b>{html.escape(name)}</b>: {html.escape(says)}</p>" + _table(heads, rows)

    def table(self, chosen: Mapping[str, Sequence[Judged]]) -> str:
        """The verdicts of the chosen implementations, one row per vector, as HTML; a single one with its numbers."""
        rows, single = [], len(chosen) == 1
        for verdicts in zip(*chosen.values(), strict=True):
            row: list[Any] = [verdicts[0].id, verdicts[0].title, *verdicts]
            rows.append([*row, verdicts[0].line] if single else row)
        return _table(["vector", "what it is", *chosen, *(["judged by its tolerance"] if single else [])], rows)


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """An HTML table; a `Judged` becomes a coloured cell that says so in words too."""
    out = ["".join(f'<th style="{CELL.format("#eee")}">{html.escape(head)}</th>' for head in heads)]
    for row in rows:
        cells = []
        for value in row:
            colour, text = "#fff", value
            if isinstance(value, Judged):
                colour, text = (PASSES, "&#10003;&nbsp;passes") if value.passed else (FAILS, "&#10007;&nbsp;fails")
            else:
                text = html.escape(text)
            cells.append(f'<td style="{CELL.format(colour)}">{text}</td>')
        out.append("".join(cells))
    return '<table style="margin: 0 0 12px">' + "".join(f"<tr>{row}</tr>" for row in out) + "</table>"


def _control(bench: _Bench, names: Sequence[str]) -> None:
    """A list of mutants and a button; the numbers, the picture and the vectors answer."""
    import ipywidgets
    from IPython.display import display

    choice = ipywidgets.Dropdown(
        options=list(names), description="mutant", style={"description_width": "initial"}, layout={"width": "26em"}
    )
    button = ipywidgets.Button(description="Break it", button_style="danger", icon="bolt")
    image, numbers, table = ipywidgets.HTML(), ipywidgets.HTML(), ipywidgets.HTML()
    broken = [False]

    def refresh(_: Any = None) -> None:
        name = choice.value if broken[0] else RIGHT
        button.description, button.icon = ("Repair it", "wrench") if broken[0] else ("Break it", "bolt")
        button.button_style = "success" if broken[0] else "danger"
        image.value = teaching_page.picture(bench.draw(name), bench.alt(name))
        numbers.value, table.value = bench.numbers(name), bench.table({name: bench.verdicts[name]})

    def press(_: Any) -> None:
        broken[0] = not broken[0]
        refresh()

    choice.observe(refresh, "value")
    button.on_click(press)
    refresh()
    display(ipywidgets.VBox([ipywidgets.HBox([choice, button]), image, numbers, table]))
