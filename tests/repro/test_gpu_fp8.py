"""Native fp8 products: the simulated format's numbers bit for bit, the product itself to rounding, clear refusals."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from repro.gpu.fp8_linear import Fp8Linear, check_fp8, quantise_blocks, to_fp8
from repro.gpu.settings import DeviceUnavailable
from repro.gpu.tiny import tiny_qwen3
from repro.quantise import quantise


def values(*shape, seed=0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return x * torch.logspace(-6, 6, shape[0])[:, None]


def test_the_numbers_are_those_of_the_simulated_format():
    x = torch.cat([values(64, 96), torch.zeros(1, 96), torch.full((1, 96), 1e-40)])
    fp8, scale = to_fp8(x)
    assert fp8.dtype == torch.float8_e4m3fn
    torch.testing.assert_close(fp8.float() * scale, quantise(x, "fp8_e4m3"), rtol=0, atol=0)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_the_product_is_that_of_simulated_weights_and_activations(dtype, tolerance):
    layer = nn.Linear(96, 48)
    x = values(5, 2 * 96, seed=1).reshape(5, 2, 96).to(dtype)
    wanted = quantise(x.float(), "fp8_e4m3") @ quantise(layer.weight.detach(), "fp8_e4m3").T
    found = Fp8Linear(layer, "layer")(x)
    assert found.dtype == dtype and found.shape == (5, 2, 48)
    difference = (found.float() - layer.bias - wanted).abs().amax((1, 2))
    assert (difference <= tolerance * (wanted.abs().amax((1, 2)) + 1)).all()


def test_load_takes_over_new_weights():
    layer = nn.Linear(32, 16, bias=False)
    fp8 = Fp8Linear(layer, "layer")
    weight = values(16, 32, seed=2)
    fp8.load(weight)
    assert torch.equal(fp8.values.float() * fp8.scale, quantise(weight, "fp8_e4m3"))


def test_every_linear_layer_inside_the_blocks_and_no_other():
    model = tiny_qwen3()
    names = {name.removesuffix(".weight") for name, _ in model.named_parameters() if name.endswith("_proj.weight")}
    assert set(quantise_blocks(model)) == names and len(names) == 14
    assert isinstance(model.get_output_embeddings(), nn.Linear)
    assert not [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and name != "lm_head"]


def test_dimensions_that_the_kernel_does_not_take_are_refused():
    with pytest.raises(ValueError, match=r"odd\.layer: expected dimensions that are multiples of 16.*got 24 x 32"):
        Fp8Linear(nn.Linear(32, 24), "odd.layer")


def test_a_device_without_the_kernel_is_a_clear_error(monkeypatch):
    check_fp8(torch.device("cpu"))

    def missing(*args, **kwargs):
        raise RuntimeError("torch._scaled_mm is only supported on devices of another kind\nmore")

    monkeypatch.setattr(torch, "_scaled_mm", missing)
    with pytest.raises(DeviceUnavailable, match="weights: device cpu has no fp8 .*another kind.*weights = activations"):
        check_fp8(torch.device("cpu"))
    monkeypatch.setattr(torch, "_scaled_mm", lambda x, w, **_: torch.zeros(16, 16))
    with pytest.raises(DeviceUnavailable, match="the fp8 product of device cpu is wrong"):
        check_fp8(torch.device("cpu"))
