"""Folds of all structures but the test split, for nets that are scored on what they did not see.

Shapes: G graphs.
"""

import copy
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.config import SPLITS, TrainConfig
from hydragnn_hpo.data.columns import (
    Columns,
    GraphSet,
    join_columns,
    take_without_edges,
    without_edges,
)
from hydragnn_hpo.data.label_sharing import SparseLabels, share_labels
from hydragnn_hpo.data.normalize import refit_target_stats
from hydragnn_hpo.data.splits import TEST, deal_groups, group_rows
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.file_records import StoreStats

NONE = -1
"""Fold of a graph of the test split, or outside of all splits."""

_TRAIN = SPLITS.index("train")
_VAL = SPLITS.index("val")


def deal_folds(graphs: GraphSet, folds: int, seed: int) -> NDArray[np.int8]:
    """Assign every graph outside the test split to a fold, whole groups together.

    Args:
        graphs: the graphs, with their splits and groups.
        folds: number of folds.
        seed: seed of the shuffle of the groups.

    Returns:
        Fold of each graph, from 0, or ``NONE``, [G]; the folds hold about the same number of
        graphs, and each of them at least one group and, where enough groups have some, labels of
        each target.

    Raises:
        DataError: there are fewer groups than folds.
    """
    free = np.flatnonzero((graphs.split >= 0) & (graphs.split != TEST))
    rows = group_rows(graphs.group[free])
    if len(rows) < folds:
        raise DataError(
            f"{graphs.stats['name']}: has {len(rows)} groups of structures outside the test split "
            f"for {folds} folds; lower ensemble.folds."
        )
    result = np.full(graphs.num_graphs, NONE, dtype=np.int8)
    dealt = deal_groups(rows, np.full(folds, 1.0 / folds), seed, len(free))
    labels = [SparseLabels(graphs.known(name)[free] > 0) for name in graphs.levels]
    result[free] = share_labels(dealt, rows, [one for one in labels if not one.rows.all()])
    return result


def leave_fold_out(graphs: GraphSet, training: TrainConfig) -> GraphSet:
    """Return graphs whose train split are all folds but one, and whose val split is that fold.

    The splits ``sel`` and ``cal`` are empty, and ``test`` is as before. The statistics of targets
    are those of the new train split, so that nothing of the fold is known.

    Args:
        graphs: the graphs, opened for this training alone.
        training: which fold, of how many; without a fold the graphs are returned unchanged.

    Raises:
        DataError: there are fewer groups than folds, or a target has no value outside the fold.
    """
    if training.fold is None:
        return graphs
    fold = deal_folds(graphs, training.folds, training.fold_seed)
    split = np.where(fold == NONE, graphs.split, _TRAIN).astype(np.int8)
    split[fold == training.fold] = _VAL
    counts = np.bincount(split[split >= 0], minlength=len(SPLITS)).tolist()
    light = _read_targets(graphs, split)
    stats: StoreStats = {
        **graphs.stats,
        "splits": dict(zip(SPLITS, counts, strict=True)),
        "targets": {
            name: refit_target_stats(light, name, target)
            for name, target in graphs.stats["targets"].items()
        },
    }
    if isinstance(graphs, Columns):
        return replace(graphs, split=split, stats=stats)
    changed = copy.copy(graphs)  # files and memory stay shared with the original
    vars(changed).update(split=split, stats=stats)
    return changed


def _read_targets(graphs: GraphSet, split: NDArray[np.int8]) -> Columns:
    """Return elements and targets of graphs, without edges, under another assignment to splits."""
    if isinstance(graphs, Columns):
        return replace(without_edges(graphs), split=split)
    train = np.flatnonzero(split == _TRAIN)
    parts = take_without_edges(graphs, train)
    light = join_columns(parts, attributes=(), laplacian=False, stats=graphs.stats)
    return replace(light, split=np.zeros(len(train), dtype=np.int8))
