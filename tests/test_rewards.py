"""Rewards of molecules: values by RDKit and by hand, identities, what is refused, and packages that are not there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from rdkit import Chem
from rdkit.Chem import QED, Crippen, Descriptors, Lipinski
from rdkit.Contrib.SA_Score import sascorer

from envs.synthesis.rewards import (
    Desired,
    Function,
    Power,
    Product,
    Property,
    Range,
    Rescaled,
    Reward,
    Sum,
    mean,
    require_values,
)
from gfn.environment import RewardError

ASPIRIN, IBUPROFEN, ETHANOL = "CC(=O)Oc1ccccc1C(=O)O", "CC(C)Cc1ccc(cc1)C(C)C(=O)O", "CCO"
SMILES = [ASPIRIN, IBUPROFEN, ETHANOL, "c1ccc2[nH]ccc2c1", "C[C@H](N)C(=O)O"]


@dataclass(frozen=True)
class Fixed:
    """Numbers written down beforehand."""

    values: tuple[float, ...]
    name: str = "fixed"

    def __call__(self, smiles: Sequence[str]) -> Any:
        return np.array(self.values[: len(smiles)])

    def terms(self, smiles: Sequence[str]) -> dict[str, Any]:
        return {self.name: self(smiles)}


# Properties


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("qed", QED.qed),
        ("sa", sascorer.calculateScore),
        ("logp", Crippen.MolLogP),
        ("weight", Descriptors.MolWt),
        ("tpsa", Descriptors.TPSA),
        ("donors", Lipinski.NumHDonors),
        ("acceptors", Lipinski.NumHAcceptors),
        ("rotatable_bonds", Lipinski.NumRotatableBonds),
        ("rings", Lipinski.RingCount),
        ("aromatic_rings", Lipinski.NumAromaticRings),
        ("heavy_atoms", Lipinski.HeavyAtomCount),
        ("fraction_sp3", Lipinski.FractionCSP3),
    ],
)
def test_properties_are_those_of_rdkit(name: str, function: Any) -> None:
    expected = [float(function(Chem.MolFromSmiles(text))) for text in SMILES]
    reward = Property(name)
    assert reward(SMILES).tolist() == reward.terms(SMILES)[name].tolist() == expected
    assert reward(SMILES).dtype == np.float64
    assert reward([]).shape == (0,)


def test_properties_by_hand() -> None:
    expected = {"weight": 180.16, "tpsa": 63.6, "donors": 1, "rings": 1, "heavy_atoms": 13, "fraction_sp3": 1 / 9}
    for name, value in expected.items():
        assert Property(name)([ASPIRIN])[0] == pytest.approx(value, abs=0.01)
    assert Property("qed")([ASPIRIN])[0] == pytest.approx(0.550, abs=0.001)
    assert Property("stereocenters")(["C[C@H](N)C(=O)O", "CC(N)C(=O)O", ETHANOL]).tolist() == [1, 1, 0]


def test_what_has_no_property_is_named() -> None:
    with pytest.raises(ValueError, match="no property 'QED'; there are qed, sa, logp"):
        Property("QED")
    with pytest.raises(RewardError, match=r"qed: expected SMILES that RDKit can read.*'C1CC', 'nonsense', ''"):
        Property("qed")(["C", "C1CC", "nonsense", ""])


# Desirabilities


@pytest.mark.parametrize("shape", ["linear", "gaussian"])
def test_range_is_one_inside_and_falls_outside(shape: Any) -> None:
    desirability = Range(low=1.0, high=3.0, width=2.0, shape=shape)
    assert desirability(np.array([1.0, 1.7, 3.0])).tolist() == [1.0, 1.0, 1.0]
    outside = desirability(np.array([3.0, 4.0, 5.0, 9.0]))
    expected = [1.0, 0.5, 0.0, 0.0] if shape == "linear" else [math.exp(-(d**2) / 8) for d in (0, 1, 2, 6)]
    np.testing.assert_allclose(outside, expected, atol=1e-15)
    np.testing.assert_array_equal(desirability(np.array([1.0, 0.0, -1.0, -5.0])), outside)
    assert Range(high=3.0, shape=shape)(np.array([-1e9, 3.0])).tolist() == [1.0, 1.0]
    assert Range(low=1.0, shape=shape)(np.array([1.0, 1e9])).tolist() == [1.0, 1.0]


def test_rescaled_goes_either_way() -> None:
    assert Rescaled(worst=10.0, best=1.0)(np.array([1.0, 10.0, 5.5, 0.0, 11.0])).tolist() == [1.0, 0.0, 0.5, 1.0, 0.0]
    assert Rescaled(worst=0.0, best=-12.0)(np.array([-6.0, 3.0])).tolist() == [0.5, 0.0]


def test_desired_makes_a_reward_of_a_score() -> None:
    reward: Reward = Desired(Property("sa"), Rescaled(worst=10.0, best=1.0))
    sa = Property("sa")(SMILES)
    np.testing.assert_allclose(reward(SMILES), (10 - sa) / 9, rtol=1e-14)
    terms = reward.terms(SMILES)
    assert list(terms) == ["sa", "sa_desirability"]
    np.testing.assert_array_equal(terms["sa"], sa)
    np.testing.assert_array_equal(terms["sa_desirability"], reward(SMILES))
    with pytest.raises(RewardError, match=r"logp_desirability: expected finite numbers ≥ 0 .* got -0.0014 for CCO"):
        Desired(Property("logp"), lambda values: values)([ETHANOL])
    with pytest.raises(RewardError, match="fixed: expected finite numbers, got nan for C"):
        Desired(Fixed((math.nan,)), Range(0, 1))(["C"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Range(2.0, 1.0), "low ≤ high, got low=2.0, high=1.0"),
        (lambda: Range(math.nan, 1.0), "low ≤ high"),
        (lambda: Range(math.inf, math.inf), "low ≤ high"),
        (lambda: Range(0.0, 1.0, width=0.0), "width > 0, got width=0.0"),
        (lambda: Range(0.0, 1.0, shape="square"), "linear or gaussian, got 'square'"),  # pyright: ignore
        (lambda: Rescaled(1.0, 1.0), "two different numbers, got worst=1.0, best=1.0"),
        (lambda: Desired(Property("sa"), Range(), name="sa"), "another name than that of the score, got 'sa'"),
        (lambda: Power(Property("qed"), 0.0), "exponent > 0 and finite, got 0.0"),
        (lambda: Product([]), "at least one reward"),
        (lambda: Product([Property("qed")], [1.0, 2.0]), "exponents for each of 1 rewards, got 2"),
        (lambda: Product([Property("qed")], [-1.0]), "exponents > 0 and finite, got -1.0"),
        (lambda: Sum([Property("qed"), Property("qed")]), "distinct names.* got qed, qed, sum; give name="),
        (lambda: mean([Property("qed")], [math.inf]), "weights > 0 and finite, got inf"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# Combinations


def test_products_powers_sums_and_means() -> None:
    qed, weight = Property("qed"), Property("weight")
    q, w = qed(SMILES), weight(SMILES)
    np.testing.assert_allclose(Power(qed, 3.0)(SMILES), q**3, rtol=1e-14)
    np.testing.assert_allclose(Product([qed, weight])(SMILES), q * w, rtol=1e-14)
    np.testing.assert_allclose(Product([qed, weight], [0.5, 2.0])(SMILES), np.sqrt(q) * w**2, rtol=1e-14)
    np.testing.assert_allclose(Product([Power(qed, 2.0), weight])(SMILES), Product([qed, weight], [2, 1])(SMILES))
    np.testing.assert_allclose(Power(Product([qed, weight]), 2)(SMILES), Product([qed, weight], [2, 2])(SMILES))
    np.testing.assert_allclose(Sum([qed, weight], [2.0, 0.1])(SMILES), 2 * q + 0.1 * w, rtol=1e-14)
    np.testing.assert_allclose(mean([qed, weight])(SMILES), (q + w) / 2, rtol=1e-14)
    np.testing.assert_allclose(mean([qed, weight], [3, 1])(SMILES), (3 * q + w) / 4, rtol=1e-14)
    assert mean([qed, weight]).name == "mean"
    assert Product([Fixed((0.0, 2.0)), qed])([ETHANOL, ASPIRIN]).tolist() == [0.0, 2 * q[0]], "0 is legal"


@pytest.mark.parametrize("kind", [Product, Sum, mean, lambda rewards: Power(rewards[0], 1.5)])
def test_terms_hold_every_part_and_the_value(kind: Any) -> None:
    parts = [Desired(Property("sa"), Rescaled(10, 1)), Power(Property("qed"), 2.0)]
    reward = kind(parts)
    terms = reward.terms(SMILES)
    np.testing.assert_array_equal(terms[reward.name], reward(SMILES))
    np.testing.assert_array_equal(terms["sa"], Property("sa")(SMILES))
    np.testing.assert_array_equal(terms["sa_desirability"], parts[0](SMILES))
    assert {name: v.shape for name, v in terms.items()} == dict.fromkeys(terms, (5,))
    assert {name: v.shape for name, v in reward.terms([]).items()} == dict.fromkeys(terms, (0,))


def test_parts_that_are_no_rewards_are_named() -> None:
    with pytest.raises(RewardError, match=r"logp: expected finite numbers ≥ 0 .* got -0.0014 for CCO"):
        Product([Property("qed"), Property("logp")])([ETHANOL])
    with pytest.raises(RewardError, match=r"fixed\^400: expected finite numbers ≥ 0 .* got inf for CC"):
        Power(Fixed((1.0, 10.0)), 400)(["C", "CC"])
    with pytest.raises(ValueError, match="two different terms are called 'fixed', one of them a part of b"):
        Sum([Desired(Fixed((1.0,)), Range(), "a"), Desired(Fixed((2.0,)), Range(), "b")]).terms(["C"])


def test_messages_are_short() -> None:
    with pytest.raises(RewardError, match=r"got nan for C, nan for CC, nan for CCC, .* and 45 more$"):
        require_values("r", [math.nan] * 50, ["C" * n for n in range(1, 51)])


# Functions of the user


def length(smiles: str) -> int:
    return len(smiles)


def rings(mol: Chem.Mol) -> int:
    return mol.GetRingInfo().NumRings()


def lengths(smiles: list[str]) -> list[int]:
    return [len(text) for text in smiles]


def scaled_rings(mols: list[Chem.Mol], factor: float = 1.0) -> Any:
    return np.array([factor * rings(mol) for mol in mols])


def test_functions_on_smiles_and_molecules_singly_and_in_batches() -> None:
    for function in (Function(length), Function(lengths, name="length", batched=True)):
        assert function.name == "length"
        assert function(SMILES).tolist() == function.terms(SMILES)["length"].tolist() == [len(text) for text in SMILES]
        assert function([]).shape == (0,)
    expected = [1, 1, 0, 2, 0]
    assert Function(rings, takes="mols")(SMILES).tolist() == expected
    scaled = Function(partial(scaled_rings, factor=0.5), takes="mols", batched=True)
    assert scaled.name == "scaled_rings"
    assert scaled(SMILES).tolist() == [n / 2 for n in expected]
    with pytest.raises(RewardError, match=r"rings: expected SMILES that RDKit can read.*'x'"):
        Function(rings, takes="mols")(["C", "x"])


def test_what_functions_depend_on_is_told() -> None:
    told = [
        repr(function)
        for function in (
            Function(length),
            Function(lengths, name="length", batched=True),
            Function(length, version="2"),
            Function(partial(scaled_rings, factor=0.5)),
            Function(partial(scaled_rings, factor=0.6)),
        )
    ]
    assert len(set(told)) == len(told)
    assert repr(Function(length)) == told[0]
    assert not any(" at 0x" in text for text in told)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (math.nan, "f: expected finite numbers ≥ 0 .* got nan for CCO"),
        (-math.inf, "got -inf for CCO"),
        (-0.5, "a desirability makes a reward of a signed score.*, got -0.5 for CCO"),
        (None, r"f: expected real numbers, got \[None\] for CCO"),
        ("7", r"f: expected real numbers, got \['7'\] for CCO"),
        ([1.0], r"f: expected one number for each of 1 molecules, got shape \[1, 1\] for CCO"),
        ([1.0, [2.0]], "f: expected real numbers, got .* for CCO"),
    ],
)
def test_values_that_are_no_rewards_are_refused(value: Any, message: str) -> None:
    with pytest.raises(RewardError, match=message):
        Function(lambda text: value if text == "CCO" else 1.0, name="f")(["C", "CCO"])


def test_batches_of_another_length_are_refused() -> None:
    with pytest.raises(RewardError, match=r"f: expected one number for each of 2 molecules, got shape \[3\] for C, CC"):
        Function(lambda batch: [1.0] * 3, name="f", batched=True)(["C", "CC"])
    with pytest.raises(RewardError, match=r"f: .*got shape \[\] for C, CC"):
        Function(lambda batch: 1.0, name="f", batched=True)(["C", "CC"])


def test_exceptions_of_functions_are_chained() -> None:
    def picky(smiles: str) -> float:
        raise LookupError("unheard of")

    with pytest.raises(RewardError, match="picky raised LookupError for CCO: unheard of") as caught:
        Function(picky)(["CCO"])
    assert isinstance(caught.value.__cause__, LookupError)
    with pytest.raises(RewardError, match=r"for a batch of 2 molecules that starts with \['C'\]: unheard of"):
        Function(picky, batched=True)(["C", "CC"])
    with pytest.raises(ValueError, match="takes to be smiles or mols, got 'graphs'"):
        Function(picky, takes="graphs")  # pyright: ignore[reportArgumentType]


def test_signed_functions_are_scores() -> None:
    score = Function(lambda text: -float(len(text)), name="f", signed=True)
    assert score(["C", "CC"]).tolist() == [-1.0, -2.0]
    assert Desired(score, Rescaled(0, -4))(["C", "CC"]).tolist() == [0.25, 0.5]
