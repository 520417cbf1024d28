"""NeMo RL: clipped policy-gradient loss with importance-sampling correction, and its score centering.

Read: `nemo_rl/algorithms/loss/loss_functions.py`, `nemo_rl/algorithms/utils.py` (git 7ea279ab); the nightly documentation of
`nemo_rl.algorithms.loss.score_centering` (not its source).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ContractError
from . import pieces
from .records import Dialect, Draft, Entry, Option, refuse

TYPES = {
    None: "raw ratio",
    "tis": "clamp(rho, min or 0, max)",
    "icepop": "rho inside [min, max], else 0",
    "seq-mask-tis": "raw token rho where the row's geometric mean lies in [min, max], else 0",
}


def build(o: Mapping[str, Any]) -> Draft:
    """The definition of a ClippedPGLossConfig."""
    _check(o)
    two = o["force_on_policy_ratio"]
    draft = Draft(pieces.TWO if two else pieces.THREE)
    if two:
        draft.note(pieces.NO_ANCHOR)
    weight = _weight(draft, o, "trainer" if two else "anchor")
    draft.put("weight", weight)
    draft.put("surrogate", _surrogate(draft, o, weight))
    if o["score_centering"]:
        _centering(draft, o)
    _kl(draft, o)
    pieces.aggregation(draft, o, "token-mean" if o["token_level_loss"] else "seq-mean-token-mean")
    draft.note("a ratio that overflows, or is NaN, becomes weight 0 and not the cap")
    return draft


def _check(o: Mapping[str, Any]) -> None:
    """The assertions of ClippedPGLossFn that concern the keys read here."""
    kind, low, high = (
        o["truncated_importance_sampling_type"],
        o["truncated_importance_sampling_ratio_min"],
        o["truncated_importance_sampling_ratio"],
    )
    where = "nemo-rl.truncated_importance_sampling"
    if kind is None:
        if high is not None and o["use_importance_sampling_correction"]:
            raise ContractError(f"{where}_type: required because {where}_ratio is set; NeMo RL raises ValueError")
        return
    if not o["use_importance_sampling_correction"]:
        raise ContractError(f"{where}_type: needs use_importance_sampling_correction=true; NeMo RL asserts it")
    if high is None:
        raise ContractError(f"{where}_ratio: required for type {kind!r}; NeMo RL asserts it")
    if kind != "tis" and low is None:
        raise ContractError(f"{where}_ratio_min: required for type {kind!r}; NeMo RL asserts it")
    if low is not None and low > high:
        raise ContractError(f"{where}_ratio_min: {low:g} is above the upper bound {high:g}; NeMo RL asserts it")
    if kind == "seq-mask-tis" and o["sequence_level_importance_ratios"]:
        raise ContractError(f"{where}_type: seq-mask-tis and sequence_level_importance_ratios exclude each other")


def _weight(draft: Draft, o: Mapping[str, Any], numerator: str) -> dict[str, Any] | None:
    if not o["use_importance_sampling_correction"]:
        return None
    level = "sequence" if o["sequence_level_importance_ratios"] else "token"
    low = o["truncated_importance_sampling_ratio_min"] or 0.0
    high = o["truncated_importance_sampling_ratio"]
    kind = o["truncated_importance_sampling_type"]
    if kind == "tis":
        return pieces.truncate(level, high, low, numerator)
    if kind == "icepop":
        return pieces.band(level, low, high, numerator)
    if kind == "seq-mask-tis":
        draft.put("gate", {"level": "geometric", "low": low, "high": high, "numerator": numerator})
    return {"level": level, "numerator": numerator}


def _surrogate(draft: Draft, o: Mapping[str, Any], weight: Mapping[str, Any] | None) -> dict[str, Any]:
    low, high, dual = o["ratio_clip_min"], o["ratio_clip_max"], o["ratio_clip_c"]
    if o["force_on_policy_ratio"]:
        draft.note(
            "the ratio is 1 with the gradient of p/sg(p): the log-prob form here has the same gradient, another value"
        )
        return {"kind": "reinforce"}
    if o["disable_ppo_ratio"]:
        if dual is not None:
            refuse("ratio_clip_c with disable_ppo_ratio clips log-prob times advantage, not a ratio")
        return {"kind": "reinforce"}
    if o["use_cispo"]:
        return pieces.cispo(low, high)
    if o["sequence_level_importance_ratios"]:
        if o["token_level_loss"]:
            raise ContractError(
                "nemo-rl.token_level_loss: must be false with sequence_level_importance_ratios; NeMo RL asserts it"
            )
        if dual is not None:
            refuse("ratio_clip_c with sequence_level_importance_ratios: the contract's gspo has no dual bound")
        return pieces.row_ratio(draft, weight, low, high, "sequence_level_importance_ratios=true")
    return pieces.ppo(low, high, dual)


def _centering(draft: Draft, o: Mapping[str, Any]) -> None:
    """The documented term uses f(p/q) of the current policy on the head, beside a base loss that keeps its own clipping."""
    if not o["force_on_policy_ratio"]:
        refuse(
            "score_centering beside the base loss centers f(p/q) of the current policy, while the base loss weighs "
            "by o/q and clips "
            "p/o; the two agree where p = o: set force_on_policy_ratio"
        )
    draft.put("centering", {"tail": "rescaled", "floor_sampler": None, "floor_trainer": 1e-6})


def _kl(draft: Draft, o: Mapping[str, Any]) -> None:
    beta = o["reference_policy_kl_penalty"]
    if o["use_kl_in_reward"] or beta == 0:
        return
    if o["use_on_policy_kl_approximation"]:
        refuse("use_on_policy_kl_approximation weighs the KL term by p/q with its gradient")
    if o["reference_policy_kl_type"] != "k3":
        refuse(
            f"reference_policy_kl_type={o['reference_policy_kl_type']!r}: the term is multiplied by p/sg(p), which "
            "adds value times score; "
            "only for k3 is the sum an estimator of the contract (k3+)"
        )
    draft.put("kl", pieces.kl("k3+", beta))
    draft.note(
        "k3 times p/sg(p): the added score term turns k3's gradient into k2's, hence 'k3+'. Clamps (20, 10) are not "
        "in the definition"
    )


OPTIONS = (
    Option("use_importance_sampling_correction", False, "weight", "multiply by o/q", "bool"),
    Option("truncated_importance_sampling_type", None, "weight", "rule", "choice", TYPES),
    Option("truncated_importance_sampling_ratio", None, "truncation", "upper bound", optional=True, above=0.0),
    Option("truncated_importance_sampling_ratio_min", None, "truncation", "lower bound", optional=True, at_least=0.0),
    Option(
        "sequence_level_importance_ratios", False, "weight", "GSPO: row ratio, and the row product as weight", "bool"
    ),
    Option("disable_ppo_ratio", False, "surrogate", "REINFORCE", "bool"),
    Option("force_on_policy_ratio", False, "policies", "ratio 1; the old policy is the detached current one", "bool"),
    Option("use_cispo", False, "surrogate", "CISPO", "bool"),
    pieces.clip_option("ratio_clip_min", 0.2, "band 1 - min"),
    pieces.clip_option("ratio_clip_max", 0.2, "band 1 + max"),
    Option("ratio_clip_c", None, "surrogate", "dual clip", optional=True, above=1.0),
    Option("token_level_loss", True, "aggregation", "token mean, else the mean of row means", "bool"),
    Option("reference_policy_kl_penalty", 0.01, "kl", "KL coefficient, on by default"),
    Option("reference_policy_kl_type", "k3", "kl", "its estimator", "choice", {"k1": "k1", "k2": "k2", "k3": "k3"}),
    Option("use_kl_in_reward", False, "kl", "KL in the reward instead", "bool"),
    Option("use_on_policy_kl_approximation", False, "kl", "weigh the KL term by p/q", "bool"),
    Option("score_centering", False, "centering", "nightly; experimental", "bool"),
)

IS = {"use_importance_sampling_correction": True, "reference_policy_kl_penalty": 0.0}


def _type(kind: str, low: float | None, high: float) -> dict[str, Any]:
    return {
        **IS,
        "truncated_importance_sampling_type": kind,
        "truncated_importance_sampling_ratio": high,
        "truncated_importance_sampling_ratio_min": low,
    }


ENTRIES = (
    Entry("default (KL 0.01, no correction)", {}),
    Entry("raw ratio", IS),
    Entry("tis 2.0", _type("tis", None, 2.0)),
    Entry("icepop 0.5 to 5", _type("icepop", 0.5, 5.0)),
    Entry("seq-mask-tis 0.99 to 1.05", _type("seq-mask-tis", 0.99, 1.05)),
    Entry(
        "GSPO with the row product",
        {**_type("tis", None, 2.0), "sequence_level_importance_ratios": True, "token_level_loss": False},
    ),
    Entry("CISPO", {"use_cispo": True, "ratio_clip_max": 4.0, "reference_policy_kl_penalty": 0.0}),
    Entry("REINFORCE", {"disable_ppo_ratio": True, "reference_policy_kl_penalty": 0.0}),
    Entry(
        "score centering, tis 2.0", {**_type("tis", None, 2.0), "force_on_policy_ratio": True, "score_centering": True}
    ),
    Entry("score centering beside PPO", {"score_centering": True, "reference_policy_kl_penalty": 0.0}),
    Entry("k1 KL", {"reference_policy_kl_type": "k1"}),
)

TRAPS = (
    "a ratio that overflows becomes weight 0, not the cap, and is not counted as out of bounds",
    "seq-mask-tis gates by the geometric mean and keeps raw token weights; sequence-level ratios are products",
    "the KL term is multiplied by p/sg(p): its gradient is k2's, not that of k3 written out",
    "the KL loss is on by default (0.01)",
    "sampling_importance_ratio with sequence-level ratios reduces [B, 1] * [B] to [B, B]: 3.115 where 1.0575 is right",
    "score centering floors the trainer's tail only, and centers f(p/q) beside a base loss that keeps its own clipping",
)

COLUMNS = {
    "sequence": "product; seq-mask: geometric gate",
    "truncation": "clamp on both sides (min 0)",
    "mask": "zero weight, two-sided",
    "boundary": "inclusive",
    "log_clamp": "none; overflow gives 0",
    "denominator": "no",
    "kl_weighted": "no",
    "default": "off",
    "floors": "trainer 1e-6, sampler none",
}

DIALECTS = (
    Dialect(
        "nemo-rl",
        "NeMo RL",
        "git 7ea279ab (nightly documentation for score centering)",
        "2026-08-22",
        ("nemo_rl/algorithms/loss/loss_functions.py", "nemo_rl/algorithms/utils.py"),
        OPTIONS,
        build,
        ENTRIES,
        TRAPS,
        COLUMNS,
    ),
)
