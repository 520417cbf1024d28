"""Benchmarks: every number is a ratio of two things measured side by side in one run. `python -m repro.bench.NAME`."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def best_of(work: Callable[[], Any], repeats: int = 5) -> float:
    """Shortest wall time of `repeats` calls, in seconds, after one call to warm up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def interleaved(first: Callable[[], Any], second: Callable[[], Any], repeats: int = 7) -> tuple[float, float]:
    """Best wall time of each of two calls, alternated so that a busy machine slows both alike."""
    first(), second()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for i, work in enumerate((first, second)):
            start = time.perf_counter()
            work()
            times[i].append(time.perf_counter() - start)
    return min(times[0]), min(times[1])


def write_result(name: str, result: dict[str, Any]) -> Path:
    """Store a benchmark's result as JSON, through a temporary file."""
    RESULTS.mkdir(exist_ok=True)
    target = RESULTS / f"{name}.json"
    handle, temporary = tempfile.mkstemp(dir=RESULTS, suffix=".tmp")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=2, sort_keys=True)
        file.write("\n")
    os.replace(temporary, target)
    return target
