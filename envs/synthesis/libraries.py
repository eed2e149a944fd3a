"""Libraries of building blocks: those that come with installed packages, files, and lists of SMILES.

RDKit brings a few thousand molecules of the National Cancer Institute. The extra ``blocks`` adds the catalogue
of purchasable blocks inside synspace, and the compounds with CAS numbers inside chemicals. Nothing is
downloaded, neither package is imported, and a cleaned library is kept in the user's cache.
"""

from __future__ import annotations

import bz2
import gzip
import json
import os
import pickle
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from hashlib import blake2b, file_digest
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import uuid4

from rdkit import Chem, RDConfig, rdBase
from tqdm import tqdm

from envs.synthesis import blocks as cleaning
from envs.synthesis import catalogues
from envs.synthesis.blocks import Block, BlockError, Library, Record, Rejection, clean, listed
from gfn.storage import cache_directory

NCI = Path(RDConfig.RDDataDir) / "NCI" / "first_5K.smi"
# the first of duplicates stays: CAS numbers come first, and what nobody sells comes last
PACKAGED = ("chemicals", "synspace", "nci")


@dataclass(frozen=True)
class _Source:
    """Where records come from: a name, what tells its content from any other, and how to read it."""

    name: str
    digest: str
    read: Callable[[], Iterable[Record]]


def library(
    blocks: str | Path | Sequence[str],
    size: int | None = None,
    seed: int = 0,
    stereo: bool = False,
    max_atoms: int = 30,
    strict: bool = False,
    cache: Path | None = None,
) -> Library:
    """Cleaned building blocks: see :func:`~envs.synthesis.blocks.clean` for what that leaves out.

    The first call for a large library takes up to a minute, and later ones a second or two.

    Args:
        blocks: ``"nci"``, ``"synspace"``, ``"chemicals"``, ``"all"`` (those of the three that are installed),
            a file that :func:`~envs.synthesis.catalogues.read` knows, or a list of SMILES.
        size: how many to take at random, nested for one seed; default, all. If there are fewer, all are
            taken, with a warning.
        seed: of that choice.
        stereo: keep stereochemistry.
        max_atoms: heavy atoms at most.
        strict: raise on what cannot be used (other than duplicates) instead of leaving it out.
        cache: folder to keep converted and cleaned libraries in; default, the user's. One that
            cannot be written only warns.

    Raises:
        BlockError: if a package or file is missing or cannot be read, if no block is left, or as ``strict`` asks.
        ValueError: for a ``size`` below 1 or a ``max_atoms`` below 2.
    """
    if size is not None and size < 1:
        raise ValueError(f"blocks: size must be at least 1, or null for all, got {size}")
    folder = cache_directory() if cache is None else Path(cache)
    sources = _sources(blocks, folder)
    name = "+".join(source.name for source in sources)
    options: dict[str, Any] = {"stereo": stereo, "max_atoms": max_atoms, "strict": strict}
    path = folder / f"blocks-{_key(sources, options)}.json.gz"
    stored = load(path)
    if stored is None:
        records = chain.from_iterable(source.read() for source in sources)
        bar = tqdm(records, desc=f"cleaning {name}", unit=" molecules", disable=None, leave=False)
        made = clean(bar, name=name, **options)
        store(path, _written(made))
    else:
        made = _read_back(name, stored)
    if not made.blocks:
        raise BlockError(listed(name, made.rejections) if made.rejections else f"{name}: there is no molecule in it")
    if size is None:
        return made
    if size > len(made):
        warnings.warn(f"{name} has {len(made)} blocks that can be used, not {size}: taking them all", stacklevel=2)
    return made.subset(size, seed)


def load(path: Path) -> str | None:
    """The text that :func:`store` wrote; None if there is none, or, with a warning, if it is damaged."""
    try:
        digest, _, body = gzip.decompress(path.read_bytes()).partition(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, EOFError, zlib.error) as error:
        warnings.warn(f"{path}: making this file of the cache anew, for it cannot be read: {error}", stacklevel=3)
        return None
    if digest != _stamp(body):
        warnings.warn(f"{path}: making this file of the cache anew, for it is damaged", stacklevel=3)
        return None
    return body.decode()


def store(path: Path, text: str) -> None:
    """Keep a text, below a line that tells whether it is whole; a place that cannot be written only warns."""
    body = text.encode()
    part = path.with_name(f"{path.name}.{uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("wb") as file:
                file.write(gzip.compress(_stamp(body) + b"\n" + body, mtime=0))
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)  # readers see all of it or nothing, however many write at once
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        warnings.warn(
            f"{path}: cannot keep building blocks there, so they are made anew each time: {error}", stacklevel=3
        )


def _stamp(body: bytes) -> bytes:
    return f"# blake2b {blake2b(body, digest_size=16).hexdigest()}".encode()


