"""Short forms on the command line.

A schedule may stand wherever a number may vary, as ``kind:values``: ``linear:0:1`` (over the whole
run), ``cosine:1e-3:1e-5:5000`` (over 5000 steps), ``exponential:1:0.01``, ``cyclic:0:1:500``,
``constant:0.5``, ``piecewise:0.1:1000:0.01`` (0.1, and 0.01 from step 1000 on).
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from typing import Any, cast

from experiments.schema import parameter_types
from experiments.targets import TargetError, locate

RAMPS = {"linear": "Linear", "cosine": "Cosine", "exponential": "Exponential"}


def expand_schedules(node: Any, steps: int) -> Any:
    """``node`` with every short form in the place of a schedule written out; text that is none stays as it is.

    In a run of no steps a schedule that spans the run is given one, so that the run can be built and looked at.
    """
    if isinstance(node, Mapping):
        hints = _schedule_hints(node)
        spans = steps == 0 and node.get("steps") == 0 and str(node.get("_target_")).startswith("gfn.schedules.")
        return {
            key: _expand(value, steps) if key in hints else expand_schedules(value, steps)
            for key, value in node.items()
        } | ({"steps": 1} if spans else {})
    if isinstance(node, list):
        return [expand_schedules(value, steps) for value in cast("list[Any]", node)]
    return node


def _schedule_hints(node: Mapping[str, Any]) -> set[str]:
    try:
        hints = parameter_types(locate(node["_target_"])) if "_target_" in node else {}
    except TargetError:
        return set()
    return {key for key, hint in hints.items() if _admits_schedule(hint)}


def _admits_schedule(hint: Any) -> bool:
    """Whether a schedule may stand here, or in the places of a sequence here, and text may not."""
    options = typing.get_args(hint)
    if typing.get_origin(hint) is Sequence:
        return any(_admits_schedule(option) for option in options)
    return any(getattr(option, "__name__", "") == "Schedule" for option in options) and str not in options


def _expand(value: Any, steps: int) -> Any:
    if isinstance(value, list):
        return [_expand(one, steps) for one in cast("list[Any]", value)]
    return _expand_text(value, steps) if isinstance(value, str) else expand_schedules(value, steps)


def _expand_text(text: str, steps: int) -> Any:
    kind, *rest = text.split(":")
    try:
        return _node(kind, [float(value) for value in rest], steps) or text
    except ValueError:
        return text


def _node(kind: str, values: list[float], steps: int) -> dict[str, Any] | None:
    """The config node of a schedule, or None if the values do not suit the kind."""
    count = len(values)
    if kind == "constant" and count == 1:
        return {"_target_": "gfn.schedules.Constant", "value": values[0]}
    if kind in RAMPS and count in (2, 3):
        over = int(values[2]) if count == 3 else max(steps, 1)
        return {"_target_": f"gfn.schedules.{RAMPS[kind]}", "start": values[0], "end": values[1], "steps": over}
    if kind == "cyclic" and count == 3:
        return {"_target_": "gfn.schedules.Cyclic", "start": values[0], "end": values[1], "period": int(values[2])}
    if kind == "piecewise" and count % 2 == 1:
        boundaries = [int(value) for value in values[1::2]]
        return {"_target_": "gfn.schedules.Piecewise", "boundaries": boundaries, "values": values[0::2]}
    return None
