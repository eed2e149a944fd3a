"""The baselines learn, built from their config files as the command builds them; all distances are exact.

Thresholds hold for every seed by a margin, and the untrained policy misses each by far.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from experiments.build import Run
from gfn import exact, metrics
from tests.composing import built
from tests.marks import mostly_slow
from tests.trainers import Recorder

SEEDS = range(3)
BASELINES = {
    "reinforce": ("objective=reinforce",),
    "reinforce without baseline": ("objective=reinforce", "objective.baseline=none"),
    "rloo": ("objective=rloo",),
    "grpo": ("objective=grpo",),
    "dr_grpo": ("objective=dr_grpo",),
    "ppo": ("objective=ppo",),
    "ppo with groups": ("objective=ppo", "objective.baseline=group", "objective.value=null"),
}


def peak(coords: Tensor) -> Tensor:
    """e to the minus distance from (3, 1), along the axes."""
    return (-(coords - torch.tensor([3, 1])).abs().sum(1).double()).exp()


@pytest.fixture(autouse=True)
def _trust(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFN_TRUST", "tests")


def run_of(directory: Path, seed: int, steps: int, *overrides: str, kl: float, size: int = 32) -> Run:
    """A run on the 5 × 5 grid with one highest point."""
    return built(
        directory, "env.side=5", "env/reward=user", f"++env.reward.function={__name__}.peak", "policy.width=32",
        "logger=quiet", "evaluator.every=1000000", f"trainer.steps={steps}", "trainer.lr=1e-2", f"seed={seed}",
        *overrides, f"objective.kl_coefficient={kl}", f"sampler.batch_size={size}",
    )  # fmt: skip


def measured(run: Run) -> tuple[float, float]:
    """Probability of the best terminal state, and total variation from R/Z."""
    graph = exact.state_graph(run.parts["env"])
    log_p = exact.log_terminal(graph, run.parts["policy"])
    return float(log_p[graph.log_reward.argmax()].exp()), metrics.total_variation(log_p, graph.log_target)


PEAKS = [*((name, "value") for name in BASELINES), *((name, "log") for name in ("rloo", "grpo", "ppo"))]


@pytest.mark.parametrize(("name", "reward"), mostly_slow(PEAKS, [("ppo", "value"), ("grpo", "log")]))
def test_without_kl_the_best_state_is_found(name: str, reward: str, tmp_path: Path) -> None:
    """3 200 trajectories; over seeds 0 to 4 the probability is at least 0.987 in every case.

    Not every combination is as safe: ``ppo with groups`` and log-rewards, at this learning rate, ended
    in another state in one of these five seeds.
    """
    for seed in SEEDS:
        run = run_of(tmp_path / str(seed), seed, 100, *BASELINES[name], f"objective.reward={reward}", kl=0.0)
        assert measured(run)[0] < 0.05
        run.trainer.run()
        assert measured(run)[0] > 0.9


@pytest.mark.parametrize("name", mostly_slow(BASELINES, ["ppo", "rloo"]))
def test_with_kl_the_target_is_sampled(name: str, tmp_path: Path) -> None:
    """3 840 trajectories; over seeds 0 to 4 at most 0.05, and 0.13 where nothing reduces the variance."""
    bound = 0.2 if "without" in name else 0.08
    for seed in SEEDS:
        run = run_of(tmp_path / str(seed), seed, 120, *BASELINES[name], kl=1.0)
        assert measured(run)[1] > 0.4
        run.trainer.run()
        assert measured(run)[1] < bound


@pytest.mark.parametrize("name", mostly_slow(["ppo", "ppo with groups", "dr_grpo"], ["ppo"]))
def test_several_updates_on_each_batch(name: str, tmp_path: Path) -> None:
    """As many updates from a quarter of the trajectories, 960; the clip acts from the second update on a batch on."""
    for seed in SEEDS:
        run = run_of(tmp_path / str(seed), seed, 120, *BASELINES[name], "sampler=repeated", kl=0.0)
        recorder = Recorder()
        run.trainer.callbacks = [recorder]
        run.trainer.run()
        assert measured(run)[0] > 0.9
        ratio, clipped = ([report.metrics[key] for report in recorder.reports] for key in ("ratio", "clipped"))
        assert ratio[::4] == pytest.approx([1.0] * 30, abs=1e-4)
        assert not any(clipped[::4])
        assert all(sum(clipped[i::4]) > 0 for i in (1, 2, 3))
        assert min(abs(r - 1) for r in ratio[1:40:4]) > 0


def test_a_rate_of_its_own_for_the_values(tmp_path: Path) -> None:
    """Values move by their own rate alone, and a rate of zero leaves them."""

    def moved(*overrides: str) -> Sequence[float]:
        run = run_of(tmp_path / str(len(overrides)), 0, 2, "objective=ppo", *overrides, kl=1.0)
        objective = run.parts["objective"]
        before = [p.detach().clone() for p in objective.value.parameters()]
        run.trainer.run()
        return [float((p.detach() - q).abs().max()) for p, q in zip(objective.value.parameters(), before, strict=True)]

    assert min(moved()) > 0
    assert max(moved("objective.value_lr=0.0")) == 0
