"""The running engine: what it records is what it sampled from, updates in place reach all of it, failures lose nothing."""

from __future__ import annotations

import pytest
import torch

from repro.samplers import RolloutError
from repro.samplers.refit import RefitCheck, RefitError, probe_of_task
from repro.samplers.vllm_engine import (
    EngineUnavailable,
    _keep_onednn_from_fp8_products,
    _make_llvmlite_scannable,
)
from repro.samplers.vllm_sampler import VllmSampler, vllm_sampler_from_config
from repro.tasks import countdown_tiny as task
from repro.trainer import Trainer, run_cell

from .engine_case import CONFIG, EXACT, STATE, changed, deviation, loaded, prompts, seeded, trainer_rows

ARGUMENTS = {"eos": task.EOS, "pad": task.PAD}
PROBE = probe_of_task(rows=32)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_and_head_are_those_of_the_sampled_distribution(temperature):
    sampler = loaded()
    rollout = sampler.generate(prompts(8), 4, 66, temperature, seeded(), 16)
    rollout.validate(task.VOCABULARY, 16)
    assert deviation(rollout, temperature=temperature) < EXACT
    rows = trainer_rows(rollout, temperature=temperature)[rollout.mask]
    head = rows.gather(-1, rollout.head_ids[rollout.mask])
    torch.testing.assert_close(rollout.head_logp_sampler[rollout.mask], head, atol=EXACT, rtol=0)
    torch.testing.assert_close(head.sum(-1), rows.topk(16).values.sum(-1), atol=16 * EXACT, rtol=0)
    last = rollout.tokens.gather(1, rollout.mask.sum(-1, keepdim=True) - 1).squeeze(1)
    assert rollout.ended.any() and not rollout.ended.all()
    assert torch.equal(last == task.EOS, rollout.ended)
    assert rollout.logp_sampler_full is None and (rollout.versions[rollout.mask] == 0).all()


def test_whole_rows_hold_eos_from_the_first_token_on():
    """A minimum length would take EOS out of the first rows and renormalise them."""
    rollout = loaded().generate(prompts(2), 2, 8, 1.0, seeded(), task.VOCABULARY)
    rows = trainer_rows(rollout)
    assert torch.isfinite(rollout.logp_sampler_full[:, 0, task.EOS]).all()
    torch.testing.assert_close(rollout.logp_sampler_full[rollout.mask], rows[rollout.mask], atol=2e-4, rtol=0)


def test_sampling_is_plain_and_log_probs_processed(monkeypatch):
    sampler = loaded()
    seen, generate = [], sampler._engine.generate
    monkeypatch.setattr(sampler._engine, "generate", lambda p, s, **k: seen.extend(s) or generate(p, s, **k))
    sampler.generate(prompts(2), 3, 4, 0.9, seeded(), 16)
    assert len({s.seed for s in seen}) == 6
    for s in seen:
        assert (s.min_tokens, s.top_p, s.top_k, s.min_p, s.n) == (0, 1.0, 0, 0.0, 1)
        assert (s.presence_penalty, s.frequency_penalty, s.repetition_penalty) == (0.0, 0.0, 1.0)
        assert (s.temperature, s.logprobs, s.logit_bias, s.bad_words) == (0.9, 16, None, [])
    assert sampler._engine.llm_engine.vllm_config.model_config.logprobs_mode == "processed_logprobs"


def test_the_generator_decides_the_rollout():
    sampler, generator = loaded(), seeded(3)
    first, second, again = (sampler.generate(prompts(), 4, 20, 1.0, g, 4) for g in (generator, generator, seeded(3)))
    for name in ("tokens", "logp_sampler", "head_ids", "head_logp_sampler", "mask"):
        assert torch.equal(getattr(first, name), getattr(again, name))
    assert not torch.equal(first.tokens, second.tokens)


