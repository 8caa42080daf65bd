"""How files that nobody has described are read: reader, columns with structures, names of keys."""

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydragnn_hpo.data.readers import READERS, reader_of
from hydragnn_hpo.data.readers.database import holds_lmdb
from hydragnn_hpo.data.readers.folder import TABLE as ID_PROP
from hydragnn_hpo.data.readers.hydragnn_bp import is_hydragnn_bp
from hydragnn_hpo.data.readers.smiles import NAMES
from hydragnn_hpo.data.readers.source import (
    OPENERS,
    Reader,
    Source,
    is_number,
    read_rows,
    read_text,
)
from hydragnn_hpo.data.readers.table import KNOWN, glance
from hydragnn_hpo.data.readers.text_folder import holds_cfg
from hydragnn_hpo.errors import ConfigError, DataError

MOST_FILES = 1000
"""Files of a folder that a card names one by one."""

PACKING = 4
"""How much longer a compressed text is than its file, about."""

ROWS = 20
"""Rows of a table by which its columns are known."""

_NOT_STRUCTURES = (".md", ".py", ".pdf", ".png", ".jpg", ".toml", ".yaml", ".yml", ".log", ".sh")

_SMILES_NAMES = (*NAMES, "smile", "mol", "molecule")

_SMILES = re.compile(r"[A-Za-z0-9@+\-\[\]()=#$/\\.%:*]+", re.ASCII)


@dataclass(frozen=True)
class Opened:
    """One file, and how it is read."""

    path: Path
    reader: Reader
    name: str
    """The reader's name in ``READERS``."""
    said: str | None = None
    """The name, where the card must say it."""
    column: str | None = None
    """The column with the structures, where the card must say it."""
    keys: tuple[str, ...] = ()
    """Names that we give to columns that have none, in their order."""
    found: bool = False
    """Whether it was found in a folder; nobody named it."""

    @property
    def source(self) -> Source:
        """What the reader is given."""
        return Source(self.path, self.keys, self.column)


Stray = tuple[Path, str]
"""A file of a folder that holds no structure, and why it is believed to hold none."""


def opened(paths: Sequence[Path]) -> tuple[tuple[Opened, ...], tuple[Stray, ...]]:
    """Find out how files and folders are read; a folder of plain files becomes its files.

    Returns:
        The files, and those of folders that cannot hold structures.

    Raises:
        ConfigError: a path is one of our stores, or a folder of too many files.
        DataError: it is missing, empty, or a table without structures.
    """
    files: list[Opened] = []
    strays: list[Stray] = []
    for given in paths:
        for path in _files(given):
            try:
                files.append(replace(_opened(path), found=path != given))
            except DataError as error:
                if path == given:
                    raise
                strays.append((path, str(error)))
    if not files:
        raise DataError(strays[0][1])
    return tuple(files), tuple(strays)


def _files(path: Path) -> Iterator[Path]:
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; correct the path.")
    if not (path.is_file() or path.is_dir()):
        raise DataError(f"{path}: is neither a file nor a folder; save the data as a file first.")
    if path.is_file() or _is_one(path):
        yield path
        return
    if (path / "index.json").is_file():
        raise ConfigError(f"{path}: is a store of ours already; name the card it was built from.")
    files = sorted(entry for entry in path.rglob("*") if _may_hold(entry, path))
    if not files:
        raise DataError(f"{path}: holds no structure files; correct the path.")
    if len(files) > MOST_FILES:
        raise ConfigError(
            f"{path}: holds {len(files):,} files, a card names at most {MOST_FILES:,}: put their "
            f"names and properties into {path / ID_PROP}, or write them into one extxyz file."
        )
    yield from files


def _is_one(folder: Path) -> bool:
    """Tell whether a reader takes the folder as a whole."""
    table = (folder / ID_PROP).is_file()
    return table or is_hydragnn_bp(folder) or holds_lmdb(folder) or holds_cfg(folder)


def _may_hold(entry: Path, root: Path) -> bool:
    if not entry.is_file() or entry.suffix.lower() in _NOT_STRUCTURES:
        return False
    inside = entry.relative_to(root).parts
    return not any(p.startswith(".") for p in inside) and "readme" not in entry.name.lower()


