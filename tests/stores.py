"""Write stores from columns in memory, and read whole ones back, over the pieces a build uses."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn_hpo.config.data_config import CardConfig
from hydragnn_hpo.data.columns import (
    Columns,
    arrays_of,
    columns_from,
    compute_translations,
    count_rows,
)
from hydragnn_hpo.data.store_index import read_checked_stats, read_index
from hydragnn_hpo.data.store_parts import (
    WINDOW,
    WindowReader,
    describe_columns,
    write_index,
    write_part,
)
from hydragnn_hpo.files import whole_folder


def write_store(
    path: Path,
    parts: Sequence[Columns],
    stats: dict[str, Any],
    card: CardConfig,
    *,
    window: int = WINDOW,
) -> dict[str, Any]:
    """Write a store with one part per entry.

    Args:
        path: the store, ``NAME.bp``; it must not exist.
        parts: graphs of each part.
        stats: of the data set, without its checksum.
        card: of the data set.
        window: most graphs of a window.

    Returns:
        The statistics with the checksum, as in ``stats.json``.
    """
    columns = describe_columns(arrays_of(parts[0]), parts[0].levels)
    with whole_folder(path) as folder:
        entries, tables = [], []
        for number, part in enumerate(parts):
            firsts = range(0, part.num_graphs, window)
            rows = [np.arange(k, min(k + window, part.num_graphs)) for k in firsts]
            windows = [arrays_of(part.take(some)) for some in rows]
            sizes = np.array([count_rows(arrays) for arrays in windows])
            entry, table = write_part(folder, number, windows, columns, sizes)
            entries.append(entry)
            tables.append(table)
        return write_index(folder, columns, entries, np.vstack(tables), stats, card)


def read_store(path: Path) -> Columns:
    """Read all graphs of a store, part by part and window by window."""
    index = read_index(path)
    with WindowReader(index) as reader:
        arrays = reader.read(0, len(index.windows)) | {"windows": index.starts[:, 0]}
    arrays["edge_translation"] = compute_translations(arrays)
    return columns_from(arrays, read_checked_stats(index))


def alter_last_position(store: Path, columns: Columns) -> None:
    """Flip a bit in the last position of a store's second part."""
    file = store / "part-00001.bp" / "data.0"
    content = bytearray(file.read_bytes())
    content[content.index(columns.positions[-1].tobytes()) + 9] ^= 1
    file.write_bytes(content)
