"""``repro.mismatch.measure`` in pieces: per-token numbers of a micro-batch, pooled over all of them at the end.

At 150 thousand tokens of vocabulary the logits of a whole rollout do not fit into a device's memory, a micro-batch's do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from repro.losses import LossBatch
from repro.mismatch import TAIL_FLOOR

Tokens = dict[str, Tensor]


@torch.no_grad()
def token_measures(logits: Tensor, batch: LossBatch, temperature: float) -> Tokens:
    """Float64 vectors [N] over the valid tokens of trainer ``logits`` [B, T, V]: ``log_ratio`` log p(y) - log q(y) and
    ``entropy`` in nats; ``head_q``, ``head_p`` (the head's mass) with a head; ``kl`` where whole rows are recorded."""
    mask = batch.mask
    logp = torch.log_softmax(logits[mask] / temperature, dim=-1)
    found = {
        "log_ratio": logp.gather(-1, batch.tokens[mask][:, None]).squeeze(-1) - batch.logp_sampler[mask],
        "entropy": -(logp.exp() * logp.masked_fill(logp == -torch.inf, 0.0)).sum(-1),
    }
    if batch.logp_sampler_full is not None:
        logq = batch.logp_sampler_full[mask]
        found["kl"] = (logq.exp() * (logq - logp)).sum(-1)
    if batch.head_ids is not None:
        ids = batch.head_ids[mask]
        found["head_q"] = batch.head_logp_sampler[mask].double().exp().sum(-1)
        found["head_p"] = logp.gather(-1, ids.clamp_min(0)).double().exp().where(ids >= 0, 0.0).sum(-1)
    return {name: value.double().cpu() for name, value in found.items()}


def pooled(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """The columns of ``repro.mismatch.measure`` from every micro-batch's :func:`token_measures`; same definitions."""
    tokens = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    log_ratio = tokens["log_ratio"]
    # In log space: a ratio beyond e^709 would make the fraction inf / inf.
    log_ess = 2 * log_ratio.logsumexp(0) - (2 * log_ratio).logsumexp(0) - math.log(len(log_ratio))
    k1 = float(-log_ratio.mean())
    metrics = {
        "kl_sampler_trainer": float(tokens["kl"].mean()) if "kl" in tokens else k1,
        "kl_k1": k1,
        "ess": float(log_ess.exp()),
        "log_ratio_max": float(log_ratio.max()),
        "entropy": float(tokens["entropy"].mean()),
    }
    if "head_q" in tokens:
        tail_ratio = (1 - tokens["head_q"]).clamp_min(TAIL_FLOOR) / (1 - tokens["head_p"]).clamp_min(TAIL_FLOOR)
        metrics |= {
            "head_mass_sampler": float(tokens["head_q"].mean()),
            "head_mass_trainer": float(tokens["head_p"].mean()),
            "tail_ratio_mean": float(tail_ratio.mean()),
            "tail_ratio_max": float(tail_ratio.max()),
        }
    return metrics
