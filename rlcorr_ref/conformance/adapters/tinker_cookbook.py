"""tinker-cookbook: `compute_kl_sample_train`, taken from the installed file. Losses run on a server and cannot be
called here.

Needs torch only; a plain object with `loss_fn_inputs` stands in for the client's record of a sampled row.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from .tools import file_of, isolate, need

NAME, TITLE = "tinker-cookbook", "tinker-cookbook"
DISTRIBUTION, VERIFIED = "tinker-cookbook", ("0.6.1", "0.6.2")
ENTRY = "function isolated from the installed file, from log-probs"
SERVER = "losses run on the server"
ABSENT = dict.fromkeys(("objective", "weight", "ratio", "reject", "surrogate", "aggregate", "shard"), SERVER)


def load() -> Any:
    """The isolated metric function."""
    import torch

    names: dict[str, Any] = {"torch": torch, "safezip": lambda *rows: zip(*rows, strict=True)}
    isolate(file_of(DISTRIBUTION, "tinker_cookbook/rl/metrics.py"), ("compute_kl_sample_train",), names)
    return Tinker(SimpleNamespace(torch=torch, metric=names["compute_kl_sample_train"]))


class Tinker:
    """The one contract function that the package computes on this side."""

    def __init__(self, package: SimpleNamespace) -> None:
        self.p = package

    def diagnostics(
        self, parameters: dict, logp_trainer: Any, logp_sampler: Any, mask: Any, logp_anchor: Any = None, **_: Any
    ):
        need(not parameters, "the KL estimates of sampler and trainer are the only statistics")
        n = logp_trainer if logp_anchor is None else logp_anchor
        found = self.p.metric([datum(q, m) for q, m in zip(logp_sampler, mask, strict=True)], list(n))
        return {"kl_k1": found["optim/kl_sample_train_v1"], "kl_k2": found["optim/kl_sample_train_v2"]}


def datum(logprobs: Any, mask: Any) -> SimpleNamespace:
    """One row as the client records it."""
    held = {"logprobs": logprobs, "mask": mask}
    return SimpleNamespace(loss_fn_inputs={k: SimpleNamespace(to_torch=lambda v=v: v) for k, v in held.items()})
