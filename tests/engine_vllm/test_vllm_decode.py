"""From the engine's flat log-probs to a rollout: what may be missing, misplaced or spoilt is named, never trained on."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from repro.samplers import RolloutError
from repro.samplers.vllm_decode import Response, assemble, decode, join, recorded

VOCABULARY, EOS, PAD = 5, 3, 4
ROWS = np.log([[0.4, 0.3, 0.2, 0.06, 0.04], [0.1, 0.5, 0.05, 0.15, 0.2], [0.25, 0.05, 0.1, 0.5, 0.1]])


def completion(tokens=(2, 0, 3), width=2, versions=((0, "7"),), **changes):
    """What vLLM returns for these tokens when the rows are ROWS: the sampled token, then the ``width`` most likely."""
    flat = SimpleNamespace(token_ids=[], logprobs=[], ranks=[], start_indices=[], end_indices=[])
    for token, row in zip(tokens, ROWS, strict=False):
        flat.start_indices.append(len(flat.token_ids))
        order = np.argsort(-row, kind="stable")
        flat.token_ids += [token, *order[:width].tolist()]
        flat.logprobs += [float(row[token]), *row[order[:width]].tolist()]
        flat.ranks += [int((row >= row[token]).sum()), *range(1, width + 1)]
        flat.end_indices.append(len(flat.token_ids))
    ends = [start for start, _ in versions[1:]] + [len(tokens)]
    spans = [SimpleNamespace(version=v, start=s, end=e) for (s, v), e in zip(versions, ends, strict=True)]
    made = SimpleNamespace(token_ids=list(tokens), logprobs=flat, finish_reason="stop", weight_versions=spans)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def read(made, width=2, max_tokens=3):
    return decode(made, 0, width=width, eos=EOS, max_tokens=max_tokens, vocabulary=VOCABULARY)


def test_each_token_gets_the_row_that_predicts_it_and_its_head_once():
    response = read(completion())
    np.testing.assert_allclose(response.logp, [np.log(0.2), np.log(0.1), np.log(0.5)], rtol=1e-6)
    assert response.head_ids.tolist() == [[0, 1], [1, 4], [3, 0]]  # token 3 of the last row is in the head, once
    np.testing.assert_allclose(np.exp(response.head_logp), [[0.4, 0.3], [0.5, 0.2], [0.5, 0.25]], rtol=1e-6)
    assert response.versions.tolist() == [7, 7, 7] and response.ended


def test_no_head_and_versions_by_span():
    response = read(completion(width=0, versions=((0, "1"), (2, "4"))), width=0)
    assert response.head_ids.shape == (3, 0)
    assert response.versions.tolist() == [1, 1, 4]


def spoilt(change):
    made = completion()
    change(made.logprobs)
    return made


def put(name, place, value):
    return lambda flat: getattr(flat, name).__setitem__(place, value)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (completion(logprobs=None), "logprobs: response 0 came with NoneType"),
        (spoilt(lambda f: f.end_indices.__setitem__(1, 5)), "expected 3 entries .* token 1, got 2"),
        (spoilt(lambda f: f.start_indices.pop()), "3 tokens and log-probs at 2 positions"),
        (spoilt(put("logprobs", 3, None)), "got None at response 0, token 1"),
        (spoilt(put("logprobs", 3, float("nan"))), "not finite; first at response 0, token 1"),
        (spoilt(put("logprobs", 3, -float("inf"))), "not finite; first at response 0, token 1"),
        (spoilt(put("logprobs", 7, float("nan"))), "NaN or above 0 .* token 2"),
        (spoilt(put("logprobs", 0, 1.5)), "raw logits"),
        (spoilt(put("ranks", 6, None)), "no rank; first at response 0, token 2"),
        (spoilt(put("token_ids", 5, 1)), "holds an id twice.* token 1"),
        (spoilt(put("logprobs", 1, -1.5)), "not in descending order"),
        (spoilt(put("token_ids", 7, 1)), "ranked inside the head is missing from it; first at response 0, token 2"),
        (completion(token_ids=[0, 2, 3]), "shifted against the tokens"),
        (completion(token_ids=[]), "response 0 is empty"),
        (completion(tokens=(2, 0), finish_reason="abort"), "2 tokens and finish_reason 'abort'"),
        (completion(tokens=(2, 3, 0)), "expected EOS .* as its last token only"),
        (completion(weight_versions=None), "weight_versions: token 0 of response 0 has no policy version"),
        (completion(versions=((0, "default"),)), "expected whole numbers, got 'default'"),
    ],
)
def test_what_the_engine_leaves_out_is_an_error_naming_the_token(made, message):
    with pytest.raises(RolloutError, match=message):
        read(made)


def test_a_whole_row_has_to_sum_to_one():
    made = completion(width=VOCABULARY)
    assert read(made, width=VOCABULARY).head_ids.shape == (3, VOCABULARY)
    made.logprobs.logprobs = [value - 0.01 for value in made.logprobs.logprobs]
    with pytest.raises(RolloutError, match="does not sum to 1"):
        read(made, width=VOCABULARY)


def both():
    return [read(completion(width=VOCABULARY), width=VOCABULARY), read(completion(tokens=(3,), width=5), width=5)]


def gathered(head_k, whole_rows=True):
    return assemble(
        both(), torch.zeros((2, 1), dtype=torch.int64), torch.arange(2), head_k=head_k, vocabulary=VOCABULARY, pad=PAD,
        temperature=1.0, whole_rows=whole_rows,
    )  # fmt: skip


def test_rollout_of_unequal_lengths():
    rollout = gathered(2).validate(VOCABULARY, 2)
    assert rollout.tokens.tolist() == [[2, 0, 3], [3, PAD, PAD]]
    assert rollout.mask.tolist() == [[True] * 3, [True, False, False]]
    assert rollout.versions.tolist() == [[7, 7, 7], [7, -1, -1]] and rollout.version == 7
    assert rollout.head_ids[1].tolist() == [[0, 1], [-1, -1], [-1, -1]]
    assert (rollout.head_logp_sampler[1, 1:] == -torch.inf).all()
    torch.testing.assert_close(rollout.logp_sampler_full[0], torch.tensor(ROWS, dtype=torch.float32))
    assert gathered(2, whole_rows=False).logp_sampler_full is None


def test_a_recorded_response_goes_on_with_its_old_entries():
    first = read(completion(tokens=(2, 0), width=2), max_tokens=2)
    whole = join(first, read(completion(tokens=(3,), width=2, versions=((0, "9"),))))
    assert whole.tokens.tolist() == [2, 0, 3] and whole.versions.tolist() == [7, 7, 9] and whole.ended
    np.testing.assert_array_equal(whole.logp[:2], first.logp)
    with pytest.raises(RolloutError, match="has ended with EOS"):
        join(whole, first)


@pytest.mark.parametrize(("head_k", "whole_rows"), [(2, False), (2, True), (0, True), (0, False)])
def test_recorded_gives_back_what_was_assembled(head_k, whole_rows):
    rollout = gathered(head_k, whole_rows)
    for before, after in zip(both(), recorded(rollout, head_k, whole_rows), strict=True):
        width = VOCABULARY if whole_rows else head_k
        for name in Response.__dataclass_fields__:
            old = getattr(before, name)
            old = old[:, :width] if name.startswith("head") else old
            if not (whole_rows and name == "head_ids"):  # equal log-probs may change places
                np.testing.assert_array_equal(old, getattr(after, name))


def test_recorded_refuses_another_head():
    with pytest.raises(RolloutError, match="head_k: expected 2, .* got 3"):
        recorded(gathered(2), 3, True)
    with pytest.raises(RolloutError, match="logp_sampler_full: expected whole rows"):
        recorded(gathered(2, whole_rows=False), 2, True)
