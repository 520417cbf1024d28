"""The simulated formats against torch's own float8 casts, the e2m1 value list and integer rounding."""

from __future__ import annotations

import pytest
import torch

from repro.quantise import FORMATS, quantise, quantise_weights, round_to_grid

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
CASTS = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


def samples() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    spread = [torch.randn(20_000, generator=generator) * 10.0**power for power in range(-8, 6)]
    return torch.cat([*spread, torch.linspace(-500, 500, 100_001), torch.zeros(1)])


@pytest.mark.parametrize("name", CASTS)
def test_float8_equals_the_hardware_cast_bit_for_bit(name):
    largest = FORMATS[name].largest
    assert largest == torch.finfo(CASTS[name]).max
    x = samples()
    assert torch.equal(round_to_grid(x, name), x.clamp(-largest, largest).to(CASTS[name]).float())


@pytest.mark.parametrize("name", CASTS)
def test_every_float8_value_is_a_fixed_point_and_every_midpoint_goes_to_even(name):
    values = torch.arange(256, dtype=torch.uint8).view(CASTS[name]).float()
    values = values[values.isfinite()].sort().values.unique()
    assert torch.equal(round_to_grid(values, name), values)
    middles = (values[1:] + values[:-1]) / 2
    assert torch.equal(round_to_grid(middles, name), middles.to(CASTS[name]).float())


def test_fp4_grid_nearest_even_and_saturation():
    grid = torch.tensor(sorted({-v for v in E2M1} | set(E2M1)))
    assert torch.equal(round_to_grid(grid, "fp4_e2m1"), grid)
    x = torch.linspace(-9, 9, 36_001)
    found = round_to_grid(x, "fp4_e2m1")
    assert set(found.tolist()) == set(grid.tolist())
    nearest = (x[:, None].clamp(-6, 6) - grid).abs().amin(1)
    torch.testing.assert_close((found - x.clamp(-6, 6)).abs(), nearest, rtol=0, atol=1e-6)
    # Ties go to the neighbour whose mantissa bit is 0: 0, 1, 2, 4.
    ties = {0.25: 0.0, 0.75: 1.0, 1.25: 1.0, 1.75: 2.0, 2.5: 2.0, 3.5: 4.0, 5.0: 4.0}
    assert round_to_grid(torch.tensor(list(ties)), "fp4_e2m1").tolist() == list(ties.values())


@pytest.mark.parametrize(("name", "largest"), [("int8", 127), ("int4", 7)])
def test_integers_round_half_to_even_and_saturate(name, largest):
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, largest + 0.4, 1e9, -1e9])
    assert round_to_grid(x, name).tolist() == [0.0, 2.0, 2.0, 0.0, -2.0, largest, largest, -largest]


@pytest.mark.parametrize("name", FORMATS)
def test_scales_are_per_slice_and_the_absmax_survives(name):
    x = torch.randn((5, 3, 16), generator=torch.Generator().manual_seed(1)) * torch.tensor([1e-4, 1.0, 3e3])[:, None]
    found = quantise(x, name)
    torch.testing.assert_close(found.abs().amax(-1), x.abs().amax(-1), rtol=1e-6, atol=0)
    for row in range(5):
        assert torch.equal(found[row], quantise(x[row], name))
    on_grid = found / (x.abs().amax(-1, keepdim=True) / FORMATS[name].largest)
    torch.testing.assert_close(on_grid, round_to_grid(on_grid, name), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FORMATS)
def test_zero_slices_nan_and_infinity(name):
    x = torch.tensor([[0.0, 0.0], [float("nan"), 1.0]])
    found = quantise(x, name)
    assert torch.equal(found[0], torch.zeros(2))
    assert found[1].isnan().any()
    assert round_to_grid(torch.tensor([float("nan")]), name).isnan().all()


def test_weights_quantise_projections_only_and_leave_the_input_alone(policy):
    before = {name: value.clone() for name, value in policy.items()}
    found = quantise_weights(policy, "int4")
    for name, value in policy.items():
        assert torch.equal(value, before[name])
        assert found[name].data_ptr() != value.data_ptr()
        assert torch.equal(found[name], value) != ("_proj" in name)
    row = found["model.layers.1.mlp.down_proj.weight"][5]
    assert len(row.unique()) <= 15


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="fp8_e4m3, fp8_e5m2, fp4_e2m1, int8, int4, got 'fp3'"):
        quantise(torch.ones(2), "fp3")
    with pytest.raises(ValueError, match="expected torch.float32, got torch.float64"):
        quantise(torch.ones(2, dtype=torch.float64), "int8")
