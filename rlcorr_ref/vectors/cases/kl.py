"""KL terms to a reference policy and the entropy bonus: value, gradient, weighting."""

from __future__ import annotations

from typing import Any

from ..registry import Draft, Family, envelope, row
from .common import TIS, fp32, policy

FAMILY = Family(
    "kl", "KL terms and entropy in the loss", "09#kl-in-the-loss", ["J. Schulman, Approximating KL divergence (2020)"]
)

KINDS: dict[int, dict[str, Any]] = {
    1: row(
        "k1", "k1 in the loss", "Slope 1 on log p whatever the reference: no KL gradient in expectation.", kind="k1"
    ),
    2: row("k2", "k2 in the loss", "Value x^2/2, slope -x.", kind="k2"),
    3: row("k3", "k3 in the loss", "Value exp(x) - 1 - x with x = log ref - log p, slope 1 - exp(x).", kind="k3"),
    4: row(
        "k3-straight-through",
        "k3+ : value of k3, gradient of k2",
        "Differentiating the value gives k3's gradient and fails.",
        kind="k3+",
    ),
}


@FAMILY.cases(KINDS, flags=["KLGradient", "K3Formula", "KLSign"])
def _(kind: str) -> Draft:
    """REINFORCE + beta KL, beta = 0.25; the KL term is added, not subtracted."""
    x = policy(601, [3, 2], 4, head=False, reference=True)
    return envelope("objective", x, {"kl": {"kind": kind, "beta": 0.25}})


@FAMILY.cases(
    {
        5: row("unweighted-under-tis", "KL outside the importance weight", "Everybody but ms-swift.", weighted=False),
        6: row("weighted-under-tis", "KL inside the importance weight", "ms-swift weights beta KL too.",
            weighted=True),
    },
    flags=["KLWeighted"],
)  # fmt: skip
def _(weighted: bool) -> Draft:
    """w L_pg + beta KL against w (L_pg + beta KL), with weights far from 1."""
    x = policy(605, [3, 3], 4, head=False, reference=True, drift=2.0)
    kl = {"kind": "k2", "beta": 0.5, "weighted": weighted}
    other = {"weight": TIS, "kl": {**kl, "weighted": not weighted}}
    return envelope(
        "objective", x, {"weight": TIS, "kl": kl}, dialects={"other-order": (other, "the other side of the weight")}
    )


@FAMILY.case(7, "far-reference", flags=["K3Formula", "KLGradient"])
def _() -> Draft:
    """A reference 4 nats above and 6 below.

    exp(x) - 1 - x is 50.8 and 4.95: without clamps (ms-swift, verl low_var_kl clamp at 10) and on the right side.
    """
    x = policy(607, [2], 3, head=False)
    x |= {
        "logits": [[[0.0, 4.5, 0.0], [3.0, 0.0, -3.0]]],
        "tokens": [[0, 0]],
        "logp_reference": [[-0.5, -6.0]],
        "logp_sampler": [[-2.0, -0.5]],
    }
    return envelope("objective", x, {"kl": {"kind": "k3", "beta": 1.0}})


@FAMILY.case(8, "reference-equals-trainer", flags=["KLGradient"])
def _() -> Draft:
    """Reference equal to the trainer on a uniform row: value and gradient of k2 and k3 vanish.

    log 4 on the float32 grid: k3 without the - 1 gives 1.
    """
    x = policy(608, [1], 4, head=False)
    x |= {"logits": [[[0.0] * 4]], "logp_reference": [[fp32(-1.3862943611198906)]], "logp_sampler": [[-1.5]]}
    return envelope("objective", x, {"kl": {"kind": "k3", "beta": 1.0}}, outputs=("grad_logits",))


@FAMILY.cases(
    {
        9: row("entropy-bonus", "Entropy bonus", "loss - coef H: the wrong sign collapses the policy.", coef=0.125,
            weight=None),
        10: row("entropy-unweighted", "Entropy bonus under TIS", "The bonus is never weighted.", coef=0.125,
            weight=TIS),
        11: row("entropy-penalty", "Negative coefficient", "A penalty on entropy.", coef=-0.25, weight=None),
    },
    flags=["EntropySign"],
)  # fmt: skip
def _(coef: float, weight: dict | None) -> Draft:
    """- coef H(p) per token over the trainer's whole row; gradient coef p (log p + H)/T."""
    return envelope("objective", policy(609, [3, 2], 4, head=False), {"entropy": {"coef": coef}, "weight": weight})


@FAMILY.case(12, "entropy-with-zero-probability", flags=["InfTimesZero", "EntropySign"])
def _() -> Draft:
    """A logit of -Infinity: p log p is 0, its gradient 0.

    z = (1, 0, -inf): H = 0.5822; 0 * -inf is NaN in the value and in the gradient.
    """
    x = policy(612, [1], 3, head=False)
    x |= {"logits": [[[1.0, 0.0, "-Infinity"]]], "tokens": [[1]], "logp_sampler": [[-1.25]]}
    return envelope("objective", x, {"entropy": {"coef": 0.5}}, outputs=("loss", "grad_logits", "grad_logp"))


@FAMILY.case(13, "entropy-temperature", flags=["EntropySign", "Temperature"])
def _() -> Draft:
    """Entropy of softmax(z/T), not of softmax(z).

    T = 0.75; the gradient carries 1/T once.
    """
    return envelope("objective", policy(613, [2, 2], 4, head=False), {"entropy": {"coef": 0.5}, "temperature": 0.75})


@FAMILY.case(14, "kl-entropy-and-centering", flags=["KLWeighted", "EntropySign"])
def _() -> Draft:
    """All terms at once: TIS, rescaled centering, k3 and entropy.

    Terms must not share masks or weights: KL and entropy are unweighted, centering is not.
    """
    x = policy(614, [3, 2], 5, 3, reference=True)
    settings = {"weight": TIS, "centering": {}, "kl": {"kind": "k3", "beta": 0.125}, "entropy": {"coef": 0.0625}}
    return envelope("objective", x, settings)


@FAMILY.case(15, "beta-zero", flags=["KLGradient"])
def _() -> Draft:
    """beta = 0 leaves the policy term alone.

    TRL #6637: the KL branch overwrote the log-ratio when beta was not 0; with 0 everything is plain TIS.
    """
    return envelope(
        "objective",
        policy(601, [3, 2], 4, head=False, reference=True),
        {"weight": TIS, "kl": {"kind": "k3", "beta": 0.0}},
    )
