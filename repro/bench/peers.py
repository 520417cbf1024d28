"""Time of released packages' correction, loss and backward against `repro.losses` on the same log-probs.

`python -m repro.bench.peers` (in an environment that has the packages, see tests/peers/requirements.txt) takes 1024 tokens in 8
ragged rows, three policies, PPO clip with token-level truncated importance sampling, float32, one thread. Every package enters
at log-probs through its conformance adapter; none of them takes logits. `repro.losses` takes logits, so it gets the two-token
vocabulary whose log-softmax gives the same log-prob of the sampled token: it computes strictly more. Reported are wall times
per call and package / repro.losses, measured alternately in one run, with the gradients' largest difference.
"""

from __future__ import annotations

import numpy as np
import torch

from repro.bench import interleaved, write_result
from repro.losses import LossBatch, correction_loss
from rlcorr_ref.conformance.protocol import BUILT_IN, NotSupported, read_adapter
from rlcorr_ref.contract import Objective

ROWS, WIDTH = 8, 160
TOKENS = 1024
DEFINITION = {
    "surrogate": {"kind": "ppo_clip", "eps_low": 0.2, "eps_high": 0.2},
    "weight": {"level": "token", "high": 2.0, "outside": "clip"},
    "aggregation": {"kind": "token-mean"},
}


def make_inputs(seed: int = 0) -> dict[str, torch.Tensor]:
    """Log-probs of trainer, anchor and sampler [B, T] float32, a mask of exactly 1024 tokens, advantages per row."""
    rng = np.random.default_rng(seed)
    lengths = np.full(ROWS, TOKENS // ROWS) + np.array([32, -32, 16, -16, 24, -24, 8, -8])
    mask = np.arange(WIDTH) < lengths[:, None]
    assert mask.sum() == TOKENS
    sampler = -rng.gamma(1.0, 1.0, size=mask.shape) - 0.05
    anchor = np.minimum(sampler + 0.3 * rng.normal(size=mask.shape), -0.01)
    trainer = np.minimum(anchor + 0.1 * rng.normal(size=mask.shape), -0.01)
    arrays = {"logp_trainer": trainer, "logp_sampler": sampler, "logp_anchor": anchor, "mask": mask}
    arrays["advantages"] = np.repeat(rng.normal(size=(ROWS, 1)), WIDTH, axis=1)
    return {name: torch.from_numpy(value.astype(np.float32)) for name, value in arrays.items()}


def ours(x: dict[str, torch.Tensor]) -> torch.Tensor:
    """d loss / d log p(y) [B, T] through `repro.losses`: the first logit's gradient divided by 1 - p."""
    p = x["logp_trainer"].exp()
    logits = torch.stack([x["logp_trainer"], torch.log1p(-p)], dim=-1).requires_grad_()
    batch = LossBatch(
        torch.zeros(p.shape, dtype=torch.int64), x["mask"].bool(), x["advantages"], x["logp_sampler"], x["logp_anchor"]
    )
    correction_loss(logits, batch, DEFINITION).backward()
    return logits.grad[..., 0] / (1 - p)


def main() -> None:
    torch.set_num_threads(1)
    x = make_inputs()
    reference = ours(x)
    settings = Objective.from_dict(DEFINITION).to_dict()
    result: dict[str, object] = {"tokens": TOKENS, "torch": torch.__version__, "packages": {}}
    for name in BUILT_IN:
        adapter = read_adapter(name)
        call = adapter.handler("objective") if adapter.status == "ready" else None
        if call is None:
            row = {"not_run": adapter.reason or adapter.absent("objective")}
        else:
            try:
                answer = call(settings, **{key: value.clone() for key, value in x.items()})
                found = getattr(answer, "outputs", answer)["grad_logp"]
                theirs, mine = interleaved(lambda c=call: c(settings, **x), lambda: ours(x), repeats=30)
                row = {
                    "version": adapter.version,
                    "package_ms": round(1e3 * theirs, 3),
                    "repro_losses_ms": round(1e3 * mine, 3),
                    "ratio": round(theirs / mine, 2),
                    "largest_gradient_difference": float((found - reference)[x["mask"].bool()].abs().max()),
                }
            except NotSupported as reason:
                row = {"not_supported": str(reason)}
        result["packages"][adapter.name] = row
        print(f"{adapter.name}: {row}")
    print(f"written: {write_result('peers', result).name}")


if __name__ == "__main__":
    main()
