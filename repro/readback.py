"""Weight read-back: after every transfer the sampler's own weights are hashed and held against what it should hold.

What it should hold is computed anew from the trainer's weights (`repro.mismatch.Mismatch.delivered`), so that a transfer that
was skipped, a copy that shares memory with the trainer's and a quantiser that ran on other weights all change the hash.
The metrics record nine decimal digits of the SHA-256: equal digits in two rows mean the same weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from torch import Tensor

from repro.errors import LaboratoryError


class ReadBackError(LaboratoryError):
    """The sampler holds other weights than it was given; the message names the first tensor that differs."""


def digest(state: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, shapes and bytes of all tensors, in the order of their names."""
    found = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().contiguous()
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        found.update(memoryview(tensor.numpy()).cast("B"))
    return found.hexdigest()


def digits(digest: str) -> int:
    """Nine decimal digits of a hexadecimal digest: as many as ``data.csv`` keeps of any number."""
    return int(digest, 16) % 10**9


def confirm(expected: Mapping[str, Tensor], held: Mapping[str, Tensor], version: int) -> int:
    """The `digits` of the weights that the sampler holds; `ReadBackError` unless they are ``expected``, bit for bit."""
    found = digest(held)
    if found != digest(expected):
        name = next(
            (n for n in sorted({*expected, *held}) if n not in held or n not in expected
             or digest({n: held[n]}) != digest({n: expected[n]})), "order",
        )  # fmt: skip
        raise ReadBackError(
            f"{name}: the sampler holds other weights than policy version {version} delivered; the transfer was skipped, went "
            "to a copy, or something wrote into the sampler's weights - this is no quantisation error, whose values are "
            "computed the same way on both sides"
        )
    return digits(found)
