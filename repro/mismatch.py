"""How the sampler departs from the trainer: what is asked for (``Mismatch``) and what is measured (``measure``).

Three sources, alone or together: quantisation (weights, activations, key/value cache), weight noise drawn once per run
and relative to each weight (sigma * N(0, 1) * w), and staleness s: the sampler takes the trainer's weights when
``step % (s + 1) == 0``, so its age runs 0..s steps. Definitions follow the experiments of arXiv 2609.20807.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from transformers import Qwen3Config

from repro.policies import State
from repro.quantise import grid, quantise_weights
from repro.samplers import Rollout
from repro.samplers.torch_sampler import TorchSampler

TAIL_FLOOR = 1e-6


@dataclass(frozen=True)
class Mismatch:
    """Formats of ``repro.quantise`` (None: float32), sd of the relative weight noise, staleness in steps."""

    weights: str | None = None
    activations: str | None = None
    kv: str | None = None
    weight_noise: float = 0.0
    staleness: int = 0

    def __post_init__(self) -> None:
        for field in ("weights", "activations", "kv"):
            if getattr(self, field) is not None:
                try:
                    grid(getattr(self, field))
                except ValueError as error:
                    raise ValueError(f"{field}: {error}") from None
        if self.weight_noise < 0:
            raise ValueError(f"weight_noise: expected a standard deviation >= 0, got {self.weight_noise}")
        if self.staleness < 0 or int(self.staleness) != self.staleness:
            raise ValueError(f"staleness: expected a whole number of steps >= 0, got {self.staleness}")

    @classmethod
    def from_config(cls, config: dict) -> Mismatch:
        """The fields of the same name in a run's configuration, where "" stands for no format."""
        return cls(**{f.name: None if config[f.name] == "" else config[f.name] for f in fields(cls)})

    def sampler(self, config: Qwen3Config, *, eos: int, pad: int) -> TorchSampler:
        """A simulated engine with this quantisation."""
        return TorchSampler(config, eos=eos, pad=pad, weights=self.weights, activations=self.activations, kv=self.kv)

    def refreshes(self, step: int) -> bool:
        """Whether the sampler takes the trainer's weights before step ``step`` (0-based)."""
        return step % (self.staleness + 1) == 0

    def delivered(self, state: State) -> State:
        """What a sampler of this quantisation must hold after it was given ``state``."""
        return quantise_weights(state, self.weights) if self.weights else state

    def perturb(self, state: State, seed: int) -> State:
        """The weights as the sampler gets them, before quantisation. The noise depends on ``seed`` alone, not on time."""
        if not self.weight_noise:
            return state
        generator = torch.Generator().manual_seed(seed)
        return {
            name: value * (1 + self.weight_noise * torch.randn(value.shape, generator=generator))
            for name, value in sorted(state.items())
        }


def measure(logits: Tensor, rollout: Rollout) -> dict[str, float]:
    """Trainer against sampler on one rollout: token-pooled means over the mask, from trainer logits [B, T, V].

    kl_sampler_trainer   KL(q || p) in nats per token, exact over the vocabulary where the sampler recorded whole rows,
                         else the estimate ``kl_k1``
    kl_k1                mean of log q(y) - log p(y), the one-sample estimate of the same
    ess                  (sum r)^2 / (N sum r^2) of the raw token ratios r = p/q, a fraction of the tokens
    log_ratio_max        largest log r, nats
    entropy              of the trainer, nats per token
    head_mass_sampler, head_mass_trainer   mean probability of the sampler's head under q and p
    tail_ratio_mean, tail_ratio_max        (1 - Q) / (1 - P), both floored at 1e-6
    """
    valid = rollout.mask.flatten().nonzero().squeeze(-1)

    def pooled(values: Tensor) -> Tensor:
        """[N, ...] of the N tokens on the mask; rows that are not needed are dropped before anything is computed."""
        return values.flatten(0, 1).index_select(0, valid)

    logp = torch.log_softmax(pooled(logits) / rollout.temperature, dim=-1)
    log_ratio = logp.gather(-1, pooled(rollout.tokens)[:, None]).squeeze(-1) - pooled(rollout.logp_sampler)
    log_ratio = log_ratio.double()
    k1 = float(-log_ratio.mean())
    # In log space: a ratio beyond e^709 would make the fraction inf / inf.
    log_ess = 2 * log_ratio.logsumexp(0) - (2 * log_ratio).logsumexp(0) - math.log(len(log_ratio))
    metrics = {
        "kl_sampler_trainer": k1,
        "kl_k1": k1,
        "ess": float(log_ess.exp()),
        "log_ratio_max": float(log_ratio.max()),
        "entropy": float(-(logp.exp() * logp).sum(-1).double().mean()),
    }
    if rollout.logp_sampler_full is not None:
        logq = pooled(rollout.logp_sampler_full)
        metrics["kl_sampler_trainer"] = float((logq.exp() * (logq - logp)).sum(-1).double().mean())
    if rollout.head_ids is not None:
        ids = pooled(rollout.head_ids)
        present = ids >= 0
        head_q = pooled(rollout.head_logp_sampler).double().exp().sum(-1)
        head_p = logp.gather(-1, ids.clamp_min(0)).double().exp().where(present, 0.0).sum(-1)
        tail_ratio = (1 - head_q).clamp_min(TAIL_FLOOR) / (1 - head_p).clamp_min(TAIL_FLOOR)
        metrics |= {
            "head_mass_sampler": float(head_q.mean()),
            "head_mass_trainer": float(head_p.mean()),
            "tail_ratio_mean": float(tail_ratio.mean()),
            "tail_ratio_max": float(tail_ratio.max()),
        }
    return metrics
