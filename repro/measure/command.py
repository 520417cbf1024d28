"""The options of ``python -m repro measure``; what it needs (torch, transformers, an engine) is imported when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

ENGINES, DTYPES, TASKS = ("vllm", "torch"), ("float32", "bfloat16"), ("countdown_tiny", "arithmetic")
DESCRIPTION = """How far a sampler departs from the trainer, for any Hugging Face model folder.

The engine samples responses at temperature 1 and records log q of every token and of its k most likely ones; transformers
in float32 scores the same tokens. Several samplers of one model share a folder: a run replaces the rows of its own label."""


def _measure(arguments: argparse.Namespace) -> int:
    from repro.measure.scoring import command_measure

    return command_measure(arguments)


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command ``measure`` to the laboratory's subparsers."""
    text = "measure how far a sampler departs from the trainer, for a Hugging Face model folder"
    command = commands.add_parser(
        "measure", help=text, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.set_defaults(function=_measure)
    command.add_argument(
        "--out", type=Path, required=True, help="folder of data, table and figure; runs are added to it"
    )
    command.add_argument("--model", type=Path, help="model folder; without it the folder --out is drawn again")
    command.add_argument("--sampler", choices=ENGINES, default="vllm", help="the engine (default: vllm)")
    command.add_argument(
        "--sampler-model", type=Path, help="what the engine loads, where not --model (a quantised copy)"
    )
    command.add_argument(
        "--dtype", choices=DTYPES, default="bfloat16", help="the engine's precision (default: bfloat16)"
    )
    command.add_argument(
        "--kv-cache-dtype", default="auto", help="vLLM's name, or for torch a format of repro.quantise"
    )
    command.add_argument("--quantization", help="vLLM's name (fp8_per_channel), or for torch a format of the weights")
    command.add_argument("--activations", help="for torch: format of the linear layers' inputs")
    command.add_argument("--sequences", type=int, default=32, help="number of responses (default: 32)")
    command.add_argument("--tokens", type=int, default=48, help="most tokens per response (default: 48)")
    command.add_argument("--seed", type=int, default=0, help="of prompts and samples (default: 0)")
    command.add_argument("--prompts", type=Path, help="text file, one prompt a line, instead of the built-in questions")
    command.add_argument("--task", choices=TASKS, help="prompts of a task of the laboratory, as token ids")
    command.add_argument("--eos", type=int, help="end-of-sequence id, where the model's configuration has none")
    command.add_argument("--oracle-tokens", type=int, default=16, help="tokens per response compared (default: 16)")
    command.add_argument("--no-draw", action="store_true", help="write data only")
    return command
