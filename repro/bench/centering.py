"""Cost of score centering in the loss alone: forward and backward at 64 tokens x 151,936 vocabulary, head 128, float32.

`python -m repro.bench.centering` measures on one thread, all four alternated in one run; a ratio is the median over the rounds
of the quotient within a round, of wall time and of the process's own CPU time (what a busy machine disturbs less):

    pg_torch      plain policy gradient the usual way: log_softmax, gather, backward
    pg_one_pass   `repro.head_only.head_only_loss` without centering
    sc_one_pass   `head_only_loss` with TIS and the rescaled tail: one softmax serves log p(y), the head and the tail's mass
    sc_two_pass   centering the direct way: log_softmax for the token, a logsumexp of its own for the head, coefficients
                  written out over whole rows

and checks every gradient against the float64 reference on some of the tokens.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from repro.bench import write_result
from repro.head_only import head_only_loss
from repro.losses import LossBatch
from repro.oracle import reference

B, T, V, K = 4, 16, 151_936, 128
ROUNDS = 25
CHECKED = 4
TARGET = 1.05
CAP = 2.0
PG = {"weight": {"level": "token", "high": CAP, "outside": "clip"}, "aggregation": {"kind": "token-sum"}}
SC = {**PG, "centering": {"tail": "rescaled"}}


def make_data(seed: int = 0) -> tuple[torch.Tensor, LossBatch]:
    """Logits whose head of 128 holds most of the mass; the sampler is the trainer with noise of 0.1 nats on them."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2.0 * torch.randn((B, T, V), generator=generator)
    top = torch.rand((B, T, V), generator=generator).topk(K, -1).indices
    logits.scatter_add_(-1, top, torch.full(top.shape, 12.0))
    logq = torch.log_softmax(logits + 0.1 * torch.randn((B, T, V), generator=generator), -1)
    head, ids = logq.topk(K, -1)
    tokens = torch.multinomial(logq.exp().flatten(0, 1), 1, generator=generator).view(B, T)
    batch = LossBatch(
        tokens, torch.ones((B, T), dtype=torch.bool), torch.randn((B, T), generator=generator),
        logq.gather(-1, tokens[..., None])[..., 0], head_ids=ids, head_logp_sampler=head,
    )  # fmt: skip
    return logits, batch


def pg_torch(z: torch.Tensor, batch: LossBatch) -> torch.Tensor:
    """Token TIS on the log-softmax of every logit."""
    logp = torch.log_softmax(z, -1).gather(-1, batch.tokens[..., None])[..., 0]
    w = (logp.detach() - batch.logp_sampler).exp().clamp(max=CAP)
    return (-w * batch.advantages * logp).sum()


def sc_two_pass(z: torch.Tensor, batch: LossBatch) -> torch.Tensor:
    """The same with centering, one thing after the other."""
    logp = torch.log_softmax(z, -1)
    own = logp.gather(-1, batch.tokens[..., None])[..., 0]
    w = (own.detach() - batch.logp_sampler).exp().clamp(max=CAP)
    with torch.no_grad():
        p = torch.softmax(z, -1)
        head_logp = z.gather(-1, batch.head_ids) - torch.logsumexp(z, -1, keepdim=True)
        q = batch.head_logp_sampler.exp()
        head = q * (head_logp - batch.head_logp_sampler).exp().clamp(max=CAP)
        p_tail = p.scatter(-1, batch.head_ids, 0.0).sum(-1, keepdim=True).clamp(min=1e-6)
        rho = (1 - q.double().sum(-1, keepdim=True)).clamp(min=1e-6).float() / p_tail
        coefficients = (rho * (1 / rho).clamp(max=CAP) * p).scatter(-1, batch.head_ids, head)
    return (batch.advantages * ((coefficients * logp).sum(-1) - w * own)).sum()


def step(loss: Callable[[torch.Tensor], torch.Tensor], logits: torch.Tensor) -> torch.Tensor:
    """Gradient of the loss on the logits."""
    leaf = logits.detach().requires_grad_()
    loss(leaf).backward()
    return leaf.grad


def main() -> None:
    torch.set_num_threads(1)
    logits, batch = make_data()
    losses = {
        "pg_torch": lambda z: pg_torch(z, batch),
        "pg_one_pass": lambda z: head_only_loss(z, batch, PG),
        "sc_one_pass": lambda z: head_only_loss(z, batch, SC),
        "sc_two_pass": lambda z: sc_two_pass(z, batch),
    }
    few = batch.rows(slice(0, 1), CHECKED)
    errors = {}
    for name, loss in losses.items():
        expected = reference(logits[:1, :CHECKED], few, SC if name.startswith("sc") else PG).grad_logits
        errors[name] = float(abs(step(loss, logits)[:1, :CHECKED].numpy() - expected).max())
    wall: dict[str, list[float]] = {name: [] for name in losses}
    cpu: dict[str, list[float]] = {name: [] for name in losses}
    for _ in range(ROUNDS):
        for name, loss in losses.items():
            start, own = time.perf_counter(), time.process_time()
            step(loss, logits)
            wall[name].append(time.perf_counter() - start)
            cpu[name].append(time.process_time() - own)

    def ratio(a: str, b: str) -> dict[str, float]:
        pairs = {"wall": (wall[a], wall[b]), "cpu": (cpu[a], cpu[b])}
        return {k: round(statistics.median(x / y for x, y in zip(*v, strict=True)), 3) for k, v in pairs.items()}

    tail = 1 - batch.head_logp_sampler.double().exp().sum(-1)
    result = {
        "tokens": B * T,
        "vocabulary": V,
        "head": K,
        "threads": 1,
        "rounds": ROUNDS,
        "sampler_tail_mass_median": round(float(tail.median()), 4),
        "median_wall_ms": {name: round(1e3 * statistics.median(values), 1) for name, values in wall.items()},
        "median_cpu_ms": {name: round(1e3 * statistics.median(values), 1) for name, values in cpu.items()},
        "sc_one_pass_over_pg_torch": ratio("sc_one_pass", "pg_torch"),
        "sc_one_pass_over_pg_one_pass": ratio("sc_one_pass", "pg_one_pass"),
        "sc_two_pass_over_sc_one_pass": ratio("sc_two_pass", "sc_one_pass"),
        "sc_two_pass_over_pg_torch": ratio("sc_two_pass", "pg_torch"),
        "target_over_pg": TARGET,
        "largest_gradient_error": errors,
        "torch": torch.__version__,
    }
    for name in losses:
        print(f"{name:12s} median {result['median_cpu_ms'][name]} ms CPU, gradient error {errors[name]:.1e}")
    for name, value in result.items():
        if "_over_" in name:
            print(f"{name:29s} {value}")
    print(f"written: {write_result('centering', result).name}")


if __name__ == "__main__":
    main()
