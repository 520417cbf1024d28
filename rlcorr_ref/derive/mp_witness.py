"""A 50-digit evaluator of one "objective" case: the slow, dense, literal reading of the definition.

It exists to disagree. It shares no code with the NumPy reference: detached quantities are frozen at full precision, the
loss is an explicit function of the logits (`frozen_loss`), and the gradient applies the softmax derivative
d log p_v / d z_u = (1[u = v] - p_u) / temperature to every vocabulary entry, tail included.
"""

from __future__ import annotations

from mpmath import mp, mpf

from .mp_centering import center, dot_logp, uses_head
from .mp_defaults import complete
from .mp_diagnostics import diagnose
from .mp_inputs import Case, Token, log_softmax, read_case
from .mp_surrogates import apply_surrogate, kl_slope, kl_value, surrogate_value, times
from .mp_weights import apply_rejection, apply_weights

GUARD_DIGITS = 15


def evaluate(inputs: dict, definition: dict | None = None, dps: int = 50) -> dict:
    """loss, loss_dense, grad_logits [B, T, V], grad_logp [B, T], grad_head_logp [B, T, K] or None, grad_logp_full
    [B, T, V] or None, weights, mask, token_loss [B, T] and diagnostics, as nested lists of mpf with `dps` digits.

    `inputs` and `definition` are wire-format dicts; log-probs in nats. Raises ValueError on a key or pair that the
    definition does not allow. Source: the definition of the package; head form arXiv 2609.20807 App. A.
    """
    definition = complete(definition or {}, inputs)
    with mp.workdps(dps + GUARD_DIGITS):
        case = prepare(inputs, definition)
        return _collect(case, definition)


def prepare(inputs: dict, definition: dict) -> Case:
    """Every token's frozen quantities, in its `extra`: weight, whole, slope, value, centering, coefficient."""
    case = read_case(inputs, definition["temperature"])
    apply_surrogate(case, definition["surrogate"])
    apply_weights(case, definition["weight"], definition["gate"])
    apply_rejection(case, definition["rejection"])
    kl = definition["kl"]
    for token in case.tokens:
        extra = token.extra
        extra["center"] = None if definition["centering"] is None else center(case, definition, token)
        extra["kl_scale"] = mpf(0) if kl is None else mpf(kl["beta"]) * (extra["weight"] if kl["weighted"] else 1)
    _aggregate(
        case, definition["aggregation"], any(rule["denominator"] == "shrunk" for rule in definition["rejection"])
    )
    return case


def _aggregate(case: Case, rule: dict, shrunk: bool) -> None:
    """Stores `coefficient`, the factor of each token's loss in the total."""
    counted = [[token for token in row if token.kept or not shrunk] for row in case.rows]
    tokens = sum(len(row) for row in counted) if rule["tokens"] is None else mpf(rule["tokens"])
    rows = sum(1 for row in counted if row) if rule["sequences"] is None else mpf(rule["sequences"])
    explicit = {"token-mean": rule["tokens"], "token-sum": 1}.get(rule["kind"], rule["sequences"])
    if not any(counted) and explicit is None:
        raise ValueError(f"aggregation {rule['kind']!r} has no valid token to divide by; give an explicit denominator")
    for row, members in zip(case.rows, counted, strict=True):
        for token in row:
            coefficient = mpf(0)
            if token.kept:
                coefficient = {
                    "token-mean": lambda n: 1 / mpf(tokens),
                    "token-sum": lambda n: mpf(1),
                    "seq-mean-token-sum": lambda n: 1 / mpf(rows),
                    "seq-mean-token-mean": lambda n: 1 / (mpf(rows) * n),
                    "seq-mean-token-sum-norm": lambda n: 1 / (mpf(rows) * mpf(rule["length"])),
                }[rule["kind"]](len(members))
            token.extra["coefficient"] = coefficient


def entropy(logp: list) -> mpf:
    """H = -sum_v p_v log p_v over the trainer's row, nats."""
    return -mp.fsum(times(mp.exp(value), value) for value in logp)


def token_loss(token: Token, definition: dict, logp: list, *, dense: bool, gradient_form: bool = False) -> mpf:
    """One token's loss at the log-probs `logp` [V] with everything detached frozen.

    `dense` sums centering over the whole vocabulary; otherwise the head only. With `gradient_form` the "k3+" term is
    replaced by the k2 term whose gradient it carries, so that differentiating this function gives the gradient.
    """
    extra = token.extra
    total = times(extra["weight"], surrogate_value(token, logp[token.y]))
    if extra["center"] is not None:
        centering = extra["center"]
        if dense or centering.head is None:
            correction = dot_logp(centering.dense, logp)
        else:
            correction = dot_logp(
                [centering.head[slot.slot] for slot in token.head], [logp[s.token] for s in token.head]
            )
        total += times(token.advantage * extra["whole"], correction)
    if definition["kl"] is not None:
        kind = definition["kl"]["kind"]
        kind = "k2" if gradient_form and kind == "k3+" else kind
        total += times(extra["kl_scale"], kl_value(kind, token.logref, logp[token.y]))
    if definition["entropy"] is not None:
        total -= mpf(definition["entropy"]["coef"]) * entropy(logp)
    return total


