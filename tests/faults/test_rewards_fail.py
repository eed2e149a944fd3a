"""Promise 8: rewards that raise, hang or die are bounded, counted and never turned into a silent zero."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence

import pytest
import torch

from envs.synthesis.environment import Synthesis
from envs.synthesis.policy import UniformSynthesis
from envs.synthesis.rewards import Function, Pool, Property
from gfn.environment import RewardError
from gfn.sampling import rollout
from tests.small_syntheses import small_environment

QED = Property("qed")
KINDS = ("raises", "is no number", "hangs", "dies")


def kind_of(smiles: str) -> str:
    """What the reward of a molecule does: one in two is well-behaved."""
    fate = sum(map(ord, smiles)) % 8
    return KINDS[fate] if fate < 4 else "well"


def troubled(smiles: str) -> float:
    kind = kind_of(smiles)
    if kind == "raises":
        raise KeyError("no parameters")
    if kind == "is no number":
        return math.nan
    if kind == "hangs":
        time.sleep(600)
    if kind == "dies":
        os._exit(1)
    return 0.5


def careful(smiles: str) -> float:
    """As troubled, but for what only worker processes survive."""
    return 0.5 if kind_of(smiles) in ("hangs", "dies") else troubled(smiles)


def environment(tmp: str, pool: Pool) -> Synthesis:
    from pathlib import Path

    env = small_environment(Path(tmp), exponent=1.0)
    return Synthesis(env.network, pool, max_reactions=2, exponent=1.0)


def sampled(env: Synthesis, n: int) -> tuple[Sequence[str], torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    t = rollout(env, UniformSynthesis(env), env.reset(n, generator), generator=generator)
    return t.final.smiles, t.log_reward.double().exp()


def test_a_floor_is_asked_for_and_counted(tmp_path: str) -> None:
    pool = Pool(Function(careful), workers=0, on_failure=0.125, retries=0)
    smiles, reward = sampled(environment(str(tmp_path), pool), 40)
    fates = [kind_of(text) for text in smiles]
    failed = [fate in ("raises", "is no number") for fate in fates]
    assert 3 < sum(failed) < 37
    assert reward.tolist() == pytest.approx([0.125 if bad else 0.5 for bad in failed])
    distinct = {text: fate for text, fate in zip(smiles, fates, strict=True) if fate in ("raises", "is no number")}
    counted = pool.failures
    assert counted.keys() == {"KeyError", "RewardError"}
    assert counted.total() >= len(distinct), "every failure is counted by its kind"


def test_without_a_floor_the_run_stops_and_names_the_molecule(tmp_path: str) -> None:
    pool = Pool(Function(careful), workers=0, retries=0)
    with pytest.raises(RewardError, match=r"careful") as told:
        sampled(environment(str(tmp_path), pool), 40)
    assert len(told.value.states) == 40, "they go into failure.pt"


@pytest.mark.slow
def test_what_hangs_or_dies_is_ended_replaced_and_counted(tmp_path: str) -> None:
    pool = Pool(Function(troubled), workers=1, time_limit=8.0, retries=0, on_failure=0.125)  # a new worker loads first
    smiles, reward = sampled(environment(str(tmp_path), pool), 12)
    failed = [kind_of(text) != "well" for text in smiles]
    assert reward.tolist() == pytest.approx([0.125 if bad else 0.5 for bad in failed])
    kinds = {kind_of(text) for text in smiles}
    assert {"hangs", "dies"} <= kinds, "the molecules do both"
    assert pool.failures["time limit"] > 0
    assert pool.failures["worker died"] > 0
    print(f"{dict(pool.failures)} of {len(smiles)} molecules")
    pool.close()
