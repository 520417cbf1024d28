"""Oracle vectors: citable cases with permanent ids, exact inputs, 50-digit answers and error scales.

    from rlcorr_ref import vectors
    for case in vectors.load(family="grad", dtype="fp32"):
        answer = my_implementation(vectors.envelope(case))

Loading needs the standard library only; INTERPRETING.md says how an answer is judged.
"""

from __future__ import annotations

from .store import envelope, get, load, manifest

__all__ = ["envelope", "get", "load", "manifest"]
