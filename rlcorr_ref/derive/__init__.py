"""Witnesses of the reference: slow derivations and multi-precision evaluation (extra: `derive`).

`evaluate` and `to_float` come from `mp_witness` and are imported on first use, so importing this package costs nothing
and needs no mpmath.
"""

from __future__ import annotations

__all__ = ["evaluate", "to_float"]


def __getattr__(name: str):
    if name in __all__:
        from . import mp_witness

        return getattr(mp_witness, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
