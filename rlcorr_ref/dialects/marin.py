"""MarinSkyRL: PPO with truncated importance sampling and three-policy score centering.

Read: `skyrl_train/objective/score_centering.py` (`ppo_tis_score_centering_correction`), with its test.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ContractError
from . import pieces
from .records import Dialect, Draft, Entry, Option


def build(o: Mapping[str, Any]) -> Draft:
    """The definition: w = min(o/q, cap), clipped surrogate in p/o, and the centering of their product."""
    if o["eps_clip_low"] >= 1.0:
        raise ContractError(
            f"marin.eps_clip_low: expected a number in [0, 1), got {o['eps_clip_low']:g}; Marin raises ValueError"
        )
    draft = Draft(pieces.THREE)
    draft.put("surrogate", pieces.ppo(o["eps_clip_low"], o["eps_clip_high"]))
    draft.put("weight", pieces.truncate("token", o["tis_cap"]))
    if o["score_centering"]:
        draft.put("centering", {"tail": "rescaled", "floor_sampler": 1e-6, "floor_trainer": 1e-6})
        draft.note("all three tail masses are floored at 1e-6, the anchor's like the trainer's")
        draft.note(
            "A >= 0 counts as positive; a token whose log p - log o exceeds the log-prob clip in size counts as "
            "inactive"
        )
    pieces.aggregation(draft, o, "token-mean")
    draft.note("Marin's reduction is configured elsewhere; the token mean here is the default of this project")
    return draft


OPTIONS = (
    Option("tis_cap", 2.0, "truncation", "cap of o/q", above=0.0),
    pieces.clip_option("eps_clip_low", 0.2, "band 1 - low, below 1"),
    pieces.clip_option("eps_clip_high", 0.2, "band 1 + high"),
    Option("score_centering", True, "centering", "add the centering term", "bool"),
)

ENTRIES = (
    Entry("three-policy score centering, cap 2", {"eps_clip_high": 0.28}),
    Entry("the same without centering", {"eps_clip_high": 0.28, "score_centering": False}),
)

TRAPS = (
    "the only published centering with three policies: q, the stored trainer o and the current p",
    "centers the effective score min(o/q, cap) p/o 1[not clipped], not min(p/q, cap)",
    "all three tail masses have a floor; a head mass above 1 + 1e-4, or a non-finite head row, is an error",
)

COLUMNS = {
    "sequence": "no sequence level",
    "truncation": "cap (one-sided)",
    "mask": "none",
    "boundary": "inclusive",
    "log_clamp": "cap in log space",
    "denominator": "no",
    "kl_weighted": "no",
    "default": "cap 2, by argument",
    "floors": "1e-6 all three",
}

DIALECTS = (
    Dialect(
        "marin",
        "MarinSkyRL",
        "source of 2026 (three-policy centering)",
        "2026-11-29",
        ("skyrl_train/objective/score_centering.py",),
        OPTIONS,
        build,
        ENTRIES,
        TRAPS,
        COLUMNS,
    ),
)
