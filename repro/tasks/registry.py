"""The tasks that a warm start and a training run take by name."""

from __future__ import annotations

from repro.tasks import arithmetic, countdown_tiny
from repro.tasks.countdown_short import Short

TASKS = {
    "countdown_tiny": countdown_tiny,
    "countdown_three": Short(3),
    "countdown_one": Short(1),
    "arithmetic": arithmetic,
}
