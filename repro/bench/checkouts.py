"""This checkout against another one of this repository: ``python -m repro.bench.checkouts FOLDER``.

Both train the same tiny run (score centering, the quantised sampler, 32 x 8 responses), each in a process of its own with one
thread; steps are made in turn, so that whatever else the machine does slows both. The recorded ratio is against first light,
the first commit in which a run trained: ``git worktree add FOLDER 844ab57``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from repro.bench import write_result
from repro.provenance import ROOT, hardware

STEPS = 15
CHILD = """
import sys, time
import torch
from repro.trainer import Trainer
torch.set_num_threads(1)
trainer = Trainer({"arm": "sc", "seed": 1, "steps": 1000, "oracle_every": 1000, "eval_every": 1000})
for _ in range(3):  # compile, and measure nothing that happens once
    trainer.run_step()
print("ready", flush=True)
for _ in sys.stdin:
    started = time.perf_counter()
    trainer.run_step()
    print(time.perf_counter() - started, flush=True)
"""


class Stepper:
    """A process in the checkout ``folder`` that makes one training step whenever it is asked to."""

    def __init__(self, folder: Path):
        environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self.process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"{folder}: the run did not start; see the message above")

    def seconds(self) -> float:
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m repro.bench.checkouts", description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="another checkout of this repository")
    folder = parser.parse_args(arguments).folder.resolve()
    steppers = [Stepper(ROOT), Stepper(folder)]
    times = [[stepper.seconds() for stepper in steppers] for _ in range(STEPS)]
    for stepper in steppers:
        stepper.close()
    here, there = (median(column) for column in zip(*times, strict=True))
    result = {
        "other_commit": subprocess.check_output(["git", "-C", str(folder), "rev-parse", "HEAD"], text=True).strip(),
        "processor": hardware()["processor"],
        "steps": STEPS,
        "threads": 1,
        "step_seconds": {"here": round(here, 3), "other": round(there, 3)},
        "step_seconds_fastest": {
            name: round(min(column), 3)
            for name, column in zip(("here", "other"), zip(*times, strict=True), strict=True)
        },
        "other_over_here": round(median(b / a for a, b in times), 2),
    }
    print(write_result("checkouts", result).read_text())


if __name__ == "__main__":
    main()
