"""A small asynchronous run that keeps account of its groups: what the benchmark of endurance lets run, and strikes."""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from envs.hypergrid import Classic, GridStates, Hypergrid
from gfn.distributed import Asynchronous, Engine, InProcess, Ray
from gfn.objectives import Alpha, DevGrad, Objective
from gfn.policies import MLPPolicy, UniformBackward
from gfn.training import Report, Trainer
from gfn.trajectories import Trajectories

COMMAND = "from experiments.benchmarks import endured; endured.main()"  # so that its classes have a module to lie in


@dataclass(frozen=True)
class Plan:
    """What is trained.

    Attributes:
        groups: in all.
        per_step: groups of a batch.
        group_size: trajectories of a group.
        searchers: their number.
        staleness: age of a group in batches, at most.
        fixed_lag: whether groups are always that old.
        width: of the network.
        pause: seconds that the reward of a group takes, on average.
        save_every: updates between checkpoints.
        time_limit: seconds after which a searcher is given up.
        address: of a Ray cluster; None starts one with the run.
        seed: of everything that is drawn.
    """

    groups: int = 200
    per_step: int = 4
    group_size: int = 4
    searchers: int = 3
    staleness: int = 2
    fixed_lag: bool = False
    width: int = 32
    pause: float = 0.05
    save_every: int = 5
    time_limit: float = 10.0
    address: str | None = None
    seed: int = 0

    @property
    def steps(self) -> int:
        return self.groups // self.per_step

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls(**json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))


class Slow(Hypergrid):
    """A grid whose rewards take a random time, which changes nothing else."""

    def __init__(self, pause: float) -> None:
        super().__init__(4, 2, Classic(r0=0.1))
        self.pause = pause

    def log_reward(self, states: GridStates) -> Tensor:
        if self.pause > 0:
            time.sleep(random.expovariate(1 / self.pause))
        return super().log_reward(states)


class Account:
    """A sampler that counts how often each group was trained on; what a checkpoint holds, an undone update is not in.

    Attributes:
        trained: times that each group was trained on, ``[groups]``.
        ages: the least and the largest age of a group so far, in updates.
    """

    def __init__(self, inner: Asynchronous[GridStates], groups: int) -> None:
        self.inner = inner
        self.batch_size, self.group_size = inner.batch_size, inner.group_size
        self.one_group, self.forward = inner.one_group, inner.forward
        self.trained, self.ages = torch.zeros(groups, dtype=torch.long), [sys.maxsize, -sys.maxsize]

    def __call__(self, step: int, size: int | None = None) -> Trajectories[GridStates]:
        batch = self.inner(step, size)
        self.trained[list(self.inner.hub.take(self.inner.groups))] += 1
        ages = (step - batch.policy_version).tolist()
        self.ages = [min(self.ages[0], *ages), max(self.ages[1], *ages)]
        return batch

    def settings(self, step: int) -> dict[str, float]:
        return self.inner.settings(step)

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict(), "trained": self.trained.clone(), "ages": list(self.ages)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
        self.trained, self.ages = state["trained"].clone(), list(state["ages"])


class Tidings:
    """Tells after each update who works for the run now, in a file that is never half written."""

    def __init__(self, path: Path, engine: Ray) -> None:
        self.path, self.engine = path, engine

    def start(self, step: int) -> None:
        self._tell({"step": step, "pids": {}, "replaced": 0.0})

    def __call__(self, report: Report) -> None:
        replaced = report.metrics["searchers_replaced"]
        self._tell({"step": report.step, "pids": self.engine.pids(), "replaced": replaced})

    def _tell(self, tidings: dict[str, Any]) -> None:
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(tidings))
        os.replace(part, self.path)

    def close(self) -> None:
        pass


def trainer(plan: Plan, engine: Engine, **settings: Any) -> Trainer[GridStates]:
    """The run of a plan with an engine."""
    env = Slow(plan.pause if isinstance(engine, Ray) else 0.0)
    with torch.random.fork_rng():
        torch.manual_seed(plan.seed)
        policy = MLPPolicy(env, plan.width, 1)
    inner = Asynchronous(
        env, policy, engine, plan.per_step * plan.group_size, plan.group_size, plan.staleness, plan.fixed_lag,
        seed=plan.seed,
    )  # fmt: skip
    objective = Objective(policy, UniformBackward(env), Alpha(0.5), DevGrad())
    return Trainer(objective, Account(inner, plan.groups), steps=plan.steps, lr=0.01, **settings)


def undisturbed(plan: Plan) -> dict[str, Any]:
    """The state at the end of the same run in one process, where nothing goes wrong."""
    run = trainer(plan, InProcess())
    run.run()
    return run.state_dict()


def main() -> None:
    """Train, or go on, in the directory that the command line names; signal 10 has all stacks written."""
    torch.set_num_threads(1)
    directory = Path(sys.argv[1])
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    plan = Plan.read(directory / "plan.json")
    engine = Ray(plan.searchers, plan.address, time_limit=plan.time_limit, object_store_memory=100 * 2**20)
    run = trainer(
        plan, engine, checkpoints=directory / "checkpoints", save_every=plan.save_every,
        callbacks=[Tidings(directory / "tidings.json", engine)],
    )  # fmt: skip
    resumed = run.resume()
    print(f"goes on after update {run.step}" if resumed else "begins", flush=True)
    run.run()
    engine.close()
