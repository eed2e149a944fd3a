"""Promise 10: a stranger's checkpoint or run directory executes nothing."""

from __future__ import annotations

import builtins
import code
import collections
import ctypes
import functools
import importlib
import io
import logging.config
import marshal
import operator
import os
import pathlib
import pickle
import runpy
import shutil
import subprocess
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import yaml
from omegaconf import OmegaConf

from experiments.command import stored_overrides
from experiments.runs import RunError, open_run, stored_config
from experiments.schema import ConfigError
from experiments.targets import TargetError, apart_from, locate
from gfn import checkpoint
from gfn.checkpoint import CheckpointError
from tests.composing import SMALL, composed
from tests.test_checkpoint import STATE, with_trailer
from tests.trainers import small_trainer

FORBIDDEN = ("os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.remove", "os.rmdir", "os.startfile")
FORBIDDEN += ("subprocess.Popen", "socket.connect", "shutil.", "webbrowser.", "tempfile.", "urllib.")
_watched: list[str] | None = None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched is None:
        return
    writes = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
    if writes or event.startswith(FORBIDDEN):
        _watched.append(f"{event} {arguments!r:.200}")


sys.addaudithook(_watch)


@pytest.fixture
def acts() -> Iterator[list[str]]:
    """What the interpreter notices being done that a reader of files has no business to do."""
    global _watched
    _watched = []
    yield _watched
    _watched = None


