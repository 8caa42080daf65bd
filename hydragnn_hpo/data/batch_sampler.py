"""Choose the graphs of every step of every epoch, and share them among ranks (Laws 1 and 5).

Which graphs are in a step depends on the seed, the epoch and the data alone: never on how many
ranks there are, or on where the graphs lie. Which rank holds which depends on their cost alone.

Shapes: G graphs.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hydragnn_hpo.config import (
    ModelConfig,
    TrainConfig,
    angle_cutoff,
    budget_steps,
    count_draws,
    forward_flops,
)
from hydragnn_hpo.data.columns import GraphSet

Rows = NDArray[np.int64]


def shuffle_rows(
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
class BatchSampler:
    """The steps of every epoch."""

    sets: tuple[Rows, ...]
    """Training rows of each data set, ascending."""
    draws: tuple[int, ...] | None
    """Graphs drawn from each set per epoch; every graph once if left out."""
    seed: int
    """Of the trial."""
    steps_per_epoch: int
    """The same in every epoch."""
    global_batch: int | None
    """Graphs of a step; None where there is a budget."""
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
            ConfigError: a budget is too small for the largest graph, or a ratio for an epoch.
            DataError: a data set has no training graphs.
        """
        train = graphs.indices_of("train")
        sets = tuple(np.split(train, np.searchsorted(train, np.array(ends[:-1], dtype=np.int64))))
        drawn, sizes = count_draws([len(rows) for rows in sets], ratios, training), None
        if training.global_batch is not None:
            steps = math.ceil((sum(drawn) if drawn else len(train)) / training.global_batch)
        else:
            kind = training.budget[0]
            sizes = graphs.num_nodes() if kind == "nodes" else graphs.num_edges()
            total, largest = int(sizes[train].sum()), int(sizes.max(initial=1))
            steps = budget_steps(training, total=total, largest=largest)
        batch, buffer = training.global_batch, training.shuffle_buffer
        return cls(sets, drawn, seed, steps, batch, sizes, graphs.windows, buffer)

    @property
    def graphs_per_step(self) -> float:
        """Graphs of a full step; where there is a budget, of a step in the mean."""
        if self.global_batch is not None:
            return float(self.global_batch)
        return sum(map(len, self.sets)) / self.steps_per_epoch

    def steps(self, epoch: int) -> list[Rows]:
        """Return the graphs of every step of an epoch, counted from 0."""
        rows = self._rows(epoch)
        if self.sizes is not None:
            cuts = cut_epoch(self.sizes[rows], self.steps_per_epoch)
        else:
            assert self.global_batch is not None
            cuts = np.arange(self.global_batch, len(rows), self.global_batch)
        return [self._by_set(step) for step in np.split(rows, cuts)]

    def _by_set(self, step: Rows) -> Rows:
        """Sort the graphs of a step by data set: they are read together."""
        if len(self.sets) == 1:
            return step
        owner = np.searchsorted([rows[0] for rows in self.sets], step, side="right")
        return step[np.argsort(owner, kind="stable")]

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
        """Return draws ``first`` to ``last`` of a set: one shuffled pass goes on where one ends."""
        rows = self.sets[number]
        passes = range(first // len(rows), (last - 1) // len(rows) + 1)
        drawn = np.concatenate([self._pass(rows, (self.seed, p, number + 1)) for p in passes])
        return drawn[first - passes.start * len(rows) :][: last - first]

    def _pass(self, rows: Rows, seed: Sequence[int]) -> Rows:
        return shuffle_rows(rows, seed, windows=self.windows, buffer=self.buffer)


def cut_epoch(sizes: Rows, steps: int) -> Rows:
    """Cut an epoch into steps of about equal size, none of them empty.

    A step holds the graphs that begin in its share of the whole, so it is larger than that by
    less than one graph. Where a share has no beginning, it takes a neighbour's graph instead.

    Args:
        sizes: of the graphs in their order, [G].
        steps: at most G.

    Returns:
        Where steps 1, 2, ... begin, [steps - 1].
    """
    before, total = np.cumsum(sizes) - sizes, int(sizes.sum())
    step = np.arange(1, steps)
    share, rest = divmod(total, steps)
    begins = np.searchsorted(before, step * share - (-step * rest // steps))
    begins = np.maximum.accumulate(np.maximum(begins, 1) - step) + step
    return np.minimum(begins, len(sizes) - steps + step)


def predict_graph_costs(graphs: GraphSet, model: ModelConfig) -> NDArray[np.float64]:
    """Predict what each graph costs, [G], by the conv's own count of operations.

    It is linear in nodes and edges, and in triplets for convs that see angles. Moving an edge's
    numbers costs as much as some arithmetic on them, whatever the conv: ``MOVED`` operations
    per feature.
    """
    moved = MOVED * model.layers * model.features
    once = forward_flops(model, 0.0, 0.0)  # of a step, whatever is in it
    per_node = forward_flops(model, 1.0, 0.0) - once + moved
    per_edge = forward_flops(model, 0.0, 1.0) - once + moved
    nodes, edges = graphs.num_nodes(), graphs.num_edges()
    cost: NDArray[np.float64] = per_node * nodes + per_edge * edges
    angle = angle_cutoff(model)
    if angle is not None:
        reach = min(angle / float(graphs.stats.get("cutoff", angle)), 1.0)
        degree = edges / np.maximum(nodes, 1) * reach**3
        triplets = nodes * degree * np.maximum(degree - 1.0, 0.0)
        cost += (forward_flops(model, 0.0, 0.0, 1.0) - once + moved) * triplets
    return cost


MOVED = 64.0
"""Operations that a CPU does in the time it takes to gather and scatter one number."""


def balance_load(costs: ArrayLike, world: int) -> list[NDArray[np.int64]]:
    """Share the graphs of a step among ranks so that the costs balance.

    The costliest graph goes first, each to the rank with the least so far; the first rank
    wins a tie. Shares may be empty.

    Args:
        costs: cost of each graph of the step, [G].
        world: number of ranks.

    Returns:
        For each rank its positions in the step, ascending.

    Source: Graham (1969), SIAM J. Appl. Math. 17, 416: longest processing time first.
    """
    weights = np.asarray(costs, dtype=np.float64)
    ranks = [(0.0, rank) for rank in range(world)]
    owned: list[list[int]] = [[] for _ in range(world)]
    for position in np.argsort(-weights, kind="stable").tolist():
        load, rank = ranks[0]
        owned[rank].append(position)
        heapq.heapreplace(ranks, (load + weights[position], rank))
    return [np.array(sorted(mine), dtype=np.int64) for mine in owned]
