"""Promise 12: the commands work where little works: no network, home, terminal or locale, odd paths, read-only code."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.children import ROOT

# Whoever asks for the network ends the program.
OFFLINE = """
import os, socket
def refuse(*_, **__):
    os._exit(99)
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
"""
RUN = "run=Läufe/der 1. Lauf (neu), it's"
SMALL = ("env.side=4", "policy.width=8", "sampler.batch_size=8", "evaluator.every=5", "trainer.steps=6")


def installed(place: Path) -> Path:
    """A copy of the packages that nobody may write to."""
    for package in ("gfn", "envs", "experiments", "configs"):
        shutil.copytree(ROOT / package, place / package, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [place, *place.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    return place


def content(place: Path) -> dict[str, int]:
    """Every file but Python's own, with its time: root may write where nobody may."""
    return {str(p): p.stat().st_mtime_ns for p in place.rglob("*") if "__pycache__" not in p.parts and p.is_file()}


def harsh(site: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1", "LANG": "C", "LC_ALL": "C",
        "TERM": "dumb", "HOME": "/proc/nobody", "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9",
    }  # fmt: skip


def run(site: Path, cwd: Path, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = f"{OFFLINE}\nfrom experiments.{command} import cli\ncli()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=cwd, env=harsh(site), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8", timeout=300, check=False,
    )  # fmt: skip


def test_a_run_with_nothing_but_its_directory(tmp_path: Path) -> None:
    site, cwd = installed(tmp_path / "site"), tmp_path / "ein Ort für 分子, $HOME; 'x' #1"
    cwd.mkdir()
    before = content(site)
    done = run(site, cwd, "train", *SMALL, RUN)
    assert done.returncode == 0, done.stdout
    assert "Traceback" not in done.stdout
    assert "\x1b[" not in done.stdout, "no codes for a terminal that is not there"
    place = cwd / RUN.removeprefix("run=")
    assert [json.loads(line)["step"] for line in (place / "metrics.jsonl").read_text().splitlines()] == [5, 6]
    assert shlex.quote(f"run={place}") in (place / "README.md").read_text(encoding="utf-8")
    assert (place / "figures" / "progress.png").is_file()
    done = run(site, cwd, "sample", RUN, "n=3", "format=jsonl", "out=-")
    assert len(done.stdout.splitlines()) == 3, done.stdout
    assert content(site) == before, "nothing was written where the code lies"
    assert sorted(path.name for path in cwd.iterdir()) == ["Läufe"], "nothing was written beside the run"


@pytest.mark.slow
@pytest.mark.parametrize("extra", [("env=synthesis", "env.size=40", "env.max_reactions=2"), ("env=diffusion",)])
def test_other_environments(extra: tuple[str, ...], tmp_path: Path) -> None:
    site, cwd = installed(tmp_path / "site"), tmp_path / "ein Ort"
    cwd.mkdir()
    before = content(site)
    shared = ("sampler.batch_size=8", "evaluator.n_samples=16", "trainer.steps=3", "run=r u n")
    done = run(site, cwd, "train", *extra, *shared)
    assert done.returncode == 0, done.stdout
    done = run(site, cwd, "evaluate", "run=r u n", "n_samples=16")
    assert done.returncode == 0, done.stdout
    assert content(site) == before
