"""The laboratory's own sampler for a transformers model: batched decoding with a key/value cache, native fp8 products.

It runs the trainer's network in the trainer's dtype, so the mismatch is the one that was asked for: fp8 weights and
activations in every linear layer inside the blocks (``repro.gpu.fp8_linear``), keys and values rounded to a format of
``repro.quantise`` as they are written. Embeddings, norms and the output head stay as they are. Decoding a token at a
time alone is a mismatch too (another order of summation than the trainer's), at rounding level.

Tokens are drawn by inverting the cumulative distribution in float64 with one uniform per row and position, all drawn
up front from the caller's generator on the CPU. Not yet run on a GPU, where sums over a vocabulary in another order can
make the same uniforms draw another token.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from repro.gpu.fp8_linear import check_fp8, quantise_blocks
from repro.gpu.hf_policy import HFPolicy, positions_of, real_tokens
from repro.policies import State
from repro.quantise import quantise
from repro.samplers import Rollout, RolloutError, check_request


class RoundedCache(DynamicCache):
    """A key/value cache whose entries go through ``rounding`` as they are written, one slice per token and head."""

    def __init__(self, rounding: Callable[[Tensor], Tensor], **options):
        super().__init__(**options)
        self._rounding = rounding

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args, **kwargs):
        """See ``transformers.DynamicCache.update``."""
        key, value = (self._rounding(x.float()).to(x.dtype) for x in (key_states, value_states))
        return super().update(key, value, layer_idx, *args, **kwargs)


def draw(logp: Tensor, uniforms: Tensor) -> Tensor:
    """[N] int64: the first token whose cumulative probability exceeds the row's uniform; logp [N, V], uniforms [N]."""
    cumulative = logp.double().exp().cumsum(-1)
    total = cumulative[:, -1:]
    # Below the total even where the product rounds up to it: past the last token of positive probability lies nothing.
    target = torch.minimum(uniforms[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True).squeeze(-1)


class HFSampler:
    """A :class:`repro.samplers.Sampler` on a copy of ``policy``'s network. Prompts [N, P] are padded on the left with the
    policy's pad token.

    ``fp8`` makes the products native fp8 (DeviceUnavailable where the device has none); ``kv`` names the cache's format
    or is None; ``whole_rows`` records ``logp_sampler_full`` (small vocabularies only). ``eos`` ends a response.
    """

    def __init__(
        self, policy: HFPolicy, *, eos: int, fp8: bool = False, kv: str | None = None, whole_rows: bool = False
    ):
        self.eos, self.pad, self.whole_rows = eos, policy.pad, whole_rows
        self.device, self.vocabulary = policy.device, policy.vocabulary
        self._rounding = None if kv is None else partial(quantise, name=kv)
        self.model: nn.Module = copy.deepcopy(policy.model)
        if fp8:
            check_fp8(self.device)
        self.layers = quantise_blocks(self.model) if fp8 else {}
        # Parameters only: rotary frequencies are a buffer, and in bfloat16 they would be other frequencies.
        for parameter in self.model.parameters():
            parameter.data = parameter.data.to(policy.compute)
        # The argument's name changed within the supported versions of transformers.
        names = inspect.signature(type(self.model).forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"
        self.version = -1

    @torch.no_grad()
    def load_weights(self, state: State, version: int) -> None:
        """Copy (and quantise) the trainer's weights; later changes to ``state`` do not reach the sampler."""
        own = dict(self.model.named_parameters())
        wanted = set(own) | {f"{name}.weight" for name in self.layers}
        if odd := sorted(wanted ^ set(state)):
            raise RolloutError(
                f"{odd[0]}: expected the weights of {type(self.model).__name__}, "
                f"got {'an unknown one' if odd[0] in state else 'none of that name'}"
            )
        for name, value in state.items():
            layer = self.layers.get(name.removesuffix(".weight"))
            shape = own[name].shape if layer is None else layer.values.shape
            if value.shape != shape:
                raise RolloutError(f"{name}: expected shape {tuple(shape)}, got {tuple(value.shape)}")
            if layer is None:
                own[name].copy_(value)
            else:
                layer.load(value)
        self.version = version

    @torch.no_grad()
    def generate(
        self,
        prompts: Tensor,
        samples_per_prompt: int,
        max_tokens: int,
        temperature: float,
        generator: torch.Generator,
        head_k: int,
    ) -> Rollout:
        """See :class:`repro.samplers.Sampler`; everything is returned on the CPU."""
        if self.version < 0:
            raise RolloutError("load_weights has not been called: the sampler has no policy to sample from")
        check_request(
            prompts, samples_per_prompt, max_tokens, temperature, head_k, vocabulary=self.vocabulary,
            positions=self.model.config.max_position_embeddings,
        )  # fmt: skip
        number = prompts.shape[0]
        rows = number * samples_per_prompt
        uniforms = torch.rand((max_tokens, rows), dtype=torch.float64, generator=generator).to(self.device)
        real = real_tokens(prompts.to(self.device), self.pad)
        cache = self._cache()
        logits = self._forward(prompts.to(self.device), real, positions_of(real), cache)
        # A prompt is read once and its cache copied to all of its samples.
        cache.batch_repeat_interleave(samples_per_prompt)
        logits, real = (x.repeat_interleave(samples_per_prompt, dim=0) for x in (logits, real))

        tokens = torch.full((rows, max_tokens), self.pad, device=self.device)
        logp_drawn = torch.zeros((rows, max_tokens), device=self.device)
        head_ids = torch.full((rows, max_tokens, head_k), -1, device=self.device)
        head_logp = torch.full((rows, max_tokens, head_k), -torch.inf, device=self.device)
        whole = torch.zeros((rows, max_tokens, self.vocabulary), device=self.device) if self.whole_rows else None
        lengths = torch.full((rows,), max_tokens, device=self.device)
        active = torch.arange(rows, device=self.device)  # the responses that the cache's rows belong to
        for t in range(max_tokens):
            logp = torch.log_softmax(logits / temperature, dim=-1)
            if logp.isnan().any():
                raise RolloutError(
                    f"logits: not finite at response token {t} of policy version {self.version}; the policy has "
                    "diverged - lower the learning rate or start again from an earlier checkpoint"
                )
            drawn = draw(logp, uniforms[t, active])
            tokens[active, t] = drawn
            logp_drawn[active, t] = logp.gather(-1, drawn[:, None]).squeeze(-1)
            if head_k:
                head_logp[active, t], head_ids[active, t] = logp.topk(head_k, dim=-1)
            if whole is not None:
                whole[active, t] = logp
            lengths[active[drawn == self.eos]] = t + 1
            keep = (drawn != self.eos).nonzero().squeeze(-1)
            if t + 1 == max_tokens or not len(keep):
                break
            if len(keep) < len(active):
                cache.batch_select_indices(keep)
                active, drawn, real = active[keep], drawn[keep], real[keep]
            real = torch.cat([real, torch.ones_like(real[:, :1])], dim=1)
            logits = self._forward(drawn[:, None], real, positions_of(real)[:, -1:], cache)

        length = int(lengths.max())
        lengths = lengths.cpu()
        tokens = tokens[:, :length].cpu()
        index = torch.arange(number).repeat_interleave(samples_per_prompt)
        return Rollout(
            prompts=prompts[index],
            prompt_index=index,
            tokens=tokens,
            mask=torch.arange(length) < lengths[:, None],
            ended=tokens.gather(1, (lengths - 1)[:, None]).squeeze(1) == self.eos,
            logp_sampler=logp_drawn[:, :length].cpu(),
            head_ids=head_ids[:, :length].cpu() if head_k else None,
            head_logp_sampler=head_logp[:, :length].cpu() if head_k else None,
            version=self.version,
            temperature=temperature,
            logp_sampler_full=None if whole is None else whole[:, :length].cpu(),
        )

    @torch.no_grad()
    def next_logp(self, sequences: Tensor) -> Tensor:
        """Log-probs [N, V] float32 of the token after each of ``sequences`` [N, L], at temperature 1."""
        real = real_tokens(sequences.to(self.device), self.pad)
        logits = self._forward(sequences.to(self.device), real, positions_of(real), self._cache())
        return torch.log_softmax(logits, dim=-1)

    def _cache(self) -> DynamicCache:
        if self._rounding is None:
            return DynamicCache(config=self.model.config)
        return RoundedCache(self._rounding, config=self.model.config)

    def _forward(self, tokens: Tensor, real: Tensor, positions: Tensor, cache: DynamicCache) -> Tensor:
        """Logits [N, V] float32 after the last of ``tokens`` [N, L]; ``real`` covers the cache and these tokens."""
        output = self.model(
            input_ids=tokens, attention_mask=real.long(), position_ids=positions, use_cache=True, logits_to_keep=1,
            **{self._cache_argument: cache},
        )  # fmt: skip
        return output.logits[:, -1].float()
