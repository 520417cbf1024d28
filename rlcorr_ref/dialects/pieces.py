"""Pieces of definitions that several dialects share. Each returns a value of one key of the definition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ContractError
from .records import Draft, Option, refuse

TWO = "two"
THREE = "three"
NO_ANCHOR = "two policies: the ratio's denominator is the sampler itself, so give the batch no logp_anchor"
ALL_ROWS = "rows without a valid token count in the framework's row mean; give @global_rows to count them here"


def ppo(eps_low: float, eps_high: float, dual: float | None = None) -> dict[str, Any]:
    """Clipped surrogate with the band [1 - eps_low, 1 + eps_high] and an optional dual clip."""
    return {"kind": "ppo_clip", "eps_low": eps_low, "eps_high": eps_high, "dual": dual}


def cispo(eps_low: float | None, eps_high: float | None) -> dict[str, Any]:
    """CISPO with offsets from 1; null means no bound on that side."""
    return {"kind": "cispo", "eps_low": eps_low, "eps_high": eps_high}


def absolute_cispo(where: str, cap: float) -> dict[str, Any]:
    """CISPO whose option holds the cap itself. The contract's cap is 1 + eps_high >= 1, so a cap below 1 is refused."""
    if cap < 1.0:
        refuse(
            f"{where}={cap:g} is the cap itself here (not 1 + {cap:g}): every ratio above {cap:g} is cut, and the "
            "contract's cispo "
            f"cap is at least 1; where 1 + {cap:g} was meant, set {where}={1 + cap:g}"
        )
    return cispo(None, cap - 1.0)


def truncate(
    level: str, high: float | None, low: float = 0.0, numerator: str = "anchor", **more: Any
) -> dict[str, Any]:
    """Weight clipped to [low, high] at `level`."""
    bounded = high is not None or low > 0
    return {
        "level": level,
        "low": low,
        "high": high,
        "outside": "clip" if bounded else None,
        "numerator": numerator,
        **more,
    }


def band(level: str, low: float, high: float | None, numerator: str = "anchor", **more: Any) -> dict[str, Any]:
    """Weight that is the ratio inside [low, high] and 0 outside."""
    return {**truncate(level, high, low, numerator, **more), "outside": "zero" if high is not None or low > 0 else None}


def raw(numerator: str = "anchor", **more: Any) -> dict[str, Any]:
    """The unbounded token ratio as the weight."""
    return {"level": "token", "numerator": numerator, **more}


def kl(kind: str, beta: float, weighted: bool = False) -> dict[str, Any] | None:
    """The KL term, or null where its coefficient is 0."""
    return None if beta == 0 else {"kind": kind, "beta": beta, "weighted": weighted}


def entropy(coef: float | None) -> dict[str, Any] | None:
    """The entropy bonus, or null where its coefficient is 0 or absent."""
    return None if not coef else {"coef": coef}


def aggregation(draft: Draft, o: Mapping[str, Any], kind: str, length: float | None = None, **more: Any) -> None:
    """Put the reduction, with the framework's global counts where they are given.

    Raises `ContractError` for a count that this reduction does not divide by.
    """
    rule: dict[str, Any] = {"kind": kind, **more}
    if length is not None:
        rule["length"] = length
    for name, key, used in (
        ("@global_tokens", "tokens", kind == "token-mean"),
        ("@global_rows", "sequences", kind.startswith("seq-mean") and "sequences" not in more),
    ):
        if o[name] is not None:
            if not used:
                raise ContractError(f"{name}: given, but the reduction {kind!r} does not divide by it; leave it out")
            rule[key] = o[name]
    draft.put("aggregation", rule)
    if o["@temperature"] != 1.0:
        draft.put("temperature", o["@temperature"])


def row_ratio(
    draft: Draft, weight: Mapping[str, Any] | None, eps_low: float, eps_high: float, name: str
) -> dict[str, Any]:
    """GSPO as an ordinary derivative of the row ratio: the contract's straight-through form has the same gradient only where
    every factor is constant along the row."""
    if weight is not None and weight["level"] in ("token", "segment"):
        refuse(
            f"{name} differentiates the row ratio itself, which spreads the row's mean factor over its tokens; with "
            "token weights this "
            "is not the straight-through form of the contract"
        )
    draft.note(
        "the row ratio is differentiated as it stands; with factors constant along a row that is the contract's gspo"
    )
    return {"kind": "gspo", "eps_low": eps_low, "eps_high": eps_high}


def keeps_kl(o_has_kl: bool, what: str) -> None:
    """Refuse a mask that removes only the policy term where a KL or entropy term is on."""
    if o_has_kl:
        refuse(
            f"{what} removes a token's policy term and leaves its KL and entropy terms, while a rejection rule of "
            "the contract removes "
            "all of them; set the KL and entropy coefficients to 0 for the policy term's definition"
        )


def bounds(where: str, value: Any) -> tuple[float, float]:
    """A [low, high] pair of finite numbers with low <= high."""
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ContractError(f"{where}: expected two numbers [low, high], got {value!r}")
    for x in value:
        if isinstance(x, bool) or not isinstance(x, (int, float)):
            raise ContractError(f"{where}: expected two numbers [low, high], got {value!r}")
    low, high = float(value[0]), float(value[1])
    if not low <= high:
        raise ContractError(f"{where}: expected low <= high, got {value!r}")
    return low, high


EPS_OPTIONS = "surrogate"


def clip_option(name: str, default: float | None, meaning: str) -> Option:
    """An offset of a clip band; null takes the symmetric or framework default."""
    return Option(name, default, EPS_OPTIONS, meaning, optional=default is None, at_least=0.0)
