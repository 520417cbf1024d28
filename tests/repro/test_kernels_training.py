"""The fused training pass against the same pass written with torch operations, its gradients, and bad operands."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from numba import njit

from repro.kernels.causal_attention import attention
from repro.kernels.lanes import WIDTH, exp, hmax, hsum, keep, larger, load, splat, store
from repro.kernels.training import add_norm, gated, norm
from repro.policies import forward, fuse, initial_state, rotary_tables, tiny_config

CHANGES = [
    {},
    {"num_attention_heads": 4, "num_key_value_heads": 4, "hidden_size": 96, "rms_norm_eps": 1e-3},
    {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 1},
]


def eager(state, config, tokens):
    """The pass in plain torch operations, in the precision of the weights."""

    def rms(x, weight):
        return weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + config.rms_norm_eps)

    def rotate(x):
        first, second = x.chunk(2, dim=-1)
        return x * cosine + torch.cat([-second, first], dim=-1) * sine

    length, heads, kv = tokens.shape[1], config.num_attention_heads, config.num_key_value_heads
    x = state["model.embed_tokens.weight"][tokens]
    cosine, sine = (table.to(x.dtype) for table in rotary_tables(config, length))
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    for block in fuse(state, config):
        qkv = F.linear(rms(x, block["norm_in"]), block["qkv"]).unflatten(-1, (heads + 2 * kv, config.head_dim))
        q, k, v = qkv.transpose(1, 2).split([heads, kv, kv], dim=1)
        q, k = rotate(rms(q, block["q_norm"])), rotate(rms(k, block["k_norm"]))
        k, v = (part.repeat_interleave(heads // kv, dim=1) for part in (k, v))
        scores = (q @ k.transpose(-1, -2) * config.head_dim**-0.5).masked_fill(hidden, -torch.inf)
        x = x + F.linear((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2), block["out"])
        gate, up = F.linear(rms(x, block["norm_mid"]), block["gate_up"]).chunk(2, dim=-1)
        x = x + F.linear(F.silu(gate) * up, block["down"])
    return F.linear(rms(x, state["model.norm.weight"]), state["lm_head.weight"])


def policy(changes):
    config = tiny_config(29, initializer_range=0.2, **changes)
    generator = torch.Generator().manual_seed(0)
    state = initial_state(config, generator)
    return config, {n: v + 0.3 * torch.randn(v.shape, generator=generator) * (v.ndim == 1) for n, v in state.items()}


def gradients(function, state, config, tokens, direction, names=None):
    leaves = {n: v.clone().requires_grad_(names is None or n in names) for n, v in state.items()}
    logits = function(leaves, config, tokens)
    (logits * direction.to(logits.dtype)).sum().backward()
    return logits.detach(), {n: v.grad for n, v in leaves.items()}


def assert_near(found, expected, limit):
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= limit * expected.abs().max()


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("shape", [(3, 7), (4, 4), (5, 1), (2, 66), (1, 16)])
def test_logits_and_gradients_equal_eager_in_float32_and_float64(changes, shape):
    config, state = policy(changes)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 29, shape, generator=generator)
    direction = torch.randn((*shape, 29), generator=generator)
    logits, found = gradients(forward, state, config, tokens, direction)
    double = {n: v.double() for n, v in state.items()}
    for weights in (state, double):
        expected_logits, expected = gradients(eager, weights, config, tokens, direction)
        assert_near(logits, expected_logits, 1e-5)
        for name, gradient in expected.items():
            if shape[1] == 1 and name.endswith(("q_norm.weight", "k_norm.weight", "q_proj.weight", "k_proj.weight")):
                assert found[name].abs().max() <= 1e-5  # one token attends to itself whatever its query and key
            else:
                assert_near(found[name], gradient, 1e-5)


def test_a_subset_of_the_weights_and_no_gradient_at_all():
    config, state = policy({})
    tokens = torch.randint(0, 29, (3, 9), generator=torch.Generator().manual_seed(2))
    direction = torch.randn((3, 9, 29), generator=torch.Generator().manual_seed(3))
    logits, whole = gradients(forward, state, config, tokens, direction)
    for names in (["model.layers.0.self_attn.k_norm.weight"], ["model.layers.1.mlp.up_proj.weight", "lm_head.weight"]):
        _, part = gradients(forward, state, config, tokens, direction, names)
        for name in state:
            assert (part[name] is None) == (name not in names)
            assert name not in names or torch.equal(part[name], whole[name])
    with torch.no_grad():
        assert torch.equal(forward(state, config, tokens), logits)
    assert not forward(state, config, tokens).requires_grad


def test_gradients_are_plain_sums_over_rows():
    config, state = policy({})
    tokens = torch.randint(0, 29, (6, 20), generator=torch.Generator().manual_seed(4))
    direction = torch.randn((6, 20, 29), generator=torch.Generator().manual_seed(5))
    logits, whole = gradients(forward, state, config, tokens, direction)
    parts = [gradients(forward, state, config, tokens[r], direction[r]) for r in (slice(0, 2), slice(2, 6))]
    assert_near(torch.cat([part for part, _ in parts]), logits, 1e-6)
    for name, gradient in whole.items():
        assert_near(sum(part[name] for _, part in parts), gradient, 1e-5)


def test_nan_reaches_the_logits_and_only_the_sequence_it_is_in():
    config, state = policy({})
    state["model.embed_tokens.weight"][7] = torch.nan
    tokens = torch.tensor([[1, 2, 7, 3, 4], [1, 2, 3, 4, 5]])
    logits = forward(state, config, tokens)
    assert logits[0, 2:].isnan().all() and logits[1].isfinite().all()


def test_operands_that_are_not_contiguous():
    generator = torch.Generator().manual_seed(6)
    x, update = (torch.randn((16, 5), generator=generator).t().requires_grad_() for _ in range(2))
    weight = torch.randn(32, generator=generator)[::2].requires_grad_()
    total, normed = add_norm(x, update, weight, 1e-6)
    direction = torch.randn((16, 5), generator=generator).t()
    found = torch.autograd.grad([total, normed], [x, update, weight], [direction, direction])
    plain = x + update
    expected = F.rms_norm(plain, (16,), weight, 1e-6)
    assert_near(normed, expected, 1e-6)
    for a, b in zip(found, torch.autograd.grad([plain, expected], [x, update, weight], [direction] * 2), strict=True):
        assert_near(a, b, 1e-6)


def test_exponential_and_folds_of_eight_lanes():
    @njit
    def exponentials(x, out):
        for j in range(0, x.size, WIDTH):
            store(out, j, exp(load(x, j)))

    @njit
    def folds(x, count):
        kept = keep(load(x, 0), count, splat(x[0]))
        return hsum(kept), hmax(larger(kept, splat(x[3])))

    x = torch.linspace(-87, 88, 8 * 5000).numpy()
    out = x.copy()
    exponentials(x, out)
    exact = torch.from_numpy(x).double().exp()
    last_place = 2.0 ** (exact.log2().floor() - 23)
    assert ((torch.from_numpy(out) - exact).abs() / last_place).max() <= 1
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 0, -1000, 1000, -0.0, 89]).numpy()
    out = x.copy()
    exponentials(x, out)
    assert torch.from_numpy(out[:1]).isnan() and out[3] == out[6] == 1
    assert out[1] == out[5] == out[7] > 1e38 and 0 < out[2] == out[4] < 1e-37
    x = torch.tensor([3.0, -7, 5, 6, 1, 2, 9, 4]).numpy()
    assert folds(x, 8) == (23, 9) and folds(x, 3) == (16, 6) and folds(x, -2) == (24, 6) and folds(x, 20) == (23, 9)


def test_extreme_gates():
    gates = torch.tensor([-200.0, -88, -30, -1, 0, 1, 30, 200])
    gate_up = torch.cat([gates, torch.full((8,), 2.0)])[None].requires_grad_()
    (found,) = torch.autograd.grad(gated(gate_up).sum(), gate_up)
    double = gate_up.detach().double().requires_grad_()
    expected = F.silu(double[:, :8]) * double[:, 8:]
    assert_near(gated(gate_up.detach()).double(), expected, 1e-6)
    assert_near(found.double(), torch.autograd.grad(expected.sum(), double)[0], 1e-6)


def test_bad_operands_are_named():
    x, weight, tables = torch.zeros(6, 64), torch.ones(16), (torch.zeros(3, 16), torch.zeros(3, 16))
    config, state = policy({})
    double, token = {n: v.double() for n, v in state.items()}, torch.zeros((1, 1), dtype=torch.int64)
    for message, call in (
        (r"x: expected shape \(6, 16\), got \(6, 64\)", lambda: norm(x, weight, 1e-6)),
        (r"update: expected shape \(6, 64\), got \(5, 64\)", lambda: add_norm(x, x[:5], torch.ones(64), 1e-6)),
        (r"x: expected a last dimension that is a multiple of 8, got 12", lambda: norm(x[:, :12], weight[:12], 1e-6)),
        (r"gate_up: expected a last dimension that is a multiple of 16, got 24", lambda: gated(x[:, :24])),
        (r"qkv: expected shape \(6, 96\), got \(6, 64\)", lambda: attention(x, weight, weight, 1e-6, tables, (2, 3, 2, 2))),
        (r"k_weight: expected shape \(16,\)", lambda: attention(x, weight, weight[:8], 1e-6, tables, (2, 3, 2, 1))),
        (r"tables: expected shape \(2, 16\)", lambda: attention(x, weight, weight, 1e-6, tables, (3, 2, 2, 1))),
        (r"shape: .* multiple of key/value heads, got 3 and 2", lambda: attention(x, weight, weight, 1e-6, tables, (2, 3, 3, 2))),
        (r"x: expected a torch\.float32 tensor on the CPU, got torch\.float64", lambda: forward(double, config, token)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            call()
