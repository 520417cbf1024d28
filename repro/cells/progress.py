"""Progress of a run: one live line on a terminal, one line per tenth of a cell otherwise."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from typing import TextIO


def duration(seconds: float) -> str:
    """``seconds`` as people say it: "40 s", "12 min", "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Progress:
    """Counts steps per cell and says how many cells are done, the seconds per step and the time that is left.

    steps: cell name -> steps it has in all. finished: names of cells that were done before. The rate is that of the
    steps seen in this run, so a resumed run does not credit itself with the work of the one before.
    """

    def __init__(self, out: TextIO, steps: Mapping[str, int], *, finished: set[str], workers: int) -> None:
        self._out = out
        self._steps = dict(steps)
        self._done = {name: self._steps[name] if name in finished else 0 for name in steps}
        self._finished = set(finished)
        self._workers = max(workers, 1)
        self._live = out.isatty()
        self._last: dict[str, float] = {}  # time of the latest step of each running cell
        self._seconds = 0.0
        self._seen = 0
        if finished:
            self._print(f"{len(finished)} of {len(steps)} cells were finished before")

    def step(self, name: str, done: int) -> None:
        """A running cell has ``done`` of its steps behind it."""
        moment = time.monotonic()
        if name in self._last:
            self._seconds += moment - self._last[name]
            self._seen += 1
        self._last[name] = moment
        before, self._done[name] = self._done[name], done
        if self._live:
            self._redraw()
        elif done * 10 // self._steps[name] > before * 10 // self._steps[name]:
            percent = 100 * done // self._steps[name]
            self._print(f"{name}: {percent}% (step {done} of {self._steps[name]}); {self.summary()}")

    def finished(self, name: str, error: str | None) -> None:
        """A cell has ended, with or without an error."""
        self._last.pop(name, None)
        self._finished.add(name)
        if error is None:
            self._done[name] = self._steps[name]
            self._print(f"{name}: finished; {self.summary()}")
        else:
            self._print(f"{name}: FAILED: {error}")

    def summary(self) -> str:
        """``4 of 15 cells, 0.62 s/step, about 9 min left``."""
        text = f"{len(self._finished)} of {len(self._steps)} cells"
        if self._seen:
            rate = self._seconds / self._seen
            left = sum(total - self._done[n] for n, total in self._steps.items() if n not in self._finished)
            text += f", {rate:.2f} s/step, about {duration(left * rate / self._workers)} left"
        return text

    def close(self) -> None:
        """Leave the terminal with the cursor on a line of its own."""
        if self._live:
            self._out.write("\r\x1b[K")
            self._out.flush()

    def _print(self, line: str) -> None:
        self._out.write(f"\r\x1b[K{line}\n" if self._live else f"{line}\n")
        self._out.flush()

    def _redraw(self) -> None:
        cells = ", ".join(f"{name} {100 * self._done[name] // self._steps[name]}%" for name in self._last)
        width = shutil.get_terminal_size().columns - 1
        self._out.write(f"\r\x1b[K{f'{self.summary()} | {cells}'[:width]}")
        self._out.flush()
