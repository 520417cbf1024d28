"""Building the tier into a folder, and reading it back: tensor files, manifest.json, checksums.

    <inputs file>.inputs.safetensors    inputs by contract name, in the narrow dtype they are exact in (cases may share a file)
    <id>.expected.safetensors           answers by contract name, float64
    <id>.scales.safetensors             error scales, float32; one number where one holds for all entries
    manifest.json                       the case records, and sha256 and size of every tensor file

A case's own sha256 is taken over canonical JSON of what is asked and of the bytes of every tensor, so that it does not depend on
the version of the file format. `published.json` holds it for every published case: a build that gives another is refused.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ContractError
from ...wire import FUNCTIONS
from ..canonical import document, read, sha256, write_text
from ..flags import note
from ..model import SET_VERSION
from .model import DTYPES, BulkCase

MANIFEST = "manifest.json"
PUBLISHED = Path(__file__).with_name("published.json")
AGREEMENT = 1e-12  # of the error scale, between float64 and 50 digits: as in the core set
GUARD = 16.0  # tolerances between a compared quantity and its threshold: as in the core set


def tensors() -> Any:
    """The module safetensors.numpy; one clear error where the extra is not installed."""
    try:
        importlib.import_module("safetensors")
        return importlib.import_module("safetensors.numpy")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "safetensors":
            raise
        raise ContractError("the bulk tier needs safetensors: pip install 'rlcorr-ref[repro]'") from None


def declared() -> Iterator[BulkCase]:
    """All cases, in the order of their ids; computed as they are asked for."""
    from . import batches, lengths, vocabulary

    yield vocabulary.log_softmax_case()
    yield vocabulary.tis_case()
    yield vocabulary.centering_case()
    yield from lengths.length_cases()
    yield from batches.batch_cases()


def as_reference(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Stored inputs, any shape, as the float64 and int64 arrays that the reference takes; exact."""
    return {name: x.astype(np.int64 if x.dtype.kind in "iu" else np.float64) for name, x in inputs.items()}


def disagreement(case: BulkCase) -> float:
    """Largest |float64 closed form - 50-digit value| in units of the error scale.

    Raises `ContractError` above 1e-12, for another shape, and where an exact output or an entry without tolerance differs.
    """
    answer = FUNCTIONS[case.function](as_reference(case.inputs), case.settings)
    worst = 0.0
    for name, output in case.outputs.items():
        got = np.asarray(answer[name], dtype=np.float64)
        if got.shape != output.data.shape:
            raise ContractError(
                f"{case.id}: {name} has shape {list(got.shape)} in float64, {list(output.data.shape)} here"
            )
        err = np.broadcast_to(np.asarray(output.err, dtype=np.float64), got.shape)
        gap = np.abs(got - output.data)
        share = float((gap / np.where(err > 0, err, 1.0)).max(initial=0.0, where=err > 0))
        if not share <= AGREEMENT or (gap[err == 0] != 0).any():
            raise ContractError(f"{case.id}: {name} differs between float64 and 50 digits by {share:.1e} of its scale")
        worst = max(worst, share)
    return float(f"{worst:.1e}")


def record(case: BulkCase) -> dict[str, Any]:
    """The manifest's record of a case. Raises `ContractError` for an unknown flag and a threshold too near for float32."""
    if case.margin is not None and case.margin < GUARD * case.margin_tolerance:
        raise ContractError(
            f"{case.id}: a threshold lies {case.margin:.2g} nats off, within {GUARD:g} float32 tolerances"
        )
    for flag in case.flags:
        note(flag)
    key = "definition" if case.function == "objective" else "parameters"
    asked = {"id": case.id, "function": case.function, key: case.settings}
    arrays = {"inputs": case.inputs, "expected": {name: output.data for name, output in case.outputs.items()}}
    digests = {role: {name: _digest(x) for name, x in group.items()} for role, group in arrays.items()}
    return {
        **asked,
        "slug": case.slug,
        "title": case.title,
        "description": case.description,
        "derivation": case.derivation,
        "flags": list(case.flags),
        "dtypes": list(DTYPES),
        "margin": None if case.margin is None else float(f"{case.margin:.3g}"),
        "inputs": {"file": case.inputs_file, "names": sorted(case.inputs)},
        "expected": {
            name: {"kind": output.kind, "acc_scale": _two_digits(output.acc)} for name, output in case.outputs.items()
        },
        "required": list(case.required),
        "precision": {
            "method": "nearest double of a multi-precision evaluation by counts of distinct values",
            "digits": 50,
            "witness": "float64 closed form",
            "disagreement": disagreement(case),
        },
        "sha256": sha256({**asked, "tensors": digests}),
    }


