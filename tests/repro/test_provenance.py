"""Commit, versions and commands as they are recorded; atomic writing."""

from __future__ import annotations

import os
import subprocess

import pytest

from repro import provenance
from repro.provenance import ROOT, command_line, portable, write_atomic


def test_commands_carry_no_path_of_this_machine():
    places = ["--store", f"{ROOT}/repro/runs/a b", "--out", "/scratch/me/fig"]
    line = command_line(["run", "countdown-fig4", *places, "--steps", "4"])
    assert line == "python -m repro run countdown-fig4 --store 'repro/runs/a b' --out .../fig --steps 4"
    assert portable(str(ROOT)) == "." and portable("relative/path") == "relative/path"


def test_the_environment_names_versions_and_hardware():
    record = provenance.environment()
    assert record["versions"]["numpy"].count(".") == 2 and "python" in record["versions"]
    assert record["hardware"]["cores"] >= 1 and record["hardware"]["memory_gib"] > 0
    assert str(ROOT) not in str(record)


def test_commit_and_dirty_flag_follow_the_code_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    assert provenance.commit() == {"commit": None, "dirty": None}, "unknown is not clean"

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    git("init", "-q")
    (tmp_path / "repro").mkdir()
    (tmp_path / "repro" / "a.py").write_text("1")
    assert provenance.commit() == {"commit": None, "dirty": True}
    git("add", ".")
    git("commit", "-q", "-m", "one")
    assert provenance.commit() == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "paper_figures").mkdir()
    (tmp_path / "paper_figures" / "data.csv").write_text("results do not make the code dirty")
    assert provenance.commit()["dirty"] is False
    (tmp_path / "repro" / "a.py").write_text("2")
    assert provenance.commit()["dirty"] is True


def test_without_git_the_commit_is_unknown(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert provenance.commit() == {"commit": None, "dirty": None}


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_atomic(path, b"old")

    def refuse(source, target):
        raise OSError("planted")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="planted"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["a.txt"]
