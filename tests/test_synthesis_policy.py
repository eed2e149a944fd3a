"""P_F of syntheses: a distribution over exactly the edges there are, whatever the molecule's order of atoms."""

from __future__ import annotations

import io
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from rdkit import Chem
from torch import nn

from envs.synthesis.backward import UniformEdges
from envs.synthesis.blocks import Block, Library
from envs.synthesis.encoders import GINE, GraphTransformer
from envs.synthesis.environment import Synthesis
from envs.synthesis.graphs import batch_of, graph_of
from envs.synthesis.network import NetworkError
from envs.synthesis.policy import SynthesisPolicy, UniformSynthesis
from envs.synthesis.templates import Template
from gfn import exact
from gfn.check import check_policy
from gfn.policies import Policy
from gfn.sampling import rollout
from tests.synthetic import TINY, TabularEdges, bench_of, sampled, states_at, synthesis, tiny, wrong_steps

SEVERAL = ["CC1CNCCN1", "O=C(O)c1ccc(C(=O)O)cc1", "CC(N)C(=O)O", "NCc1ccccc1", "O=C(O)c1ccc(Br)cc1"]  # several products


def encoder(name: str) -> nn.Module:
    torch.manual_seed(0)
    return GINE(16, 2) if name == "gine" else GraphTransformer(16, 2, 2)


def uneven(env: Synthesis, name: str = "gine", **settings: Any) -> SynthesisPolicy:
    """A policy far from uniform."""
    policy = SynthesisPolicy(env, encoder(name), **settings)
    with torch.no_grad():
        for head in (policy.move_head, policy.query[-1], policy.product_query[-1]):
            next(head.parameters()).mul_(60.0)
        policy.block_bias.normal_()
    return policy


def total(env: Synthesis, policy: Policy[Any]) -> torch.Tensor:
    """Sum of P_F over the edges out of each unfinished state."""
    graph = exact.state_graph(env)
    log_pf = exact.edge_log_pf(graph, policy)
    sums = torch.zeros(graph.n, dtype=torch.float64).index_add(0, graph.source, log_pf.exp())
    return sums[~graph.states.stopped]


