"""Databases of ASE: SQLite and JSON, and fairchem's LMDB; one file or a folder of them."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ase import Atoms
from ase.db import connect

from hydragnn_hpo.data.readers.formats import recognize
from hydragnn_hpo.data.readers.read_limits import read_limits
from hydragnn_hpo.data.readers.source import (
    Item,
    Reader,
    Source,
    add_property,
    make_or_catch,
)
from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.optional_packages import explain_missing
from hydragnn_hpo.sanitize import escape_line, shorten
from hydragnn_hpo.units import inside, interpret_unit

LMDB = (".aselmdb", ".lmdb")
"""Suffixes of fairchem's databases."""


def read_database(source: Source, start: int, stop: int | None) -> Iterator[Item]:
    """Read rows with their keys, data and results of the calculator.

    An entry of ``data`` goes to ``atoms.info``, and to ``atoms.arrays`` if it has one row per atom.

    Args:
        source: database file, or folder of LMDB files, whose rows are counted across files.
        start: first structure, counted from 0.
        stop: one after the last structure; None means the end.

    Raises:
        ConfigError: the package for LMDB is not installed.
        DataError: a file is unreadable.
    """
    before = 0
    for path in _files(source.path):
        count = _count(path)
        first = max(start - before, 0)
        last = count if stop is None else min(stop - before, count)
        if first < last:
            yield from _rows(path, first, last)
        before += count


def count_database(source: Source) -> int | None:
    """Count the rows."""
    return sum(_count(path) for path in _files(source.path))


def read_stated_units(source: Source) -> Iterator[tuple[str, str]]:
    """Yield name and unit of each property of which the metadata state one, as SchNetPack's do."""
    for path in _files(source.path):
        units = _read_metadata(path).get("_property_unit_dict")
        if isinstance(units, Mapping):
            yield from ((str(name), str(unit)) for name, unit in units.items() if unit)


DATABASE = Reader(count_database, read_database, extra="lmdb", read_units=read_stated_units)


def holds_lmdb(folder: Path) -> bool:
    """Check whether a folder holds LMDB files."""
    return any(entry.suffix.lower() in LMDB for entry in folder.iterdir())


def _files(path: Path) -> list[Path]:
    files = [path] if path.is_file() else []
    if path.is_dir():
        files = sorted(entry for entry in path.iterdir() if entry.suffix.lower() in LMDB)
    if not files:
        raise DataError(f"{path}: no such database; correct the path.")
    return files


def _open(path: Path) -> Any:
    if path.suffix.lower() not in LMDB:
        form = recognize(path)
        kind = {"database": "db", "json database": "json"}.get(form.name if form else "")
        return connect(path, type=kind or "extract_from_name")  # type: ignore[no-untyped-call]
    with explain_missing(f"{path}: an LMDB file"):
        import lmdb
        from ase_db_backends.aselmdb import LMDBDatabase
    # Of a file that is no LMDB, the line below would leave an object whose ``__del__`` fails.
    lmdb.open(str(path), subdir=False, readonly=True, lock=False).close()
    return LMDBDatabase(str(path), readonly=True)


def _count(path: Path) -> int:
    if path.stat().st_size == 0:
        raise DataError(f"{path}: is empty; get the file again.")
    try:
        with _open(path) as database:
            count = int(database.count())
    except ConfigError:
        raise
    except Exception as error:  # each backend raises types of its own
        raise _unreadable(path, error) from error
    if not count:
        raise DataError(f"{path}: holds no structure; get it again.")
    return count


def _read_metadata(path: Path) -> Mapping[str, Any]:
    try:
        with _open(path) as database:
            metadata = database.metadata
    except ConfigError:
        raise
    except Exception as error:  # each backend raises types of its own
        raise _unreadable(path, error) from error
    return metadata if isinstance(metadata, Mapping) else {}


def _length_factor(path: Path) -> float:
    """Return the factor that converts positions and cells of a database to angstrom.

    Raises:
        DataError: its metadata state another unit than those of lengths.
    """
    stated = str(_read_metadata(path).get("_distance_unit") or "angstrom")
    unit = interpret_unit(stated)
    if unit is None or inside(unit)[1] != "angstrom":
        raise DataError(
            f"{path}: its metadata state lengths in '{escape_line(stated)[:40]}': write angstrom "
            "or bohr as _distance_unit, or convert the positions."
        )
    return inside(unit)[0]


def _rows(path: Path, first: int, last: int) -> Iterator[Item]:
    number = first
    size = path.stat().st_size
    length = _length_factor(path)
    while number < last:  # a damaged row ends a query; the next query begins after that row
        before = number
        try:
            with _open(path) as database:
                rows = database.select(offset=number, limit=last - number)
                while True:
                    with read_limits(size):
                        row = next(rows, None)
                    if row is None:
                        break
                    place = f"{path}: row {number}"
                    make = functools.partial(_convert_row, row, size, length)
                    item = f"{path.name}@{number}", make_or_catch(place, make)
                    number += 1
                    yield item
        except (ConfigError, GeneratorExit, MemoryError):
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:120] or type(error).__name__
            sentence = f"{path}: row {number} cannot be read ({reason}); mend or remove it."
            name = f"{path.name}@{number}"
            number += 1
            yield name, DataError(sentence)
        if number == before:
            raise DataError(f"{path}: ends after {number} of {last} rows; get the file again.")


def _convert_row(row: Any, size: int, length: float) -> Atoms:
    """Convert a row of a database to a structure with all its data.

    Args:
        row: the row.
        size: bytes of the database.
        length: factor of its positions and cells.
    """
    with read_limits(size):
        atoms: Atoms = row.toatoms()
        data = dict(row.data)
    if length != 1.0:
        atoms.cell[:] *= length
        atoms.positions *= length
    atoms.info.update(row.key_value_pairs)
    for key, value in data.items():
        add_property(atoms, key, value)
    return atoms


def _unreadable(path: Path, error: Exception) -> DataError:
    reason = shorten(" ".join(str(error).split())) or type(error).__name__
    return DataError(f"{path}: cannot be read as a database ({reason}); get the file again.")
