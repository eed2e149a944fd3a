"""Names in configs and the objects they stand for, with a list of places that may be named.

A config can only call what lies in this project, torch's optimizers and layers, the working
directory's own files, or a package the user trusts through the environment variable GFN_TRUST
(comma-separated), so opening somebody else's run executes none of their ideas. Of this project it
can only name what makes something: classes, and functions that return an object or numbers.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

TRUSTED = ("gfn", "envs", "experiments", "torch.optim", "torch.nn")
NO_PARTS = ("experiments.benchmarks", "experiments.reports")  # programs
# What functions return that act rather than make something; among ours they are not for configs to call.
ACTS = (
    "None", "bool", "int", "str", "bytes", "Path", "Any", "list[Path]", "list[str]", "dict", "Generator", "Iterator",
)  # fmt: skip

_strange: ContextVar[tuple[Path, ...]] = ContextVar("_strange", default=())


class TargetError(ValueError):
    """A name in a config cannot be resolved, or may not."""


def locate(name: Any) -> Any:
    """The callable that a dotted name stands for; a config may hold anything in its place.

    Raises:
        TargetError: if the name is not trusted, cannot be imported, or is not callable.
    """
    if not isinstance(name, str) or "." not in name or not all(part.isidentifier() for part in name.split(".")):
        raise TargetError(f"{name!r} is not a dotted name such as my_module.MyClass")
    if any(part.startswith("_") for part in name.split(".")):
        raise TargetError(f"{name} is private; configs may name public classes and functions only")
    _require_trust(name)
    module_name, rest = _importable_part(name)
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise TargetError(f"cannot import {module_name}: {type(error).__name__}: {error}") from error
    for part in rest:
        if not hasattr(found, part):
            public = [n for n, v in vars(found).items() if not n.startswith("_") and callable(v)]
            raise TargetError(f"{module_name} has no {part!r} (it has: {', '.join(public[:20])})")
        found = getattr(found, part)
    if not callable(found):
        raise TargetError(f"{name} is a {type(found).__name__}, not a class or function")
    # What was reached by way of an import inside a trusted module (gfn.storage.os.system) must be trusted itself.
    defined = getattr(getattr(found, "func", found), "__module__", None) or module_name
    if defined != module_name:
        _require_trust(f"{defined}.{rest[-1]}")
    _require_part(found, name, defined)
    return found


@contextmanager
def apart_from(directory: Path) -> Generator[None]:
    """Let configs name nothing that lies in this directory, be it below the working directory or not."""
    token = _strange.set((*_strange.get(), directory.resolve()))
    try:
        yield
    finally:
        _strange.reset(token)


def _require_part(found: Any, name: str, module: str) -> None:
    """Refuse what would act when it is called, such as write a file, rather than make a part of a run."""
    function = getattr(found, "func", found)
    if not _within(module, TRUSTED) or inspect.isclass(function) or module.startswith("torch."):
        return
    result = str(getattr(function, "__annotations__", {}).get("return", "Any"))
    acts = any(kind.strip() == act or kind.startswith(f"{act}[") for kind in result.split(" | ") for act in ACTS)
    if acts or _within(module, NO_PARTS):
        raise TargetError(f"{name} makes no part of a run; configs may name classes, and functions that make an object")


def _within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def _importable_part(name: str) -> tuple[str, list[str]]:
    """Split a dotted name into the longest module that exists and the attributes within it."""
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:end])
        try:
            if importlib.util.find_spec(module) is not None:
                return module, parts[end:]
        except (ImportError, AttributeError, ValueError):
            continue
    raise TargetError(
        f"cannot import {parts[0]}: there is no such module; a file {parts[0]}.py is looked for in the "
        f"working directory ({Path.cwd()}) and among installed packages"
    )


def _require_trust(name: str) -> None:
    extra = tuple(filter(None, os.environ.get("GFN_TRUST", "").split(",")))
    if _within(name, (*TRUSTED, *extra)):
        return
    top = name.split(".")[0]
    if all(_in_working_directory(place) for place in _places(name)):
        return  # if it does not exist, importing says so
    raise TargetError(
        f"{name} is outside what configs may call ({', '.join(TRUSTED)}, and files in the working directory, "
        f"but for those of a run); if you trust it, set the environment variable GFN_TRUST={top}"
    )


def _places(name: str) -> list[Path]:
    """Every file and folder that importing a dotted name could read; nothing is imported to find them."""
    top, *rest = name.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None:
        return []
    folders = [Path(place) for place in spec.submodule_search_locations or ()]
    places = [Path(spec.origin)] if spec.origin else folders
    for part in rest:
        found = [place for folder in folders for place in (folder / part, *folder.glob(f"{part}.*")) if place.exists()]
        places = [*places, *found]
        folders = [place for place in found if place.is_dir()]
    return places


def _in_working_directory(place: Path) -> bool:
    # A built-in module has no path but a word such as "frozen" for its origin.
    if not place.is_absolute() or "site-packages" in place.parts:
        return False
    real = place.resolve()
    return real.is_relative_to(Path.cwd().resolve()) and not any(real.is_relative_to(f) for f in _strange.get())
