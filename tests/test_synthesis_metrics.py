"""Figures of molecules and routes against their definitions, worked out in other ways."""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rdkit import Chem
from rdkit.Chem import QED, AllChem, Crippen, Descriptors

from envs.synthesis import diversity, metrics
from envs.synthesis.backward import UniformEdges
from envs.synthesis.blocks import Block
from envs.synthesis.environment import Synthesis
from envs.synthesis.molecules import Syntheses
from envs.synthesis.policy import UniformSynthesis
from envs.synthesis.routes import Route, Step, routes_of
from gfn import exact
from gfn.discovery import Discovery
from gfn.environment import as_measured, as_multimodal, as_summarised
from gfn.evaluation import Evaluator
from gfn.metrics import pearson, spearman
from gfn.objectives import Alpha, LearnedLogZ, Objective
from gfn.trajectories import Trajectories
from tests.small_syntheses import sampled, small_environment


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Synthesis:
    return small_environment(tmp_path_factory.mktemp("cache"), listed=True)


@pytest.fixture(scope="module")
def t(env: Synthesis) -> Trajectories[Syntheses]:
    return sampled(env)


@pytest.fixture(scope="module")
def molecules(env: Synthesis, t: Trajectories[Syntheses]) -> dict[str, float]:
    """Distinct molecules with their rewards."""
    return dict(zip(t.final.smiles, env.rewards(t.final).tolist(), strict=True))


def bits(smiles: str, radius: int) -> set[int]:
    """Bits of a Morgan fingerprint, by the older of RDKit's two interfaces."""
    return set(AllChem.GetMorganFingerprintAsBitVect(Chem.MolFromSmiles(smiles), radius, 2048).GetOnBits())


def similarity(first: str, second: str, radius: int) -> float:
    a, b = bits(first, radius), bits(second, radius)
    return len(a & b) / len(a | b)


@pytest.mark.parametrize(("radius", "limit"), [(2, 0.5), (2, 0.65), (3, 0.5), (3, 0.65)])
def test_modes_are_those_of_the_definition(molecules: dict[str, float], radius: int, limit: float) -> None:
    """The molecules in order; each is a mode if no better mode is near, by a table of all similarities."""
    smiles, rewards = list(molecules), list(molecules.values())
    ordered = sorted((s for s in smiles if molecules[s] >= 0.6), key=lambda s: (-molecules[s], s))
    near = {(a, b): similarity(a, b, radius) >= limit for a, b in combinations(ordered, 2)}
    expected = list[str]()
    for text in ordered:
        if not any(near[mode, text] for mode in expected):
            expected.append(text)
    found = [smiles[i] for i in diversity.modes(smiles, rewards, 0.6, radius, limit)]
    assert found == expected
    assert 3 < len(found) < len(ordered) < len(smiles)
    assert diversity.modes(smiles, rewards, 0.6, radius, limit, most=3) == [smiles.index(text) for text in expected[:3]]
    turned = diversity.modes(smiles[::-1], rewards[::-1], 0.6, radius, limit)
    assert [smiles[::-1][i] for i in turned] == expected, "the order of the list does not matter"


def test_a_molecule_as_similar_as_the_limit_is_no_mode() -> None:
    pair = ["c1ccccc1", "Cc1ccccc1"]
    exactly = similarity(*pair, 2)
    assert diversity.modes(pair, [1.0, 0.9], 0.5, similarity=exactly) == [0]
    assert diversity.modes(pair, [1.0, 0.9], 0.5, similarity=exactly + 1e-9) == [0, 1]
    assert diversity.modes(pair, [1.0, 0.9], 0.9) == [0, 1], "a reward at the threshold is enough"
    assert diversity.modes(pair, [0.8, 0.9], 0.9) == [1]
    assert diversity.modes([pair[0]] * 3, [1.0] * 3, 0.9) == [0], "copies are no modes"


def test_mean_distance_is_that_of_all_pairs(molecules: dict[str, float]) -> None:
    some = list(molecules)[:30]
    for radius in (2, 3):
        expected = np.mean([1 - similarity(a, b, radius) for a, b in combinations(some, 2)])
        assert diversity.mean_distance(some, radius) == pytest.approx(expected)
    assert math.isnan(diversity.mean_distance(some[:1]))


