"""The definition half of `random_case`: a definition drawn for a set of chosen options, or None when they clash."""

from __future__ import annotations


def bounds(rng, statistic):
    """{"low", "high"} around 1 for a ratio, around 0 for a total-variation statistic; either end may be missing."""
    high = float(rng.uniform(0.02, 0.3)) if statistic != "ratio" else float(rng.uniform(1.05, 3.0))
    low = 0.0 if statistic == "tv" else -float(rng.uniform(0.02, 0.3))
    if statistic == "ratio":
        low = float(rng.choice([0.0, rng.uniform(0.3, 0.95)]))
    if rng.random() < 0.1:
        high = None
    return {"low": low, "high": high}


def random_weight(rng, o):
    level = o["weight"]
    statistic = o["statistic"] if level == "token" else "ratio"
    weight = {"level": level, "inside": str(rng.choice(["ratio", "ratio", "one"]))}
    if statistic != "ratio":
        weight["statistic"] = statistic
    if statistic != "ratio" or rng.random() < 0.8:
        weight |= bounds(rng, statistic)
        weight["outside"] = "zero" if statistic != "ratio" else str(rng.choice(["clip", "zero"]))
        # |p - q| = 0 on-policy sits on a low end of 0, where an open band and rounding would decide
        weight["closed"] = statistic == "tv" or bool(rng.random() < 0.7)
        for side in ("positive", "negative"):
            if rng.random() < 0.2:
                weight[side] = bounds(rng, statistic)
    if o["log_clamp"] is not None:
        weight["log_clamp"] = o["log_clamp"]
        weight["clamp_order"] = str(rng.choice(["aggregate", "token"]))
    if o["normalise"] is not None:
        weight["normalise"] = o["normalise"]
    if o["sign"] != "both":
        weight["sign"] = o["sign"]
    if o["anchor"] and rng.random() < 0.4:
        weight["numerator"] = str(rng.choice(["anchor", "trainer"]))
    return weight


def random_gate(rng, o):
    gate = {"level": o["gate"], "low": float(rng.uniform(0.3, 0.9)), "high": float(rng.uniform(1.1, 3.0))}
    gate["closed"] = bool(rng.random() < 0.7)
    if rng.random() < 0.2:
        gate["high"] = None
    if o["sign"] != "both":
        gate["sign"] = str(rng.choice([o["sign"], "both"]))
    if o["anchor"] and rng.random() < 0.4:
        gate["numerator"] = str(rng.choice(["anchor", "trainer"]))
    return gate


def random_rejection(rng, o):
    statistic = str(rng.choice(["ratio", "k1", "k2", "k3", "tv", "binary_kl"]))
    rule = {"statistic": statistic, "reduce": str(rng.choice(["token", "sum", "mean", "max"]))}
    u = float(rng.uniform(0.1, 1.0))
    if statistic == "ratio":
        rule |= {"low": 1 / (1 + u), "high": 1 + 2 * u}
    elif statistic == "k1":
        rule |= {"low": -u, "high": 1.5 * u}
    else:
        rule["high"] = u * {"k2": 0.5, "k3": 0.5, "tv": 0.3, "binary_kl": 0.3}[statistic]
    if statistic in ("ratio", "k1", "k2", "k3") and o["log_clamp"] is not None:
        rule["log_clamp"] = o["log_clamp"]
    rule["closed"] = bool(rng.random() < 0.7)
    rule["sign"] = o["sign"]
    rule["denominator"] = str(rng.choice(["kept", "shrunk"]))
    if o["anchor"] and rng.random() < 0.4:
        rule["numerator"] = str(rng.choice(["anchor", "trainer"]))
    return rule


def random_surrogate(rng, kind):
    if kind == "ppo_clip":
        dual = None if rng.random() < 0.5 else float(rng.uniform(1.1, 3.0))
        eps_low, eps_high = (float(x) for x in rng.uniform(0.05, 0.5, 2))
        return {"kind": kind, "eps_low": eps_low, "eps_high": eps_high, "dual": dual}
    if kind == "cispo":
        low, high = (None if rng.random() < 0.4 else float(rng.uniform(0.05, 0.5)) for _ in range(2))
        return {"kind": kind, "eps_low": low, "eps_high": high}
    if kind == "gspo" and rng.random() < 0.8:
        eps_low, eps_high = (float(x) for x in rng.uniform(0.01, 0.3, 2))
        return {"kind": kind, "eps_low": eps_low, "eps_high": eps_high}
    return {"kind": kind}


def random_aggregation(rng, o):
    rule = {"kind": o["aggregation"]}
    if rule["kind"] == "seq-mean-token-sum-norm":
        rule["length"] = float(rng.integers(1, 9))
    if o["explicit"] and rule["kind"] == "token-mean":
        rule["tokens"] = int(rng.integers(1, 20))
    elif o["explicit"] and rule["kind"] != "token-sum":
        rule["sequences"] = int(rng.integers(1, 9))
    return rule


def random_definition(rng, o):
    """A definition for the chosen options `o`, or None when the options make no sense together."""
    kind, tail = o["surrogate"], o["centering"]
    if tail is not None and kind == "gspo":
        return None
    modelled = tail not in (None, "exact", "support")
    if o["weight"] == "token" and o["statistic"] != "ratio" and modelled:
        return None
    squares = o["weight"] is not None and kind != "reinforce" and not o["anchor"]
    if squares and (not o["double_ratio"] or o["zero_sampler"]):
        return None
    definition = {"temperature": o["temperature"], "surrogate": random_surrogate(rng, kind)}
    definition["aggregation"] = random_aggregation(rng, o)
    if o["weight"] is not None:
        definition["weight"] = random_weight(rng, o)
    if squares:
        definition["allow_double_ratio"] = True
    if o["gate"] is not None:
        definition["gate"] = random_gate(rng, o)
    if o["rejections"]:
        definition["rejection"] = [random_rejection(rng, o) for _ in range(o["rejections"])]
    if tail is not None:
        definition["centering"] = {"tail": tail}
        for side in ("floor_sampler", "floor_trainer"):
            if o[side] != 1e-6:
                definition["centering"][side] = o[side]
    if o["kl"] is not None:
        definition["kl"] = {
            "kind": o["kl"],
            "beta": float(rng.uniform(0.01, 0.5)),
            "weighted": bool(rng.random() < 0.4),
        }
    if o["entropy"]:
        definition["entropy"] = {"coef": float(rng.uniform(-0.1, 0.1))}
    return definition
