"""Mutants of alignment: masks, labels, log-probs and heads that are one position, one row or one token off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .arrays import State, runs
from .edits import EditedInputs, EditedState, earlier, last_valid, later
from .registry import LOG_PROBS, LOGITS, OBJECTIVE, Smallest, mutant
from .smallest import logps

Array = np.ndarray
MASKED = ("ratio", "weight", "reject", "surrogate", "diagnostics", "aggregate", *OBJECTIVE)


def ratio(p: Any, q: Any, mask: Any = None) -> dict:
    return logps("ratio", p, q, mask=mask)


@mutant(
    "mask-one-late", [92, 94], "ms-swift #8196, #8427, verl #3287", "mask", MASKED,
    Smallest(
        ratio([[-1.0] * 4], [[-2.0, -3.0, -4.0, -5.0]], [[0, 1, 1, 0]]), "log_ratio", [[0, 2.0, 3.0, 0]], [[0, 0, 3.0, 4.0]]
    ),
)  # fmt: skip
class MaskOneLate(EditedInputs):
    """The mask is aligned to inputs in place of targets: the first response token drops out, the first pad comes in."""

    def edit(self, x: dict[str, Array]) -> None:
        if "mask" in x:
            x["mask"] = later(x["mask"]) * (np.arange(x["mask"].shape[1]) > 0)


@mutant(
    "trainer-log-probs-one-early", [93], "prime-rl #1525", "semantics", LOG_PROBS,
    Smallest(
        ratio([[-1.0, -2.0, -3.0]], [[-1.0, -2.0, -3.0]]), "log_ratio", [[0.0, 0.0, 0.0]], [[-1.0, -1.0, 0.0]]
    ),
)  # fmt: skip
class TrainerOneEarly(EditedState):
    """The trainer's log-prob of token t + 1 stands at t; sampler, mask and advantages stay."""

    def edit(self, s: State) -> State:
        return replace(s, logp=np.where(s.mask, earlier(s.logp), 0))


@mutant(
    "sampler-offset-by-row", [96], "TRL #6191", "semantics", LOG_PROBS,
    Smallest(
        ratio([[-1.0, -2.0], [-1.0, -2.0]], [[-1.0, -2.0], [-1.0, -2.0]]),
        "log_ratio", [[0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, -1.0]],
    ),
)  # fmt: skip
class SamplerOffsetByRow(EditedInputs):
    """Recorded log-probs start at another column than the rest: row b is off by b positions."""

    def edit(self, x: dict[str, Array]) -> None:
        if "logp_sampler" in x:
            x["logp_sampler"] = np.stack([np.roll(row, b) for b, row in enumerate(x["logp_sampler"])])


@mutant(
    "missing-log-prob-is-zero", [97], "vime #70", "semantics", LOG_PROBS,
    Smallest(
        logps("ratio", [[-1.0, -1.0, -2.0]], [[-1.0, -1.0, -2.0]]), "ratio", [[1.0, 1.0, 1.0]], [[1.0, 1.0, 0.1353]]
    ),
)  # fmt: skip
class MissingIsZero(EditedState):
    """The engine returns one value too few; the last token gets log q = 0, probability one."""

    def edit(self, s: State) -> State:
        return replace(s, logq=np.where(last_valid(s.mask), 0, s.logq).astype(s.logq.dtype))


@mutant(
    "appended-eos-counts", [98], "SkyRL #758, open-instruct #1041", "mask", LOG_PROBS,
    Smallest(
        logps("ratio", [[-1.0, -1.0, -2.0]], [[-1.0, -1.0, -9.0]], mask=[[1, 1, 0]]),
        "ratio", [[1.0, 1.0, 0.0]], [[1.0, 1.0, 0.1353]],
    ),
)  # fmt: skip
class AppendedEosCounts(EditedInputs):
    """The token appended after the last valid one has log q = 0 and mask 1 although nobody sampled it."""

    def edit(self, x: dict[str, Array]) -> None:
        if "mask" not in x or "logp_sampler" not in x:
            return
        mask = x["mask"] != 0
        added = np.zeros_like(mask)
        added[:, 1:] = last_valid(mask)[:, :-1]
        x["mask"] = (mask | added).astype(np.int64)
        x["logp_sampler"] = np.where(added, 0, x["logp_sampler"]).astype(self.dtype)


