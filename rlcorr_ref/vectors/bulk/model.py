"""What a bulk case is: an envelope with arrays, answers with error scales, and the texts and flags of the core set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

DTYPES = ("fp64", "fp32")


@dataclass
class Output:
    """One answer: `data` any shape, float64; tol = m (u err + u_acc acc) + eta with `err` of that shape or one number."""

    data: np.ndarray
    err: np.ndarray | float = 0.0
    acc: float = 0.0
    kind: str = "real"


@dataclass
class BulkCase:
    """One case. `inputs` are arrays by contract name, stored as they are in `inputs_file`; `outputs` by contract name.

    `margin` is the distance in nats of the nearest compared quantity to its threshold (None: nothing is compared) and
    `margin_tolerance` the float32 tolerance of that quantity, of which it has to be at least 16.
    """

    id: str
    slug: str
    title: str
    description: str
    function: str
    settings: dict[str, Any]
    inputs_file: str
    inputs: dict[str, np.ndarray]
    outputs: dict[str, Output]
    required: tuple[str, ...]
    flags: tuple[str, ...]
    derivation: str
    margin: float | None = None
    margin_tolerance: float = 0.0
