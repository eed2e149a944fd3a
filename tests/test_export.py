"""What a run can be passed on as: safetensors with a model card, SDF; and opening it in two lines."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rdkit import Chem
from safetensors.torch import load_file, save_file

from experiments import runs, sample
from experiments.export import WEIGHTS, export
from experiments.runs import RunError
from experiments.trials import finished
from gfn.sampling import rollout
from tests.composing import SMALL, built
from tests.small_syntheses import sampled, small_environment


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a trunk that two policies share, and a learned log Z."""
    directory = tmp_path_factory.mktemp("run") / "run"
    run = built(directory, *SMALL, "backward=learned", "partition=learned", "divergence=reverse_kl", "name=toy")
    directory.mkdir(parents=True)
    runs.prepare(run, directory, [])
    run.trainer.run()
    return directory


def test_a_run_is_opened_in_two_lines(directory: Path) -> None:
    run = finished(directory)
    assert run.last["step"] == 3
    assert run.env.side == 4
    t = rollout(run.env, run.policy, run.env.reset(5))
    assert bool(run.env.is_terminal(t.final).all())


def test_an_exported_run_has_the_same_policy_and_says_what_it_is(directory: Path, tmp_path: Path) -> None:
    out = tmp_path / "passed on"
    files = export(directory, out)
    assert sorted(path.name for path in files) == ["README.md", "config.yaml", WEIGHTS]
    before, after = finished(directory), finished(out)
    states = before.env.enumerate()
    going = states[~before.env.is_terminal(states)]
    one, other = before.policy.distribution(going), after.policy.distribution(going)
    actions = one.sample(torch.Generator().manual_seed(0))
    assert torch.equal(one.log_prob(actions), other.log_prob(actions))
    assert runs.open_run(out)[2] == 3
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: fgfn\n")
    for text in ("# toy", "envs.hypergrid.Hypergrid", "3 updates, seed 0", "| tv | ", "torch 2", "## Limits"):
        assert text in card, text


def test_damaged_or_foreign_weights_are_refused(directory: Path, tmp_path: Path) -> None:
    export(directory, tmp_path)
    path = tmp_path / WEIGHTS
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RunError, match="cannot be read"):
        finished(tmp_path)
    path.write_bytes(whole)
    save_file(load_file(path), path)  # without the number of updates
    with pytest.raises(RunError, match="export the run again"):
        finished(tmp_path)


def test_samples_of_molecules_are_records_of_sdf(tmp_path: Path) -> None:
    env = small_environment(tmp_path)
    t = sampled(env, 3)
    assert isinstance(env, sample.Recorded)
    facts: list[dict[str, Any]] = [{"log_reward": value, "length": 2, "price": None} for value in t.log_reward.tolist()]
    text = "".join(env.records(t.final, facts))
    found = list(Chem.ForwardSDMolSupplier(io.BytesIO(text.encode())))
    assert [Chem.MolToSmiles(mol) for mol in found] == list(t.final.smiles)
    for mol, log_reward in zip(found, t.log_reward.tolist(), strict=True):
        assert mol.GetPropsAsDict()["log_reward"] == pytest.approx(log_reward, rel=1e-5)
        assert not mol.HasProp("price")
