"""A JupyterLab of its own for one test: loopback, a free port, a token, its own folders; and Chromium's flags."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# No look at the network for news or updates, and no question about it over the first page.
SETTINGS = {"@jupyterlab/apputils-extension/notification": {"checkForUpdates": False, "fetchNews": "false"}}
START = 90.0  # seconds


@dataclass(frozen=True)
class Lab:
    """A running server: `url` without a slash at the end, its token, and the file that its log goes to."""

    url: str
    token: str
    log: Path

    def page(self, notebook: str) -> str:
        return f"{self.url}/lab/tree/{notebook}?token={self.token}"


@contextmanager
def lab(folder: Path, notebook: Path, importable: Path) -> Iterator[Lab]:
    """Serve a copy of `notebook` from below `folder` (empty); stopped at the end with its kernels. `importable` is a checkout."""
    work = folder / "work"
    work.mkdir()
    shutil.copy(notebook, work / notebook.name)
    own = {
        name: folder / name.lower()
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")
        + ("JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")
    }
    for path in own.values():
        path.mkdir()
    for name, values in SETTINGS.items():
        file = own["JUPYTERLAB_SETTINGS_DIR"] / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(values), encoding="utf-8")
    token = secrets.token_hex(16)
    environment = {name: value for name, value in os.environ.items() if name != "RLCORR_WIDGETS"}
    environment |= {name: str(path) for name, path in own.items()}
    environment |= {"JUPYTER_TOKEN": token, "PYTHONPATH": str(importable), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0"]
    log = folder / "lab.log"
    with log.open("w", encoding="utf-8") as out:
        server = subprocess.Popen(
            [*command, f"--ServerApp.root_dir={work}"],
            env=environment,
            cwd=work,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield Lab(_address(server, own["JUPYTER_RUNTIME_DIR"], log), token, log)
        finally:
            _stop(server)


def _address(server: subprocess.Popen, runtime: Path, log: Path) -> str:
    """Where the server listens: it writes that down once it does."""
    deadline = time.monotonic() + START
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise AssertionError(f"jupyter lab ended with status {server.returncode}:\n{log.read_text()[-2000:]}")
        for record in runtime.glob("jpserver-*.json"):
            text = record.read_text(encoding="utf-8")
            if text.rstrip().endswith("}"):
                return f"http://127.0.0.1:{json.loads(text)['port']}"
        time.sleep(0.1)
    raise AssertionError(f"jupyter lab did not listen within {START:g} s:\n{log.read_text()[-2000:]}")


def _stop(server: subprocess.Popen) -> None:
    """SIGTERM lets the server end its kernels; what is left of its own process group after that is killed."""
    server.send_signal(signal.SIGTERM)
    try:
        server.wait(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