def _opened(path: Path) -> Opened:
    reader = reader_of(Source(path), None)
    name = next(key for key, value in READERS.items() if value is reader)
    if name == "folder":
        return Opened(path, reader, name, keys=_unnamed(path / ID_PROP))
    if name == "cfg":
        return Opened(path, reader, name, keys=_bulk(path))
    if name == "table" or ".csv" in [suffix.lower() for suffix in path.suffixes[-2:]]:
        return _table(path)
    return Opened(path, reader, name)


def _unnamed(table: Path) -> tuple[str, ...]:
    """Name the columns of a table of properties that has no header."""
    if not table.is_file():
        return ()
    first = read_rows(table)[0]
    count = len(first) - 1
    if count < 1:
        raise DataError(f"{table}: its lines hold a name and no property; add a column.")
    if not any(is_number(cell) for cell in first[1:]):
        return ()
    return _numbered(count)


def _numbered(count: int) -> tuple[str, ...]:
    return ("property",) if count == 1 else tuple(f"property_{n}" for n in range(1, count + 1))


def _bulk(folder: Path) -> tuple[str, ...]:
    """Name the numbers that stand beside CFG files."""
    beside = min(folder.glob("*.bulk"), default=None)
    return () if beside is None else _numbered(len(read_text(beside).split("\n")[0].split()))


def _table(path: Path) -> Opened:
    """Find the column with the structures."""
    header, rows = glance(Source(path), ROWS)
    table, smiles = READERS["table"], READERS["smiles"]
    is_json = ".json" in [suffix.lower() for suffix in path.suffixes[-2:]]
    if is_json and sum(name in header for name in KNOWN) == 1:
        return Opened(path, table, "table")
    for number, name in enumerate(header):
        cells = [row[number] for row in rows if _has(row, number)]
        if cells and all(_is_structure(cell, path) for cell in cells):
            return Opened(path, table, "table", column=name)
    for number, name in enumerate(header):
        cells = [row[number] for row in rows if _has(row, number)]
        if not is_json and cells and _are_smiles(name, cells):
            named = None if name.lower() == "smiles" else name
            return Opened(path, smiles, "smiles", said="smiles", column=named)
    hint = next((s for s in ";\t|" if len(header) == 1 and s in header[0]), None)
    raise DataError(
        f"{path}: no column holds structures (CIF texts, names of files beside the table, SMILES); "
        f"columns: {plain(', '.join(header))[:200]}"
        + (f"; separate them by commas, not by {hint!r}." if hint else ".")
    )


def _has(row: Any, number: int) -> bool:
    return isinstance(row, Sequence) and not isinstance(row, str) and len(row) > number


def _is_structure(cell: Any, path: Path) -> bool:
    """Tell whether a cell is a dictionary of a structure, a CIF text, or a file beside."""
    if isinstance(cell, Mapping):
        return bool({"lattice", "sites", "lattice_mat", "elements"} & set(cell))
    if not isinstance(cell, str) or is_number(cell):
        return False
    if "\n" in cell:
        return "_cell_length" in cell or "data_" in cell
    beside = path.parent / cell if 0 < len(cell) < 256 else None
    return beside is not None and beside.is_file() and beside != path


def _are_smiles(name: str, cells: Sequence[Any]) -> bool:
    """Tell whether a column holds SMILES, by its name or by what RDKit makes of it."""
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
    return all(Chem.MolFromSmiles(text) is not None for text in texts)


def count_of(one: Opened, most_bytes: int = 256_000_000) -> int | None:
    """Count the structures of a file where that takes seconds at most."""
    path = one.path
    size = path.stat().st_size if path.is_file() else 0
    packed = path.suffix.lower() in OPENERS
    if one.name == "extxyz" and size * (PACKING if packed else 1) > most_bytes:
        return None
    return one.reader.count(one.source)


def guessed_count(one: Opened, frames: int = 200) -> int | None:
    """Guess the structures of a long extxyz file by the length of the first ones."""
    if one.name != "extxyz":
        return None
    packed = OPENERS.get(one.path.suffix.lower())
    size = one.path.stat().st_size * (PACKING if packed else 1)
    read = seen = 0
    with (packed or open)(one.path, "rt", encoding="utf-8") as file:
        for head in file:
            if seen == frames or not head.strip().isdigit():
                break
            lines = itertools.islice(file, int(head) + 1)
            read, seen = read + len(head) + sum(map(len, lines)), seen + 1
    return round(size * seen / read) if read else None


def plain(value: Any) -> str:
    """Give any text as one quoted line, for sentences and comments."""
    return json.dumps(str(value), ensure_ascii=True)[1:-1]
