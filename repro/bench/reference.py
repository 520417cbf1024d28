"""Speed and memory of the float64 reference against torch float64 autograd of the same objective.

`python -m repro.bench.reference` measures, at 512 tokens x 32,768 vocabulary with a head of 128:

    speed    wall time of torch (log_softmax, gather, backward on two threads) / wall time of Objective.evaluate
    memory   peak memory that evaluate allocates / size of the logits (NumPy reports its allocations to tracemalloc)
    import   wall time of `import rlcorr_ref` in a fresh interpreter, beside `import numpy` alone
"""

from __future__ import annotations

import subprocess
import sys
import time
import tracemalloc

import numpy as np
import torch

from repro.bench import interleaved, write_result
from rlcorr_ref import Batch, Objective

B, T, V, K = 4, 128, 32_768, 128
TIS = {"level": "token", "high": 2.0, "outside": "clip"}
DEFINITIONS = {"reinforce": {}, "tis": {"weight": TIS}, "tis_centered": {"weight": TIS, "centering": {}}}


def make_data(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A padded batch whose sampler is the trainer with noise of 0.1 nats on the logits."""
    z = 2.0 * rng.normal(size=(B, T, V))
    logq = z + 0.1 * rng.normal(size=z.shape)
    logq -= np.log(np.exp(logq).sum(-1, keepdims=True))
    ids = np.argpartition(-logq, K, -1)[..., :K]
    tokens = ids[..., 3].copy()
    return {
        "logits": z,
        "tokens": tokens,
        "mask": np.ones((B, T), dtype=np.int64),
        "advantages": rng.normal(size=(B, T)),
        "logp_sampler": np.take_along_axis(logq, tokens[..., None], -1)[..., 0],
        "head_ids": ids,
        "head_logp_sampler": np.take_along_axis(logq, ids, -1),
    }


def torch_gradient(data: dict[str, np.ndarray], weighted: bool, centered: bool) -> torch.Tensor:
    """The same objective the usual way: one log-softmax, gathers, detached coefficients, backward."""
    z = torch.from_numpy(data["logits"]).requires_grad_()
    logp = torch.log_softmax(z, -1)
    y, a = torch.from_numpy(data["tokens"]), torch.from_numpy(data["advantages"])
    logp_y = logp.gather(-1, y[..., None])[..., 0]
    w = torch.ones_like(logp_y)
    if weighted:
        w = (logp_y - torch.from_numpy(data["logp_sampler"])).exp().clamp(max=2.0).detach()
    loss = -a * w * logp_y
    if centered:
        head = logp.gather(-1, torch.from_numpy(data["head_ids"]))
        q, p = torch.from_numpy(data["head_logp_sampler"]).exp(), head.detach().exp()
        rho = (1 - q.sum(-1)).clamp(min=1e-6) / (1 - p.sum(-1)).clamp(min=1e-6)
        alpha = (rho * (1 / rho).clamp(max=2.0))[..., None]
        loss = loss + a * ((q * (p / q).clamp(max=2.0) - alpha * p) * head).sum(-1)
    loss.mean().backward()
    return z.grad


def import_seconds(module: str, repeats: int = 7) -> float:
    """Best wall time of importing `module` in a fresh interpreter, less that of an interpreter that imports nothing."""

    def run(code: str) -> float:
        best = float("inf")
        for _ in range(repeats):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            best = min(best, time.perf_counter() - start)
        return best

    return run(f"import {module}") - run("pass")


def main() -> None:
    torch.set_num_threads(2)
    data = make_data(np.random.default_rng(0))
    batch = Batch(**data)
    result: dict[str, object] = {
        "tokens": B * T,
        "vocabulary": V,
        "head": K,
        "torch_threads": 2,
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    for name, definition in DEFINITIONS.items():
        objective = Objective.from_dict(definition)
        weighted, centered = "weight" in definition, "centering" in definition
        ours = objective.evaluate(batch).grad_logits
        theirs = torch_gradient(data, weighted, centered).numpy()
        worst = float(np.abs(ours - theirs).max())
        mine, other = interleaved(
            lambda o=objective: o.evaluate(batch), lambda w=weighted, c=centered: torch_gradient(data, w, c)
        )
        tracemalloc.start()
        objective.evaluate(batch)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        row = {
            "evaluate_s": round(mine, 4),
            "torch_s": round(other, 4),
            "speed_ratio": round(other / mine, 2),
            "peak_memory_over_logits": round(peak / data["logits"].nbytes, 3),
            "largest_gradient_difference": worst,
        }
        result[name] = row
        memory = row["peak_memory_over_logits"]
        print(f"{name:13s} evaluate {mine:.3f} s, torch {other:.3f} s: {other / mine:.1f}x; memory {memory}x logits")
    modules = ("numpy", "rlcorr_ref", "rlcorr_ref.wire")  # the last one is all that evaluate_case needs, NumPy included
    result["import_s"] = {name: round(import_seconds(name), 3) for name in modules}
    print(f"import {result['import_s']}")
    print(f"written: {write_result('reference', result).name}")


if __name__ == "__main__":
    main()
