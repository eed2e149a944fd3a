"""This project's reaction templates: every one makes what chemistry says, and can be undone."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations
from typing import Any

import pytest
from rdkit import Chem, RDConfig, rdBase

from envs.synthesis.templates import Template, load, reaction

ALL = load()
PAIRS = 60  # pairs of reactants of each template that are made to react and taken apart again
NOT_IN_NCI = {
    ("azide_alkyne_cycloaddition", 1): "no organic azides",
    ("chan_lam", 0): "no arylboronic acids",
    ("fmoc_removal", 0): "no 9-fluorenylmethyl carbamates",
    ("oxadiazole_124", 1): "no amidoximes",
    ("suzuki_boronic_acid", 1): "no arylboronic acids",
    ("suzuki_pinacol_ester", 1): "no pinacol esters of boronic acids",
}
each = pytest.mark.parametrize("template", ALL, ids=lambda t: t.name)


@cache
def compiled(smirks: str) -> Any:
    """The reaction, kept alive with its templates."""
    return reaction(smirks)


def patterns(smirks: str) -> list[Any]:
    """Patterns of the reactants of a SMIRKS."""
    return [Chem.MolFromSmarts(text) for text in smirks.split(">>")[0].split(".")]


def canonical(smiles: str) -> str:
    return Chem.MolToSmiles(Chem.MolFromSmiles(smiles))


def results(smirks: str, smiles: Sequence[str]) -> set[tuple[str, ...]]:
    """Every distinct sound outcome of a reaction, each as canonical SMILES that was read back once."""
    found: set[tuple[str, ...]] = set()
    with rdBase.BlockLogs():
        for raw in compiled(smirks).RunReactants([Chem.MolFromSmiles(text) for text in smiles]):
            if not any(Chem.SanitizeMol(mol, catchErrors=True) for mol in raw):
                found.add(tuple(canonical(Chem.MolToSmiles(mol)) for mol in raw))
    return found


def undone(template: Template, product: str) -> set[tuple[str, ...]]:
    """Every pair (or single one) of reactants that the retro SMIRKS propose for a product."""
    return set[tuple[str, ...]]().union(*(results(smirks, [product]) for smirks in template.retro))


@cache
def nci() -> tuple[Any, ...]:
    """Molecules of one piece from the NCI collection that comes with RDKit, half with arbitrary stereo marks."""
    draw, kept = random.Random(0), list[Any]()
    with rdBase.BlockLogs(), open(os.path.join(RDConfig.RDDataDir, "NCI", "first_5K.smi")) as lines:
        for number, line in enumerate(lines):
            mol: Any = Chem.MolFromSmiles(line.split()[0])
            if mol is None or "." in line:
                continue
            if number % 2:
                for centre in Chem.FindMolChiralCenters(mol, includeUnassigned=True, useLegacyImplementation=True):
                    tags = Chem.ChiralType.CHI_TETRAHEDRAL_CW, Chem.ChiralType.CHI_TETRAHEDRAL_CCW
                    mol.GetAtomWithIdx(centre[0]).SetChiralTag(draw.choice(tags))
            kept.append(Chem.MolFromSmiles(canonical(Chem.MolToSmiles(mol))))
    return tuple(kept)


@cache
def molecules() -> tuple[Any, ...]:
    """The NCI molecules, those of all examples, and reactants into which retro SMIRKS split some NCI molecules."""
    texts = {text for template in ALL for example in template.examples for text in example.reactants + example.products}
    for template in ALL:
        for smirks in template.retro:
            (pattern,) = patterns(smirks)
            suitable = (mol for mol in nci() if mol.HasSubstructMatch(pattern))
            for mol, _ in zip(suitable, range(8), strict=False):
                texts.update(text for pair in results(smirks, [Chem.MolToSmiles(mol)]) for text in pair)
    return (*nci(), *(Chem.MolFromSmiles(text) for text in sorted(texts)))


@cache
def fitting(slot: str) -> tuple[str, ...]:
    """SMILES of the molecules that fit a slot, at most 30 heavy atoms."""
    pattern = Chem.MolFromSmarts(slot)
    return tuple(
        Chem.MolToSmiles(mol) for mol in molecules() if mol.GetNumHeavyAtoms() <= 30 and mol.HasSubstructMatch(pattern)
    )


def drawn(template: Template) -> Iterable[tuple[str, ...]]:
    """The reactants of the examples, then random ones that fit."""
    yield from (tuple(map(canonical, example.reactants)) for example in template.examples)
    draw = random.Random(template.name)
    pools = [fitting(slot) for slot in template.forward.split(">>")[0].split(".")]
    yield from (tuple(draw.choice(pool) for pool in pools) for _ in range(PAIRS))


def centres(smiles: Iterable[str]) -> int:
    """Number of tetrahedral centres whose configuration is written down."""
    return sum(text.replace("@@", "@").count("@") for text in smiles)


def test_there_is_a_choice() -> None:
    assert len(ALL) >= 40
    assert all(len(template.examples) >= 2 and template.counterexamples for template in ALL)
    assert {template.n_slots for template in ALL} == {1, 2}


@each
def test_rdkit_has_nothing_to_say_about_the_atom_maps(template: Template) -> None:
    for smirks in (template.forward, *template.retro):
        assert compiled(smirks).Validate(silent=True) == (0, 0), smirks


@each
def test_examples_give_exactly_these_products(template: Template) -> None:
    for example in template.examples:
        assert {text for (text,) in results(template.forward, example.reactants)} == set(
            map(canonical, example.products)
        )


@each
def test_counterexamples_give_nothing(template: Template) -> None:
    for reactants in template.counterexamples:
        assert not results(template.forward, reactants)


@each
def test_every_slot_fits_some_molecule_and_its_examples(template: Template) -> None:
    for number, pattern in enumerate(patterns(template.forward)):
        assert all(
            Chem.MolFromSmiles(example.reactants[number]).HasSubstructMatch(pattern) for example in template.examples
        )
        found = any(mol.HasSubstructMatch(pattern) for mol in nci())
        assert found == ((template.name, number) not in NOT_IN_NCI)


@each
def test_nothing_forbids_the_examples(template: Template) -> None:
    """What is forbidden occurs in molecules, but not in the examples."""
    for number, slot in enumerate(template.forbid):
        for smarts in slot:
            pattern = Chem.MolFromSmarts(smarts)
            assert any(mol.HasSubstructMatch(pattern) for mol in molecules()), smarts
            for example in template.examples:
                assert not Chem.MolFromSmiles(example.reactants[number]).HasSubstructMatch(pattern), smarts


@each
def test_every_product_can_be_taken_apart_into_its_reactants(template: Template) -> None:
    """Walks back see every reaction. The one thing that may be lost is a centre that the product has no more.

    A centre whose arms become equal is none in the product, so no rule can restore it.
    """
    products = 0
    for reactants in drawn(template):
        for (product,) in results(template.forward, reactants):
            products += 1
            if reactants not in undone(template, product):
                assert centres([product]) < centres(reactants), f"{reactants} -> {product}"
    assert products >= PAIRS / 2


@each
def test_products_are_written_the_same_when_read_again(template: Template) -> None:
    for reactants in list(drawn(template))[:20]:
        for (product,) in results(template.forward, reactants):
            assert canonical(product) == product


def test_a_lost_centre_is_why_a_reaction_may_not_be_undone() -> None:
    """One ester of a diester is hydrolysed before: hydrolysing the other makes the arms equal."""
    (template,) = load(only=["ester_hydrolysis"])
    reactant = canonical("CC[C@](C)(CC(=O)O)CC(=O)OC")
    assert results(template.forward, [reactant]) == {("CCC(C)(CC(=O)O)CC(=O)O",)}
    assert undone(template, "CCC(C)(CC(=O)O)CC(=O)O") == {
        ("CCC(C)(CC(=O)O)CC(=O)OC",),
        ("CCOC(=O)CC(C)(CC)CC(=O)O",),
    }


def test_no_two_templates_are_the_same() -> None:
    for one, other in combinations(ALL, 2):
        assert one.forward != other.forward, f"{one.name}, {other.name}"


def test_few_patterns_serve_many_slots() -> None:
    """The same group is written in the same way everywhere: two slots of three need no matching of their own."""
    written = [slot for template in ALL for slot in template.forward.split(">>")[0].split(".")]
    assert len(set(written)) <= 2 / 3 * len(written)