def _digest(x: np.ndarray) -> dict[str, Any]:
    little = x.astype(x.dtype.newbyteorder("<"), copy=False)
    return {"dtype": x.dtype.name, "shape": list(x.shape), "sha256": hashlib.sha256(little.tobytes()).hexdigest()}


def _two_digits(x: float) -> float:
    """Rounded up to two significant digits, as in the core set."""
    if x == 0.0:
        return 0.0
    unit = 10.0 ** (np.floor(np.log10(x)) - 1)
    return float(f"{np.ceil(x / unit - 1e-6) * unit:.1e}")


def write_bytes(path: Path, data: bytes) -> None:
    """Write to a temporary file beside `path` and rename it over."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def build(folder: Path, published: Path | None = PUBLISHED) -> dict[str, Any]:
    """Write all files of the tier and return the manifest; the manifest is written last, so a folder without one is unfinished.

    Raises `ContractError` where a case's checksum is not the published one, before anything of that case is written.
    """
    from .exact import upward

    save = tensors().save
    known = read(published)["cases"] if published is not None else None
    if folder.exists() and not folder.is_dir():
        raise ContractError(f"{folder}: expected a folder, found a file")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    cases: list[dict[str, Any]] = []
    files: dict[str, dict[str, Any]] = {}
    inputs: dict[str, dict[str, np.ndarray]] = {}

    def put(name: str, group: dict[str, np.ndarray]) -> None:
        data = save({key: np.asarray(x, order="C") for key, x in group.items()})
        write_bytes(folder / name, data)
        files[name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}

    for case in declared():
        entry = record(case)
        if known is not None and known.get(case.id) != entry["sha256"]:
            was = known.get(case.id, "none")[:12]
            raise ContractError(f"{case.id}: built with sha256 {entry['sha256'][:12]}, but published is {was}")
        cases.append(entry)
        inputs.setdefault(case.inputs_file, {}).update(case.inputs)
        put(f"{case.id}.expected.safetensors", {name: o.data for name, o in case.outputs.items()})
        real = {name: o for name, o in case.outputs.items() if o.kind == "real"}
        put(f"{case.id}.scales.safetensors", {name: upward(o.err) for name, o in real.items()})
    for name, group in inputs.items():
        put(name, group)
    manifest = {"set_version": SET_VERSION, "tier": "bulk", "cases": cases, "files": files}
    write_text(folder / MANIFEST, document(manifest, "cases"))
    return manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """manifest.json of a built folder, every tensor file of it compared with its checksum.

    Raises `ContractError` for a folder that was not built (or not to the end), a missing file and a file that was changed.
    """
    if not (folder / MANIFEST).is_file():
        raise ContractError(f"{folder}: no {MANIFEST} here; build the tier with `rlcorr vectors bulk --out {folder}`")
    manifest = read(folder / MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("tier") != "bulk":
        raise ContractError(f"{folder / MANIFEST}: not a manifest of the bulk tier")
    for name, entry in sorted(manifest["files"].items()):
        try:
            found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        except OSError as error:
            raise ContractError(f"{folder / name}: listed in {MANIFEST}, cannot be read ({error.strerror})") from None
        if found != entry["sha256"]:
            wanted = entry["sha256"][:12]
            raise ContractError(
                f"{folder / name}: sha256 {found[:12]} is not {wanted} of {MANIFEST}; build the tier again"
            )
    return manifest


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a file by name; one clear `ContractError` where it is no such file, or holds a dtype NumPy lacks."""
    load = tensors().load
    try:
        return load(path.read_bytes())
    except OSError as error:
        raise ContractError(f"{path}: cannot be read ({error.strerror})") from None
    except Exception as error:  # the format's own error type is not importable without the package
        raise ContractError(f"{path}: not a safetensors file that NumPy can read ({error})") from None
