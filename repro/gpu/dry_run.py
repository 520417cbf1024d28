"""Every step of the GPU tier up to the device's kernels, on the CPU: ``python -m repro.gpu.dry_run``.

Two steps of each of the four arms of verl's rerun, with the tier's defaults (bfloat16 forward, fp8 sampler, official
Countdown prompts and parser, SGD on token means, one-pass loss, reference check, checkpoints) on a tiny random model,
and one step through the adapter for vLLM with another sampler in vLLM's place. A random model never solves a problem,
so that a response counts as correct here when its bytes add up to an even number.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from repro.gpu.engines import LengthGrouped, torch_engine
from repro.gpu.settings import VERL_ARMS
from repro.gpu.tiny import write_tiny
from repro.gpu.trainer import run_cell
from repro.tasks import countdown
from repro.tasks.countdown import Row

STEPS = 2
SMALL = {
    "seed": 1,
    "steps": STEPS,
    "device": "cpu",
    "prompts_per_step": 2,
    "samples_per_prompt": 4,
    "max_tokens": 8,
    "head_k": 32,
    "micro_batch": 4,
    "data_rows": 8,
    "eval_problems": 2,
    "eval_samples": 1,
    "oracle_every": 1,
    "oracle_rows": 3,
}
EXERCISED = (
    "model folder with a tokenizer, chat prompts of official Countdown, padding, decoding of responses, parser",
    "sampler with a key/value cache; fp8 weights and activations through torch._scaled_mm, as this CPU's torch has it",
    "check of every update of the sampler; advantages; bfloat16 forward and backward in micro-batches, float32 weights",
    "one-pass loss held against rlcorr_ref in float64; SGD; held-out evaluation; checkpoint and resume",
    "adapter for vLLM, with the laboratory's sampler in vLLM's place",
)
NOT_EXERCISED = (
    "any GPU kernel: torch._scaled_mm with scales by row on a GPU, bfloat16 products, memory at 152 thousand tokens",
    "vLLM's GPU engine",
    "a real model: what is learned, how long a step takes, which settings are right",
    "resuming bit for bit on a GPU",
)


def even_bytes(row: Row, text: str) -> float:
    """Whether the bytes of ``text`` add up to an even number; the official rule runs too, and its value is dropped."""
    countdown.reward(row, text)
    return float(sum(text.encode()) % 2 == 0)


def stand_in_engine(config, policy, eos) -> LengthGrouped:
    """The laboratory's sampler where vLLM's would be, behind the adapter."""
    return LengthGrouped(torch_engine(config, policy, eos), pad=policy.pad, vocabulary=policy.vocabulary)


def dry_run(report: Callable[[str], Any] = print) -> dict[str, list[dict[str, Any]]]:
    """Run it in a temporary folder; metrics by arm ("vllm adapter" for the last). ``report`` gets one line per step."""
    results: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="rlcorr-gpu-dry-run-") as folder:
        write_tiny(Path(folder) / "model")
        common = {**SMALL, "checkpoint": str(Path(folder) / "model")}

        def run(name: str, config: dict[str, Any], **replacements: Any) -> None:
            def on_step(m: dict[str, Any]) -> None:
                report(
                    f"{name}: step {m['step']}, gradient norm {m['grad_norm']:.3g}, KL(q || p) about "
                    f"{m['kl_sampler_trainer']:.2g} nats, head mass {m['head_mass_sampler']:.3f}, reference error "
                    f"{m['oracle_error']:.1g}"
                )

            state = Path(folder) / name.replace(" ", "-")
            results[name] = run_cell(config, on_step, state, accept=even_bytes, **replacements)

        for arm in VERL_ARMS:
            run(arm, {**common, "arm": arm, "steps": 1})
            run(arm, {**common, "arm": arm})  # continues from the saved state
        run("vllm adapter", {**common, "arm": "sc", "steps": 1}, engine=stand_in_engine)
    if idle := [name for name, rows in results.items() if not any(m["grad_norm"] > 0 for m in rows)]:
        raise AssertionError(f"{idle[0]}: every response was as good as the others of its group, nothing was trained")
    row = countdown.rows(1)[0]
    if countdown.reward(row, f"<answer> {row.solution} </answer>") != 1.0:
        raise AssertionError(f"the official rule refuses the known solution {row.solution} of {row.target}")
    return results


def main(arguments: list[str] | None = None) -> int:
    """Run, and say what was exercised and what was not."""
    parser = argparse.ArgumentParser(prog="python -m repro.gpu.dry_run", description=__doc__.split("\n\n")[0])
    parser.parse_args(arguments)
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    dry_run(lambda line: print(line, flush=True))
    for title, lines in (
        ("exercised, on the CPU with a tiny random model", EXERCISED),
        ("not exercised", NOT_EXERCISED),
    ):
        print(f"{title}:")
        for line in lines:
            print(f"  {line}")
    print("The GPU tier has not yet been run on a GPU.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
