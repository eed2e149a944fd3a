"""P_B over the edges that training has used: walks along them end at the start, and nothing is forgotten."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

from envs.synthesis.backward import UniformEdges
from envs.synthesis.edges import ExactEdges
from envs.synthesis.environment import Synthesis
from envs.synthesis.policy import UniformSynthesis
from gfn.distributions import NoActionError
from gfn.sampling import rollout
from gfn.trajectories import Trajectories
from tests.synthetic import synthesis


def recorded(env: Synthesis, n: int = 200, seed: int = 0) -> tuple[UniformEdges, Trajectories[Any]]:
    """P_B over the edges that some trajectories used."""
    generator = torch.Generator().manual_seed(seed)
    t = rollout(env, UniformSynthesis(env), env.reset(n), generator=generator)
    backward = UniformEdges(env, "known")
    backward.log_prob_backward(t[: n // 2])
    backward.log_prob_backward(t[n // 2 :])
    return backward, t


def test_known_edges_are_those_used_and_walks_along_them_end_at_the_start() -> None:
    env = synthesis(listed=False)
    backward, t = recorded(env)
    used: dict[tuple[str, int, bool], set[tuple[int, ...]]] = {}
    states = t.targets
    for smiles, depth, stopped, action in zip(
        states.smiles, states.depth.tolist(), states.stopped.tolist(), t.actions.tolist(), strict=True
    ):
        used.setdefault((smiles, depth, stopped), set()).add(tuple(action))
    count = [
        len(used[place]) for place in zip(states.smiles, states.depth.tolist(), states.stopped.tolist(), strict=True)
    ]
    log_prob = backward.distribution(states).log_prob(t.actions)
    torch.testing.assert_close(log_prob, -torch.tensor(count, dtype=log_prob.dtype).log())
    assert max(count) > 1
    back = rollout(env, backward, t.final, backward=True, generator=torch.Generator().manual_seed(1))
    assert env.is_initial(back.initial).all()
    again = list(zip(back.targets.smiles, back.targets.depth.tolist(), back.targets.stopped.tolist(), strict=True))
    assert all(tuple(a) in used[place] for a, place in zip(back.actions.tolist(), again, strict=True))
    exactly = ExactEdges(env).into([(env.network.molecules(m), k, s) for m, k, s in used])
    for edges, actions in zip(exactly, used.values(), strict=True):
        assert actions <= {tuple(edge.action) for edge in edges}


@pytest.mark.parametrize("edges", ["known", "exact"])
def test_walks_back_need_no_molecules_but_their_ends(edges: str) -> None:
    """What lies between is in use by nobody else, and found all the same."""
    env = synthesis(listed=False)
    known, t = recorded(env)
    final = t.final
    del t
    back = rollout(env, known if edges == "known" else UniformEdges(env), final, backward=True)
    assert env.is_initial(back.initial).all()


def test_looking_at_known_edges_adds_none() -> None:
    env = synthesis(listed=False)
    backward, t = recorded(env, 20)
    before, other = backward.get_extra_state(), recorded(env, 200, seed=5)[1]
    assert torch.isfinite(backward.eval().log_prob_backward(other)).all(), "an edge counts where it is asked about"
    assert backward.get_extra_state() == before
    with pytest.raises(NoActionError):
        backward.distribution(other.targets).sample()
    backward.train().log_prob_backward(other)
    assert len(backward.get_extra_state()) > len(before)
    assert torch.isfinite(backward.distribution(t.targets).log_prob(t.actions)).all()


def test_known_edges_are_saved_and_read_back() -> None:
    env = synthesis(listed=False)
    backward, t = recorded(env)
    file = io.BytesIO()
    torch.save(backward.state_dict(), file)
    file.seek(0)
    fresh = synthesis(listed=False)
    again = UniformEdges(fresh, "known")
    again.load_state_dict(torch.load(file, weights_only=True))
    moved = t.states.from_tensors(t.states.tensors())
    assert torch.equal(again.distribution(moved[1:3]).logits, backward.distribution(t.states[1:3]).logits)
    assert again.get_extra_state() == backward.get_extra_state()
    assert UniformEdges(env).state_dict()["_extra_state"] == []
