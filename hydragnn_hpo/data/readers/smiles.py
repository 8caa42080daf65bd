"""Molecules as SMILES, one per line or in a table; RDKit computes their positions."""

import functools
import itertools
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from hydragnn_hpo.data.readers.source import (
    TABLE_SUFFIXES,
    Item,
    Reader,
    Source,
    Value,
    add_property,
    check_header,
    make_or_catch,
    read_names,
    read_rows,
    read_stamp,
    read_text,
    value_of,
)
from hydragnn_hpo.data.readers.structure_columns import NAMES, REACTION
from hydragnn_hpo.errors import ConfigError, DataError, UnsupportedStructure, unknown
from hydragnn_hpo.optional_packages import explain_missing

_TRIES = 20
"""Largest number of attempts of RDKit to embed a molecule."""

_SECONDS = 60
"""Most seconds of these attempts."""

_MAX_ATOMS = 500
"""Most atoms of a molecule, hydrogens included. RDKit's time grows with their cube or faster: for
unbranched alkanes 1 s of a core at 150 atoms, 17 s at 450, more than 120 s at 900 (2026-11-24)."""

_LONGEST_SMILES = 10_000
"""Most characters of a SMILES, more than any molecule of ``_MAX_ATOMS`` needs."""


_GAP = 1.0
"""Distance in angstrom between the van der Waals surfaces of neighbouring parts of a SMILES."""


def read_smiles(source: Source, start: int, stop: int | None) -> Iterator[Item]:
    """Read molecules.

    A table has the SMILES in ``structure_column``, or in a column named ``smiles``; its other
    columns become ``info``. A ``.smi`` file has a SMILES per line, optionally followed by
    a blank and a name. Hydrogens are added. Positions are a conformer of RDKit's ETKDG, whose seed
    depends on the SMILES alone, relaxed with MMFF94 if that has parameters for all atoms. Parts
    that no bond connects, as of a salt, stand side by side, or with ``source.one_part`` the
    molecule is a bad structure. ``info`` has the SMILES, the number of its parts
    (``smiles_parts``), the formal ``charge``, and ``spin``, the number of unpaired electrons.

    Args:
        source: the table or ``.smi`` file.
        start: first structure, counted from 0.
        stop: one after the last structure; None means the end.

    Raises:
        ConfigError: there is no such column, or RDKit is not installed.
        DataError: the file is unreadable.
    """
    _rdkit(source.path)
    entries = _entries(source)
    for number, (name, smiles, info) in enumerate(entries[start:stop], start=start):
        if isinstance(smiles, DataError):
            yield name, smiles
            continue
        place = f"{source.path}: structure {number} ({smiles[:40]})"
        make = functools.partial(_make, smiles, info, place, source.one_part)
        yield name, make_or_catch(place, make)


def count_smiles(source: Source) -> int | None:
    """Count the molecules."""
    return len(_entries(source))


def names_smiles(source: Source) -> bool:
    """Check whether the structures of a table are SMILES, by the name of their column.

    The column is ``structure_column``, or without one a column named ``smiles``. The result is
    False for an unreadable file, whose reader raises the error.
    """
    known = [name.strip().lower() for name in read_names(source.path)]
    column = (source.structure_column or NAMES[0]).lower()
    return column in NAMES and column in known


SMILES = Reader(count_smiles, read_smiles, extra="chem", takes=frozenset({"one_part"}))


Properties = dict[str, Value]
"""Values of a row of a table, by column."""

Entries = list[tuple[str, str | DataError, Properties]]
"""Name, SMILES (or the error of a bad row) and properties of each molecule."""


def _entries(source: Source) -> Entries:
    """Read a file; the latest is kept in memory, because its pieces are read one by one."""
    return _read_once(source.path, read_stamp(source.path), source.structure_column)


@functools.lru_cache(maxsize=1)
def _read_once(path: Path, stamp: tuple[int, int], structure_column: str | None) -> Entries:
    if not {suffix.lower() for suffix in path.suffixes[-2:]} & {*TABLE_SUFFIXES}:
        words = [line.split(maxsplit=1) for line in read_text(path).splitlines() if line.strip()]
        named = [(*word, "")[1].strip() for word in words]
        return [
            (name or f"{path.name}@{row}", word[0], {})
            for row, (name, word) in enumerate(zip(named, words, strict=True))
        ]
    header, *rows = read_rows(path)
    if not rows:
        raise DataError(f"{path}: holds no structure; get the file again.")
    check_header(path, header)
    column = structure_column or next((h for h in header if h.lower() == "smiles"), "")
    if column not in header:
        raise ConfigError(f"{path}: {unknown('column', column or 'smiles', header)}")
    return [
        (f"{path.name}@{number}", *_of_row(header, row, column, f"{path}: structure {number}"))
        for number, row in enumerate(rows)
    ]


def _of_row(
    header: list[str], row: list[str], column: str, place: str
) -> tuple[str | DataError, Properties]:
    """Return the SMILES of a row of a table, or the error that makes it bad, and its properties."""
    if len(row) != len(header):
        sentence = f"{place} has {len(row)} columns instead of {len(header)}; mend the line."
        return DataError(sentence), {}
    cells = dict(zip(header, row, strict=True))
    smiles = cells.pop(column)
    return smiles, {key: value_of(cell) for key, cell in cells.items() if cell}


