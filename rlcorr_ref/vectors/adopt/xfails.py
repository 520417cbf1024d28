"""Expected failures of a consumer: a text file, one id or prefix per line, the reason after `#`. Strict.

    grad.0045        # our loss clamps the log-ratio at 20
    centre.          # score centering is not implemented yet

The reason is part of the line: a case that is expected to fail and passes is an error, so that the list cannot rot.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path

from ...errors import ContractError
from .. import store


def read_xfails(path: str) -> dict[str, str]:
    """Id or prefix -> reason. Raises `ContractError` naming file and line for a name that fits no case or lacks a reason."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ContractError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ContractError(f"{path}: not UTF-8 text") from None
    out: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        name, _, reason = (part.strip() for part in line.partition("#"))
        if not name:
            continue
        check_xfails(f"{path}, line {number}", {name: reason})
        if name in out:
            raise ContractError(f"{path}, line {number}: {name!r} is listed twice")
        out[name] = reason
    return out


def check_xfails(where: str, xfails: Mapping[str, str]) -> Mapping[str, str]:
    """Refuse a name that begins no case's id, and one without a reason."""
    if not isinstance(xfails, Mapping):
        raise ContractError(f"{where}: expected {{id or prefix: reason}}, got {type(xfails).__name__}")
    ids = [case["id"] for case in store.load(withdrawn=True)]
    for name, reason in xfails.items():
        if not reason:
            raise ContractError(
                f"{where}: {name!r} has no reason; say why it is expected to fail, as in `{name}  # why`"
            )
        if not any(_fits(name, known) for known in ids):
            raise ContractError(f"{where}: no case begins with {name!r}{near(name, ids)}")
    return xfails


def near(name: str, known: Iterable[str]) -> str:
    """The end of an error message: up to three near names."""
    found = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.4)
    return f"; near: {', '.join(found)}" if found else "; `rlcorr vectors list` names the cases"


def _fits(name: str, case: str) -> bool:
    return case == name or ("." in name and case.startswith(name)) or case.startswith(f"{name}.")


def reason_for(case: str, xfails: Mapping[str, str]) -> str | None:
    """The reason of the longest line that fits a case, or None."""
    fitting: Iterable[str] = (name for name in xfails if _fits(name, case))
    best = max(fitting, key=len, default=None)
    return None if best is None else xfails[best]
