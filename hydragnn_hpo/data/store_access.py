"""Open a store the best way there is: staged, in windows, or distributed over hosts."""

import logging
from pathlib import Path

from hydragnn_hpo.config import Access
from hydragnn_hpo.data.columns import Columns, GraphSet
from hydragnn_hpo.data.mapped_store import (
    UnusablePlace,
    list_places,
    make_stage,
    map_stage,
    open_stage_folder,
)
from hydragnn_hpo.data.store_index import Index, read_checked_stats, read_index
from hydragnn_hpo.errors import StorageError

logger = logging.getLogger(__name__)


def open_store(
    path: Path,
    scratch: Path | None = None,
    access: Access = "auto",
    shuffled: int | None = None,
) -> GraphSet:
    """Return the graphs of a store; the first caller on a host stages it for all.

    Args:
        path: the store, ``NAME.bp``.
        scratch: where to stage; the places that ``HYDRAGNN_HPO_SCRATCH`` lists, else the
            system's temporary folder, if left out.
        access: how. ``auto`` stages a store once per host, and reads it in windows where there
            is no room; ``distributed`` is collective over all ranks of MPI.
        shuffled: training graphs that are shuffled at once; a warning says so where windows
            are kept for fewer.

    Raises:
        DataError: the store is damaged.
        StorageError: a scratch folder is not ours, or ``stage`` was asked for and has no room.
    """
    if access == "distributed":
        from hydragnn_hpo.data.distributed_store import DistributedStore

        return DistributedStore(path)
    index = read_index(path)
    read_checked_stats(index)  # Whatever is wrong with it shall be said before anything is staged.
    if access == "windows":
        return _open_windows(index, shuffled)
    staged, reasons = _map_staged(index, scratch)
    if staged is not None:
        return staged
    if access == "stage":
        raise StorageError(f"{path}: cannot be staged: {' '.join(reasons)}")
    graphs = _open_windows(index, shuffled)
    logger.warning("%s: is read in windows, which is slower: %s", path, " ".join(reasons))
    return graphs


def _open_windows(index: Index, shuffled: int | None) -> GraphSet:
    from hydragnn_hpo.data.window_cache import MEMORY, WindowCache

    graphs = WindowCache(index)
    if shuffled is not None and (needed := graphs.memory_for(shuffled)) > graphs.memory:
        logger.warning(
            "%s: %d bytes of windows are kept, shuffling takes %d, so windows will be read many "
            "times: set %s, or lower training.shuffle_buffer.",
            index.folder, graphs.memory, needed, MEMORY,
        )  # fmt: skip
    return graphs


def _map_staged(index: Index, scratch: Path | None) -> tuple[Columns | None, list[str]]:
    """Return the staged columns, or why no place would do."""
    stages, reasons = [], []
    for place in list_places(scratch):
        try:
            stages.append(open_stage_folder(place))
        except UnusablePlace as error:
            reasons.append(str(error))
    for stage in stages:
        if (columns := map_stage(stage / index.checksum, index)) is not None:
            return columns, []
    for stage in stages:
        try:
            return make_stage(stage / index.checksum, index), []
        except StorageError as error:
            reasons.append(str(error))
    return None, reasons
