"""prime-rl 0.8.0: the default (DPPO) and IPO losses, and IPO's score centering over the sampling mask.

Read: `src/prime_rl/trainer/rl/loss.py`, `packages/prime-rl-configs/src/prime_rl/configs/trainer.py` (git 559b4477).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import pieces
from .records import Dialect, Draft, Entry, Option, refuse


def build(o: Mapping[str, Any]) -> Draft:
    """The definition of a loss section. Both losses are in p/q with its gradient, unclipped, and mask by p - q."""
    draft = Draft(pieces.TWO)
    draft.note(pieces.NO_ANCHOR)
    draft.put("surrogate", {"kind": "reinforce"})
    draft.note("the loss is -A p/q with its gradient; the log-prob form here has the same gradient and another value")
    weight = pieces.raw("trainer", outside="zero")
    if o["type"] == "default":
        positive, negative = {"low": None, "high": o["dppo_mask_high"]}, {"low": -o["dppo_mask_low"], "high": None}
        weight |= {"statistic": "tv_signed", "low": None, "positive": positive, "negative": negative}
        if o["score_centering"]:
            refuse("score_centering is an option of the ipo loss")
    else:
        weight |= {"statistic": "tv", "high": o["ipo_threshold"]}
    draft.put("weight", weight)
    if o["score_centering"]:
        draft.put("centering", {"tail": "support"})
        draft.note(
            f"prime-rl also caps the ratio at {o['max_importance_ratio']:g} in the centering term; the definition "
            "does not"
        )
        draft.note("without a recorded sampling mask prime-rl does not center")
    draft.put("kl", pieces.kl("k2", 2.0 * o["kl_tau"]))
    if o["kl_tau"] != 0:
        draft.note(
            "the KL term is kl_tau (log p - log q)^2 without 1/2: give the sampler's log-probs as logp_reference"
        )
    if o["adv_tau"] != 1.0:
        draft.note(f"multiply the advantages by adv_tau = {o['adv_tau']:g}")
    pieces.aggregation(draft, o, "token-mean")
    return draft


OPTIONS = (
    Option(
        "type",
        "default",
        "surrogate",
        "loss",
        "choice",
        {"default": "DPPO, sign-aware", "ipo": "symmetric in |p - q|"},
        {"custom": "a loss imported by path has no definition here"},
    ),
    Option("dppo_mask_low", 0.2, "mask", "A <= 0: drop where p - q < -low", at_least=0.0),
    Option("dppo_mask_high", 0.2, "mask", "A > 0: drop where p - q > high", at_least=0.0),
    Option("ipo_threshold", 0.1, "mask", "drop where |p - q| is above it", at_least=0.0),
    Option("adv_tau", 1.0, "surrogate", "factor of the advantage", at_least=0.0),
    Option("kl_tau", 1e-3, "kl", "factor of (log p - log q)^2", at_least=0.0),
    Option("score_centering", False, "centering", "ipo only, exact over the recorded sampling mask", "bool"),
    Option("max_importance_ratio", 1e4, "truncation", "cap of the ratio in the centering term", above=0.0),
)

ENTRIES = (
    Entry("default (DPPO 0.2, KL 1e-3)", {}),
    Entry("IPO 0.1", {"type": "ipo"}),
    Entry("IPO 0.3 with score centering", {"type": "ipo", "ipo_threshold": 0.3, "score_centering": True}),
    Entry("custom loss", {"type": "custom"}),
)

TRAPS = (
    "the ratio is not detached and not clamped: the loss is in p/q with its gradient",
    "on by default: a probability difference above 0.2 in the harmful direction drops a token",
    "its KL is the squared log-ratio to the sampler without 1/2, to the sampler and not to a reference",
    "mismatch_kl is k3 with p/q; masked and unmasked tokens are reported apart",
    "IcePop was proposed in PR #2401 (draft) and is not in the tree that was read",
    "score centering needs the recorded sampling mask and models no tail",
)

COLUMNS = {
    "sequence": "no sequence level",
    "truncation": "none",
    "mask": "p - q, sign-aware (ipo: |p - q|)",
    "boundary": "inclusive",
    "log_clamp": "none",
    "denominator": "no",
    "kl_weighted": "no",
    "default": "on: DPPO 0.2",
    "floors": "no tail (recorded support)",
}

DIALECTS = (
    Dialect(
        "prime-rl",
        "prime-rl",
        "0.8.0 (git 559b4477)",
        "2026-08-21",
        ("src/prime_rl/trainer/rl/loss.py", "packages/prime-rl-configs/src/prime_rl/configs/trainer.py"),
        OPTIONS,
        build,
        ENTRIES,
        TRAPS,
        COLUMNS,
    ),
)
