"""How large a trial is: operations and bytes of its net, graphs and steps of its epochs.

Formulas of dimensions and statistics alone: what prices a trial, balances graphs over ranks and
cuts steps into pieces must agree. A test compares them with built nets.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from hydragnn_hpo.config.convs import GraphSizes
from hydragnn_hpo.config.convs.spec import products
from hydragnn_hpo.config.model_config import HeadConfig, ModelConfig, is_by_gradient
from hydragnn_hpo.config.trial_config import TrainConfig, TrialConfig
from hydragnn_hpo.config.trunk_specs import count_features
from hydragnn_hpo.errors import ConfigError, DataError

if TYPE_CHECKING:
    from hydragnn_hpo.file_records import SetSize, StoreStats

FULL = 0.8
"""Share of the memory that a step may be expected to take."""

EDGE = 20.0
"""Numbers of geometry per edge, beside those of the layers."""

NODE = 6.0
"""Numbers of heads per node, feature and head, beside those of the layers."""

DERIVATIVES = 2.5
"""Training on forces keeps two passes: 2.0 (mace) to 3.5 (alignn) times as much was measured."""

HALF = 0.7
"""What is kept with ``bf16``: products are in 2 bytes, sums and norms in 4."""

HEAP = 1.6
"""Resident memory over that of the tensors on a CPU, where freed blocks do not fit the next
ones: 1.35 to 1.66 was measured with glibc."""

STATES = {"adamw": 2, "adam": 2, "muon": 2, "sgd": 1}
"""Most numbers that an optimizer keeps per parameter."""


def forward_flops(model: ModelConfig, nodes: float, edges: float, triplets: float = 0.0) -> float:
    """Estimate the floating point operations of one forward pass of the trunk.

    Of the attention of all nodes to all others only the linear maps are counted: the rest grows
    with the square of a graph's nodes, and is small below some hundred atoms.

    Args:
        model: the trunk.
        nodes: nodes of the pass.
        edges: edges of the pass, both directions.
        triplets: pairs of edges within the angle cutoff; 0 for convs without angles.

    Returns:
        Multiplications and additions.
    """
    sizes = GraphSizes(nodes, edges, triplets)
    options = model.conv_options
    convs = sum(model.spec.flops(each, options, sizes) for each in model.dimensions(False))
    f = model.features
    if read := count_features(model.trunk_spec, model.embedding_layers):
        convs += nodes * products(read, f, f)
    if model.attention == "none":
        return convs
    return convs + model.layers * nodes * (4 * products(f, f) + products(f, 2 * f, f))


def angle_cutoff(model: ModelConfig) -> float | None:
    """Return the longest edge that takes part in an angle, in angstrom; None without angles."""
    if model.spec.angle_cutoff is None:
        return None
    return min(model.spec.angle_cutoff(model.conv_options) or model.cutoff, model.cutoff)


def differentiates(
    heads: Mapping[str, HeadConfig], targets: Mapping[str, Mapping[str, Any]]
) -> bool:
    """Check whether forces or stress are trained by differentiating an energy."""
    return any(is_by_gradient(head, targets.get(name, {})) for name, head in heads.items())


def kept_bytes(model: ModelConfig, nodes: float, edges: float, triplets: float = 0.0) -> float:
    """Estimate the memory that the trunk's layers keep for the backward pass.

    Args:
        model: the trunk.
        nodes: nodes of the pass.
        edges: edges of the pass, both directions.
        triplets: pairs of edges within the angle cutoff; 0 for convs without angles.

    Returns:
        Bytes in fp32.
    """
    sizes = GraphSizes(nodes, edges, triplets)
    options = model.conv_options
    kept = sum(model.spec.kept(each, options, sizes) for each in model.dimensions(False))
    norms = model.layers * nodes * model.features
    return 4.0 * (kept + norms)


class PassBytes(NamedTuple):
    """What a forward and backward pass takes at its peak, in bytes on a GPU."""

    node: float
    """Per node."""
    edge: float
    """Per edge."""
    triplet: float
    """Per triplet."""
    square: float
    """Per node of a graph, times the nodes of that graph."""


def pass_bytes(config: TrialConfig, targets: Mapping[str, Any]) -> PassBytes:
    """Estimate what each part of a graph takes.

    What the layers keep, as each conv counts it, and once more that of a single layer, which is
    about what the backward pass holds while it goes through one.
    """
    model, recompute = config.model, config.parallel.recompute
    once = kept_bytes(model, 0.0, 0.0)
    per_layer = 1.0 / max(model.layers, 1)
    node, edge, triplet = (
        (kept_bytes(model, *sizes) - once) * ((per_layer if recompute else 1.0) + per_layer)
        for sizes in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    )
    node += 4.0 * NODE * len(config.heads) * model.features
    if recompute:
        node += 4.0 * (4.0 if model.spec.vectors else 1.0) * model.layers * model.features
    attended = model.attention != "none"
    square = 12.0 * model.layers * model.attention_heads if attended else 0.0
    times = kept_factor(config, targets)
    return PassBytes(times * node, times * (edge + 4.0 * EDGE), times * triplet, times * square)


def kept_factor(config: TrialConfig, targets: Mapping[str, Any]) -> float:
    """Return how much more than a plain pass in fp32 a trial keeps."""
    precision = {"fp64": 2.0, "bf16": HALF}.get(config.training.precision, 1.0)
    return precision * (DERIVATIVES if differentiates(config.heads, targets) else 1.0)


def weight_copies(training: TrainConfig, *, cpu: bool) -> int:
    """Count how many numbers are held per weight of a rank, the weight itself included.

    Gradient, optimizer, average and best weights; on a CPU also what is being written down.
    """
    lasting = 1 + STATES[training.optimizer] + bool(training.ema) + 1
    return lasting + 1 + (lasting if cpu else 0)


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


def count_draws(
    counts: Sequence[int], ratios: Sequence[float | None], training: TrainConfig
) -> tuple[int, ...] | None:
    """Return how many graphs of each data set an epoch draws.

    The largest set is seen once, or the epoch has ``steps_per_epoch`` full steps.

    Args:
        counts: training graphs of each set.
        ratios: relative share of each set; numbers for all sets, or None for all.
        training: batches and steps.

    Returns:
        Graphs of each set; None if every graph is drawn once.

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
    drawn = _apportion(steps * (training.global_batch or 1), weights)
    if 0 in drawn:
        raise ConfigError(
            f"training.steps_per_epoch is {steps}: data set {drawn.index(0) + 1} would have no "
            "graph in them by its ratio: raise one of the two."
        )
    return drawn


