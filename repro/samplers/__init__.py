"""Samplers: what generates rollouts, and the record of what was actually sampled.

Every sampler - the simulated one here, a vLLM engine - follows one protocol, so the trainer never knows which it has.
The record is the ground truth of rollout correction: the log-prob of each sampled token and the head (the sampler's
top-k) are those of the distribution the token was drawn from, after temperature, normalised over the full vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from repro.kernels import head

LOGP_TOLERANCE = 1e-6
HEAD_AGREEMENT = 1e-4


class RolloutError(ValueError):
    """A sampler returned something that cannot be trained on; the message names the field and the first bad entry."""


@dataclass(frozen=True)
class Rollout:
    """B sampled responses of at most T tokens to prompts of one common length P. Log-probs in nats, float32.

    prompts [B, P] int64; prompt_index [B] int64, which prompt of the call (samples of one prompt form a group);
    tokens [B, T] int64 (a valid id everywhere, so that it can be embedded; meaningless off the mask);
    mask [B, T] bool, a prefix of each row, the EOS token included; ended [B] bool, whether EOS was sampled;
    logp_sampler [B, T]; head_ids [B, T, K] int64 and head_logp_sampler [B, T, K], id -1 with -inf = absent slot;
    logp_sampler_full [B, T, V] or None: the whole row, where the sampler can give it;
    version: the policy version that generated every token of this rollout; temperature as sampled.
    """

    prompts: Tensor
    prompt_index: Tensor
    tokens: Tensor
    mask: Tensor
    ended: Tensor
    logp_sampler: Tensor
    head_ids: Tensor | None
    head_logp_sampler: Tensor | None
    version: int
    temperature: float
    logp_sampler_full: Tensor | None = None

    def validate(self, vocabulary: int, head_k: int) -> Rollout:
        """Return self, or raise :class:`RolloutError` naming the field, row and position of the first fault."""
        rows, length = self.tokens.shape
        shapes = {
            "prompts": (rows, self.prompts.shape[-1]),
            "prompt_index": (rows,),
            "mask": (rows, length),
            "ended": (rows,),
            "logp_sampler": (rows, length),
        }
        if head_k:
            shapes |= {"head_ids": (rows, length, head_k), "head_logp_sampler": (rows, length, head_k)}
        if self.logp_sampler_full is not None:
            shapes["logp_sampler_full"] = (rows, length, vocabulary)
        for name, shape in shapes.items():
            value = getattr(self, name)
            if value is None:
                raise RolloutError(
                    f"{name}: a head of {head_k} was asked for and the sampler returned none; "
                    "ask the engine for top-k log-probs or choose an arm without centering"
                )
            if tuple(value.shape) != shape:
                raise RolloutError(f"{name}: expected shape {shape}, got {tuple(value.shape)}")
        mask = self.mask
        self._refuse("mask", mask[:, 1:] & ~mask[:, :-1], "must be a prefix of each row (a valid token follows a gap)")
        self._refuse("mask", ~mask[:, :1], "every response needs at least one token")
        self._refuse("tokens", (self.tokens < 0) | (self.tokens >= vocabulary), f"must lie in [0, {vocabulary})")
        bad = ~torch.isfinite(self.logp_sampler) | (self.logp_sampler > LOGP_TOLERANCE)
        self._refuse("logp_sampler", mask & bad, "must be finite and at most 0 on sampled tokens", self.logp_sampler)
        if head_k:
            self._validate_head(vocabulary)
        return self

    def _validate_head(self, vocabulary: int) -> None:
        ids, logp, mask = self.head_ids, self.head_logp_sampler, self.mask
        arrays = (tensor.contiguous().numpy() for tensor in (ids, logp, mask))
        found = torch.from_numpy(head.faults(*arrays, vocabulary, LOGP_TOLERANCE))
        self._refuse("head_ids", found & head.FOREIGN_ID, f"must lie in [0, {vocabulary}) or be -1")
        self._refuse("head_logp_sampler", found & head.NOT_A_LOGP, "NaN or above 0")
        self._refuse("head_logp_sampler", found & head.FILLED_ABSENT, "absent slots carry -inf")
        self._refuse("head_ids", found & head.DUPLICATE, "holds an id twice: its mass would be counted twice")
        hit = (ids == self.tokens[..., None]) & (ids != -1)
        gap = torch.where(hit, (logp - self.logp_sampler[..., None]).abs(), 0.0).amax(-1)
        self._refuse(
            "head_logp_sampler",
            mask & ~(gap <= HEAD_AGREEMENT),
            "disagrees with logp_sampler on the sampled token",
            gap,
        )

    @staticmethod
    def _refuse(name: str, bad: Tensor, why: str, values: Tensor | None = None) -> None:
        if bad.any():
            row, position = (int(i) for i in bad.nonzero()[0])
            got = "" if values is None else f", got {float(values[row, position])!r}"
            raise RolloutError(f"{name}: {why}; first at row {row}, token {position}{got}")


def check_request(
    prompts: Tensor,
    samples_per_prompt: int,
    max_tokens: int,
    temperature: float,
    head_k: int,
    *,
    vocabulary: int,
    positions: int,
    coldest: float = 0.0,
) -> None:
    """Raise `RolloutError` unless a model of ``vocabulary`` tokens and ``positions`` can serve the request of a sampler.

    ``coldest``: the temperature must lie above 0 and not below it.
    """
    if prompts.ndim != 2 or prompts.dtype != torch.int64 or min(prompts.shape) < 1:
        raise RolloutError(f"prompts: expected int64 [N, P], got {prompts.dtype} {tuple(prompts.shape)}")
    if samples_per_prompt < 1 or max_tokens < 1:
        raise RolloutError(
            f"samples_per_prompt and max_tokens must be at least 1, got {samples_per_prompt} and {max_tokens}"
        )
    if not 0 <= head_k <= vocabulary:
        raise RolloutError(f"head_k: expected 0..{vocabulary} (the vocabulary), got {head_k}")
    if not (temperature > 0 and temperature >= coldest):
        wanted = f"at least {coldest:g}" if coldest else "a positive number"
        raise RolloutError(f"temperature: expected {wanted}, got {temperature}")
    if prompts.shape[1] + max_tokens > positions:
        raise RolloutError(
            f"max_tokens: {prompts.shape[1]} prompt tokens and {max_tokens} response tokens exceed the model's "
            f"{positions} positions"
        )


class Sampler(Protocol):
    """What the trainer needs from an engine. One that also has ``held_weights() -> dict[str, Tensor]``, the quantised
    tensors that it samples from, has them compared with the trainer's after every update (`repro.readback`)."""

    def load_weights(self, state: dict[str, Tensor], version: int) -> None:
        """Take over the trainer's weights (Hugging Face names, float32) as policy version ``version``."""

    def generate(
        self,
        prompts: Tensor,
        samples_per_prompt: int,
        max_tokens: int,
        temperature: float,
        generator: torch.Generator,
        head_k: int,
    ) -> Rollout:
        """Sample ``samples_per_prompt`` responses to each of ``prompts`` [N, P]; rows of one prompt are adjacent."""
