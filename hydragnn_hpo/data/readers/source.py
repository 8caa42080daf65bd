"""What a reader gets and gives, and files as text whatever their compression."""

import bz2
import contextlib
import csv
import gzip
import io
import itertools
import lzma
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ase import Atoms

from hydragnn_hpo.errors import DataError, HydraError

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
"""Compressions by suffix."""


@dataclass(frozen=True)
class Source:
    """What a reader may know of the card."""

    path: Path
    """The file or folder."""

    keys: tuple[str, ...] = ()
    """Names of the graph-level targets in the file, in card order."""

    structure_column: str | None = None
    """For tables: the column with a structure's text or file name."""

    cell: tuple[tuple[float, float, float], ...] | None = None
    """Lattice vectors in angstrom, for structures that have none."""

    pbc: tuple[bool, bool, bool] | None = None
    """Periodic directions, where the card gives them."""

    format: str | None = None
    """ASE's name of the format, where the card tells it."""

    columns: Mapping[str, int] = field(default_factory=dict)
    """Columns of a text format by what they hold, counted from 0."""


Item = tuple[str, Atoms | DataError]
"""A name, and a structure (properties in ``info``, ``arrays`` or the calculator) or why it is bad.

The sentence of a bad one names file and structure, and the next one follows.
"""


@dataclass(frozen=True)
class Reader:
    """How structures of one kind of file are read."""

    count: Callable[[Source], int | None]
    """Number of structures, where that is cheap to know."""

    read: Callable[[Source, int, int | None], Iterator[Item]]
    """Gives structures ``start`` to ``stop`` (counted from 0, not included; None: to the end).

    Names do not depend on them. Raises ``DataError`` where the file cannot be read on.
    """

    extra: str | None = None
    """The pip extra it needs."""

    takes: frozenset[str] = frozenset()
    """Which of a card's ``columns`` and ``format`` it heeds; the others are refused."""

    beside: Callable[[Source], Iterable[Path]] = lambda _: ()
    """Files that it reads besides the one that the card names."""


def in_one_piece(
    read: Callable[[Source], Iterator[tuple[str, Atoms]]], takes: frozenset[str] = frozenset()
) -> Reader:
    """Make a reader of a format that can only be read from its beginning."""

    def some(source: Source, start: int, stop: int | None) -> Iterator[Item]:
        with contextlib.closing(read(source)) as items:  # type: ignore[type-var]
            yield from itertools.islice(items, start, stop)

    return Reader(lambda _: None, some, takes=takes)


def tried(place: str, make: Callable[[], Atoms]) -> Atoms | DataError:
    """Return a structure, or why it is bad: the others may be good.

    Args:
        place: file and structure, for what parsers raise of their own.
        make: gives the structure.
    """
    try:
        return make()
    except DataError as error:
        return error
    except (HydraError, MemoryError):
        raise
    except Exception as error:  # parsers raise whatever comes to pass
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        return DataError(f"{place} cannot be read ({reason}); mend or remove it.")


def read_text(path: Path) -> str:
    """Read a whole text file, decompressed.

    Raises:
        DataError: it is missing, no text, damaged, or empty.
    """
    opener = OPENERS.get(path.suffix.lower(), open)
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            text: str = file.read()
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DataError(f"{path}: cannot be read ({reason}); get the file again.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not a text file ({error.reason}).") from error
    if not text.strip():
        raise DataError(f"{path}: is empty; get the file again.")
    return text


def read_rows(path: Path) -> list[list[str]]:
    """Read a CSV file; blank lines are left out.

    Raises:
        DataError: it is unreadable, or its quotes do not match.
    """
    csv.field_size_limit(2**31 - 1)
    try:
        rows = list(csv.reader(io.StringIO(read_text(path), newline=""), strict=True))
    except csv.Error as error:
        raise DataError(f"{path}: is not a CSV file ({error}); mend it.") from error
    return [[cell.strip() for cell in row] for row in rows if any(cell.strip() for cell in row)]


def check_header(path: Path, header: Sequence[str]) -> None:
    """Refuse a table in which a name does not say which column is meant.

    Raises:
        DataError: two columns have one name.
    """
    twice = next((n for n, count in Counter(header).items() if n and count > 1), None)
    if twice is not None:
        raise DataError(f"{path}: two columns are named '{twice[:60]}'; rename one of them.")


def value_of(cell: str) -> float | str:
    """Return a cell as a number where it is one."""
    try:
        return float(cell)
    except ValueError:
        return cell


def is_number(cell: str) -> bool:
    """Check whether a cell holds a number (NaN is one)."""
    return isinstance(value_of(cell), float)
