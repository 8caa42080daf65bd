"""Write a graph store whole or not at all."""

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.config.data import CardConfig
from hydragnn_hpo.config.loading import dump
from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.store.arrays import Arrays, arrays_of, per_of, sizes_of
from hydragnn_hpo.data.store.index import VERSION, Column, checksum_of, columns_to_json
from hydragnn_hpo.data.store.parts import write_part
from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.files import storage, whole_folder, write_bytes, write_json, write_text

WINDOW = 1024
"""Graphs of a window, unless the card's files end before."""


def write_store(
    path: Path, parts: Sequence[Columns], stats: dict[str, Any], card: CardConfig
) -> dict[str, Any]:
    """Write a store from columns in memory, one part per entry; gives its statistics.

    Raises:
        StorageError: the disk is full or ``path`` is something else; nothing is left behind.
    """
    refuse_stranger(path)
    columns = columns_in(arrays_of(parts[0]), parts[0].levels)
    with whole_folder(path) as folder:
        entries, tables = [], []
        for number, part in enumerate(parts):
            sizes = np.array([sizes_of(window) for window in _windows(part)])
            entry, table = write_part(folder, number, _windows(part), columns, sizes)
            entries.append(entry)
            tables.append(table)
        return write_index(folder, columns, entries, np.vstack(tables), stats, card)


def columns_in(arrays: Arrays, levels: Mapping[str, str]) -> tuple[Column, ...]:
    """Describe the columns of a store by the arrays of one window."""
    return tuple(
        Column(name, array.dtype, array.shape[1:], per_of(name, levels))
        for name, array in arrays.items()
    )


def write_index(
    folder: Path,
    columns: Sequence[Column],
    entries: Sequence[dict[str, Any]],
    windows: NDArray[np.int64],
    stats: dict[str, Any],
    card: CardConfig,
) -> dict[str, Any]:
    """Tie the parts in a folder together; gives the statistics with the store's checksum.

    Args:
        folder: of the store that is being written, its parts inside.
        columns: all columns.
        entries: of the parts, as ``write_part`` gives them.
        windows: the table of all windows, as ``write_part`` gives it.
        stats: of the data set.
        card: the card it was built from.
    """
    known = {**stats, "checksum": checksum_of(windows, stats)}
    write_bytes(folder / "windows.npy", _npy(windows))
    index = {
        "version": VERSION,
        "checksum": known["checksum"],
        "windows_sha256": hashlib.sha256(windows.tobytes()).hexdigest(),
        "columns": columns_to_json(columns),
        "parts": list(entries),
    }
    write_json(folder / "stats.json", known)
    write_text(folder / "card.toml", dump(card))
    write_json(folder / "index.json", index)
    return known


def _npy(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _windows(columns: Columns) -> Iterator[Arrays]:
    """Cut columns into windows."""
    for first in range(0, columns.num_graphs, WINDOW):
        rows = np.arange(first, min(first + WINDOW, columns.num_graphs))
        yield arrays_of(columns.take(rows))


def refuse_stranger(path: Path) -> None:
    """Refuse to replace what is not a store: renaming over it would remove it."""
    with storage(path):
        ours = path.is_dir() and ((path / "index.json").is_file() or not any(path.iterdir()))
        if path.exists() and not ours:
            raise StorageError(f"{path}: exists and is not a graph store; choose another place.")
