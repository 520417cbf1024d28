"""A transformers model as policy and as sampler: padding, master weights, what is recorded, what is refused."""

from __future__ import annotations

import copy

import pytest
import torch

from repro.gpu.hf_policy import HFPolicy, load_model
from repro.gpu.hf_sampler import HFSampler, draw
from repro.gpu.tiny import VOCABULARY, byte_tokenizer, tiny_qwen3
from repro.policies import CheckpointError
from repro.quantise import quantise
from repro.samplers import RolloutError

PAD, EOS = 257, 256


def make_policy(compute=torch.float32, **changes):
    return HFPolicy(tiny_qwen3(**changes), device=torch.device("cpu"), compute=compute, pad=PAD)


@pytest.fixture(scope="module")
def policy():
    return make_policy()


@pytest.fixture
def prompts():
    return torch.tensor([[PAD, PAD, 5, 9, 60], [PAD, 7, 7, 7, 7], [1, 2, 3, 4, 5]])


def sample(sampler, prompts, *, samples=3, length=6, head_k=8, seed=1):
    return sampler.generate(prompts, samples, length, 1.0, torch.Generator().manual_seed(seed), head_k).validate(
        VOCABULARY, head_k
    )


def test_padding_on_the_left_changes_no_logits(policy, prompts):
    state = policy.initial_state()
    tokens = torch.arange(12).reshape(3, 4)
    found = policy.response_logits(state, prompts, tokens)
    assert found.shape == (3, 4, VOCABULARY) and found.dtype == torch.float32
    for row in range(3):
        whole = torch.cat([prompts[row][prompts[row] != PAD], tokens[row]])[None]
        with torch.no_grad():
            wanted = policy.model(input_ids=whole).logits[0, -5:-1]
        torch.testing.assert_close(found[row], wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_gradients_of_a_bfloat16_forward_reach_the_float32_weights(prompts, tied):
    policy = make_policy(torch.bfloat16, tie_word_embeddings=tied)
    state = {name: value.requires_grad_() for name, value in policy.initial_state().items()}
    assert ("lm_head.weight" in state) is not tied
    policy.response_logits(state, prompts, torch.arange(12).reshape(3, 4)).logsumexp(-1).sum().backward()
    for name, value in state.items():
        assert value.dtype == value.grad.dtype == torch.float32, name
        assert value.grad.abs().max() > 0, name


def test_the_weights_are_the_callers(policy, prompts):
    state = {name: torch.zeros_like(value) for name, value in policy.initial_state().items()}
    assert (policy.next_logp(state, prompts) + torch.tensor(float(VOCABULARY)).log()).abs().max() < 1e-6


def test_a_prompt_of_padding_alone_is_refused(policy):
    with pytest.raises(ValueError, match="prompts: row 1 consists of the pad token 257 only"):
        policy.next_logp(policy.initial_state(), torch.tensor([[1, 2], [PAD, PAD]]))


def test_folders_that_hold_no_model_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"found no config\.json.*nothing is downloaded"):
        load_model(tmp_path / "none", torch.device("cpu"), torch.float32)
    tiny_qwen3().save_pretrained(tmp_path)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="its tokenizer has no chat_template"):
        load_model(tmp_path, torch.device("cpu"), torch.float32)


def test_without_quantisation_the_record_is_the_trainers(policy, prompts):
    sampler = HFSampler(policy, eos=EOS, whole_rows=True)
    state = policy.initial_state()
    # A head row near the mean of the others makes an end of response likely enough to be seen at some lengths.
    state["model.embed_tokens.weight"][EOS] *= 3
    sampler.load_weights(state, 4)
    rollout = sample(sampler, prompts, samples=8, length=10)
    assert rollout.version == 4 and rollout.ended.any() and not rollout.ended.all()
    logp = policy.response_logits(state, rollout.prompts, rollout.tokens).log_softmax(-1)
    mask = rollout.mask
    torch.testing.assert_close(rollout.logp_sampler_full[mask], logp[mask], rtol=0, atol=5e-5)
    recorded = rollout.logp_sampler_full.gather(-1, rollout.tokens[..., None])[..., 0]
    assert torch.equal(rollout.logp_sampler[mask], recorded[mask])
    top = rollout.logp_sampler_full.topk(8).values
    assert torch.equal(rollout.head_logp_sampler[mask], top[mask])
    assert (rollout.head_ids[~mask] == -1).all() and (rollout.tokens[~mask] == PAD).all()