def frozen_loss(case: Case, definition: dict, token: Token, logits: list) -> mpf:
    """coef * token loss as a plain function of one token's logits [V]; numerical differentiation gives its gradient."""
    logp = log_softmax(logits, token.inside, case.temperature)
    return token.extra["coefficient"] * token_loss(token, definition, logp, dense=True, gradient_form=True)


def _slopes(token: Token, definition: dict) -> tuple:
    """(slope on log p(y), centering slopes [V], entropy slopes [V]), each times the aggregation coefficient."""
    extra = token.extra
    coefficient = extra["coefficient"]
    own = extra["weight"] * extra["slope"]
    if definition["kl"] is not None:
        own += times(extra["kl_scale"], kl_slope(definition["kl"]["kind"], token.logref, token.logp[token.y]))
    zeros = [mpf(0)] * len(token.p)
    centered, spread = zeros, zeros
    if extra["center"] is not None:
        scale = coefficient * token.advantage * extra["whole"]
        centered = [times(scale, c) for c in extra["center"].dense]
    if definition["entropy"] is not None:
        coef = coefficient * mpf(definition["entropy"]["coef"])
        spread = [coef * (p + times(p, value)) for p, value in zip(token.p, token.logp, strict=True)]
    return coefficient * own, centered, spread


def softmax_gradient(token: Token, slopes: list, temperature: mpf) -> list:
    """d/dz_u of sum_v slopes_v log p_v: sum_v slopes_v (1[u = v] - p_u) / T inside the support, 0 outside; [V]."""
    gradient = []
    for u, p_u in enumerate(token.p):
        terms = [slope * ((1 if u == v else 0) - p_u) for v, slope in enumerate(slopes) if token.inside[v]]
        gradient.append(mp.fsum(terms) / temperature if token.inside[u] else mpf(0))
    return gradient


def _grid(case: Case, width: int | None = None) -> list:
    cell = (lambda: mpf(0)) if width is None else (lambda: [mpf(0)] * width)
    return [[cell() for _ in range(case.length)] for _ in range(case.batch)]


def _collect(case: Case, definition: dict) -> dict:
    centering = definition["centering"]
    head_form = centering is not None and uses_head(centering["tail"], case.sampler_rows)
    wide = definition["entropy"] is not None or (centering is not None and not head_form)
    out = {
        "loss": mpf(0),
        "loss_dense": mpf(0),
        "grad_logits": _grid(case, case.vocabulary),
        "grad_logp": _grid(case),
        "grad_head_logp": _grid(case, case.head_width) if centering is not None and not wide else None,
        "grad_logp_full": _grid(case, case.vocabulary) if wide else None,
        "weights": _grid(case),
        "mask": _grid(case),
        "token_loss": _grid(case),
    }
    for token in case.tokens:
        b, t, extra = token.b, token.t, token.extra
        out["weights"][b][t] = extra["weight"]
        if not token.kept:
            continue
        out["mask"][b][t] = mpf(1)
        loss = token_loss(token, definition, token.logp, dense=False)
        out["token_loss"][b][t] = loss
        out["loss"] += extra["coefficient"] * loss
        out["loss_dense"] += extra["coefficient"] * token_loss(token, definition, token.logp, dense=True)
        own, centered, spread = _slopes(token, definition)
        slopes = [c + s for c, s in zip(centered, spread, strict=True)]
        slopes[token.y] += own
        out["grad_logits"][b][t] = softmax_gradient(token, slopes, case.temperature)
        out["grad_logp"][b][t] = own
        if out["grad_head_logp"] is not None:
            scale = extra["coefficient"] * token.advantage * extra["whole"]
            out["grad_head_logp"][b][t] = [times(scale, c) for c in extra["center"].head]
        if wide:
            out["grad_logp_full"][b][t] = _full(token, head_form, centered, spread)
    out["diagnostics"] = diagnose(case, definition)
    return out


def _full(token: Token, head_form: bool, centered: list, spread: list) -> list:
    """Centering and entropy slopes on all of log p [V]; a head-only centering enters with its head coefficients."""
    if not head_form:
        return [c + s for c, s in zip(centered, spread, strict=True)]
    extra = token.extra
    scale = extra["coefficient"] * token.advantage * extra["whole"]
    full = list(spread)
    for slot in token.head:
        full[slot.token] += times(scale, extra["center"].head[slot.slot])
    return full


def to_float(value):
    """Nested lists and dicts of mpf as the nearest floats; None and strings pass through."""
    if isinstance(value, dict):
        return {key: to_float(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_float(item) for item in value]
    return float(value) if isinstance(value, mpf) else value
