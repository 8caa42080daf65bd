"""Columns of tables that hold structures or SMILES, or name the files of structures."""

import functools
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydragnn_hpo.data.readers.source import is_number
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.sanitize import escape_line, quote

NAMES = ("smiles", "canonical_smiles", "isomeric_smiles")
"""Names of columns that hold SMILES."""

KNOWN = ("structure", "atoms", "cif")
"""Default names of the column of structures in JSON files."""

HEAD_ROWS = 20
"""Number of rows by which the columns of a table are recognised."""

MOST_FILES = 200_000
"""Most files of a folder and those below it that are searched for a name."""

_SMILES_NAMES = (*NAMES, "smile", "mol", "molecule")

_SMILES = re.compile(r"[A-Za-z0-9@+\-\[\]()=#$/\\.%:*~<>]+", re.ASCII)
"""SMILES, those of reactions included."""

REACTION = re.compile(r"(?<!-)>")
"""What stands in SMILES of reactions only; ``->`` is a dative bond."""

_DICTIONARY = {"lattice", "sites", "lattice_mat", "elements"}
"""Keys of structures of pymatgen and JARVIS."""

_LONGEST_WORD = 4
"""Characters of a name that may be a SMILES by chance, such as COF, where no number is beside."""

_LONGEST = 255
"""Largest number of characters of a file name."""


class StructureColumn(NamedTuple):
    """The column of a table with the structures."""

    reader: str
    """Name of the reader: ``table`` or ``smiles``."""
    name: str


def find_structure_column(
    path: Path, header: Sequence[str], rows: Sequence[Any]
) -> StructureColumn:
    """Find the column with the structures: the first one of which most rows hold some.

    Args:
        path: the table.
        header: name of each column.
        rows: its first rows.

    Raises:
        DataError: there is none, or the header is a row.
    """
    columns = [(name, read_column(rows, number)) for number, name in enumerate(header)]
    for name, cells in columns:
        if 2 * sum(is_structure(cell) for cell in cells) > len(cells) or are_files(cells, path):
            return _check_header(path, header, StructureColumn("table", name))
    for name, cells in columns:
        if cells and not is_json(path) and are_smiles(name, cells):
            return _check_header(path, header, StructureColumn("smiles", name))
    hint = next((s for s in ";\t|" if len(header) == 1 and s in header[0]), None)
    keys = next((list(c) for _, cells in columns for c in cells if isinstance(c, Mapping)), None)
    cure = f"; separate them by commas, not by {hint!r}." if hint else "; add one."
    if keys is not None:
        listed = escape_line(", ".join(map(str, keys)))[:80]
        cure = f"; its dictionaries of {listed} are none of pymatgen or JARVIS: {LAYOUT}."
    raise DataError(
        f"{path}: no column holds structures (CIF texts, names of files beside the table, SMILES); "
        f"columns: {escape_line(', '.join(header))[:200]}{cure}"
    )


def _check_header(path: Path, header: Sequence[str], column: StructureColumn) -> StructureColumn:
    """Return the column; refuse a first line that is a row: it would be lost and name columns.

    Args:
        path: the table.
        header: its first line.
        column: the column with the structures.

    Raises:
        DataError: the name of the column is a structure, too.
    """
    name = column.name
    numbers = any(map(is_number, header))
    if column.reader == "table":
        is_row = (path.parent / name).is_file() or numbers and bool(find_files(path, name))
        cure = ", or give the folder of the table"
    else:
        is_row = (numbers or len(name) > _LONGEST_WORD) and are_smiles("", [name])
        cure = ""
    if is_row and not is_json(path):
        raise DataError(
            f"{path}: its first line, {quote(', '.join(header)[:60])}, holds a structure, not the "
            f"names of the columns: write them above it{cure}."
        )
    return column


LAYOUT = (
    'write a list with a record for each structure, [{"structure": Structure.as_dict(), '
    '"energy": -1.2}, ...]'
)
"""Layout of JSON that is read, for errors."""


JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")


