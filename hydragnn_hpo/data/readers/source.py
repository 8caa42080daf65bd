"""The interface of readers, and access to text files, compressed or not."""

import bz2
import contextlib
import csv
import gzip
import io
import itertools
import json
import lzma
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from hydragnn_hpo.errors import DataError, HydraError

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
"""Functions that open a compressed file, by its suffix."""

ENCODING = "utf-8-sig"
"""UTF-8, with or without the byte order mark that Excel and Notepad write."""


@dataclass(frozen=True)
class Source:
    """A file to read, and its options from the card."""

    path: Path
    """The file or folder."""

    keys: tuple[str, ...] = ()
    """Names of the graph-level targets in the file, in the order of the card."""

    structure_column: str | None = None
    """For tables, the column with a structure's text or file name."""

    cell: tuple[tuple[float, float, float], ...] | None = None
    """Lattice vectors in angstrom, for structures that have none."""

    pbc: tuple[bool, bool, bool] | None = None
    """Periodic directions, where the card gives them."""

    format: str | None = None
    """ASE's name of the format; None leaves it to ASE."""

    columns: Mapping[str, int] = field(default_factory=dict)
    """For text formats, number of the column of each property, counted from 0."""

    one_part: bool = False
    """For SMILES, whether one of several parts, as a salt, is a bad structure."""

    length: str | None = None
    """Unit of positions and cell; None means angstrom, unless the reader decides."""


Item = tuple[str, Atoms | DataError]
"""The name of a structure, and the structure, with its properties in ``info``, ``arrays`` or the
results of its calculator. For a bad structure the second item is an error that names file and
structure; reading continues with the next structure."""


OPTIONS = ("columns", "format", "length", "one_part")
"""Options of a card that only some readers accept."""


@dataclass(frozen=True)
class Reader:
    """The functions that read one kind of file."""

    count: Callable[[Source], int | None]
    """Return the number of structures; None where that takes as long as reading them."""

    read: Callable[[Source, int, int | None], Iterator[Item]]
    """Yield structures ``start`` (counted from 0) to ``stop`` (not included; None: the end).

    The name of a structure does not depend on ``start`` and ``stop``. Raises ``DataError`` where
    the file cannot be read further.
    """

    extra: str | None = None
    """The pip extra that the reader needs; None where it needs none."""

    takes: frozenset[str] = frozenset()
    """Options of a card that the reader accepts, see ``OPTIONS``."""

    list_other_files: Callable[[Source], Iterable[Path]] = lambda _: ()
    """Yield the files that the reader reads in addition to the one that the card names."""

    read_units: Callable[[Source], Iterable[tuple[str, str]]] = lambda _: ()
    """Yield name and unit, in any spelling, of each property whose unit the file states."""


def in_one_piece(
    read: Callable[[Source], Iterator[Item]],
    takes: frozenset[str] = frozenset(),
    read_units: Callable[[Source], Iterable[tuple[str, str]]] = lambda _: (),
) -> Reader:
    """Make a reader of a format that can only be read from its beginning.

    Args:
        read: yields name and structure of all structures of a file.
        takes: see ``Reader.takes``.
        read_units: see ``Reader.read_units``.
    """

    def read_slice(source: Source, start: int, stop: int | None) -> Iterator[Item]:
        """Read structures ``start`` to ``stop``; see ``Reader.read``.

        Args:
            source: file to read.
            start: first structure, counted from 0.
            stop: one after the last structure; None means the end.
        """
        with contextlib.closing(read(source)) as items:  # type: ignore[type-var]
            yield from itertools.islice(items, start, stop)

    return Reader(lambda _: None, read_slice, takes=takes, read_units=read_units)


