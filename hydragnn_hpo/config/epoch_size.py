"""How large an epoch is, from a data set's statistics: what prices a trial and orders its graphs.

Read by ``placement.workload``, ``campaign.setup`` and ``data.batch_sampler``, which must agree.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from hydragnn_hpo.config.training_config import TrainConfig
from hydragnn_hpo.errors import ConfigError, DataError

Stats = Mapping[str, Any]


@dataclass(frozen=True)
class EpochSize:
    """What one epoch goes through."""

    graphs: int
    """Graphs, those seen twice counted twice."""
    nodes: float
    """Their nodes."""
    steps: int
    """Optimizer steps."""

    @property
    def graphs_per_step(self) -> int:
        """Mean number of graphs in a step."""
        return max(1, round(self.graphs / self.steps))


def mean_degree(stats: Stats, cutoff: float) -> float:
    """Return the mean number of neighbours at a cutoff in angstrom, interpolated as its cube."""
    known = sorted((float(r), float(d)) for r, d in stats["degree"].items())
    above = next(((r, d) for r, d in known if r >= cutoff - 1e-9), known[-1])
    return above[1] * min(1.0, cutoff / above[0]) ** 3


def count_draws(
    counts: Sequence[int], ratios: Sequence[float | None], training: TrainConfig
) -> tuple[int, ...] | None:
    """Return how many graphs of each data set an epoch draws; None: every graph once.

    The largest set is seen once, or the epoch has ``steps_per_epoch`` full steps.

    Args:
        counts: training graphs of each set.
        ratios: of the sets; all or none.
        training: batches and steps.

    Raises:
        ConfigError: a set's share of an epoch is no graph.
        DataError: a set has no training graphs.
    """
    if 0 in counts:
        raise DataError(
            f"data set {list(counts).index(0) + 1} has no structure in its training split: drop "
            "it, or raise the share of train in its card."
        )
    steps = training.steps_per_epoch
    if steps is None and ratios[0] is None:
        return None
    weights = [Fraction(r) for r in ratios if r is not None] or [Fraction(n) for n in counts]
    if steps is None:
        largest = counts.index(max(counts))
        once = counts[largest] / weights[largest]
        return tuple(max(1, round(weight * once)) for weight in weights)
    found = _apportion(steps * (training.global_batch or 1), weights)
    if 0 in found:
        raise ConfigError(
            f"training.steps_per_epoch is {steps}: data set {found.index(0) + 1} would have no "
            "graph in them by its ratio: raise one of the two."
        )
    return found


def _apportion(total: int, weights: Sequence[Fraction]) -> tuple[int, ...]:
    """Share a number out by weights; the largest remainders go up."""
    exact = [total * weight / sum(weights) for weight in weights]
    whole = [math.floor(count) for count in exact]
    by_rest = sorted(range(len(exact)), key=lambda n: whole[n] - exact[n])
    for number in by_rest[: total - sum(whole)]:
        whole[number] += 1
    return tuple(whole)


def compute_epoch_size(
    stats: Stats, training: TrainConfig, ratios: Sequence[float | None]
) -> EpochSize:
    """Return the size of an epoch of a trial.

    Raises:
        ConfigError: a budget is too small for the largest graph, or a ratio for an epoch.
        DataError: a set has no training graphs.
    """
    sets = stats.get("sets") or [{**stats, "train": stats["splits"]["train"]}]
    counts = [int(one["train"]) for one in sets]
    drawn = count_draws(counts, ratios, training) or counts
    parts = zip(sets, counts, drawn, strict=True)
    nodes = sum(one["train_nodes"] * seen / count for one, count, seen in parts)
    if training.global_batch is not None:
        steps = math.ceil(sum(drawn) / training.global_batch)
    else:
        kind = training.budget[0]
        total, largest = stats[f"train_{kind}"], stats[kind]["max"]
        steps = budget_steps(training, total=int(total), largest=int(largest))
    return EpochSize(sum(drawn), nodes, steps)


def budget_steps(training: TrainConfig, *, total: int, largest: int) -> int:
    """Return the number of steps in which no step passes its budget, however graphs are ordered.

    Args:
        training: names the budget.
        total: nodes or edges of an epoch.
        largest: those of the largest graph of the data.

    Raises:
        ConfigError: the budget does not hold the largest graph twice.
    """
    (kind, budget), word = training.budget, {"nodes": "atoms", "edges": "edges"}
    if budget < 2 * largest:
        raise ConfigError(
            f"training.batch_{word[kind]} is {budget}, the largest graph has {largest} "
            f"{word[kind]}: set at least {2 * largest}, or use global_batch."
        )
    return max(1, math.ceil(Fraction(total, max(1, budget - largest))))
