"""The adapter for engines without padding, vLLM's settings, and the dry run as a whole."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from test_gpu_policy import EOS, PAD, make_policy

from repro.gpu import dry_run
from repro.gpu.engines import LengthGrouped, vllm_engine
from repro.gpu.hf_sampler import HFSampler
from repro.gpu.settings import COUNTDOWN, VERL_ARMS
from repro.gpu.tiny import VOCABULARY
from repro.samplers import RolloutError

PROMPTS = torch.tensor([[1, 2, 3, 4], [PAD, PAD, 5, 6], [PAD, 7, 8, 9], [PAD, PAD, 6, 5]])


class Unpadded:
    """A sampler that refuses padding, as vLLM would take it for a token."""

    def __init__(self, policy):
        self.sampler, self.seen = HFSampler(policy, eos=EOS), []

    def load_weights(self, state, version):
        self.sampler.load_weights(state, version)

    def generate(self, prompts, *arguments):
        assert not (prompts == PAD).any()
        self.seen.append(prompts.tolist())
        return self.sampler.generate(prompts, *arguments)

    def next_logp(self, sequences):
        assert not (sequences == PAD).any()
        return self.sampler.next_logp(sequences)


def test_prompts_of_several_lengths_come_back_in_their_order():
    policy = make_policy()
    state = policy.initial_state()
    state["model.embed_tokens.weight"][EOS] *= 3
    engine = LengthGrouped(inner := Unpadded(policy), pad=PAD, vocabulary=VOCABULARY)
    engine.load_weights(state, 5)
    rollout = engine.generate(PROMPTS, 4, 6, 1.0, torch.Generator().manual_seed(0), 8).validate(VOCABULARY, 8)
    assert inner.seen == [[[5, 6], [6, 5]], [[7, 8, 9]], [[1, 2, 3, 4]]]
    assert rollout.version == 5
    assert rollout.prompt_index.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert torch.equal(rollout.prompts, PROMPTS.repeat_interleave(4, dim=0))
    logp = policy.response_logits(state, rollout.prompts, rollout.tokens).log_softmax(-1)
    recorded = logp.gather(-1, rollout.tokens[..., None])[..., 0]
    torch.testing.assert_close(rollout.logp_sampler[rollout.mask], recorded[rollout.mask], rtol=0, atol=5e-5)
    torch.testing.assert_close(engine.next_logp(PROMPTS), policy.next_logp(state, PROMPTS), rtol=0, atol=5e-5)


def test_rows_of_two_policy_versions_are_refused():
    engine = LengthGrouped(inner := Unpadded(make_policy()), pad=PAD, vocabulary=VOCABULARY)
    engine.load_weights(make_policy().initial_state(), 1)
    plain = inner.sampler.generate

    def update_between(*arguments):
        rollout = plain(*arguments)
        inner.sampler.version += 1
        return rollout

    inner.sampler.generate = update_between
    with pytest.raises(RolloutError, match=r"version: expected one policy version, got \[1, 2, 3\]"):
        engine.generate(PROMPTS, 1, 2, 1.0, torch.Generator(), 0)


def test_vllm_gets_an_untied_model_and_the_settings_of_the_arm(monkeypatch):
    calls = []

    class Recorded:
        def __init__(self, config, **options):
            calls.append((config, options))

        def load_weights(self, state, version):
            calls.append(state)

    module = ModuleType("repro.samplers.vllm_sampler")
    module.VllmSampler = Recorded
    monkeypatch.setitem(sys.modules, "repro.samplers.vllm_sampler", module)
    policy = make_policy()
    config = {**COUNTDOWN, "engine": "vllm", "engine_kv": "fp8", "engine_quantization": "fp8_per_channel"}
    engine = vllm_engine({**config, "arm": "sc"}, policy, EOS)
    engine.load_weights(policy.initial_state(), 0)
    (model, options), state = calls
    assert policy.config.tie_word_embeddings and not model.tie_word_embeddings
    assert options == {
        "eos": EOS, "pad": PAD, "dtype": "bfloat16", "kv_cache_dtype": "fp8", "quantization": "fp8_per_channel",
    }  # fmt: skip
    assert torch.equal(state["lm_head.weight"], state["model.embed_tokens.weight"])
    vllm_engine({**config, "arm": "onpolicy"}, policy, EOS)
    assert calls[-1][1]["kv_cache_dtype"] == "auto" and calls[-1][1]["quantization"] is None


def test_the_dry_run_passes_through_every_arm_and_says_what_it_did_not_do(capsys):
    assert dry_run.main([]) == 0
    printed = capsys.readouterr().out
    for arm in VERL_ARMS:
        assert f"{arm}: step 1" in printed and f"{arm}: step 2" in printed
    assert "vllm adapter: step 1" in printed
    assert "any GPU kernel" in printed and printed.rstrip().endswith("has not yet been run on a GPU.")