@pytest.mark.parametrize("dense", [8192, 0])
@pytest.mark.parametrize("name", ["gine", "transformer"])
def test_p_f_adds_up_to_one(name: str, dense: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every state, under two exponents, where blocks are scored together and where slot by slot."""
    monkeypatch.setattr("envs.synthesis.actions.DENSE", dense)
    env = synthesis(TINY[:10], min_reactions=0 if name == "gine" else 1, exponent=[1.0, 4.0])
    policy = uneven(env, name)
    sums = total(env, policy)
    assert len(sums) > 200
    assert float((sums - 1).abs().max()) < 1e-6
    graph = exact.state_graph(env)
    log_pf = exact.edge_log_pf(graph, policy)
    assert float(log_pf.min()) < -8
    assert float((total(env, UniformSynthesis(env)) - 1).abs().max()) < 1e-6


def test_blocks_scored_slot_by_slot_have_the_same_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, t = uneven(tiny()), sampled(tiny(), 64)
    together = policy.log_prob(t)
    monkeypatch.setattr("envs.synthesis.actions.DENSE", 0)
    torch.testing.assert_close(policy.log_prob(t), together)


def test_samples_follow_the_probabilities() -> None:
    """20 000 actions at a state with several moves, blocks and products, by frequency."""
    env: Any = tiny()
    policy = uneven(env)
    state = states_at(env, ["CC1CNCCN1"], 0)
    row, action = env.edges(state)
    p = policy.distribution(state[row]).log_prob(action).detach().exp().double()
    assert len(p) > 10
    drawn = policy.distribution(state[[0] * 20_000]).sample(torch.Generator().manual_seed(0))
    assert {len(set(drawn[:, column].tolist())) > 1 for column in range(3)} == {True}
    same = (drawn.unsqueeze(1) == action).all(2)
    assert same.any(1).all()
    excess = (same.double().mean(0) - p) / (p * (1 - p) / len(drawn)).sqrt()
    assert float(excess.abs().max()) < 4.5


@pytest.mark.parametrize("kind", wrong_steps(tiny()))
def test_actions_that_are_not_allowed_have_no_probability(kind: str) -> None:
    env = tiny()
    smiles, depth, action = wrong_steps(env)[kind]
    state = states_at(env, [smiles], depth)
    for policy in (uneven(env), UniformSynthesis(env)):
        assert policy.distribution(state).log_prob(torch.tensor([action])).tolist() == [-torch.inf]


@pytest.mark.parametrize("name", ["gine", "transformer"])
def test_vectors_do_not_depend_on_the_order_of_atoms(name: str) -> None:
    network, rng = encoder(name), random.Random(0)
    products = sorted({step.product for steps in bench_of(tiny()).explored(2)[1].values() for step in steps})
    for smiles in rng.sample(products, 8):
        mol = Chem.MolFromSmiles(smiles)
        orders = [rng.sample(range(mol.GetNumAtoms()), mol.GetNumAtoms()) for _ in range(20)]
        vectors = network(batch_of([graph_of(mol), *(graph_of(Chem.RenumberAtoms(mol, order)) for order in orders)]))
        assert float((vectors[1:] - vectors[0]).detach().abs().max()) < 1e-5
        assert float(vectors[0].detach().std()) > 1e-3


def test_each_molecule_of_a_batch_is_seen_alone() -> None:
    graphs = [graph_of(Chem.MolFromSmiles(smiles)) for smiles in ("C", "CC", "NCCN", "c1ccccc1Br")]
    for name in ("gine", "transformer"):
        network = encoder(name)
        together = network(batch_of(graphs))
        torch.testing.assert_close(together, torch.cat([network(batch_of([graph])) for graph in graphs]))
        assert len(together.round(decimals=3).unique(dim=0)) == 4
    for wrong in ((0, 1), (8, 0)):
        with pytest.raises(ValueError, match="positive numbers"):
            GINE(*wrong)
    with pytest.raises(ValueError, match="heads must divide width"):
        GraphTransformer(8, 1, 3)


@pytest.mark.parametrize("name", ["gine", "transformer", "bare", "uniform", "tabular"])
def test_contract(name: str) -> None:
    env = synthesis(SEVERAL, exponent=[1.0, 4.0] if name != "gine" else 1.0, min_reactions=0 if name == "bare" else 1)
    made = {
        "gine": lambda: SynthesisPolicy(env, encoder("gine")),
        "transformer": lambda: SynthesisPolicy(env, encoder("transformer")),
        "bare": lambda: SynthesisPolicy(env, encoder("gine"), fingerprint=False),
        "uniform": lambda: UniformSynthesis(env),
        "tabular": lambda: TabularEdges(env),
    }
    kept = check_policy(made[name](), env)
    assert "normalised" in kept
    assert ("gradients" in kept) == (name != "uniform")


def test_contract_where_states_are_not_listed() -> None:
    env = synthesis(SEVERAL, max_reactions=3, listed=False)
    assert "rescoring" in check_policy(SynthesisPolicy(env, encoder("gine")), env)


def test_exploration_keeps_to_the_edges() -> None:
    """Tempered and uniform distributions add up to one over the same edges; a high temperature is nearly uniform."""
    env: Any = tiny()
    state = states_at(env, ["NCCN"], 0)
    row, action = env.edges(state)
    distribution = uneven(env).distribution(state[row])
    even = UniformSynthesis(env).distribution(state[row]).log_prob(action)
    torch.testing.assert_close(distribution.uniform().log_prob(action), even)
    torch.testing.assert_close(distribution.tempered(1e6).log_prob(action), even, atol=1e-3, rtol=1e-3)
    for changed in (distribution.tempered(0.7), distribution.tempered(3.0), distribution):
        assert float(changed.log_prob(action).detach().exp().sum()) == pytest.approx(1.0, abs=1e-5)
    assert float((distribution.log_prob(action) - even).detach().abs().max()) > 0.5


SLOPPY = Template(  # tertiary amines and amides fit, and would end up with four bonds to a neutral nitrogen
    "sloppy",
    "acylation",
    "[CX3:1](=[OX1:2])[OX2;H1].[NX3;+0:3]>>[C:1](=[O:2])[N+0:3]",
    ("[CX3:1](=[OX1:2])-!@[NX3:3]>>[C:1](=[O:2])O.[N:3]",),
    "none",
)
ACETIC, SECONDARY, TERTIARY = "CC(=O)O", ("CNC", "CCNC"), ("CN(C)C", "CCN(C)C")


def sloppy(*smiles: str, **settings: Any) -> Synthesis:
    blocks = Library("sloppy", tuple(Block(text, text, "test") for text in sorted(smiles)))
    return synthesis(blocks, templates=[SLOPPY], **settings)


def test_reactions_that_give_nothing_are_left_out_and_counted() -> None:
    """They are found in passing; trajectories go on, and the rest shares their probability, in training as well."""
    env = sloppy(ACETIC, *SECONDARY, *TERTIARY)
    assert env.network.startable.tolist() == [b.smiles not in TERTIARY for b in env.network.blocks]
    policy, generator = SynthesisPolicy(env, GINE(8, 1)), torch.Generator().manual_seed(0)
    before = total(env, policy)
    assert float(before.min()) < 0.7, "what gives nothing still has a share"
    for _ in range(8):
        t = rollout(env, policy, env.reset(64), generator=generator)
        assert env.is_terminal(t.final).all()
        assert torch.isfinite(policy.log_prob(t)).all()
    # acetic acid with two amines that have no hydrogen left, and two products, each an amide, with acetic acid
    amides = {step.product for step in bench_of(env).steps(ACETIC)}
    role = {way.role: i for i, way in enumerate(env.network.moves) if way}
    number = {b.smiles: i for i, b in enumerate(env.network.blocks)}
    assert policy.barren.found == {
        ACETIC: {(role[0], number[text]) for text in TERTIARY},
        **{text: {(role[1], number[ACETIC])} for text in amides},
    }
    assert len(policy.barren) == 4
    assert float((total(env, policy) - 1).abs().max()) < 1e-6
    acid = states_at(env, [ACETIC, ACETIC], 0)
    key = env.network.molecules(ACETIC).key
    actions = torch.tensor([[role[0], number[text], 0, key] for text in (TERTIARY[0], SECONDARY[0])])
    assert policy.distribution(acid).log_prob(actions).isfinite().tolist() == [False, True]
    with pytest.raises(ValueError, match=r"action sloppy with .* is not allowed in state"):
        env.step(acid[:1], actions[:1])
    back = rollout(env, UniformEdges(env), t.final, backward=True, generator=generator)
    assert env.is_initial(back.initial).all()


def test_looking_at_a_policy_notes_nothing_and_notes_are_saved() -> None:
    env = sloppy(ACETIC, *SECONDARY, *TERTIARY)
    policy = SynthesisPolicy(env, GINE(8, 1))
    rollout(env, policy.eval(), env.reset(64), generator=torch.Generator().manual_seed(0))
    assert len(policy.barren) == 0
    rollout(env, policy.train(), env.reset(64), generator=torch.Generator().manual_seed(0))
    assert len(policy.barren) > 0
    file = io.BytesIO()
    torch.save(policy.state_dict(), file)
    file.seek(0)
    again = SynthesisPolicy(env, GINE(8, 1))
    again.load_state_dict(torch.load(file, weights_only=True))
    assert again.barren.found == policy.barren.found
    assert torch.equal(total(env, again), total(env, policy))


def test_blocks_whose_first_partners_all_fail_do_not_begin() -> None:
    """Eight partners are tried; that a ninth would do is found out along the way, and no walk goes back there."""
    tertiary = ["C" * n + "N(C)C" for n in range(1, 9)]
    env = sloppy(ACETIC, *tertiary, "CNC")
    listed: Any = env
    assert [b.smiles for b, may in zip(env.network.blocks, env.network.startable, strict=True) if may] == ["CNC"]
    graph = exact.state_graph(env)
    log_pb = exact.edge_log_pb(graph, UniformEdges(env))
    assert float(exact.forward_sum(graph, log_pb, torch.zeros(1)).abs().max()) < 1e-6
    assert sorted(listed.enumerate().smiles) == ["", "CC(=O)N(C)C", "CC(=O)N(C)C", "CNC"]


def test_where_nothing_can_react_there_is_no_environment() -> None:
    with pytest.raises(NetworkError, match=r"none of the 3 blocks of sloppy takes part in any of the 1 reactions"):
        sloppy(ACETIC, *TERTIARY)
    twice = replace(SLOPPY, name="amines", forward="[NX3;H2:1].[NX3;H2:2]>>[N:1][N:2]")
    with pytest.raises(NetworkError, match="takes part in any of the 2 reactions"):
        synthesis(Library("none", (Block("CC", "", ""),)), templates=[SLOPPY, twice])


@pytest.mark.parametrize("wrong", [{"key_width": 0}, {"subsample": 0}])
def test_numbers_that_do_not_fit_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="numbers must be positive, got key_width="):
        SynthesisPolicy(tiny(), GINE(8, 1), **wrong)


def test_molecules_with_one_move_choose_blocks_of_their_own() -> None:
    """Where a molecule has a single move, the network sees it all the same: the blocks are still to be chosen."""
    env = sloppy(ACETIC, "CCC(=O)O", *SECONDARY)
    policy = uneven(env)
    acids = states_at(env, [ACETIC, "CCC(=O)O"], 0)
    assert env.move_mask(acids).sum(1).tolist() == [1, 1]
    number = [[b.smiles for b in env.network.blocks].index(text) for text in SECONDARY]
    scores = [
        policy.distribution(acids).log_prob(torch.tensor([[2, block, 0, key] for key in acids.keys.tolist()]))
        for block in number
    ]
    assert float((scores[0] - scores[0].flip(0)).detach().abs().max()) > 1e-3