def test_scaffolds_are_rings_and_what_joins_them() -> None:
    assert diversity.scaffold("CCc1ccc(CCN2CCOCC2)cc1") == Chem.CanonSmiles("c1ccc(CCN2CCOCC2)cc1")
    assert diversity.scaffold("C[C@H](F)[C@@H]1CCNC1") == "C1CCNC1"
    assert diversity.scaffold("CCO") == ""
    smiles = ["Cc1ccccc1", "CCc1ccccc1", "C1CCNC1", "CCO"]
    assert diversity.scaffolds(smiles, [0.5, 0.9, 0.4, 1.0], 0.5) == {"c1ccccc1"}


def test_rates_and_mean_rewards() -> None:
    smiles = ["CO", "CC", "CO", "", "C(C", "CN"]
    found = metrics.sample_figures(smiles)
    assert (found["valid_rate"].value, found["valid_rate"].n) == (pytest.approx(4 / 6), 6)
    assert found["unique_rate"].value == pytest.approx(5 / 6)
    found = metrics.reward_figures(["CO", "CC", "CO", "CN"], [0.8, 0.2, 0.8, 0.4], top=2)
    assert found["reward_mean"].value == pytest.approx(0.55)
    assert (found["reward_top2"].value, found["reward_top2"].n) == (pytest.approx(0.6), 2), "CO counts once"
    with pytest.raises(ValueError, match="got 'C\\(C'"):
        diversity.fingerprint("C(C")


def test_properties_are_means_over_samples() -> None:
    aspirin, caffeine = "CC(=O)Oc1ccccc1C(=O)O", "Cn1c(=O)c2c(ncn2C)n(C)c1=O"
    found = metrics.property_figures([aspirin, aspirin, caffeine])
    expected = {"qed": QED.qed, "weight": Descriptors.MolWt, "logp": Crippen.MolLogP}  # pyright: ignore
    for name, function in expected.items():
        one, other = (function(Chem.MolFromSmiles(text)) for text in (aspirin, caffeine))
        assert found[f"{name}_mean"].value == pytest.approx((2 * one + other) / 3)
        assert found[f"{name}_mean"].n == 3
    assert found["sa_mean"].value == pytest.approx((2 * 1.58 + 2.30) / 3, abs=0.01), "values of the published program"


A, B, C = Block("CO", "a", "shelf", None, 2.0), Block("CN", "b", "shelf", None, 3.0), Block("CC", "c", "shelf")
FIRST = Step("join", "joining", ("CO", "CN"), (A, B), 0, 2, "COCN")
SECOND = Step("cut", "cutting", ("COCN",), (None,), 0, 1, "COC")
THIRD = Step("join", "joining", ("COC", "CO"), (None, A), 0, 1, "COCCO")


def test_figures_of_routes() -> None:
    routes = [Route(A, (FIRST, SECOND, THIRD)), Route(C, ()), Route(A, (FIRST,))]
    found = metrics.route_figures(routes)
    assert (found["reactions_mean"].value, found["reactions_mean"].n) == (pytest.approx(4 / 3), 3)
    assert found["blocks_distinct"].value == 3
    assert found["templates_distinct"].value == 2
    assert (found["route_price_mean"].value, found["route_price_mean"].n) == (pytest.approx((7 + 5) / 2), 2)
    shares = metrics.template_figures(routes)
    assert {name: (f.value, f.n) for name, f in shares.items()} == {
        "template_join": (0.75, 4),
        "template_cut": (0.25, 4),
    }
    assert "route_price_mean" not in metrics.route_figures([Route(C, ())])


