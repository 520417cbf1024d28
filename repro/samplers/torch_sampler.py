"""The simulated engine: batched, key/value-cached decoding with quantised weights, activations and cache.

It runs the same network as the trainer, so the only mismatch is the one that was asked for. Weights are quantised
once per update, activations at the input of every linear layer inside the blocks, keys and values as they are written.
Tokens are drawn by inverting the cumulative distribution with one float64 uniform per row and position, all drawn up
front from the caller's generator: what a row samples does not depend on when other rows finish.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3Config

from repro.kernels.decode import draw
from repro.kernels.head import top_k
from repro.kernels.lanes import WIDTH
from repro.kernels.rounding import rounding
from repro.policies import State, check_state, fuse, unfuse
from repro.quantise import grid, quantise_weights
from repro.samplers import Rollout, RolloutError, check_request
from repro.samplers.decoder import Decoder


class TorchSampler:
    """A :class:`repro.samplers.Sampler` for tiny Qwen3-shaped policies.

    ``weights``, ``activations`` and ``kv`` name a format of ``repro.quantise`` or are None (float32: the on-policy
    control). ``eos`` ends a response; ``pad`` fills the tokens behind it.
    """

    def __init__(
        self,
        config: Qwen3Config,
        *,
        eos: int,
        pad: int,
        weights: str | None = None,
        activations: str | None = None,
        kv: str | None = None,
    ):
        for name in (weights, activations, kv):
            if name is not None:
                grid(name)
        self.config, self.eos, self.pad = config, eos, pad
        self.weights_format = weights
        self._activations, self._kv = rounding(activations), rounding(kv)
        self._state: State | None = None
        self.version = -1

    def load_weights(self, state: State, version: int) -> None:
        """Copy (and quantise) the trainer's weights; later changes to ``state`` do not reach the sampler."""
        check_state(state, self.config)
        if self.weights_format:
            self._state = quantise_weights(state, self.weights_format)
        else:
            self._state = {name: value.detach().clone() for name, value in state.items()}
        self._blocks = fuse(self._state, self.config)
        self.version = version

    def held_weights(self) -> State:
        """The weights that it samples from, for a read-back: out of the fused blocks, not the copy that made them."""
        return unfuse(self._blocks, self._state, self.config)

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
        """See :class:`repro.samplers.Sampler`. ``logp_sampler_full`` is always recorded: the vocabulary is small."""
        if self._state is None:
            raise RolloutError("load_weights has not been called: the sampler has no policy to sample from")
        check_request(
            prompts, samples_per_prompt, max_tokens, temperature, head_k, vocabulary=self.config.vocab_size,
            positions=self.config.max_position_embeddings,
        )  # fmt: skip
        number, prompt_length = prompts.shape
        rows = number * samples_per_prompt
        uniforms = torch.rand((max_tokens, rows), dtype=torch.float64, generator=generator).numpy()
        decoder = Decoder(
            self._state, self._blocks, self.config, self._activations, self._kv, prompt_length + max_tokens
        )
        # A prompt is read once, in the cache slot of its first sample, and copied to the slots of the others.
        first = np.arange(number) * samples_per_prompt
        decoder.open(rows)
        for position in range(prompt_length):
            logits = decoder.step(prompts[:, position].numpy(), first, position)
        prompt_index = torch.arange(number).repeat_interleave(samples_per_prompt)
        decoder.copy_prompts(first, samples_per_prompt, prompt_length)
        logits = logits[prompt_index.numpy()]

        tokens = torch.full((rows, max_tokens), self.pad)
        logp = torch.zeros((rows, max_tokens, self.config.vocab_size))
        lengths = torch.full((rows,), max_tokens)
        mass = np.empty(-(-self.config.vocab_size // WIDTH) * WIDTH, np.float32)
        active = np.arange(rows)
        for t in range(max_tokens):
            if not draw(logits, temperature, uniforms[t], active, t, mass, logp.numpy(), tokens.numpy()):
                raise RolloutError(
                    f"logits: not finite at response token {t} of policy version {self.version}; the policy has "
                    "diverged - lower the learning rate or start again from an earlier checkpoint"
                )
            drawn = tokens.numpy()[active, t]
            lengths[active[drawn == self.eos]] = t + 1
            active, drawn = active[drawn != self.eos], drawn[drawn != self.eos]
            if t + 1 == max_tokens or not len(active):
                break
            logits = decoder.step(drawn, active, prompt_length + t)

        head_ids, head_logp = None, None
        if head_k:
            head_ids, head_logp = map(torch.from_numpy, top_k(logp.numpy(), lengths.numpy(), head_k))
        length = int(lengths.max())
        tokens, logp = tokens[:, :length], logp[:, :length]
        mask = torch.arange(length) < lengths[:, None]
        last = tokens.gather(1, (lengths - 1)[:, None]).squeeze(1)
        return Rollout(
            prompts=prompts[prompt_index],
            prompt_index=prompt_index,
            tokens=tokens,
            mask=mask,
            ended=last == self.eos,
            logp_sampler=logp.gather(-1, tokens[..., None]).squeeze(-1),
            head_ids=head_ids,
            head_logp_sampler=head_logp,
            version=self.version,
            temperature=temperature,
            logp_sampler_full=logp,
        )
