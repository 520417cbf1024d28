"""Traces: ten SGD steps with a re-synchronised sampler, one case per correction."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..registry import Draft, Family, envelope, row
from ..trace import first_step
from .common import MIS, PAPER, PPO_BAND, SEQ_TIS, TIS, Numbers, ragged

FAMILY = Family("trace", "Ten SGD steps with a re-synchronised sampler", "11#iteration", [f"{PAPER}, on-line setting"])

RUNS: dict[int, dict[str, Any]] = {
    1: row("sequence-tis-stale", "Sequence TIS, sampler refreshed every 4 steps",
            "The sampler's age runs 0..3; one step late or early ends elsewhere.", settings={"weight": SEQ_TIS},
            resync=4, flags=["StaleSampler", "SeqProductVsGeomean"]),
    2: row("policy-gradient-online", "Plain policy gradient, sampler refreshed every step",
        "The offset alone is the mismatch.", settings={}, resync=1),
    3: row("tis-stale", "TIS, sampler refreshed every 4 steps",
        "Ratios against the sampler as it was when it sampled.", settings={"weight": TIS}, resync=4,
        flags=["StaleSampler"]),
    4: row("mis-stale", "MIS, sampler refreshed every 4 steps", "Masked steps leave a token's logits alone.",
        settings={"weight": MIS}, resync=4, flags=["StaleSampler"]),
    5: row("centred-online", "Score centering, whole rows, refreshed every step",
        "The drift of the second case is gone.", settings={"centering": {"tail": "exact"}}, resync=1,
        flags=["CentredScoreMeasure"]),
    6: row("centred-head-stale", "TIS with score centering on a head of 2, refreshed every 5 steps",
        "Head ids are fixed, their log-probs follow the sampler.", settings={"weight": TIS, "centering": {}},
        resync=5, head=2, flags=["CentredScoreMeasure", "StaleSampler"]),
    7: row("ppo-band-row-means", "PPO band, row means, temperature 0.75", "1/T and 1/(R n_b) enter every step.",
        settings={"weight": PPO_BAND, "temperature": 0.75, "aggregation": {"kind": "seq-mean-token-mean"}}, resync=3,
        flags=["Temperature"]),
    8: row("importance-sampling-offline", "Importance sampling, sampler never refreshed",
        "Ten steps against the first sampler.", settings={"weight": {}}, resync=10, flags=["StaleSampler"]),
}  # fmt: skip


@FAMILY.cases(RUNS, flags=["TraceAccumulates"])
def _(settings: dict, resync: int, head: int = 0) -> Draft:
    """Two rows of 2 and 1 tokens, V = 4; sampler = softmax((z_sync + offset)/T); z <- z - 0.5 grad.

    Tokens and advantages of every step are given.
    """
    n = Numbers(1200)
    z = n.uniform(-1, 1, 2, 2, 4)
    offset = n.uniform(-0.5, 0.5, 2, 2, 4)
    ids = np.argsort(-(z + offset), axis=-1, kind="stable")[..., :head].tolist() if head else None
    program: dict[str, Any] = {
        "steps": 10,
        "learning_rate": 0.5,
        "resync_every": resync,
        "offset": offset.tolist(),
        "tokens": [[[n.below(4) for _ in range(2)] for _ in range(2)] for _ in range(10)],
        "advantages": n.uniform(-1, 1, 10, 2, 2, step=0.25).tolist(),
        "head_ids": ids,
    }
    inputs = first_step({"logits": z.tolist(), "mask": ragged([2, 1])}, program, settings.get("temperature", 1.0))
    return envelope("objective", inputs, settings, trace=program)
