"""A production-style consumer in float32 torch: losses over log-probs, gradients by autograd. Faults are planted by name.

It knows token, sequence and geometric weights with truncation or masking, PPO clipping, the named reductions and score
centering on a head with a rescaled tail. Nothing here imports the package under test.
"""

from __future__ import annotations

import torch

FAULTS = ("attached", "geometric-for-product", "mask-ignored", "low-clip", "denominator", "nan-times-zero")
SUPPORTED = {
    "weight",
    "weight.outside:*",
    "weight.low",
    "weight.level:sequence",
    "weight.level:geometric",
    "weight.normalise:tokens",
    "surrogate",
    "surrogate.kind:ppo_clip",
    "surrogate.kind:reinforce",
    "surrogate.eps_low",
    "aggregation",
    "aggregation.kind:token-mean",
    "aggregation.kind:token-sum",
    "aggregation.kind:seq-mean-token-*",
    "input:logp_anchor",
}


def weights(numerator, logp_sampler, mask, rule, fault=None):
    """Importance weights [B, T] of a rule with a one- or two-sided band."""
    if rule is None:
        return torch.ones_like(numerator)
    d = torch.where(mask, numerator - logp_sampler, 0.0)
    if fault == "nan-times-zero":
        d = (numerator - logp_sampler) * mask
    counted = torch.ones_like(mask) if fault == "mask-ignored" else mask
    level = rule["level"]
    if level == "sequence" and fault == "geometric-for-product":
        level = "geometric"
    if level != "token":
        d = d.sum(-1, keepdim=True).expand_as(d)
    if level == "geometric":
        d = d / counted.sum(-1, keepdim=True).clamp(min=1)
    ratio = d.exp()
    low, high = rule["low"] or 0.0, float("inf") if rule["high"] is None else rule["high"]
    if fault == "low-clip" and rule["outside"] == "clip" and rule["high"] is not None:
        low = 1 / high
    inside = (ratio >= low) & (ratio <= high)
    if rule["outside"] == "clip":
        w = ratio.clamp(low, high)
    elif rule["outside"] == "zero":
        w = torch.where(inside, ratio if rule["inside"] == "ratio" else torch.ones_like(ratio), torch.zeros_like(ratio))
    else:
        w = ratio if rule["inside"] == "ratio" else torch.ones_like(ratio)
    w = torch.where(mask, w, 0.0)
    if rule["normalise"] == "tokens":
        w = w / (w.sum() / mask.sum())
    return w


def reduce(values, mask, rule, fault=None):
    """One number from token losses [B, T] by a named reduction."""
    n = rule["tokens"] or mask.sum()
    rows = rule["sequences"] or mask.any(-1).sum()
    lengths = mask.sum(-1).clamp(min=1)
    if fault == "mask-ignored":
        n, lengths = mask.numel(), torch.full_like(lengths, mask.shape[1])
    if fault == "denominator":
        rows = mask.shape[0]
        n = rows * mask.shape[1]
    if fault != "nan-times-zero":
        values = torch.where(mask, values, 0.0)
    else:
        values = values * mask
    return {
        "token-mean": lambda: values.sum() / n,
        "token-sum": lambda: values.sum(),
        "seq-mean-token-sum": lambda: values.sum() / rows,
        "seq-mean-token-mean": lambda: (values.sum(-1) / lengths).sum() / rows,
        "seq-mean-token-sum-norm": lambda: values.sum() / (rows * rule["length"]),
    }[rule["kind"]]()


def surrogate(logp, old, advantages, rule):
    """Token losses of REINFORCE or the clipped surrogate."""
    if rule["kind"] == "reinforce":
        return -advantages * logp
    ratio = (logp - old).exp()
    clipped = ratio.clamp(1 - rule["eps_low"], 1 + rule["eps_high"])
    return -torch.minimum(ratio * advantages, clipped * advantages)


def loss_gradient(logp_trainer, logp_sampler, mask, advantages, definition, logp_anchor=None, fault=None):
    """d loss / d log p [B, T] of a definition, entered at log-probs."""
    logp = logp_trainer.clone().requires_grad_()
    mask = mask.bool()
    if fault != "nan-times-zero":  # junk lies under the mask: select before anything is computed
        advantages, logp_sampler = (torch.where(mask, x, 0.0) for x in (advantages, logp_sampler))
        logp_anchor = None if logp_anchor is None else torch.where(mask, logp_anchor, 0.0)
    anchor = logp_anchor
    rule = definition["weight"]
    numerator = logp if anchor is None or (rule or {}).get("numerator") == "trainer" else anchor
    w = weights(numerator if fault == "attached" else numerator.detach(), logp_sampler, mask, rule, fault)
    token = w * surrogate(logp, logp_sampler if anchor is None else anchor, advantages, definition["surrogate"])
    reduce(token, mask, definition["aggregation"], fault).backward()
    return {"grad_logp": logp.grad}
