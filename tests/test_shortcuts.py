"""The report of shortcuts: what each converges to, against walks through all trajectories, and the command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from rdkit import Chem
from rdkit.Chem import rdChemReactions

from envs.synthesis.backward import UniformEdges
from envs.synthesis.chemistry import FIRST, STOP
from experiments.reports.shortcuts import SHORTCUTS, Shortcut, listed_for, main, measured
from experiments.reports.weights import Listed
from gfn import exact

BLOCKS = ["CC(N)C(=O)O", "CC1CNCCN1", "C1CNCCN1", "CC(C)(C)OC(=O)N1CCNCC1", "O=C(O)c1ccccc1"]
SMALL = f"env.blocks={BLOCKS}"
Edge = tuple[int, tuple[int, ...]]  # state it comes from, action
by_name = {shortcut.name: shortcut for shortcut in SHORTCUTS}
every = pytest.mark.parametrize("shortcut", SHORTCUTS, ids=lambda shortcut: shortcut.name)


@pytest.fixture(scope="module")
def tiny() -> Listed:
    return listed_for([], 2)


@pytest.fixture(scope="module")
def small() -> Listed:
    return listed_for([SMALL], 2)


def paths(listed: Listed) -> list[list[tuple[int, tuple[int, ...], int]]]:
    """Every trajectory as a list of edges: a state, an action, the next state."""
    graph = listed.graph
    found = exact.all_trajectories(graph)
    place = iter(graph.env.index(found.states).tolist())
    actions = iter([tuple(row) for row in found.actions.tolist()])
    result = []
    for length in found.lengths.tolist():
        visited = [next(place) for _ in range(length + 1)]
        result.append([(a, next(actions), b) for a, b in pairwise(visited)])
    return result


def edges_into(walks: list[list[tuple[int, tuple[int, ...], int]]]) -> dict[int, set[Edge]]:
    found: dict[int, set[Edge]] = {}
    for walk in walks:
        for before, action, after in walk:
            found.setdefault(after, set()).add((before, action))
    return found


def summed(walks: Any, factor: Callable[[Edge, int], float]) -> dict[int, float]:
    """B of the end of the walks, by adding up one product for each."""
    total: dict[int, float] = {}
    for walk in walks:
        product = 1.0
        for before, action, after in walk:
            product *= factor((before, action), after)
        total[walk[-1][2]] = total.get(walk[-1][2], 0.0) + product
    return total


def template_of(listed: Listed, edge: Edge) -> str:
    move = listed.env.network.moves[edge[1][0]]
    assert move is not None
    return move.template.name


def matches(listed: Listed, state: int) -> int:
    mol = Chem.MolFromSmiles(listed.graph.states.molecule[state].smiles)
    retro = [[rdChemReactions.ReactionFromSmarts(s) for s in t.retro] for t in listed.env.network.templates]
    for rxn in (rxn for some in retro for rxn in some):
        rxn.Initialize()
    return sum(any(rxn.IsMoleculeReactant(mol) for rxn in some) for some in retro)


def walked(listed: Listed, name: str) -> dict[int, float]:
    walks = paths(listed)
    into = edges_into(walks)

    def among_edges(edge: Edge, state: int) -> float:
        return 1 / len(into[state])

    def among_templates(edge: Edge, state: int) -> float:
        reacted = edge[1][0] > FIRST
        return 1 / len({template_of(listed, e) for e in into[state]}) if reacted else among_edges(edge, state)

    factors: dict[str, Callable[[Edge, int], float]] = {
        "labelled edges": among_edges,
        "(molecule, depth) as the end": lambda e, s: 1.0 if e[1][0] == STOP else among_edges(e, s),
        "1 / distinct parents": lambda e, s: 1 / len({before for before, _ in into[s]}),
        "1 / templates with an edge": among_templates,
        "1 / templates that match": lambda e, s: 1 / matches(listed, s) if e[1][0] > FIRST else among_edges(e, s),
        "routes as states": lambda e, s: 1.0,
    }
    return summed(walks, factors[name])


def b_of(listed: Listed, shortcut: Shortcut) -> dict[int, float]:
    terminal = listed.graph.terminal
    b = exact.forward_sum(listed.graph, shortcut.weights(listed), torch.zeros(1))[terminal].exp()
    return dict(zip(terminal.tolist(), b.tolist(), strict=True))


@pytest.mark.parametrize("name", sorted(by_name.keys() - {"first product only", "last reaction dropped"}))
def test_b_is_the_sum_over_all_trajectories(small: Listed, name: str) -> None:
    assert b_of(small, by_name[name]) == pytest.approx(walked(small, name), rel=1e-12)


def test_b_with_the_last_reaction_dropped(small: Listed) -> None:
    walks = paths(small)
    once = edges_into([walk for walk in walks if len(walk) == 3])  # begin, one reaction, stop
    expected = dict.fromkeys(small.graph.terminal.tolist(), 0.0)
    for walk in walks:  # the second of two reactions ends the trajectory, whose result is what the first one made
        made = small.graph.states.molecule[walk[1][2]]
        end = next(t for t in expected if small.graph.states.molecule[t] is made)
        expected[end] += 1 / len(once[walk[1][2]])
    assert b_of(small, by_name["last reaction dropped"]) == pytest.approx(expected, rel=1e-12)


def test_molecules_of_first_products_are_those_that_rdkit_lists_first(small: Listed) -> None:
    templates = [rdChemReactions.ReactionFromSmarts(t.forward) for t in small.env.network.templates]
    blocks = [block.smiles for block in small.env.network.blocks]

    def products(smiles: str) -> Iterator[str]:
        for rxn in templates:
            pairs = [(smiles,)]
            if rxn.GetNumReactantTemplates() == 2:
                pairs = [pair for block in blocks for pair in ((smiles, block), (block, smiles))]
            for pair in pairs:
                raw = rxn.RunReactants([Chem.MolFromSmiles(text) for text in pair])
                yield from [text for text in map(written, (product for (product,) in raw)) if text][:1]

    def written(raw: Chem.Mol) -> str:
        sound = Chem.SanitizeMol(raw, catchErrors=True) == Chem.SanitizeFlags.SANITIZE_NONE
        return Chem.CanonSmiles(Chem.MolToSmiles(raw)) if sound else ""

    one = {product for block in blocks for product in products(block)}
    two = {product for smiles in one for product in products(smiles)}
    b = b_of(small, by_name["first product only"])
    assert {small.graph.states.molecule[t].smiles for t, value in b.items() if value > 0} == one | two
    assert len(one | two) < len(b)
    assert [value for value in b.values() if value > 0] == pytest.approx([1.0] * len(one | two), rel=1e-12)


@every
def test_zero_loss_is_possible_and_gives_what_is_reported(small: Listed, shortcut: Shortcut) -> None:
    """The policy that flows prescribe has Σ P_F = 1 and Z P_F(τ) = R Π P_B, and ends where the report says."""
    graph, weights = small.graph, shortcut.weights(small)
    flow = exact.log_flows(graph, weights)
    alive = flow[graph.source].isfinite() & flow[graph.target].isfinite()
    log_pf = (flow[graph.target] + weights - flow[graph.source]).where(alive, -torch.inf)
    total = torch.zeros(graph.n, dtype=torch.float64).index_add(0, graph.source, log_pf.exp())
    reached = exact.log_reach(graph, log_pf).isfinite()
    reached[graph.terminal] = False
    torch.testing.assert_close(total[reached], torch.ones_like(total[reached]), rtol=0, atol=1e-12)
    learned = exact.log_reach(graph, log_pf)[graph.terminal].exp()
    l1 = float((learned - graph.log_target.exp()).abs().sum())
    assert measured(small, shortcut).l1 == pytest.approx(l1, abs=1e-12)


@every
def test_only_labelled_edges_reach_the_target(tiny: Listed, shortcut: Shortcut) -> None:
    result = measured(tiny, shortcut)
    if shortcut.name == "labelled edges":
        assert result.l1 < 1e-10
        assert result.missing == 0.0
        assert (result.low, result.high) == pytest.approx((1.0, 1.0), abs=1e-12)
    else:
        assert result.l1 > 0.01
    assert result.l1_found <= result.l1 + 1e-12
    loses = shortcut.name in ("first product only", "last reaction dropped")
    assert (result.missing > 0) == loses


def test_shipped_policy_has_the_weights_of_labelled_edges(small: Listed) -> None:
    shipped = exact.edge_log_pb(small.graph, UniformEdges(small.env))
    torch.testing.assert_close(shipped, by_name["labelled edges"].weights(small), rtol=0, atol=1e-6)


def test_command_writes_table_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"out={tmp_path / 'report'}", "reactions=2,3", SMALL]) == 0
    text = (tmp_path / "report" / "shortcuts.md").read_text(encoding="utf-8")
    assert text in capsys.readouterr().out
    for shortcut in SHORTCUTS:
        rows = [line.split(" | ") for line in text.splitlines() if line.startswith(f"| {shortcut.name} |")]
        assert [row[1] for row in rows] == ["≤ 2", "≤ 3"]
    assert (tmp_path / "report" / "shortcuts.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["reactions=1"], "at least 2"), (["out"], "key=value"), (["env.blcks=nci"], "did you mean blocks")],
)
def test_command_says_what_does_not_fit(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
