"""Which engine samples: the laboratory's own on a transformers model, or vLLM behind an adapter for padded prompts.

vLLM takes prompts without padding, and :class:`repro.samplers.vllm_sampler.VllmSampler` prompts of one length per call,
of a Qwen3-shaped model with an output head of its own. :class:`LengthGrouped` makes the trainer's call into those.
vLLM's GPU engine has not yet been run from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from repro.arms import ARMS
from repro.gpu.hf_policy import HFPolicy, real_tokens
from repro.gpu.hf_sampler import HFSampler
from repro.policies import State
from repro.samplers import Rollout, RolloutError, Sampler

EngineFactory = Callable[[Mapping[str, Any], HFPolicy, int], Sampler]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def torch_engine(config: Mapping[str, Any], policy: HFPolicy, eos: int) -> HFSampler:
    """The sampler of ``config``'s arm: native fp8 and a rounded cache where it is mismatched, neither on-policy."""
    mismatched = ARMS[config["arm"]].mismatched
    return HFSampler(
        policy, eos=eos, fp8=bool(mismatched and config["weights"]), kv=(config["kv"] or None) if mismatched else None
    )


def vllm_engine(config: Mapping[str, Any], policy: HFPolicy, eos: int) -> LengthGrouped:
    """vLLM with the settings ``engine_dtype`` (bfloat16), ``engine_kv`` (auto) and ``engine_quantization`` (none)."""
    from transformers import Qwen3Config

    from repro.samplers.vllm_sampler import VllmSampler  # needs an environment with vLLM once it generates

    if not isinstance(policy.config, Qwen3Config):
        raise ValueError(
            f"engine: 'vllm' takes Qwen3-shaped models, got {type(policy.config).__name__}; use engine = 'torch'"
        )
    mismatched = ARMS[config["arm"]].mismatched
    tied = policy.config.tie_word_embeddings
    sampler = VllmSampler(
        Qwen3Config(**{**policy.config.to_dict(), "tie_word_embeddings": False}),
        eos=eos,
        pad=policy.pad,
        dtype=config["engine_dtype"] or "bfloat16",
        kv_cache_dtype=(mismatched and config["engine_kv"]) or "auto",
        quantization=(mismatched and config["engine_quantization"]) or None,
    )
    return LengthGrouped(sampler, pad=policy.pad, vocabulary=policy.vocabulary, tied=tied)


ENGINES: dict[str, EngineFactory] = {"torch": torch_engine, "vllm": vllm_engine}


class LengthGrouped:
    """A sampler for left-padded prompts on one that knows none: one call for each length, rows back in their order.

    ``tied``: the trainer's state has no output head of its own; the engine gets the embedding a second time.
    """

    def __init__(self, sampler: Any, *, pad: int, vocabulary: int, tied: bool = False):
        self.sampler, self.pad, self.vocabulary, self.tied = sampler, pad, vocabulary, tied

    def load_weights(self, state: State, version: int) -> None:
        """See :class:`repro.samplers.Sampler`."""
        if self.tied:
            state = {**state, HEAD: state[EMBEDDING]}
        self.sampler.load_weights(state, version)

    def generate(
        self,
        prompts: Tensor,
        samples_per_prompt: int,
        max_tokens: int,
        temperature: float,
        generator: torch.Generator,
        head_k: int,
    ) -> Rollout:
        """See :class:`repro.samplers.Sampler`. ``logp_sampler_full`` is not passed on."""
        groups = self._groups(prompts)
        found = [
            self.sampler.generate(group, samples_per_prompt, max_tokens, temperature, generator, head_k)
            for _, group in groups
        ]
        versions = {rollout.version for rollout in found}
        if len(versions) != 1:
            raise RolloutError(f"version: expected one policy version, got {sorted(versions)}")
        index = torch.cat([rows[r.prompt_index] for (rows, _), r in zip(groups, found, strict=True)])
        order = index.argsort(stable=True)
        longest = max(rollout.tokens.shape[1] for rollout in found)

        def joined(name: str, fill: float) -> Tensor:
            parts = []
            for rollout in found:
                value = getattr(rollout, name)
                whole = torch.full((len(value), longest, *value.shape[2:]), fill, dtype=value.dtype)
                whole[:, : value.shape[1]] = value
                parts.append(whole)
            return torch.cat(parts)[order]

        return Rollout(
            prompts=prompts[index[order]],
            prompt_index=index[order],
            tokens=joined("tokens", self.pad),
            mask=joined("mask", False),
            ended=torch.cat([rollout.ended for rollout in found])[order],
            logp_sampler=joined("logp_sampler", 0.0),
            head_ids=joined("head_ids", -1) if head_k else None,
            head_logp_sampler=joined("head_logp_sampler", -torch.inf) if head_k else None,
            version=versions.pop(),
            temperature=temperature,
        )

    def next_logp(self, sequences: Tensor) -> Tensor:
        """Log-probs [N, V] of the token after each of ``sequences`` [N, L], at temperature 1."""
        logp = torch.empty(len(sequences), self.vocabulary)
        for rows, group in self._groups(sequences):
            logp[rows] = self.sampler.next_logp(group)
        return logp

    def _groups(self, sequences: Tensor) -> list[tuple[Tensor, Tensor]]:
        """(row indices, sequences without padding) for each length, ascending."""
        lengths = real_tokens(sequences, self.pad).sum(-1)
        groups = []
        for length in lengths.unique().tolist():
            rows = (lengths == length).nonzero().squeeze(-1)
            groups.append((rows, sequences[rows, sequences.shape[1] - length :]))
        return groups