def _key(sources: Sequence[_Source], options: Mapping[str, Any]) -> str:
    """What a cleaned library depends on: its sources, the options, RDKit, and the code that reads and cleans."""
    code = [_file_digest(Path(str(file))) for file in (cleaning.__file__, catalogues.__file__, __file__)]
    inputs = [[source.name, source.digest] for source in sources]
    return _digest(json.dumps([inputs, dict(options), rdBase.rdkitVersion, code]).encode())


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, lambda: blake2b(digest_size=16)).hexdigest()


def _written(made: Library) -> str:
    return json.dumps(
        [[astuple(block) for block in made.blocks], [astuple(rejection) for rejection in made.rejections]]
    )


def _read_back(name: str, text: str) -> Library:
    found, rejected = json.loads(text)
    return Library(name, tuple(Block(*row) for row in found), tuple(Rejection(*row) for row in rejected))


def _sources(blocks: str | Path | Sequence[str], cache: Path) -> list[_Source]:
    if not isinstance(blocks, str | Path):
        return [_listed(list(blocks))]
    if blocks == "all":
        return [_packaged(name, cache) for name in PACKAGED if name == "nci" or find_spec(name)]
    if blocks in PACKAGED:
        return [_packaged(str(blocks), cache)]
    path = Path(blocks).expanduser()
    if not path.is_file():
        raise BlockError(
            f"{blocks}: there is no such file of building blocks; expected a file, {', '.join(sorted(PACKAGED))}, all, "
            "or a list of SMILES"
        )
    return [_Source(path.name, _file_digest(path), lambda: catalogues.read(path))]


def _listed(texts: Sequence[Any]) -> _Source:
    def records() -> Iterator[Record]:
        for number, text in enumerate(texts, 1):
            problem = "" if isinstance(text, str) else f"is no text but {type(text).__name__}"
            yield Record(number, str(text), str(text), f"list:{number}", "list", problem=problem)

    return _Source("list", _digest(repr(texts).encode()), records)


def _packaged(name: str, cache: Path) -> _Source:
    if name == "nci":
        return _Source(name, _file_digest(NCI), lambda: catalogues.smiles_lines(catalogues.lines(NCI), name))
    if name == "synspace":
        path = _in_package(name, "rxn_data/blocks.pk.bz2")
        digest = _file_digest(path)
        converted = cache / f"synspace-{digest}.smi.gz"
        return _Source(name, digest, lambda: catalogues.smiles_lines(_converted(path, converted), name))
    paths = [_in_package(name, f"Identifiers/chemical identifiers pubchem {part}.tsv") for part in ("small", "large")]
    return _Source(name, " ".join(map(_file_digest, paths)), lambda: chain.from_iterable(map(_compounds, paths)))


def _in_package(package: str, file: str) -> Path:
    """A data file of a package, which is found and not imported."""
    spec = find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise BlockError(f"blocks={package} needs the package {package}: pip install 'fgfn[blocks]'")
    path = Path(places[0]) / file
    if not path.is_file():
        raise BlockError(f"{path}: this {package} lacks the file, so it is another release: pip install 'fgfn[blocks]'")
    return path


def _compounds(path: Path) -> Iterator[Record]:
    """Rows of chemicals: PubChem's number, CAS, formula, weight, SMILES, and names."""
    for number, line in enumerate(catalogues.lines(path), 1):
        cid, cas, _, _, smiles, *_ = line.split("\t")
        name = f"CID{cid}" if cid.isdigit() else cas
        yield Record(number, f"{smiles} {name}", smiles, name, "chemicals", catalogues.cas_number(cas))


class _OnlyMolecules(pickle.Unpickler):
    """Reads RDKit molecules as the bytes they are made of, and refuses all else that a pickle can name."""

    def find_class(self, module_name: str, global_name: str, /) -> type[bytes]:
        if (module_name, global_name) == ("rdkit.Chem.rdchem", "Mol"):
            return bytes
        raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}, and only molecules are expected")


def _converted(path: Path, cached: Path) -> Iterator[str]:
    """Lines of SMILES and id for the molecules of synspace, from the cache once they have been there."""
    text = load(cached)
    if text is None:
        text = "".join(f"{smiles} synspace-{number}\n" for number, smiles in enumerate(_unpickled(path), 1))
        store(cached, text)
    return iter(text.splitlines())


def _unpickled(path: Path) -> list[str]:
    """SMILES of a mapping from reactions to a list of molecules for each reactant; most are in several lists."""
    try:
        with bz2.open(path) as file:
            slots = [slot for reaction in _OnlyMolecules(file).load().values() for slot in reaction]
        binaries = list(dict.fromkeys(chain.from_iterable(slots)))
        bar = tqdm(binaries, desc="converting synspace", unit=" molecules", disable=None, leave=False)
        return list(dict.fromkeys(Chem.MolToSmiles(Chem.Mol(binary)) for binary in bar))
    except Exception as error:  # a damaged pickle may raise anything
        raise BlockError(f"{path}: is no file of molecules as synspace 1.0.0 has it: {error}") from error
