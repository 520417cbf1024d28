"""A linear layer whose matrix product runs in the device's own fp8 (e4m3): weights and activations, ``torch._scaled_mm``.

    y = (s_x s_w) * (x_8 @ w_8^T) + b,   x_8 = e4m3(x / s_x), s_x = absmax of the token / 448
                                         w_8 = e4m3(w / s_w), s_w = absmax of the output channel / 448

The numbers that enter the product are those of ``repro.quantise`` with format "fp8_e4m3", bit for bit; what is different is
the product itself: the device's accumulation, and an output in bfloat16 on a GPU. Run so far on the CPU only, where
torch has the same operation; not yet run on a GPU. There the kernel needs dimensions that are multiples of 16.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from repro.gpu.settings import DeviceUnavailable
from repro.quantise import FORMATS

FORMAT = torch.float8_e4m3fn
LARGEST = FORMATS["fp8_e4m3"].largest
MULTIPLE = 16


def to_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """(e4m3 values [.., N, K], float32 scales [.., N, 1]) of ``x`` [.., N, K]: one absmax scale per slice along the last
    dimension, nearest value, ties to even. An all-zero slice stays zero."""
    x = x.float()
    scale = (x.abs().amax(dim=-1, keepdim=True) / LARGEST).clamp_min(torch.finfo(torch.float32).tiny)
    return (x / scale).clamp(-LARGEST, LARGEST).to(FORMAT), scale


def scaled_product(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """[M, N] in ``dtype`` from e4m3 ``x`` [M, K] with scales [M, 1] and e4m3 ``weight`` [N, K] with scales [N, 1]."""
    # The GPU's kernel for scales by row and column writes bfloat16 only; a float32 layer gets its rounded output there.
    out = torch.bfloat16 if x.is_cuda else dtype
    y = torch._scaled_mm(x, weight.t(), scale_a=x_scale, scale_b=weight_scale.t().contiguous(), out_dtype=out)
    return y.to(dtype)


def check_fp8(device: torch.device) -> None:
    """Raise DeviceUnavailable, with torch's reason, where ``device`` cannot multiply e4m3 matrices with these scales."""
    one = torch.ones(MULTIPLE, 1, device=device)
    try:
        values = torch.ones(MULTIPLE, MULTIPLE, device=device).to(FORMAT)
        found = float(scaled_product(values, one, values, one, torch.float32)[0, 0])
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DeviceUnavailable(
            f"weights: device {device} has no fp8 matrix product with scales by row ({reason}); use a GPU that has one "
            "(compute capability 8.9 or higher), or weights = activations = '' for a sampler without quantisation"
        ) from error
    if found != MULTIPLE:
        raise DeviceUnavailable(
            f"weights: the fp8 product of device {device} is wrong: a sum of {MULTIPLE} ones gave {found}"
        )


class Fp8Linear(nn.Module):
    """A frozen ``nn.Linear`` in fp8; ``load`` quantises float32 weights [out, in] into it."""

    def __init__(self, layer: nn.Linear, name: str):
        super().__init__()
        if layer.in_features % MULTIPLE or layer.out_features % MULTIPLE:
            raise ValueError(
                f"{name}: expected dimensions that are multiples of {MULTIPLE} for fp8, got {layer.out_features} x "
                f"{layer.in_features}"
            )
        values, scale = to_fp8(layer.weight.detach())
        self.register_buffer("values", values)
        self.register_buffer("scale", scale)
        self.bias = layer.bias

    def load(self, weight: Tensor) -> None:
        """Take over ``weight`` [out, in]."""
        values, scale = to_fp8(weight.detach().to(self.scale.device))
        self.values.copy_(values)
        self.scale.copy_(scale)

    def forward(self, x: Tensor) -> Tensor:
        """[.., out] in the dtype of ``x`` [.., in]."""
        flat = x.reshape(-1, x.shape[-1])
        values, scale = to_fp8(flat)
        y = scaled_product(values, scale, self.values, self.scale, x.dtype)
        y = y if self.bias is None else y + self.bias.to(y.dtype)
        return y.reshape(*x.shape[:-1], -1)


def quantise_blocks(model: nn.Module) -> dict[str, Fp8Linear]:
    """Replace, in place, every linear layer of a language model but its output head; returns the new ones by name."""
    head = model.get_output_embeddings()
    found = [
        (name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and layer is not head
    ]
    layers = {}
    for name, layer in found:
        layers[name] = Fp8Linear(layer, name)
        model.set_submodule(name, layers[name])
    return layers