def test_an_update_in_place_reaches_every_token_and_is_its_version():
    sampler = loaded()
    engine, new = sampler._engine, changed()
    sampler.generate(prompts(), 1, 60, 1.0, seeded(), 4)
    sampler.load_weights(new, 5)
    rollout = sampler.generate(prompts(), 4, 60, 1.0, seeded(), 4)
    assert sampler._engine is engine
    assert deviation(rollout, new) < EXACT < 0.1 < deviation(rollout, STATE)
    assert rollout.version == 5 and (rollout.versions[rollout.mask] == 5).all()


def checked(sampler):
    sampler.refit = RefitCheck(CONFIG, PROBE, 1e-4)
    sampler.load_weights(STATE, 0)
    return sampler


def test_refit_check_passes_on_a_true_update():
    sampler = checked(loaded())
    sampler.load_weights(changed(size=0.01), 1)
    first, second = sampler.refit.reports
    assert (first.verdict, second.verdict) == ("first load", "refitted")
    assert first.level < 1e-5 and second.share == pytest.approx(1, abs=1e-3) and second.cache_distance < 1e-5


def test_a_prefix_cache_kept_after_an_update_stops_the_run(monkeypatch):
    sampler = checked(loaded())
    monkeypatch.setattr(sampler._engine, "reset_prefix_cache", lambda: True)
    with pytest.raises(RefitError, match="stale prefix cache"):
        sampler.load_weights(changed(), 1)


def test_an_update_that_does_not_arrive_stops_the_run(monkeypatch):
    sampler = checked(loaded())
    monkeypatch.setattr(sampler._engine, "collective_rpc", lambda *a, **k: None)
    with pytest.raises(RefitError, match="old weights"):
        sampler.load_weights(changed(), 1)


def test_an_output_head_left_behind_stops_the_run(monkeypatch):
    """What a tied model gets from vLLM's reload on a CPU: new embeddings, the old packed output head."""
    sampler = checked(loaded())
    send = sampler._engine.collective_rpc

    def without_head(name, kwargs):
        kwargs["weights_iterator"] = [(n, v) for n, v in kwargs["weights_iterator"] if n != "lm_head.weight"]
        return send(name, kwargs=kwargs)

    monkeypatch.setattr(sampler._engine, "collective_rpc", without_head)
    with pytest.raises(RefitError, match="in part only"):
        sampler.load_weights(changed(size=0.05), 1)


@pytest.mark.parametrize("head_k", [0, 8])
def test_a_response_resumed_after_an_update_keeps_its_old_entries(head_k):
    sampler, new = loaded(), changed()
    begun = sampler.generate(prompts(), 4, 12, 1.0, seeded(), head_k)
    sampler.load_weights(new, 1)
    whole = sampler.resume(begun, 50, seeded(1), head_k)
    old, later = whole.versions == 0, whole.versions == 1
    assert torch.equal(old[:, :12], begun.mask) and torch.equal(old | later, whole.mask) and later.any()
    assert torch.equal(whole.tokens[:, :12][begun.mask], begun.tokens[begun.mask])
    assert torch.equal(whole.logp_sampler[:, :12][begun.mask], begun.logp_sampler[begun.mask])
    if head_k:
        assert torch.equal(whole.head_ids[:, :12][begun.mask], begun.head_ids[begun.mask])
        rows = trainer_rows(whole, new).gather(-1, whole.head_ids.clamp_min(0))
        torch.testing.assert_close(whole.head_logp_sampler[later], rows[later], atol=EXACT, rtol=0)
    assert deviation(whole, STATE, where=old) < EXACT and deviation(whole, new, where=later) < EXACT
    assert whole.version == 1