def _apportion(total: int, weights: Sequence[Fraction]) -> tuple[int, ...]:
    """Share a number out by weights; the largest remainders go up."""
    exact = [total * weight / sum(weights) for weight in weights]
    whole = [math.floor(count) for count in exact]
    by_rest = sorted(range(len(exact)), key=lambda n: whole[n] - exact[n])
    for number in by_rest[: total - sum(whole)]:
        whole[number] += 1
    return tuple(whole)


def compute_epoch_size(
    stats: "StoreStats", training: TrainConfig, ratios: Sequence[float | None]
) -> EpochSize:
    """Return the size of an epoch of a trial.

    Args:
        stats: statistics of the data, of several data sets as one.
        training: batches and steps.
        ratios: relative share of each data set; numbers for all sets, or None for all.

    Raises:
        ConfigError: a budget is too small for the largest graph, or a ratio for an epoch.
        DataError: a set has no training graphs.
    """
    alone: SetSize = {"train": stats["splits"]["train"], "train_nodes": stats["train_nodes"]}
    sets = stats.get("sets") or [alone]
    growth = _compute_growth(stats, training)
    counts = [round(growth * one["train"]) for one in sets]
    drawn = count_draws(counts, ratios, training) or counts
    parts = zip(sets, counts, drawn, strict=True)
    nodes = sum(growth * one["train_nodes"] * seen / count for one, count, seen in parts)
    if training.global_batch is not None:
        steps = math.ceil(sum(drawn) / training.global_batch)
    else:
        nodes_count = training.budget[0] == "nodes"
        total = growth * (stats["train_nodes"] if nodes_count else stats["train_edges"])
        largest = stats["nodes" if nodes_count else "edges"]["max"]
        steps = budget_steps(training, total=int(total), largest=int(largest))
    return EpochSize(sum(drawn), nodes, steps)


def _compute_growth(stats: "StoreStats", training: TrainConfig) -> float:
    """Return how many graphs a trial trains on for each of the train split: all but its fold."""
    if training.fold is None:
        return 1.0
    free = sum(count for split, count in stats["splits"].items() if split != "test")
    return (1.0 - 1.0 / training.folds) * free / max(stats["splits"]["train"], 1)


def budget_steps(training: TrainConfig, *, total: int, largest: int) -> int:
    """Return the number of steps in which no step passes its budget, however graphs are ordered.

    Args:
        training: names the budget.
        total: nodes or edges of an epoch.
        largest: those of the largest graph of the data.

    Raises:
        ConfigError: the budget does not hold the largest graph twice.
    """
    (kind, budget) = training.budget
    word = {"nodes": "atoms", "edges": "edges"}
    if budget < 2 * largest:
        raise ConfigError(
            f"training.batch_{word[kind]} is {budget}, the largest graph has {largest} "
            f"{word[kind]}: set at least {2 * largest}, or use global_batch."
        )
    return max(1, math.ceil(Fraction(total, max(1, budget - largest))))
