"""Several data sets as one ``GraphSet``.

Shapes: G graphs, N nodes, of all sets together.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.config import count_components, unite_stats
from hydragnn_hpo.config.data_config import MixedConfig
from hydragnn_hpo.data.columns import (
    Columns,
    GraphSet,
    join_columns,
    rows_of_split,
    take_without_edges,
)
from hydragnn_hpo.data.normalize import refit_target_stats
from hydragnn_hpo.file_records import StoreStats, TargetStats


def unite(
    sets: Sequence[GraphSet], entries: Sequence[MixedConfig], shared: Sequence[str] = ()
) -> GraphSet:
    """Return one or several data sets as one.

    Args:
        sets: the data sets, in the order of their rows.
        entries: ratio and prefix of each set.
        shared: names of targets that several sets have and that mean the same quantity.

    Raises:
        ConfigError: targets of one name are not declared as shared, or differ.
    """
    if len(sets) == 1 and not entries[0].prefix:
        return sets[0]
    return Mixture(sets, entries, shared)


def close(graphs: GraphSet) -> None:
    """Close the files and shared memory of graphs; collective for a distributed store."""
    for part in graphs.sets if isinstance(graphs, Mixture) else (graphs,):
        if not isinstance(part, Columns) and hasattr(part, "close"):
            part.close()


class Mixture:
    """Data sets end to end; a ``GraphSet``. A target that a set lacks is masked there.

    It has the attributes that all sets have, and positional encodings where all sets have the
    same number. Edges reach as far as each set's own cutoff; a batch cuts them at the model's.
    """

    def __init__(
        self, sets: Sequence[GraphSet], entries: Sequence[MixedConfig], shared: Sequence[str] = ()
    ) -> None:
        """Unite the statistics of the sets; graphs are not copied.

        Args:
            sets: the data sets, in the order of their rows.
            entries: ratio and prefix of each set.
            shared: names of targets that several sets have and that mean the same quantity.

        Raises:
            ConfigError: targets of one name are not declared as shared, or differ.
        """
        self.sets = tuple(sets)
        self.prefixes = tuple(entry.prefix for entry in entries)
        self.stats = unite_stats([graphs.stats for graphs in sets], entries, shared)
        widest = max(graphs.stats["cutoff"] for graphs in sets)
        # ``take`` does not cut edges, so its columns have the widest cutoff.
        self._taken_stats: StoreStats = {**self.stats, "cutoff": widest}
        targets = self.stats["targets"]
        self.levels: dict[str, str] = {name: t["level"] for name, t in targets.items()}
        self.ends = np.cumsum([graphs.num_graphs for graphs in sets])
        self.starts = self.ends - [graphs.num_graphs for graphs in sets]
        self.split = np.concatenate([graphs.split for graphs in sets])
        sizes = [int(graphs.group.max(initial=-1)) + 1 for graphs in sets]
        # Groups of different sets stay different, even where sets use the same numbers.
        self.first_group = np.cumsum(sizes) - sizes
        groups = [g.group + first for g, first in zip(sets, self.first_group, strict=True)]
        self.group: NDArray[np.int32] = np.concatenate(groups).astype(np.int32)
        empty = [graphs.take(np.zeros(0, dtype=np.int64)) for graphs in sets]
        widths = {None if c.laplacian is None else c.laplacian.shape[1] for c in empty}
        self._has_laplacian = len(widths) == 1 and None not in widths
        self._attributes = sorted(set.intersection(*(set(c.attributes) for c in empty)))
        for name in shared:
            targets[name] = self._refit(name)

    @cached_property
    def windows(self) -> NDArray[np.int64]:
        """First graph of each window, and the end."""
        first = [
            start + (np.array([0]) if graphs.windows is None else graphs.windows[:-1])
            for start, graphs in zip(self.starts, self.sets, strict=True)
        ]
        return np.concatenate([*first, [self.num_graphs]]).astype(np.int64)

    @property
    def num_graphs(self) -> int:
        """Number of graphs, G."""
        return int(self.ends[-1])

    def indices_of(self, split: str) -> NDArray[np.int64]:
        """Return the rows of a split, ascending."""
        return rows_of_split(self.split, split)

    def num_nodes(self) -> NDArray[np.int64]:
        """Nodes of each graph, [G]."""
        return np.concatenate([graphs.num_nodes() for graphs in self.sets])

    def num_edges(self) -> NDArray[np.int64]:
        """Edges of each graph, [G]."""
        return np.concatenate([graphs.num_edges() for graphs in self.sets])

    def known(self, name: str) -> NDArray[np.int64]:
        """Count the rows of a target that each graph has, [G]; 0 in sets without the target."""
        counts = []
        for graphs, prefix in zip(self.sets, self.prefixes, strict=True):
            own = _own_name(name, prefix, graphs)
            none = np.zeros(graphs.num_graphs, dtype=np.int64)
            counts.append(none if own is None else graphs.known(own))
        return np.concatenate(counts)

    def take(self, rows: NDArray[np.int64]) -> Columns:
        """Copy some graphs into memory, in the order of ``rows``."""
        rows = np.asarray(rows, dtype=np.int64).reshape(-1)
        owner = np.searchsorted(self.ends, rows, side="right")
        parts = [
            self._rename_targets(
                self.sets[number].take(rows[owner == number] - self.starts[number]), number
            )
            for number in np.unique(owner).tolist() or [0]
        ]
        joined = self._join(parts)
        if np.all(owner[1:] >= owner[:-1]):
            return joined
        # Joined graphs are sorted by set; ``place`` is the position of each row among them.
        place = np.empty(len(rows), dtype=np.int64)
        place[np.argsort(owner, kind="stable")] = np.arange(len(rows))
        return joined.take(place)

    def _rename_targets(self, columns: Columns, number: int) -> Columns:
        """Return the columns of a set with all targets of the mixture, those it lacks masked."""
        targets, masks = {}, {}
        for name, level in self.levels.items():
            own = _own_name(name, self.prefixes[number], columns)
            count = columns.num_graphs if level == "graph" else len(columns.numbers)
            width = count_components(self.stats["targets"][name])
            targets[name] = np.full((count, width), np.nan) if own is None else columns.targets[own]
            masks[name] = np.zeros(count, dtype=bool) if own is None else columns.masks[own]
        group = (columns.group + self.first_group[number]).astype(np.int32)
        return replace(columns, targets=targets, masks=masks, levels=self.levels, group=group)

    def _join(self, parts: Sequence[Columns]) -> Columns:
        return join_columns(
            parts,
            attributes=self._attributes,
            laplacian=self._has_laplacian,
            stats=self._taken_stats,
        )

    def _refit(self, name: str) -> TargetStats:
        """Compute the statistics of a shared target over the train splits of all sets."""
        light = self._join(take_without_edges(self, self.indices_of("train")))
        return refit_target_stats(light, name, self.stats["targets"][name])


def _own_name(name: str, prefix: str, graphs: GraphSet) -> str | None:
    """Return the name of a target in its own set; None where the set lacks it."""
    own = name.removeprefix(prefix) if name.startswith(prefix) else None
    return own if own in graphs.levels else None