def is_json(path: Path) -> bool:
    """Check whether a table is JSON, by its suffix."""
    return any(suffix.lower() in JSON_SUFFIXES for suffix in path.suffixes[-2:])


def read_column(rows: Sequence[Any], number: int) -> list[Any]:
    """Return the cells of a column, without rows that are too short."""
    lists = (row for row in rows if isinstance(row, Sequence) and not isinstance(row, str))
    return [row[number] for row in lists if len(row) > number]


def is_structure(cell: Any) -> bool:
    """Check whether a cell is a structure, as dictionary or CIF text."""
    if isinstance(cell, Mapping):
        return bool(_DICTIONARY & set(cell))
    is_text = isinstance(cell, str) and "\n" in cell
    return is_text and ("_cell_length" in cell or "data_" in cell)


def are_files(cells: Sequence[Any], table: Path) -> bool:
    """Check whether most cells name a file near a table, and no two cells the same one."""
    names = [str(cell) for cell in cells if isinstance(cell, str | int)]
    if not names or len(set(names)) < len(names) and any(map(is_number, names)):
        return False
    return 2 * sum(len(find_files(table, name)) == 1 for name in names) > len(cells)


def are_smiles(name: str, cells: Sequence[Any]) -> bool:
    """Check whether a column holds SMILES: by its name, else by RDKit, if that is installed."""
    texts = [cell for cell in cells if isinstance(cell, str) and not is_number(cell)]
    if len(texts) < len(cells) or not all(_SMILES.fullmatch(text) for text in texts):
        return False
    if name.strip().lower() in _SMILES_NAMES:
        return True
    try:
        from rdkit import Chem, RDLogger
    except ImportError:
        return False
    RDLogger.DisableLog("rdApp.*")
    parts = (part for text in texts for part in REACTION.split(text) if part)
    return all(Chem.MolFromSmiles(part) is not None for part in parts)


def are_other_molecules(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Check whether two columns hold SMILES, those of the second not of parts of the first.

    Args:
        first: SMILES that are read.
        second: cells of another column.
    """
    if len(second) < len(first) or not are_smiles("", second):
        return False
    from rdkit import Chem

    pairs = [tuple(map(Chem.MolFromSmiles, pair)) for pair in zip(first, second, strict=True)]
    return any(one and two and not one.HasSubstructMatch(two) for one, two in pairs)


def find_files(table: Path, name: str) -> list[Path]:
    """Find the files that a cell of a table names, with or without suffix, beside it or below.

    Of a file alone in its folder, the name of the folder will do.

    Args:
        table: the table.
        name: the cell.
    """
    folder, name = table.parent, name.strip()
    if not name or "\n" in name or len(name) > _LONGEST:
        return []
    if (folder / name).is_file():
        return [folder / name] if folder / name != table else []
    return _index_files(folder, folder.stat().st_mtime_ns).get(name, [])


@functools.lru_cache(maxsize=4)
def _index_files(folder: Path, changed: int) -> dict[str, list[Path]]:
    """Return the files of a folder and two levels below by their names, see ``find_files``."""
    index: dict[str, list[Path]] = {}
    alone: dict[Path, list[Path]] = {}
    files = sorted(itertools.islice(_walk(folder), MOST_FILES))
    for file in sorted(files, key=lambda file: len(file.parts)):
        alone.setdefault(file.parent, []).append(file)
        for name in {file.name, file.stem, file.name.split(".")[0]}:
            nearest = index.setdefault(name, [])
            if not nearest or len(nearest[0].parts) == len(file.parts):
                nearest.append(file)
    for parent, files in alone.items():
        if parent != folder and len(files) == 1 and parent.name not in index:
            index[parent.name] = files
    return index


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and two levels below; folders that cannot be read are skipped."""
    for root, folders, names in os.walk(folder):
        depth = len(Path(root).relative_to(folder).parts)
        folders[:] = [name for name in folders if name[0] != "." and depth < 2]
        yield from (Path(root, n) for n in names if n[0] != "." and not n.lower().endswith(".csv"))
