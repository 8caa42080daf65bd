"""What a reader gets and gives, and files as text whatever their compression."""

import bz2
import csv
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ase import Atoms

from hydragnn_hpo.errors import DataError

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


Reader = Callable[[Source], Iterator[tuple[str, Atoms]]]
"""Yields a name and a structure; properties are in ``info``, ``arrays`` or the calculator.

Raises ``DataError`` for the structure after the last one it gave.
"""


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


def value_of(cell: str) -> float | str:
    """Give a cell as a number where it is one."""
    try:
        return float(cell)
    except ValueError:
        return cell


def is_number(cell: str) -> bool:
    """Tell whether a cell holds a number (NaN is one)."""
    return isinstance(value_of(cell), float)
