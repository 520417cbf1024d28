"""Second witnesses against faults of support, temperature and recorded heads under score centering."""

from __future__ import annotations

from ..registry import Draft, envelope
from .common import MIS, TIS, TWO_SIDED, one_token, policy
from .faults import FAMILY
from .faults_objective import FALLS


@FAMILY.cases(
    {
        37: {
            "slug": "loud-token-off-support",
            "title": "A logit 128 above the support",
            "says": "The maximum is taken over the support: over the row everything underflows float32.",
            "objective": False,
        },
        38: {
            "slug": "loud-token-off-support-gradient",
            "title": "A logit 128 above the support, gradient",
            "says": "Finite, and 0 off the support.",
            "objective": True,
        },
    },
    flags=["SupportMismatch", "LogSoftmaxOverflow"],
)
def _(objective: bool) -> Draft:
    """A top-p sampler that excludes the trainer's most likely token by far."""
    z, support = [128.0, 1.0, 0.0, -0.5], [0, 1, 1, 1]
    if not objective:
        return envelope("log_softmax", {"logits": [[z]], "tokens": [[2]], "support": [[support]]})
    x = {
        "logits": [[z]],
        "tokens": [[2]],
        "mask": [[1]],
        "advantages": [[1.0]],
        "logp_sampler": [[-1.0]],
        "support": [[support]],
    }
    return envelope("objective", x, {"weight": TIS})


@FAMILY.cases(
    {
        39: {
            "slug": "support-is-replayed",
            "title": "A recorded support that is no top-k of the trainer",
            "says": "The trainer's own top two are tokens 0 and 1; adding the sampled one repairs nothing.",
            "support": [[[1, 0, 1, 0]]],
            "rule": TIS,
        },
        40: {
            "slug": "support-tie-at-the-boundary",
            "title": "A tie at the edge of the support",
            "says": "Tokens 1 and 2 are equally likely; the engine kept 2.",
            "support": [[[1, 0, 1, 1]]],
            "rule": TWO_SIDED,
        },
    },
    flags=["SupportMismatch", "KeptMassTopP"],
)
def _(support: list, rule: dict) -> Draft:
    """p is restricted to the ids that were recorded, not to a set derived from p again (prime-rl #2601)."""
    x = {
        "logits": [[[1.0, 0.5, 0.5, -1.0]]],
        "tokens": [[2]],
        "mask": [[1]],
        "advantages": [[1.0]],
        "logp_sampler": [[-1.25]],
    }
    return envelope("objective", x | {"support": support}, {"weight": rule})


@FAMILY.cases(
    {
        41: {
            "slug": "head-at-temperature-half",
            "title": "Head scored at temperature 0.5, MIS",
            "says": "The head's trainer log-probs carry T like the sampled token's.",
            "settings": {"weight": MIS, "temperature": 0.5},
        },
        42: {
            "slug": "head-at-temperature-unweighted",
            "title": "Tail ratio at temperature 1.5",
            "says": "P and rho at T.",
            "settings": {"temperature": 1.5},
        },
    },
    flags=["Temperature", "TailModel"],
)
def _(settings: dict) -> Draft:
    """Rescaled centering at a temperature other than 1: both log-probs and tail come from softmax(z/T)."""
    return envelope("objective", policy(1441, [2, 2], 5, 2), {**settings, "centering": {}})


@FAMILY.cases(
    {
        43: {
            "slug": "ragged-head-short-first",
            "title": "The first token has the shorter head",
            "says": "Its width is not everybody's: the second token's last slot counts.",
            "rule": None,
        },
        44: {
            "slug": "ragged-head-tis",
            "title": "Ragged heads with TIS",
            "says": "N and N + 1 entries in one batch.",
            "rule": TIS,
        },
    },
    flags=["AbsentSlot", "TailModel"],
)
def _(rule: dict | None) -> Draft:
    """Engines return the top N, and the sampled token where it is not among them: N or N + 1 entries (ms-swift #6698)."""
    x = policy(1443, [2, 1], 6, 3)
    x["head_ids"][0][0][2], x["head_logp_sampler"][0][0][2] = -1, "-Infinity"
    return envelope("objective", x, {"weight": rule, "centering": {}})


@FAMILY.case(45, "normaliser-inside-exact", flags=["Normalise", "Composition"])
def _() -> Draft:
    """The batch normaliser divides the coefficients of exact centering too.

    One divisor for the sampled token and for every v; outside only, the expectation does not vanish.
    """
    x = policy(1445, [2, 2], 5, full=True, head=False, drift=1.5)
    return envelope("objective", x, {"weight": {**TIS, "normalise": "rows"}, "centering": {"tail": "exact"}})


@FAMILY.case(46, "rejected-token-loses-exact-centering", flags=["RejectKeepsTerm", "SampledMaskedCenteringAlive"])
def _() -> Draft:
    """A rejected token loses its centering term, whole rows.

    A weight of 0 would leave it alive: rejection and masking are two things.
    """
    x = policy(1446, [3, 2], 4, full=True, head=False, drift=1.5)
    return envelope(
        "objective", x, {"rejection": [{**FALLS, "low": 0.75, "high": 1.25}], "centering": {"tail": "exact"}}
    )


@FAMILY.case(51, "sampled-token-off-the-head", flags=["TailModel", "AbsentSlot"])
def _() -> Draft:
    """The sampled token is not in the head: its log-probs are its own, not 0 and not those of the tail.

    Weight p/q = 1.5 at y = 4, head {0, 1}; looked up in the head it would be absent.
    """
    p, q = (0.375, 0.25, 0.125, 0.0625, 0.1875), (0.3125, 0.375, 0.0625, 0.125, 0.125)
    return envelope("objective", one_token(p, q, 4, 1.0, [0, 1], exact=True), {"weight": TIS, "centering": {}})