def read_stamp(path: Path) -> tuple[int, int]:
    """Read what changes when a file is written.

    Returns:
        Its time in nanoseconds, and its size in bytes.

    Raises:
        DataError: there is no such file, or it cannot be read.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); get the file again."
        ) from error
    return stat.st_mtime_ns, stat.st_size


def make_or_catch(place: str, make: Callable[[], Atoms]) -> Atoms | DataError:
    """Return what ``make`` returns, or the error for which the structure is set aside.

    Args:
        place: file and structure, for an error of a parser that names neither.
        make: returns the structure.
    """
    try:
        return make()
    except DataError as error:
        return error
    except (HydraError, MemoryError):
        raise
    except Exception as error:  # parsers raise errors of many types
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        return DataError(f"{place} cannot be read ({reason}); mend or remove it.")


def open_text(path: Path) -> Any:
    """Open a text file, compressed or not; a byte order mark at its beginning is left out."""
    return OPENERS.get(path.suffix.lower(), open)(path, "rt", encoding=ENCODING)


@contextlib.contextmanager
def text_errors(path: Path) -> Iterator[None]:
    """Raise the errors of reading a text file as ``DataError``."""
    try:
        yield
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DataError(f"{path}: cannot be read ({reason}); get the file again.") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: is not a text file in UTF-8 ({error.reason}); save it as UTF-8."
        ) from error


def read_text(path: Path) -> str:
    """Read a whole text file, decompressed.

    Raises:
        DataError: the file is missing, not text, damaged, or empty.
    """
    with text_errors(path), open_text(path) as file:
        text: str = file.read()
    if not text.strip():
        raise DataError(f"{path}: is empty; get the file again.")
    return text


def count_lines(path: Path, pattern: re.Pattern[bytes]) -> float:
    """Count the lines of a file that begin with a pattern; infinite if it cannot be read."""
    try:
        with OPENERS.get(path.suffix.lower(), open)(path, "rb") as file:
            return sum(map(bool, map(pattern.match, file)))
    except (OSError, EOFError, lzma.LZMAError, zlib.error):
        return math.inf


TABLE_SUFFIXES = (".csv", ".tsv", ".tab")
"""Suffixes of tables in text, whatever separates their columns."""


def read_rows(path: Path, most: int | None = None) -> list[list[str]]:
    """Read a table in text, or its first rows; blank lines are left out.

    Columns end with commas, semicolons or tabs. Beside the latter two, numbers may have decimal
    commas, as in spreadsheets of many languages: they become points.

    Raises:
        DataError: the file is unreadable, its quotes do not match, or commas and points of its
            numbers may part thousands.
    """
    csv.field_size_limit(2**31 - 1)
    text = read_text(path)
    delimiter = _find_delimiter(text)
    try:
        rows = list(itertools.islice(_split_rows(text, delimiter), most))
    except csv.Error as error:
        raise DataError(f"{path}: is not a CSV file ({error}); mend it.") from error
    rows = [[cell.strip() for cell in row] for row in rows if any(cell.strip() for cell in row)]
    return rows if delimiter == "," else _write_points(path, rows)


def read_names(path: Path) -> list[str]:
    """Return the first line of a table, from its first megabyte; empty if it cannot be read."""
    try:
        with text_errors(path), open_text(path) as file:
            head = file.read(2**20)
        return next(_split_rows(head, _find_delimiter(head)), [])
    except (DataError, csv.Error):
        return []


def _split_rows(text: str, delimiter: str) -> Iterator[list[str]]:
    return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)


def _find_delimiter(text: str) -> str:
    """Return what splits each of the first lines into as many columns, or a comma."""
    for delimiter in ",;\t":
        with contextlib.suppress(csv.Error):
            first = itertools.islice(filter(None, _split_rows(text, delimiter)), 20)
            widths = {len(row) for row in first}
            if len(widths) == 1 and widths != {1}:
                return delimiter
    return ","


_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+([eE][-+]?\d+)?", re.ASCII)
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}", re.ASCII)


def _write_points(path: Path, rows: list[list[str]]) -> list[list[str]]:
    """Return rows with decimal points; refuse commas and points that may part thousands."""
    cells = list(itertools.chain.from_iterable(rows))
    commas = [cell for cell in cells if _DECIMAL_COMMA.fullmatch(cell)]
    if not commas:
        return rows
    points = (cell for cell in cells if "." in cell and is_number(cell))
    unclear = next(points, commas[0] if all(map(_THOUSANDS.fullmatch, commas)) else None)
    if unclear is not None:
        raise DataError(
            f"{path}: {unclear} may be a thousand or have decimals, as there are commas in "
            "numbers; write decimal points, and nothing between thousands."
        )
    return [
        [cell.replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell) else cell for cell in row]
        for row in rows
    ]


def check_header(path: Path, header: Sequence[str]) -> None:
    """Refuse a table with two columns of the same name.

    Raises:
        DataError: two columns have the same name.
    """
    repeated = next((n for n, count in Counter(header).items() if n and count > 1), None)
    if repeated is not None:
        cure = ", or write a header if the first line is none" if is_number(repeated) else ""
        raise DataError(
            f"{path}: two columns are named '{repeated[:60]}'; rename one of them{cure}."
        )


Value = float | str | NDArray[np.float64]
"""What a cell of a table holds."""


def value_of(cell: str) -> Value:
    """Return a cell as a number or numbers if it holds these, else as text.

    Numbers are a list as JSON, Python or NumPy writes it, or several between blanks or semicolons.
    Python reads ``1_000`` as a number, other programs do not: here it is text.

    >>> value_of("1e3"), value_of("[[1, 2], [nan, 4]]").shape, value_of("0.1; 0.2").tolist()
    (1000.0, (2, 2), [0.1, 0.2])
    """
    try:
        return cell if "_" in cell else float(cell)
    except ValueError:
        return _parse_list(cell) if _LIST.fullmatch(cell) and re.search(r"\d", cell) else cell


_LIST = re.compile(r"[\s\[\](),;+\-.\deENnaonul]+", re.ASCII)
"""What lists of numbers are made of, and few texts are."""


def _parse_list(cell: str) -> str | NDArray[np.float64]:
    """Return the numbers of a list; the text itself where it is none."""
    text = cell.strip().translate(str.maketrans("()", "[]"))
    text = re.sub(r"(?i)\b(nan|none|null)\b", "NaN", text)
    text = re.sub(r"\+(?=[\d.])", "", re.sub(r"(?<=\d)\.(?!\d)", ".0", text))  # JSON wants digits
    if text[:1] != "[":
        if "," in text:  # 3,14 is a number to some
            return cell
        text = "[" + re.sub(r"\s*[;\s]\s*", ",", text) + "]"
    text = re.sub(r"(?<=[^\s,;\[])(\s*;\s*|\s+)(?=[^\s,;\]])", ",", text)
    try:
        return np.asarray(json.loads(text), dtype=np.float64)
    except ValueError:
        return cell


def add_property(atoms: Atoms, name: str, value: Any) -> None:
    """Add a property to ``info``, and to ``arrays`` if it has a row of numbers for each atom.

    Args:
        atoms: the structure, which changes.
        name: name of the property.
        value: numbers in any nesting, text, or anything else.
    """
    atoms.info[name] = value
    if isinstance(value, (list, tuple, np.ndarray)) and len(value) == len(atoms):
        try:
            rows = value if isinstance(value, np.ndarray) else np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError):  # texts, or rows of unequal length
            return
        if name not in atoms.arrays and rows.size:
            atoms.arrays[name] = rows


def is_number(cell: str) -> bool:
    """Check whether a cell holds a number (NaN is one)."""
    return isinstance(value_of(cell), float)
