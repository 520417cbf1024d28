"""The corrections of the field by name, each a complete definition: one table from the one grid.

Weight rules come from `rlcorr_ref.weights.PRESETS` (arXiv 2609.20807, Table 1: level, statistic, band, outside, inside, sign),
rejection rules from `rlcorr_ref.rejection.PRESETS`; surrogates are the same ideas written as a loss in the ratio. A rule that
exists in both forms has the same gradient (PPO's clip and its detached band, CISPO and a clipped weight).
"""

from __future__ import annotations

import copy
from typing import Any

from . import rejection, weights
from .contract import Band, Objective
from .errors import ContractError

DEFINITIONS: dict[str, dict[str, Any]] = {
    "reinforce": {},
    **{name: {"weight": rule} for name, rule in weights.PRESETS.items()},
    # ms-swift 4.6 gates token weights by the geometric mean of the row; the survivors keep their raw ratios
    "swift_sequence_mask": {
        "weight": weights.PRESETS["swift_sequence_mask"],
        "gate": {"level": "geometric", "high": 2.0},
    },
    **{name: {"rejection": rules} for name, rules in rejection.PRESETS.items()},
    "ppo_clip": {"surrogate": {"kind": "ppo_clip"}},
    "dapo_clip": {"surrogate": {"kind": "ppo_clip", "eps_low": 0.2, "eps_high": 0.28}},
    "dual_clip": {"surrogate": {"kind": "ppo_clip", "dual": 3.0}},
    "cispo_surrogate": {"surrogate": {"kind": "cispo"}},
    "gspo_surrogate": {"surrogate": {"kind": "gspo"}, "aggregation": {"kind": "seq-mean-token-mean"}},
    "score_centering": {"centering": {"tail": "rescaled"}},
    "tis_score_centering": {"weight": weights.PRESETS["tis"], "centering": {"tail": "rescaled"}},
    "mis_score_centering": {"weight": weights.PRESETS["mis"], "centering": {"tail": "rescaled"}},
}


def definition(name: str) -> dict[str, Any]:
    """A fresh copy of the named definition, ready for `Objective.from_dict`; an unknown name lists the known ones."""
    if name not in DEFINITIONS:
        raise ContractError(f"preset: unknown name {name!r}; known: {', '.join(DEFINITIONS)}")
    return copy.deepcopy(DEFINITIONS[name])


def _band(band: Band) -> str:
    low = "-inf" if band.low is None else f"{band.low:g}"
    return f"[{low}, {'inf' if band.high is None else f'{band.high:g}'}]"


def rows() -> list[dict[str, str]]:
    """The table's rows as text: name, level, statistic, band (A >= 0 / A < 0 where they differ), outside, inside, sign, with."""
    out = []
    for name in DEFINITIONS:
        objective = Objective.from_dict(DEFINITIONS[name])
        w, rest = objective.weight, []
        row = dict.fromkeys(("level", "statistic", "band", "outside", "inside", "sign"), "-")
        if w is not None:
            up, down = _band(w.band(True)), _band(w.band(False))
            row = {
                "level": w.level,
                "statistic": w.statistic,
                "band": up if up == down else f"{up} / {down}",
                "outside": w.outside or "-",
                "inside": w.inside,
                "sign": w.sign,
            }
            if w.log_clamp is not None:
                rest.append(f"log clamp {w.log_clamp:g}")
        if objective.gate is not None:
            rest.append(f"gate {objective.gate.level} {_band(Band(objective.gate.low, objective.gate.high))}")
        for rule in objective.rejection:
            low = "-inf" if rule.low is None else f"{rule.low:.4g}"
            high = "inf" if rule.high is None else f"{rule.high:.4g}"
            only = "" if rule.sign == "both" else f", {rule.sign} A only"
            rest.append(f"keep {rule.reduce} {rule.statistic} in [{low}, {high}]{only}")
        if objective.surrogate.kind != "reinforce":
            settings = {k: v for k, v in objective.surrogate.to_dict().items() if k != "kind" and v is not None}
            rest.append(f"{objective.surrogate.kind} " + ", ".join(f"{k} {v:g}" for k, v in settings.items()))
        if objective.centering is not None:
            rest.append(f"centering, tail {objective.centering.tail}")
        out.append({"name": name, **row, "with": "; ".join(rest) or "-"})
    return out


def table() -> str:
    """The presets as an aligned text table, one line each; a band "a / b" holds for A >= 0 and for A < 0."""
    lines = rows()
    widths = {key: max(len(key), *(len(row[key]) for row in lines)) for key in lines[0]}
    head = "  ".join(key.ljust(width) for key, width in widths.items()).rstrip()
    body = ["  ".join(row[key].ljust(width) for key, width in widths.items()).rstrip() for row in lines]
    return "\n".join([head, "-" * max(map(len, [head, *body])), *body])
