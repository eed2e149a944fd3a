"""The synthesis environment: states, steps and masks as plain RDKit has them, storage, and what is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from envs.synthesis.backward import UniformEdges
from envs.synthesis.chemistry import FIRST, STOP
from envs.synthesis.environment import Synthesis
from envs.synthesis.libraries import library
from envs.synthesis.policy import UniformSynthesis
from gfn.check import check_environment
from gfn.environment import as_enumerable
from gfn.sampling import rollout
from gfn.trajectories import Trajectories
from tests.synthetic import CACHE, TINY, Bench, bench_of, of_kind, sampled, states_at, step_of, synthesis, tiny


def require_carried_out(env: Synthesis, t: Trajectories[Any], bench: Bench) -> list[int]:
    """Every trajectory's actions, done by plain RDKit from SMILES of blocks, give its states; number of reactions."""
    blocks, counts = [block.smiles for block in env.network.library.blocks], list[int]()
    for i in range(len(t)):
        one = t[i : i + 1]
        text, reactions = "", 0
        assert one.states.smiles[0] == text
        assert one.states.stopped.tolist() == [False] * int(one.lengths) + [True]
        for action, after, depth in zip(
            one.actions.tolist(), one.states.smiles[1:], one.states.depth.tolist()[1:], strict=True
        ):
            if action[0] == FIRST:
                text = blocks[action[1]]
            elif action[0] != STOP:
                step = step_of(env, action, "")
                text = bench.carried_out(step.template, step.role, step.block, text)[step.outcome]
                reactions += 1
            assert (after, depth) == (text, 0 if action[0] == STOP else reactions)
        assert one.actions[-1].tolist()[:3] == [STOP, reactions, 0]
        counts.append(reactions)
    return counts


def test_trajectories_are_what_plain_rdkit_makes_of_their_actions() -> None:
    env = tiny(3)
    counts = require_carried_out(env, sampled(env, 200), bench_of(env))
    assert set(counts) == {1, 2, 3}


def require_all(env: Synthesis, bench: Bench) -> None:
    """Every state, mask and edge of a listed environment is one that plain RDKit finds by trying everything."""
    levels = bench.explored(env.max_reactions)
    made = {step.product for steps in levels[-1].values() for step in steps}
    wanted = [set(level) for level in levels] + [made]
    listed: Any = env
    states = listed.enumerate()
    for depth, molecules in enumerate(wanted):
        at = (~states.stopped & (states.depth == depth)).tolist()
        found = [m for m, here in zip(states.smiles, at, strict=True) if here and m]
        assert len(found) == len(set(found))
        assert set(found) == molecules
    finished = [m for m, stopped in zip(states.smiles, states.stopped.tolist(), strict=True) if stopped]
    assert sorted(finished) == sorted(set[str]().union(*wanted[env.min_reactions :]))

    for depth, level in enumerate(levels):
        here = states_at(env, list(level), depth)
        require_moves(env, here.smiles, env.move_mask(here), bench, depth)
        rows, actions = listed.edges(here)
        kind = of_kind(actions)
        after = env.step(here[rows], actions)
        assert int((~kind).sum()) == (len(here) if depth >= env.min_reactions else 0)
        steps: dict[str, list[Any]] = {smiles: [] for smiles in level}
        for row, action, product in zip(rows[kind].tolist(), actions[kind].tolist(), after[kind].smiles, strict=True):
            steps[here.smiles[row]].append(step_of(env, action, product))
        assert {smiles: sorted(found) for smiles, found in steps.items()} == level
    last = env.move_mask(states_at(env, sorted(made), env.max_reactions))
    assert last.nonzero()[:, 1].tolist() == [STOP] * len(made)


def require_moves(env: Synthesis, smiles: list[str], mask: torch.Tensor, bench: Bench, depth: int) -> None:
    """A move is allowed where the molecule matches its slot and some block the other."""
    for number, way in enumerate(env.network.moves):
        if way is None:
            wanted = [number == STOP and depth >= env.min_reactions] * len(smiles)
        else:
            name, role, pair = way.template.name, way.role, way.partner >= 0
            some = not pair or any(bench.fits(name, 1 - role, block) for block in bench.blocks)
            wanted = [some and bench.fits(name, role, text) for text in smiles]
        assert mask[:, number].tolist() == wanted, way


