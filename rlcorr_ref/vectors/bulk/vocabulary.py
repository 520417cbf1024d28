"""Bulk cases over a vocabulary of 151,936: log-softmax, TIS, score centering with a head of 128.

Error scales, in units of u: a log-prob errs by E_v = |log p_v| + |lse| + |z_v| + 4 and, through the sum over V terms, by
R = sqrt(V); every term of a gradient errs by its own absolute size times its factors' errors (as in the core set).
"""

from __future__ import annotations

import math

import numpy as np
from mpmath import mp, mpf

from .exact import DIGITS, Counted, nearest
from .grid import LOGITS_PER, SAMPLER_PER, VOCABULARY, Pair, integers, pair, zipf
from .model import BulkCase, Output

SUM_ERROR = math.sqrt(VOCABULARY)
PRODUCT = 8.0  # roundings of a short product, on both of its sides
CAP = 2.0
TIS = {"level": "token", "high": CAP, "outside": "clip"}
HEAD = 128
FLOOR = 1e-6


def logp_errors(z: np.ndarray, logp: np.ndarray, lse: float) -> np.ndarray:
    """E_v [...] for logits z and log-probs [...], in units of u."""
    return np.abs(logp) + abs(lse) + np.abs(z) + 4.0


def log_softmax_case() -> BulkCase:
    """bulk.0001: log p of three rows [1, 3, V], from logits in 1/16."""
    peaked = integers(901, -200, -120, VOCABULARY)
    peaked[77_777] = 240
    flat = integers(902, -1, 1, VOCABULARY)
    rows = np.stack([peaked, flat, zipf(903, 14, 90_001)[0]])
    tokens = np.array([[77_777, 151_935, 0]], dtype=np.int32)
    logp, err = np.empty(rows.shape), np.empty(rows.shape)
    with mp.workdps(DIGITS):
        for i, k in enumerate(rows):
            row = Counted(k, LOGITS_PER)
            lse = mp.log(row.sum(mp.exp))
            logp[i] = row.spread(lambda x, lse=lse: x - lse)
            z = k / LOGITS_PER
            p, size = np.exp(logp[i]), np.abs(z) + abs(float(lse)) + 4.0
            moved = (p * size).sum() + size * (1.0 - 2.0 * p) + 2.0 * SUM_ERROR * (1.0 - p)
            err[i] = logp_errors(z, logp[i], float(lse)) + moved
    take = (np.arange(3), tokens[0])
    return BulkCase(
        "bulk.0001",
        "log-softmax-vocabulary",
        "Log-softmax over 151,936 tokens: peaked, flat and natural rows",
        "One row with all its mass but 4e-5 on one token, one flat to 1/16 nat, one that falls like text does; the last id "
        "of the vocabulary is sampled. A sum accumulated in a narrow dtype, or over a padded or cut vocabulary tile, is off.",
        "log_softmax",
        {},
        "bulk.0001.inputs.safetensors",
        {"logits": (rows[None] / LOGITS_PER).astype(np.float16), "tokens": tokens},
        {"logp": Output(logp[None], err[None]), "logp_token": Output(logp[take][None], err[take][None])},
        ("logp", "logp_token"),
        ("Basic", "LogSoftmaxOverflow", "VocabTile"),
        "02#score-on-logits",
    )


class Token:
    """One token at 50 digits: d = log p(y) - log q(y), weight w = min(exp d, cap), and its errors in units of u."""

    def __init__(self, rows: Pair, y: int, advantage: float) -> None:
        self.rows, self.y, self.advantage = rows, y, mpf(advantage)
        self.logq = mpf(int(rows.sampler[y])) / SAMPLER_PER
        self.logp = mpf(int(rows.logits[y])) / LOGITS_PER - rows.lse
        self.d = self.logp - self.logq
        self.w = min(mp.exp(self.d), mpf(CAP))
        self.z = rows.logits / LOGITS_PER
        self.logp_all = rows.row.spread(lambda x: x - rows.lse)
        self.errors = logp_errors(self.z, self.logp_all, float(rows.lse))
        self.logp_error = float(self.errors[y]) + SUM_ERROR
        truncated = self.d > mp.log(mpf(CAP))
        self.weight_error = 0.0 if truncated else self.logp_error + abs(float(self.logq))
        self.gap = abs(self.d - mp.log(mpf(CAP)))

    def gradient(self, coef: mpf) -> tuple[np.ndarray, np.ndarray]:
        """coef A w (p - e_y) [V] and its error scale."""
        c = coef * self.advantage * self.w
        out = self.rows.row.spread(lambda x: c * mp.exp(x - self.rows.lse))
        out[self.y] = nearest([c * (mp.exp(self.logp) - 1)])[0]
        own = PRODUCT + self.weight_error
        err = abs(float(c)) * np.exp(self.logp_all) * (own + self.errors + SUM_ERROR)
        err[self.y] += abs(float(c)) * own
        return out, err


