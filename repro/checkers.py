"""Answer checker of the arithmetic task: does a short answer text equal the gold answer, as judged by math-verify.

The verdict is ``math_verify.verify(parse(gold), parse(answer))`` (Hugging Face Math-Verify 0.9), the library that
public RL recipes for mathematics grade with, UniRL's among them. Two things are added around it:

* A gate in front. math-verify is built to find an answer in prose, so it reads ``64*`` and ``=64`` as 64 and ``- 5`` as
  5. Here an answer has to be a whole-number literal, or else it is wrong. Leading zeros may stand (``064``) except
  behind a minus, where math-verify 0.9 finds no number in ``-09``.
* A memo behind. One parse and one comparison cost about a millisecond; a policy gives few distinct answers.

The library's own time limits are off: they rest on ``signal.alarm``, which works in the main thread only, and the gate
bounds the work. It is imported on first use, so that nothing else here needs it.
"""

from __future__ import annotations

import functools
import importlib
import logging
import re

LONGEST_ANSWER = 100  # characters; responses are shorter
MEMO_SIZE = 1 << 16
REQUIREMENT = "math-verify[antlr4_13_2]>=0.9,<0.10"

_INTEGER = re.compile(r"[0-9]+|-0|-[1-9][0-9]*")


@functools.cache
def _library():
    """The math_verify module, with its notice that the time limits are off (which is meant) kept out of the logs."""
    try:
        module = importlib.import_module("math_verify")
    except ImportError as error:
        raise ImportError(f"the arithmetic task is graded by math-verify; pip install '{REQUIREMENT}'") from error
    for name in ("math_verify.parser", "math_verify.grader"):
        logging.getLogger(name).addFilter(lambda record: not str(record.msg).startswith("Timeout is disabled"))
    return module


@functools.lru_cache(maxsize=MEMO_SIZE)
def _verify(gold: int, answer: str) -> bool:
    library = _library()
    config = [library.ExprExtractionConfig()]
    expected = library.parse(str(gold), extraction_config=config, parsing_timeout=None)
    found = library.parse(answer, extraction_config=config, parsing_timeout=None)
    return bool(library.verify(expected, found, timeout_seconds=None))


def equals(gold: int, answer: str) -> bool:
    """Whether the text ``answer`` is a whole-number literal that math-verify finds equal to ``gold``.

    A literal is ``[0-9]+``, ``-0`` or ``-[1-9][0-9]*``. Anything else (empty, spaces, signs alone, expressions,
    decimals, more than 100 characters) is False, never an error. TypeError for a gold answer that is not an int or an
    answer that is not a str.
    """
    if isinstance(gold, bool) or not isinstance(gold, int):
        raise TypeError(f"gold: expected an int, got {type(gold).__name__}")
    if not isinstance(answer, str):
        raise TypeError(f"answer: expected a str, got {type(answer).__name__}")
    if len(answer) > LONGEST_ANSWER or not _INTEGER.fullmatch(answer):
        return False
    return _verify(gold, answer)


def memo_statistics() -> dict[str, int]:
    """``hits``, ``misses`` (real math-verify calls) and ``size`` of the memo in this process."""
    information = _verify.cache_info()
    return {"hits": information.hits, "misses": information.misses, "size": information.currsize}
