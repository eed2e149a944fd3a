"""Check a config against the signatures of what it names, before anything is built.

The constructors are the schema: every ``_target_`` node is compared with its target's parameters
and annotations, and every problem found is told at once, with its place in the config.
"""

from __future__ import annotations

import difflib
import inspect
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from experiments.targets import TargetError, locate

CONTROL = frozenset({"_target_", "_partial_"})


class ConfigError(ValueError):
    """The config does not fit the code; the message lists every problem."""

    def __init__(self, problems: Sequence[str]):
        listed = "\n".join(f"  {problem}" for problem in problems)
        super().__init__(f"{len(problems)} problem{'s' * (len(problems) > 1)} in the config:\n{listed}")
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[str, ...]]]:
        return ConfigError, (self.problems,)  # so that it crosses between processes


def flat(node: Any, path: str = "") -> dict[str, Any]:
    """Every value of a nested config by its dotted key."""
    if isinstance(node, Mapping):
        items = cast("Mapping[str, Any]", node).items()
        return {k: v for key, value in items for k, v in flat(value, f"{path}.{key}" if path else key).items()}
    return {path: node}


def problems_of(node: Any, path: str, supplied: frozenset[str]) -> Iterator[str]:
    """Every problem at or below ``node``.

    Args:
        node: plain Python values, ``???`` where a value is missing.
        path: where the node lies in the config.
        supplied: names of objects that are passed to constructors that ask for them.
    """
    if isinstance(node, Mapping):
        if "_target_" in node:
            yield from _target_problems(node, path, supplied)
        for key, value in node.items():
            if key not in CONTROL:
                yield from problems_of(value, f"{path}.{key}", supplied)
    elif isinstance(node, str):
        if node == "???":
            yield f"{path}: a value is missing; give it as {path}=…"
    elif isinstance(node, Sequence):
        for i, value in enumerate(node):
            yield from problems_of(value, f"{path}[{i}]", supplied)


def _target_problems(node: Mapping[str, Any], path: str, supplied: frozenset[str]) -> Iterator[str]:
    name = node["_target_"]
    if name == "???":
        yield f"{path}._target_: a value is missing; name your class, as in {path}._target_=my_module.MyClass"
        return
    try:
        target = locate(name)
        signature = inspect.signature(target)
    except (TargetError, TypeError, ValueError) as error:
        yield f"{path}._target_: {error}"
        return
    parameters = {k: p for k, p in signature.parameters.items() if p.kind is not p.VAR_POSITIONAL}
    accepts_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {k: p for k, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
    given = {k: v for k, v in node.items() if k not in CONTROL}
    if not accepts_any:
        for key in sorted(given.keys() - named.keys()):
            yield f"{path}.{key}: {unknown(key, [k for k in named if k not in supplied], name)}"
    if not node.get("_partial_"):
        for key, parameter in named.items():
            if parameter.default is parameter.empty and key not in given and key not in supplied:
                yield f"{path}: {name} needs {key}; give it as {path}.{key}=…"
    yield from _type_problems(given, parameter_types(target), path)


def unknown(key: str, allowed: Sequence[str], where: str) -> str:
    """Message about a name that does not exist, with the nearest that does."""
    near = difflib.get_close_matches(key, allowed, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{where} has no {key!r}{hint} (allowed: {', '.join(allowed) or 'nothing'})"


def _type_problems(given: Mapping[str, Any], hints: Mapping[str, Any], path: str) -> Iterator[str]:
    for key, value in given.items():
        if key in hints and value != "???" and not fits(value, hints[key]):
            yield f"{path}.{key}: expected {show(hints[key])}, got {_shown_value(value)}"
        elif isinstance(value, str) and value != "???" and wants_function(hints.get(key)):
            try:
                locate(value)
            except TargetError as error:
                yield f"{path}.{key}: {error}"


def _shown_value(value: Any) -> str:
    return f"a {value['_target_']}" if isinstance(value, Mapping) and "_target_" in value else repr(value)


def parameter_types(target: Any) -> dict[str, Any]:
    """Resolved annotations of a target's parameters; empty where they cannot be resolved."""
    function = getattr(target, "func", target)  # functools.partial
    try:
        return typing.get_type_hints(function.__init__ if inspect.isclass(function) else function)
    except (NameError, TypeError, AttributeError):
        return {}


def fits(value: Any, hint: Any) -> bool:
    """Whether a plain config value may stand for a parameter with this annotation; doubt counts as yes."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, option) for option in arguments)
    if origin is Literal:
        return value in arguments
    if isinstance(value, Mapping) and "_target_" in value:
        return hint not in (int, float, str, bool, type(None)) and _node_fits(value, hint)
    if isinstance(value, Mapping):
        return not inspect.isclass(hint) or issubclass(hint, Mapping)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (str, bool, type(None)):
        return isinstance(value, hint)
    if hint is Path:
        return isinstance(value, str)
    if _is_callable_hint(hint):
        return isinstance(value, str)
    if origin in (list, tuple) or (inspect.isclass(origin) and issubclass(origin, Sequence)):
        return isinstance(value, Sequence) and not isinstance(value, str)
    # Any other class (a schedule, an environment, …) cannot be a plain number or text.
    return not (inspect.isclass(hint) and isinstance(value, (int, float, str, bool, type(None))))


def _node_fits(node: Mapping[str, Any], hint: Any) -> bool:
    """Whether what a node builds is of the annotated class; protocols and functions are let through."""
    if not inspect.isclass(hint) or getattr(hint, "_is_protocol", False):
        return True
    try:
        target = locate(node["_target_"])
    except TargetError:
        return True  # told elsewhere
    function = getattr(target, "func", target)
    return not inspect.isclass(function) or issubclass(function, hint)


def _is_callable_hint(hint: Any) -> bool:
    return "Callable" in str(typing.get_origin(hint) or hint)


def wants_function(hint: Any) -> bool:
    """Whether an annotation asks for a function, so that text in its place is the name of one."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return any(_is_callable_hint(option) for option in options)


def show(hint: Any) -> str:
    """An annotation as a person would say it."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    names: list[str] = []
    for option in options:
        if typing.get_origin(option) is Literal:
            names += [str(choice) for choice in typing.get_args(option)]
        elif option is type(None):
            names.append("null")
        elif option is float:
            names.append("a number")
        elif option is int:
            names.append("a whole number")
        elif option is bool:
            names.append("true or false")
        elif option is str:
            names.append("text")
        elif getattr(option, "__name__", "") == "Schedule":
            names.append(
                "a schedule (constant:v, linear:start:end, cosine:…, exponential:…, each with :steps if not over the "
                "whole run, cyclic:start:end:period, piecewise:v:step:v)"
            )
        elif _is_callable_hint(option):
            names.append("the name of a function (module.function)")
        else:
            names.append(getattr(option, "__name__", str(option)))
    return " or ".join(names)
