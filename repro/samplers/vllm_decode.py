"""What a vLLM engine returns, as the arrays of a :class:`repro.samplers.Rollout`.

The engine's flat log-probs hold, for each response token y_t, the sampled token first (with its rank in the whole
vocabulary) and then the k most likely tokens of the same row, so a sampled token of the head is there twice. Here it
is taken once: the first entry gives log q(y_t | y_<t), the k that follow give the head at t. Entry t is the row that
*predicts* token t, and stands at position t of the arrays; nothing is shifted.

Everything the engine may leave out or spoil - no log-probs, a short head, NaN, a shifted row, an aborted response - is a
:class:`repro.samplers.RolloutError` that names the response and the token, because each would train silently otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repro.samplers import Rollout, RolloutError

NORMALISATION = 1e-3  # nats; a whole row of float32 log-probs sums to 1 far better than this, raw logits do not


@dataclass(frozen=True)
class VersionedRollout(Rollout):
    """A rollout whose tokens may come from several policy versions: ``versions`` [B, T] int64, -1 off the mask.

    ``version`` is that of the newest token. Without a resumed response every entry of ``versions`` equals it.
    """

    versions: Tensor | None = None


@dataclass(frozen=True)
class Response:
    """One decoded response of T tokens: tokens [T] int64, logp [T] float32 (nats), head_ids and head_logp [T, k] in
    descending order, versions [T] int64, ended (whether its last token is EOS).
    """

    tokens: np.ndarray
    logp: np.ndarray
    head_ids: np.ndarray
    head_logp: np.ndarray
    versions: np.ndarray
    ended: bool


def decode(completion: Any, row: int, *, width: int, eos: int, max_tokens: int, vocabulary: int) -> Response:
    """Check and unpack one ``vllm.CompletionOutput`` that was asked for ``width`` log-probs next to the sampled token's.

    ``row`` is named in errors. Raises RolloutError when anything is missing, misplaced or not finite.
    """
    tokens = np.asarray(list(completion.token_ids), dtype=np.int64)
    flat, count = completion.logprobs, len(tokens)
    if count == 0:
        raise RolloutError(f"tokens: response {row} is empty; expected at least one token, the EOS token included")
    ended = bool(tokens[-1] == eos)
    if (tokens[:-1] == eos).any() or count > max_tokens or (count < max_tokens and not ended):
        raise RolloutError(
            f"tokens: response {row} has {count} tokens and finish_reason {completion.finish_reason!r}; expected EOS "
            f"({eos}) as its last token only, or {max_tokens} tokens: the engine stopped it for another reason"
        )
    starts = getattr(flat, "start_indices", None)
    if starts is None:
        raise RolloutError(
            f"logprobs: response {row} came with {type(flat).__name__}; expected flat log-probs for every token "
            "(SamplingParams(logprobs=k, flat_logprobs=True))"
        )
    if len(starts) != count:
        raise RolloutError(f"logprobs: response {row} has {count} tokens and log-probs at {len(starts)} positions")
    widths = np.subtract(flat.end_indices, starts)
    if (widths != width + 1).any():
        at = int((widths != width + 1).argmax())
        raise RolloutError(
            f"logprobs: expected {width + 1} entries (the sampled token and a head of {width}) at response {row}, token "
            f"{at}, got {int(widths[at])}; a short head would move its mass into the tail unseen"
        )
    if any(entry is None for entry in flat.logprobs):
        at = next(i for i, entry in enumerate(flat.logprobs) if entry is None) // (width + 1)
        raise RolloutError(f"logprobs: expected numbers, got None at response {row}, token {at}")
    ids = np.asarray(flat.token_ids, dtype=np.int64).reshape(count, width + 1)
    logp = np.asarray(flat.logprobs, dtype=np.float32).reshape(count, width + 1)
    ranks = np.asarray(flat.ranks, dtype=object).reshape(count, width + 1)[:, 0]
    _check_rows(ids, logp, ranks, tokens, row, width, vocabulary)
    return Response(tokens, logp[:, 0], ids[:, 1:], logp[:, 1:], _versions(completion, count, row), ended)


def _check_rows(
    ids: np.ndarray, logp: np.ndarray, ranks: np.ndarray, tokens: np.ndarray, row: int, width: int, vocabulary: int
) -> None:
    def refuse(bad: np.ndarray, why: str) -> None:
        if bad.any():
            raise RolloutError(f"logprobs: {why}; first at response {row}, token {int(bad.argmax())}")

    refuse(ids[:, 0] != tokens, "the first entry is not the sampled token: the rows are shifted against the tokens")
    refuse(~np.isfinite(logp[:, 0]), "the sampled token's log-prob is not finite")
    refuse(np.isnan(logp).any(1) | (logp > 1e-6).any(1), "NaN or above 0 (raw logits, or an unnormalised row)")
    refuse(np.array([not isinstance(r, int | np.integer) or r < 1 for r in ranks]), "the sampled token has no rank")
    if width:
        head = np.sort(ids[:, 1:], axis=1)
        refuse((head[:, 1:] == head[:, :-1]).any(1), "the head holds an id twice: its mass would be counted twice")
        refuse((np.diff(logp[:, 1:], axis=1) > 0).any(1), "the head is not in descending order")
        # rank = number of tokens at least as likely, ties included: at most k of them, so the head holds the token
        inside = (ids[:, 1:] == tokens[:, None]).any(1)
        refuse(~inside & (ranks.astype(np.int64) <= width), "a sampled token ranked inside the head is missing from it")
    if width == vocabulary:
        total = np.logaddexp.reduce(logp[:, 1:].astype(np.float64), axis=1)
        refuse(np.abs(total) > NORMALISATION, "the whole row does not sum to 1: not the sampled distribution")


def _versions(completion: Any, count: int, row: int) -> np.ndarray:
    """The policy version of each token, as the engine itself recorded it."""
    versions = np.full(count, -1, dtype=np.int64)
    for span in completion.weight_versions or ():
        if not str(span.version).isdecimal():
            raise RolloutError(f"weight_versions: expected whole numbers, got {span.version!r} at response {row}")
        versions[span.start : span.end] = int(span.version)
    if (versions < 0).any():
        raise RolloutError(
            f"weight_versions: token {int((versions < 0).argmax())} of response {row} has no policy version"
        )
    return versions


def assemble(
    responses: Sequence[Response],
    prompts: Tensor,
    prompt_index: Tensor,
    *,
    head_k: int,
    vocabulary: int,
    pad: int,
    temperature: float,
    whole_rows: bool,
) -> VersionedRollout:
    """Responses of different lengths as one rollout, padded with ``pad``; the head is cut to its first ``head_k``.

    ``prompts`` [B, P] holds one row for each response. ``whole_rows`` scatters heads of the whole vocabulary into
    ``logp_sampler_full`` [B, T, V], 0 off the mask.
    """
    rows, length = len(responses), max(len(r.tokens) for r in responses)
    tokens = torch.full((rows, length), pad)
    versions = torch.full((rows, length), -1)
    logp = torch.zeros((rows, length))
    head_ids = torch.full((rows, length, head_k), -1)
    head_logp = torch.full((rows, length, head_k), -torch.inf)
    full = torch.zeros((rows, length, vocabulary)) if whole_rows else None
    lengths = torch.tensor([len(r.tokens) for r in responses])
    for row, response in enumerate(responses):
        end = len(response.tokens)
        tokens[row, :end] = torch.from_numpy(response.tokens)
        versions[row, :end] = torch.from_numpy(response.versions)
        logp[row, :end] = torch.from_numpy(response.logp)
        head_ids[row, :end] = torch.from_numpy(response.head_ids[:, :head_k])
        head_logp[row, :end] = torch.from_numpy(response.head_logp[:, :head_k])
        if full is not None:
            full[row, :end].scatter_(
                1, torch.from_numpy(response.head_ids), torch.from_numpy(np.ascontiguousarray(response.head_logp))
            )
    return VersionedRollout(
        prompts=prompts,
        prompt_index=prompt_index,
        tokens=tokens,
        mask=torch.arange(length) < lengths[:, None],
        ended=torch.tensor([r.ended for r in responses]),
        logp_sampler=logp,
        head_ids=head_ids if head_k else None,
        head_logp_sampler=head_logp if head_k else None,
        version=int(versions.max()),
        temperature=temperature,
        logp_sampler_full=full,
        versions=versions,
    )


def join(first: Response, second: Response) -> Response:
    """A response and its continuation: log-probs, heads and versions of earlier tokens stay as they were recorded."""
    if first.ended:
        raise RolloutError("join: the first response has ended with EOS; expected one to continue")
    parts = {
        name: np.concatenate([getattr(first, name), getattr(second, name)])
        for name in ("tokens", "logp", "head_ids", "head_logp", "versions")
    }
    return Response(**parts, ended=second.ended)


def recorded(rollout: VersionedRollout, head_k: int, whole_rows: bool) -> list[Response]:
    """The rows of ``rollout`` as responses again, with the head they were recorded with (whole rows if ``whole_rows``)."""
    if rollout.versions is None:
        raise RolloutError("versions: expected the policy version of every token [B, T], got None")
    width = 0 if rollout.head_ids is None else rollout.head_ids.shape[-1]
    if width != head_k:
        raise RolloutError(f"head_k: expected {width}, as the responses to be continued were recorded, got {head_k}")
    if whole_rows:
        if rollout.logp_sampler_full is None:
            raise RolloutError("logp_sampler_full: expected whole rows [B, T, V] to be continued, got None")
        head_logp, head_ids = rollout.logp_sampler_full.sort(-1, descending=True)
    elif head_k:
        head_ids, head_logp = rollout.head_ids, rollout.head_logp_sampler
    else:
        head_ids = torch.zeros((*rollout.tokens.shape, 0), dtype=torch.int64)
        head_logp = torch.zeros((*rollout.tokens.shape, 0))
    columns = (rollout.tokens, rollout.logp_sampler, head_ids, head_logp, rollout.versions)
    lengths, ended = rollout.mask.sum(-1).tolist(), rollout.ended.tolist()
    return [
        Response(*(column[row, :length].numpy() for column in columns), ended[row])
        for row, length in enumerate(lengths)
    ]
