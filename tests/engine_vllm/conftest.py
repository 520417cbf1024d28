"""Tests of the vLLM engine, collected only where vLLM is installed: it needs an environment of its own."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]