@mutant(
    "mask-filled-after-eos", [99], "MemGen #33, reasoning-from-scratch #185, compose-rl #31", "mask", MASKED,
    Smallest(
        ratio([[-1.0] * 4], [[-2.0] * 4], [[1, 1, 0, 0]]), "log_ratio", [[1.0, 1.0, 0.0, 0.0]], [[1.0] * 4]
    ),
)  # fmt: skip
class MaskFilled(EditedInputs):
    """mask = ids != pad with an EOS-filled tail: everything from the first valid token on counts."""

    def edit(self, x: dict[str, Array]) -> None:
        if "mask" in x:
            x["mask"] = np.maximum.accumulate(x["mask"], axis=1)


@mutant(
    "mask-not-extended", [124], "slime #1445", "mask", MASKED,
    Smallest(
        ratio([[-1.0] * 3], [[-2.0] * 3], [[1, 0, 1]]), "log_ratio", [[1.0, 0.0, 1.0]], [[1.0, 0.0, 0.0]]
    ),
)  # fmt: skip
class MaskNotExtended(EditedInputs):
    """After a resume the mask keeps its old length: only the first run of valid tokens of a row counts."""

    def edit(self, x: dict[str, Array]) -> None:
        if "mask" not in x:
            return
        mask = x["mask"] != 0
        number = runs(mask)
        first = np.where(mask, number, number.max(initial=0) + 1).min(axis=1, keepdims=True)
        x["mask"] = (mask & (number == first)).astype(np.int64)


@mutant(
    "labels-one-early", [], "", "semantics", LOGITS,
    Smallest(
        {"function": "log_softmax", "inputs": {"logits": [[[1.0, 0.0], [1.0, 0.0]]], "tokens": [[0, 1]]}, "parameters": {}},
        "logp_token", [[-0.3133, -1.3133]], [[-1.3133, -1.3133]],
    ),
)  # fmt: skip
class LabelsOneEarly(EditedInputs):
    """Labels are shifted once too often: the row at t is asked for token t + 1."""

    def edit(self, x: dict[str, Array]) -> None:
        if "tokens" in x:
            x["tokens"] = earlier(x["tokens"])


@mutant(
    "head-one-row-off", [113], "vllm #29216", "semantics", OBJECTIVE,
    Smallest(
        {
            "function": "objective",
            "inputs": {"logits": [[[0.0, 0.0], [0.0, 0.0]]], "tokens": [[0, 0]], "mask": [[1, 1]], "advantages": [[1.0, 1.0]],
                       "logp_sampler": [[-0.6931, -0.6931]], "head_ids": [[[0], [1]]],
                       "head_logp_sampler": [[[-0.6931], [-0.6931]]]},
            "definition": {"centering": {"tail": "dropped"}},
        },
        "grad_logits", [[[-0.125, 0.125], [-0.375, 0.375]]],
        [[[-0.375, 0.375], [-0.125, 0.125]]],
    ),
)  # fmt: skip
class HeadOneRowOff(EditedInputs):
    """Head ids and log-probs of token t + 1 are read at t, because discarded tokens were counted."""

    def edit(self, x: dict[str, Array]) -> None:
        for name in ("head_ids", "head_logp_sampler", "head_logp_anchor"):
            if name in x:
                x[name] = np.roll(x[name], -1, axis=1)


@mutant(
    "head-of-another-sequence", [], "", "semantics", OBJECTIVE,
    Smallest(
        {
            "function": "objective",
            "inputs": {"logits": [[[0.0, 0.0]], [[0.0, 0.0]]], "tokens": [[0], [0]], "mask": [[1], [1]],
                       "advantages": [[1.0], [1.0]], "logp_sampler": [[-0.6931], [-0.6931]], "head_ids": [[[0]], [[1]]],
                       "head_logp_sampler": [[[-0.6931]], [[-0.6931]]]},
            "definition": {"centering": {"tail": "dropped"}},
        },
        "grad_logits", [[[-0.125, 0.125]], [[-0.375, 0.375]]], [[[-0.375, 0.375]], [[-0.125, 0.125]]],
    ),
)  # fmt: skip
class HeadOfAnotherSequence(EditedInputs):
    """Heads are stored per request and come back in another order of rows."""

    def edit(self, x: dict[str, Array]) -> None:
        for name in ("head_ids", "head_logp_sampler", "head_logp_anchor"):
            if name in x:
                x[name] = np.roll(x[name], -1, axis=0)
