"""Share out the labels of targets that few structures have, so that each split has some.

Shapes: G graphs, L graphs with a label of a target.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.config import SPLITS
from hydragnn_hpo.data.columns import Columns, contain_others
from hydragnn_hpo.file_records import TargetStats

TRAIN = SPLITS.index("train")


@dataclass(frozen=True, eq=False)
class SparseLabels:
    """Where a target that some structures lack has labels."""

    rows: NDArray[np.bool_]
    """Whether each structure has a label, [G]."""
    elements: NDArray[np.bool_] | None = None
    """Elements that the labels of each structure with one are about, by atomic number, [L, 119];
    None where it does not matter which elements have labels in train."""
    whole: bool = True
    """Whether a label counts only where train knows all of its elements, and not just one."""

    def of_rows(self, rows: NDArray[np.int64]) -> "SparseLabels":
        """Return the labels of some structures."""
        elements = None if self.elements is None else self.elements_of(rows)
        return SparseLabels(self.rows[rows], elements, self.whole)

    def elements_of(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return the elements of those of some structures that have a label, [labelled, 119]."""
        assert self.elements is not None, "the elements do not matter"
        elements: NDArray[np.bool_] = self.elements[self._place[rows[self.rows[rows]]]]
        return elements

    @cached_property
    def _place(self) -> NDArray[np.int64]:
        """Row of each structure in ``elements``, if it has a label, [G]."""
        return np.cumsum(self.rows) - 1


def find_sparse_labels(columns: Columns) -> list[SparseLabels]:
    """Return the labels of the targets that some structures lack, for ``share_labels``."""
    graph = np.repeat(np.arange(columns.num_graphs), columns.num_nodes())
    sparse = []
    for name in columns.masks:
        rows = columns.known(name) > 0
        if rows.all() or np.count_nonzero(rows) > MANY:
            continue
        atoms = _labelled_atoms(columns, name)
        place = np.cumsum(rows) - 1
        elements = np.zeros((np.count_nonzero(rows), 119), dtype=bool)
        elements[place[graph[atoms]], columns.numbers[atoms]] = True
        sparse.append(SparseLabels(rows, elements, columns.levels[name] == "graph"))
    return sparse


def share_labels(
    split: NDArray[np.int8],
    rows: Sequence[NDArray[np.int64]],
    labels: Sequence[SparseLabels],
) -> NDArray[np.int8]:
    """Exchange groups until each split has labels of each target, if enough groups have them.

    A split that lacks a target gets a group with labels, and gives one of a similar size in return,
    if no other split then lacks a target. Nothing changes where each split has labels already.

    Args:
        split: split of each row, each of which has a group, [G].
        rows: rows of each group.
        labels: of the targets that some rows lack.

    Returns:
        Split of each row, [G].
    """
    if not labels:
        return split
    sharing = _Sharing(split, rows, labels)
    for target, holders in enumerate(sharing.holders):
        for _ in range(2 * len(holders) if len(holders) >= len(sharing.splits) else 0):
            if not (sharing.fill(target) or sharing.teach(target)):
                break
    result = split.copy()
    for own, place in zip(rows, sharing.place.tolist(), strict=True):
        result[own] = place
    return result


MANY = 100_000
"""Structures with labels of a target from which chance alone gives each split some."""

MOST_TRIED = 30
"""Groups with labels, and groups in return, that are tried for one exchange."""


