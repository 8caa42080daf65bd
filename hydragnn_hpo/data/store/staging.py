"""Open a store the best way there is: staged, in windows, or spread over hosts.

The way decides how fast graphs come and where they lie, never what a batch holds.
"""

import logging
from pathlib import Path

from hydragnn_hpo.config.trial import Access
from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.graph_set import GraphSet
from hydragnn_hpo.data.store.index import Index, read_index, stats_of
from hydragnn_hpo.data.store.scratch import Unusable, places, stage_folder
from hydragnn_hpo.data.store.stage import adopt, make
from hydragnn_hpo.errors import StorageError

logger = logging.getLogger(__name__)


def open_store(
    path: Path,
    scratch: Path | None = None,
    access: Access = "auto",
    shuffled: int | None = None,
) -> GraphSet:
    """Give the graphs of a store; the first caller on a host stages it for all.

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
        from hydragnn_hpo.data.store.distributed import Distributed

        return Distributed(path)
    index = read_index(path)
    stats_of(index)  # Whatever is wrong with it shall be said before anything is staged.
    if access == "windows":
        return _windows(index, shuffled)
    staged, reasons = _staged(index, scratch)
    if staged is not None:
        return staged
    if access == "stage":
        raise StorageError(f"{path}: cannot be staged: {' '.join(reasons)}")
    graphs = _windows(index, shuffled)
    logger.warning("%s: is read in windows, which is slower: %s", path, " ".join(reasons))
    return graphs


def _windows(index: Index, shuffled: int | None) -> GraphSet:
    from hydragnn_hpo.data.store.windows import MEMORY, Windows

    graphs = Windows(index)
    if shuffled is not None and (needed := graphs.memory_for(shuffled)) > graphs.memory:
        logger.warning(
            "%s: %d bytes of windows are kept, shuffling takes %d, so windows will be read many "
            "times: set %s, or lower training.shuffle_buffer.",
            index.folder, graphs.memory, needed, MEMORY,
        )  # fmt: skip
    return graphs


def _staged(index: Index, scratch: Path | None) -> tuple[Columns | None, list[str]]:
    """Give the staged columns, or why no place would do."""
    stages, reasons = [], []
    for place in places(scratch):
        try:
            stages.append(stage_folder(place))
        except Unusable as error:
            reasons.append(str(error))
    for stage in stages:
        if (columns := adopt(stage / index.checksum, index)) is not None:
            return columns, []
    for stage in stages:
        try:
            return make(stage / index.checksum, index), []
        except StorageError as error:
            reasons.append(str(error))
    return None, reasons
