"""Points of entry of a case, with the derived inputs that a consumer needs who starts there.

    logits    the case's own inputs
    logprobs  + logp_trainer [B, T] (and on the head, or whole rows, where centering needs them)
    weights   + weights [B, T] and mask_kept [B, T] (after rejection)

Most production losses start at log-probs: the loss gradient in log p (grad_logp, and grad_head_logp or grad_logp_full where
centering or entropy add terms) is a full pass there.
"""

from __future__ import annotations

from typing import Any

from mpmath import mp

from ..derive.mp_centering import uses_head
from ..derive.mp_defaults import complete
from ..derive.mp_witness import prepare
from .model import Level
from .witness import DIGITS, TOKEN_MEAN, rounded

# function -> (its own level, required outputs, optional outputs)
STANDARD: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "objective": (
        "logits",
        ("loss", "grad_logits"),
        ("loss_dense", "grad_logp", "grad_head_logp", "grad_logp_full", "weights", "mask", "token_loss"),
    ),
    "log_softmax": ("logits", ("logp", "logp_token", "score"), ()),
    "ratio": ("logprobs", ("log_ratio", "ratio"), ()),
    "weight": ("logprobs", ("weights",), ("divisor",)),
    "reject": ("logprobs", ("mask",), ()),
    "surrogate": ("logprobs", ("slope",), ("value", "clipped")),
    "head_coefficients": (
        "logprobs",
        ("coefficients",),
        ("alpha", "tail_ratio", "head_mass_sampler", "head_mass_trainer"),
    ),
    "aggregate": ("weights", ("value",), ("coefficients",)),
    "advantages": ("weights", ("advantages",), ()),
    "diagnostics": ("logprobs", (), ()),
    "quantise": ("logits", ("values",), ("scale",)),
    "shard": ("logits", ("loss", "grad_logits"), ("losses",)),
}
EXACT = {"mask", "clipped", "values", "valid_tokens", "valid_rows"}


def judged_outputs(function: str, outputs: dict[str, Any], chosen: tuple[str, ...] | None) -> tuple[str, ...]:
    """Names of the judged outputs: the author's choice, or the function's standard ones that exist."""
    if chosen is not None:
        return chosen
    _, required, optional = STANDARD[function]
    return tuple(name for name in (*required, *optional) if outputs.get(name) is not None)


def levels(
    function: str, inputs: dict[str, Any], settings: dict[str, Any], judged: tuple[str, ...]
) -> dict[str, Level]:
    """All points of entry of a case and what is judged at each."""
    own, required, _ = STANDARD[function]
    first = [name for name in judged if name in required] or list(judged)
    out = {own: Level(first, [name for name in judged if name not in first])}
    if function != "objective" or "grad_logp" not in judged:
        return out
    portable = [name for name in ("grad_logp", "grad_head_logp", "grad_logp_full") if name in judged]
    value = [name for name in ("loss", "token_loss") if name in judged]
    derived = _derived(inputs, settings)
    kept = {name: derived.pop(name) for name in ("weights", "mask_kept")}
    out["logprobs"] = Level(portable, [*value, *(n for n in ("weights", "mask") if n in judged)], derived)
    centered = settings.get("centering") is not None
    if not centered:  # centering coefficients need the rule itself, weights alone do not determine them
        out["weights"] = Level(["grad_logp"], value, {**derived, **kept})
    return out


def _derived(inputs: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """logp_trainer, weights, mask_kept [B, T] and the trainer's log-probs that centering needs; 0 under the mask."""
    definition = complete({"aggregation": TOKEN_MEAN, **settings}, inputs)
    with mp.workdps(DIGITS):
        case = prepare(inputs, definition)
        b, t = case.batch, case.length
        logp = [[0.0] * t for _ in range(b)]
        weights = [[0.0] * t for _ in range(b)]
        kept = [[0.0] * t for _ in range(b)]
        rule = definition["centering"]
        head = rule is not None and uses_head(rule["tail"], case.sampler_rows)
        wide = definition["entropy"] is not None or (rule is not None and not head)
        on_head = [[[0.0] * (case.head_width or 0) for _ in range(t)] for _ in range(b)]
        full = [[[0.0] * case.vocabulary for _ in range(t)] for _ in range(b)]
        for token in case.tokens:
            i, j = token.b, token.t
            logp[i][j] = rounded(token.logp[token.y])
            weights[i][j], kept[i][j] = rounded(token.extra["weight"]), float(token.kept)
            full[i][j] = rounded(token.logp)
            if head:
                row = ["-Infinity"] * case.head_width
                for slot in token.head:
                    row[slot.slot] = rounded(token.logp[slot.token])
                on_head[i][j] = row
    out = {"logp_trainer": logp, "weights": weights, "mask_kept": kept}
    if head:
        out["head_logp_trainer"] = on_head
    if wide:
        out["logp_trainer_full"] = full
    return out