def test_a_failed_call_loses_nothing():
    """The engine stops; the error says so, the generator is where it was, and a new engine gives the same rollout."""
    sampler, generator = loaded(), seeded(7)
    expected = sampler.generate(prompts(), 2, 20, 1.0, seeded(7), 4)
    before = generator.get_state()
    sampler._engine.llm_engine.engine_core.shutdown()
    sampler._engine.llm_engine.engine_core.engine_core = None
    with pytest.raises(
        RolloutError, match="engine: generation failed at policy version 0.*load_weights starts a new one"
    ):
        sampler.generate(prompts(), 2, 20, 1.0, generator, 4)
    assert torch.equal(generator.get_state(), before)
    with pytest.raises(RolloutError, match="no policy to sample from"):
        sampler.generate(prompts(), 2, 20, 1.0, generator, 4)
    sampler.load_weights(STATE, 0)
    repeated = sampler.generate(prompts(), 2, 20, 1.0, generator, 4)
    assert torch.equal(repeated.tokens, expected.tokens) and torch.equal(repeated.logp_sampler, expected.logp_sampler)


def test_a_spoilt_answer_leaves_the_generator_alone(monkeypatch):
    sampler, generator = loaded(), seeded(7)
    generate = sampler._engine.generate

    def cut(*arguments, **options):
        outputs = generate(*arguments, **options)
        outputs[1].outputs[0].logprobs.end_indices[3] -= 1
        return outputs

    monkeypatch.setattr(sampler._engine, "generate", cut)
    with pytest.raises(RolloutError, match="expected 5 entries .* response 1, token 3, got 4"):
        sampler.generate(prompts(), 1, 20, 1.0, generator, 4)
    assert torch.equal(generator.get_state(), seeded(7).get_state())


