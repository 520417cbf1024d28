"""The paper's authors: the README reference and the training code, which differ in the sampler's tail floor.

Source: arXiv 2609.20807, github.com/martin-marek/score-centering: README and `losses.py` (`ISCorrection`, `loss_fn_rl`) with
its test.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ContractError
from . import pieces
from .records import Dialect, Draft, Entry, Option, refuse

PPO_DUAL = 3.0  # sign "ppo": negatives are kept up to this ratio


def build_readme(o: Mapping[str, Any]) -> Draft:
    """The README's reference function: both tail masses floored at 1e-6 (Appendix A.3)."""
    draft = _reinforce()
    if o["rule"] == "tis":
        draft.put("weight", pieces.truncate("token", o["cap"], numerator="trainer"))
    elif o["rule"] == "mis":
        if o["low"] > o["high"]:
            raise ContractError(f"authors-readme.low: {o['low']:g} is above high {o['high']:g}")
        draft.put("weight", pieces.band("token", o["low"], o["high"], "trainer"))
    draft.put("centering", {"tail": "rescaled", "floor_sampler": 1e-6, "floor_trainer": 1e-6})
    pieces.aggregation(draft, o, "token-mean")
    return draft


def build(o: Mapping[str, Any]) -> Draft:
    """The training code's grid `ISCorrection(level, stat, low, high, outside, inside, sign)` and `sc`."""
    draft = _reinforce()
    if o["is_correction"]:
        _grid(draft, o)
    if o["sc"]:
        if o["is_correction"] and o["stat"] == "tv":
            raise ContractError("authors.stat: 'tv' does not compose with sc; the training code raises ValueError")
        width = o["sampler.vocab_logprobs"]
        if width is None:
            raise ContractError("authors.sampler.vocab_logprobs: null records no head, and sc needs one")
        if width == "full":
            draft.put("centering", {"tail": "exact"})
        else:
            draft.put("centering", {"tail": "rescaled", "floor_sampler": None, "floor_trainer": 1e-6})
            draft.note("the loss value is the dense one (loss_dense), the README's is the head-only one")
    pieces.aggregation(draft, o, "token-mean")
    return draft


def _reinforce() -> Draft:
    draft = Draft(pieces.TWO)
    draft.note(pieces.NO_ANCHOR)
    draft.put("surrogate", {"kind": "reinforce"})
    return draft


def _grid(draft: Draft, o: Mapping[str, Any]) -> None:
    """One weight rule. A sequence statistic multiplies the whole, otherwise unweighted, centered row."""
    level = {"token": "token", "seq_mean": "geometric", "seq_sum": "sequence"}[o["level"]]
    low, high, sign = o["low"], o["high"], o["sign"]
    if low is not None and high is not None and low > high:
        raise ContractError(f"authors.low: {low:g} is above high {high:g}")
    rule: dict[str, Any] = {"level": level, "inside": o["inside"], "numerator": "trainer", "log_clamp": 20.0}
    outside = "clip" if o["outside"] == "clamp" else "zero"
    if o["stat"] == "tv":
        _tv(draft, o, rule)
        return
    if sign == "ppo":
        if outside == "clip":
            refuse("sign='ppo' with outside='clamp' was not established; the training code uses it with 'drop'")
        if high is None or low is None:
            raise ContractError("authors.low and authors.high: sign 'ppo' needs both")
        draft.put(
            "weight",
            {**rule, "outside": "zero", "positive": {"high": high}, "negative": {"low": low, "high": PPO_DUAL}},
        )
        return
    rule |= {"low": low or 0.0, "high": high}
    if (low or 0.0) > 0 or high is not None:
        rule["outside"] = outside
    draft.put("weight", {**rule, "sign": {"both": "both", "pos": "positive", "neg": "negative"}[sign]})


def _tv(draft: Draft, o: Mapping[str, Any], rule: dict[str, Any]) -> None:
    """The band tests the probability difference of the sampled token; `sign` "ppo" blocks moves away from the sampler."""
    if o["high"] is None or o["low"] is not None or o["outside"] == "clamp":
        raise ContractError("authors.stat: 'tv' takes high alone, with outside 'drop'")
    if rule["level"] != "token":
        if o["sign"] != "both":
            refuse("stat='tv' at a sequence level with a sign rule was not established")
        draft.put("weight", rule)
        draft.put("rejection", [{"statistic": "tv", "reduce": "mean", "high": o["high"], "numerator": "trainer"}])
        draft.note("the row is dropped by its mean |p - q|; the kept rows weigh by the row ratio")
        return
    if o["sign"] == "ppo":
        positive, negative = {"low": None, "high": o["high"]}, {"low": -o["high"], "high": None}
        draft.put(
            "weight",
            {
                **rule,
                "statistic": "tv_signed",
                "outside": "zero",
                "low": None,
                "positive": positive,
                "negative": negative,
            },
        )
        return
    sign = {"both": "both", "pos": "positive", "neg": "negative"}[o["sign"]]
    draft.put("weight", {**rule, "statistic": "tv", "outside": "zero", "high": o["high"], "sign": sign})


