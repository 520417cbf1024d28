"""Flags: the classes of fault that the cases expose, as a consumer's report prints them.

Each names its bug type, what goes wrong, the effect on training, and public threads or papers where it was seen.
"""

from __future__ import annotations

from ..errors import ContractError
from .model import Note

NOTES: dict[str, Note] = {
    "Basic": Note("BASIC", "the plain definition on plain numbers", "everything else is wrong when this is"),
    "ScoreSign": Note("BASIC", "sign or p/(1 - p) swapped in d log p / d logits", "gradient ascent on the wrong side"),
    "Temperature": Note(
        "DISTRIBUTION_MISMATCH",
        "temperature left out, applied to the log-prob instead of the logits, or missing from the gradient's 1/T",
        "spurious ratios with identical weights; step size wrong by T",
        ["TRL #4159", "prime-rl #697", "NeMo-RL #316"],
    ),
    "KeptMassTopP": Note(
        "DISTRIBUTION_MISMATCH",
        "sampler renormalised over its nucleus, trainer over the full vocabulary",
        "every log-ratio is log of the kept mass; sequence products vanish",
        ["TRL #6789", "TRL #7269"],
    ),
    "VocabTile": Note(
        "PRECISION",
        "padding columns enter the log-sum-exp with logit 0",
        "log-probs wrong where the true denominator is small",
        ["verl #5349"],
    ),
    "LogSoftmaxOverflow": Note(
        "OVERFLOW", "exp taken before the maximum is subtracted", "inf or NaN log-probs at large logits"
    ),
    "RatioDirection": Note(
        "DEFINITION", "q/p or q - p in place of p/q or log p - log q", "truncation acts on the wrong tokens"
    ),
    "RatioWrongPolicy": Note(
        "DEFINITION",
        "the numerator is the current policy where the frozen anchor is meant, or the reverse",
        "the update is counted twice",
        ["slime #179", "TRL #4857"],
    ),
    "SeqProductVsGeomean": Note(
        "DEFINITION",
        "sum and mean of the log-ratios exchanged",
        "weights differ by orders of magnitude at length",
        ["TRL #5814", "NeMo-RL #2269", "AReaL #1088"],
    ),
    "ArithmeticMeanRatio": Note(
        "DEFINITION",
        "mean of the ratios in place of exp of the mean log-ratio",
        "rows kept or dropped wrongly",
        ["AReaL #1088"],
    ),
    "MaskInRowSum": Note(
        "MASKING", "padding enters the row's sum, mean or length", "row ratios depend on padding", ["AReaL #1346"]
    ),
    "SegmentBoundary": Note(
        "DEFINITION",
        "runs of valid tokens are merged across a gap in the mask",
        "tool or prompt spans tie turns together",
    ),
    "BroadcastShape": Note(
        "REDUCTION",
        "[B] against [B, 1] or [B, T] against [T], silent when B = T",
        "values of one row reach another",
        ["ms-swift #6014", "OpenRLHF #1250", "NeMo-RL #3753"],
    ),
    "SafetyClampVisible": Note(
        "DEFINITION", "a +-20 clamp of the log-ratio, present or absent", "huge ratios differ by orders of magnitude"
    ),
    "ClampThenMean": Note(
        "DEFINITION",
        "tokens clamped before the row reduction, or the reduction clamped: different numbers",
        "weights of rows with outliers differ between frameworks",
    ),
    "LowerClip": Note(
        "DEFINITION",
        "two-sided truncation where one-sided is meant, or the reverse",
        "small ratios are raised to the bound",
    ),
    "WrongBound": Note(
        "TRUNCATION_EDGE",
        "offsets taken for bounds (1 + eps against eps), or the sides exchanged",
        "every weight sits at a bound",
        ["SkyRL #1928", "TRL #7120"],
    ),
    "ZeroNotClip": Note(
        "DEFINITION",
        "tokens beyond the bound truncated where they should be masked, or the reverse",
        "bias of another sign",
    ),
    "InsideOneVsRatio": Note(
        "DEFINITION",
        "weight 1 in the band (IcePop of arXiv 2609.20807) against the ratio in the band (IcePop of verl and slime, MIS)",
        "same name, different objective",
    ),
    "SignRule": Note(
        "TRUNCATION_EDGE",
        "the rule for A >= 0 applied to A < 0, to both, or at A = 0 to the wrong side",
        "PPO-like bands clip the wrong direction",
    ),
    "SequenceLeak": Note(
        "REDUCTION",
        "a row-level weight taken per token, or clamp(rho)/rho applied to token ratios",
        "weights unbounded at length",
        ["TRL #7120"],
    ),
    "TvStatistic": Note(
        "DEFINITION", "probability difference replaced by ratio, sign of p - q lost", "DPPO bands keep other tokens"
    ),
    "Normalise": Note(
        "REDUCTION",
        "batch normalisation over the wrong set (rows with empty rows, tokens with padding) or before truncation",
        "scale of every gradient",
    ),
    "GateMultipliesWeight": Note(
        "DEFINITION",
        "a gate replaces the weight instead of multiplying it, or its level is the weight's",
        "weights of kept rows lost",
    ),
    "ThresholdTie": Note(
        "TRUNCATION_EDGE",
        "closed and open ends exchanged: a ratio exactly at the bound",
        "quantised log-probs sit at bounds often",
    ),
    "K3Formula": Note(
        "DEFINITION",
        "k3 on the reciprocal ratio, exponentiated twice, or without - 1",
        "KL reported or penalised on the wrong side",
        ["ms-swift #7145", "rocket-learn #12"],
    ),
    "K2Factor": Note("DEFINITION", "d^2 in place of d^2/2", "thresholds mean something else"),
    "KLGradient": Note(
        "GRADIENT_LEAK",
        "value and gradient of a KL term belong to different estimators",
        "penalty pulls towards another distribution",
        ["verl #2953", "TRL #4638"],
    ),
    "KLWeighted": Note(
        "DEFINITION",
        "the importance weight applied to the KL term, or not",
        "penalty strength varies",
        ["ms-swift #8321"],
    ),
    "KLSign": Note("BASIC", "KL subtracted from the loss", "drift is rewarded", ["verl #179"]),
    "EntropySign": Note("BASIC", "entropy bonus with the wrong sign or gradient", "policy collapses or diverges"),
    "RowVeto": Note(
        "MASKING", "a token rule drops tokens where it should drop the row, or the reverse", "outliers survive"
    ),
    "RejectDenominator": Note(
        "REDUCTION",
        "dropped tokens leave the denominator (shrunk) or stay in it (kept)",
        "gradient scale jumps with the drop rate",
        ["verl #3915", "slime #657"],
    ),
    "RejectKeepsTerm": Note(
        "MASKING", "a dropped token still contributes centering, KL or entropy", "rejected outliers drive the update"
    ),
    "WeightNotDetached": Note(
        "GRADIENT_LEAK",
        "gradient flows through the importance weight: - w A (1 + log p)",
        "sign of the gradient flips for log p < -1",
        ["verl #4105"],
    ),
    "WeightDropped": Note(
        "GRADIENT_LEAK",
        "the weight is accepted but never applied",
        "off-policy data treated as on-policy",
        ["Liger-Kernel #1082"],
    ),
    "ClipNotApplied": Note(
        "TRUNCATION_EDGE",
        "the unclipped branch is reduced, or min and max exchanged",
        "updates unbounded",
        ["rllm #81"],
    ),
    "DualClip": Note(
        "TRUNCATION_EDGE",
        "dual bound applied to A > 0, forgotten, or with the wrong sign",
        "constant objective without gradient, or unbounded loss",
        ["tianshou #433", "slime #2247"],
    ),
    "CispoDetach": Note(
        "GRADIENT_LEAK",
        "CISPO's clipped ratio carries gradient, or clipped tokens lose theirs",
        "clipped tokens stop learning",
        ["TRL #4499"],
    ),
    "GspoRowRatio": Note(
        "DEFINITION",
        "token ratios in place of the row's geometric mean, or its mean clipped per token",
        "band is never or always active",
    ),
    "DoubleRatio": Note("DEFINITION", "p/q multiplied by a surrogate that already holds p/q", "ratio squared"),
    "CentredScoreMeasure": Note(
        "DISTRIBUTION_MISMATCH",
        "expectation of the score under the trainer or a renormalised head instead of the sampler",
        "centering does nothing, or adds drift",
    ),
    "CentredSign": Note("BASIC", "the centering term has the wrong sign or lacks the advantage", "drift doubled"),
    "TailModel": Note(
        "DISTRIBUTION_MISMATCH",
        "tail dropped, renormalised, spread uniformly or rescaled: four different estimators",
        "gradient wrong by the tail mass",
        ["verl #7856", "SkyRL #2244"],
    ),
    "TailRatioDirection": Note(
        "DEFINITION", "trainer over sampler tail mass in place of sampler over trainer", "tail correction inverted"
    ),
    "Composition": Note(
        "DEFINITION",
        "centering of the unweighted score while the sampled token is weighted (alpha without f(1/rho))",
        "expectation not zero under the modelled sampler",
    ),
    "SampledMaskedCenteringAlive": Note(
        "MASKING", "a token whose own weight is 0 loses its centering term too", "the masked estimator drifts"
    ),
    "NoOpOnPolicy": Note(
        "BASIC", "centering changes the gradient although sampler and trainer agree", "noise for nothing"
    ),
    "FloorSide": Note(
        "PRECISION", "tail masses floored on one side only, or not at all", "tail ratio explodes or vanishes"
    ),
    "TailPrecision": Note(
        "PRECISION",
        "head coefficients near -rho p cancel in float32 when the trainer's tail is small",
        "gradient error about 1e-7 rho",
    ),
    "AbsentSlot": Note(
        "MASKING", "id -1 gathers the last vocabulary entry", "probability of an unrelated token", ["vllm #36746"]
    ),
    "InfTimesZero": Note(
        "OVERFLOW",
        "0 * inf or inf - inf where a coefficient is 0 or a probability vanishes",
        "one token turns the batch NaN",
        ["NeMo-RL #4120", "prime-rl #2084"],
    ),
    "ZeroAdvantage": Note(
        "MASKING", "A = 0 does not switch the token off", "0 * inf from an irrelevant token", ["miles #1363"]
    ),
    "SupportMismatch": Note(
        "DISTRIBUTION_MISMATCH",
        "trainer not restricted to the recorded support",
        "log-probs lack the kept mass",
        ["prime-rl #2601"],
    ),
    "ThreePolicies": Note(
        "DEFINITION",
        "anchor and trainer exchanged inside the centering coefficients",
        "ratio counted twice on the head",
    ),
    "AggDenominator": Note(
        "REDUCTION",
        "token mean, row mean, mean of means, padded width: different reductions under one name",
        "rows weighted by length",
        ["verl #593", "verl #931", "verl #3741"],
    ),
    "EmptyRow": Note(
        "REDUCTION",
        "rows without valid tokens counted, or 0/0",
        "scale depends on padding rows",
        ["open-instruct #1685"],
    ),
    "GlobalDenominator": Note(
        "REDUCTION",
        "each micro-batch or rank divides by its own counts",
        "mean of means; depends on the split",
        ["verl #7200", "TRL #5890"],
    ),
    "GroupStd": Note(
        "DEFINITION",
        "ddof, eps inside the root, or batch in place of group",
        "advantage scale",
        ["TRL #3992", "UniRL #330"],
    ),
    "SingletonGroup": Note("OVERFLOW", "standard deviation of one reward", "NaN advantages", ["TRL #4662"]),
    "LeaveOneOut": Note("DEFINITION", "baseline contains the sample itself", "bias of order 1/n"),
    "MetricFromClamped": Note(
        "METRIC_ONLY",
        "diagnostic computed after truncation",
        "fraction above the cap is always 0",
        ["verl #6806", "TRL #5231"],
    ),
    "MetricPooling": Note(
        "METRIC_ONLY", "mean over rows in place of tokens, empty rows or padding counted", "numbers not comparable"
    ),
    "MetricEss": Note(
        "METRIC_ONLY", "ESS of raw, floored or unnormalised weights", "hides collapse of the weights", ["verl #5722"]
    ),
    "MetricKL": Note(
        "METRIC_ONLY",
        "sign or direction of a KL estimate",
        "mismatch reported with the wrong sign",
        ["verl #4070", "OpenRLHF feeb0283"],
    ),
    "MetricChi2": Note("METRIC_ONLY", "chi-square without - 1, or of the geometric ratio", "scale of the mismatch"),
    "QuantGrid": Note(
        "PRECISION",
        "wrong grid: bias, subnormals, saturation or largest value",
        "sampler simulated with another format",
    ),
    "QuantTies": Note("PRECISION", "ties away from zero in place of ties to even", "biased quantiser"),
    "QuantScale": Note(
        "PRECISION", "scale per tensor in place of per row, or largest value off by one", "outliers swallow rows"
    ),
    "PadSentinel": Note(
        "MASKING",
        "NaN, inf, -1e10 or ids out of range under the mask reach the result through x * 0",
        "padding turns the loss NaN",
        ["verl #6349", "SkyRL #1633"],
    ),
    "SingleToken": Note(
        "REDUCTION", "one token: variance, mean and squeeze collapse a dimension", "shape errors or NaN"
    ),
    "OverflowToZero": Note(
        "OVERFLOW",
        "exp overflows before the cap: weight 0, NaN or inf in place of the cap",
        "outliers vanish or explode",
    ),
    "AllTruncated": Note("OVERFLOW", "every weight 0: 0/0 in ESS or normalisation", "training stops on one batch"),
    "OutlierVisible": Note("PRECISION", "log-ratios of hundreds of nats", "NaN where a bound or 0 is right"),
    "TraceAccumulates": Note(
        "REDUCTION", "sign, 1/T or denominator wrong by little: visible only after several steps", "slow drift"
    ),
    "StaleSampler": Note(
        "DISTRIBUTION_MISMATCH", "the sampler is refreshed one step early, late or never", "ratios of the wrong age"
    ),
}


def note(name: str) -> Note:
    """The note of a flag. Raises `ContractError` listing near names."""
    if name not in NOTES:
        raise ContractError(f"flag: unknown name {name!r}; known: {', '.join(sorted(NOTES))}")
    return NOTES[name]
