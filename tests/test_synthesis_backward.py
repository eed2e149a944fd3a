"""P_B of syntheses: the edges into a molecule are those that plain RDKit finds going forward, no more and no less."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from envs.synthesis.backward import CheapestRoutes, LearnedEdges, OverEdges, UniformEdges
from envs.synthesis.blocks import Block, Library
from envs.synthesis.chemistry import FIRST, STOP
from envs.synthesis.edges import Edge, ExactEdges, State
from envs.synthesis.encoders import GINE
from envs.synthesis.environment import Synthesis
from envs.synthesis.libraries import library
from envs.synthesis.policy import SynthesisPolicy, UniformSynthesis
from gfn import exact
from gfn.backward import log_return, walks
from gfn.check import check_policy
from tests.marks import mostly_slow
from tests.synthetic import CACHE, TINY, Bench, bench_of, synthesis, tiny

Into = dict[tuple[str, int], set[tuple[str, int, str, int, str]]]  # template, role, block, which product, parent


def inverse(bench: Bench, max_reactions: int) -> Into:
    """Every edge into each molecule and number of reactions, found by going forward."""
    found: Into = {}
    for depth, level in enumerate(bench.explored(max_reactions)):
        for parent, steps in level.items():
            for s in steps:
                edge = (s.template, s.role, s.block, s.outcome, parent)
                found.setdefault((s.product, depth + 1), set()).add(edge)
    return found


def listed(env: Synthesis, edges: tuple[Edge, ...]) -> list[tuple[str, int, str, int, str]]:
    ways = [env.network.moves[edge.move] for edge in edges]
    partner = [env.network.blocks[edge.block].smiles if edge.block >= 0 else "" for edge in edges]
    return [
        (way.template.name, way.role, block, edge.outcome, edge.parent.smiles)
        for edge, way, block in zip(edges, ways, partner, strict=True)
        if way is not None
    ]


def require_inverse(env: Synthesis, bench: Bench) -> Into:
    """Recall 1, nothing spurious, each edge once; for finished molecules, the numbers of reactions they take."""
    wanted, molecules = inverse(bench, env.max_reactions), env.network.molecules
    states: list[State] = [(molecules(smiles), depth, False) for smiles, depth in wanted]
    found = dict(zip(wanted, ExactEdges(env).into(states), strict=True))
    missing = {place: edges - set(listed(env, found[place])) for place, edges in wanted.items()}
    spurious = {place: set(listed(env, found[place])) - edges for place, edges in wanted.items()}
    assert {place: edges for place, edges in missing.items() if edges} == {}
    assert {place: edges for place, edges in spurious.items() if edges} == {}
    assert all(len(found[place]) == len(edges) for place, edges in wanted.items())
    depths: dict[str, list[int]] = {}
    for smiles, depth in sorted(wanted, key=lambda place: place[1]):
        depths.setdefault(smiles, []).append(depth)
    ends: list[State] = [(molecules(smiles), 0, True) for smiles in depths]
    for edges, (smiles, numbers) in zip(ExactEdges(env).into(ends), depths.items(), strict=True):
        assert [(edge.move, edge.block, edge.parent.smiles) for edge in edges] == [(STOP, k, smiles) for k in numbers]
    return wanted


@pytest.mark.slow
def test_edges_are_the_inverse_of_what_goes_forward() -> None:
    wanted = require_inverse(tiny(), bench_of(tiny()))
    assert sum(map(len, wanted.values())) > 1000
    assert any(len({parent for *_, parent in edges}) < len(edges) for edges in wanted.values()), "parallel edges"
    both = {smiles for smiles, depth in wanted if depth == 1} & {smiles for smiles, depth in wanted if depth == 2}
    assert both, "molecules that are made in one reaction and in two"


@pytest.mark.slow
def test_edges_up_to_three_reactions_are_the_inverse() -> None:
    env = synthesis(TINY[:9], 3, listed=False)
    assert len(require_inverse(env, bench_of(env))) > 500


CHIRAL = "C[C@H](N)C(=O)O C[C@H]1CNCCN1 O=C[C@@H]1CCCO1 C/C=C/C(=O)O N[C@@H](CO)c1ccc(Br)cc1 C[C@H](C(=O)O)C(=O)OC"
SETTINGS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "stereo": ([*CHIRAL.split(), "CCOC(=O)CBr", "C=CC(=O)OC", "CC(C)(C)OC(=O)N1CCNCC1", "NCCN"], {"stereo": True}),
    "chemoselective": ([*TINY[:8], "NCCO", "O=C(Cl)c1ccccc1", "Nc1ccc(O)cc1"], {"chemoselective": True}),
    "rings": (["NCCc1c[nH]c2ccccc12", "CC(=O)CC(C)=O", "NNc1ccccc1", "Nc1ccccc1N", "C=O", "N#Cc1ccc(N)cc1"], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", mostly_slow(SETTINGS, ["rings"]))
def test_edges_are_the_inverse_with_other_rules(name: str) -> None:
    blocks, settings = SETTINGS[name]
    env = synthesis(blocks, listed=False, **settings)
    wanted = require_inverse(env, bench_of(env, settings.get("chemoselective", False)))
    assert len(wanted) > 20
    if name == "stereo":
        made = {smiles for smiles, _ in wanted}
        assert any("@" in smiles for smiles in made)
        assert any("/C=C/" in smiles for smiles in made)


RANDOM = [
    pytest.param(name, seed, stereo, marks=pytest.mark.slow if seed or stereo or name != "nci" else ())
    for name, seeds in (("nci", 3), ("synspace", 2), ("chemicals", 2))
    for seed in range(seeds)
    for stereo in ((False, True) if name == "nci" else (False,))
]


@pytest.mark.parametrize(("name", "seed", "stereo"), RANDOM)
def test_edges_of_random_libraries_are_the_inverse(name: str, seed: int, stereo: bool) -> None:
    chosen = library(name, 20 if seed else 16, seed, stereo=stereo, max_atoms=20, cache=CACHE)
    env = synthesis(chosen, listed=False, stereo=stereo)
    assert require_inverse(env, bench_of(env))


def policies(env: Synthesis) -> dict[str, Callable[[], OverEdges]]:
    """One P_B of each kind that knows all edges, far from uniform if it can be."""
    torch.manual_seed(0)
    forward = SynthesisPolicy(env, GINE(16, 1))

    def learned(tied: bool) -> OverEdges:
        made = LearnedEdges(env, forward, None if tied else GINE(16, 1), tied, "exact")
        with torch.no_grad():
            for parameter in made.head.parameters():
                parameter.mul_(8.0)
        return made

    return {
        "uniform": lambda: UniformEdges(env),
        "cheapest": lambda: CheapestRoutes(env, weight=2.0, step_cost=0.5),
        "learned": lambda: learned(False),
        "tied": lambda: learned(True),
    }


def totals(graph: exact.StateGraph[Any], log_pb: Tensor) -> Tensor:
    """Sum of P_B over the edges into each state that is not initial."""
    total = torch.zeros(graph.n, dtype=torch.float64).index_add(0, graph.target, log_pb.exp())
    return total[torch.ones(graph.n).index_fill(0, graph.initial, 0.0).bool()]


@pytest.mark.parametrize("kind", policies(tiny()))
def test_p_b_adds_up_to_one_over_edges_and_over_trajectories(kind: str) -> None:
    env = tiny()
    graph, backward = exact.state_graph(env), policies(env)[kind]()
    log_pb = exact.edge_log_pb(graph, backward)
    assert torch.isfinite(log_pb).all()
    assert float((totals(graph, log_pb) - 1).abs().max()) < 1e-6
    over_trajectories = exact.forward_sum(graph, log_pb, torch.zeros(1))[graph.terminal]
    assert float(over_trajectories.abs().max()) < 1e-6
    spread = len(log_pb.round(decimals=4).unique())
    assert spread > (100 if kind in ("learned", "tied") else 3)


def test_p_b_of_several_conditions_and_of_blocks_alone() -> None:
    env = synthesis(TINY[:10], min_reactions=0, exponent=[1.0, 2.0])
    graph = exact.state_graph(env)
    assert graph.n_conditions == 2
    log_pb = exact.edge_log_pb(graph, UniformEdges(env))
    assert float((totals(graph, log_pb) - 1).abs().max()) < 1e-6
    assert float(exact.forward_sum(graph, log_pb, torch.zeros(2))[graph.terminal].abs().max()) < 1e-6
    alone = graph.source[(graph.action[:, 0] == STOP) & (graph.action[:, 1] == 0)]
    assert len(alone) == 20


def test_parents_out_of_reach_lose_walks_as_often_as_computed() -> None:
    """With ``retro`` P_B is normalised over edges some of which lead nowhere: q is exact, and walks agree with it."""
    env = synthesis([*TINY[:4], *TINY[10:12]])
    graph, backward = exact.state_graph(env), UniformEdges(env, "retro")
    log_q = log_return(graph, exact.edge_log_pb(graph, backward))[graph.terminal]
    assert float(log_q.max()) <= 1e-9
    assert float(log_q.min()) < math.log(0.5)
    assert torch.isfinite(log_q).all()
    final = graph.states[graph.terminal]
    runs = torch.stack([walks(env, backward, final, torch.Generator().manual_seed(i)).returned for i in range(8)])
    q = log_q.exp()
    noise = float((q * (1 - q)).sum().div(8).sqrt()) / len(q)
    assert abs(float(runs.double().mean() - q.mean())) < 4 * noise
    lossless = UniformEdges(env)
    assert walks(env, lossless, final, torch.Generator().manual_seed(0)).returned.all()


def test_the_cheapest_syntheses_by_hand() -> None:
    """Costs of every state by going forward, and P_B from them, with prices of some blocks."""
    prices = [None if i % 3 == 0 else float(i) for i in range(10)]
    chosen = library(TINY[:10], cache=CACHE)
    priced = Library(
        "priced", tuple(Block(b.smiles, b.id, "", price=p) for b, p in zip(chosen.blocks, prices, strict=True))
    )
    env = synthesis(priced)
    known = [p for p in prices if p is not None]
    relative = {b.smiles: 1.0 if b.price is None else b.price * len(known) / sum(known) for b in priced.blocks}
    wanted, step_cost, weight = inverse(bench_of(env), 2), 0.7, 1.3
    cost = {(smiles, 0): price for smiles, price in relative.items()}
    for (smiles, depth), edges in sorted(wanted.items(), key=lambda item: item[0][1]):
        ways = [cost[e[4], depth - 1] + relative.get(e[2], 0.0) + step_cost for e in edges]
        cost[smiles, depth] = min(ways)
    molecules = env.network.molecules
    backward = CheapestRoutes(env, weight, step_cost)
    for (smiles, depth), edges in wanted.items():
        states: list[State] = [(molecules(smiles), depth, False)]
        (found,) = ExactEdges(env).into(states)
        logits = backward.logits(states, [found]).tolist()
        for edge, logit in zip(listed(env, found), logits, strict=True):
            before = cost[edge[4], depth - 1] + relative.get(edge[2], 0.0)
            assert math.isclose(logit, -weight * before, rel_tol=1e-5)  # the reaction's own cost is the same for all
            assert edge in edges
        (stops,) = ExactEdges(env).into([(molecules(smiles), 0, True)])
        logits = backward.logits([(molecules(smiles), 0, True)], [stops]).tolist()
        assert logits == pytest.approx([-weight * cost[smiles, stop.block] for stop in stops], rel=1e-5)
    for wrong in ({"weight": -1.0}, {"step_cost": -0.1}):
        with pytest.raises(ValueError, match="must not be negative"):
            CheapestRoutes(env, **wrong)


@pytest.mark.parametrize("kind", policies(tiny()))
def test_policies_keep_their_contract(kind: str) -> None:
    env = tiny()
    kept = check_policy(policies(env)[kind](), env, backward=True, forward=UniformSynthesis(env), n=24)
    assert {"rollout", "rows", "rescoring"} <= set(kept)


def test_choices_that_are_none_are_refused() -> None:
    env: Any = tiny()
    with pytest.raises(ValueError, match="edges must be exact, known or retro, got 'all'"):
        UniformEdges(env, "all")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="needs a network of its own, or tied=true"):
        LearnedEdges(env, SynthesisPolicy(env, GINE(8, 1)))
    assert ExactEdges(env).into([(env.network.molecules("CCCCCCCC"), 0, False)]) == [()]
    block = env.network.blocks[0]
    ((first,),) = ExactEdges(env).into([(block, 0, False)])
    assert first.action == [FIRST, 0, 0, 0]
