"""Prompts for measuring a sampler: short questions for models with a tokenizer, token ids of the laboratory's tasks.

What is asked matters little here: responses are sampled at temperature 1 and nobody grades them. Half of the questions are
arithmetic and Countdown problems, the kind that policies are trained on; the other half is plain prose.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from repro.errors import LaboratoryError
from repro.tasks import arithmetic, countdown_tiny

TASKS = {"countdown_tiny": countdown_tiny, "arithmetic": arithmetic}
PROSE = (
    "What is the capital of France, and what is it known for?",
    "Explain in two sentences why the sky is blue.",
    "Write a short poem about the sea in winter.",
    "How do I boil an egg so that the yolk stays soft?",
    "Name three animals that sleep during the day.",
    "Tell me a story about a fox and a clockmaker.",
    "What is the difference between a lake and a pond?",
    "Give me a recipe for bread with four ingredients.",
    "Why do leaves change colour in autumn?",
    "Describe a train journey through the mountains.",
    "What should I pack for a weekend of hiking?",
    "Summarise how a bill becomes a law.",
    "Write a Python function that reverses a string.",
    "Who invented the printing press, and why did it matter?",
    "Suggest a name for a small bookshop by a canal.",
    "What makes a good apology?",
)


class PromptError(LaboratoryError):
    """Prompts that cannot be used: an unknown task, an empty file, a model without a tokenizer."""


def texts(count: int, seed: int) -> list[str]:
    """``count`` questions, prose and problems in turn; equal seeds give equal questions."""
    rng = np.random.default_rng(seed)
    found = []
    for place in range(count):
        a, b, c = (int(n) for n in rng.integers(2, 13, 3))
        if place % 4 == 1:
            found.append(f"What is {a} * {b} + {c}? Show your working.")
        elif place % 4 == 3:
            found.append(f"Use the numbers {a}, {b} and {c} once each, with + - *, to make {a * b - c}.")
        else:
            found.append(PROSE[place // 2 % len(PROSE)])
    return found


def read_texts(path: Path) -> list[str]:
    """The lines of ``path`` that are not blank."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise PromptError(f"prompts: expected one prompt a line in {path.name}, got an empty file")
    return lines


def encode(questions: Sequence[str], tokenizer: Any) -> list[list[int]]:
    """Token ids of the questions, as the user's turn of a chat where the tokenizer has a chat template."""
    if tokenizer is None:
        raise PromptError("prompts: the model folder holds no tokenizer; choose --task, whose prompts are token ids")
    if not tokenizer.chat_template:
        return [tokenizer(question)["input_ids"] for question in questions]
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=True, return_dict=True
        )["input_ids"]
        for question in questions
    ]


def task_prompts(name: str, count: int, seed: int) -> list[list[int]]:
    """Token ids of ``count`` training problems of a task of the laboratory."""
    if name not in TASKS:
        raise PromptError(f"task: expected one of {', '.join(TASKS)}, got {name!r}")
    task = TASKS[name]
    return [task.prompt(problem) for problem in task.training_problems(np.random.default_rng(seed), count)]
