"""verl's metrics under the contract's names.

Source: verl 0.9.1 `rollout_corr_helper.py`: `compute_offpolicy_metrics`, `compute_is_metrics`,
`compute_rollout_rejection_mask`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..protocol import Named
from . import verl_options as options
from .tools import complete, need

OFF_POLICY = {
    "kl_k1": "kl",
    "kl_k3": "k3_kl",
    "ppl_trainer": "training_ppl",
    "ppl_sampler": "rollout_ppl",
    "log_ppl_diff_mean": "log_ppl_diff",
    "log_ppl_diff_abs": "log_ppl_abs_diff",
    "log_ppl_diff_max": "log_ppl_diff_max",
    "log_ppl_diff_min": "log_ppl_diff_min",
    "ppl_ratio": "ppl_ratio",
    "chi2_token": "chi2_token",
    "chi2_sequence": "chi2_seq",
}
WEIGHTS = {
    "weight_mean": "rollout_is_mean",
    "weight_std": "rollout_is_std",
    "weight_min": "rollout_is_min",
    "weight_max": "rollout_is_max",
    "ess": "rollout_is_eff_sample_size",
    "fraction_high": "rollout_is_ratio_fraction_high",
    "fraction_low": "rollout_is_ratio_fraction_low",
}
REJECTED = {
    "fraction_rejected_tokens": "rollout_rs_masked_fraction",
    "fraction_rejected_rows": "rollout_rs_seq_masked_fraction",
}
LOSSES = {"reinforce": "gpg", "ppo_clip": "vanilla", "cispo": "cispo", "gspo": "gspo"}
DIALECT = {
    "ppl_ratio": "ppl_ratio@verl",
    "ppl_trainer": "training_ppl@verl",
    "log_ppl_diff_mean": "log_ppl_diff@verl",
    "chi2_sequence": "chi2_seq@verl",
    "fraction_high": "fraction_high@verl",
    "fraction_low": "fraction_low@verl",
}
ALL_ROWS = (
    "row metrics average over all rows, an empty row as log-ratio 0; sequence extremes are before truncation; "
    "the low fraction counts ratios below 1/C"
)


def metrics(adapter: Any, parameters: dict[str, Any], **inputs: Any) -> Named:
    """All metrics that verl reports for a batch; its documented differences as dialect values."""
    p, mask = adapter.p, inputs["mask"]
    need(not parameters.get("centering"), "no score centering")
    rule, rules, surrogate = (parameters.get(key) for key in ("weight", "rejection", "surrogate"))
    n = options.numerator(rule or {}, inputs["logp_trainer"], inputs.get("logp_anchor"))
    q = inputs["logp_sampler"]
    found = p.helper.compute_offpolicy_metrics(n, q, mask)
    names, values = dict(OFF_POLICY), over_all_rows(n, q, mask)
    if rule is not None:
        rule = complete({"weight": rule})["weight"]
        level, threshold, normalise = options.importance(rule)
        _, more = p.helper.compute_rollout_correction_weights(n - q, mask, level, threshold, normalise)
        found, names = {**found, **more}, {**names, **WEIGHTS}
        if normalise:  # metrics are before batch normalisation, by documentation
            names = {key: name for key, name in names.items() if not key.startswith("weight_")}
        if level == "sequence":
            values |= _sequence_statistics(n, q, mask, rule)
    if rules:
        option, thresholds = options.rejection(complete({"rejection": rules})["rejection"])
        _, more = p.helper.compute_rollout_rejection_mask(n - q, mask, option, thresholds)
        found, names = {**found, **more}, {**names, **REJECTED}
    out = {key: found[name] for key, name in names.items()}
    if surrogate:
        surrogate = complete({"surrogate": surrogate})["surrogate"]
        loss = p.algos.get_policy_loss_fn(LOSSES[surrogate["kind"]])
        config = adapter._config(surrogate, {"kind": "token-mean"})
        old = q if inputs.get("logp_anchor") is None else inputs["logp_anchor"]
        _, more = loss(old, inputs["logp_trainer"], inputs["advantages"], mask, "token-mean", config)
        out["clip_fraction"] = more["actor/pg_clipfrac"] + more["actor/pg_clipfrac_lower"]
    renamed = {key: name for key, name in DIALECT.items() if key in out and key not in values}
    return Named(
        out, ALL_ROWS, renamed=renamed, values={k: v for k, v in values.items() if k in out and k not in renamed}
    )


def over_all_rows(n: Any, q: Any, mask: Any) -> dict[str, float]:
    """Row metrics over all rows in float64, an empty row counting as log-prob 0; k3 and chi-square are token-pooled
    as they are.
    """
    n, q, m = (np.asarray(x, dtype=np.float64) for x in (n, q, mask))
    size = np.maximum(m.sum(-1), 1.0)
    row_n, row_q = (np.where(m > 0, x, 0.0).sum(-1) / size for x in (n, q))
    diff = row_q - row_n
    return {
        "ppl_sampler": float(np.exp(-row_q).mean()),
        "log_ppl_diff_abs": float(np.abs(diff).mean()),
        "log_ppl_diff_max": float(diff.max()),
        "log_ppl_diff_min": float(diff.min()),
    }


def _sequence_statistics(n: Any, q: Any, mask: Any, rule: dict[str, Any]) -> dict[str, float]:
    """Extremes of the row ratios before truncation and fractions over all rows, an empty row having ratio 1."""
    n, q, m = (np.asarray(x, dtype=np.float64) for x in (n, q, mask))
    row = np.where(m > 0, n - q, 0.0).sum(-1)
    return {
        "weight_max": float(np.exp(min(row.max(), options.CLAMP))),
        "weight_min": float(np.exp(row.min())),
        "fraction_high": float(np.mean(np.exp(row) > rule["high"])),
        "fraction_low": float(np.mean(np.exp(row) < (rule["low"] or 1.0 / rule["high"]))),
    }
