"""One measurement of the speed of synthesis, in a process of its own: nothing is known from earlier ones."""

from __future__ import annotations

import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor

from envs.synthesis.environment import Synthesis
from envs.synthesis.network import ReactionNetwork
from envs.synthesis.policy import Learned
from experiments.benchmarks.clock import Clock, cpu_of_children, peak_memory
from experiments.build import Run, build
from experiments.reports.arguments import composed

SAMPLING = "sampling"  # the other kinds of measurement are names of configs/backward, of training steps with that P_B
IDLE = 0.05  # CPU seconds in one second of processes that do nothing


@dataclass(frozen=True)
class Case:
    """What is measured.

    Attributes:
        kind: ``sampling``, or training with this P_B.
        blocks: the library.
        size: number of its blocks; None for all.
        workers: processes beside the main one.
        batches: number of batches, of 64 trajectories.
        seed: of the networks and of what is sampled.
    """

    kind: str
    blocks: str
    size: int | None
    workers: int
    batches: int
    seed: int

    @property
    def overrides(self) -> list[str]:
        """The config of the run, as one would type it."""
        size = "null" if self.size is None else self.size
        backward = [] if self.kind == SAMPLING else [f"backward={self.kind}"]
        library = [f"env.blocks={self.blocks}", f"env.size={size}", f"env.workers={self.workers}"]
        seeds = [f"seed={self.seed}", f"sampler.seed={self.seed}"]
        # one step more than are measured, so that the evaluation at the end does not come
        return ["experiment=synthesis/qed", *backward, *library, *seeds, "logger=quiet", *self._steps]

    @property
    def _steps(self) -> list[str]:
        return [f"trainer.steps={self.batches + 1}", f"evaluator.every={self.batches + 1}"]


@dataclass(frozen=True)
class Measurement:
    """What a case took.

    Attributes:
        case: what was measured.
        n_blocks: number of blocks.
        trajectories: number of trajectories.
        reactions: mean number of their reactions.
        cpu, wall: seconds, those of the workers included in ``cpu``, the time to set up in neither.
        setup: CPU seconds to set up, the survey of the library being known.
        memory: largest resident memory of the main process, MiB.
        load: the machine's load average at the end.
        spent: CPU seconds of the main process, by what they were spent on.
    """

    case: Case
    n_blocks: int
    trajectories: int
    reactions: float
    cpu: float
    wall: float
    setup: float
    memory: float
    load: float
    spent: dict[str, float]


def apart(case: Case) -> Measurement:
    """Measure in a new process.

    Raises:
        ConfigError: if the config does not fit.
        RuntimeError: if the process dies.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measured, case).result()


@dataclass
class _Watch:
    """Asked after every update whether to stop, it notes the time after the last one."""

    batches: int
    cpu: float = 0.0
    wall: float = 0.0
    _asked: int = field(default=0, repr=False)

    def start(self) -> None:
        self.cpu, self.wall = time.process_time(), time.perf_counter()

    def __call__(self) -> bool:
        self._asked += 1
        if self._asked == self.batches:
            self.cpu, self.wall = time.process_time() - self.cpu, time.perf_counter() - self.wall
        return self._asked >= self.batches


def measured(case: Case) -> Measurement:
    """Measure in this process, in which nothing of the kind should have run before.

    Raises:
        ConfigError: if the config does not fit.
    """
    watch, before = _Watch(case.batches), time.process_time()
    with tempfile.TemporaryDirectory() as folder, Clock() as clock:
        run = build(composed([*case.overrides, f"run={folder}"]), Path(folder), watch)
        setup = time.process_time() - before
        env: Synthesis = run.parts["env"]
        started = _start_workers(env.network)
        _divide(clock, run)
        watch.start()
        clock.enter("rest")
        lengths = _sample(run, watch) if case.kind == SAMPLING else _train(run)
        clock.leave()
        helped = cpu_of_children() - started
        env.network.workers.close()
    return Measurement(
        case,
        len(env.network.blocks),
        trajectories=case.batches * run.config["sampler"]["batch_size"],
        reactions=float(torch.cat(lengths).double().mean()) - 2,  # all steps but beginning and stopping
        cpu=watch.cpu + helped,
        wall=watch.wall,
        setup=setup,
        memory=peak_memory(),
        load=os.getloadavg()[0],
        spent=clock.spent,
    )


def _sample(run: Run, watch: _Watch) -> list[Tensor]:
    """Lengths of what was sampled, a batch each."""
    lengths = [run.trainer.sampler(0).lengths]
    while not watch():
        lengths.append(run.trainer.sampler(0).lengths)
    return lengths


def _train(run: Run) -> list[Tensor]:
    """Lengths of what was trained on, a batch each."""
    lengths = list[Tensor]()
    run.trainer.objective.register_forward_pre_hook(lambda _, given: lengths.append(given[0].lengths))
    run.trainer.run()
    return lengths


def _start_workers(network: ReactionNetwork) -> float:
    """Have the workers, if there are to be any, ready, told nothing of use later on; their CPU seconds so far."""
    count = network.workers.count
    if count == 0:
        return cpu_of_children()
    network.workers.ask("fits", [(block.smiles,) for block in network.blocks[: 8 * count]])
    before, now = -1.0, cpu_of_children()
    while now - before > IDLE:  # some still import what they need
        time.sleep(1.0)
        before, now = now, cpu_of_children()
    return now


def _divide(clock: Clock, run: Run) -> None:
    """Have the clock tell apart what time is spent on."""
    env, trainer = run.parts["env"], run.trainer
    clock.watch(env.network.workers, "ask", "chemistry")
    clock.watch(env, "log_reward", "reward")
    clock.watch(type(trainer.sampler), "__call__", "sampling")
    clock.watch(trainer.objective, "forward", "scoring and loss")
    for module in (*run.parts["policy"].children(), *run.parts["backward"].children()):
        clock.watch(module, "forward", "networks")
    clock.watch(Learned, "blocks", "networks")
    clock.watch(torch.Tensor, "backward", "backward pass")
    clock.watch(trainer.optimizer, "step", "optimizer")
