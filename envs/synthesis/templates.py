"""Reaction templates: how they are written down, and what is wrong with one that cannot be used.

The files in ``reactions/`` hold this project's own. A file is a list of mappings with the fields of
:class:`Template`; see any of them for an example.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml
from rdkit import Chem, rdBase
from rdkit.Chem import rdChemReactions

OWN = Path(__file__).parent / "reactions"
TEXTS = ("name", "family", "forward", "reference")
LISTS = ("retro", "forbid", "examples", "counterexamples")


class TemplateError(ValueError):
    """Templates cannot be used; the message lists every reason with its file and template."""


@dataclass(frozen=True)
class Example:
    """Reactants in the order of the slots, and every product that the template makes of them."""

    reactants: tuple[str, ...]
    products: tuple[str, ...]


@dataclass(frozen=True)
class Template:
    """A reaction of one or two molecules with one product.

    Attributes:
        name: unique.
        family: what kind of reaction, for reports.
        forward: SMIRKS; its reactants are the slots 0 and 1.
        retro: SMIRKS from a product to its reactants in the order of the slots, one for every leaving
            group (or other variant) that ``forward`` accepts.
        reference: where the reaction is described.
        forbid: for each slot, SMARTS that a molecule in it must not match if chemoselectivity is asked for.
        examples: reactions that must work.
        counterexamples: reactants in the order of the slots that must give nothing.
    """

    name: str
    family: str
    forward: str
    retro: tuple[str, ...]
    reference: str
    forbid: tuple[tuple[str, ...], ...] = ()
    examples: tuple[Example, ...] = field(default=(), repr=False)
    counterexamples: tuple[tuple[str, ...], ...] = field(default=(), repr=False)

    @property
    def n_slots(self) -> int:
        """Number of reactants, 1 or 2."""
        return reaction(self.forward).GetNumReactantTemplates()


def reaction(smirks: str) -> Any:
    """An initialised RDKit reaction. Keep it alive for as long as any of its parts is used: RDKit does not.

    Raises:
        ValueError: if the text is no reaction, with RDKit's reason.
    """
    with rdBase.BlockLogs():  # RDKit would print its reason too
        parsed = rdChemReactions.ReactionFromSmarts(smirks)
        if parsed.Validate(silent=True)[1]:
            raise ValueError("RDKit finds errors in the atom maps")
        parsed.Initialize()
    return parsed


def load(path: Path | None = None, only: Sequence[str] | None = None) -> tuple[Template, ...]:
    """Templates of a YAML file or a folder of them, by name; default, this project's own.

    Args:
        path: file or folder.
        only: names to take; default, all.

    Raises:
        TemplateError: with every problem found.
    """
    place = OWN if path is None else path
    files = sorted(place.glob("*.yaml")) if place.is_dir() else [place]
    if not files or not all(file.is_file() for file in files):
        raise TemplateError(f"{place}: expected a YAML file of reaction templates, or a folder with some")
    problems: list[str] = []
    found: dict[str, Template] = {}
    for file in files:
        for template in _read(file, problems):
            if template.name in found:
                problems.append(f"{file.name}: {template.name}: there is another template of this name")
            found[template.name] = template
    missing = sorted(set(only or ()) - found.keys())
    if missing:
        problems.append(f"{place}: there is no {', '.join(missing)}; there are {', '.join(sorted(found))}")
    if problems:
        raise TemplateError("\n".join(problems))
    return tuple(found[name] for name in sorted(found) if only is None or name in only)


def _read(file: Path, problems: list[str]) -> list[Template]:
    try:
        entries = yaml.safe_load(file.read_text(encoding="utf-8-sig"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problems.append(f"{file.name}: {' '.join(str(error).split())}")
        return []
    if not isinstance(entries, list) or not entries:
        problems.append(f"{file.name}: expected a list of templates, got {type(entries).__name__}")
        return []
    made: list[Template] = []
    for number, entry in enumerate(cast("list[Any]", entries), 1):
        name = str(cast("Mapping[str, Any]", entry).get("name")) if isinstance(entry, Mapping) else f"entry {number}"
        wrong = list(_problems(entry))
        problems += [f"{file.name}: {name}: {reason}" for reason in wrong]
        if not wrong:
            made.append(_made(entry))
    return made


def _made(entry: Mapping[str, Any]) -> Template:
    return Template(
        **{name: entry[name] for name in TEXTS},
        retro=tuple(entry["retro"]),
        forbid=tuple(tuple(slot) for slot in entry.get("forbid", ())),
        examples=tuple(Example(tuple(e["reactants"]), tuple(e["products"])) for e in entry.get("examples", ())),
        counterexamples=tuple(tuple(reactants) for reactants in entry.get("counterexamples", ())),
    )


def _problems(entry: Any) -> Iterable[str]:
    """What is wrong with one entry of a file."""
    if not isinstance(entry, Mapping):
        yield f"expected a mapping with {', '.join(TEXTS)} and retro, got {type(entry).__name__}"
        return
    given = cast("Mapping[str, Any]", entry)
    fields = (*TEXTS, *LISTS)
    unknown = sorted(str(key) for key in given.keys() - {*fields})
    yield from (f"unknown field {key!r}; there are {', '.join(fields)}" for key in unknown)
    yield from (f"{key} must be a text" for key in TEXTS if not isinstance(given.get(key), str))
    yield from (f"{key} must be a list" for key in LISTS if not isinstance(given.get(key, []), list))
    if not isinstance(given.get("forward"), str) or not all(isinstance(given.get(key, []), list) for key in LISTS):
        return
    slots = yield from _reaction_problems("forward", given["forward"], (1, 2), 1)
    if not given.get("retro"):
        yield "retro needs at least one SMIRKS, or walks back could not undo the reaction"
    for smirks in given.get("retro", []):
        yield from _reaction_problems("retro", smirks, (1, 1), slots)
    yield from _forbid_problems(given.get("forbid", []), slots)
    for example in given.get("examples", []):
        named = cast("Mapping[str, Any]", example) if isinstance(example, Mapping) else {}
        if set(named) != {"reactants", "products"} or not all(map(_is_texts, named.values())):
            yield f"each of the examples needs lists of texts as reactants and products, got {example!r}"
        elif slots and len(named["reactants"]) != slots:
            yield f"forward has {slots} reactants, and the example {example!r} has {len(named['reactants'])}"
    for reactants in given.get("counterexamples", []):
        if not _is_texts(reactants) or (slots and len(reactants) != slots):
            yield f"each of the counterexamples must be a list of {slots or 'its'} reactants, got {reactants!r}"


def _is_texts(given: Any) -> bool:
    return isinstance(given, list) and all(isinstance(text, str) for text in cast("list[Any]", given))


def _reaction_problems(what: str, smirks: Any, reactants: tuple[int, int], products: int) -> Generator[str, None, int]:
    """Problems of one SMIRKS; the generator returns its number of reactants (0 if unknown)."""
    try:
        parsed = reaction(smirks)
    except Exception as error:  # RDKit raises several kinds, among them those of Boost for what is no text
        yield f"{what} {smirks!r} does not parse: {' '.join(str(error).split())}"
        return 0
    found = parsed.GetNumReactantTemplates(), parsed.GetNumProductTemplates(), parsed.GetNumAgentTemplates()
    fewest, most = reactants
    if not fewest <= found[0] <= most or (products and found[1] != products) or found[2]:
        wanted = f"{fewest} or {most} reactants" if fewest < most else f"{fewest} reactant"
        made = f"{products} product{'s' * (products > 1)}" if products else "as many products as forward has reactants"
        yield (
            f"{what} {smirks!r} has {found[0]} reactants, {found[1]} products and {found[2]} agents; "
            f"expected {wanted}, {made} and no agents"
        )
        return 0
    return found[0]


def _forbid_problems(forbid: Any, slots: int) -> Iterable[str]:
    if forbid and slots and len(forbid) != slots:
        yield f"forbid lists {len(forbid)} slots, and forward has {slots}"
    for slot in forbid:
        if not _is_texts(slot):
            yield f"forbid must hold a list of SMARTS for each slot, got {slot!r}"
            continue
        for pattern in slot:
            with rdBase.BlockLogs():
                parsed: Any = Chem.MolFromSmarts(pattern)
            if parsed is None:
                yield f"forbid {pattern!r} is no SMARTS"
