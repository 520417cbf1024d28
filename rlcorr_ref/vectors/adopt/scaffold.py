"""`rlcorr vectors scaffold`: a ready test file in another project's own convention, with the vendored data where it needs any."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...errors import ContractError
from .. import store
from ..canonical import write_text

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Convention:
    """A project's convention: where the test goes, how its name ends, and the families that are vendored beside it."""

    path: str
    ending: str
    why: str
    vendored: tuple[str, ...] = ()


CONVENTIONS = {
    "verl": Convention(
        "tests/trainer/ppo/test_rlcorr_vectors_on_cpu.py", "_on_cpu.py", "verl's CPU job collects only such files"
    ),
    "slime": Convention("tests/test_rlcorr_vectors.py", ".py", "pytest collects such files", ("surrogate", "weight")),
}


def text(project: str) -> str:
    """The test file for a project."""
    return (TEMPLATES / f"{project}.py").read_text(encoding="utf-8")


def write(project: str, out: Path) -> list[Path]:
    """Write the test file, and beside it `rlcorr_vectors/` where the project vendors; returns the paths.

    Raises `ContractError` for a name that the project's CI would not collect, and rather than overwrite anything.
    """
    convention = CONVENTIONS[project]
    name = out.name
    if not (name.startswith("test_") and name.endswith(convention.ending)):
        raise ContractError(
            f"--out {out}: expected a name test_*{convention.ending}, {convention.why}; such as {convention.path}"
        )
    folder = out.parent / "rlcorr_vectors"
    files = {out: text(project)}
    if convention.vendored:
        files[folder / "loader_minimal.py"] = (store.ROOT / "loader_minimal.py").read_text(encoding="utf-8")
    for family in convention.vendored:
        files[folder / f"{family}.json"] = (store.ROOT / store.DATA / f"{family}.json").read_text(encoding="utf-8")
    there = [path for path in files if path.exists()]
    if there:
        raise ContractError(f"--out: {there[0]} exists; nothing was written")
    for path, content in files.items():
        write_text(path, content)
    return list(files)