def test_bad_settings_and_requests_name_themselves():
    tied = type(CONFIG)(**{**CONFIG.to_dict(), "tie_word_embeddings": True})
    for options, message in [
        ({"config": tied}, "tie_word_embeddings: expected False"),
        ({"dtype": "float16"}, "dtype: expected one of float32, bfloat16"),
        ({"quantization": "fp8"}, "quantization: expected one of"),
        ({"kv_cache_dtype": "int4"}, "kv_cache_dtype: expected one of"),
        ({"dtype": "float32", "quantization": "int8"}, "expect bfloat16"),
        ({"eos": 73}, r"eos: expected a token id in \[0, 73\)"),
        ({"max_sequences": 0}, "max_sequences: expected at least 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            VllmSampler(**{"config": CONFIG, **ARGUMENTS, **options})
    with pytest.raises(RolloutError, match="load_weights has not been called"):
        VllmSampler(CONFIG, **ARGUMENTS).generate(prompts(), 1, 4, 1.0, seeded(), 0)
    sampler = loaded()
    for arguments, message in [
        ((prompts().float(), 1, 4, 1.0, seeded(), 0), "prompts: expected int64"),
        ((prompts(), 0, 4, 1.0, seeded(), 0), "samples_per_prompt and max_tokens"),
        ((prompts(), 1, 4, 0.0, seeded(), 0), "temperature: expected at least 0.01"),
        ((prompts(), 1, 4, 1.0, seeded(), 74), r"head_k: expected 0\.\.73"),
        ((prompts(), 1, 123, 1.0, seeded(), 0), "128 positions"),
    ]:
        with pytest.raises(RolloutError, match=message):
            sampler.generate(*arguments)


@pytest.mark.parametrize(
    ("quantization", "coarsest"), [(None, 0.1), ("fp8_per_channel", 0.6), ("int8", 0.6)], ids=["bf16", "fp8", "int8"]
)
def test_low_precision_follows_the_updates(quantization, coarsest):
    """Coarser than float32 by far, and still an update in place arrives in full."""
    sampler = VllmSampler(CONFIG, **ARGUMENTS, quantization=quantization, refit=RefitCheck(CONFIG, PROBE, coarsest))
    try:
        sampler.load_weights(STATE, 0)
        sampler.load_weights(changed(size=0.2), 1)
        first, second = sampler.refit.reports
        assert 1e-3 < first.level < coarsest
        assert second.verdict == "refitted" and second.share > 0.8 and second.distance_new < 0.5 * second.distance_old
        rollout = sampler.generate(prompts(), 2, 20, 1.0, seeded(), 8)
        assert 1e-3 < deviation(rollout, changed(size=0.2)) < 8
    finally:
        sampler.close()


def test_numba_may_be_imported_before_the_engine_starts():
    """vLLM's start-up reads ``vars`` of every module attribute, and llvmlite's library handle has none."""
    from llvmlite.binding import ffi

    ffi.lib._fntab.pop("__dict__", None)
    assert not isinstance(vars(ffi.lib), dict)
    _make_llvmlite_scannable()
    assert vars(ffi.lib) == {}
    assert ffi.lib.LLVMPY_GetVersionInfo() > 0


def test_fp8_products_are_emulated_and_onednn_stays_on(monkeypatch):
    """One scale per tensor: what oneDNN would take and compute some hundred times slower on a processor with AMX."""
    seen, product, one = [], torch._scaled_mm, torch.ones(())
    monkeypatch.setattr(
        torch, "_scaled_mm", lambda *a, **k: seen.append(torch.backends.mkldnn.enabled) or product(*a, **k)
    )
    _keep_onednn_from_fp8_products()
    wrapped = torch._scaled_mm
    _keep_onednn_from_fp8_products()
    assert torch._scaled_mm is wrapped
    x, w = (torch.randn(16, 32, generator=seeded(i)).to(torch.float8_e4m3fn) for i in range(2))
    found = torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    torch.testing.assert_close(found.float(), x.float() @ w.float().t(), rtol=1e-2, atol=1e-2)
    assert seen == [False] and torch.backends.mkldnn.enabled


def test_a_machine_without_the_kernels_says_so():
    sampler = VllmSampler(CONFIG, **ARGUMENTS, kv_cache_dtype="fp8", refit=RefitCheck(CONFIG, PROBE, 1.0))
    try:
        if torch.cpu._is_avx512_supported():
            sampler.load_weights(STATE, 0)
            assert sampler.refit.reports[0].level > 1e-3
        else:
            with pytest.raises(EngineUnavailable, match="kv_cache_dtype=fp8.*AVX-512"):
                sampler.load_weights(STATE, 0)
    finally:
        sampler.close()


def test_closing_an_engine_gives_up_the_others_of_the_process():
    """vLLM ends the process groups that they share; without this the other one fails within its next call."""
    sampler, other = loaded(), VllmSampler(CONFIG, **ARGUMENTS, dtype="float32")
    other.load_weights(STATE, 0)
    other.close()
    with pytest.raises(RolloutError, match="load_weights has not been called, or the engine failed since"):
        sampler.generate(prompts(), 1, 4, 1.0, seeded(), 0)
    assert deviation(loaded().generate(prompts(), 1, 20, 1.0, seeded(), 4)) < EXACT


def test_three_training_steps_on_the_engine():
    sampler = loaded()
    factory = vllm_sampler_from_config({"engine_dtype": "float32"}, CONFIG, task.EOS, task.PAD)
    assert (factory.dtype, factory.kv_cache_dtype, factory.quantization) == ("float32", "auto", None)
    sampler.refit = factory.refit
    config = {
        "arm": "sc", "seed": 1, "steps": 3, "prompts_per_step": 8, "samples_per_prompt": 4, "eval_problems": 16,
        "oracle_every": 1, "lr": 0.01,
    }  # fmt: skip
    rows = run_cell(config, sampler=sampler)
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(row["oracle_error"] < 2e-5 and abs(row["kl_sampler_trainer"]) < 1e-5 for row in rows)
    assert [r.verdict for r in sampler.refit.reports] == ["first load", "refitted", "refitted"]
    assert [r.version for r in sampler.refit.reports] == [0, 1, 2]
    assert isinstance(Trainer(config, sampler=sampler).sampler, VllmSampler)
