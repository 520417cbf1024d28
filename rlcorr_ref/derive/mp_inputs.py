"""Reads one objective case in the wire format into exact multi-precision numbers, one record per valid token.

A Python float is an exact binary number, so every input is taken over without rounding. What lies under the mask is
never looked at. Probabilities are kept next to log-probs because mpmath has no underflow: exp(-800) is an ordinary
number there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mpmath import mp, mpf

INPUT_KEYS = frozenset(
    "logits tokens mask advantages logp_sampler logp_anchor head_ids head_logp_sampler head_logp_anchor "
    "logp_sampler_full logp_anchor_full support logp_reference".split()
)


@dataclass
class HeadSlot:
    """One present slot of the sampler's head: `slot` is its index in `head_ids`, `token` the vocabulary id."""

    slot: int
    token: int
    q: mpf
    o: mpf | None


@dataclass
class Token:
    """One valid token. `p` and `logp` [V] are the trainer after temperature and support; `d_*` are in nats."""

    b: int
    t: int
    y: int
    advantage: mpf
    logits: list
    inside: list
    logp: list
    p: list
    logq: mpf
    logo: mpf | None
    logref: mpf | None
    head: list | None
    q_full: list | None
    o_full: list | None
    kept: bool = True
    extra: dict = field(default_factory=dict)

    def d(self, numerator: str) -> mpf:
        """log n(y) - log q(y), nats, with n the anchor or the trainer."""
        return (self.logo if numerator == "anchor" else self.logp[self.y]) - self.logq


@dataclass
class Case:
    """All valid tokens by row, and the sizes. `rows[b]` holds the valid tokens of row b in order of position."""

    batch: int
    length: int
    vocabulary: int
    head_width: int | None
    temperature: mpf
    rows: list
    three_policies: bool
    sampler_rows: bool

    @property
    def tokens(self) -> list:
        """All valid tokens, row by row."""
        return [token for row in self.rows for token in row]

    def numerator(self, named: str | None) -> str:
        """The named numerator, or its default: the anchor when there is one."""
        numerator = named or ("anchor" if self.three_policies else "trainer")
        if numerator == "anchor" and not self.three_policies:
            raise ValueError("numerator 'anchor' needs logp_anchor; give logp_anchor or use numerator 'trainer'")
        return numerator


def number(value) -> mpf:
    """One wire number as an exact mpf; "NaN", "Infinity" and "-Infinity" are the non-finite ones."""
    if isinstance(value, str):
        special = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
        if value not in special:
            raise ValueError(f"a wire number is a JSON number, 'NaN', 'Infinity' or '-Infinity'; got {value!r}")
        return mpf(special[value])
    return mpf(value)


def log_softmax(logits: list, inside: list, temperature: mpf) -> list:
    """log p_v = z_v/T - log sum_S exp(z/T) for v in the support S, -inf outside it. Shapes [V], nats."""
    scaled = [z / temperature for z in logits]
    top = max(z for z, keep in zip(scaled, inside, strict=True) if keep)
    total = mp.fsum(mp.exp(z - top) for z, keep in zip(scaled, inside, strict=True) if keep)
    log_total = top + mp.log(total)
    return [z - log_total if keep else mpf("-inf") for z, keep in zip(scaled, inside, strict=True)]


def _head(inputs: dict, b: int, t: int) -> list | None:
    if inputs.get("head_ids") is None:
        return None
    slots = []
    anchors = inputs.get("head_logp_anchor")
    for slot, token in enumerate(inputs["head_ids"][b][t]):
        if int(token) < 0:
            continue
        q = mp.exp(number(inputs["head_logp_sampler"][b][t][slot]))
        o = None if anchors is None else mp.exp(number(anchors[b][t][slot]))
        slots.append(HeadSlot(slot, int(token), q, o))
    return slots


def _row(inputs: dict, key: str, b: int, t: int) -> list | None:
    if inputs.get(key) is None:
        return None
    return [mp.exp(number(value)) for value in inputs[key][b][t]]


def _scalar(inputs: dict, key: str, b: int, t: int) -> mpf | None:
    return None if inputs.get(key) is None else number(inputs[key][b][t])


def read_case(inputs: dict, temperature: float) -> Case:
    """Parses `inputs`; raises ValueError naming an unknown key or the (b, t) whose numbers cannot be used."""
    unknown = sorted(set(inputs) - INPUT_KEYS)
    if unknown:
        raise ValueError(f"inputs has unknown key {unknown[0]!r}; known keys are {sorted(INPUT_KEYS)}")
    mask = inputs["mask"]
    batch, length = len(mask), len(mask[0]) if mask else 0
    vocabulary = len(inputs["logits"][0][0]) if batch and length else 0
    head_width = None if inputs.get("head_ids") is None else len(inputs["head_ids"][0][0])
    scale = number(temperature)
    rows = []
    for b in range(batch):
        row = []
        for t in range(length):
            if not mask[b][t]:
                continue
            logits = [number(z) for z in inputs["logits"][b][t]]
            support = inputs.get("support")
            inside = [True] * vocabulary if support is None else [bool(flag) for flag in support[b][t]]
            y = int(inputs["tokens"][b][t])
            if not 0 <= y < vocabulary or not inside[y]:
                raise ValueError(f"tokens[{b}][{t}] = {y} must be an id in 0..{vocabulary - 1} inside the support")
            if any(mp.isnan(z) or z == mpf("inf") for z in logits):
                raise ValueError(f"logits[{b}][{t}] must be finite or -Infinity on a valid token; got {logits}")
            logp = log_softmax(logits, inside, scale)
            row.append(
                Token(
                    b=b,
                    t=t,
                    y=y,
                    advantage=number(inputs["advantages"][b][t]),
                    logits=logits,
                    inside=inside,
                    logp=logp,
                    p=[mp.exp(value) for value in logp],
                    logq=number(inputs["logp_sampler"][b][t]),
                    logo=_scalar(inputs, "logp_anchor", b, t),
                    logref=_scalar(inputs, "logp_reference", b, t),
                    head=_head(inputs, b, t),
                    q_full=_row(inputs, "logp_sampler_full", b, t),
                    o_full=_row(inputs, "logp_anchor_full", b, t),
                )
            )
        rows.append(row)
    three_policies, sampler_rows = (inputs.get(key) is not None for key in ("logp_anchor", "logp_sampler_full"))
    return Case(batch, length, vocabulary, head_width, scale, rows, three_policies, sampler_rows)