class Calls:
    """Calls something when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None) -> None:
        self.call = function, arguments, *([state] if state is not None else [])

    def __reduce__(self) -> Any:
        return self.call


def hostile(marker: str) -> dict[str, Any]:
    """Objects that act when they are unpickled, by what they do."""
    python = f"open({marker!r}, 'w')"
    shell = f"touch {marker}"
    return {
        "os.system": Calls(os.system, shell),
        "os.execv": Calls(os.execv, "/bin/touch", ["touch", marker]),
        "os.popen": Calls(os.popen, shell),
        "os.remove": Calls(os.remove, marker),
        "os.putenv": Calls(os.putenv, "LD_PRELOAD", marker),
        "subprocess.Popen": Calls(subprocess.Popen, ["touch", marker]),
        "subprocess.check_output": Calls(subprocess.check_output, ["touch", marker]),
        "eval": Calls(eval, python),
        "exec": Calls(exec, python),
        "compile": Calls(compile, python, "x", "exec"),
        "open": Calls(open, marker, "w"),
        "__import__": Calls(builtins.__import__, "antigravity"),
        "getattr": Calls(getattr, Calls(builtins.__import__, "os"), "system"),
        "import_module": Calls(importlib.import_module, "this"),
        "run_path": Calls(runpy.run_path, marker),
        "Path.touch": Calls(pathlib.Path.touch, pathlib.PurePosixPath(marker)),
        "Path.write_text": Calls(pathlib.Path.write_text, pathlib.PurePosixPath(marker), "x"),
        "rmtree": Calls(shutil.rmtree, os.path.dirname(marker)),
        "CDLL": Calls(ctypes.CDLL, marker),
        "browser": Calls(webbrowser.open, "http://127.0.0.1:9"),
        "console": Calls(code.interact),
        "temporary file": Calls(tempfile.NamedTemporaryFile),
        "logging": Calls(logging.config.dictConfig, {"version": 1}),
        "methodcaller": Calls(operator.methodcaller, "system", shell),
        "partial": Calls(functools.partial, os.system, shell),
        "map in a deque": Calls(collections.deque, Calls(map, os.system, [shell])),
        "marshal": Calls(marshal.loads, marshal.dumps(compile(python, "x", "exec"))),
        "state of a class": Calls(collections.Counter, state={"__class__": Calls(eval, python)}),
        "pickle in a pickle": Calls(pickle.loads, pickle.dumps(Calls(eval, python))),
        "torch.load": Calls(torch.load, marker, None, None),
        "bytes of a storage": Calls(torch.storage._load_from_bytes, b"x"),
        "torch.jit": Calls(torch.jit.load, marker),
        "torch.hub": Calls(torch.hub.load_state_dict_from_url, "http://127.0.0.1:9"),
        "torch module": torch.nn.Linear(1, 1),
        "numpy object": numpy.array([Calls(eval, python)], dtype=object),
        "numpy.load": Calls(numpy.load, marker, None, True),
    }


@pytest.mark.parametrize("name", hostile("x"))
def test_a_hostile_checkpoint_is_refused(name: str, tmp_path: Path, acts: list[str]) -> None:
    marker, path = tmp_path / "executed", tmp_path / "step_000000003.pt"
    for form in ("zip", "legacy", "pickle"):
        buffer, state = io.BytesIO(), {**STATE, "objective": hostile(str(marker))[name]}
        if form == "pickle":
            pickle.dump(state, buffer, protocol=2)
        else:
            torch.save(state, buffer, _use_new_zipfile_serialization=form == "zip")
        path.write_bytes(with_trailer(buffer.getvalue()))
        acts.clear()
        with pytest.raises(CheckpointError, match=r"holds more than tensors and plain values and was not loaded"):
            checkpoint.load(path)
        with pytest.raises(CheckpointError, match="no checkpoint can be used"), pytest.warns(UserWarning, match="skip"):
            small_trainer(checkpoints=tmp_path).resume()
        assert acts == []
    assert not marker.exists()


def run_directory(place: Path, **changes: Any) -> Path:
    """A run directory as gfn-train leaves it, with values of its config changed by dotted keys."""
    config = composed(*SMALL, run=str(place))
    for key, value in changes.items():
        OmegaConf.update(config, key.replace("__", "."), value, force_add=True)
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.yaml").write_text(yaml.safe_dump(OmegaConf.to_container(config, resolve=True)), encoding="utf-8")
    return place


SCRIPTS = {  # what is in the place of a config: what the message says
    b"": "is not the config of a run",
    b"- 1\n- 2\n": "is not the config of a run",
    b"just text": "is not the config of a run",
    b"name: x\nseed: 0\n": "is not the config of a run",
    b"\xff\xfe\x00": "cannot be read",
    b"run: \x00": "cannot be read",
    b"run: {a: [1, 2": "cannot be read",
    b"[" * 100_000: "deep nesting",
    b"run: 2024-13-45\nseed: 0\n": "cannot be read",
    b"run: !!python/object/apply:os.system ['touch executed']\n": "cannot be read",
    b"run: !!python/object/new:os.system ['touch executed']\n": "cannot be read",
    b"run: !!python/object/apply:subprocess.Popen\n- [touch, executed]\n": "cannot be read",
    b"run: !!python/name:os.system\n": "cannot be read",
    b"run: !!python/module:antigravity\n": "cannot be read",
    b"run: !!python/object:tests.faults.test_strangers.Calls {}\n": "cannot be read",
    b"run: !Thing {}\n": "cannot be read",
    b"seed: &a [x, x]\nrun: &b [*a, *a, *a, *a]\ntrainer: [*b, *b, *b]\n": "fill the memory",
    b"seed: &a [*a]\nrun: 1\ntrainer: 2\n": "fill the memory",
    b"seed: 0\ntrainer: {}\nrun: ${oc.env:HOME}\n": "refers to something else",
    b"seed: 0\ntrainer: {steps: '${oc.decode:1}'}\nrun: x\n": "refers to something else",
}


@pytest.mark.parametrize("content", SCRIPTS, ids=range(len(SCRIPTS)))
def test_a_hostile_config_is_refused(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acts: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_bytes(content)
    acts.clear()
    with pytest.raises(RunError, match=SCRIPTS[content]) as told:
        stored_config(tmp_path)
    assert str(tmp_path / "config.yaml") in str(told.value)
    assert acts == []
    assert not (tmp_path / "executed").exists()


TARGETS = (
    "os.system", "posix.system", "subprocess.Popen", "builtins.eval", "builtins.exec", "shutil.rmtree", "pickle.loads",
    "runpy.run_path", "importlib.import_module", "torch.load", "torch.hub.load", "torch.jit.load", "pathlib.Path",
    "numpy.load", "ctypes.CDLL", "gfn.storage.os.system", "gfn.checkpoint.torch.load", "gfn.storage.replace",
    "gfn.storage.shutil.rmtree", "gfn.checkpoint.prune", "gfn.checkpoint.save", "gfn.callbacks.JSONLines.start",
    "gfn.distributed.ray_session.module", "torch.nn.modules.module.torch.load", "torch.optim.Adam.__init__",
    "torch.nn.Module.__class__", "experiments.targets.locate", "experiments.targets.importlib.import_module",
    "experiments.train.train", "experiments.train.cli", "experiments.evaluate.evaluate", "experiments.sample.export",
    "experiments.runs.describe", "experiments.command.run_command", "experiments.benchmarks.blows.endure",
    "experiments.benchmarks.endured.main", "experiments.reports.curves.main", "experiments.build.make",
    "envs.synthesis.rewards.reward.imported", "envs.tokens.smollm2.package", "envs.synthesis.export.export",
    "envs.synthesis.libraries._OnlyMolecules", "gfn.workers._serve", "envs.synthesis.blocks.Library.write_report",
)  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
def test_a_config_that_names_what_would_act_is_refused(target: str, acts: list[str]) -> None:
    with pytest.raises(TargetError, match=r"outside what configs may call|private|makes no part of a run"):
        locate(target)
    assert acts == []


@pytest.mark.parametrize("target", ["os.system", "gfn.storage.replace", "gfn.storage.os.system"])
@pytest.mark.parametrize("place", ["env", "env.reward", "policy", "sampler", "trainer", "logger.metrics"])
def test_opening_a_run_calls_nothing_that_is_not_allowed(
    place: str, target: str, tmp_path: Path, acts: list[str]
) -> None:
    theirs = run_directory(tmp_path / "theirs", **{place: {"_target_": target, "path": str(tmp_path / "executed")}})
    acts.clear()
    with pytest.raises(ConfigError, match=r"outside what configs may call|makes no part of a run"):
        open_run(theirs)
    assert acts == []
    assert not (tmp_path / "executed").exists()


EVIL = "from pathlib import Path\nPath('executed').touch()\ndef make(**_): return 1\n"


@pytest.mark.parametrize("packages", [True, False])
@pytest.mark.parametrize("module", ["theirs.run.evil", "theirs.code.evil"])
def test_code_that_came_along_with_a_run_is_not_imported(
    module: str, packages: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    theirs = run_directory(tmp_path / "theirs" / "run", env={"_target_": f"{module}.make"})
    place = tmp_path / module.replace(".", "/")
    place.parent.mkdir(exist_ok=True)
    place.with_suffix(".py").write_text(EVIL)
    for folder in (place.parent, place.parent.parent) if packages else ():
        (folder / "__init__.py").write_text(EVIL)
    with pytest.raises(ConfigError, match="outside what configs may call"):
        open_run(Path("theirs/run"))
    with apart_from(theirs):
        if module.startswith("theirs.run"):
            with pytest.raises(TargetError, match="but for those of a run"):
                locate(f"{module}.make")
    assert not (tmp_path / "executed").exists()
    assert not [name for name in sys.modules if name.split(".")[0] == "theirs"]
    locate(f"{module}.make")
    assert (tmp_path / "executed").exists(), "a file of one's own is imported, so this test shows something"
    for name in [name for name in sys.modules if name.split(".")[0] == "theirs"]:
        del sys.modules[name]


def test_a_program_that_came_along_with_a_run_is_not_started(tmp_path: Path) -> None:
    program = tmp_path / "theirs" / "python"
    theirs = run_directory(tmp_path / "theirs", env__python=str(program))
    program.write_text("#!/bin/sh\ntouch executed\n")
    program.chmod(0o755)
    with pytest.raises(RunError, match=r"env\.python names a program beside the run"):
        open_run(theirs)


OVERRIDES = (
    "hydra.callbacks.x._target_=os.system", "+hydra.callbacks.x._target_=os.system", "++hydra.sweeper._target_=x.Y",
    "hydra.launcher._target_=theirs.evil.Launcher", "hydra/launcher=evil", "+hydra/job_logging=evil", "~hydra.job",
    "hydra.searchpath=[file:///theirs]", "hydra.run.dir=/", "hydra.job_logging.handlers.x.()=os.system", "-m",
    "--config-dir=theirs", "--config-path=theirs", "-cd=theirs", "--multirun", "--run", "--info=all", "=x", "",
    "experiment=../../theirs/evil", " hydra.job.chdir=true", "'hydra.job.chdir'=true", "+ hydra.job.chdir=true",
)  # fmt: skip


@pytest.mark.parametrize("line", [line for line in OVERRIDES if line])
def test_hostile_overrides_of_a_run_directory_are_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / "overrides.txt").write_text(f"env.side=4\n{line}\n")
    with pytest.raises(ValueError, match=r"overrides\.txt: .* is no override that gfn-train writes there"):
        stored_overrides([f"run={tmp_path}"])


def test_ordinary_overrides_are_read(tmp_path: Path) -> None:
    lines = ["env=custom", "env.side=4", "+env.x=a=b", "++env.reward.function=my.f", "~evaluator", "env/reward=sparse"]
    lines += ["sampler/source@sampler.other=replay", "env.model=../models/x", "divergence.alpha=linear:0:1"]
    (tmp_path / "overrides.txt").write_text("\n".join(lines))
    assert stored_overrides([f"run={tmp_path}"]) == lines
