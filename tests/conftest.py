"""Shared settings: the tests directory is importable, and numeric warnings in the package are errors."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
