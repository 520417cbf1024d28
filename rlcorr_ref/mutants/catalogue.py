"""The public reports behind the mutants: 124 entries, each with the mutants that retell it or the reason why there is none.

The numbers are this table's own. An entry is one fault, seen in one or several threads of public repositories (2021 to 2026);
a mutant carries the entries that it retells and their threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from .registry import mutants

ENTRIES = range(1, 125)

# entry -> (threads, why no wrong number can be had behind this interface)
WITHOUT: dict[int, tuple[str, str]] = {
    14: ("TRL #7120, #4772", "a default: a cap of 3 on a product of 300 ratios drops whole batches, as defined"),
    48: ("TRL #6166, #6693", "contested repairs of a NaN log-prob on a valid token; the contract refuses the input"),
    59: ("slime 82d3f94a3", "max(sum, 1) with 1 as a dimension raises at first use; no number to compare"),
    60: ("NeMo Gym #1612", "engine plumbing: a field that was never returned masks the whole batch"),
    70: (
        "Megatron-LM #1594",
        "the caller's array is changed, the answer is not; a test that inputs stay unmutated sees it",
    ),
    83: ("TRL #4852", "schedule: evaluation divided by the training accumulation steps"),
    95: ("TRL #3722", "the model's forward pass: prompts padded on the side of the completion"),
    100: ("marin #1731", "the model's forward pass: attention without its causal mask"),
    101: ("slime e9e42e5e8", "reassembly of context-parallel chunks of one row; the interface has whole rows"),
    102: ("ms-swift #6890, #7328", "tokenisation: counts differ, the correction is skipped for the batch"),
    103: ("NeMo-Aligner #68", "the model's forward pass: padded and unpadded logits differ"),
    106: ("verl #4708", "dropout active while scoring; a random answer is no definition"),
    107: ("verl #6280, UniRL #437", "kernels whose results depend on the micro-batch's shape"),
    110: ("TRL #7266, sglang #35571", "32-bit row * stride wraps beyond 2^31 entries, larger than any vector"),
    117: ("TensorRT-LLM #7296", "ranks of head entries, which no formula of the contract reads"),
    120: ("TRL #5902, #5773, #5775", "missing rewards counted as 0; the contract refuses rewards that are not finite"),
}


@dataclass(frozen=True)
class Entry:
    """One public report: its threads, and either the mutants that retell it or the reason why there is none."""

    number: int
    threads: str
    mutants: tuple[str, ...]
    reason: str


def catalogue() -> list[Entry]:
    """All entries in order."""
    out = []
    for number in ENTRIES:
        names = tuple(name for name, mutant in mutants().items() if number in mutant.entries)
        threads, reason = WITHOUT.get(number, ("", ""))
        if names:
            threads = "; ".join(dict.fromkeys(mutants()[name].threads for name in names))
        out.append(Entry(number, threads, names, reason))
    return out


def table() -> str:
    """The catalogue as a Markdown table."""
    lines = ["| entry | threads | mutants, or why none |", "|---|---|---|"]
    for entry in catalogue():
        lines.append(f"| {entry.number} | {entry.threads} | {', '.join(entry.mutants) or entry.reason} |")
    return "\n".join(lines)
