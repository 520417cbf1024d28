"""Log-softmax, token log-prob and score: temperature, support, large logits, tiles of the vocabulary."""

from __future__ import annotations

from typing import Any

from ..registry import Draft, Family, envelope, row
from .common import Numbers, policy

FAMILY = Family(
    "logsoftmax",
    "Log-softmax, token log-prob and score on the logits",
    "02#score-on-logits",
    ["Blanchard, Higham & Higham, IMA J. Numer. Anal. 41(4), 2021 (shifted log-softmax)"],
)


@FAMILY.case(1, "three-logits", flags=["Basic", "ScoreSign"])
def _() -> Draft:
    """Log-softmax and score of (2, 1, 0).

    log p = z - lse, score (e_y - p). Smallest plain case; a score with the sign or the indicator wrong fails.
    """
    return envelope("log_softmax", {"logits": [[[2.0, 1.0, 0.0]]], "tokens": [[0]]})


@FAMILY.case(2, "sampled-last-token", flags=["Basic", "ScoreSign"])
def _() -> Draft:
    """The sampled token is the least likely one.

    score = e_y - p with y = V - 1: catches p - e_y, and gathers that are off by one at the end of the row.
    """
    return envelope("log_softmax", {"logits": [[[2.0, 1.0, 0.0, -1.5]]], "tokens": [[3]]})


@FAMILY.cases(
    {
        3: row("temperature-half", "Temperature 1/2 sharpens",
            "log p/T in place of log softmax(z/T) gives -0.8152 where -0.1429 is right.",
            regression=["prime-rl #697 (log p divided by T)", "TRL #4159"], temperature=0.5),
        4: row("temperature-two", "Temperature 2 flattens",
            "Multiplying by T instead of dividing passes at T = 1 only.", temperature=2.0),
        5: row("temperature-odd", "Temperature 0.8125",
            "The gradient carries 1/T as well: a score without it is off by 19 percent.", temperature=0.8125),
    },
    flags=["Temperature"],
)  # fmt: skip
def _(temperature: float) -> Draft:
    """log softmax(z/T) and (e_y - p)/T, the score on the logits before temperature."""
    z = [[[2.0, 1.0, 0.0], [0.5, -1.25, 3.0]]]
    return envelope("log_softmax", {"logits": z, "tokens": [[0, 1]]}, {"temperature": temperature})


@FAMILY.cases(
    {
        6: row("offset-8192", "A common offset of 8192", "exp before the maximum is subtracted overflows.",
            offset=8192.0),
        7: row("offset-minus-8192", "A common offset of -8192",
            "exp before the maximum is subtracted underflows to log 0.", offset=-8192.0),
    },
    flags=["LogSoftmaxOverflow"],
)  # fmt: skip
def _(offset: float) -> Draft:
    """log softmax(z + c) = log softmax(z): the shift by the maximum has to come first."""
    z = [[[offset + 96.0, offset + 64.0, offset, offset - 64.0]]]
    return envelope("log_softmax", {"logits": z, "tokens": [[1]]})


@FAMILY.case(8, "one-hot-row", flags=["LogSoftmaxOverflow", "InfTimesZero"])
def _() -> Draft:
    """A logit of -Infinity is a probability of exactly 0.

    log p is -Infinity there and its score 0; 0 * inf in a naive product turns the row NaN.
    """
    return envelope("log_softmax", {"logits": [[[1.0, 0.0, "-Infinity"]]], "tokens": [[0]]})


@FAMILY.case(9, "one-token-vocabulary", flags=["SingleToken"])
def _() -> Draft:
    """V = 1: log p = 0 and the score is 0.

    A squeeze of the last axis or a log of a rounded sum shows here.
    """
    return envelope("log_softmax", {"logits": [[[3.5], [-2.0]]], "tokens": [[0, 0]]})


@FAMILY.case(10, "two-token-vocabulary", flags=["Basic"])
def _() -> Draft:
    """V = 2: the logistic function.

    log p = -log(1 + exp(-(z_0 - z_1))); every tail of the sigmoid has to keep its digits.
    """
    return envelope("log_softmax", {"logits": [[[8.0, -8.0], [0.25, 0.0], [-12.0, 4.0]]], "tokens": [[1, 0, 0]]})


@FAMILY.case(11, "padding-columns", flags=["VocabTile"])
def _() -> Draft:
    """Logits (3, -15, -15, -15, -15): a vocabulary that no tile divides.

    Columns loaded beyond the vocabulary must count as -inf. With logit 0 each adds 1 to the denominator and log p becomes
    -0.139 where -6e-8 is right; flat logits hide it.
    """
    return envelope("log_softmax", {"logits": [[[3.0, -15.0, -15.0, -15.0, -15.0]]], "tokens": [[0]]})


@FAMILY.cases(
    {
        12: row("support-top-two", "Support of two tokens", "Without it every log-prob lacks log of the kept mass.",
            support=[[[1, 1, 0, 0]]], y=0),
        13: row("support-singleton", "Singleton support",
            "log p = 0 and the score is exactly 0 although p was small on the full vocabulary.",
            support=[[[0, 0, 1, 0]]], y=2),
        14: row("support-excludes-argmax", "Support without the most likely token",
            "The maximum has to be taken over the support; taking it over the whole row underflows.",
            support=[[[0, 1, 1, 1]]], y=3),
    },
    flags=["KeptMassTopP", "SupportMismatch"],
)  # fmt: skip
def _(support: list, y: int) -> Draft:
    """p is restricted to the recorded support S and renormalised; log p = -Infinity and score 0 outside it."""
    return envelope("log_softmax", {"logits": [[[4.0, 2.5, 1.0, -40.0]]], "tokens": [[y]], "support": support})


@FAMILY.cases(
    {
        15: row("batch-rectangular", "Batch with B != T", "B = 2, T = 3.", lengths=[3, 3], v=4),
        16: row("batch-square", "Batch with B = T", "B = T = 3 hides transposes.", lengths=[3, 3, 3], v=4),
        17: row("batch-wide", "A wider vocabulary", "V = 17, no multiple of 4 or 8.", lengths=[2], v=17),
    },
    flags=["Basic", "BroadcastShape"],
)  # fmt: skip
def _(lengths: list, v: int) -> Draft:
    """Log-probs, gathered token log-probs and scores of random rows: shapes and gathers."""
    x = policy(100 + v + len(lengths), lengths, v, 2, spread=3.0)
    return envelope("log_softmax", {"logits": x["logits"], "tokens": x["tokens"]})


@FAMILY.case(18, "peaked-rows", flags=["Basic", "LogSoftmaxOverflow"])
def _() -> Draft:
    """Peaked rows, |log p| near 0.

    1 - p is 1e-6 to 1e-9: log p of the likely token is minus that number, which log(p) cannot hold in float32.
    """
    z = Numbers(18).uniform(-1, 1, 1, 3, 4)
    z[0, 0, 1] += 16.0
    z[0, 1, 2] += 20.0
    z[0, 2, 0] += 14.0
    tokens: Any = [[1, 2, 3]]
    return envelope("log_softmax", {"logits": z.tolist(), "tokens": tokens})
