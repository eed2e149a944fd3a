"""Names in configs and the objects they stand for, with a list of places that may be named.

A config can only call what lies in this project, torch's optimizers and layers, the working
directory's own files, or a package the user trusts through the environment variable GFN_TRUST
(comma-separated), so opening somebody else's run executes none of their ideas.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path
from typing import Any

TRUSTED = ("gfn", "envs", "experiments", "torch.optim", "torch.nn")


class TargetError(ValueError):
    """A name in a config cannot be resolved, or may not."""


def locate(name: str) -> Any:
    """The callable that a dotted name stands for.

    Raises:
        TargetError: if the name is not trusted, cannot be imported, or is not callable.
    """
    if "." not in name or not all(part.isidentifier() for part in name.split(".")):
        raise TargetError(f"{name!r} is not a dotted name such as my_module.MyClass")
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
    # What was reached by way of an import inside a trusted module (gfn.checkpoint.os.system) must be trusted itself.
    defined = getattr(getattr(found, "func", found), "__module__", None) or module_name
    if defined != module_name:
        _require_trust(f"{defined}.{rest[-1]}")
    return found


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
    if any(name == package or name.startswith(package + ".") for package in (*TRUSTED, *extra)):
        return
    top = name.split(".")[0]
    spec = importlib.util.find_spec(top)
    if spec is None or _in_working_directory(spec.origin, spec.submodule_search_locations):
        return  # if it does not exist, importing says so
    raise TargetError(
        f"{name} is outside what configs may call ({', '.join(TRUSTED)}, and files in the working directory); "
        f"if you trust it, set the environment variable GFN_TRUST={top}"
    )


def _in_working_directory(origin: str | None, locations: Any) -> bool:
    places = [Path(place) for place in ([origin] if origin else list(locations or []))]
    here = Path.cwd().resolve()
    # A built-in module has no path but a word such as "frozen" for its origin.
    return bool(places) and all(
        place.is_absolute() and place.resolve().is_relative_to(here) and "site-packages" not in place.parts
        for place in places
    )
