"""Whether asynchronous training endures: groups trained on once, none too old, memory flat, whoever is killed.

    python -m experiments.benchmarks.endurance groups=200 per_step=4 searchers=3 kills=2 trainer_kills=1
    python -m experiments.benchmarks.endurance runs=50

trains a small grid with searchers of Ray (Linux alone), kills searchers and the whole trainer at random moments, has
the trainer go on from its checkpoint, and accounts for every group in the model that results: what a checkpoint does
not hold has been undone, and must have been done again. With a fixed lag the model must be, bit for bit, that of an
undisturbed run in one process. With ``runs`` everything is drawn, for each run anew. A run that takes longer than
``limit`` seconds hangs; its stacks are told. The exit code is 1 if anything is wrong.
"""

from __future__ import annotations

import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from experiments.benchmarks.blows import Blow, Ordeal, endure
from experiments.benchmarks.cluster import cluster
from experiments.benchmarks.endured import Plan, undisturbed
from experiments.reports.arguments import numbers, options
from gfn import checkpoint

DEFAULTS = {
    "out": "", "runs": "0", "limit": "600", "groups": "200", "per_step": "4", "group_size": "4", "searchers": "3",
    "staleness": "2", "fixed_lag": "false", "width": "32", "pause": "0.05", "save_every": "5", "time_limit": "10",
    "kills": "2", "freezes": "0", "trainer_kills": "1", "seed": "0",
}  # fmt: skip
JUDGED = 120.0  # seconds that a process has to live for its memory to be judged
GROWTH, SLACK = 1.05, 2.0  # of memory from the second quarter of a process's life to the last, at most: ratio, and MiB
ROLES = ("trainer", "searcher", "object store")


def plan_of(given: Mapping[str, str]) -> Plan:
    """What is trained, by the options.

    Raises:
        ValueError: if one does not fit.
    """
    names = ("groups", "per_step", "group_size", "searchers", "width", "save_every")
    whole: dict[str, Any] = {name: numbers(given[name], name, 1)[0] for name in names}
    if whole["groups"] % whole["per_step"]:
        raise ValueError(f"groups: expected a multiple of per_step={whole['per_step']}, got {whole['groups']}")
    if whole["group_size"] < 2:
        raise ValueError("group_size: expected at least 2, since log Z is taken from a group, got 1")
    if given["fixed_lag"] not in ("true", "false"):
        raise ValueError(f"fixed_lag: expected true or false, got {given['fixed_lag']!r}")
    return Plan(
        **whole,
        staleness=numbers(given["staleness"], "staleness", 0)[0],
        fixed_lag=given["fixed_lag"] == "true",
        pause=_seconds(given["pause"], "pause"),
        time_limit=_seconds(given["time_limit"], "time_limit"),
        seed=numbers(given["seed"], "seed", 0)[0],
    )


def _seconds(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name}: expected a number of seconds, got {text!r}")
    return value


