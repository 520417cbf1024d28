"""Multi-precision values of every function of the wire format: what the published numbers are rounded from.

`witness(draft)` returns nested lists of mpf under the output names. "objective" is `rlcorr_ref.derive.mp_witness`; the stages
of the pipeline reuse its token records with log-probs given instead of computed; aggregation, advantages and number grids are
written out here. Nothing in this module shares code with the float64 reference. Needs the `derive` extra (mpmath).
"""

from __future__ import annotations

from typing import Any

from mpmath import mp, mpf

from ..derive import mp_diagnostics, mp_surrogates, mp_weights
from ..derive.mp_centering import center
from ..derive.mp_defaults import BLOCKS, SURROGATES, fill
from ..derive.mp_inputs import Case, HeadSlot, Token, number
from ..derive.mp_witness import _aggregate as aggregate_coefficients
from ..derive.mp_witness import evaluate as evaluate_objective
from ..errors import ContractError
from .witness_arrays import advantages, log_softmax_rows, quantise

DIGITS = 50
TOKEN_MEAN = {"kind": "token-mean"}


def witness(function: str, inputs: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Outputs of one envelope at 50 digits, as nested lists of mpf (or Fraction-exact mpf for number grids)."""
    with mp.workdps(DIGITS + 15):
        return FUNCTIONS[function](inputs, settings)


def objective(inputs: dict, settings: dict) -> dict:
    """Every output of the objective, through the multi-precision witness of the derivations."""
    return evaluate_objective(inputs, {"aggregation": TOKEN_MEAN, **settings}, dps=DIGITS)


def token_case(inputs: dict) -> Case:
    """Tokens with given log-probs instead of logits: the vocabulary is the sampled token alone."""
    anchors, rows = inputs.get("logp_anchor"), []
    for b, mask in enumerate(inputs["mask"]):
        row = []
        for t, valid in enumerate(mask):
            if not valid:
                continue
            logp = number(inputs["logp_trainer"][b][t])
            advantage = mpf(1) if inputs.get("advantages") is None else number(inputs["advantages"][b][t])
            row.append(
                Token(
                    b=b,
                    t=t,
                    y=0,
                    advantage=advantage,
                    logits=[logp],
                    inside=[True],
                    logp=[logp],
                    p=[mp.exp(logp)],
                    logq=number(inputs["logp_sampler"][b][t]),
                    logo=None if anchors is None else number(anchors[b][t]),
                    logref=None,
                    head=None,
                    q_full=None,
                    o_full=None,
                )
            )
        rows.append(row)
    mask = inputs["mask"]
    return Case(len(mask), len(mask[0]), 1, None, mpf(1), rows, anchors is not None, False)


def _grid(case: Case, values: dict) -> list:
    """[B, T] with `values` keyed by (b, t), 0 elsewhere."""
    return [[values.get((b, t), mpf(0)) for t in range(case.length)] for b in range(case.batch)]


def ratio(inputs: dict, settings: dict) -> dict:
    """Log-ratio and ratio [B, T] at a level, 0 off the mask."""
    case = token_case(inputs)
    numerator = case.numerator(settings.get("numerator"))
    values = {
        (token.b, token.t): mp_weights.level_log_ratio(
            case.rows[token.b],
            token,
            settings.get("level", "token"),
            numerator,
            settings.get("log_clamp"),
            settings.get("clamp_order", "aggregate"),
        )
        for token in case.tokens
    }
    log_ratio = _grid(case, values)
    return {"log_ratio": log_ratio, "ratio": _grid(case, {key: mp.exp(d) for key, d in values.items()})}


def weight(inputs: dict, settings: dict) -> dict:
    """Applied weights [B, T], 0 off the mask, and the batch divisor."""
    case = token_case(inputs)
    given = dict(settings)
    gate = given.pop("gate", None)
    rule = fill("weight", given, BLOCKS["weight"])
    divisor = _weigh(case, rule, gate)
    return {
        "weights": _grid(case, {(t.b, t.t): t.extra["weight"] for t in case.tokens}),
        "divisor": divisor,
    }


def _weigh(case: Case, rule: dict | None, gate: dict | None) -> mpf:
    """Apply weight and gate; return the divisor, taken from the same weights before normalisation."""
    gate = None if gate is None else fill("gate", gate, BLOCKS["gate"])
    if rule is None or rule["normalise"] is None:
        mp_weights.apply_weights(case, rule, gate)
        return mpf(1)
    mp_weights.apply_weights(case, {**rule, "normalise": None}, gate)
    raw = {(t.b, t.t): t.extra["weight"] for t in case.tokens}
    if not any(raw.values()):
        return mpf(1)  # no weight left to normalise
    mp_weights.apply_weights(case, rule, gate)
    token = next(t for t in case.tokens if raw[t.b, t.t] != 0)
    return raw[token.b, token.t] / token.extra["weight"]


def reject(inputs: dict, settings: dict) -> dict:
    """The mask [B, T] after rejection."""
    case = token_case(inputs)
    rules = settings.get("rejection", [settings])
    mp_weights.apply_rejection(case, [fill("rejection", rule, BLOCKS["rejection"]) for rule in rules])
    return {"mask": _grid(case, {(t.b, t.t): mpf(t.kept) for t in case.tokens})}


def surrogate(inputs: dict, settings: dict) -> dict:
    """Value, slope and whether a bound is active, [B, T], 0 off the mask."""
    case = token_case(inputs)
    mp_surrogates.apply_surrogate(case, _surrogate(settings))
    named = {"value": "value", "slope": "slope", "clipped": "clipped"}
    return {name: _grid(case, {(t.b, t.t): mpf(t.extra[key]) for t in case.tokens}) for name, key in named.items()}


def _surrogate(settings: dict) -> dict:
    kind = settings.get("kind", "reinforce")
    return {"kind": kind, **SURROGATES[kind], **settings}


def diagnostics(inputs: dict, settings: dict) -> dict:
    """All diagnostics by name, from log-probs."""
    case = token_case(inputs)
    rule = settings.get("weight")
    rule = None if rule is None else fill("weight", rule, BLOCKS["weight"])
    mp_surrogates.apply_surrogate(case, _surrogate(settings.get("surrogate", {})))
    _weigh(case, rule, settings.get("gate"))
    rejections = [fill("rejection", r, BLOCKS["rejection"]) for r in settings.get("rejection", [])]
    mp_weights.apply_rejection(case, rejections)
    for token in case.tokens:
        token.extra["center"] = None
    out = mp_diagnostics.diagnose(case, {"weight": rule})
    numerator = case.numerator(rule["numerator"] if rule else None)
    rows = [row for row in case.rows if row]
    out["ppl_trainer"] = mp_diagnostics.mean(
        [mp.exp(-mp_diagnostics.mean([t.d(numerator) + t.logq for t in row])) for row in rows]
    )
    out["valid_tokens"], out["valid_rows"] = mpf(len(case.tokens)), mpf(len(rows))
    return out


def head_coefficients(inputs: dict, settings: dict) -> dict:
    """Coefficients, alpha and tail ratio from head log-probs alone; the trainer's tail is one token with 1 - P."""
    anchors, width = inputs.get("head_logp_anchor"), len(inputs["head_logp_sampler"][0][0])
    definition = {
        "surrogate": _surrogate(settings.get("surrogate", {})),
        "weight": None if settings.get("weight") is None else fill("weight", settings["weight"], BLOCKS["weight"]),
        "gate": None if settings.get("gate") is None else fill("gate", settings["gate"], BLOCKS["gate"]),
        "centering": fill("centering", settings.get("centering", {}), BLOCKS["centering"]),
    }
    names = ("coefficients", "alpha", "tail_ratio", "head_mass_sampler", "head_mass_trainer")
    out: dict[str, list] = {name: [] for name in names}
    for b, mask in enumerate(inputs["mask"]):
        for name in names:
            out[name].append([])
        for t, valid in enumerate(mask):
            if not valid:
                out["coefficients"][b].append([mpf(0)] * width)
                for name in names[1:]:
                    out[name][b].append(mpf(0))
                continue
            logp = [number(x) for x in inputs["head_logp_trainer"][b][t]]
            p = [mp.exp(x) for x in logp]
            slots = [
                HeadSlot(k, k, mp.exp(number(q)), None if anchors is None else mp.exp(number(anchors[b][t][k])))
                for k, q in enumerate(inputs["head_logp_sampler"][b][t])
            ]
            rest = max(1 - mp.fsum(p), mpf(0))
            advantage = mpf(1) if inputs.get("advantages") is None else number(inputs["advantages"][b][t])
            token = Token(
                b, t, 0, advantage, [], [True] * (width + 1), [*logp, mp.log(rest)], [*p, rest],
                mpf(0), None if anchors is None else mpf(0), None, slots, None, None,
            )  # fmt: skip
            token.extra["divisor"] = mpf(1)
            case = Case(1, 1, width + 1, width, mpf(1), [[token]], anchors is not None, False)
            term = center(case, definition, token)
            modelled = definition["centering"]["tail"] == "rescaled"
            out["coefficients"][b].append(term.head)
            out["alpha"][b].append(term.alpha)
            out["tail_ratio"][b].append(term.tail_ratio if modelled else mpf(0))
            out["head_mass_sampler"][b].append(term.head_mass_sampler)
            out["head_mass_trainer"][b].append(mp.fsum(p))
    return out


def aggregate(inputs: dict, settings: dict) -> dict:
    """The reduced value and the coefficient of each token [B, T]."""
    zeros = [[0.0] * len(row) for row in inputs["mask"]]
    case = token_case({"mask": inputs["mask"], "logp_trainer": zeros, "logp_sampler": zeros})
    aggregate_coefficients(case, fill("aggregation", {"kind": "token-mean", **settings}, BLOCKS["aggregation"]), False)
    coefficients = {(t.b, t.t): t.extra["coefficient"] for t in case.tokens}
    total = mp.fsum(c * number(inputs["values"][b][t]) for (b, t), c in coefficients.items())
    return {"value": total, "coefficients": _grid(case, coefficients)}


def shard(inputs: dict, settings: dict) -> dict:
    """Each shard through the objective, with the whole batch's counts (global) or its own (local) as denominators."""
    definition = {"aggregation": TOKEN_MEAN, **(settings.get("definition") or {})}
    rule, mask = definition["aggregation"], inputs["mask"]
    local = settings.get("denominators", "global") == "local"
    if not local:
        rule = dict(rule)
        if rule["kind"] == "token-mean" and rule.get("tokens") is None:
            rule["tokens"] = float(sum(map(sum, mask)))
        elif rule["kind"].startswith("seq-mean") and rule.get("sequences") is None:
            rule["sequences"] = float(sum(any(row) for row in mask))
    losses, gradient = [], [None] * len(mask)
    share = mpf(1) / len(settings["shards"]) if local else mpf(1)
    for rows in settings["shards"]:
        part = {key: [value[b] for b in rows] for key, value in inputs.items()}
        empty = local and not any(map(any, part["mask"]))
        own = {"kind": "token-sum"} if empty else rule
        out = evaluate_objective(part, {**definition, "aggregation": own}, dps=DIGITS)
        losses.append(out["loss"])
        for b, row in zip(rows, out["grad_logits"], strict=True):
            gradient[b] = [[share * g for g in token] for token in row]
    return {"losses": losses, "loss": share * mp.fsum(losses), "grad_logits": gradient}


FUNCTIONS = {
    "objective": objective,
    "log_softmax": log_softmax_rows,
    "ratio": ratio,
    "weight": weight,
    "reject": reject,
    "surrogate": surrogate,
    "head_coefficients": head_coefficients,
    "aggregate": aggregate,
    "advantages": advantages,
    "diagnostics": diagnostics,
    "quantise": quantise,
    "shard": shard,
}


def rounded(value: Any) -> Any:
    """Nested lists of mpf as wire values: nearest doubles, non-finite ones as strings, None kept."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    x = float(value)
    if x != x:
        return "NaN"
    if x in (float("inf"), float("-inf")):
        return "Infinity" if x > 0 else "-Infinity"
    return x + 0.0  # -0 is written 0


def pick(outputs: dict[str, Any], name: str) -> Any:
    """An output by name; "diagnostics.x" reaches into the diagnostics. Raises `ContractError` for an absent one."""
    value: Any = outputs
    for key in name.split("."):
        if not isinstance(value, dict) or key not in value:
            raise ContractError(f"output {name!r}: not among {', '.join(sorted(outputs))}")
        value = value[key]
    return value