README_OPTIONS = (
    Option(
        "rule",
        "none",
        "weight",
        "weight rule",
        "choice",
        {"none": "1", "tis": "min(r, cap)", "mis": "r in the band, else 0"},
    ),
    Option("cap", 2.0, "truncation", "cap of tis", above=0.0),
    Option("low", 0.5, "mask", "lower bound of mis", at_least=0.0),
    Option("high", 5.0, "mask", "upper bound of mis", above=0.0),
)
OPTIONS = (
    Option("sc", False, "centering", "rl.sc", "bool"),
    Option("sampler.vocab_logprobs", 128, "centering", "width of the head, 'full', or null", "text", optional=True),
    Option("is_correction", False, "weight", "an ISCorrection is given", "bool"),
    Option(
        "level",
        "token",
        "weight",
        "level",
        "choice",
        {"token": "token", "seq_mean": "geometric mean", "seq_sum": "product"},
    ),
    Option("stat", "ratio", "mask", "statistic", "choice", {"ratio": "p/q", "tv": "p - q of the sampled token"}),
    Option("low", None, "mask", "lower bound", optional=True, at_least=0.0),
    Option("high", None, "mask", "upper bound", optional=True, at_least=0.0),
    Option("outside", "drop", "mask", "outside the band", "choice", {"drop": "0", "clamp": "nearest bound"}),
    Option("inside", "ratio", "weight", "inside the band", "choice", {"ratio": "r", "one": "1"}),
    Option(
        "sign",
        "both",
        "mask",
        "which advantages the rule acts on",
        "choice",
        {"both": "all", "pos": "A >= 0", "neg": "A < 0", "ppo": "A >= 0 up to high; A < 0 from low to 3"},
    ),
)

README_ENTRIES = tuple(Entry(f"score centering, {rule}", {"rule": rule}) for rule in ("none", "tis", "mis"))
IS = {"is_correction": True}
ENTRIES = (
    Entry("policy gradient", {}),
    Entry("naive importance sampling", IS),
    Entry("TIS 2.0", {**IS, "high": 2.0, "outside": "clamp"}),
    Entry("MIS 0.5 to 5", {**IS, "low": 0.5, "high": 5.0}),
    Entry("IcePop as the authors spell it", {**IS, "low": 0.5, "high": 5.0, "inside": "one"}),
    Entry("PPO band", {**IS, "low": 0.8, "high": 1.2, "sign": "ppo"}),
    Entry("DAPO band", {**IS, "low": 0.8, "high": 1.28, "sign": "ppo"}),
    Entry("GSPO band", {**IS, "level": "seq_mean", "low": 0.9997, "high": 1.0004, "sign": "ppo"}),
    Entry("TOPR", {**IS, "level": "seq_sum", "high": 1.0, "outside": "clamp", "sign": "neg"}),
    Entry("DPPO", {**IS, "stat": "tv", "high": 0.2, "sign": "ppo"}),
    Entry("mean TV of the row", {**IS, "level": "seq_mean", "stat": "tv", "high": 0.2}),
    Entry("score centering", {"sc": True}),
    Entry("score centering, TIS 2.0", {**IS, "sc": True, "high": 2.0, "outside": "clamp"}),
    Entry("score centering, full vocabulary", {"sc": True, "sampler.vocab_logprobs": "full"}),
)

TRAPS = (
    "README: both tail floors 1e-6; training code: the sampler's tail has floor 0, the trainer's 1e-6",
    "'IcePop' has weight 1 in the band here; verl, slime and NeMo RL mean the ratio itself, which is MIS here",
    "the training code's loss value is the dense one, the README's the head-only one: compare gradients",
    "sign 'ppo' keeps negatives up to a ratio of 3 (dual clip)",
    "the sampled token's log-ratio is clamped to +-20, the head's is not",
)

COLUMNS = {
    "sequence": "seq_mean geometric, seq_sum product",
    "truncation": "clamp, either side",
    "mask": "zero weight; ratio or tv; sign-aware",
    "boundary": "inclusive",
    "log_clamp": "20 after aggregation",
    "denominator": "no",
    "kl_weighted": "no KL term",
    "default": "off",
    "floors": "sampler none, trainer 1e-6",
}

DIALECTS = (
    Dialect(
        "authors-readme",
        "score-centering README",
        "September 2026 (arXiv 2609.20807)",
        "2026-11-29",
        ("README.md of martin-marek/score-centering", "arXiv 2609.20807 App. A.2-A.3"),
        README_OPTIONS,
        build_readme,
        README_ENTRIES,
        TRAPS,
        {
            **COLUMNS,
            "sequence": "no sequence level",
            "truncation": "cap (one-sided)",
            "mask": "zero weight, two-sided",
            "log_clamp": "none",
            "floors": "1e-6 both",
        },
    ),
    Dialect(
        "authors",
        "score-centering training code",
        "September 2026 (arXiv 2609.20807)",
        "2026-11-29",
        ("losses.py of martin-marek/score-centering",),
        OPTIONS,
        build,
        ENTRIES,
        TRAPS,
        COLUMNS,
    ),
)
