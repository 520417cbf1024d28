"""Small builders shared by the tests: one-token cases, fixture F, random padded inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

TIS = {"level": "token", "high": 2.0, "outside": "clip"}
MIS = {"level": "token", "low": 0.5, "high": 5.0, "outside": "zero"}


def one_token(logits, q, y: int, advantage: float, head=None, definition=None, **inputs) -> dict[str, Any]:
    """A case of one row and one token; q are sampler probabilities over the vocabulary."""
    logq = np.log(np.asarray(q, dtype=np.float64))
    data = {
        "logits": [[list(map(float, logits))]],
        "tokens": [[y]],
        "mask": [[1]],
        "advantages": [[advantage]],
        "logp_sampler": [[float(logq[y])]],
        **inputs,
    }
    if head is not None:
        data["head_ids"] = [[list(head)]]
        data["head_logp_sampler"] = [[[float(logq[i]) for i in head]]]
    return {"inputs": data, "definition": definition or {}}


def log_softmax(z: np.ndarray) -> np.ndarray:
    """Plain log-softmax, independent of the package."""
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def random_inputs(
    rng: np.random.Generator, b: int, t: int, v: int, k: int, *, anchor: bool = False, scale: float = 1.0
) -> dict:
    """Padded float64 arrays with a ragged mask: a row of length 0 where b > 2, full rows otherwise ragged."""
    z = rng.normal(size=(b, t, v)) * scale
    q = log_softmax(z + 0.4 * rng.normal(size=z.shape))
    lengths = rng.integers(1, t + 1, size=b)
    lengths[0] = t
    if b > 2:
        lengths[1] = 0
    mask = (np.arange(t) < lengths[:, None]).astype(np.int64)
    tokens = (q + rng.gumbel(size=q.shape)).argmax(-1)
    ids = np.argsort(-q, axis=-1)[..., :k]
    out = {
        "logits": z,
        "tokens": tokens,
        "mask": mask,
        "advantages": rng.normal(size=(b, t)),
        "logp_sampler": np.take_along_axis(q, tokens[..., None], -1)[..., 0],
        "head_ids": ids,
        "head_logp_sampler": np.take_along_axis(q, ids, -1),
        "logp_sampler_full": q,
    }
    if anchor:
        o = log_softmax(z + 0.2 * rng.normal(size=z.shape))
        out["logp_anchor"] = np.take_along_axis(o, tokens[..., None], -1)[..., 0]
        out["head_logp_anchor"] = np.take_along_axis(o, ids, -1)
        out["logp_anchor_full"] = o
    return out


# Fixture F of the cross-framework comparison: three rows of width 4, the last fully masked. Ratios rho = p/q.
F_MASK = np.array([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]])
F_LOGQ = np.array([[-1.0, -2.0, -0.5, -9.0], [-0.3, -1.2, -9.0, -9.0], [-3.0, -9.0, -9.0, -9.0]])
F_RHO = np.array([[3.0, 0.25, 1.5, 1.0], [1.1, 0.9, 1.0, 1.0], [9.0, np.exp(0.3), np.exp(-0.7), np.exp(0.2)]])


def fixture_f(advantage: float = 1.0) -> dict[str, np.ndarray]:
    """Fixture F as objective inputs with a three-token vocabulary.

    The fixture fixes log-probs: token 0 is sampled, its trainer log-prob is log q + log rho. Where that exceeds 0 (row 0,
    q = e^-1 and rho = 3 give p = 1.10) no softmax has it, so the fixture's log-probs enter as the *anchor* with p = o:
    the ratio p/o is 1 and every weight has the anchor in its numerator, as in the frameworks' runs. A common shift of both
    log-probs by -2 nats makes them legal and leaves every ratio, weight and gradient in log p as it was.
    """
    shift = -2.0
    logq = F_LOGQ + shift
    logp = logq + np.log(F_RHO)
    logits = np.stack([logp, np.log1p(-np.exp(logp)) - np.log(2), np.log1p(-np.exp(logp)) - np.log(2)], axis=-1)
    return {
        "logits": logits,
        "tokens": np.zeros((3, 4), dtype=np.int64),
        "mask": F_MASK,
        "advantages": np.full((3, 4), advantage),
        "logp_sampler": logq,
        "logp_anchor": logp,
    }
