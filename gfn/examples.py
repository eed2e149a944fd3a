"""Some of the terminal states an evaluation has looked at, in words: the best that differ, and the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gfn.environment import Environment
from gfn.trajectories import Trajectories

SHOWN = 16  # states in all
TRIED = 4  # times as many of the best are looked at, for those that differ
LONGEST = 1000  # characters of a state in a table
BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


class Example(NamedTuple):
    """A terminal state.

    Attributes:
        state: what :meth:`Environment.describe` says of it.
        log_reward: its log-reward in nats; −inf for a reward of zero.
        best: whether it was chosen for its reward; otherwise it was the next one to come.
    """

    state: str
    log_reward: float
    best: bool


def examples(env: Environment[Any], t: Trajectories[Any]) -> list[Example]:
    """Ends of at most 16 trajectories: of each group the best that differ, and as many of the first.

    Trajectories of one group come in no order, so the first are a fair choice, and nothing is drawn for
    it. Of more than eight groups only the first eight are shown.

    Args:
        env: the environment.
        t: trajectories of P_F, ``[B]``.
    """
    groups, shown = t.group.unique()[: SHOWN // 2], list[Example]()
    each = SHOWN // (2 * len(groups))
    for group in groups:
        own = (t.group == group).nonzero().flatten()
        order = own[t.log_reward[own].argsort(descending=True, stable=True)]
        best = dict.fromkeys(_described(env, t[order[: TRIED * each]], True))
        shown += [*list(best)[:each], *_described(env, t[own[:each]], False)]
    return shown


def _described(env: Environment[Any], t: Trajectories[Any], best: bool) -> list[Example]:
    pairs = zip(env.describe(t.final), t.log_reward.tolist(), strict=True)
    return [Example(state, log_reward, best) for state, log_reward in pairs]


def table(shown: Sequence[Example]) -> str:
    """The examples as a table in Markdown, one row each."""
    rows = [f"| {'best' if e.best else 'random'} | {e.log_reward:.6g} | {_cell(e.state)} |" for e in shown]
    return "\n".join(["| chosen | log reward | state |", "|---|---|---|", *rows, ""])


def _cell(text: str) -> str:
    """Any text as one cell: as code, since brackets and stars in it are no Markdown."""
    if len(text) > LONGEST:
        text = text[: LONGEST - 1] + "…"
    text = "".join(_visible(character) for character in text).replace("|", "\\|")
    ticks = "`"
    while ticks in text:
        ticks += "`"
    inner = f" {text} " if "`" in text else text
    return f"{ticks}{inner}{ticks}" if text else ""


def _visible(character: str) -> str:
    if character in BREAKS:
        return "⏎"
    return character if character.isprintable() else " " if character.isspace() else "�"
