"""Official Countdown as token ids: chat prompts of a tokenizer, rewards of decoded responses, the order of problems.

Rows, split, prompt and acceptance are those of ``repro.tasks.countdown``; rewards are +1 and -1. Prompts are padded on
the left to one length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from repro.tasks import countdown
from repro.tasks.countdown import Row

OPEN_ANSWER = "<answer> ("  # what follows in an answer is the choice of a number


class CountdownTask:
    """``tokenizer`` of a chat model, ``pad`` as the policy has it, ``seed`` of the run (shuffles the data set).

    ``accept(row, text)`` -> 1.0 or 0.0 can be replaced; it is the official rule by default.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        pad: int,
        seed: int,
        data_rows: int,
        held_out: int,
        accept: Callable[[Row, str], float] = countdown.reward,
    ):
        self.tokenizer, self.pad, self.accept = tokenizer, pad, accept
        self.eos: int = tokenizer.eos_token_id
        self.training, self.held_out = countdown.split(countdown.rows(data_rows), seed, held_out)

    def problems(self, step: int, number: int) -> list[Row]:
        """The ``number`` training rows of step ``step`` (0-based): in order, from the beginning again at the end."""
        return [self.training[(step * number + i) % len(self.training)] for i in range(number)]

    def prompt(self, row: Row) -> list[int]:
        """The chat prompt, ready for the response; a model that can think aloud by itself is told not to."""
        return self.tokenizer.apply_chat_template(
            countdown.messages(row), add_generation_prompt=True, enable_thinking=False, tokenize=True, return_dict=False
        )

    def prompts(self, rows: Sequence[Row]) -> Tensor:
        """[N, P] int64, padded on the left."""
        return self._padded([self.prompt(row) for row in rows])

    def probes(self, rows: Sequence[Row]) -> Tensor:
        """[N, L] int64: prompts followed by the opening of an answer, for comparing an engine with the trainer."""
        opening = self.tokenizer.encode(OPEN_ANSWER, add_special_tokens=False)
        return self._padded([self.prompt(row) + opening for row in rows])

    def rewards(self, rows: Sequence[Row], responses: Sequence[Sequence[int]]) -> Tensor:
        """[B] float32, +1 or -1, of responses without what lies behind their end."""
        texts = (self.tokenizer.decode(response, skip_special_tokens=True) for response in responses)
        return torch.tensor([2 * self.accept(row, text) - 1 for row, text in zip(rows, texts, strict=True)])

    def _padded(self, sequences: list[list[int]]) -> Tensor:
        for sequence in sequences:
            if sequence[0] == self.pad:
                raise ValueError(
                    f"prompts: expected no prompt to begin with the pad token {self.pad}, got {sequence[:8]}...; padding is "
                    "recognised by it - give the tokenizer another pad token"
                )
        longest = max(map(len, sequences))
        return torch.tensor([[self.pad] * (longest - len(sequence)) + sequence for sequence in sequences])
