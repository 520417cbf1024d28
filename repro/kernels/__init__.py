"""Fused float32 CPU kernels (numba) for what surrounds the matrix products of the tiny policies.

numba notices that a file has changed, but not that a kernel it calls from another file has. The cache folder therefore
carries the hash of all sources here: changed sources compile anew, and a read-only checkout can be used.

``kernel`` compiles a function that allocates nothing, ``inlined`` one that is copied into its callers. Neither counts
references: numba's counts are atomic instructions around every use of an array, and cost a short kernel a third of its
time. The caller holds every array until the kernel returns; scratch is an argument.
"""

import hashlib
import os
from pathlib import Path

from numba import config as _numba
from numba import njit

_sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
if "NUMBA_CACHE_DIR" not in os.environ:
    _root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    _numba.CACHE_DIR = str(_root / "rlcorr-ref" / f"numba-{hashlib.sha256(_sources).hexdigest()[:16]}")

kernel = njit(cache=True, _nrt=False)
inlined = njit(cache=True, forceinline=True, _nrt=False)
