"""Fills a wire definition's defaults and refuses unknown keys and pairs that make no sense."""

from __future__ import annotations

REQUIRED = object()

TOP = {
    "temperature": 1.0,
    "surrogate": {"kind": "reinforce"},
    "weight": None,
    "gate": None,
    "rejection": [],
    "centering": None,
    "kl": None,
    "entropy": None,
    "aggregation": REQUIRED,
    "allow_double_ratio": False,
}
SURROGATES = {
    "reinforce": {},
    "ppo_clip": {"eps_low": 0.2, "eps_high": 0.2, "dual": None},
    "cispo": {"eps_low": None, "eps_high": 0.2},
    "gspo": {"eps_low": 3e-4, "eps_high": 4e-4},
}
BLOCKS = {
    "weight": {
        "level": "token",
        "low": 0.0,
        "high": None,
        "positive": None,
        "negative": None,
        "outside": None,
        "inside": "ratio",
        "sign": "both",
        "statistic": "ratio",
        "numerator": None,
        "log_clamp": None,
        "clamp_order": "aggregate",
        "closed": True,
        "normalise": None,
    },
    "gate": {"level": "token", "low": 0.0, "high": None, "closed": True, "sign": "both", "numerator": None},
    "rejection": {
        "statistic": REQUIRED,
        "reduce": REQUIRED,
        "low": None,
        "high": None,
        "closed": True,
        "sign": "both",
        "log_clamp": None,
        "numerator": None,
        "denominator": "kept",
    },
    "centering": {"tail": "rescaled", "floor_sampler": 1e-6, "floor_trainer": 1e-6},
    "kl": {"kind": REQUIRED, "beta": REQUIRED, "weighted": False},
    "entropy": {"coef": REQUIRED},
    "aggregation": {"kind": REQUIRED, "length": None, "tokens": None, "sequences": None},
}
DENOMINATORS = {"tokens": "token-mean", "sequences": "seq-mean", "length": "seq-mean-token-sum-norm"}
MODELLED_TAILS = ("rescaled", "dropped", "renormalised", "uniform")


def fill(name: str, given: dict, defaults: dict) -> dict:
    """`given` over `defaults`; ValueError on a key that `name` does not have or a required key that is missing."""
    unknown = sorted(set(given) - set(defaults))
    if unknown:
        raise ValueError(f"{name} has unknown key {unknown[0]!r}; known keys are {sorted(defaults)}")
    full = {**defaults, **given}
    missing = [key for key, value in full.items() if value is REQUIRED]
    if missing:
        raise ValueError(f"{name} needs the key {missing[0]!r}; add it")
    return full


def _check_bounds(weight: dict) -> None:
    bands = [weight] + [weight[key] for key in ("positive", "negative") if weight[key] is not None]
    for band in bands[1:]:
        fill("weight positive/negative", band, {"low": 0.0, "high": None})
    plain = weight["statistic"] == "ratio"
    finite = any(band.get("high") is not None or band.get("low") not in (None, 0.0) for band in bands)
    if weight["outside"] not in (None, "clip", "zero"):
        raise ValueError(f"weight outside must be 'clip' or 'zero'; got {weight['outside']!r}")
    if (finite or not plain) and weight["outside"] is None:
        raise ValueError("weight outside is required with a finite bound; give 'clip' or 'zero'")
    if not plain and weight["outside"] != "zero":
        raise ValueError(f"weight statistic {weight['statistic']!r} goes with outside 'zero' only; got 'clip'")
    if not plain and weight["level"] != "token":
        raise ValueError(f"weight statistic {weight['statistic']!r} goes with level 'token'; got {weight['level']!r}")


def complete(definition: dict, inputs: dict) -> dict:
    """The definition with every key present. Raises ValueError naming the offending key or pair of keys."""
    full = fill("definition", definition, {**TOP, "aggregation": definition.get("aggregation", REQUIRED)})
    kind = full["surrogate"].get("kind")
    if kind not in SURROGATES:
        raise ValueError(f"surrogate kind must be one of {sorted(SURROGATES)}; got {kind!r}")
    full["surrogate"] = fill("surrogate", full["surrogate"], {"kind": REQUIRED, **SURROGATES[kind]})
    for name in ("weight", "gate", "centering", "kl", "entropy", "aggregation"):
        if full[name] is not None:
            full[name] = fill(name, full[name], BLOCKS[name])
    full["rejection"] = [fill("rejection", rule, BLOCKS["rejection"]) for rule in full["rejection"]]
    weight, centering = full["weight"], full["centering"]
    if weight is not None:
        _check_bounds(weight)
        squares = kind != "reinforce" and inputs.get("logp_anchor") is None
        if squares and not full["allow_double_ratio"]:
            raise ValueError(f"weight with surrogate {kind!r} and no logp_anchor squares p/q; set allow_double_ratio")
        modelled = centering is not None and centering["tail"] in MODELLED_TAILS
        if weight["statistic"] != "ratio" and modelled:
            raise ValueError(
                f"weight statistic {weight['statistic']!r} with centering tail {centering['tail']!r} has no constant "
                "tail ratio; use tail 'exact' or 'support'"
            )
    if centering is not None and kind == "gspo":
        raise ValueError("centering with surrogate 'gspo' is not defined: its ratio is no function of one token")
    if full["kl"] is not None and inputs.get("logp_reference") is None:
        raise ValueError("kl needs the input logp_reference; give it or set kl to null")
    for key, kinds in DENOMINATORS.items():
        if full["aggregation"][key] is not None and not full["aggregation"]["kind"].startswith(kinds):
            raise ValueError(f"aggregation {full['aggregation']['kind']!r} does not divide by {key!r}; drop that key")
    if full["aggregation"]["kind"] == "seq-mean-token-sum-norm" and full["aggregation"]["length"] is None:
        raise ValueError("aggregation 'seq-mean-token-sum-norm' needs the key 'length'; give a number > 0")
    return full
