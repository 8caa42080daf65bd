"""A folder of structure files and ``id_prop.csv``, the layout of CGCNN and JARVIS."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ase import Atoms

from hydragnn_hpo.data.readers.ase_file import single_structure
from hydragnn_hpo.data.readers.source import (
    Item,
    Reader,
    Source,
    is_number,
    make_or_catch,
    read_rows,
    value_of,
)
from hydragnn_hpo.errors import DataError

TABLE = "id_prop.csv"
"""File with the name and the properties of each structure."""


def read_folder(source: Source, start: int, stop: int | None) -> Iterator[Item]:
    """Read the structures that ``id_prop.csv`` names, in its order.

    Its first column is a file name, with or without suffix. The others hold the targets in the
    order of the card, or as a header names them. Without ``id_prop.csv``, as for structures whose
    properties are to be predicted, all files are read in alphabetical order.

    Args:
        source: the folder.
        start: first structure, counted from 0.
        stop: one after the last structure; None means the end.

    Raises:
        DataError: the folder holds no files, or its table does not fit the card.
    """
    table = source.path / TABLE
    if not table.is_file() and not source.keys:
        for file in _files(source.path)[start:stop]:
            yield file.name, make_or_catch(str(file), lambda f=file: single_structure(f))  # type: ignore[misc]
        return
    names, body = split_header(read_rows(table), source.keys, table)
    stems = _by_stem(source.path)
    for number, row in enumerate(body[start:stop], start=start):
        where = (source.path, stems, names, row, number)
        yield row[0], make_or_catch(f"{table}: structure {number}", lambda w=where: _structure(*w))  # type: ignore[misc]


def count_folder(source: Source) -> int | None:
    """Count the structures."""
    table = source.path / TABLE
    if not table.is_file() and not source.keys:
        return len(_files(source.path))
    return len(split_header(read_rows(table), source.keys, table)[1])


FOLDER = Reader(count_folder, read_folder)


def _files(folder: Path) -> list[Path]:
    files = sorted(entry for entry in folder.iterdir() if entry.is_file())
    if not files:
        raise DataError(f"{folder}: holds no structure; get the files again.")
    return files


def _structure(
    folder: Path, stems: dict[str, list[Path]], names: list[str], row: list[str], number: int
) -> Atoms:
    """Read the structure that a row of the table names, with its properties.

    Args:
        folder: the folder.
        stems: files of the folder by their names without suffix.
        names: name of each column.
        row: row of the table.
        number: position of the structure, counted from 0, for errors.
    """
    if len(row) != len(names):
        raise DataError(
            f"{folder / TABLE}: structure {number} ({row[0]}) has {len(row)} columns instead of "
            f"{len(names)}; mend the line."
        )
    atoms = single_structure(_file_of(folder, stems, row[0], number))
    cells = zip(names[1:], row[1:], strict=True)
    atoms.info.update({key: value_of(cell) for key, cell in cells if cell})
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
    if len(first) != 1 + len(keys) or not all(is_number(cell) or not cell for cell in first[1:]):
        raise DataError(
            f"{table}: its first line {','.join(first)[:60]!r} neither names the targets "
            f"({', '.join(keys)}) nor holds a name and one number for each; add a header."
        )
    return ["id", *keys], rows


def _by_stem(folder: Path) -> dict[str, list[Path]]:
    """Return the files by their names without the last suffix, and without all suffixes."""
    stems: dict[str, list[Path]] = {}
    for entry in sorted(folder.iterdir()):
        if entry.is_file() and entry.name != TABLE:
            stems.setdefault(entry.name.split(".")[0], []).append(entry)
            if entry.stem != entry.name.split(".")[0]:
                stems.setdefault(entry.stem, []).append(entry)
    return stems


def _file_of(folder: Path, stems: dict[str, list[Path]], name: str, number: int) -> Path:
    """Find the file that a row of the table names; files outside of the folder are refused."""
    candidates = [folder / name] if (folder / name).is_file() else stems.get(name, [])
    inside = [file for file in candidates if file.resolve().is_relative_to(folder.resolve())]
    if len(inside) == 1:
        return inside[0]
    count = "no file" if not inside else f"{len(inside)} files"
    raise DataError(
        f"{folder / TABLE}: structure {number} ({name}) names {count} of {folder}; "
        "mend the line or add the file."
    )
