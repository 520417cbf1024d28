"""Speed of the laboratory: ``python -m repro.bench.laboratory``, one thread, everything interleaved in one run.

sampler     tokens per second of the simulated engine against ``transformers.generate`` of the same policy, prompts and
            batch (float32, key/value cache, sampling at temperature 1), and against the plain torch decode step
training    one forward and backward pass of 32 responses: fused kernels against transformers' Qwen3 in eager torch
step        seconds of a whole training step (32 x 8 responses, quantised sampler, score centering)
products    seconds of the matrix products alone, same shapes and number: the floor of both, whatever is fused around them;
            and their rate beside that of one large square product, the best that the core does
"""

from __future__ import annotations

import resource
import time
from functools import partial
from statistics import median

import numpy as np
import torch
from transformers import Qwen3ForCausalLM

from repro.bench import write_result
from repro.bench.plain_decode import Cache, decode_step
from repro.policies import forward, fuse, load_policy, rotary_tables
from repro.provenance import ROOT
from repro.quantise import quantise, quantise_weights
from repro.samplers.torch_sampler import TorchSampler
from repro.tasks import countdown_tiny as task
from repro.trainer import Trainer

CHECKPOINT = ROOT / "repro/checkpoints/countdown_tiny_seed1"
FORMATS = {"weights": "fp4_e2m1", "activations": "fp8_e4m3", "kv": "fp4_e2m1"}
PROMPTS, SAMPLES, ROUNDS = 32, 8, 5
SQUARE = 1024


def seconds(function) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def interleaved(**functions) -> dict[str, float]:
    """Median seconds of each, measured in turn, after one round that does not count."""
    for function in functions.values():
        function()
    times = {name: [] for name in functions}
    for _ in range(ROUNDS):
        for name, function in functions.items():
            times[name].append(seconds(function))
    return {name: median(values) for name, values in times.items()}


def sampler() -> dict[str, float]:
    """Seconds for 256 sequences of exactly 66 tokens: nothing ends early, so that all make the same tokens."""
    state, config = load_policy(CHECKPOINT)
    problems = task.training_problems(np.random.default_rng(0), PROMPTS)
    prompts = torch.tensor([task.prompt(problem) for problem in problems])
    model = Qwen3ForCausalLM(config).eval()
    model.load_state_dict(state)
    repeated = prompts.repeat_interleave(SAMPLES, 0)

    def transformers() -> None:
        model.generate(
            repeated, attention_mask=torch.ones_like(repeated), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            min_new_tokens=task.MAX_RESPONSE, max_new_tokens=task.MAX_RESPONSE, pad_token_id=task.PAD, eos_token_id=None,
        )  # fmt: skip

    def engine(**formats):
        made = TorchSampler(config, eos=-1, pad=task.PAD, **formats)  # no token ends a response
        made.load_weights(state, 0)
        return lambda: made.generate(prompts, SAMPLES, task.MAX_RESPONSE, 1.0, torch.Generator().manual_seed(0), 16)

    quantised = quantise_weights(state, FORMATS["weights"])
    blocks, tables = fuse(quantised, config), rotary_tables(config, 72)
    hooks = [partial(quantise, name=FORMATS[name]) for name in ("activations", "kv")]

    @torch.no_grad()
    def plain() -> None:
        cache, token = Cache.empty(config, PROMPTS * SAMPLES, 72), repeated[:, 0]
        for position in range(task.PROMPT_LENGTH + task.MAX_RESPONSE - 1):
            logits = decode_step(quantised, blocks, config, cache, tables, token, position, *hooks)
            token = torch.multinomial(logits.softmax(-1), 1)[:, 0]

    return interleaved(transformers=transformers, unquantised=engine(), quantised=engine(**FORMATS), plain_decode=plain)


def training() -> dict[str, float]:
    """Seconds of forward and backward of 32 x 60 tokens."""
    state, config = load_policy(CHECKPOINT)
    tokens = torch.randint(0, 60, (32, 60), generator=torch.Generator().manual_seed(0))
    weights = torch.randn((32, 60, task.VOCABULARY), generator=torch.Generator().manual_seed(1))
    leaves = {name: value.requires_grad_() for name, value in state.items()}
    model = Qwen3ForCausalLM(config)

    def passes(logits) -> None:
        (torch.log_softmax(logits(), -1) * weights).sum().backward()

    return interleaved(
        transformers=lambda: passes(lambda: model(tokens).logits),
        fused=lambda: passes(lambda: forward(leaves, config, tokens)),
    )


def step() -> dict[str, float]:
    """Seconds per training step of arm "sc", and the largest memory of this process in GiB."""
    trainer = Trainer({"arm": "sc", "seed": 1, "steps": 8, "oracle_every": 1000, "eval_every": 1000})
    trainer.run_step()
    trainer.run_step()
    return {"sc": median(seconds(trainer.run_step) for _ in range(ROUNDS))}


def products() -> tuple[dict[str, float], dict[str, float]]:
    """Seconds and GFLOP/s of the float32 matrix products of one sampler call, of forward and backward of 256 x 60 tokens,
    and of one product of square matrices."""
    _, config = load_policy(CHECKPOINT)
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    layer = [(hidden, (heads + 2 * kv_heads) * dim), (heads * dim, hidden), (hidden, 2 * inner), (inner, hidden)]
    shapes = layer * config.num_hidden_layers + [(hidden, config.vocab_size)]
    operations: dict[str, float] = {}

    def multiply(name: str, rows: int, repeats: int, backward: bool, shapes: list[tuple[int, int]]):
        sides = [(torch.randn(rows, n), torch.randn(n, m), torch.randn(rows, m)) for n, m in shapes]
        operations[name] = 2.0 * rows * repeats * sum(n * m for n, m in shapes) * (3 if backward else 1)

        def run() -> None:
            for _ in range(repeats):
                for x, weight, upstream in sides:
                    torch.mm(x, weight)
                    if backward:
                        torch.mm(upstream, weight.t())
                        torch.mm(x.t(), upstream)

        return run

    steps = task.PROMPT_LENGTH + task.MAX_RESPONSE
    times = interleaved(
        sampler=multiply("sampler", PROMPTS * SAMPLES, steps, False, shapes),
        training=multiply("training", 32 * 60, PROMPTS * SAMPLES // 32, True, shapes),
        square=multiply("square", SQUARE, 4, False, [(SQUARE, SQUARE)]),
    )
    return times, {name: operations[name] / value / 1e9 for name, value in times.items()}


def main() -> None:
    torch.set_num_threads(1)
    tokens = PROMPTS * SAMPLES * task.MAX_RESPONSE
    sampled, trained, whole, (floor, rates) = sampler(), training(), step(), products()
    result = {
        "threads": 1,
        "sampler_seconds": {name: round(value, 3) for name, value in sampled.items()},
        "sampler_tokens_per_second": {name: round(tokens / value) for name, value in sampled.items()},
        "sampler_over_transformers": round(sampled["transformers"] / sampled["unquantised"], 2),
        "quantised_over_plain_decode": round(sampled["plain_decode"] / sampled["quantised"], 2),
        "training_milliseconds": {name: round(1e3 * value, 1) for name, value in trained.items()},
        "training_over_transformers": round(trained["transformers"] / trained["fused"], 2),
        "step_seconds": round(whole["sc"], 3),
        "matrix_product_seconds": {name: round(floor[name], 3) for name in ("sampler", "training")},
        "matrix_product_gflops": {name: round(value) for name, value in rates.items()},
        "largest_memory_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }
    print(write_result("laboratory", result).read_text())


if __name__ == "__main__":
    main()
