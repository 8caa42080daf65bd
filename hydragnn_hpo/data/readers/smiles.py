"""Molecules as SMILES, one per line or in a table; RDKit gives them three dimensions."""

import csv
import functools
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms

from hydragnn_hpo.data.readers.source import (
    OPENERS,
    Item,
    Reader,
    Source,
    check_header,
    read_rows,
    read_text,
    tried,
    value_of,
)
from hydragnn_hpo.errors import ConfigError, DataError, unknown

NAMES = ("smiles", "canonical_smiles", "isomeric_smiles")
"""Columns that hold SMILES and no names of files."""

_TRIES = 20
"""Conformers that are begun before a molecule counts as bad."""


def read_smiles(source: Source, start: int, stop: int | None) -> Iterator[Item]:
    """Read some molecules.

    A table (``.csv``) has the SMILES in ``structure_column``, or in a column named ``smiles``;
    its other columns become ``info``. A ``.smi`` file has a SMILES per line, and after a blank
    perhaps a name. Each gets hydrogens and the conformer that RDKit's ETKDG finds from a seed
    made of the SMILES alone, relaxed with MMFF94 where that knows the elements. ``info`` has the
    SMILES, the formal ``charge`` and ``spin``, the number of unpaired electrons.

    Raises:
        ConfigError: there is no such column, or RDKit is not installed.
        DataError: the file is unreadable.
    """
    _rdkit(source.path)
    entries = _entries(source)
    for number, (name, smiles, info) in enumerate(entries[start:stop], start=start + 1):
        if isinstance(smiles, DataError):
            yield name, smiles
            continue
        place = f"{source.path}: structure {number} ({smiles[:40]})"
        atoms = tried(place, lambda s=smiles, p=place: _molecule(s, p))  # type: ignore[misc]
        if isinstance(atoms, Atoms):
            atoms.info.update({**info, "smiles": smiles})
        yield name, atoms


def count_smiles(source: Source) -> int | None:
    """Count the molecules."""
    return len(_entries(source))


def names_smiles(source: Source) -> bool:
    """Check whether the structures of a CSV file are SMILES, by the name of their column.

    That is ``structure_column``, or without one a column named ``smiles``. What cannot be read is
    for a reader to refuse.
    """
    opener = OPENERS.get(source.path.suffix.lower(), open)
    try:
        with opener(source.path, "rt", encoding="utf-8", newline="") as file:
            header = next(csv.reader(file), [])
    except (OSError, EOFError, ValueError, csv.Error, lzma.LZMAError, zlib.error):
        return False
    known = [name.strip().lower() for name in header]
    column = (source.structure_column or NAMES[0]).lower()
    return column in NAMES and column in known


SMILES = Reader(count_smiles, read_smiles, extra="chem")


Entries = list[tuple[str, str | DataError, dict[str, Any]]]
"""Name, SMILES (or why there is none) and properties of every line."""


def _entries(source: Source) -> Entries:
    """Read the file; the last one is kept, pieces of it are asked for one after the other."""
    try:
        stamp = source.path.stat().st_mtime_ns, source.path.stat().st_size
    except OSError as error:
        raise DataError(f"{source.path}: cannot be read ({error.strerror}).") from error
    return _kept(source.path, stamp, source.structure_column)


@functools.lru_cache(maxsize=1)
def _kept(path: Path, stamp: tuple[int, int], structure_column: str | None) -> Entries:
    if ".csv" not in [suffix.lower() for suffix in path.suffixes[-2:]]:
        words = [line.split(maxsplit=1) for line in read_text(path).splitlines() if line.strip()]
        named = [(*word, "")[1].strip() for word in words]
        return [
            (name or f"{path.name}:{row}", word[0], {})
            for row, (name, word) in enumerate(zip(named, words, strict=True), start=1)
        ]
    header, *rows = read_rows(path)
    if not rows:
        raise DataError(f"{path}: holds no structure; get the file again.")
    check_header(path, header)
    column = structure_column or next((h for h in header if h.lower() == "smiles"), "")
    if column not in header:
        raise ConfigError(f"{path}: {unknown('column', column or 'smiles', header)}")
    return [
        (f"{path.name}:{number}", *_of_row(header, row, column, f"{path}: structure {number}"))
        for number, row in enumerate(rows, start=1)
    ]


def _of_row(
    header: list[str], row: list[str], column: str, place: str
) -> tuple[str | DataError, dict[str, Any]]:
    """Return the SMILES and the properties of a row of a table."""
    if len(row) != len(header):
        said = f"{place} has {len(row)} columns instead of {len(header)}; mend the line."
        return DataError(said), {}
    cells = dict(zip(header, row, strict=True))
    smiles = cells.pop(column)
    return smiles, {key: value_of(cell) for key, cell in cells.items() if cell}


def _molecule(smiles: str, place: str) -> Atoms:
    """Embed a molecule in three dimensions; the same SMILES always gives the same positions."""
    from rdkit import Chem
    from rdkit.Chem import AllChem, Descriptors

    molecule = Chem.MolFromSmiles(smiles) if smiles else None
    if molecule is None:
        raise DataError(f"{place} is no valid SMILES; mend or remove it.")
    molecule = Chem.AddHs(molecule)
    settings = AllChem.ETKDGv3()
    settings.randomSeed = zlib.crc32(smiles.encode()) & 0x7FFFFFFF
    settings.maxIterations = _TRIES
    found = AllChem.EmbedMolecule(molecule, settings)
    if found != 0:
        settings.useRandomCoords = True
        found = AllChem.EmbedMolecule(molecule, settings)
    if found != 0:
        raise DataError(f"{place} has no conformer that RDKit can find; remove it.")
    if AllChem.MMFFHasAllMoleculeParams(molecule):
        AllChem.MMFFOptimizeMolecule(molecule, maxIters=500)
    numbers = [atom.GetAtomicNum() for atom in molecule.GetAtoms()]
    positions = np.asarray(molecule.GetConformer().GetPositions(), dtype=np.float64)
    atoms = Atoms(numbers, positions=positions)
    atoms.info["charge"] = Chem.GetFormalCharge(molecule)
    atoms.info["spin"] = Descriptors.NumRadicalElectrons(molecule)
    return atoms


def _rdkit(path: Path) -> None:
    """Silence RDKit, or say that it is missing."""
    try:
        from rdkit import RDLogger
    except ImportError as error:
        raise ConfigError(
            f"{path}: SMILES need RDKit, which is not installed: pip install 'hydragnn-hpo[chem]'."
        ) from error
    RDLogger.DisableLog("rdApp.*")
