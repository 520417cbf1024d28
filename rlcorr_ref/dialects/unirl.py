"""UniRL: clipped loss on sampler log-probs, and the opt-in truncated weight of its pull request.

Read: `unirl/algorithms/grpo.py`, `unirl/algorithms/base.py` (git 1a7b501e); the text of the pull request that adds
`rollout_is_threshold` (its source was not read).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ContractError
from . import pieces
from .records import Dialect, Draft, Entry, Option

REDUCTIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def build(o: Mapping[str, Any]) -> Draft:
    """The definition of a GRPO section."""
    replay = o["old_logp_source"] == "replay"
    draft = Draft(pieces.THREE if replay else pieces.TWO)
    if o["rollout_is_threshold"] is not None:
        if not replay:
            raise ContractError(
                "unirl.rollout_is_threshold: needs old_logp_source='replay' (a trainer-side anchor); UniRL raises"
            )
        draft.put("weight", pieces.truncate("token", o["rollout_is_threshold"], log_clamp=20.0))
    if not replay:
        draft.note(pieces.NO_ANCHOR)
    high = o["clip_range"] if o["clip_range_high"] is None else o["clip_range_high"]
    draft.put("surrogate", pieces.ppo(o["clip_range"], high))
    mode = o["loss_agg_mode"]
    pieces.aggregation(draft, o, mode, o["horizon"] if mode.endswith("norm") else None)
    if mode.startswith("seq-mean"):
        draft.note(f"empty rows count as 0 in the mean: {pieces.ALL_ROWS}")
    return draft


OPTIONS = (
    Option(
        "rollout_is_threshold", None, "truncation", "cap of the token weight (pull request)", optional=True, above=0.0
    ),
    Option(
        "old_logp_source",
        "rollout",
        "policies",
        "the old policy",
        "choice",
        {"rollout": "the sampler's log-probs", "replay": "the trainer's, recomputed before the update"},
    ),
    pieces.clip_option("clip_range", 1e-4, "band 1 - range (0.2 in the language-model recipes)"),
    pieces.clip_option("clip_range_high", None, "band 1 + high (null: clip_range)"),
    Option("loss_agg_mode", "token-mean", "aggregation", "reduction", "choice", {k: k for k in REDUCTIONS}),
    Option("horizon", 8192.0, "aggregation", "length of seq-mean-token-sum-norm", above=0.0),
)

ENTRIES = (
    Entry("default: sampler as the old policy", {}),
    Entry("language-model recipe", {"clip_range": 0.2}),
    Entry("token TIS 2.0", {"clip_range": 0.2, "old_logp_source": "replay", "rollout_is_threshold": 2.0}),
    Entry("Dr. GRPO reduction", {"clip_range": 0.2, "loss_agg_mode": "seq-mean-token-sum-norm"}),
)

TRAPS = (
    "clip_range defaults to 1e-4, made for diffusion models; language-model recipes set 0.2",
    "the weight needs the trainer-side anchor (old_logp_source 'replay'); with the sampler as old policy it raises",
    "ESS is computed per micro-batch and is not a global one",
    "clip_fraction counts both sides whatever the sign of the advantage",
    "seq-mean-token-sum-norm divides by a fixed horizon (8192)",
)

COLUMNS = {
    "sequence": "no sequence level",
    "truncation": "cap (one-sided)",
    "mask": "none",
    "boundary": "inclusive",
    "log_clamp": "20 per token",
    "denominator": "no",
    "kl_weighted": "no KL term",
    "default": "off",
    "floors": "no centering",
}

DIALECTS = (
    Dialect(
        "unirl",
        "UniRL",
        "git 1a7b501e and the pull request for rollout_is_threshold",
        "2026-06-13",
        ("unirl/algorithms/grpo.py", "unirl/algorithms/base.py"),
        OPTIONS,
        build,
        ENTRIES,
        TRAPS,
        COLUMNS,
    ),
)