def test_the_generator_decides_and_the_weights_are_copied(policy, prompts):
    sampler = HFSampler(policy, eos=EOS, fp8=True)
    state = policy.initial_state()
    sampler.load_weights(state, 0)
    first = sample(sampler, prompts)
    for value in state.values():
        value.zero_()
    again, other = sample(sampler, prompts), sample(sampler, prompts, seed=2)
    assert torch.equal(first.tokens, again.tokens) and torch.equal(first.logp_sampler, again.logp_sampler)
    assert not torch.equal(first.tokens, other.tokens)


def test_native_fp8_samples_as_simulated_fp8_does(policy, prompts):
    state = policy.initial_state()
    sampler = HFSampler(policy, eos=EOS, fp8=True)
    sampler.load_weights({name: value * 1.1 for name, value in state.items()}, 0)
    sampler.load_weights(state, 1)
    simulated = copy.deepcopy(policy.model)
    for name, layer in simulated.named_modules():
        if name.endswith("_proj"):
            layer.weight.data = quantise(layer.weight.data, "fp8_e4m3")
            layer.register_forward_pre_hook(lambda _, args: (quantise(args[0], "fp8_e4m3"),))
    wanted = HFPolicy(simulated, device=policy.device, compute=torch.float32, pad=PAD)
    found = sampler.next_logp(prompts)
    weights = dict(simulated.named_parameters())
    # Rounding can fall on the other side of a step of the grid where the products differ in their last bits.
    assert (found - wanted.next_logp(weights, prompts)).abs().max() < 0.02
    assert (found - policy.next_logp(state, prompts)).abs().max() > 0.1


def test_keys_and_values_are_rounded_as_they_are_written(policy, prompts):
    plain, rounded = HFSampler(policy, eos=EOS), HFSampler(policy, eos=EOS, kv="fp4_e2m1")
    caches = []
    for sampler in (plain, rounded):
        sampler.load_weights(policy.initial_state(), 0)
        cache = sampler._cache()
        real = prompts != PAD
        sampler._forward(prompts, real, (real.long().cumsum(-1) - 1).clamp_min(0), cache)
        caches.append(cache)
    for name in ("keys", "values"):
        exact, found = (getattr(cache.layers[0], name) for cache in caches)
        torch.testing.assert_close(found, quantise(exact, "fp4_e2m1"), rtol=0, atol=0)


def test_draw_inverts_the_cumulative_distribution():
    logp = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]).expand(
        5, -1
    )  # exp is exact, so is the boundary
    uniforms = torch.tensor([0.0, 0.4999, 0.5, 0.999, 1 - 2**-53], dtype=torch.float64)
    assert draw(logp, uniforms).tolist() == [1, 1, 3, 3, 3]


def test_requests_that_make_no_sense_are_refused(policy, prompts):
    sampler = HFSampler(policy, eos=EOS)
    with pytest.raises(RolloutError, match="load_weights has not been called"):
        sample(sampler, prompts)
    state = policy.initial_state()
    with pytest.raises(RolloutError, match=r"model\.norm\.weight: expected the weights of Qwen3ForCausalLM, got none"):
        sampler.load_weights({k: v for k, v in state.items() if k != "model.norm.weight"}, 0)
    with pytest.raises(RolloutError, match=r"model\.norm\.weight: expected shape \(64,\), got \(63,\)"):
        sampler.load_weights({**state, "model.norm.weight": torch.ones(63)}, 0)
    sampler.load_weights(state, 0)
    with pytest.raises(RolloutError, match="head_k: expected 0..272"):
        sample(sampler, prompts, head_k=300)
    with pytest.raises(RolloutError, match="max_tokens: 5 prompt tokens and 2000 response tokens exceed"):
        sample(sampler, prompts, length=2000)
    state["model.norm.weight"][0] = torch.nan
    sampler.load_weights(state, 7)
    with pytest.raises(RolloutError, match="logits: not finite at response token 0 of policy version 7"):
        sample(sampler, prompts)