def _make(smiles: str, info: Properties, place: str, one_part: bool) -> Atoms:
    """Return a molecule with its properties.

    A list with a number for each atom, or for each that the SMILES writes, is one of atoms, in the
    order of the SMILES.

    Raises:
        DataError: there is such a list, and numbers of an atom map have another order.
    """
    lists = {len(value) for value in info.values() if isinstance(value, np.ndarray)}
    atoms = _molecule(smiles, place, one_part, in_order=bool(lists))
    atoms.info["smiles"] = smiles
    written = [atom.GetAtomMapNum() for atom in _parse(smiles, True).GetAtoms()] if lists else []
    if written != sorted(written) and {len(written), len(atoms)} & lists:
        raise DataError(
            f"{place} has values of atoms, and numbers of its atom map in another order than its "
            "atoms; write the SMILES in the order of the values."
        )
    for name, value in info.items():
        add_property(atoms, name, value)
        if isinstance(value, np.ndarray) and len(value) == len(written) < len(atoms):
            # A spectrum may be as long: ``info`` keeps what is in the file.
            unknown_rows = np.full((len(atoms) - len(value), *value.shape[1:]), np.nan)
            atoms.arrays[name] = np.concatenate((value, unknown_rows))
    return atoms


def _parse(smiles: str, in_order: bool) -> Any:
    """Return RDKit's molecule, without hydrogens that are not written; None for a wrong SMILES.

    Args:
        smiles: the SMILES.
        in_order: keep its order of atoms, in which hydrogens may stand anywhere.
    """
    from rdkit import Chem

    settings = Chem.SmilesParserParams()
    settings.removeHs = not in_order
    return Chem.MolFromSmiles(smiles, settings) if smiles else None


def _molecule(smiles: str, place: str, one_part: bool, in_order: bool) -> Atoms:
    """Compute positions of a molecule; the same SMILES always has the same positions.

    Args:
        smiles: its SMILES.
        place: file and structure, for errors.
        one_part: whether several parts are an error.
        in_order: see ``_parse``.
    """
    from rdkit import Chem
    from rdkit.Chem import Descriptors

    if REACTION.search(smiles):
        raise UnsupportedStructure(
            f"{place} is a reaction (A>>B), for which no single structure stands; give the "
            "reactant, the product, or a transition state with positions, as in extxyz."
        )
    if len(smiles) > _LONGEST_SMILES:
        raise DataError(
            f"{place} has {len(smiles):,} characters, at most {_LONGEST_SMILES:,} are read; give "
            "the molecule with positions, as in extxyz."
        )
    molecule = _parse(smiles, in_order)
    if molecule is None:
        raise DataError(f"{place} is no valid SMILES; mend or remove it.")
    if any(atom.GetAtomicNum() == 0 for atom in molecule.GetAtoms()):
        raise UnsupportedStructure(
            f"{place} has open ends (*), as repeat units of polymers have, and no 3D structure; "
            "close them with hydrogen: put [H] in place of each [*]."
        )
    molecule = Chem.AddHs(molecule)
    parts = Chem.GetMolFrags(molecule)
    if one_part and len(parts) > 1:
        raise DataError(
            f"{place} has {len(parts)} parts; give one of them, or drop one_part from the card."
        )
    if molecule.GetNumAtoms() > _MAX_ATOMS:
        raise DataError(
            f"{place} has {molecule.GetNumAtoms()} atoms, RDKit would need minutes for more than "
            f"{_MAX_ATOMS}; give the molecule with positions, as in extxyz."
        )
    positions = _embed(molecule, zlib.crc32(smiles.encode()) & 0x7FFFFFFF, place)
    numbers = [atom.GetAtomicNum() for atom in molecule.GetAtoms()]
    table = Chem.GetPeriodicTable()
    _move_apart(positions, np.array([table.GetRvdw(number) for number in numbers]), parts)
    atoms = Atoms(numbers, positions=positions)
    atoms.info["smiles_parts"] = len(parts)
    atoms.info["charge"] = Chem.GetFormalCharge(molecule)
    atoms.info["spin"] = Descriptors.NumRadicalElectrons(molecule)
    return atoms


def _embed(molecule: Any, seed: int, place: str) -> NDArray[np.float64]:
    """Return the positions of a conformer in angstrom, [N, 3].

    Args:
        molecule: a molecule of RDKit, with its hydrogens.
        seed: seed of its random numbers.
        place: file and structure, for errors.

    Raises:
        DataError: no conformer was found.
    """
    from rdkit.Chem import AllChem

    settings = AllChem.ETKDGv3()
    settings.randomSeed = seed
    settings.maxIterations, settings.timeout = _TRIES, _SECONDS
    failed = AllChem.EmbedMolecule(molecule, settings) != 0
    if failed:
        settings.useRandomCoords = True
        failed = AllChem.EmbedMolecule(molecule, settings) != 0
    if failed:
        raise DataError(
            f"{place} has no conformer that RDKit finds in {_TRIES} attempts or {_SECONDS} s; give "
            "the molecule with positions, as in extxyz."
        )
    if AllChem.MMFFHasAllMoleculeParams(molecule):
        AllChem.MMFFOptimizeMolecule(molecule, maxIters=500)
    return np.asarray(molecule.GetConformer().GetPositions(), dtype=np.float64)


def _move_apart(
    positions: NDArray[np.float64], radii: NDArray[np.float64], parts: Sequence[Sequence[int]]
) -> None:
    """Move parts of a structure along x, in place, until each is beside the one before it.

    RDKit centres each part at the origin, where they would interpenetrate.

    Args:
        positions: positions in angstrom, [N, 3].
        radii: van der Waals radii in angstrom, [N].
        parts: atoms of each part.
    """
    for left, right in itertools.pairwise(map(list, parts)):
        end = (positions[left, 0] + radii[left]).max()
        positions[right, 0] += end + _GAP - (positions[right, 0] - radii[right]).min()


def _rdkit(path: Path) -> None:
    """Silence the log of RDKit.

    Raises:
        MissingPackage: RDKit is not installed.
    """
    with explain_missing(f"{path}: a file of SMILES"):
        from rdkit import RDLogger
    RDLogger.DisableLog("rdApp.*")
