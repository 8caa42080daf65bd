"""What one epoch of a trial goes through, whatever the machine: from dimensions and statistics.

Shapes: G graphs, N nodes, E edges, T triplets.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hydragnn_hpo.config import (
    TrialConfig,
    angle_cutoff,
    compute_epoch_size,
    count_parameters,
    differentiates,
    forward_flops,
    kept_bytes,
    kept_factor,
    pass_bytes,
)

Stats = Mapping[str, Any]

BACKWARD = 3.0
"""A training step costs about three forward passes."""

DERIVATIVES = 3.3
"""Training on forces over a step on energies alone: 2.4 to 4.9 was measured, 3.3 in the median."""

RECOMPUTED = 1.5
"""A step with ``recompute`` over one without: 1.4 to 1.9 was measured."""

TOUCHED = 8.0
"""How often a number that is kept passes through the memory, with its gradient and what is made
of both and forgotten; by this definition of a machine's ``bytes_per_second``."""

ARITHMETIC = {"fp64": 2.0, "bf16": 0.5}
"""Time of matrix products over that in fp32."""


@dataclass(frozen=True)
class EpochSizes:
    """How much an epoch goes through."""

    graphs: int
    nodes: float
    edges: float
    triplets: float
    """Pairs of edges that meet at a node; 0 for convs that see no angles."""
    steps: int
    validated: float
    """Graphs that are validated, over graphs that are trained on."""


@dataclass(frozen=True)
class Workload:
    """What an epoch costs in operations, bytes and steps, on all ranks together."""

    config: TrialConfig
    sizes: EpochSizes
    spread: float
    """Standard deviation of the graphs' costs over their mean."""
    largest: float
    """Cost of the largest graph over the mean."""
    flops: float
    """Operations of matrix products, training and validation, counted as those of fp32."""
    moved: float
    """Bytes that pass through the memories."""
    steps: float
    """Steps, counted by what they cost beside arithmetic: pieces and derivatives are more."""
    parameters: int
    graph_bytes: float
    """What the mean graph takes in a forward and backward pass, on a GPU."""

    @property
    def graphs_per_step(self) -> float:
        """Mean number of graphs in a step."""
        return self.sizes.graphs / self.sizes.steps


def epoch_workload(config: TrialConfig, stats: Stats) -> Workload:
    """Count what an epoch of a trial costs.

    Args:
        config: the trial.
        stats: what ``stats.json`` of its data says, or ``unite_stats`` of several.
    """
    model, targets, sizes = config.model, stats.get("targets", {}), epoch_sizes(config, stats)
    amounts = (sizes.nodes, sizes.edges, sizes.triplets)
    passes = relative_epoch_cost(config, sizes, targets)
    spread, largest = graph_cost_spread(stats)
    each = pass_bytes(config, targets)
    taken = math.fsum(part * amount for part, amount in zip(each, amounts, strict=False))
    taken += each.square * sizes.nodes**2 / sizes.graphs
    arithmetic = ARITHMETIC.get(config.training.precision, 1.0)
    return Workload(
        config=config,
        sizes=sizes,
        spread=spread,
        largest=largest,
        flops=forward_flops(model, *amounts) * BACKWARD * passes * arithmetic,
        moved=kept_bytes(model, *amounts) * TOUCHED * passes * kept_factor(config, {}),
        steps=sizes.steps * passes * (config.training.micro_batches or 1),
        parameters=count_parameters(model, config.heads, targets) if targets else 0,
        graph_bytes=taken / sizes.graphs,
    )


def epoch_sizes(config: TrialConfig, stats: Stats) -> EpochSizes:
    """Count graphs, nodes, edges, triplets and steps of an epoch."""
    model = config.model
    size = compute_epoch_size(stats, config.training, [entry.ratio for entry in config.data])
    most = model.max_neighbors or math.inf
    edges = size.nodes * min(mean_neighbors(stats, model.cutoff), most)
    angle = angle_cutoff(model)
    triplets = 0.0 if angle is None else size.nodes * mean_triplets(stats, angle, most)
    validated = stats["splits"].get("val", 0) / size.graphs
    return EpochSizes(size.graphs, size.nodes, edges, triplets, size.steps, validated)


def mean_neighbors(stats: Stats, cutoff: float) -> float:
    """Estimate the mean number of neighbours of a node within a cutoff in angstrom.

    Between cutoffs that were counted it grows with the volume. ``config.data_config.mean_degree``,
    which takes the upper one alone, is off by a quarter for molecules; but nets were built with it.
    """
    known = [(0.0, 0.0), *sorted((float(r), float(d)) for r, d in stats["degree"].items())]
    for (near, few), (far, many) in pairwise(known):
        if cutoff <= far:
            return few + (many - few) * (cutoff**3 - near**3) / (far**3 - near**3)
    return known[-1][1]


def mean_triplets(stats: Stats, cutoff: float, most: float = math.inf) -> float:
    """Estimate the pairs of edges that meet at a node within a cutoff in angstrom.

    By the histogram of neighbours at the nearest cutoff that has one: few crowded nodes have most
    of the pairs. Without a histogram all nodes are taken to be alike.
    """
    mean = min(mean_neighbors(stats, cutoff), most)
    histograms: Mapping[str, Any] = stats.get("degrees") or {}
    if not histograms:
        return mean * max(mean - 1.0, 0.0)
    nearest = min(histograms, key=lambda radius: abs(float(radius) - cutoff))
    counts: Sequence[int] = histograms[nearest]["all"]
    nodes, edges = sum(counts), sum(d * n for d, n in enumerate(counts))
    if not edges:
        return 0.0
    pairs = sum(d * (d - 1) * n for d, n in enumerate(counts))
    return float(pairs / nodes * (mean * nodes / edges) ** 2)


def relative_epoch_cost(config: TrialConfig, sizes: EpochSizes, targets: Stats) -> float:
    """Return how much longer an epoch takes than its plain training steps alone."""
    times = RECOMPUTED if config.parallel.recompute else 1.0
    times *= DERIVATIVES if differentiates(config.heads, targets) else 1.0
    return times * (1.0 + sizes.validated / BACKWARD)


def graph_cost_spread(stats: Stats) -> tuple[float, float]:
    """Return the spread of the graphs' costs and the cost of the largest, both over the mean.

    Edges stand for costs, from their histogram; where there is none, sizes are taken to be spread
    evenly between the smallest and the largest graph.
    """
    sizes = stats.get("edges") or stats.get("nodes") or {}
    mean, largest = float(sizes.get("mean", 0.0)), float(sizes.get("max", 0.0))
    smallest = float(sizes.get("min", largest))
    if not mean:
        return 0.0, 1.0
    bins = (stats.get("histograms") or {}).get("edges" if stats.get("edges") else "nodes")
    if bins and sum(bins["counts"]):
        middles = [(a + b) / 2 for a, b in zip(bins["edges"], bins["edges"][1:], strict=False)]
        square = sum(n * (m - mean) ** 2 for m, n in zip(middles, bins["counts"], strict=True))
        return math.sqrt(square / sum(bins["counts"])) / mean, largest / mean
    return (largest - smallest) / math.sqrt(12.0) / mean, largest / mean
