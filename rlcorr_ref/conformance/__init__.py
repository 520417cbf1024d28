"""Conformance: installed production packages, or a user's own functions, judged against the published vectors.

    rlcorr conformance verl trl --report DIR
    rlcorr conformance --adapter my_trainer.py

A built-in adapter is one file in `adapters/` with the version range that it was verified against; another version
is refused, an absent package is "not run". Nothing heavier than NumPy is imported before an adapter runs.
"""

from __future__ import annotations

from .protocol import Adapter, Named, NotSupported, read_adapter

__all__ = ["Adapter", "Named", "NotSupported", "read_adapter"]
