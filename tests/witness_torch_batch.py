"""Torch side of the second witness: a wire case as float64 tensors, with the definition's defaults filled in."""

from __future__ import annotations

import torch

RULE_DEFAULTS = {
    "weight": dict(level="token", low=0.0, high=None, positive=None, negative=None, outside=None, inside="ratio",
                   sign="both", statistic="ratio", numerator=None, log_clamp=None, clamp_order="aggregate", closed=True,
                   normalise=None),
    "gate": dict(level="token", low=0.0, high=None, closed=True, sign="both", numerator=None),
    "centering": dict(floor_sampler=1e-6, floor_trainer=1e-6),
    "kl": dict(weighted=False),
    "entropy": {},
    "aggregation": dict(length=None, tokens=None, sequences=None),
}  # fmt: skip
REJECTION_DEFAULTS = dict(low=None, high=None, closed=True, sign="both", log_clamp=None, numerator=None,
                          denominator="kept")  # fmt: skip
SURROGATE_DEFAULTS = {
    "reinforce": {},
    "ppo_clip": dict(eps_low=0.2, eps_high=0.2, dual=None),
    "cispo": dict(eps_low=None, eps_high=0.2),
    "gspo": dict(eps_low=3e-4, eps_high=4e-4),
}


def with_defaults(definition):
    out = {"temperature": definition.get("temperature", 1.0)}
    out["surrogate"] = definition.get("surrogate", {"kind": "reinforce"})
    out["surrogate"] = SURROGATE_DEFAULTS[out["surrogate"]["kind"]] | out["surrogate"]
    for name, defaults in RULE_DEFAULTS.items():
        out[name] = None if definition.get(name) is None else defaults | definition[name]
    out["rejection"] = [REJECTION_DEFAULTS | rule for rule in definition.get("rejection", [])]
    return out


def tensor(values, dtype=torch.float64):
    """A wire list of numbers as a tensor; strings such as "-Infinity" are read by float()."""
    if isinstance(values, list):
        inner = [tensor(item, dtype) for item in values]
        return torch.stack(inner) if inner else torch.zeros(0, dtype=dtype)
    return torch.tensor(float(values), dtype=torch.float64).to(dtype)


def load(inputs):
    """Tensors with everything under the mask replaced by harmless numbers; absent head slots get log q = -inf."""
    mask = tensor(inputs["mask"]) > 0
    batch = {"mask": mask}

    def take(name, fill=0.0):
        if inputs.get(name) is None:
            return None
        x = tensor(inputs[name])
        where = mask.reshape(mask.shape + (1,) * (x.ndim - 2))
        return torch.where(where, x, fill)

    batch["logits"], batch["advantages"] = take("logits"), take("advantages")
    batch["tokens"] = take("tokens").long()
    batch["log_q"], batch["log_o"], batch["log_ref"] = take("logp_sampler"), take("logp_anchor"), take("logp_reference")
    batch["full_q"], batch["full_o"] = take("logp_sampler_full"), take("logp_anchor_full")
    support = take("support", 1.0)
    batch["support"] = torch.ones_like(batch["logits"], dtype=torch.bool) if support is None else support > 0
    ids = take("head_ids", -1.0)
    if ids is not None:
        batch["present"] = ids >= 0
        batch["ids"] = ids.long().clamp(min=0)
        batch["head_q"] = torch.where(batch["present"], take("head_logp_sampler"), -torch.inf)
        head_o = take("head_logp_anchor")
        if head_o is None and batch["full_o"] is not None:
            head_o = batch["full_o"].gather(2, batch["ids"])
        batch["head_o"] = None if head_o is None else torch.where(batch["present"], head_o, -torch.inf)
        member = torch.zeros_like(batch["logits"]).scatter_add(2, batch["ids"], batch["present"].to(torch.float64))
        batch["member"] = member > 0
    return batch
