"""What the derivation notebooks share: small figures, sliders with a static fallback, derivations on the page, checked exercises.

    every_token(p, q, definition)     the package's gradient at one prefix, one row per sampled token [V, V]
    derivation("eq-drift")            the SymPy derivation, shown step by step, and its record
    numbers(record, formula, p=...)   numbers in a derived formula
    dials(draw, controls)             sliders where a front end listens, small multiples where none does
    break_it(names, ids, shown)       swaps in a named wrong implementation: its gradient, the vectors that turn red
    Exercise(reference).check(mine)   compares an answer with the package and says what differs

NumPy only until something is shown: SymPy, matplotlib, IPython and ipywidgets are imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import teaching_page
from .batch import Batch
from .contract import Objective
from .errors import ContractError
from .objective import Evaluation
from .teaching_break import break_it, each_token, judged
from .teaching_page import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LIVE_WIDTH,
    ORANGE,
    PANEL_HEIGHT,
    PANEL_WIDTH,
    PURPLE,
    SKY,
    VERMILLION,
    figure,
    front_end,
    legend,
    show,
)

__all__ = [
    "BLACK",
    "BLUE",
    "GREEN",
    "GREY",
    "ORANGE",
    "PURPLE",
    "SKY",
    "VERMILLION",
    "Dial",
    "Exercise",
    "break_it",
    "derivation",
    "dials",
    "each_token",
    "every_token",
    "figure",
    "front_end",
    "judged",
    "legend",
    "numbers",
    "show",
]


def every_token(
    p: np.ndarray,
    q: np.ndarray,
    definition: Mapping[str, Any] | None = None,
    advantages: np.ndarray | float = 1.0,
    *,
    head: Sequence[int] | None = None,
    anchor: np.ndarray | None = None,
) -> Evaluation:
    """Evaluate a definition at one prefix for every sampled token: V rows of one token, row y samples token y.

    `p`, `q`, `anchor` [V] are probabilities after temperature; `advantages` a number or [V] (one per sampled token); `head`
    the recorded ids [K], in place of the whole sampler row. Tokens are summed, so `grad_logits[y, 0]` is the loss gradient of
    token y alone and `q @ grad_logits[:, 0]` its expectation under the sampler.
    """
    p, q = np.asarray(p, dtype=np.float64), np.asarray(q, dtype=np.float64)
    if p.ndim != 1 or q.shape != p.shape:
        raise ContractError(f"q: expected shape [V] like p {list(p.shape)}, got {list(q.shape)}")
    objective = Objective.from_dict({"aggregation": {"kind": "token-sum"}, **(definition or {})})
    v = p.size

    def rows(values: np.ndarray) -> np.ndarray:
        return np.broadcast_to(values, (v, 1, values.size)).copy()

    data: dict[str, Any] = {}
    for name, row in (("sampler", q), ("anchor", anchor)):
        if row is not None:
            logp = np.log(np.asarray(row, dtype=np.float64))
            data[f"logp_{name}"] = logp[:, None]
            if head is None:
                data[f"logp_{name}_full"] = rows(logp)
            else:
                data["head_ids"] = np.broadcast_to(np.asarray(head), (v, 1, len(head))).copy()
                data[f"head_logp_{name}"] = rows(logp[np.asarray(head)])
    return objective.evaluate(
        Batch(
            logits=rows(objective.temperature * np.log(p)),
            tokens=np.arange(v)[:, None],
            mask=np.ones((v, 1), dtype=np.int64),
            advantages=np.broadcast_to(np.asarray(advantages, dtype=np.float64).reshape(-1, 1), (v, 1)).copy(),
            **data,
        )
    )


def derivation(anchor: str, **sizes: int) -> Any:
    """Show the derivation of `anchor` (a key of `derive.symbolic.derivations()`) step by step; return its record.

    `sizes` (vocabulary, head) go to the derivation. Residuals that were simplified to 0 are marked as checked.
    """
    from .derive.symbolic import derivations

    known = derivations()
    if anchor not in known:
        raise ContractError(f"anchor: unknown name {anchor!r}; known: {', '.join(known)}")
    record = known[anchor](**sizes)
    lines = [f"**{anchor}**, derived with SymPy:", f"$$\n{record.statement}\n$$"]
    for label, latex in record.latex():
        # Labels are plain words with ASCII mathematics: code type keeps underscores and bars from being read as markup.
        lines.append(
            f"* `{label}` simplifies to **0** (checked)" if latex == "0" else f"* `{label}`\n\n  $$\n  {latex}\n  $$"
        )
    teaching_page.display("Markdown", "\n\n".join(lines))
    return record


def numbers(record: Any, formulas: Any, **values: Any) -> np.ndarray:
    """Put numbers into formulas of a derivation: `values` by the names in `record.symbols`; returns float64, any shape.

    A distribution takes all its probabilities: the last one is what the others leave of 1.
    """
    import sympy

    where: dict[Any, float] = {}
    for name, value in values.items():
        if name not in record.symbols:
            raise ContractError(f"{name}: not a symbol of {record.anchor}; it has {', '.join(record.symbols)}")
        symbols = record.symbols[name]
        if isinstance(symbols, tuple):
            where |= dict(zip(symbols, np.asarray(value, dtype=np.float64), strict=False))
        else:
            where[symbols] = float(value)
    put = np.vectorize(lambda formula: float(sympy.sympify(formula).subs(where).evalf(30)), otypes=[np.float64])
    return put(np.array(formulas, dtype=object))


@dataclass(frozen=True)
class Dial:
    """One control: its label with the symbol, the values it can take, the one it starts at, and its unit.

    `fallback` are the values drawn side by side when nobody can move it (default: first, start, last).
    """

    label: str
    values: tuple[Any, ...]
    start: Any
    unit: str = ""
    fallback: tuple[Any, ...] = ()

    def text(self, value: Any) -> str:
        shown = f"{value:g}" if isinstance(value, (int, float)) else str(value)
        return f"{shown} {self.unit}".rstrip()


def dials(draw: Callable[..., str], controls: Mapping[str, Dial], alt: str, pins: Sequence[str] = ()) -> None:
    """Sliders that redraw a figure and the number that they change; small multiples where no front end listens.

    `draw(axes, **values)` draws one panel and returns the number in words; `controls` maps its keyword arguments to dials.
    Without a front end the first dial runs through its fallback values, the others stay at their start. `pins` names the
    oracle vectors that hold the setting.
    """
    for name, dial in controls.items():
        if dial.start not in dial.values:
            raise ContractError(f"{name}: the start {dial.start!r} is not one of its values {dial.values!r}")
    note = f"Pinned by {', '.join(pins)}." if pins else ""
    if front_end():
        _sliders(draw, controls, alt, note)
        return
    name, first = next(iter(controls.items()))
    values = first.fallback or tuple(dict.fromkeys((first.values[0], first.start, first.values[-1])))
    fixed = {key: dial.start for key, dial in controls.items() if key != name}
    drawn, axes = figure(len(values), PANEL_WIDTH * len(values), PANEL_HEIGHT, sharey=True)
    for panel, value in zip(np.atleast_1d(axes), values, strict=True):
        text = draw(panel, **{name: value}, **fixed)
        panel.set_title(f"{first.label} = {first.text(value)}\n{text}")
        panel.label_outer()
    show(drawn, alt)
    rest = "".join(f", {controls[key].label} = {controls[key].text(value)}" for key, value in fixed.items())
    still = (
        f"No front end: {first.label} at {', '.join(map(first.text, values))}{rest}. In JupyterLab this is a slider."
    )
    teaching_page.display("Markdown", f"*{still} {note}*".replace(" *", "*"))


def _sliders(draw: Callable[..., str], controls: Mapping[str, Dial], alt: str, note: str) -> None:
    import ipywidgets

    sliders = {
        name: ipywidgets.SelectionSlider(
            options=[(dial.text(value), value) for value in dial.values],
            value=dial.start,
            description=dial.label,
            style={"description_width": "initial"},
            layout={"width": "32em"},
        )
        for name, dial in controls.items()
    }
    number, image = ipywidgets.HTML(), ipywidgets.HTML()

    def refresh(_: Any = None) -> None:
        drawn, axes = figure(1, LIVE_WIDTH, PANEL_HEIGHT)
        text = draw(axes, **{name: slider.value for name, slider in sliders.items()})
        number.value = f"<b>{text}</b> <i>{note}</i>"
        image.value = teaching_page.picture(drawn, alt)

    for slider in sliders.values():
        slider.observe(refresh, "value")
    refresh()
    from IPython.display import display

    display(ipywidgets.VBox([*sliders.values(), number, image]))


@dataclass(frozen=True)
class Exercise:
    """A question whose answer the package knows: a number or array, or a function compared on argument tuples `cases`."""

    reference: Any
    cases: tuple[tuple[Any, ...], ...] = ()
    hint: str = ""
    tolerance: float = 1e-9

    def check(self, answer: Any) -> bool:
        """Print and return whether `answer` agrees with the reference; None counts as not answered yet."""
        function = callable(self.reference)
        if function and not callable(answer) and answer is not None:
            raise ContractError(f"answer: expected a function of {len(self.cases[0])} arguments, got {answer!r}")
        largest = 0.0
        for case in self.cases if function else ((),):
            got = answer(*case) if function and answer is not None else answer
            want = np.asarray(self.reference(*case) if function else self.reference, dtype=np.float64)
            if got is None:
                print("Not answered yet.")
                return False
            got = np.asarray(got, dtype=np.float64)
            if got.shape != want.shape:
                print(f"Not yet: expected shape {list(want.shape)}, got {list(got.shape)}. {self.hint}".rstrip())
                return False
            gap = np.abs(got - want).max(initial=0.0)
            if not gap <= self.tolerance:
                print(f"Not yet: off by up to {gap:.3g}. {self.hint}".rstrip())
                return False
            largest = max(largest, float(gap))
        print(f"Right: the largest difference from the package is {largest:.1e}.")
        return True
