"""Where a number came from: commit, versions, hardware, command; and the same record inside figure files.

`environment` is taken once when a process starts to compute. `embed` turns a flat record into the metadata arguments
of ``Figure.savefig`` for PNG (text chunks) and SVG (Dublin Core description); `read_figure` gives it back with the
standard library alone, so that a figure found in a slide deck still says which data it shows.
"""

from __future__ import annotations

import hashlib
import html
import json
import os
import platform
import re
import shlex
import struct
import subprocess
import zlib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from repro.errors import LaboratoryError

ROOT = Path(__file__).resolve().parents[1]
CODE = ("rlcorr_ref", "repro", "notebooks", "pyproject.toml")
PACKAGES = ("numpy", "scipy", "torch", "transformers", "safetensors", "pandas", "matplotlib", "seaborn", "papermill")
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
PREFIX = "rlcorr:"  # every PNG text key of ours starts with it


class FigureError(LaboratoryError):
    """A figure file that cannot be read or carries no record of this laboratory."""


def file_sha256(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def write_atomic(path: Path, data: bytes) -> None:
    """Write ``data`` beside ``path``, flush it to the disk, then rename: a reader sees the old file or the new one.

    The temporary file is removed when writing fails (a full disk, for example) and the ``OSError`` is passed on.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # without it the rename itself may be lost in a power cut
    finally:
        os.close(folder)


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def commit() -> dict[str, str | bool | None]:
    """``{"commit": hex or None, "dirty": bool or None}``; dirty looks at the code folders only, not at results.

    None means that git or the repository is absent (an unpacked archive): unknown, which is not the same as clean.
    """
    head = _git("rev-parse", "--verify", "HEAD")
    status = _git("status", "--porcelain", "--", *CODE)
    return {"commit": head, "dirty": None if status is None else bool(status)}


def versions() -> dict[str, str]:
    """Python's version and those of the installed packages among `PACKAGES`."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, str | int | float]:
    """Processor name, usable cores, memory in GiB and operating system; no host name."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        name = match.group(1) if match else name
    record: dict[str, str | int | float] = {
        "processor": name,
        "cores": usable_cores(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if "SC_PHYS_PAGES" in os.sysconf_names:
        record["memory_gib"] = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    return record


def usable_cores() -> int:
    """Cores this process may run on (respects taskset and container affinity)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def portable(text: str) -> str:
    """``text`` with this checkout's own path removed and other absolute paths cut to their last part."""
    text = text.replace(f"{ROOT}{os.sep}", "").replace(str(ROOT), ".")
    return f".../{Path(text).name}" if os.path.isabs(text) else text


def command_line(arguments: Sequence[str]) -> str:
    """The command as a reader would type it in a checkout; no path of this machine survives in it."""
    return shlex.join(["python", "-m", "repro", *(portable(argument) for argument in arguments)])


def environment() -> dict[str, object]:
    """Commit, dirty flag, package versions and hardware of the running process."""
    return {**commit(), "versions": versions(), "hardware": hardware()}


def embed(record: dict[str, object], title: str) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """``savefig(metadata=...)`` for PNG and for SVG. Dates and the software line are fixed or absent, so that drawing
    the same data twice gives the same bytes."""
    texts = {
        PREFIX + key: value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        for key, value in record.items()
    }
    png: dict[str, str | None] = {"Title": title, "Software": None, **texts}
    description = json.dumps(record, sort_keys=True)
    svg: dict[str, str | None] = {"Title": title, "Date": None, "Creator": None, "Description": description}
    return png, svg


def _png_texts(path: Path, data: bytes) -> dict[str, str]:
    texts: dict[str, str] = {}
    position = len(PNG_SIGNATURE)
    while position + 8 <= len(data):
        length, kind = struct.unpack(">I4s", data[position : position + 8])
        body = data[position + 8 : position + 8 + length]
        crc = data[position + 8 + length : position + 12 + length]
        if len(body) != length or len(crc) != 4 or struct.unpack(">I", crc)[0] != zlib.crc32(kind + body):
            raise FigureError(f"{path}: expected a whole PNG file, found a damaged chunk; redraw it")
        if kind == b"tEXt":
            key, _, value = body.partition(b"\0")
            texts[key.decode("latin-1")] = value.decode("latin-1")
        elif kind == b"iTXt":
            key, _, rest = body.partition(b"\0")
            compressed = rest[0] == 1
            value = rest[2:].split(b"\0", 2)[2]
            texts[key.decode("latin-1")] = (zlib.decompress(value) if compressed else value).decode("utf-8")
        position += 12 + length
    return texts


def read_figure(path: Path) -> dict[str, object]:
    """The record that `embed` put into a PNG or SVG file.

    Raises `FigureError` when the file is missing, damaged, of another kind, or carries no record.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FigureError(f"{path}: expected a readable figure file, got {error.strerror}") from error
    if data.startswith(PNG_SIGNATURE):
        texts = _png_texts(path, data)
        record: dict[str, object] = {}
        for key, value in texts.items():
            if key.startswith(PREFIX):
                try:
                    record[key.removeprefix(PREFIX)] = json.loads(value)
                except json.JSONDecodeError:
                    record[key.removeprefix(PREFIX)] = value
    elif b"<svg" in data[:1000]:
        match = re.search(r"<dc:description>(.*?)</dc:description>", data.decode("utf-8"), re.DOTALL)
        try:
            record = json.loads(html.unescape(match.group(1))) if match else {}
        except json.JSONDecodeError as error:
            raise FigureError(f"{path}: the embedded record is not valid JSON ({error}); redraw it") from error
    else:
        raise FigureError(f"{path}: expected a PNG or SVG file")
    if not record:
        raise FigureError(f"{path}: carries no record of this laboratory; redraw it with `python -m repro draw`")
    return record