def test_every_state_mask_and_edge_up_to_two_reactions() -> None:
    env = tiny()
    require_all(env, bench_of(env))


@pytest.mark.slow
def test_every_state_mask_and_edge_up_to_three_reactions() -> None:
    env = tiny(3)
    require_all(env, bench_of(env))


@pytest.mark.parametrize("settings", [{"chemoselective": True}, {"stereo": True}, {"min_reactions": 0}])
def test_every_state_mask_and_edge_of_one_reaction(settings: dict[str, Any]) -> None:
    env = synthesis([*TINY, "C[C@H](N)C(=O)O", "C[C@H]1CNCCN1"], 1, **settings)
    require_all(env, bench_of(env, settings.get("chemoselective", False)))


@pytest.mark.parametrize(
    ("size", "n", "tried"), [(200, 24, 2), pytest.param(500, 150, 300, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_masks_of_random_states_of_a_large_library(size: int, n: int, tried: int) -> None:
    env = synthesis(library("nci", size, cache=CACHE), 3, listed=False)
    bench, rng = bench_of(env), random.Random(0)
    for slot, fitting in enumerate(env.network.members):
        way = next(way for way in env.network.moves if way and way.own == slot)
        assert [i for i, b in enumerate(bench.blocks) if bench.fits(way.template.name, way.role, b)] == list(fitting)
    states = sampled(env, n).states
    for depth in range(env.max_reactions):
        chosen = states[~states.stopped & (states.depth == depth)]
        some = sorted({text for text in chosen.smiles if text})[: n // 3]
        mask = env.move_mask(states_at(env, some, depth))
        require_moves(env, some, mask, bench, depth)
        for row, move in mask.nonzero().tolist():
            way, partner = env.network.moves[move], int(env.network.partner[move])
            blocks = env.network.members[partner].tolist() if partner >= 0 else [-1]
            for block in rng.sample(blocks, min(tried, len(blocks))) if way else []:
                text = bench.blocks[block] if block >= 0 else ""
                (products,) = env.network.outcomes([(some[row], move, block)])
                assert list(products) == bench.carried_out(way.template.name, way.role, text, some[row])


def test_contract() -> None:
    env = synthesis(TINY[:10], exponent=[1.0, 4.0])
    kept = check_environment(env, UniformSynthesis(env), UniformEdges(env), n=16)
    assert {"step", "undo", "enumerate", "edges", "backward edges", "generator"} <= set(kept)


@pytest.mark.parametrize(
    "settings", [{"min_reactions": 0}, {"max_reactions": 1}, {"max_reactions": 3, "listed": False}]
)
def test_contract_of_other_lengths(settings: dict[str, Any]) -> None:
    env = synthesis(TINY[:10], **settings)
    kept = check_environment(env, UniformSynthesis(env), UniformEdges(env), n=16)
    assert ("enumerate" in kept) == (settings.get("listed", True)) == (as_enumerable(env) is not None)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size", "n"), [("nci", None, 10_000), ("synspace", 5000, 3000)])
def test_random_trajectories_by_the_thousand(name: str, size: int | None, n: int) -> None:
    """None fails; reactions that give no product although all slots fit are rare, and counted."""
    env = synthesis(library(name, size, cache=CACHE), 3, listed=False)
    policy, generator = UniformSynthesis(env), torch.Generator().manual_seed(0)
    lengths = torch.zeros(0, dtype=torch.long)
    for _ in range(n // 500):
        t = rollout(env, policy, env.reset(500), generator=generator)
        assert env.is_terminal(t.final).all()
        lengths = torch.cat([lengths, t.lengths])
    reactions = int((lengths - 2).sum())
    print(f"{name}: {reactions} reactions, {len(policy.barren)} without a product")
    assert len(policy.barren) < reactions // 100
    require_carried_out(env, t[:100], bench_of(env))