def chosen(rows: Pair, low: int, high: int) -> int:
    """The first id beyond 100 whose log-ratio, without the normalisers, lies in [low, high]/16 nat."""
    noise = rows.logits - rows.sampler // (SAMPLER_PER // LOGITS_PER)
    centre = int(np.median(noise))
    hit = (noise - centre >= low) & (noise - centre <= high) & (np.arange(VOCABULARY) > 100)
    return int(np.argmax(hit))


def tis_case() -> BulkCase:
    """bulk.0002: loss and gradient of token TIS on [2, 2, V], one token masked."""
    mask = np.array([[1, 1], [1, 0]], dtype=np.uint8)
    advantages = np.array([[1.0, -0.5], [0.75, np.nan]], dtype=np.float32)
    shape = (2, 2, VOCABULARY)
    logits, tokens = np.full(shape, np.nan, dtype=np.float16), np.full((2, 2), -1, dtype=np.int32)
    logq = np.zeros((2, 2))
    logq[1, 1] = np.nan
    grad, grad_err = np.zeros(shape), np.zeros(shape)
    grad_logp, grad_logp_err, weights, weights_err = (np.zeros((2, 2)) for _ in range(4))
    loss, loss_err, gaps, logp_errors_ = mpf(0), 0.0, [], []
    with mp.workdps(DIGITS):
        coef = mpf(1) / 3
        for place, seed, window in (((0, 0), 911, (-6, -2)), ((0, 1), 921, (14, 16)), ((1, 0), 931, (2, 6))):
            rows = pair(seed, 12, 70_001 + 2 * seed)
            token = Token(rows, chosen(rows, *window), float(advantages[place]))
            logits[place], tokens[place], logq[place] = rows.logits / LOGITS_PER, token.y, float(token.logq)
            grad[place], grad_err[place] = token.gradient(coef)
            c = coef * token.advantage * token.w
            weights[place], grad_logp[place] = nearest([token.w, -c])
            weights_err[place] = float(token.w) * (PRODUCT + token.weight_error)
            grad_logp_err[place] = abs(float(c)) * (PRODUCT + token.weight_error)
            loss -= c * token.logp
            loss_err += abs(float(c)) * (abs(float(token.logp)) * (PRODUCT + token.weight_error) + token.logp_error)
            gaps.append(float(token.gap))
            logp_errors_.append(token.logp_error + abs(float(token.logq)))
        total = nearest([loss])[0]
    return BulkCase(
        "bulk.0002",
        "tis-vocabulary",
        "Token TIS over 151,936 tokens",
        "Ratios below and above 1 and one truncated at 2; token mean over three tokens; NaN logits, sampler log-prob and "
        "advantage under the mask, id -1. The gradient is checked on every logit, down to the rarest token.",
        "objective",
        {"weight": TIS},
        "bulk.0002.inputs.safetensors",
        {
            "logits": logits,
            "tokens": tokens,
            "mask": mask,
            "advantages": advantages,
            "logp_sampler": logq.astype(np.float32),
        },
        {
            "loss": Output(np.asarray(total), loss_err),
            "grad_logits": Output(grad, grad_err),
            "grad_logp": Output(grad_logp, grad_logp_err),
            "weights": Output(weights, weights_err),
        },
        ("loss", "grad_logits"),
        ("WeightNotDetached", "PadSentinel", "VocabTile"),
        "03#gradient",
        min(gaps),
        2.0 * 2.0**-24 * max(logp_errors_),
    )


class Centered:
    """Centering of one token, rescaled tail: masses m_v = q_v g(v) = min(p_v, cap q_v) on the head, alpha p_v off it."""

    def __init__(self, token: Token) -> None:
        rows = token.rows
        self.ids = np.argsort(-rows.sampler, kind="stable")[:HEAD]
        q = [mp.exp(mpf(int(rows.sampler[v])) / SAMPLER_PER) for v in self.ids]
        logp = [mpf(int(rows.logits[v])) / LOGITS_PER - rows.lse for v in self.ids]
        p = [mp.exp(x) for x in logp]
        self.tail_q, self.tail_p = 1 - mp.fsum(q), 1 - mp.fsum(p)
        rho = max(self.tail_q, mpf(FLOOR)) / max(self.tail_p, mpf(FLOOR))
        self.alpha = rho * min(1 / rho, mpf(CAP))
        self.mass = [min(b, CAP * a) for a, b in zip(q, p, strict=True)]
        self.coefficient = [m - self.alpha * b for m, b in zip(self.mass, p, strict=True)]
        self.total = mp.fsum(self.mass) + self.alpha * self.tail_p
        self.gap = min([abs(mp.log(b / a / CAP)) for a, b in zip(q, p, strict=True)] + [abs(mp.log(1 / rho / CAP))])
        self.condition = 2.0 * float(1 / self.tail_q + 1 / self.tail_p)
        rest = token.rows.row.sum(lambda x: mp.exp(x - rows.lse) * (x - rows.lse))
        rest -= mp.fsum(a * b for a, b in zip(p, logp, strict=True))
        self.value = mp.fsum(m * b for m, b in zip(self.mass, logp, strict=True)) + self.alpha * rest
        self.p, self.logp = p, logp


