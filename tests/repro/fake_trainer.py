"""A stand-in for the trainer: invented metrics, a checkpoint after every step, faults on demand.

Environment variables steer it, because it runs inside worker processes: FAKE_DELAY seconds per step, FAKE_FAIL an arm
that raises at step 3, FAKE_DIE an arm whose process kills itself at step 3 (once, while FAKE_DIE_ONCE names no file).
Every computed step is appended to ``computed.txt`` beside the checkpoint, so that a test can see what was redone.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from synthetic import metrics

NOT_A_FUNCTION = 3


def run_cell(config: dict[str, Any], on_step: Callable[[dict], None], checkpoint_dir: Path) -> list[dict[str, Any]]:
    """The contract of ``repro.trainer.run_cell``, continuing from ``checkpoint_dir`` when there is a state."""
    checkpoint_dir.mkdir(parents=True, exist_ok=True)
    state = checkpoint_dir / "state.json"
    rows = json.loads(state.read_text()) if state.exists() else []
    print(f"{config['arm']} starts at step {len(rows) + 1}")
    while len(rows) < config["steps"]:
        step = len(rows) + 1
        if step == 3 and os.environ.get("FAKE_FAIL") == config["arm"]:
            raise ArithmeticError("planted failure at step 3")
        if step == 3 and os.environ.get("FAKE_DIE") == config["arm"]:
            marker = Path(os.environ["FAKE_DIE_ONCE"])
            if not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(float(os.environ.get("FAKE_DELAY", "0")))
        row = metrics(config["arm"], config["seed"], step, config["steps"], config["eval_every"])
        rows.append(row)
        temporary = state.with_suffix(".tmp")
        temporary.write_text(json.dumps(rows))
        temporary.replace(state)
        with open(checkpoint_dir.parent / "computed.txt", "a") as handle:
            handle.write(f"{step} {os.environ['OMP_NUM_THREADS']}\n")
        on_step(row)
    return rows