def test_novelty_is_against_a_file_of_molecules(tmp_path: Path) -> None:
    file = tmp_path / "known.smi"
    file.write_text("OC ZINC1\n\nC(C)O\tethanol\nF[C@H](Cl)Br\n", encoding="utf-8")
    known = metrics.known_molecules(file)
    assert known == {"CO", "CCO", "FC(Cl)Br"}
    assert "F[C@H](Cl)Br" in metrics.known_molecules(file, stereo=True)
    found = metrics.novelty_figure(["CO", "CN", "CN", "CC"], known)["novelty"]
    assert (found.value, found.n) == (pytest.approx(2 / 3), 3)
    assert "3 known" in found.definition
    file.write_text("CO\nno molecule\nCC\nC(C\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"known\.smi.*line 2: 'no', line 4: 'C\(C'"):
        metrics.known_molecules(file)


def test_probabilities_are_compared_with_rewards() -> None:
    log_p, log_reward = torch.tensor([-1.0, -2.0, -4.0, -3.0]), torch.tensor([0.0, -0.5, -torch.inf, -2.0])
    found = metrics.correlation_figures(log_p, log_reward)
    assert found["log_p_pearson"].value == pytest.approx(pearson(log_p, log_reward))
    assert (found["log_p_pearson"].n, found["log_p_spearman"].n) == (3, 4)
    assert found["log_p_spearman"].value == pytest.approx(spearman(log_p, log_reward)) == pytest.approx(1.0)


def test_all_figures_of_trajectories(env: Synthesis, t: Trajectories[Syntheses], molecules: dict[str, float]) -> None:
    known = set(list(molecules)[:10])
    found = metrics.figures(env, t, log_p=t.log_reward - 3, known=known)
    assert found["unique_rate"].value == len(molecules) / 200
    assert found["reward_mean"].value == pytest.approx(float((t.log_reward / 4).exp().mean()))
    assert found["novelty"].value == pytest.approx(1 - 10 / len(molecules))
    assert found["log_p_pearson"].value == pytest.approx(1.0)
    assert found["log_p_pearson"].n == len(molecules)
    assert found["reactions_mean"].value == pytest.approx(float((t.lengths - 2).double().mean()))
    good = [text for text, reward in molecules.items() if reward >= 0.7]
    assert found["scaffolds_at_1.4x"].value == len({diversity.scaffold(text) for text in good} - {""})
    assert sum(f.value for name, f in found.items() if name.startswith("template_")) == pytest.approx(1.0)
    assert all(figure.definition and figure.n > 0 for figure in found.values())
    unknown = metrics.figures(env, t)
    assert set(found) - set(unknown) == {"novelty", "log_p_pearson", "log_p_spearman"}


def test_probabilities_under_several_exponents_are_not_compared(tmp_path: Path) -> None:
    both = small_environment(tmp_path, exponent=[1.0, 4.0])
    t = sampled(both, 20)
    assert "log_p_pearson" not in metrics.figures(both, t, log_p=t.log_reward)


def test_a_summary_is_short_and_flat(env: Synthesis, t: Trajectories[Syntheses]) -> None:
    found, short = metrics.figures(env, t), env.summary(t)
    assert {"unique_rate", "valid_rate", "reward_top100", "modes_r2_05", "scaffolds", "qed_mean"} <= short.keys()
    assert all(short[name] == pytest.approx(found[name].value) for name in short)
    assert not any(name.startswith("template_") for name in short)
    few = env.summary(t[:1])
    assert "distance_mean" not in few, "one molecule has no distances"
    assert all(math.isfinite(value) for value in few.values())


def test_routes_are_what_rdkit_makes_of_their_blocks(env: Synthesis, t: Trajectories[Syntheses]) -> None:
    """Each step, by plain RDKit: its product is the one of that number among all distinct ones."""
    forward = {template.name: template for template in env.network.templates}
    routes = routes_of(env, t)
    roles, several = set[int](), 0
    for route, smiles in zip(routes, t.final.smiles, strict=True):
        present = route.first.smiles
        for step in route.steps:
            own = [text for text, block in zip(step.reactants, step.blocks, strict=True) if block is None]
            assert own == [present] if step is not route.steps[0] else present in step.reactants
            assert all(block is None or block.smiles == step.reactants[i] for i, block in enumerate(step.blocks))
            reaction = AllChem.ReactionFromSmarts(forward[step.template].forward)
            made: Any = reaction.RunReactants([Chem.MolFromSmiles(text) for text in step.reactants])
            found = sorted({Chem.CanonSmiles(Chem.MolToSmiles(product)) for (product,) in made})
            assert (found[step.outcome], len(found)) == (step.product, step.outcomes)
            assert step.family == forward[step.template].family
            roles.add(step.reactants.index(present))
            several += step.outcomes > 1
            present = step.product
        assert route.product == present == smiles
        assert len(route.blocks) == 1 + sum(len(step.reactants) - 1 for step in route.steps)
    assert roles == {0, 1}
    assert several > 0
    assert {len(step.reactants) for route in routes for step in route.steps} == {1, 2}


def test_a_route_as_text_and_its_price() -> None:
    route = Route(A, (FIRST, SECOND, THIRD))
    assert str(route) == "CO.CN>>COCN|COCN>>COC|COC.CO>>COCCO"
    assert (route.product, route.blocks, route.price) == ("COCCO", (A, B, A), 7.0)
    assert Route(C, ()).price is None


def test_a_block_may_be_a_product(tmp_path: Path) -> None:
    env = small_environment(tmp_path, min_reactions=0)
    t = sampled(env, 50)
    alone = [route for route in routes_of(env, t) if not route.steps]
    assert alone
    assert all(str(route) == "" and route.blocks == (route.first,) for route in alone)
    assert {route.product for route in routes_of(env, t)} == set(t.final.smiles)


def test_modes_of_the_environment_are_good_molecules_and_their_scaffolds(env: Synthesis) -> None:
    assert as_multimodal(env) is env
    final = env.enumerate()
    final = final[final.stopped]
    labels, rewards = env.modes(final), env.rewards(final)
    good = torch.from_numpy(rewards >= 0.5)
    assert 0 < int(good.sum()) < len(good)
    assert torch.equal(labels["good_molecules"] >= 0, good)
    assert len(labels["good_molecules"][good].unique()) == int(good.sum())
    named = list(zip(final.smiles, labels["good_scaffolds"].tolist(), good.tolist(), strict=True))
    assert len({label for _, label, _ in named if label >= 0}) == len({diversity.scaffold(s) for s, _, g in named if g})
    assert len({(diversity.scaffold(s), label) for s, label, g in named if g}) == len({x for _, x, g in named if g})
    discovery = Discovery(env)
    discovery.observe(final)
    assert discovery.counts()["good_molecules"] == int(good.sum())


def test_a_good_molecule_without_rings_has_no_scaffold(tmp_path: Path) -> None:
    env = small_environment(tmp_path, min_reactions=0, mode_threshold=0.0)
    blocks = [env.network.molecules("NCCN"), env.network.molecules("NCc1ccccc1")]
    zeros = torch.zeros(2, dtype=torch.long)
    labels = env.modes(Syntheses(env.network.molecules, tuple(blocks), zeros, ~zeros.bool(), zeros))
    assert (labels["good_molecules"] >= 0).all()
    assert (labels["good_scaffolds"] >= 0).tolist() == [False, True]


def test_distances_of_states(env: Synthesis, t: Trajectories[Syntheses]) -> None:
    assert as_measured(env) is env
    first, second = t.final[:20], t.final[20:40]
    expected = [1 - similarity(a, b, 2) for a, b in zip(first.smiles, second.smiles, strict=True)]
    assert env.distance(first, second).tolist() == pytest.approx(expected)
    assert float(env.distance(first, first).abs().max()) == 0.0


def test_evaluation_reports_all_of_it(env: Synthesis) -> None:
    assert as_summarised(env) is env
    policy = UniformSynthesis(env)
    objective = Objective(policy, UniformEdges(env), Alpha(1.0), LearnedLogZ(0.0))
    evaluator = Evaluator(env, objective, n_samples=64)
    result = evaluator(0)
    assert {"tv", "diversity", "qed_mean", "modes_r3_065", "reactions_mean"} <= result.keys()
    assert evaluator(0) == result, "looking twice gives the same"
    graph = exact.state_graph(env)
    p, target = exact.log_terminal(graph, policy).exp(), graph.log_target.exp()
    rewards = env.rewards(graph.states[graph.terminal])
    kept = ((p >= 0.25 * target).numpy() & (rewards >= env.mode_threshold)).sum()
    assert result["good_molecules_kept"] == kept
    assert 0 < kept < (rewards >= env.mode_threshold).sum()
