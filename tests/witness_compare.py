"""Compares an evaluation of a case with a witness, entry by entry, at tolerances that follow the promised accuracy.

Gradients: |error| <= 1e-12 * coef * |A| * (1 + max(1, w)) / temperature per entry, plus T * 2^-52 relative. Loss values
and head coefficients are ill-conditioned as 1 / tail mass, so their tolerance grows with it; `scale` from the torch
witness is the size of the summands behind a token's loss.
"""

from __future__ import annotations

import numpy as np

ARRAYS = "loss loss_dense grad_logits grad_logp grad_head_logp grad_logp_full weights mask token_loss".split()


def to_array(value):
    """Nested lists of numbers, mpf or wire strings as a float64 array; None stays None."""
    if value is None:
        return None

    def read(item):
        return [read(each) for each in item] if isinstance(item, (list, tuple)) else float(item)

    return np.array(read(value.tolist() if isinstance(value, np.ndarray) else value))


def error(got, want):
    """|got - want|, 0 where both are the same infinity or both NaN, infinite where only one is finite."""
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        gap = np.abs(got - want)
    return np.where(same, 0.0, np.where(np.isnan(gap), np.inf, gap))


def reach(case):
    """[B, T]: the largest |logit| / temperature; a log-prob near 0 carries the rounding of its logits, not its own."""
    logits = np.nan_to_num(to_array(case["inputs"]["logits"]), nan=0.0, posinf=0.0, neginf=0.0)
    mask = to_array(case["inputs"]["mask"]) > 0
    return np.abs(np.where(mask[..., None], logits, 0.0)).max(-1) / case["definition"]["temperature"]


def gradient_scale(case, torch_out):
    """[B, T, 1]: coef * |A| * (1 + max(1, w)) / temperature, plus the sizes of the KL, entropy and PPO terms."""
    definition, inputs = case["definition"], case["inputs"]
    mask = to_array(inputs["mask"]) > 0
    advantages = np.where(mask, np.abs(to_array(inputs["advantages"])), 0.0)
    coef = torch_out["coefficients"]
    scale = coef * advantages * (1 + np.maximum(1, torch_out["weights"]))
    plain = definition["surrogate"]["kind"] == "reinforce"
    if not plain or definition.get("kl") or definition.get("entropy"):
        # the promise is worded for the REINFORCE term; other slopes are judged by their own size
        scale = scale + np.abs(torch_out["grad_logp"])
        for key in ("grad_head_logp", "grad_logp_full"):
            if torch_out[key] is not None:
                scale = scale + np.abs(torch_out[key]).sum(-1)
    if definition.get("kl"):
        scale = scale + coef * definition["kl"]["beta"] * np.maximum(1, torch_out["weights"]) * (1 + reach(case))
    return scale[..., None] / definition["temperature"]


def tolerances(case, torch_out, want):
    """{output: array of absolute tolerances}, broadcastable to the output."""
    length = torch_out["weights"].shape[1]
    relative = 1e-12 + length * 2.0**-52
    conditioning = 1e-14 / min(1.0, max(torch_out["tail_mass"], 1e-12)) + relative
    gradient = relative * gradient_scale(case, torch_out)
    scale = np.where(np.isfinite(torch_out["scale"]), torch_out["scale"], 0.0)
    token = conditioning * (scale + np.abs(np.where(np.isfinite(want["token_loss"]), want["token_loss"], 0.0)))
    mask = to_array(case["inputs"]["mask"]) > 0
    advantages = np.where(mask, np.nan_to_num(to_array(case["inputs"]["advantages"])), 0.0)
    token = token + 2.0**-50 * (1 + reach(case)) * (1 + np.abs(advantages) * np.maximum(1, torch_out["weights"]))
    total = (torch_out["coefficients"] * token).sum()
    head = conditioning * (gradient_scale(case, torch_out) * case["definition"]["temperature"])
    out = {"grad_logits": gradient, "loss": total, "loss_dense": total, "token_loss": token, "mask": np.zeros(())}
    out["weights"] = relative * np.abs(want["weights"])
    out["grad_logp"] = relative * gradient_scale(case, torch_out)[..., 0] * case["definition"]["temperature"]
    for key in ("grad_head_logp", "grad_logp_full"):
        if want[key] is not None:
            out[key] = head + conditioning * np.abs(want[key])
    return out


def disagreements(case, got, want, torch_out):
    """Readable list of outputs of `got` that differ from `want`; both hold nested lists or arrays."""
    got = {key: to_array(got[key]) for key in ARRAYS}
    want = {key: to_array(want[key]) for key in ARRAYS}
    allowed = tolerances(case, torch_out, want)
    found = []
    for key in ARRAYS:
        if got[key] is None or want[key] is None:
            if got[key] is not want[key]:
                found.append(f"{key}: got {got[key]}, want {want[key]}")
            continue
        if got[key].shape != want[key].shape:
            found.append(f"{key}: shape {got[key].shape}, want {want[key].shape}")
            continue
        gap = error(got[key], want[key])
        bad = np.argwhere(gap > np.broadcast_to(allowed[key], gap.shape))
        if len(bad):
            at = tuple(bad[0])
            found.append(
                f"{key}{list(map(int, at))}: got {got[key][at]!r}, want {want[key][at]!r}, off by {gap[at]:.1e}"
            )
    return found


def diagnostic_disagreements(got, want, tail_mass):
    """Differences between two diagnostics dicts on the keys of `want`; tail and head figures follow the tail mass."""
    found = []
    for key, value in want.items():
        value = float(value)
        slack = 1e-14 / max(tail_mass, 1e-12) if key.startswith(("tail_ratio", "centering_l1")) else 0.0
        if key not in got:
            found.append(f"{key}: missing, want {value!r}")
        elif error(np.array(float(got[key])), np.array(value)) > (1e-11 + slack) * max(1.0, abs(value)):
            found.append(f"{key}: got {got[key]!r}, want {value!r}")
    return found
