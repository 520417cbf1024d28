"""Progress lines on a terminal and elsewhere, and the time that is left."""

from __future__ import annotations

import io

from repro.cells.progress import Progress, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_one_live_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    out = Terminal()
    progress = Progress(out, {"a": 10, "b": 10}, finished={"b"}, workers=1)
    for step in range(1, 11):
        progress.step("a", step)
    progress.finished("a", None)
    progress.close()
    text = out.getvalue()
    assert text.count("\n") == 2  # "finished before" and "a: finished"; the rest redraws one line
    assert text.count("\r\x1b[K") == 13
    assert all(len(part) < 60 for part in text.replace("\n", "\r\x1b[K").split("\r\x1b[K"))


def test_time_left_uses_the_rate_of_this_run(monkeypatch):
    clock = iter([0.0, 2.0, 4.0])
    monkeypatch.setattr("repro.cells.progress.time.monotonic", lambda: next(clock))
    progress = Progress(io.StringIO(), {"a": 100, "b": 50}, finished=set(), workers=2)
    for step in (41, 42, 43):  # a resumed cell: 40 steps were made before and count for nothing
        progress.step("a", step)
    assert progress.summary() == "0 of 2 cells, 2.00 s/step, about 2 min left"  # (57 + 50) * 2 / 2 s
    progress.finished("b", "broken")
    assert "about 57 s left" in progress.summary()


def test_durations():
    assert [duration(s) for s in (0, 89, 120, 5399, 7200)] == ["0 s", "89 s", "2 min", "90 min", "2.0 h"]
