"""Write the store from chunks: each host its part, then one index that ties them.

Shapes: W windows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.config.data import CardConfig
from hydragnn_hpo.data.build.convert import read_chunk
from hydragnn_hpo.data.build.merge import Layout, kept
from hydragnn_hpo.data.build.quarantine import QUARANTINE, write_quarantine
from hydragnn_hpo.data.columns import offsets, ragged_rows
from hydragnn_hpo.data.statistics import SizeTally
from hydragnn_hpo.data.store.arrays import Arrays, columns_from
from hydragnn_hpo.data.store.index import Column
from hydragnn_hpo.data.store.parts import write_part
from hydragnn_hpo.data.store.write import columns_in, write_index


@dataclass(frozen=True, eq=False)
class Share:
    """What one host has written."""

    entry: dict[str, Any]
    """Of its part, for the index."""
    windows: NDArray[np.int64]
    """Its rows of ``windows.npy``."""
    columns: tuple[Column, ...]
    tally: SizeTally


def shares_of(layout: Layout, hosts: int) -> list[range]:
    """Cut the windows into runs of about equal sizes; none is empty.

    Args:
        layout: of the store.
        hosts: most runs.
    """
    ends = np.cumsum(layout.sizes[:, 1:3].sum(axis=1))
    wanted = ends[-1] * np.arange(1, hosts) / hosts
    inner = np.searchsorted(ends, wanted, side="right")
    cuts = np.unique([0, *inner, len(ends)])
    return [range(first, last) for first, last in zip(cuts, cuts[1:], strict=False)]


def write_share(
    folder: Path, number: int, layout: Layout, windows: range, *, work: Path, card: CardConfig
) -> Share:
    """Write some windows as one part, one window in memory at a time.

    Args:
        folder: of the store that is being written.
        number: of the part.
        layout: of the store.
        windows: which to write.
        work: folder of the chunks.
        card: of the data set.

    Raises:
        StorageError: the disk is full, or a chunk was altered.
    """
    tally = SizeTally(card.graphs.cutoff)
    levels = {name: target.level for name, target in card.targets.items()}
    first, _ = _window(layout, windows[0], work, levels)
    columns = columns_in(first, levels)

    def arrays() -> Iterator[Arrays]:
        for window in windows:
            found, degrees = _window(layout, window, work, levels)
            tally.add(columns_from(found, layout.stats), degrees)
            yield found

    sizes = layout.sizes[windows.start : windows.stop]
    entry, table = write_part(folder, number, arrays(), columns, sizes)
    return Share(entry, table, columns, tally)


def tie(folder: Path, layout: Layout, shares: Sequence[Share], card: CardConfig) -> dict[str, Any]:
    """Write all that stands beside the parts; gives the statistics of the store."""
    tally = SizeTally(card.graphs.cutoff)
    for share in shares:
        tally.merge(share.tally)
    if layout.bad:
        write_quarantine(folder / QUARANTINE, layout.bad)
    stats = {**layout.stats, **tally.result()}
    table = np.vstack([share.windows for share in shares])
    entries = [share.entry for share in shares]
    return write_index(folder, shares[0].columns, entries, table, stats, card)


def _window(
    layout: Layout, number: int, work: Path, levels: Mapping[str, str]
) -> tuple[Arrays, NDArray[np.int32]]:
    """Give the arrays of a window with splits and groups, and the degrees of its nodes."""
    window = layout.windows[number]
    found = read_chunk(work / window.chunk)
    degrees: NDArray[np.int32] = found["at.degrees"]
    arrays = {name: array for name, array in found.items() if not name.startswith("at.")}
    if not window.whole:
        degrees = degrees[ragged_rows(offsets(arrays["num_nodes"]), window.rows)[0]]
        arrays = kept(arrays, window.rows, levels)
    start = int(layout.sizes[:number, 0].sum())
    rows = slice(start, start + int(layout.sizes[number, 0]))
    arrays["split"], arrays["group"] = layout.split[rows], layout.group[rows]
    return arrays, degrees
