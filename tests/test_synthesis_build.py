"""A synthesis environment as configs describe one, the part of it that is estimated, and its state flows."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
import torch

from envs.synthesis.build import synthesis
from envs.synthesis.encoders import GINE
from envs.synthesis.flow import SynthesisFlow
from envs.synthesis.policy import SynthesisPolicy
from envs.synthesis.rewards import Property
from envs.synthesis.tables import BlockTable
from experiments.schema import ConfigError
from gfn.sampling import rollout
from tests.composing import built

MOLECULES = ("env=synthesis", "env.size=60", "env.max_reactions=2", "trainer.steps=1", "logger=quiet")
PARTS = ["NCc1ccccc1", "O=C(O)c1ccccc1", "O=Cc1ccccc1", "OB(O)c1ccccc1", "O=C(O)c1ccc(Br)cc1", "C1CNCCN1"]


def test_rejected_entries_are_written_down(tmp_path: Path) -> None:
    catalogue, report = tmp_path / "blocks.smi", tmp_path / "rejected.csv"
    catalogue.write_text("NCc1ccccc1 a\nnonsense b\nO=C(O)c1ccccc1 c\n[2H]C([2H])N d\n", encoding="utf-8")
    env = synthesis(Property("qed"), str(catalogue), rejected=report, cache=tmp_path)
    assert [block.id for block in env.network.library.blocks] == ["a", "c"]
    rows = list(csv.DictReader(report.open(encoding="utf-8")))
    assert [row["line"] for row in rows] == ["2", "4"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["policy=mlp"], "MLPPolicy needs an environment with dense masks"),
        (["backward=uniform"], "UniformBackward needs an environment with dense masks"),
        (["flow=mlp", "balance=detailed"], "MLPFlow needs an environment with dense masks"),
        (["env.blocks=nowhere.smi"], "nowhere.smi"),
        (["env.blocks=[CCC,CCCC]", "env.size=null"], "none of the 2 blocks"),
        (["env.only=[no_such_reaction]"], "there is no no_such_reaction; there are aldehyde_oxidation"),
        (["env.max_reactions=0"], "max_reactions >= 1"),
        (["env.exponent=-1"], "positive and finite"),
        (["env/reward=seh", "env.reward.weights=nowhere.pkl.gz"], "there is no file of weights"),
        (["policy.network.layers=0"], "positive"),
        (["backward=learned_edges", "backward.network=null"], "tied=true"),
    ],
)
def test_what_does_not_go_together_is_told(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        built(tmp_path, *MOLECULES, *overrides)


def test_a_part_of_the_blocks_estimates_the_normaliser_without_bias() -> None:
    """The mean of 1/P̂ over random parts is 1/P: the normaliser is unbiased, and the chosen block always counts."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 12, generator=generator, dtype=torch.float64)
    every = torch.arange(0, 24, 2)
    pair, chosen = torch.tensor([0, 1, 1]), torch.tensor([4, 0, 22])
    exact = BlockTable(torch.arange(3), pair, logits, every).log_prob(chosen)
    own = logits[pair, chosen // 2]
    inverse = list[torch.Tensor]()
    for _ in range(4000):
        part = torch.randperm(12, generator=generator)[:5].sort().values
        table = BlockTable(torch.arange(3), pair, logits[:, part], every[part])
        inverse.append((-table.estimated_log_prob(chosen, own, every)).exp())
    spread = torch.stack(inverse).std(0) / math.sqrt(len(inverse))
    assert ((torch.stack(inverse).mean(0) - (-exact).exp()).abs() < 4 * spread).all()
    assert (spread > 1e-3).all(), "the estimates do vary"
    whole = BlockTable(torch.arange(3), pair, logits, every)
    torch.testing.assert_close(whole.estimated_log_prob(chosen, own, every), exact)
    assert whole.estimated_log_prob(torch.tensor([1, 0, 0]), own, every)[0] == -math.inf


def test_a_subsampling_policy_samples_from_all_blocks_and_learns_by_a_part(tmp_path: Path) -> None:
    env = synthesis(Property("qed"), PARTS, max_reactions=2, cache=tmp_path)
    torch.manual_seed(0)
    whole = SynthesisPolicy(env, GINE(8, 1))
    part = SynthesisPolicy(env, GINE(8, 1), subsample=2)
    part.load_state_dict(whole.state_dict())
    seed = torch.Generator().manual_seed(1)
    t = rollout(env, whole, env.reset(64), generator=seed)
    again = rollout(env, part, env.reset(64), generator=torch.Generator().manual_seed(1))
    assert again.actions.equal(t.actions)
    assert part.log_prob(t).requires_grad
    assert not part.log_prob(t).allclose(whole.log_prob(t)), "a part of the blocks is another normaliser"
    with torch.no_grad():
        torch.testing.assert_close(part.log_prob(t), whole.log_prob(t))


@pytest.mark.parametrize("own", [False, True])
def test_flow_of_equal_states_is_equal_and_is_learned(own: bool, tmp_path: Path) -> None:
    env = synthesis(Property("qed"), PARTS, max_reactions=2, cache=tmp_path)
    policy = SynthesisPolicy(env, GINE(8, 1))
    flow = SynthesisFlow(env, policy, GINE(4, 1) if own else None)
    assert (flow.encoder is policy.encoder) == (not own)
    t = rollout(env, policy, env.reset(32), generator=torch.Generator().manual_seed(0))
    sources = t.sources
    value = flow(sources)
    assert value.shape == (len(sources),)
    torch.testing.assert_close(flow(sources[:1]), value[:1])
    start = env.is_initial(sources)
    assert (value[start] == value[start][0]).all()
    value.sum().backward()
    assert flow.head.weight.grad is not None


def test_evaluation_tells_how_many_walks_back_reach_the_start(tmp_path: Path) -> None:
    run = built(tmp_path, *MOLECULES, "backward=exact_edges", "evaluator.n_samples=32")
    assert run.parts["evaluator"](0)["reach_fraction"] == 1.0
