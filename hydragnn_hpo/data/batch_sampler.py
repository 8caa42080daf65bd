"""Choose the graphs of every step of every epoch, and divide them among ranks.

The graphs of a step depend only on seed, epoch and data, not on the number of ranks or on where
graphs are stored (Laws 1 and 5). The rank of each graph depends only on the costs in the step.

Shapes: G graphs, W windows.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hydragnn_hpo.config import ModelConfig, TrainConfig, angle_cutoff, budget_steps, forward_flops
from hydragnn_hpo.config.trial_size import count_draws
from hydragnn_hpo.data.columns import GraphSet

Rows = NDArray[np.int64]
"""Row numbers of graphs, or integer counts or sizes."""


def shuffle_rows(
    rows: Rows, seed: Sequence[int], *, windows: Rows | None = None, buffer: int = 65536
) -> Rows:
    """Shuffle some rows, by windows where there are many of them.

    More rows than ``buffer`` are shuffled in two steps: first the order of their windows, then
    each ``buffer`` rows in that order. A reader that keeps few windows in memory then reads each
    about once.

    Args:
        rows: rows to shuffle, ascending.
        seed: integers that seed the generator, such as seed and epoch.
        windows: first row of each window, and the end, [W + 1]; None means one window.
        buffer: number of rows that are shuffled together.

    Returns:
        The same rows in another order.
    """
    random = np.random.default_rng(list(seed))
    if windows is None or len(rows) <= buffer:
        return random.permutation(rows)
    ends = np.searchsorted(rows, windows)
    pieces = [rows[ends[w] : ends[w + 1]] for w in random.permutation(len(windows) - 1)]
    by_window = np.concatenate(pieces)
    firsts = range(0, len(by_window), buffer)
    return np.concatenate([random.permutation(by_window[i : i + buffer]) for i in firsts])


def choose_share(rows: Rows, group: ArrayLike, share: float, seed: int) -> Rows:
    """Choose whole groups in random order until they hold a share of the rows.

    A smaller share of the same rows and seed is part of a larger one.

    Args:
        rows: rows to choose from, ascending.
        group: group of each row, [R].
        share: part of the rows to choose, above 0; the last group may exceed it.
        seed: of the order of the groups.

    Returns:
        The chosen rows, ascending, at least one group.
    """
    _, place, sizes = np.unique(group, return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(sizes))
    before = np.cumsum(sizes[order]) - sizes[order]
    chosen = np.zeros(len(sizes), dtype=bool)
    chosen[order[before < share * len(rows)]] = True
    return rows[chosen[place]]


@dataclass(frozen=True, eq=False)
class BatchSampler:
    """Choice of the training graphs of every step of every epoch."""

    sets: tuple[Rows, ...]
    """Training rows of each data set, or the share of them to learn from, ascending."""
    draws: tuple[int, ...] | None
    """Number of graphs drawn from each set per epoch; None means every graph once."""
    seed: int
    """Seed of the trial."""
    steps_per_epoch: int
    """Number of steps, the same in every epoch."""
    global_batch: int | None
    """Number of graphs of a step, over all ranks; None where steps have a budget."""
    sizes: Rows | None = None
    """Atoms or edges of each graph, [G]; None where steps have no budget."""
    windows: Rows | None = None
    """First graph of each window, and the end, [W + 1]; None means one window."""
    buffer: int = 65536
    """Number of graphs that are shuffled together."""

    @classmethod
    def of(
        cls,
        graphs: GraphSet,
        training: TrainConfig,
        seed: int,
        ratios: Sequence[float | None] = (None,),
        ends: Sequence[int] = (),
    ) -> Self:
        """Make the sampler of a training run.

        Args:
            graphs: one data set, or several as one.
            training: batch size or budget, and shuffling.
            seed: seed of the trial.
            ratios: relative share of each data set in an epoch; numbers for all sets, or None for
                all.
            ends: one after the last row of each data set in ``graphs``, [sets]; may be empty for a
                single set.

        Raises:
            ConfigError: a budget is too small for the largest graph, or a ratio draws no graph.
            DataError: a data set has no training graphs.
        """
        train = graphs.indices_of("train")
        sets = tuple(np.split(train, np.searchsorted(train, np.array(ends[:-1], dtype=np.int64))))
        counts = [len(rows) for rows in sets]
        draws = count_draws(counts, ratios, training)
        sizes = None
        if training.global_batch is not None:
            steps = math.ceil((sum(draws) if draws else len(train)) / training.global_batch)
        else:
            kind = training.budget[0]
            sizes = graphs.num_nodes() if kind == "nodes" else graphs.num_edges()
            total = int(sizes[train].sum())
            largest = int(sizes.max(initial=1))
            steps = budget_steps(training, total=total, largest=largest)
        batch, buffer = training.global_batch, training.shuffle_buffer
        if training.train_share is not None:  # as many draws and steps as from all graphs
            draws, own = draws or tuple(counts), training.share_seed
            share = training.train_share
            order = seed if own is None else own
            sets = tuple(choose_share(rows, graphs.group[rows], share, order) for rows in sets)
        return cls(sets, draws, seed, steps, batch, sizes, graphs.windows, buffer)

    @property
    def graphs_per_step(self) -> float:
        """Number of graphs of a full step; where steps have a budget, the mean over steps."""
        if self.global_batch is not None:
            return float(self.global_batch)
        return sum(self.draws or map(len, self.sets)) / self.steps_per_epoch

    def steps(self, epoch: int) -> list[Rows]:
        """Return the rows of each step of an epoch; epochs are counted from 0."""
        rows = self._rows(epoch)
        if self.sizes is not None:
            cuts = cut_epoch(self.sizes[rows], self.steps_per_epoch)
        else:
            assert self.global_batch is not None
            cuts = np.arange(self.global_batch, len(rows), self.global_batch)
        return [self._by_set(step) for step in np.split(rows, cuts)]

    def _by_set(self, step: Rows) -> Rows:
        """Sort the graphs of a step by data set, so that those of one set are read together."""
        if len(self.sets) == 1:
            return step
        owner = np.searchsorted([rows[0] for rows in self.sets], step, side="right")
        return step[np.argsort(owner, kind="stable")]

    def _rows(self, epoch: int) -> Rows:
        """Return the rows of an epoch in their order."""
        if self.draws is None:
            return self._shuffle(np.concatenate(self.sets), (self.seed, epoch))
        parts = [
            self._draw(number, epoch * count, (epoch + 1) * count)
            for number, count in enumerate(self.draws)
        ]
        # Each set is spread evenly over the epoch, so that every step has the sets in their ratio.
        places = np.concatenate([(np.arange(len(part)) + 0.5) / len(part) for part in parts])
        return np.concatenate(parts)[np.argsort(places, kind="stable")]

    def _draw(self, number: int, first: int, last: int) -> Rows:
        """Return draws ``first`` to ``last`` (not included) of a set, counted over all epochs.

        The draws are repeated passes over the set, each pass in another order.
        """
        rows = self.sets[number]
        passes = range(first // len(rows), (last - 1) // len(rows) + 1)
        draws = np.concatenate([self._shuffle(rows, (self.seed, p, number + 1)) for p in passes])
        return draws[first - passes.start * len(rows) :][: last - first]

    def _shuffle(self, rows: Rows, seed: Sequence[int]) -> Rows:
        return shuffle_rows(rows, seed, windows=self.windows, buffer=self.buffer)


def cut_epoch(sizes: Rows, steps: int) -> Rows:
    """Cut an epoch into steps of about equal size, none of them empty.

    Graphs are laid end to end by size, and the total is cut into one equal share per step. A step
    holds the graphs that begin in its share, so it exceeds the share by less than one graph. Where
    no graph begins in a share, its step takes one from a neighbouring step.

    Args:
        sizes: atoms or edges of the graphs, in their order, [G].
        steps: number of steps, at most G.

    Returns:
        First graph of each step but the first, [steps - 1].
    """
    before = np.cumsum(sizes) - sizes
    total = int(sizes.sum())
    step = np.arange(1, steps)
    share, rest = divmod(total, steps)
    # In whole numbers: step * total / steps, rounded up.
    begins = np.searchsorted(before, step * share - (-step * rest // steps))
    # At least one graph for each step before, then at least one for each step after.
    begins = np.maximum.accumulate(np.maximum(begins, 1) - step) + step
    return np.minimum(begins, len(sizes) - steps + step)


def predict_graph_costs(graphs: GraphSet, model: ModelConfig) -> NDArray[np.float64]:
    """Predict the operations that each graph takes in a forward pass, [G].

    The cost is linear in nodes and edges, and in triplets for convs that use angles, by the conv's
    own formula. Moving the features of a node or an edge through memory adds ``MOVED`` operations
    per feature and layer.

    Args:
        graphs: all graphs.
        model: the model.
    """
    moved = MOVED * max(model.layers, 1) * model.features
    once = forward_flops(model, 0.0, 0.0)  # constant per step, for any graphs
    per_node = forward_flops(model, 1.0, 0.0) - once + moved
    per_edge = forward_flops(model, 0.0, 1.0) - once + moved
    nodes = graphs.num_nodes()
    edges = graphs.num_edges()
    cost: NDArray[np.float64] = per_node * nodes + per_edge * edges
    angle = angle_cutoff(model)
    if angle is not None:
        reach = min(angle / float(graphs.stats.get("cutoff", angle)), 1.0)
        degree = edges / np.maximum(nodes, 1) * reach**3
        triplets = nodes * degree * np.maximum(degree - 1.0, 0.0)
        cost += (forward_flops(model, 0.0, 0.0, 1.0) - once + moved) * triplets
    return cost


MOVED = 64.0
"""Operations that a CPU performs in the time it takes to gather and scatter one number."""


def balance_load(costs: ArrayLike, world: int) -> list[NDArray[np.int64]]:
    """Divide the graphs of a step among ranks so that their costs balance.

    Graphs are assigned one by one, the costliest first, to the rank with the smallest total cost so
    far; ties go to the lowest rank.

    Args:
        costs: cost of each graph of the step, in any unit, [G].
        world: number of ranks.

    Returns:
        For each rank the positions of its graphs in the step, ascending; may be empty.

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
