"""Contract settings as the options that TRL and ms-swift share in their GRPO losses, and the stand-ins that their
methods need.

Both losses are methods of a trainer. They are called with a plain object in its place that holds the options and
returns the given log-probs [B, T] as the model's.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from ...wire import evaluate_case
from .tools import need

LOSS_TYPES = {
    "token-mean": "dapo",
    "token-sum": "dapo",
    "seq-mean-token-mean": "grpo",
    "seq-mean-token-sum-norm": "dr_grpo",
    "seq-mean-token-sum": "luspo",
}
OWN = "old log-probs are the trainer's own and always in the loss: no p/q surrogate, REINFORCE at p = o only"
ALL_ROWS = "row means are over all rows of the batch, empty ones included"


def accelerator() -> SimpleNamespace:
    """One process: gathering and reducing are the identity."""
    return SimpleNamespace(
        num_processes=1,
        sync_gradients=True,
        gather=lambda x: x,
        gather_for_metrics=lambda x: x,
        reduce=lambda x, reduction: x,
        device="cpu",
    )


def trainer(options: dict[str, Any]) -> SimpleNamespace:
    """The stand-in for `self`: options, one process, no accumulation, a dictionary for metrics."""
    return SimpleNamespace(
        **{
            "accelerator": accelerator(),
            "current_gradient_accumulation_steps": 1,
            "model": SimpleNamespace(training=True),
            "_metrics": defaultdict(lambda: defaultdict(list)),
            **options,
        }
    )


def surrogate(rule: dict[str, Any]) -> dict[str, Any]:
    """epsilon_low, epsilon_high, delta, importance_sampling_level of a surrogate.

    For cispo epsilon_high is the cap itself, so an offset e is given as 1 + e.
    """
    kind, low, high = rule["kind"], rule.get("eps_low"), rule.get("eps_high")
    level = "sequence" if kind == "gspo" else "token"
    if kind == "cispo":
        need(low is None or low >= 1.0, "cispo has no lower bound")
        low, high = 0.0, float("inf") if high is None else 1.0 + high
    if kind == "reinforce":
        low, high = 0.2, 0.2  # the ratio is exactly 1, no bound acts
    return {
        "epsilon_low": low,
        "epsilon_high": high,
        "delta": rule.get("dual"),
        "importance_sampling_level": level,
    }


def loss_type(surrogate_rule: dict[str, Any], aggregation: dict[str, Any], known: tuple[str, ...]) -> str:
    """The loss_type that has this surrogate and reduction."""
    kind = aggregation["kind"]
    if surrogate_rule["kind"] == "cispo":
        need(kind in ("token-mean", "token-sum"), "loss_type 'cispo' is a token mean")
        return "cispo"
    name = LOSS_TYPES[kind]
    need(name in known, f"no loss_type with the reduction {kind}")
    need(kind != "token-sum" or aggregation.get("slope", False), "no loss_type that is a plain sum")
    return name


def items(aggregation: dict[str, Any], mask: Any) -> Any:
    """num_items_in_batch: the token count that the trainer passes in for a token mean; 1 where a sum is asked for."""
    import torch

    kind = aggregation["kind"]
    count = 1 if kind == "token-sum" else aggregation.get("tokens") or int(mask.sum())
    return torch.tensor(float(count))


def all_rows(definition: dict[str, Any], rows: int) -> dict[str, Any]:
    """The definition with row means over all rows of the batch."""
    aggregation = definition["aggregation"]
    if not aggregation["kind"].startswith("seq-mean"):
        return definition
    need(aggregation["sequences"] in (None, rows), "row means divide by the rows of the batch, not by a given count")
    return {**definition, "aggregation": {**aggregation, "sequences": rows}}


def one_advantage(rule: dict[str, Any], advantages: Any, mask: Any) -> None:
    """A sequence-level ratio is one factor per row, with one advantage."""
    if rule["kind"] != "gspo" or advantages is None:
        return
    for row, keep in zip(advantages.tolist(), mask.tolist(), strict=True):
        need(
            len({a for a, m in zip(row, keep, strict=True) if m}) <= 1,
            "a sequence-level ratio takes one advantage per row",
        )


def over_rows(rule: dict[str, Any], n: Any, q: Any, mask: Any) -> dict[str, float]:
    """Mean, minimum and maximum over all rows [B] of a sequence weight in float64; an empty row's product is 1."""
    plain = {**rule, "normalise": None}
    ratios = [
        sum(a - b for a, b, m in zip(x, y, keep, strict=True) if m)
        for x, y, keep in zip(n.tolist(), q.tolist(), mask.tolist(), strict=True)
    ]
    rows = len(ratios)  # log-probs are at most 0, so the row's log-ratio is laid below 0
    inputs = {"logp_trainer": [[r - 800.0] for r in ratios], "logp_sampler": [[-800.0]] * rows, "mask": [[1]] * rows}
    found = evaluate_case({"function": "weight", "inputs": inputs, "parameters": {**plain, "numerator": None}})[
        "weights"
    ]
    w = [row[0] for row in found]
    return {"mean": sum(w) / len(w), "min": min(w), "max": max(w)}


def drop_rule(rules: list[dict[str, Any]], anchor: Any = None) -> float | None:
    """The off-policy sequence mask as a threshold: rows with A < 0 whose mean log q - log p exceeds it."""
    if not rules:
        return None
    rule = rules[0]
    need(
        len(rules) == 1 and rule["statistic"] == "k1" and rule["reduce"] == "mean" and rule["sign"] == "negative",
        "the only rejection is the off-policy sequence mask: mean k1 of rows with A < 0",
    )
    need(
        anchor is None or rule["numerator"] == "trainer",
        "the sequence mask compares the current policy with the sampler",
    )
    need(
        rule["low"] is None and rule["high"] is not None and rule["closed"], "the sequence mask has an upper bound only"
    )
    need(rule["log_clamp"] is None, "the sequence mask clamps no log-ratio")
    return rule["high"]