def centering_case() -> BulkCase:
    """bulk.0003: token TIS with score centering on [1, 2, V] (arXiv 2609.20807, Eqs. 12 and 14, App. A.3)."""
    shape = (1, 2, VOCABULARY)
    logits, tokens, logq = np.zeros(shape, dtype=np.float16), np.zeros((1, 2), dtype=np.int32), np.zeros((1, 2))
    advantages = np.array([[1.0, -0.75]], dtype=np.float32)
    ids, head_logq = np.zeros((1, 2, HEAD), dtype=np.int32), np.zeros((1, 2, HEAD))
    grad, grad_err = np.zeros(shape), np.zeros(shape)
    grad_logp, grad_logp_err = np.zeros((1, 2)), np.zeros((1, 2))
    grad_head, grad_head_err = np.zeros((1, 2, HEAD)), np.zeros((1, 2, HEAD))
    value, value_err, gaps, sizes = mpf(0), 0.0, [], []
    with mp.workdps(DIGITS):
        coef = mpf(1) / 2
        for t, (seed, slope, shift) in enumerate(((941, 14, 0), (951, 13, 20))):
            rows = pair(seed, slope, 50_001 + 2 * seed, shift)
            y = chosen(rows, -4, 4) if t else int(np.argsort(-rows.sampler, kind="stable")[4])
            token = Token(rows, y, float(advantages[0, t]))
            logits[0, t], tokens[0, t], logq[0, t] = rows.logits / LOGITS_PER, y, float(token.logq)
            part = Centered(token)
            ids[0, t], head_logq[0, t] = part.ids, rows.sampler[part.ids] / SAMPLER_PER
            k = coef * token.advantage
            size, w, own = abs(float(k)), float(token.w), PRODUCT + token.weight_error
            # grad = coef A (m - S p + w p - w e_y), with alpha p in place of m off the head
            tail_factor = k * (part.alpha - part.total + token.w)
            g = rows.row.spread(lambda x, c=tail_factor, lse=rows.lse: c * mp.exp(x - lse))
            exact = [k * (m + (token.w - part.total) * p) for m, p in zip(part.mass, part.p, strict=True)]
            g[part.ids] = nearest(exact)
            on_head = {int(v): x for v, x in zip(part.ids, exact, strict=True)}
            plain = on_head.get(y, tail_factor * mp.exp(token.logp))
            g[y] = nearest([plain - k * token.w])[0]
            grad[0, t] = g
            mass, p = np.array([float(m) for m in part.mass]), np.exp(token.logp_all)
            head_error = token.errors[part.ids] + SUM_ERROR
            largest, alpha = float(head_error.max()), float(part.alpha)
            spread = (float(part.total) + alpha + w) * (PRODUCT + own + token.errors + SUM_ERROR + largest)
            err = p * (spread + alpha * part.condition)
            err[part.ids] += mass * (PRODUCT + head_error)
            err[y] += w * own
            grad_err[0, t] = size * err
            grad_logp[0, t], grad_logp_err[0, t] = nearest([-k * token.w])[0], size * w * own
            grad_head[0, t] = nearest([k * c for c in part.coefficient])
            tail = alpha * p[part.ids] * (PRODUCT + head_error + part.condition)
            grad_head_err[0, t] = size * (mass * (PRODUCT + head_error) + tail)
            value += k * (part.value - token.w * token.logp)
            every = alpha * p
            every[part.ids] = mass
            per_logp = np.abs(token.logp_all) + 1.0
            value_err += size * float((every * per_logp * (PRODUCT + token.errors + SUM_ERROR + part.condition)).sum())
            value_err += size * w * (abs(float(token.logp)) * own + token.logp_error)
            gaps += [float(token.gap), float(part.gap)]
            sizes.append(largest + 16.0 + part.condition)
        total = nearest([value])[0]
    return BulkCase(
        "bulk.0003",
        "centering-vocabulary",
        "Score centering over 151,936 tokens with a head of 128, under token TIS",
        "Rescaled tail, floors 1e-6. At the first token the sampler's tail is as heavy as the trainer's and its ratio is not "
        "truncated; at the second it is less than half and truncated at 2. One sampled id on the head, one off it. A head "
        "renormalised to 1, a dropped tail or a tail spread evenly shows on every logit.",
        "objective",
        {"weight": TIS, "centering": {"tail": "rescaled"}},
        "bulk.0003.inputs.safetensors",
        {
            "logits": logits,
            "tokens": tokens,
            "mask": np.ones((1, 2), dtype=np.uint8),
            "advantages": advantages,
            "logp_sampler": logq.astype(np.float32),
            "head_ids": ids,
            "head_logp_sampler": head_logq.astype(np.float32),
        },
        {
            "loss_dense": Output(np.asarray(total), value_err),
            "grad_logits": Output(grad, grad_err),
            "grad_logp": Output(grad_logp, grad_logp_err),
            "grad_head_logp": Output(grad_head, grad_head_err),
        },
        ("grad_logits",),
        ("CentredScoreMeasure", "TailModel", "Composition", "VocabTile"),
        "06#tails",
        min(gaps),
        2.0 * 2.0**-24 * max(sizes),
    )
