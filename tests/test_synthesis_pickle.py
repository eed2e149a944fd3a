"""Syntheses are sent to other processes: there a molecule exists once, too, and groups are what they are here."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import pytest
import torch

from envs.synthesis.encoders import GINE
from envs.synthesis.policy import SynthesisPolicy
from gfn.distributed import Searcher
from gfn.exploration import NoExploration
from tests.small_syntheses import sampled, small_environment


@pytest.mark.parametrize("listed", [False, True])
def test_a_searcher_that_was_sent_makes_the_same_groups(tmp_path: Path, listed: bool) -> None:
    env = small_environment(tmp_path, listed=listed)
    if listed:
        assert len(env.enumerate()) > 100
    here = Searcher(env, SynthesisPolicy(env, GINE(8, 1)), NoExploration(), 16, seed=0)
    there = pickle.loads(pickle.dumps(here))
    assert there.policy.env is there.env
    for number in range(2):
        one, other = io.BytesIO(), io.BytesIO()
        torch.save(here(number, 0).tensors(), one)
        torch.save(there(number, 0).tensors(), other)
        assert one.getvalue() == other.getvalue()
    if listed:
        assert there.env.enumerate().smiles == env.enumerate().smiles


def test_a_molecule_exists_once_wherever_it_is(tmp_path: Path) -> None:
    env = small_environment(tmp_path)
    there, states = pickle.loads(pickle.dumps((env, sampled(env, 20).states)))
    molecules = there.network.molecules
    assert molecules is not env.network.molecules
    assert states.molecules is molecules
    assert all(molecule is molecules(molecule.smiles) for molecule in (*states.molecule, *there.network.blocks))
    assert there.is_initial(states).tolist() == env.is_initial(sampled(env, 20).states).tolist()
    assert [block.fits.tolist() for block in there.network.blocks] == [b.fits.tolist() for b in env.network.blocks]
    assert there.network.block_index[there.network.blocks[3]] == 3
