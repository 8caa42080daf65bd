"""A folder of structure files and a table, as ``id_prop.csv`` of CGCNN and JARVIS."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from ase import Atoms

from hydragnn_hpo.data.readers.ase_file import single_structure
from hydragnn_hpo.data.readers.source import (
    Item,
    Reader,
    Source,
    add_property,
    is_number,
    make_or_catch,
    read_rows,
    value_of,
)
from hydragnn_hpo.data.readers.structure_columns import (
    HEAD_ROWS,
    are_files,
    find_files,
    read_column,
)
from hydragnn_hpo.errors import DataError

TABLE = "id_prop.csv"
"""File with the name and the properties of each structure."""


def find_table(folder: Path) -> Path | None:
    """Find ``id_prop.csv``, else a CSV of another name with a column that names files below it."""
    if (folder / TABLE).is_file():
        return folder / TABLE
    for table in sorted(folder.glob("*.csv")):
        with contextlib.suppress(DataError):
            if _find_names(table, read_rows(table, HEAD_ROWS)) is not None:
                return table
    return None


def read_id_rows(table: Path) -> list[list[str]]:
    """Read a table, the column with the names of files first."""
    rows = read_rows(table)
    column = 0 if table.name == TABLE else _find_names(table, rows[:HEAD_ROWS]) or 0
    return [[*row[column : column + 1], *row[:column], *row[column + 1 :]] for row in rows]


def _find_names(table: Path, rows: Sequence[Sequence[str]]) -> int | None:
    """Return the first column that names files, below a header or without one."""
    columns = range(max(map(len, rows), default=0))
    heads = [[read_column(some, column) for some in (rows, rows[1:])] for column in columns]
    return next((n for n, head in enumerate(heads) if any(are_files(c, table) for c in head)), None)


def read_folder(source: Source, start: int, stop: int | None) -> Iterator[Item]:
    """Read the structures that ``id_prop.csv`` or a table of another name lists, in its order.

    Its first column is a file name, with or without suffix. The others hold the targets in the
    order of the card, or as a header names them. Without a table, as for structures whose
    properties are to be predicted, all files are read in alphabetical order.

    Args:
        source: the folder.
        start: first structure, counted from 0.
        stop: one after the last structure; None means the end.

    Raises:
        DataError: the folder holds no files, or its table does not fit the card.
    """
    table = find_table(source.path) or (source.path / TABLE if source.keys else None)
    if table is None:
        for file in _files(source.path)[start:stop]:
            yield file.name, make_or_catch(str(file), lambda f=file: single_structure(f))  # type: ignore[misc]
        return
    names, body = split_header(read_id_rows(table), source.keys, table)
    for number, row in enumerate(body[start:stop], start=start):
        where = (table, names, row, number)
        yield row[0], make_or_catch(f"{table}: structure {number}", lambda w=where: _structure(*w))  # type: ignore[misc]


def count_folder(source: Source) -> int | None:
    """Count the structures."""
    table = find_table(source.path) or (source.path / TABLE if source.keys else None)
    if table is None:
        return len(_files(source.path))
    return len(split_header(read_id_rows(table), source.keys, table)[1])


FOLDER = Reader(count_folder, read_folder)


def _files(folder: Path) -> list[Path]:
    files = sorted(entry for entry in folder.iterdir() if entry.is_file())
    if not files:
        raise DataError(f"{folder}: holds no structure; get the files again.")
    return files


def _structure(table: Path, names: list[str], row: list[str], number: int) -> Atoms:
    """Read the structure that a row of the table names, with its properties.

    Args:
        table: the table.
        names: name of each column.
        row: row of the table.
        number: position of the structure, counted from 0, for errors.
    """
    if len(row) != len(names):
        raise DataError(
            f"{table}: structure {number} ({row[0]}) has {len(row)} columns instead of "
            f"{len(names)}; mend the line."
        )
    atoms = single_structure(_file_of(table, row[0], number))
    for key, cell in zip(names[1:], row[1:], strict=True):
        if cell:
            add_property(atoms, key, value_of(cell))
    return atoms


def split_header(
    rows: Sequence[list[str]], keys: tuple[str, ...], table: Path
) -> tuple[list[str], Sequence[list[str]]]:
    """Split the rows of a table into names of columns and structures.

    Args:
        rows: all rows of the table.
        keys: names of the card's targets, for a table without header.
        table: path of the table, for errors.

    Returns:
        Name of each column, and the rows of structures.

    Raises:
        DataError: there is no header and the columns are not the card's targets.
    """
    first = rows[0]
    if set(keys) <= set(first[1:]) and not any(is_number(cell) for cell in first[1:]):
        return first, rows[1:]
    if not keys:  # to predict, no values are needed
        keys = tuple(f"property_{number}" for number in range(1, len(first)))
    if len(first) != 1 + len(keys) or not all(is_number(cell) or not cell for cell in first[1:]):
        raise DataError(
            f"{table}: its first line {','.join(first)[:60]!r} neither names the targets "
            f"({', '.join(keys)}) nor holds a name and one number for each; add a header."
        )
    return ["id", *keys], rows


def _file_of(table: Path, name: str, number: int) -> Path:
    """Find the file that a row of the table names; files outside of the folder are refused."""
    folder = table.parent
    inside = [
        file for file in find_files(table, name) if file.resolve().is_relative_to(folder.resolve())
    ]
    if len(inside) == 1:
        return inside[0]
    count = "no file" if not inside else f"{len(inside)} files"
    raise DataError(
        f"{table}: structure {number} ({name}) names {count} of {folder}; mend the line or add the "
        "file."
    )
