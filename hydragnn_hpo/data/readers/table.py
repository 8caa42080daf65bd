"""Tables with a structure per row: CSV, JSON, and matbench's JSON.

A cell holds a structure as a dictionary of pymatgen or JARVIS, as CIF text, or as a file name.
"""

import functools
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.data import atomic_numbers

from hydragnn_hpo.data.readers.ase_file import single, single_structure, structures_in
from hydragnn_hpo.data.readers.source import (
    Item,
    Reader,
    Source,
    add_property,
    check_header,
    make_or_catch,
    read_rows,
    read_stamp,
    read_text,
    value_of,
)
from hydragnn_hpo.data.readers.structure_columns import (
    HEAD_ROWS,
    KNOWN,
    LAYOUT,
    find_files,
    is_json,
)
from hydragnn_hpo.errors import ConfigError, DataError, unknown
from hydragnn_hpo.sanitize import quote

_ELEMENT = re.compile("[A-Z][a-z]?")

_FULL = 1e-3
"""Largest difference between 1 and the occupancy of a full site."""


def structure_of(value: Mapping[str, Any], place: str) -> Atoms:
    """Convert a dictionary of pymatgen (``Structure``, ``Molecule``) or JARVIS (``atoms``).

    Site properties become arrays.

    Args:
        value: dictionary with ``sites`` (pymatgen), or ``elements`` and ``coords`` (JARVIS).
        place: file and structure, for errors.

    Raises:
        DataError: an entry is missing or inconsistent, or a site is partly occupied.
    """
    try:
        if "sites" in value:
            return _pymatgen(value, place)
        return _jarvis(value, place)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        reason = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"{place} is no structure of pymatgen or JARVIS ({' '.join(reason.split())}); mend or "
            "remove it."
        ) from error


def _pymatgen(value: Mapping[str, Any], place: str) -> Atoms:
    sites = value["sites"]
    numbers = [_number(site, number, place) for number, site in enumerate(sites, start=1)]
    lattice = value.get("lattice")
    if lattice is None:
        positions = _triples([site["xyz"] for site in sites], "xyz of the sites", place)
        atoms = Atoms(numbers, positions=positions)
    else:
        pbc = lattice.get("pbc", (True, True, True))
        scaled = _triples([site["abc"] for site in sites], "abc of the sites", place)
        cell = _cell(lattice["matrix"], "matrix of the lattice", place)
        atoms = Atoms(numbers, scaled_positions=scaled, cell=cell, pbc=pbc)
    for name in sites[0].get("properties") or {} if sites else {}:
        values = np.array([site["properties"][name] for site in sites])
        if values.dtype.kind in "bif" and name not in atoms.arrays:
            atoms.arrays[name] = values
    return atoms


def _number(site: Mapping[str, Any], number: int, place: str) -> int:
    """Return the atomic number of a site, which must hold one atom."""
    kinds = site["species"]
    if len(kinds) != 1 or abs(float(kinds[0].get("occu", 1.0)) - 1.0) > _FULL:
        listing = ", ".join(f"{kind['element']} {kind.get('occu', 1.0):g}" for kind in kinds)
        raise DataError(
            f"{place} has a site with partial occupancy (site {number}: {listing}); give an "
            "ordered structure."
        )
    symbol = _ELEMENT.match(str(kinds[0]["element"]))  # "Fe2+,spin=5" is iron
    return int(atomic_numbers[symbol.group() if symbol else str(kinds[0]["element"])])


def _jarvis(value: Mapping[str, Any], place: str) -> Atoms:
    symbols = [str(symbol).strip() for symbol in value["elements"]]
    coordinates = _triples(value["coords"], "coords", place)
    numbers = [atomic_numbers[symbol] for symbol in symbols]
    cell = _cell(value["lattice_mat"], "lattice_mat", place)
    where = {"positions" if value.get("cartesian") else "scaled_positions": coordinates}
    if len(numbers) != len(coordinates):
        raise DataError(
            f"{place} has {len(numbers)} elements for {len(coordinates)} positions; mend or "
            "remove it."
        )
    return Atoms(numbers, cell=cell, pbc=True, **where)


def _cell(rows: Any, name: str, place: str) -> np.ndarray:
    """Return three vectors, none of them zero, [3, 3]."""
    cell = _triples(rows, name, place)
    if cell.shape != (3, 3) or not cell.any(axis=1).all():
        raise DataError(f"{place}: {name}: {quote(str(rows))} spans no volume; mend or remove it.")
    return cell


def _triples(rows: Any, name: str, place: str) -> np.ndarray:
    """Return rows of three numbers as an array, [R, 3]; nothing is reshaped to fit."""
    is_list = isinstance(rows, (list, tuple))
    wrong = [row for row in rows if not _is_triple(row)] if is_list else [rows]
    if wrong:
        raise DataError(
            f"{place}: {name}: three numbers in each row are wanted, found {quote(str(wrong[0]))}; "
            "mend or remove it."
        )
    return np.array(rows, dtype=float).reshape(-1, 3)


def _is_triple(row: Any) -> bool:
    is_three = isinstance(row, (list, tuple)) and len(row) == 3
    return is_three and all(type(number) in (int, float) for number in row)


Rows = tuple[list[str], list[Sequence[Any]], list[str]]
"""The header of a table, its rows, and a name for each row."""


def count_rows(source: Source) -> int | None:
    """Count the structures."""
    return len(_table(source)[1])