class _Sharing:
    """Groups that are exchanged between splits, so that each has labels of each sparse target."""

    def __init__(
        self,
        split: NDArray[np.int8],
        rows: Sequence[NDArray[np.int64]],
        labels: Sequence[SparseLabels],
    ) -> None:
        self.place = np.array([split[own[0]] for own in rows], dtype=np.int8)
        """Split of each group."""
        self.splits: list[int] = np.unique(self.place).tolist()
        self.holders = [np.flatnonzero([one.rows[own].any() for own in rows]) for one in labels]
        """Groups with labels of each target."""
        self._sizes = np.array([len(own) for own in rows])
        self._whole = [one.whole for one in labels]
        self._elements = [
            None
            if one.elements is None
            else np.array([one.elements_of(rows[int(group)]).any(axis=0) for group in holders])
            for one, holders in zip(labels, self.holders, strict=True)
        ]

    def _learned(self, target: int) -> NDArray[np.bool_]:
        """Return the elements whose labels train has, [119]."""
        elements = self._elements[target]
        assert elements is not None
        learned: NDArray[np.bool_] = elements[self.place[self.holders[target]] == TRAIN].any(axis=0)
        return learned

    def _lacking(self) -> set[tuple[int, int]]:
        """Return each target, with a split in which no group has labels that count."""
        lacking = set()
        for target, holders in enumerate(self.holders):
            if (elements := self._elements[target]) is not None:
                known = elements & self._learned(target)
                whole = (known == elements).all(axis=1)
                holders = holders[whole if self._whole[target] else known.any(axis=1)]
            have = set(self.place[holders].tolist())
            lacking |= {(target, split) for split in self.splits if split not in have}
        return lacking

    def fill(self, target: int) -> bool:
        """Bring labels of a target into a split that lacks them; return whether one was found."""
        before = self._lacking()
        for place in sorted(split for one, split in before if one == target):
            for group in self.holders[target][:MOST_TRIED].tolist():
                if self._exchange(group, place, before, better=True):
                    return True
        return False

    def teach(self, target: int) -> bool:
        """Bring labels of new elements into train; return whether some were found."""
        before = self._lacking()
        elements = self._elements[target]
        if elements is None or not any(one == target for one, _ in before):
            return False
        new = (elements & ~self._learned(target)).sum(axis=1)
        order = np.argsort(-new, kind="stable")[: min(MOST_TRIED, np.count_nonzero(new))]
        groups = self.holders[target][order].tolist()
        return any(self._exchange(group, TRAIN, before, better=False) for group in groups)

    def _exchange(
        self, group: int, place: int, before: set[tuple[int, int]], *, better: bool
    ) -> bool:
        """Move a group to a split, and one of it back, unless some split then lacks more.

        Args:
            group: number of the group.
            place: the split.
            before: what ``_lacking`` returns now.
            better: whether some split has to lack less.

        Returns:
            Whether it was moved.
        """
        source = self.place[group]
        there = np.flatnonzero(self.place == place)
        if source == place:
            return False
        gap = np.abs(self._sizes[there] - self._sizes[group])
        alone = [None] if np.count_nonzero(self.place == source) > 1 else []
        for other in [*there[np.argsort(gap, kind="stable")[:MOST_TRIED]].tolist(), *alone]:
            self.place[group] = place
            if other is not None:
                self.place[other] = source
            after = self._lacking()
            if after < before or (after == before and not better):
                return True
            self.place[group] = source
            if other is not None:
                self.place[other] = place
        return False


def mark_unlabelled(columns: Columns, targets: Mapping[str, TargetStats]) -> dict[str, TargetStats]:
    """Add to each target the splits on which no prediction of it can be judged, if there are any.

    A label counts where its element, or all elements of its structure, have labels in the train
    split; a derivative has those of its energy, too.

    Args:
        columns: graphs of all splits; positions and edges may be missing.
        targets: their statistics by name.

    Returns:
        Statistics by name.
    """
    split_of = {"graph": columns.split, "node": np.repeat(columns.split, columns.num_nodes())}
    learned = {
        name: set(
            columns.numbers[_labelled_atoms(columns, name) & (split_of["node"] == 0)].tolist()
        )
        for name in targets
    }
    marked = {}
    for name, target in targets.items():
        elements = learned[name] | learned.get(target["derived_from"] or "", set())
        others = contain_others(columns, elements, node=target["level"] == "node")
        splits = split_of[target["level"]][columns.masks[name] & ~others]
        every = split_of[target["level"]][columns.masks[name]]
        marked[name] = target
        if lacking := _name_absent(splits):
            marked[name] = {**target, "unlabelled": lacking, "empty": _name_absent(every)}
        if unseen := _find_unseen(columns.targets[name][columns.masks[name]], every, target):
            marked[name] = {**marked[name], "unseen": unseen}
    return marked


def _find_unseen(
    values: NDArray[np.float64], splits: NDArray[np.int8], target: TargetStats
) -> dict[str, list[str]]:
    """Find the classes that splits with labels do not have.

    Args:
        values: labels of a target, [R, w]; of classes 1 for the class and 0 for others.
        splits: split of each label, [R].
        target: its statistics.

    Returns:
        Names of the classes by split; empty for other targets.
    """
    classes = list(target.get("classes") or ())
    unseen = dict[str, list[str]]()
    for place, split in enumerate(SPLITS if classes else ()):
        here = values[splits == place]
        absent = [name for name, some in zip(classes, here.any(axis=0), strict=True) if not some]
        if len(here) and absent:
            unseen[split] = absent
    return unseen


def _name_absent(splits: NDArray[np.int8]) -> list[str]:
    """Return the names of the splits that none of some rows are in."""
    return [split for place, split in enumerate(SPLITS) if not (splits == place).any()]


def _labelled_atoms(columns: Columns, name: str) -> NDArray[np.bool_]:
    """Mark the atoms that have a label of a target, or are in a structure that has one, [N]."""
    mask = columns.masks[name]
    return mask if columns.levels[name] == "node" else np.repeat(mask, columns.num_nodes())