def blows(plan: Plan, kills: int, freezes: int, trainer_kills: int, chance: random.Random) -> list[Blow]:
    """What strikes a run, in order, at random moments of its first nine tenths."""
    kinds = ["kill"] * kills + ["freeze"] * freezes + ["trainer"] * trainer_kills
    at = [(chance.randrange(max(1, plan.steps * 9 // 10)), chance.uniform(0, 0.5), kind) for kind in kinds]
    return [Blow(cast("Any", kind), step, delay) for step, delay, kind in sorted(at)]


def drawn(chance: random.Random, address: str) -> tuple[Plan, list[Blow]]:
    """A random run, half of them on the cluster at an address."""
    per_step = chance.randint(1, 5)
    plan = Plan(
        groups=per_step * chance.randint(20, 60),
        per_step=per_step,
        group_size=chance.choice([2, 4, 8, 16]),
        searchers=chance.randint(1, 4),
        staleness=chance.randint(0, 6),
        fixed_lag=chance.random() < 0.5,
        pause=chance.choice([0.0, 0.01, 0.05]),
        save_every=chance.randint(1, 8),
        time_limit=3.0,
        address=address if chance.random() < 0.5 else None,
        seed=chance.randrange(1000),
    )
    struck = chance.choice([0, 1, 2, 3]), chance.choice([0, 0, 1]), chance.choice([0, 0, 1])
    return plan, blows(plan, *struck, chance)


def account(plan: Plan, ordeal: Ordeal, directory: Path) -> tuple[list[str], list[str]]:
    """What the last checkpoint of a run that is over says, as lines to print, and what is wrong.

    Raises:
        CheckpointError: if there is none.
    """
    found = checkpoint.newest(directory / "checkpoints")
    if found is None:
        return [], [*ordeal.trouble, "it has left no checkpoint"]
    state = found[1]
    own = state["samplers"][0]
    trained: Tensor = own["trained"]
    ledger, (youngest, oldest) = own["inner"]["ledger"], own["ages"]
    total, unique = int(trained.sum()), int((trained > 0).sum())
    lines = [
        f"{total} groups trained on, {unique} unique, {plan.groups - unique} missing, {total - unique} twice; "
        f"{state['step']} of {plan.steps} updates",
        f"age {youngest} to {oldest} updates, bound {plan.staleness}; {ledger['expired']} leases expired, "
        f"{ledger['duplicates']} duplicates ignored",
        f"{_counted(ordeal)}; {ordeal.replaced} searchers replaced, {ordeal.resumes} resumes, {ordeal.seconds:.0f} s",
    ]
    wrong = list(ordeal.trouble)
    if not (trained == 1).all() or ledger["consumed"] != plan.groups or state["step"] != plan.steps:
        wrong.append("not every group was trained on exactly once")
    if youngest < 0 or oldest > plan.staleness:
        wrong.append(f"a group was {youngest if youngest < 0 else oldest} updates old")
    if plan.fixed_lag and not wrong:
        same = _equal(state["objective"], undisturbed(plan)["objective"])
        lines.append(f"the model is {'' if same else 'not '}that of an undisturbed run, bit for bit")
        wrong += [] if same else ["with a fixed lag, the model is another than that of an undisturbed run"]
    return lines, wrong


def _counted(ordeal: Ordeal) -> str:
    kinds = {"kill": "searchers killed", "freeze": "frozen", "trainer": "trainers killed"}
    fell = ", ".join(f"{ordeal.struck[kind]} {text}" for kind, text in kinds.items())
    return fell + (f", {ordeal.missed} blows too late" if ordeal.missed else "")


def _equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def flatness(ordeal: Ordeal) -> Iterator[tuple[str, bool]]:
    """For each role, memory of the process that lived longest, as a line to print, and whether it stayed flat."""
    for role in ROLES:
        lives = [weights for (name, _), weights in ordeal.memory.items() if name == role]
        if not lives:
            continue
        life = max(lives, key=len)
        seconds = life[-1].moment - life[0].moment
        own, shared = _quarters([w.own for w in life]), _quarters([w.shared for w in life])
        flat = all(late <= GROWTH * early + SLACK for early, late in (own, shared))
        line = (
            f"memory of one {role} over {seconds:.0f} s: {own[0]:.1f} MiB early, {own[1]:.1f} late; shared memory "
            f"touched {shared[0]:.2f} MiB early, {shared[1]:.2f} late"
        )
        yield line, seconds < JUDGED or flat


def _quarters(values: Sequence[float]) -> tuple[float, float]:
    """Means of the second quarter, when all is loaded, and of the last."""
    n = len(values)
    return statistics.fmean(values[n // 4 : n // 2 + 1]), statistics.fmean(values[n * 3 // 4 :])


def one(plan: Plan, struck: Sequence[Blow], directory: Path, limit: float, judged: bool = True) -> bool:
    """Have a run done, and print its account; whether all is right, and, if judged, memory flat and no blow missed."""
    ordeal = endure(plan, struck, directory, limit, plan.seed)
    lines, wrong = account(plan, ordeal, directory)
    wrong += [f"{ordeal.missed} blows came too late"] if judged and ordeal.missed else []
    for line, flat in flatness(ordeal) if judged else ():
        lines.append(line)
        wrong += [] if flat else [f"not flat: {line}"]
    print("\n".join(lines + [f"WRONG: {text}" for text in wrong]), flush=True)
    return not wrong


def many(runs: int, seed: int, directory: Path, limit: float) -> bool:
    """Have random runs done; whether all is right. Those that went well leave no files."""
    good = 0
    with cluster() as address:
        for i in range(runs):
            plan, struck = drawn(random.Random(f"{seed} {i}"), address)
            print(f"run {i}: {plan}", flush=True)
            well = one(plan, struck, directory / f"run_{i}", limit, judged=False)
            good += well
            if well:
                shutil.rmtree(directory / f"run_{i}")
    print(f"{good} of {runs} runs went well")
    return good == runs


def main(arguments: Sequence[str]) -> int:
    """Run and print; exit code 2 with a message for options that do not fit, 1 if anything is wrong."""
    try:
        given, rest = options(arguments, DEFAULTS)
        if rest:
            raise ValueError(f"expected the options {', '.join(DEFAULTS)}, got {' '.join(rest)}")
        plan, limit, runs = plan_of(given), _seconds(given["limit"], "limit"), numbers(given["runs"], "runs", 0)[0]
        kills, freezes, trainer_kills = (numbers(given[n], n, 0)[0] for n in ("kills", "freezes", "trainer_kills"))
    except ValueError as error:
        print(f"endurance: {error}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    kept = Path(given["out"]) if given["out"] else None
    if kept is not None and kept.exists() and any(kept.iterdir()):
        print(f"endurance: out: {kept} is not empty; choose a new directory", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as directory:
        place = kept or Path(directory)
        if runs:
            return 0 if many(runs, plan.seed, place, limit) else 1
        print(plan)
        struck = blows(plan, kills, freezes, trainer_kills, random.Random(plan.seed))
        return 0 if one(plan, struck, place, limit) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