def read_table(source: Source, start: int, stop: int | None) -> Iterator[Item]:
    """Read one structure per row; the other columns become ``info``.

    Args:
        source: the table.
        start: first row, counted from 0.
        stop: one after the last row; None means the end.

    Raises:
        ConfigError: the structure column is not set, or not in the file.
        DataError: the file is unreadable.
    """
    path = source.path
    header, rows, names = _table(source)
    column = _column(source, header)
    for number, row in enumerate(rows[start:stop], start=start):
        place = f"{path}: structure {number}"
        make = functools.partial(_atoms, header, row, column, path, place)
        yield names[number], make_or_catch(place, make)


def read_head(source: Source) -> tuple[list[str], list[Sequence[Any]]]:
    """Read the beginning of a table whose columns are not known yet.

    Returns:
        The header, and the first rows.

    Raises:
        DataError: the file is unreadable.
    """
    header, rows, _ = _table(source)
    return header, rows[:HEAD_ROWS]


def list_named_files(source: Source) -> Iterator[Path]:
    """Yield the files that the table names."""
    header, rows, _ = _table(source)
    column = header.index(_column(source, header))
    for row in rows:
        cell = row[column] if isinstance(row, Sequence) and len(row) == len(header) else None
        if isinstance(cell, str | int):
            yield from find_files(source.path, str(cell))


TABLE = Reader(count_rows, read_table, list_other_files=list_named_files)


def _table(source: Source) -> Rows:
    """Read a table; the latest is kept in memory, because its pieces are read one by one."""
    return _read_once(source.path, read_stamp(source.path))


@functools.lru_cache(maxsize=1)
def _read_once(path: Path, stamp: tuple[int, int]) -> Rows:
    if is_json(path):
        header, rows, names = _json(path)
    else:
        lines = read_rows(path)
        header = lines[0]
        rows = list(lines[1:])
        names = []
    if not rows:
        raise DataError(f"{path}: holds no structure; get the file again.")
    check_header(path, header)
    if names and len(names) != len(rows):
        raise DataError(f"{path}: names {len(names)} of {len(rows)} rows; get the file again.")
    return header, rows, names or [f"{path.name}@{n}" for n in range(len(rows))]


def _json(path: Path) -> Rows:
    """Read JSON: records, in a list or one a line, columns by name, or matbench's three parts."""
    text = read_text(path)
    try:
        content = _load_lines(text) or json.loads(text)
    except ValueError as error:
        raise DataError(f"{path}: is not valid JSON ({error}); get the file again.") from error
    except RecursionError as error:
        raise DataError(f"{path}: nests JSON too deeply; get the file again.") from error
    if isinstance(content, dict) and {"columns", "data"} <= set(content):
        names = [str(name) for name in content.get("index", [])]
        return [str(c) for c in content["columns"]], list(content["data"]), names
    if isinstance(content, list) and all(isinstance(entry, dict) for entry in content):
        header = list(dict.fromkeys(key for entry in content for key in entry))
        return header, [[entry.get(key) for key in header] for entry in content], []
    if isinstance(content, dict) and content:
        columns = [c if isinstance(c, list) else list(_values(c)) for c in content.values()]
        if len({len(column) for column in columns}) == 1:
            return list(content), list(zip(*columns, strict=True)), []
    raise DataError(
        f"{path}: is neither a list of records, nor columns of equal length, nor a matbench file: "
        f"{LAYOUT}."
    )


def _load_lines(text: str) -> list[Any]:
    """Return the records of JSON lines; empty where the first line is not whole."""
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        first = len(lines) > 1 and isinstance(json.loads(lines[0]), dict)
    except ValueError:
        return []
    return [json.loads(line) for line in lines] if first else []


def _values(column: Any) -> Sequence[Any]:
    return list(column.values()) if isinstance(column, dict) else [column]


def _column(source: Source, header: Sequence[str]) -> str:
    """Return the name of the column with the structures."""
    path, column = source.path, source.structure_column
    if column is None:
        candidates = [name for name in KNOWN if name in header]
        if len(candidates) == 1 and is_json(path):
            return candidates[0]
        raise ConfigError(
            f"{path}: is a table: name the column with the structures as structure_column in the "
            f"card, or with --structure-column (columns: {', '.join(header)})."
        )
    if column not in header:
        raise ConfigError(f"{path}: {unknown('column', column, header)}")
    return column


def _atoms(header: Sequence[str], row: Sequence[Any], column: str, path: Path, place: str) -> Atoms:
    """Convert a row of a table to a structure with its properties."""
    if not isinstance(row, Sequence) or isinstance(row, str):
        raise DataError(f"{place} is no row of cells; mend or remove it.")
    if len(row) != len(header):
        raise DataError(f"{place} has {len(row)} columns instead of {len(header)}; mend the line.")
    cells = dict(zip(header, row, strict=True))
    atoms = _structure(cells.pop(column), path, place)
    for key, cell in cells.items():
        value = value_of(cell) if isinstance(cell, str) else cell
        is_nan = isinstance(value, float) and math.isnan(value)
        if not (value is None or is_nan or (isinstance(value, str | list) and not value)):
            add_property(atoms, key, value)
    return atoms


def _structure(cell: Any, path: Path, place: str) -> Atoms:
    """Read a structure from a cell: a dictionary, CIF text, or a file next to the table."""
    if isinstance(cell, Mapping):
        return structure_of(cell, place)
    text = "" if cell is None else str(cell).strip()
    if "\n" in text:
        where = f"{path}: the CIF text of {place.rsplit(': ', 1)[-1]}"
        return single(structures_in(io.StringIO(text + "\n"), "cif", where), where)
    files = find_files(path, text)
    if len(files) != 1:
        there = f"of which there are {len(files)}" if files else "which is not there"
        raise DataError(
            f"{place} names the file '{text[:255]}', {there}; mend the line or add the file."
        )
    return single_structure(files[0])
