"""Diagnostics as individual frameworks define them, under `name@framework`: same name, different number.

Each entry states its formula; versions are those whose source was read. They use the package's stable primitives, so where a
framework loses digits (float32, an epsilon) the value here is what its definition means.
"""

from __future__ import annotations

import numpy as np

from .contract import WeightRule
from .diagnostics import ess
from .ratios import log_ratio
from .tokens import TokenLogProbs

EPS = 1e-8


def dialect_metrics(tokens: TokenLogProbs, rule: WeightRule | None, w: np.ndarray, batch_rows: int) -> dict[str, float]:
    """Dialect values by `name@framework`; `batch_rows` counts all rows, empty ones included.

    verl 0.9.1 `rollout_corr_helper.py`, ms-swift 4.6 `grpo_trainer.py`, slime `mis.py`, AReaL 1.0.4 `functional.py`, NeMo RL
    `loss_functions.py`, TRL 1.16 `grpo_trainer.py`, open-instruct `grpo_utils`, prime-rl `loss.py`.
    """
    if tokens.count == 0:
        return {}
    rows = tokens.rows
    logn, logq = tokens.numerator(None if rule is None else rule.numerator), tokens.logp_sampler
    d = log_ratio(logn, logq)
    clipped = np.clip(d, -20.0, 20.0)
    empty = batch_rows - rows.count
    with np.errstate(over="ignore", invalid="ignore"):
        k3 = np.expm1(d) - d
        row_n, row_d, row_sum = rows.mean(logn), rows.mean(-d), rows.sum(d)
        out = {
            "kl@areal": float(np.mean(d)),  # p - q: the opposite sign of kl_k1
            "kl_k3@areal": float(np.mean(np.expm1(-d) + d)),  # on the reciprocal ratio
            "kl_k3@ms-swift": float(np.mean(np.clip(np.expm1(clipped) - clipped, -10.0, 10.0))),
            "kl@prime-rl": float(np.mean(d * d)),  # without the 1/2 of k2
            "mismatch_kl@prime-rl": float(np.mean(k3)),
            "reverse_kl@open-instruct": float(np.mean(np.exp(logq) * -d)),
            "logp_difference_mean@trl": float(np.mean(np.abs(d))),
            "token_mult_prob_error@nemo-rl": float(np.mean(np.exp(np.abs(d)))),
            "gen_kl_error@nemo-rl": float(np.mean(k3)),
            "policy_kl_error@nemo-rl": float(np.mean(np.expm1(-d) + d)),
            # rows: verl and ms-swift average over all rows, an empty row counting as log-prob 0
            "training_ppl@verl": float((np.exp(-row_n).sum() + empty) / batch_rows),
            "log_ppl_diff@verl": float(row_d.sum() / batch_rows),
            "ppl_ratio@verl": float((np.exp(row_d).sum() + empty) / batch_rows),
            "chi2_token@slime": float(np.mean(rows.mean(np.expm1(2.0 * d)))),  # per sequence, then averaged
            "chi2_seq@verl": float(np.expm1(2.0 * np.clip(row_sum, -20.0, 20.0)).sum() / batch_rows),
            "chi2_seq@ms-swift": float(np.expm1(2.0 * rows.mean(clipped)).sum() / batch_rows),  # geometric mean
        }
    if rule is not None and rule.high is not None:
        cap = rule.high
        low = rule.low if rule.low else 1.0 / cap
        applied = np.clip(w, 0.0, cap)
        with np.errstate(divide="ignore"):
            out["ess@verl"] = (
                float(1.0 / np.mean((applied / (applied.mean() + EPS)) ** 2)) if applied.any() else float("inf")
            )
        out["ess@ms-swift"] = ess(np.clip(w, 1.0 / cap, cap))  # dropped tokens enter as 1/C (also verl 0.7)
        raw = np.exp(tokens.level(rule.numerator, rule.level))
        out["fraction_high@verl"] = float(np.mean(raw > cap))
        out["fraction_low@verl"] = float(np.mean(raw < low))
        out["oob_ratio@verl"] = float(np.mean((raw > cap) | (raw < low)))
        out["clipped_frac@ms-swift"] = float(np.mean(w == 0.0)) if rule.outside == "zero" else float(np.mean(raw > cap))
        out["clipfrac@slime"] = float(np.mean(w != raw))  # also counts weights raised to a lower bound
    return out
