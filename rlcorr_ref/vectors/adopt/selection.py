"""Which cases a test runs: by family or id, entry level, dtype and features; what was left out, and why.

A case runs where it claims the level and the dtype and needs no feature outside the supported ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from ...errors import ContractError, check_choice, check_keys
from .. import store
from ..model import DTYPES, LEVELS
from .xfails import check_xfails, near

if TYPE_CHECKING:
    from .profile import Profile

DTYPE_NAMES = {"float64": "fp64", "double": "fp64", "float32": "fp32", "float": "fp32", "bfloat16": "bf16"}
LEVEL_NAMES = {"logp": "logprobs", "log-probs": "logprobs"}
LIBRARIES = ("numpy", "torch", "lists")
KEYS = ("level", "dtype", "features", "needs", "flag", "arrays", "profile", "xfails")
# What the family of a test already says; a consumer need not list it among its features.
IMPLIED = "function:"


@dataclass(frozen=True)
class Request:
    """One `cases(...)` call, checked: family names or id prefixes, levels (none: the first each case offers), dtypes.

    `features` are supported, `needs` must be present; both are names as in the set, "weight.*" patterns expanded.
    """

    families: tuple[str, ...]
    levels: tuple[str, ...]
    dtypes: tuple[str, ...]
    features: frozenset[str] | None
    needs: frozenset[str]
    flag: str | None
    arrays: str
    profile: Profile | None
    xfails: Mapping[str, str]


@dataclass(frozen=True)
class Selected:
    """One run of a case: where it is entered and in which precision."""

    case: Mapping[str, Any]
    level: str
    dtype: str
    arrays: str
    profile: Profile | None

    @property
    def name(self) -> str:
        """The id of the run, as pytest prints it."""
        return f"{self.case['id']}-{self.level}-{self.dtype}"


@dataclass
class Selection:
    """The runs of a request, and reason -> ids of the cases of its families that do not run."""

    runs: list[Selected] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)


def read_request(families: Iterable[Any], options: Mapping[str, Any]) -> Request:
    """Check the arguments of `cases(...)`. Raises `ContractError` naming the argument, with near names for features."""
    check_keys("rlcorr.cases", options, KEYS)
    families = tuple(families)
    for name in families:
        if not isinstance(name, str):
            raise ContractError(f"rlcorr.cases: expected a family or id as text, got {name!r}")
    dtypes, libraries = [], set()
    for given in _several(options.get("dtype", "fp32")):
        text = str(given)
        if text.startswith("torch."):
            libraries.add("torch")
        text = text.rpartition(".")[2]
        dtypes.append(check_choice("rlcorr.cases: dtype", DTYPE_NAMES.get(text, text), DTYPES))
    levels = tuple(
        check_choice("rlcorr.cases: level", LEVEL_NAMES.get(level, level), LEVELS)
        for level in _several(options.get("level"))
    )
    default = "torch" if libraries else "numpy"
    arrays = check_choice("rlcorr.cases: arrays", options.get("arrays") or default, LIBRARIES)
    if arrays == "numpy" and "bf16" in dtypes:
        raise ContractError(
            "rlcorr.cases: NumPy has no bfloat16; use arrays='torch' (or dtype=torch.bfloat16) or 'lists'"
        )
    flag = options.get("flag")
    if flag is not None and flag not in known_flags():
        raise ContractError(f"rlcorr.cases: flag: unknown name {flag!r}{near(str(flag), known_flags())}")
    features = options.get("features")
    return Request(
        families,
        levels,
        tuple(dict.fromkeys(dtypes)),
        None if features is None else expand("rlcorr.cases: features", _several(features)),
        expand("rlcorr.cases: needs", _several(options.get("needs"))),
        flag,
        arrays,
        _profile(options.get("profile")),
        check_xfails("rlcorr.cases: xfails", options.get("xfails") or {}),
    )


def _profile(content: Any) -> Profile | None:
    from .profile import of_content

    return None if content is None else of_content(content)


def _several(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, (list, tuple, set, frozenset)) else (value,)


def known_features() -> set[str]:
    """Every feature that an active case of the set needs."""
    return {feature for case in store.load() for feature in case["features"]}


def known_flags() -> set[str]:
    """Every flag that an active case of the set carries."""
    return {flag for case in store.load() for flag in case["flags"]}


def expand(where: str, patterns: Iterable[str]) -> frozenset[str]:
    """Feature names from names and "weight.*" patterns. Raises `ContractError` for one that fits no case of the set."""
    known, out = known_features(), set()
    for pattern in patterns:
        found = [name for name in known if fnmatchcase(name, str(pattern))]
        if not found:
            raise ContractError(f"{where}: no case has the feature {pattern!r}{near(str(pattern), known)}")
        out.update(found)
    return frozenset(out)


def family_cases(name: str) -> list[dict[str, Any]]:
    """Active cases of a family, id or id prefix. Raises `ContractError` where there is none."""
    found = store.load(name)
    if not found:
        if len(name.rpartition(".")[2]) == 4:
            case = store.get(name)  # unknown serials raise here
            raise ContractError(
                f"{name}: withdrawn ({case['withdrawn_because']}); superseded by {case['superseded_by']}"
            )
        raise ContractError(f"id: no case begins with {name!r}; ids look like 'grad.0001'")
    return found


def select(request: Request, profile: Profile | None = None) -> Selection:
    """The runs of a request under its own profile or else the given one. A request without families takes the whole set."""
    profile = request.profile or profile
    features, levels, dtypes = request.features, request.levels, request.dtypes
    if profile is not None:
        if profile.features is not None:
            features = profile.features if features is None else features & profile.features
        levels = tuple(n for n in levels or LEVELS if n in profile.levels)
        dtypes = tuple(n for n in dtypes if n in profile.dtypes)
    out = Selection()
    seen = set()
    for family in request.families or (None,):
        for case in store.load() if family is None else family_cases(family):
            if case["id"] in seen:
                continue
            seen.add(case["id"])
            if request.flag not in (None, *case["flags"]) or not request.needs <= set(case["features"]):
                continue
            reason = _refused(case, features, levels, dtypes)
            if reason:
                out.left_out.setdefault(reason, []).append(case["id"])
                continue
            offered = [n for n in levels or LEVELS if n in case["levels"]]
            for level in offered if request.levels else offered[:1]:
                out.runs += [Selected(case, level, n, request.arrays, profile) for n in dtypes if n in case["dtypes"]]
    return out


def _refused(
    case: Mapping[str, Any], features: frozenset[str] | None, levels: tuple[str, ...], dtypes: tuple[str, ...]
) -> str:
    if features is not None:
        lacking = [f for f in case["features"] if f not in features and not f.startswith(IMPLIED)]
        if lacking:
            return f"feature {lacking[0]}"
    if levels and not set(levels) & set(case["levels"]):
        return f"not entered at {' or '.join(levels)}"
    if not set(dtypes) & set(case["dtypes"]):
        return f"does not claim {' or '.join(dtypes) or 'a dtype of the profile'}"
    return ""
