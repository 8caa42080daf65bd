"""Folders with a text file per structure, as HydraGNN reads them: LSMS output, and CFG.

Source: ORNL/HydraGNN, hydragnn/utils/datasets/{lsmsdataset,cfgdataset}.py, 2026-08.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from hydragnn_hpo.data.readers.ase_file import single_structure
from hydragnn_hpo.data.readers.source import Item, Reader, Source, make_or_catch, read_text
from hydragnn_hpo.errors import ConfigError, DataError

LSMS_COLUMNS = {"number": 0, "x": 2, "y": 3, "z": 4, "charge_density": 5, "magnetic_moment": 6}
"""Columns in the line of an atom in the FePt data set, counted from 0."""


def read_lsms(source: Source, start: int, stop: int | None) -> Iterator[Item]:
    """Read LSMS text files in alphabetical order.

    The first line holds properties of the structure, each other line an atom. The card's
    ``columns`` give column numbers by name: for a graph-level target in the first line (by default
    in the order of the card), for any other name in the lines of atoms (by default as in FePt:
    ``number x y z charge_density magnetic_moment``). ``charge_transfer`` is
    the charge density minus the atomic number, which HydraGNN learns. The format has no cell, so
    the card gives one.

    Args:
        source: the folder, with the options of the card.
        start: first structure, counted from 0.
        stop: one after the last structure; None means the end.

    Raises:
        ConfigError: the card gives no cell.
        DataError: the folder is empty.
    """
    if source.cell is None and (source.pbc is None or any(source.pbc)):
        raise ConfigError(
            f"{source.path}: LSMS text has no lattice: give cell (three vectors in angstrom) in "
            "the card's [[files]], or pbc = [false, false, false]."
        )
    for file in _files(source.path, "")[start:stop]:
        yield file.name, make_or_catch(str(file), lambda f=file: _lsms(f, source))  # type: ignore[misc]


def read_cfg(source: Source, start: int, stop: int | None) -> Iterator[Item]:
    """Read AtomEye CFG files in alphabetical order.

    Auxiliary columns become arrays, and ``fx fy fz`` also the vector ``forces``. A file of the same
    name with the suffix ``.bulk`` holds properties of the structure in its first line: the
    graph-level targets in the order of the card, or in the columns that its ``columns`` give.

    Args:
        source: the folder, with the options of the card.
        start: first structure, counted from 0.
        stop: one after the last structure; None means the end.

    Raises:
        DataError: the folder holds no ``.cfg``.
    """
    for file in _files(source.path, ".cfg")[start:stop]:
        yield file.name, make_or_catch(str(file), lambda f=file: _cfg(f, source))  # type: ignore[misc]


def holds_cfg(folder: Path) -> bool:
    """Check whether a folder holds CFG files."""
    return any(entry.suffix.lower() == ".cfg" for entry in folder.iterdir())


_TAKES = frozenset({"columns"})
LSMS = Reader(lambda source: len(_files(source.path, "")), read_lsms, takes=_TAKES)
CFG = Reader(lambda source: len(_files(source.path, ".cfg")), read_cfg, takes=_TAKES)


def _files(folder: Path, suffix: str) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; give a folder of files.")
    files = sorted(e for e in folder.iterdir() if e.is_file() and not e.name.startswith("."))
    chosen = [file for file in files if not suffix or file.suffix.lower() == suffix]
    if not chosen:
        kind = f"file that ends in {suffix}" if suffix else "file"
        raise DataError(f"{folder}: holds no {kind}; get the files again.")
    return chosen


def _cfg(file: Path, source: Source) -> Atoms:
    atoms = single_structure(file)
    if all(name in atoms.arrays for name in ("fx", "fy", "fz")):
        parts = [atoms.arrays[name] for name in ("fx", "fy", "fz")]
        atoms.arrays["forces"] = np.stack(parts, axis=1)
    bulk = file.with_suffix(".bulk")
    if bulk.exists():
        atoms.info.update(_first_line(read_text(bulk), bulk, source))
    return atoms


def _lsms(file: Path, source: Source) -> Atoms:
    text = read_text(file)
    lines = [line for line in text.splitlines()[1:] if line.strip()]
    columns = {**LSMS_COLUMNS, **source.columns}
    node = {name: at for name, at in columns.items() if name not in source.keys}
    values = _atom_lines(lines, node, file)
    numbers = values.pop("number")
    if not len(numbers) or (numbers != np.round(numbers)).any() or numbers.min() < 1:
        raise DataError(
            f"{file}: column {node['number']} does not hold atomic numbers (found "
            f"{numbers[:3].tolist()}); correct columns in the card."
        )
    positions = np.stack([values.pop(axis) for axis in "xyz"], axis=1)
    pbc = (True, True, True) if source.pbc is None else source.pbc
    atoms = Atoms(numbers.astype(int), positions=positions, cell=source.cell, pbc=pbc)
    atoms.arrays.update(values)
    atoms.arrays["charge_transfer"] = values["charge_density"] - numbers
    atoms.info.update(_first_line(text, file, source))
    return atoms


def _atom_lines(
    lines: list[str], columns: Mapping[str, int], file: Path
) -> dict[str, NDArray[np.float64]]:
    """Read columns of the lines of atoms.

    Args:
        lines: one line per atom, N of them.
        columns: number of each column by name, counted from 0.
        file: path of the file, for errors.

    Returns:
        Values by name, each [N].
    """
    rows = [line.split() for line in lines]
    for number, row in enumerate(rows, start=2):
        if len(row) <= max(columns.values()):
            raise DataError(
                f"{file}: line {number} has {len(row)} columns, column {max(columns.values())} is "
                "wanted (counted from 0); mend the file, or columns in the card."
            )
    try:
        return {name: np.array([float(r[at]) for r in rows]) for name, at in columns.items()}
    except ValueError as error:
        raise DataError(f"{file}: has a line of an atom with {error}; mend it.") from error


def _first_line(text: str, file: Path, source: Source) -> dict[str, float]:
    """Return the properties in the first line of a file: those of the card's targets, by name."""
    words = text.splitlines()[0].split()
    wanted = {name: source.columns.get(name, n) for n, name in enumerate(source.keys)}
    missing = [name for name, at in wanted.items() if at >= len(words)]
    if missing:
        raise DataError(
            f"{file}: its first line has {len(words)} columns, '{missing[0]}' is sought in column "
            f"{wanted[missing[0]]} (counted from 0); mend it, or columns in the card."
        )
    try:
        return {name: float(words[at]) for name, at in wanted.items()}
    except ValueError as error:
        raise DataError(f"{file}: has a first line with {error}; mend it.") from error
