"""Number grids of quantised samplers, bit for bit: fp8 e4m3 and e5m2, fp4 e2m1, int8, int4; and what they do to a policy."""

from __future__ import annotations

import numpy as np

from ..registry import Draft, Family, envelope, row
from ..witness_arrays import grid_values
from .common import Numbers, bf16, log_softmax, policy

FAMILY = Family(
    "quant",
    "Quantise-dequantise on the sampler's number grids",
    "10#grids",
    ["OCP Microscaling v1.0 section 5.3", "OCP FP8"],
)

FORMATS = ("fp8_e4m3", "fp8_e5m2", "fp4_e2m1", "int8", "int4")
WORDS = {name: name.replace("_", "-") for name in FORMATS}


@FAMILY.cases(
    {
        i: row(
            f"{WORDS[name]}-grid",
            f"Every value of {name}",
            f"{name}: subnormals, largest value and both signs are fixed points.",
            format=name,
        )
        for i, name in enumerate(FORMATS, start=1)
    },
    flags=["QuantGrid"],
)  # fmt: skip
def _(format: str) -> Draft:
    """Values of the grid map to themselves, negative ones too (every second value of the 8-bit formats)."""
    grid = [float(x) for x in grid_values(format)]
    if len(grid) > 20:
        grid = grid[:16] + grid[16:-16:5] + grid[-16:]
    return envelope("quantise", {"values": [grid, [-x for x in grid]]}, {"format": format})


@FAMILY.cases(
    {
        i: row(
            f"{WORDS[name]}-ties",
            f"Midpoints of {name}",
            f"{name}: a midpoint goes to the neighbour with even code, not away from zero.",
            format=name,
        )
        for i, name in enumerate(FORMATS, start=6)
    },
    flags=["QuantTies", "ThresholdTie"],
)  # fmt: skip
def _(format: str) -> Draft:
    """Values half-way between neighbours, and the values next to such midpoints on the bf16 grid."""
    grid = [float(x) for x in grid_values(format)]
    pairs = list(zip(grid, grid[1:], strict=False))
    if len(pairs) > 24:
        pairs = pairs[:12] + pairs[-12:]
    middle = [(a + b) / 2 for a, b in pairs]
    near = [bf16(m * 1.0078125) for m in middle]
    return envelope("quantise", {"values": [middle, near]}, {"format": format})


@FAMILY.cases(
    {
        i: row(
            f"{WORDS[name]}-saturates",
            f"{name} saturates",
            f"{name}: beyond the largest value there is no infinity and no wrap-around.",
            format=name,
        )
        for i, name in enumerate(FORMATS, start=11)
    },
    flags=["QuantGrid"],
)  # fmt: skip
def _(format: str) -> Draft:
    """Values at, just above and far above the largest, and far below the smallest subnormal."""
    top = float(grid_values(format)[-1])
    tiny = float(grid_values(format)[1])
    row = [top, bf16(top * 1.0625), top * 2, 2.0**30, tiny / 4, tiny / 2, bf16(tiny * 0.75), 0.0]
    return envelope("quantise", {"values": [row, [-x for x in row]]}, {"format": format})


SCALED: dict[int, dict] = {}
for _i, (_name, _mode) in enumerate(
    [
        ("int8", "row"),
        ("int8", "tensor"),
        ("int4", "row"),
        ("int4", "tensor"),
        ("fp4_e2m1", "row"),
        ("fp8_e4m3", "row"),
        ("fp8_e4m3", "tensor"),
    ],
    start=16,
):
    SCALED[_i] = {
        "slug": f"{WORDS[_name]}-scale-{_mode}",
        "title": f"{_name}, scale per {_mode}",
        "says": f"{_name} per {_mode}: 127 and 7 are the largest integers; the other granularity moves every small row.",
        "format": _name,
        "mode": _mode,
    }


@FAMILY.cases(SCALED, flags=["QuantScale"])
def _(format: str, mode: str) -> Draft:
    """Absolute-maximum scaling; rows of very different size. The largest entries are the format's largest times a power of two,
    so that the scale is exact and the answer bit-exact in every precision."""
    n = Numbers(700)
    top = float(grid_values(format)[-1])
    rows = n.uniform(-0.96875, 0.96875, 3, 6, step=0.03125) * top
    sizes = np.array([[2.0**-3], [2.0**-9], [1.0]])
    rows[:, 2] = top
    values = np.array(bf16(rows)) * sizes
    return envelope("quantise", {"values": values.tolist()}, {"format": format, "scale": mode})


@FAMILY.cases(
    {
        23: row("int8-scale-inexact", "int8 with a scale that is no power of two",
            "The scale is max|x|/127; every entry keeps clear of a midpoint.", format="int8"),
        24: row("fp8-scale-inexact", "fp8 e4m3 with a scale that is no power of two", "The scale is max|x|/448.",
            format="fp8_e4m3"),
    },
    flags=["QuantScale"],
)  # fmt: skip
def _(format: str) -> Draft:
    """Row scaling of ordinary weights: values to rounding error, the grid index exact."""
    return envelope(
        "quantise",
        {"values": [[0.75, -0.3125, 0.109375, 0.0], [-1.5, 1.0625, 0.0625, 0.4375]]},
        {"format": format, "scale": "row"},
    )


@FAMILY.case(25, "row-of-zeros", flags=["QuantScale", "InfTimesZero"])
def _() -> Draft:
    """A row of zeros has scale 1.

    0/0 in x/scale turns it NaN.
    """
    return envelope("quantise", {"values": [[0.0, 0.0, 0.0], [127.0, -63.0, 1.0]]}, {"format": "int8", "scale": "row"})


SAMPLERS: dict[int, dict] = {
    26: row(
        "sampler-fp8-logits",
        "Sampler with fp8 e4m3 logits",
        "TIS on the mismatch that the grid makes.",
        format="fp8_e4m3",
        rule={"weight": {"high": 2.0, "outside": "clip"}},
    ),
    27: row(
        "sampler-int4-logits",
        "Sampler with int4 logits",
        "Large mismatch: centering with MIS.",
        format="int4",
        rule={"weight": {"low": 0.5, "high": 5.0, "outside": "zero"}, "centering": {}},
    ),
    28: row(
        "sampler-fp4-logits",
        "Sampler with fp4 e2m1 logits",
        "Score centering alone.",
        format="fp4_e2m1",
        rule={"centering": {}},
    ),
}


@FAMILY.cases(SAMPLERS, flags=["CentredScoreMeasure"], derivation="10#quantised-sampler")
def _(format: str, rule: dict) -> Draft:
    """The sampler's logits are the trainer's, quantised; its log-probs (bf16) are what was recorded."""
    grid = np.array([float(x) for x in grid_values(format)])
    x = policy(726, [3, 2], 6, 3, spread=3.0)
    z = np.array(x["logits"])
    snapped = np.sign(z) * grid[np.abs(np.abs(z)[..., None] - grid).argmin(-1)]
    logq = log_softmax(snapped)
    tokens = np.array(x["tokens"])[..., None]
    ids = np.argsort(-logq, axis=-1, kind="stable")[..., :3]
    x["logp_sampler"] = bf16(np.take_along_axis(logq, tokens, -1)[..., 0], down=True)
    x["head_ids"], x["head_logp_sampler"] = ids.tolist(), bf16(np.take_along_axis(logq, ids, -1), down=True)
    return envelope("objective", x, rule)
