"""The same seed gives the same syntheses: whatever the hash seed, the number of workers, and what is remembered."""

from __future__ import annotations

import copy
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from envs.synthesis.backward import LearnedEdges, UniformEdges
from envs.synthesis.encoders import GINE
from envs.synthesis.environment import Synthesis
from envs.synthesis.policy import SynthesisPolicy
from envs.synthesis.workers import Subject, Workers
from gfn.buffers import Buffer
from gfn.exploration import EpsilonUniform
from gfn.objectives import LearnedLogZ, Objective, ReverseKL
from gfn.samplers import OnPolicy, Replay
from gfn.sampling import rollout
from gfn.training import Trainer
from gfn.trajectories import Trajectories
from tests.synthetic import TEMPLATES, TINY, synthesis
from tests.trainers import differences, snapshot

ROOT = Path(__file__).parents[1]


def written(t: Trajectories[Any]) -> list[str]:
    """Every step of trajectories as text: state, action, and the probability that it had."""
    steps = zip(t.targets.smiles, t.actions.tolist(), t.behaviour_log_prob.tolist(), strict=True)
    return [f"{smiles} {action} {log_prob:.9g}" for smiles, action, log_prob in steps]


def walked(env: Synthesis) -> list[str]:
    """Trajectories there and back, by networks and over exact and known edges: all in which an order could matter."""
    torch.manual_seed(0)
    policy = SynthesisPolicy(env, GINE(8, 1))
    backward = LearnedEdges(env, policy, GINE(8, 1), edges="exact")
    generator = torch.Generator().manual_seed(1)
    t = rollout(env, policy, env.reset(48, generator), generator=generator)
    back = rollout(env, backward, t.final, backward=True, generator=generator)
    known = UniformEdges(env, "known")
    known.log_prob_backward(t)
    again = rollout(env, known, t.final, backward=True, generator=generator)
    return [*written(t), *written(back), *written(again)]


def small(**settings: Any) -> Synthesis:
    return synthesis(TINY[:12], listed=False, exponent=[1.0, 2.0], **settings)


@pytest.mark.slow
def test_the_hash_seed_changes_nothing() -> None:
    code = "import tests.test_synthesis_determinism as t; print('\\n'.join(t.walked(t.small())))"
    other = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = {**os.environ, "PYTHONHASHSEED": other, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    lines = walked(small())
    assert len(lines) > 200
    assert run.stdout.splitlines() == lines


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_number_of_workers_changes_nothing(workers: int, tmp_path: Path) -> None:
    env = small(workers=workers, cache=tmp_path)
    try:
        assert walked(env) == walked(small())
        assert env.network.workers._pool is not None, "the workers have had something to do"
        assert env.network.startable.tolist() == small().network.startable.tolist()
    finally:
        env.network.workers.close()


def test_what_is_remembered_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cold run, the same again, one with the survey from its file, and one that remembers next to nothing."""
    env = small(cache=tmp_path)
    cold = walked(env)
    assert walked(env) == cold
    assert walked(small(cache=tmp_path)) == cold
    for place in ("workers", "retrosynthesis", "environment"):
        monkeypatch.setattr(f"envs.synthesis.{place}.REMEMBERED", 600)
    monkeypatch.setattr("envs.synthesis.chemistry.PARSED", 3)
    forgetful = small(cache=tmp_path)
    assert walked(forgetful) == cold


def test_the_order_of_the_blocks_and_templates_given_changes_nothing() -> None:
    assert walked(synthesis(TINY[11::-1], listed=False, exponent=[1.0, 2.0])) == walked(small())


def test_seeds_decide() -> None:
    env = small()
    policy = SynthesisPolicy(env, GINE(8, 1))

    def drawn(seed: int) -> list[str]:
        generator = torch.Generator().manual_seed(seed)
        return written(rollout(env, policy, env.reset(16, generator), generator=generator))

    assert drawn(3) == drawn(3) != drawn(4)
    conditions = [env.reset(32, torch.Generator().manual_seed(seed)).condition for seed in (0, 0, 1)]
    assert torch.equal(conditions[0], conditions[1])
    assert not torch.equal(conditions[0], conditions[2])


def trainer(steps: int, seed: int, edges: Any) -> Trainer[Any]:
    """Known or exact edges, learned, with replay and exploration; each trainer has an environment of its own."""
    env = synthesis(TINY[:8])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        policy = SynthesisPolicy(env, GINE(8, 1))
        backward: Any = LearnedEdges(env, policy, GINE(8, 1), edges=edges) if edges == "known" else UniformEdges(env)
    on = OnPolicy(env, policy, 16, exploration=EpsilonUniform(0.2), seed=seed)
    sampler = Replay(env, on, Buffer(env, 60, unique="terminal", seed=seed), 1.0)
    return Trainer(Objective(policy, backward, ReverseKL(), LearnedLogZ()), sampler, steps=steps, lr=0.01)


@pytest.mark.parametrize("edges", ["known", "exact"])
def test_resume_is_exact(edges: str) -> None:
    """Five updates, a file, five more in another process's place are ten: stored molecules and known edges included."""
    whole, first = trainer(10, 0, edges), trainer(5, 0, edges)
    whole.run()
    first.run()
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    again = trainer(10, 1, edges)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert differences(snapshot(again), snapshot(first)) == []
    again.run()
    assert differences(snapshot(again), snapshot(whole)) == []
    assert differences(snapshot(first), snapshot(whole))


def test_copies_of_policies_share_molecules_and_not_notes() -> None:
    env = small()
    policy = SynthesisPolicy(env, GINE(8, 1))
    other = copy.deepcopy(policy)
    t = rollout(env, policy, env.reset(8), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(other.log_prob(t), policy.log_prob(t))
    assert other.barren is not policy.barren


def test_a_worker_that_dies_says_so_and_the_next_question_has_new_ones() -> None:
    smiles = [("N" + "C" * n,) for n in range(1, 41)]
    workers = Workers(Subject(TEMPLATES, tuple(TINY)), 1)
    try:
        right = [workers.expert.fits(*question).tolist() for question in smiles]
        assert [fits.tolist() for fits in workers.ask("fits", smiles)] == right
        pool: Any = workers._pool
        for process in list(pool._processes.values()):
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        time.sleep(0.2)
        with pytest.raises(
            RuntimeError, match=r"a worker process died .* the bits of 40 molecules, such as .*workers=0"
        ):
            workers.ask("bits", smiles)
        assert len(workers.ask("bits", smiles)) == 40
    finally:
        workers.close()
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        Workers(Subject((), ()), -1)
