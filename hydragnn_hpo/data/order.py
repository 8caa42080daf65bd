"""Which graphs are in which step of which epoch (Laws 1 and 5).

Everything here depends on the seed, the epoch and the data alone: never on how many ranks there
are, or on where the graphs lie.

Shapes: G graphs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.config.training import TrainConfig
from hydragnn_hpo.data.graph_set import GraphSet
from hydragnn_hpo.errors import ConfigError

Rows = NDArray[np.int64]

_SAFETY = 3
"""A budget holds the largest graph this many times, so that no step is empty."""


def epoch_rows(
    rows: Rows, seed: Sequence[int], *, windows: Rows | None = None, buffer: int = 65536
) -> Rows:
    """Shuffle some rows.

    More rows than ``buffer`` are shuffled in two stages: the windows they lie in, then the rows
    of as many windows as hold ``buffer`` of them. Who reads windows from disk touches few at a
    time.

    Args:
        rows: ascending.
        seed: of the generator: seed and epoch.
        windows: first row of each window, and the end.
        buffer: rows that are shuffled at once.
    """
    random = np.random.default_rng(list(seed))
    if windows is None or len(rows) <= buffer:
        return random.permutation(rows)
    ends = np.searchsorted(rows, windows)
    pieces = [rows[ends[w] : ends[w + 1]] for w in random.permutation(len(windows) - 1)]
    lined_up = np.concatenate(pieces)
    firsts = range(0, len(lined_up), buffer)
    return np.concatenate([random.permutation(lined_up[i : i + buffer]) for i in firsts])


@dataclass(frozen=True, eq=False)
class Order:
    """The steps of every epoch."""

    sets: tuple[Rows, ...]
    """Training rows of each data set, ascending."""
    draws: tuple[int, ...] | None
    """Graphs drawn from each set per epoch; every graph once if left out."""
    seed: int
    """Of the trial."""
    steps_per_epoch: int
    """The same in every epoch."""
    global_batch: int
    """Graphs of a step, where there is no budget."""
    sizes: Rows | None = None
    """Atoms or edges of each graph, where a step has a budget of them, [G]."""
    windows: Rows | None = None
    """First graph of each window, and the end."""
    buffer: int = 65536
    """Graphs that are shuffled at once."""

    @classmethod
    def of(
        cls,
        graphs: GraphSet,
        training: TrainConfig,
        seed: int,
        ratios: Sequence[float | None] = (None,),
        ends: Sequence[int] = (),
    ) -> Self:
        """Lay out the epochs of a training.

        Args:
            graphs: one data set or several as one.
            training: batches, budgets, shuffling.
            seed: of the trial.
            ratios: of the data sets; all or none.
            ends: where each data set ends in ``graphs``, [sets].

        Raises:
            ConfigError: a budget is too small for the largest graph.
        """
        train = graphs.indices_of("train")
        sets = tuple(np.split(train, np.searchsorted(train, np.array(ends[:-1], dtype=np.int64))))
        draws = _draws(sets, ratios, training)
        total = len(train) if draws is None else sum(draws)
        steps, sizes = math.ceil(total / training.global_batch), None
        if training.batch_atoms is not None or training.batch_edges is not None:
            sizes = graphs.num_nodes() if training.batch_atoms else graphs.num_edges()
            steps = _budget_steps(sizes[train], training)
        return cls(
            sets=sets,
            draws=draws,
            seed=seed,
            steps_per_epoch=steps,
            global_batch=training.global_batch,
            sizes=sizes,
            windows=graphs.windows,
            buffer=training.shuffle_buffer,
        )

    def steps(self, epoch: int) -> list[Rows]:
        """Give the graphs of every step of an epoch, counted from 0."""
        rows = self._rows(epoch)
        if self.sizes is None:
            cuts = range(self.global_batch, len(rows), self.global_batch)
            return np.split(rows, list(cuts))
        sizes = self.sizes[rows]
        before = np.cumsum(sizes) - sizes
        step = before * self.steps_per_epoch // max(int(sizes.sum()), 1)
        return np.split(rows, np.searchsorted(step, np.arange(1, self.steps_per_epoch)))

    def _rows(self, epoch: int) -> Rows:
        if self.draws is None:
            return self._pass(np.concatenate(self.sets), (self.seed, epoch))
        parts = [
            self._drawn(number, epoch * count, (epoch + 1) * count)
            for number, count in enumerate(self.draws)
        ]
        # Spread each set evenly over the epoch: every step has the sets in their ratio.
        places = np.concatenate([(np.arange(len(part)) + 0.5) / len(part) for part in parts])
        return np.concatenate(parts)[np.argsort(places, kind="stable")]

    def _drawn(self, number: int, first: int, last: int) -> Rows:
        """Give draws ``first`` to ``last`` of a set: one shuffled pass goes on where one ends."""
        rows = self.sets[number]
        passes = range(first // len(rows), (last - 1) // len(rows) + 1)
        drawn = np.concatenate([self._pass(rows, (self.seed, p, number + 1)) for p in passes])
        return drawn[first - passes.start * len(rows) :][: last - first]

    def _pass(self, rows: Rows, seed: Sequence[int]) -> Rows:
        return epoch_rows(rows, seed, windows=self.windows, buffer=self.buffer)


def _draws(
    sets: Sequence[Rows], ratios: Sequence[float | None], training: TrainConfig
) -> tuple[int, ...] | None:
    """Give the graphs drawn from each set per epoch; the largest set is seen once."""
    sizes = [len(rows) for rows in sets]
    steps = training.steps_per_epoch
    weights = [float(r) for r in ratios if r is not None] or [float(size) for size in sizes]
    if steps is None and ratios[0] is None:
        return None
    largest = sizes.index(max(sizes))
    total = sizes[largest] / weights[largest] * sum(weights)
    if steps is not None:
        total = steps * training.global_batch
    exact = [total * weight / sum(weights) for weight in weights]
    counts = [max(1, math.floor(count)) for count in exact]
    if steps is not None:  # the epoch has exactly so many: the largest remainders go up
        rest = int(total) - sum(counts)
        for number in sorted(range(len(exact)), key=lambda n: counts[n] - exact[n])[: max(rest, 0)]:
            counts[number] += 1
    return tuple(counts)


def _budget_steps(sizes: Rows, training: TrainConfig) -> int:
    """Give the number of steps in which no step can pass the budget."""
    name = "batch_atoms" if training.batch_atoms is not None else "batch_edges"
    budget, largest = int(getattr(training, name)), int(sizes.max(initial=1))
    if budget < _SAFETY * largest:
        raise ConfigError(
            f"training.{name} is {budget}, the largest training graph has {largest}: set at least "
            f"{_SAFETY * largest}."
        )
    return math.ceil(int(sizes.sum()) / (budget - largest))
