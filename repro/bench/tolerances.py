"""The error model behind the vectors' tolerances, measured: worst observed error over model, float32 and bfloat16.

`python -m repro.bench.tolerances` evaluates torch on CPU against float64 on the same (rounded) inputs. u is the unit roundoff
of the dtype, u_acc that of the accumulator (2^-24 for both), z the logits, lse their log-sum-exp, a the token:

    log-softmax         u (|log p| + |lse| + |z_v| + 4) + u_acc sqrt(V)
    gradient, by token  (p_v + 1{v = a}) (u (4 + max|z| + |lse| + |log p_a|) + u_acc sqrt(V))
    gradient, by entry  p_v (u (8 + |log p_v| + |lse| + |z_v|) + u_acc sqrt(V)) + 1{v = a} (4 u + u_acc sqrt(V))
    token ratio         4 u, relative, for |d| <= 1, d = log p - log q
    sequence, upcast    u_acc sqrt(T) sum|d| + u |sum d|: log-probs on the dtype's grid, subtracted and summed in float32
    sequence, in dtype  u_acc sqrt(T) sum|d| + u (|sum d| + sum|d|): subtracted in the dtype
    sum                 u_acc sqrt(N) sum|x| + u |sum x|

A case passes within m = 2 models, so worst/model below 1 leaves a factor of two. The published scales take the entry's form.
Source of the form: Blanchard, Higham, Higham, "Accurately computing the log-sum-exp and softmax functions", IMA J. Numer. Anal.
41(4), 2021. Where a model fails, the row is printed; `beyond` measures what no model claims: ratios of distant log-probs, and
log-probs that were stored in bfloat16.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from repro.bench import write_result

U = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}
ACCUMULATOR = 2.0**-24
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}
VOCABULARIES = (2, 16, 257, 4096, 32_768, 151_936)
SCALES = (0.1, 1.0, 5.0, 20.0)
LENGTHS = (1, 16, 256, 4096, 32_768)
ENTRIES = 2_000_000
TOKENS = 32


def logits(vocabulary: int, scale: float, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Rows of logits on the dtype's grid: about ENTRIES numbers, at most 4096 rows."""
    rows = max(4, min(4096, ENTRIES // vocabulary))
    return (scale * torch.randn(rows, vocabulary, generator=generator)).to(dtype)


def log_softmax_error(z: torch.Tensor) -> float:
    """Worst error/model of torch.log_softmax over all entries."""
    u, root = U[z.dtype], ACCUMULATOR * math.sqrt(z.shape[-1])
    exact = z.double()
    lse = exact.logsumexp(-1, keepdim=True)
    logp = exact - lse
    error = (torch.log_softmax(z, -1).double() - logp).abs()
    return float((error / (u * (logp.abs() + lse.abs() + exact.abs() + 4) + root)).max())


def gradient_errors(z: torch.Tensor, generator: torch.Generator) -> dict[str, float]:
    """Worst error/model of autograd's d log p(a)/d z at sampled and at random tokens, under both models."""
    u, root = U[z.dtype], ACCUMULATOR * math.sqrt(z.shape[-1])
    exact = z.double()
    logp = torch.log_softmax(exact, -1)
    p, lse = logp.exp(), exact.logsumexp(-1, keepdim=True)
    top = exact.abs().amax(-1, keepdim=True)
    worst = {"gradient, by token": 0.0, "gradient, by entry": 0.0}
    sampled = torch.multinomial(p, 1, generator=generator)
    uniform = torch.randint(0, z.shape[-1], sampled.shape, generator=generator)
    entry = p * (u * (8 + logp.abs() + lse.abs() + exact.abs()) + root)
    for token in (sampled, uniform):
        leaf = z.clone().requires_grad_()
        torch.log_softmax(leaf, -1).gather(-1, token).sum().backward()
        hit = torch.zeros_like(p).scatter_(-1, token, 1.0)
        models = {
            "gradient, by token": (p + hit) * (u * (4 + top + lse.abs() + logp.gather(-1, token).abs()) + root),
            "gradient, by entry": entry + hit * (4 * u + root),
        }
        error = (leaf.grad.double() - (hit - p)).abs()
        for name, model in models.items():
            # a probability below the dtype's range has no relative accuracy: the judging rule's eta covers it
            worst[name] = max(worst[name], float((error / (model + 2.0**-126)).max()))
    return worst


def grid_log_probs(count: tuple[int, ...], spread: float, dtype: torch.dtype, generator: torch.Generator) -> tuple:
    """Two log-probs on the dtype's grid, exponentially distributed with mean 1, their difference of size `spread`."""
    q = -torch.empty(count).exponential_(generator=generator)
    p = (q + spread * (2 * torch.rand(count, generator=generator) - 1)).clamp(max=0.0)
    return p.to(dtype), q.to(dtype)


def ratio_error(spread: float, dtype: torch.dtype, generator: torch.Generator) -> float:
    """Worst relative error of exp(log p - log q), in units of 4 u."""
    p, q = grid_log_probs((ENTRIES,), spread, dtype, generator)
    exact = (p.double() - q.double()).exp()
    return worst_share((p - q).exp(), exact, 4 * U[dtype] * exact)


def sequence_errors(length: int, dtype: torch.dtype, generator: torch.Generator) -> dict[str, float]:
    """Worst error/model of the summed log-ratio of rows of a length, subtracted in float32 and in the dtype."""
    rows = max(8, min(4096, ENTRIES // length))
    p, q = grid_log_probs((rows, length), 0.25, dtype, generator)
    d = p.double() - q.double()
    exact, size = d.sum(-1), d.abs().sum(-1)
    upcast = (p.float() - q.float()).sum(-1).to(dtype)
    inside = (p - q).sum(-1)
    terms = ACCUMULATOR * math.sqrt(length) * size + U[dtype] * exact.abs()
    return {
        "sequence, upcast": worst_share(upcast, exact, terms),
        "sequence, in dtype": worst_share(inside, exact, terms + U[dtype] * size),
        "sequence, in dtype, without sum|d|": worst_share(inside, exact, terms),
    }


def worst_share(got: torch.Tensor, exact: torch.Tensor, model: torch.Tensor) -> float:
    """Largest |got - exact|/model; an exact zero against a zero model counts as none."""
    return float(((got.double() - exact).abs() / model.clamp_min(2.0**-126)).max())


def storage_error(length: int, dtype: torch.dtype, generator: torch.Generator) -> float:
    """Worst error in nats of a row's log-ratio, of 64 rows, when its log-probs (mean |log p| = 1) were stored in the dtype."""
    p, q = (x.double() for x in grid_log_probs((64, length), 0.25, torch.float32, generator))
    return float(((p.to(dtype).double() - q.to(dtype).double()).sum(-1) - (p - q).sum(-1)).abs().max())


def sum_error(count: int, dtype: torch.dtype, generator: torch.Generator) -> float:
    """Worst error/model of torch.sum over terms of either sign."""
    rows = max(8, min(4096, ENTRIES // count))
    x = torch.randn(rows, count, generator=generator).to(dtype)
    exact = x.double().sum(-1)
    model = ACCUMULATOR * math.sqrt(count) * x.double().abs().sum(-1) + U[dtype] * exact.abs()
    return worst_share(x.sum(-1), exact, model)


def measure(dtype: torch.dtype) -> list[dict[str, Any]]:
    """All rows of one dtype: {quantity, dtype, size, scale, worst}."""
    generator = torch.Generator().manual_seed(0)
    rows = []

    def row(quantity: str, size: int, scale: float, worst: float) -> None:
        rows.append(
            {"quantity": quantity, "dtype": NAMES[dtype], "size": size, "scale": scale, "worst": round(worst, 4)}
        )

    for vocabulary in VOCABULARIES:
        for scale in SCALES:
            z = logits(vocabulary, scale, dtype, generator)
            row("log-softmax", vocabulary, scale, log_softmax_error(z))
            for name, worst in gradient_errors(z[: max(TOKENS, len(z) // 8)], generator).items():
                row(name, vocabulary, scale, worst)
    for spread in (0.01, 0.25, 1.0):
        row("token ratio", 1, spread, ratio_error(spread, dtype, generator))
    for length in LENGTHS:
        for name, worst in sequence_errors(length, dtype, generator).items():
            row(name, length, 0.25, worst)
        row("sum", length, 1.0, sum_error(length, dtype, generator))
    return rows


def beyond() -> dict[str, Any]:
    """What the model does not claim: ratios of distant log-probs (in units of 4 u), and storage in bfloat16 (in nats)."""
    generator = torch.Generator().manual_seed(1)
    return {
        "token ratio over 4u, |d| <= 8": {NAMES[t]: round(ratio_error(8.0, t, generator), 3) for t in U},
        "log-ratio of a row, log-probs stored in bf16, worst of 64, nats": {
            str(length): float(f"{storage_error(length, torch.bfloat16, generator):.3g}") for length in LENGTHS
        },
    }


def main() -> None:
    torch.set_num_threads(1)
    rows = [row for dtype in U for row in measure(dtype)]
    worst: dict[str, dict[str, float]] = {}
    for row in rows:
        of = worst.setdefault(row["quantity"], {})
        of[row["dtype"]] = max(of.get(row["dtype"], 0.0), row["worst"])
    fails = [row for row in rows if row["worst"] > 1.0]
    result = {
        "worst_error_over_model": worst,
        "model_fails": fails,
        "beyond_the_model": beyond(),
        "rows": rows,
        "torch": torch.__version__,
        "threads": 1,
    }
    print(f"{'quantity':36}{'fp32':>8}{'bf16':>8}   worst error/model")
    for quantity, of in worst.items():
        print(f"{quantity:36}{of['fp32']:8.2f}{of['bf16']:8.2f}")
    for row in fails:
        print(
            f"model fails: {row['quantity']} {row['dtype']}, size {row['size']}, scale {row['scale']}: {row['worst']:.2f}"
        )
    for name, of in result["beyond_the_model"].items():
        print(f"beyond the model: {name}: {of}")
    print(f"written: {write_result('tolerances', result).name}")


if __name__ == "__main__":
    main()
