"""Estimate the cost of a trial by formula, before any measurement.

Seconds and bytes at every width follow from the dimensions of the net, the statistics of the data
and a machine profile: operations, memory traffic, load imbalance, and communication of gradients
and weights.

Shapes: G graphs, N nodes, E edges, T triplets.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import NormalDist
from typing import Literal

from hydragnn_hpo.config import (
    FULL,
    HEAP,
    ProfileConfig,
    Scalar,
    TrialConfig,
    angle_cutoff,
    compute_epoch_size,
    count_parameters,
    forward_flops,
    pass_bytes,
    weight_copies,
)
from hydragnn_hpo.config.machine import LinkConfig
from hydragnn_hpo.config.trial_size import differentiates, kept_bytes, kept_factor
from hydragnn_hpo.file_records import StoreStats, TargetStats

BACKWARD = 3.0
"""Cost of a training step, in forward passes."""

DERIVATIVES = 3.3
"""Time of a step that trains on forces over one on energies alone; measured 2.4 to 4.9, median
3.3."""

RECOMPUTED = 1.5
"""Time of a step with ``recompute`` over one without; measured 1.4 to 1.9."""

TOUCHED = 8.0
"""Memory transfers for each number kept for the backward pass, its gradient and temporary values
included. The ``bytes_per_second`` of machine profiles assumes this factor."""

ARITHMETIC = {"fp64": 2.0, "bf16": 0.5}
"""Time of matrix products over that in fp32, by precision."""


@dataclass(frozen=True)
class EpochCounts:
    """Sizes of one epoch: graphs, nodes, edges, triplets and steps."""

    graphs: int
    nodes: float
    edges: float
    triplets: float
    """Pairs of edges that meet at a node; 0 for convs without angles."""
    steps: int
    validated: float
    """Validation graphs over training graphs."""


@dataclass(frozen=True)
class Workload:
    """What an epoch costs in operations, bytes and steps, on all ranks together."""

    config: TrialConfig
    sizes: EpochCounts
    spread: float
    """Standard deviation of the graphs' costs over their mean."""
    largest: float
    """Cost of the largest graph over the mean."""
    flops: float
    """Operations of matrix products, training and validation, counted as those of fp32."""
    moved: float
    """Bytes that pass through the memories."""
    steps: float
    """Steps, weighted by their overhead: micro-batches and derivatives count as further steps."""
    parameters: int
    graph_bytes: float
    """Bytes of GPU memory that the mean graph takes in a forward and backward pass."""
    held_bytes: float = 0.0
    """Bytes of the graphs that all ranks together hold in memory, see ``data.access``."""

    @property
    def graphs_per_step(self) -> float:
        """Mean number of graphs in a step."""
        return self.sizes.graphs / self.sizes.steps


def epoch_workload(config: TrialConfig, stats: StoreStats) -> Workload:
    """Compute operations, bytes and steps of an epoch.

    Args:
        config: the trial.
        stats: content of ``stats.json`` of its data set, or ``unite_stats`` of several.
    """
    model = config.model
    targets = stats.get("targets", {})
    sizes = count_epoch(config, stats)
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
        held_bytes=count_held_bytes(config, stats),
    )


NODE_BYTES, EDGE_BYTES = 26.0, 26.0
"""Bytes in memory of a node (element and position) and of an edge (its ends, shift and
translation)."""


def count_held_bytes(config: TrialConfig, stats: StoreStats) -> float:
    """Return the bytes of the data sets whose graphs the ranks hold together; 0 without any.

    Of several data sets each counts by its share of the training nodes.
    """
    spread = [entry.access == "distributed" for entry in config.data]
    if not any(spread):
        return 0.0
    sizes = [float(one["train_nodes"]) for one in stats.get("sets", ())] or [1.0]
    held = math.fsum(size for size, here in zip(sizes, spread, strict=True) if here)
    total = NODE_BYTES * stats["nodes"]["total"] + EDGE_BYTES * stats["edges"]["total"]
    return total * held / max(math.fsum(sizes), 1.0)


def count_epoch(config: TrialConfig, stats: StoreStats) -> EpochCounts:
    """Count graphs, nodes, edges, triplets and steps of an epoch."""
    model = config.model
    size = compute_epoch_size(stats, config.training, [entry.ratio for entry in config.data])
    most = model.max_neighbors or math.inf
    edges = size.nodes * min(mean_neighbors(stats, model.cutoff), most)
    angle = angle_cutoff(model)
    triplets = 0.0 if angle is None else size.nodes * mean_triplets(stats, angle, most)
    validated = stats["splits"].get("val", 0) / size.graphs
    return EpochCounts(size.graphs, size.nodes, edges, triplets, size.steps, validated)


def mean_neighbors(stats: StoreStats, cutoff: float) -> float:
    """Estimate the mean number of neighbours of a node within a cutoff in angstrom.

    Interpolate linearly in the volume between the cutoffs at which neighbours were counted.
    ``config.data_config.mean_degree`` scales from the upper cutoff alone and is off by a quarter
    for molecules; it stays as it is because existing nets were built with it.
    """
    known = [(0.0, 0.0), *sorted((float(r), float(d)) for r, d in stats["degree"].items())]
    for (near, few), (far, many) in pairwise(known):
        if cutoff <= far:
            return few + (many - few) * (cutoff**3 - near**3) / (far**3 - near**3)
    return known[-1][1]


def mean_triplets(stats: StoreStats, cutoff: float, most: float = math.inf) -> float:
    """Estimate the mean number of pairs of edges that meet at a node.

    The estimate uses the histogram of neighbours at the nearest cutoff that has one, as a few nodes
    with many neighbours have most of the pairs. Without a histogram, all nodes count as equal.

    Args:
        stats: statistics of the data.
        cutoff: longest edge in an angle, in angstrom.
        most: maximum number of neighbours of a node.
    """
    mean = min(mean_neighbors(stats, cutoff), most)
    histograms = stats.get("degrees") or {}
    if not histograms:
        return mean * max(mean - 1.0, 0.0)
    nearest = min(histograms, key=lambda radius: abs(float(radius) - cutoff))
    counts = histograms[nearest]["all"]
    nodes = sum(counts)
    edges = sum(d * n for d, n in enumerate(counts))
    if not edges:
        return 0.0
    pairs = sum(d * (d - 1) * n for d, n in enumerate(counts))
    return float(pairs / nodes * (mean * nodes / edges) ** 2)


def relative_epoch_cost(
    config: TrialConfig, sizes: EpochCounts, targets: Mapping[str, TargetStats]
) -> float:
    """Return the cost of an epoch over that of its training steps without derivatives.

    Recomputation, derivatives and validation are included.

    Args:
        config: the trial.
        sizes: sizes of the epoch.
        targets: targets of the data, by name.
    """
    times = RECOMPUTED if config.parallel.recompute else 1.0
    times *= DERIVATIVES if differentiates(config.heads, targets) else 1.0
    return times * (1.0 + sizes.validated / BACKWARD)


def graph_cost_spread(stats: StoreStats) -> tuple[float, float]:
    """Return the spread of the graphs' costs and the cost of the largest graph, over the mean.

    The number of edges (or of nodes, if edges are not counted) stands for the cost. Without a
    histogram, sizes are assumed uniform between the smallest and the largest graph.

    Returns:
        Standard deviation over the mean, and largest over the mean; 0 and 1 if the mean is 0.
    """
    kind: Literal["edges", "nodes"] = "edges" if "edges" in stats else "nodes"
    mean, largest, smallest = (float(stats[kind][key]) for key in ("mean", "max", "min"))
    if not mean:
        return 0.0, 1.0
    bins = (stats.get("histograms") or {}).get(kind)
    if bins and sum(bins["counts"]):
        middles = [(a + b) / 2 for a, b in zip(bins["edges"], bins["edges"][1:], strict=False)]
        square = sum(n * (m - mean) ** 2 for m, n in zip(middles, bins["counts"], strict=True))
        return math.sqrt(square / sum(bins["counts"])) / mean, largest / mean
    return (largest - smallest) / math.sqrt(12.0) / mean, largest / mean


_NORMAL = NormalDist()

UNEVEN = 1.45
"""Coefficient in ``imbalance``, fitted to measured values 1.11, 1.03 and 1.008 (uniform sizes; 2, 4
and 8 graphs per rank)."""

EXPOSED = 0.4
"""Share of communication time not hidden by computation; 0.60 to 0.67 was hidden with DDP."""

EXPOSED_SHARDED = 0.7
"""Share of communication time not hidden if weights are gathered just before use; a guess."""

SPLIT = 0.7
"""Share of a net's arithmetic in the wide linear maps that ``tensor`` ranks share; a guess."""


@dataclass(frozen=True)
class RankLayout:
    """Numbers of ranks of one trial: in all, per host, per form of parallelism."""

    width: int
    """All ranks."""
    local: int
    """Ranks on one host."""
    data: int
    """Groups of ranks that process different graphs (data parallelism)."""
    tensor: int
    """Ranks of one group, which share wide linear maps (tensor parallelism)."""

    @classmethod
    def of(cls, work: Workload, profile: ProfileConfig, width: int) -> "RankLayout":
        """Lay out ``width`` ranks on as few hosts as hold them.

        Args:
            work: workload; its config says how ranks share the work.
            profile: machine profile; its ``slots_per_host`` is used.
            width: number of ranks.
        """
        tensor = work.config.parallel.tensor_ranks(width)
        local = min(width, profile.slots_per_host or width)
        return cls(width, local, width // tensor, tensor)

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return math.ceil(self.width / self.local)


def imbalance(work: Workload, ranks: int) -> float:
    """Return the largest cost of a rank in a step over the mean, with graphs balanced by cost.

    This is the largest of three terms. ``uneven``: graphs of different sizes leave an imbalance
    that falls with the square of the graphs per rank, as later graphs fill the gaps of earlier
    ones. ``alone``: the largest graph of a step may cost more than a rank's mean share. ``whole``:
    the number of graphs of similar size may not be divisible by the number of ranks.
    """
    each = work.graphs_per_step / ranks
    if ranks == 1:
        return 1.0
    second = min(max(each - 1.0, 0.0), 1.0)
    uneven = 1.0 + UNEVEN * second * (work.spread / each) ** 2
    alone = min(lognormal_imbalance(work.graphs_per_step, work.spread), work.largest) / each
    whole = 1.0 + (math.ceil(each) / each - 1.0) * math.exp(-work.spread * each)
    return max(uneven, alone, whole)


def lognormal_imbalance(count: float, spread: float) -> float:
    """Return the typical largest of ``count`` lognormal numbers, over their mean.

    Args:
        count: how many numbers.
        spread: their standard deviation over their mean.

    Source: Blom (1958), Statistical Estimates and Transformed Beta-Variables, for the largest of
    ``count`` normal numbers.
    """
    if count <= 1.0 or not spread:
        return 1.0
    deviations = _NORMAL.inv_cdf((count - 0.375) / (count + 0.25))
    variance = math.log1p(spread**2)
    return math.exp(deviations * math.sqrt(variance) - variance / 2)


def all_reduce_seconds(ranks: RankLayout, profile: ProfileConfig, size: float) -> float:
    """Return the seconds of an all-reduce of ``size`` bytes: within hosts, then between them.

    Args:
        ranks: layout of the ranks.
        profile: machine profile; bandwidths and latencies of its links are used.
        size: bytes of one rank.

    Source: Thakur, Rabenseifner, Gropp (2005), Int. J. High Perform. Comput. Appl. 19, 49: a
    reduce-scatter and an all-gather by halving and doubling.
    """
    inside = _ring_seconds(ranks.local, profile.within, size)
    return inside + _ring_seconds(ranks.hosts, profile.between, size)


def _ring_seconds(ranks: int, link: LinkConfig, size: float) -> float:
    if ranks == 1:
        return 0.0
    rounds = 2 * math.ceil(math.log2(ranks))
    return rounds * link.latency_seconds + 2 * (ranks - 1) / ranks * size / link.bytes_per_second


def exposed_communication_seconds(
    work: Workload, profile: ProfileConfig, ranks: RankLayout
) -> float:
    """Return the seconds of a step in which ranks communicate without computing.

    Gradients are all-reduced once per step. Weights that are sharded between forward and backward
    pass are gathered once more, at half the bytes of an all-reduce. Ranks that share wide maps
    all-reduce node features in every round, forward and backward.

    Args:
        work: workload of an epoch.
        profile: machine profile.
        ranks: layout of the ranks.
    """
    if ranks.width == 1:
        return 0.0
    parallel, training = work.config.parallel, work.config.training
    weights = (8.0 if training.precision == "fp64" else 4.0) * work.parameters / ranks.tensor
    gathered = 1.5 if parallel.shard in ("full", "hybrid") else 1.0
    exposed = EXPOSED_SHARDED if parallel.is_sharded(ranks.width) else EXPOSED
    shortest = all_reduce_seconds(ranks, profile, 0.0)
    seconds = shortest + exposed * (
        gathered * all_reduce_seconds(ranks, profile, weights) - shortest
    )
    if ranks.tensor > 1:
        nodes = work.sizes.nodes / work.sizes.steps / ranks.data
        features = 4.0 * nodes * work.config.model.features
        close = RankLayout(ranks.tensor, min(ranks.tensor, ranks.local), 1, ranks.tensor)
        seconds += 4 * work.config.model.layers * all_reduce_seconds(close, profile, features)
    return seconds


def tensor_parallel_share(ranks: RankLayout) -> float:
    """Return the share of its tensor-parallel group's arithmetic that each rank does, 0 to 1."""
    return 1.0 - SPLIT * (1.0 - 1.0 / ranks.tensor)


TYPICAL_FLOPS, TYPICAL_STEPS = 1e9, 100.0
"""Operations per step and steps per epoch at which the features of the correction are 0."""

COMMAND_SECONDS = 60.0
"""Assumed seconds per epoch of a command on one rank, before any measurement."""


def estimate_seconds(work: Workload, profile: ProfileConfig, width: int) -> float:
    """Estimate the seconds of one epoch on ``width`` ranks by formula.

    Ranks divide arithmetic and memory traffic, with some imbalance; the overhead of a step does not
    shrink with the width.

    Args:
        work: workload of an epoch.
        profile: machine profile.
        width: number of ranks.
    """
    ranks = RankLayout.of(work, profile, width)
    computed = work.flops / profile.flops_per_second + work.moved / profile.bytes_per_second
    shared = computed * tensor_parallel_share(ranks) * imbalance(work, ranks.data) / ranks.data
    overhead = profile.step_seconds + profile.layer_seconds * work.config.model.layers
    sent = work.sizes.steps * exposed_communication_seconds(work, profile, ranks)
    return shared + work.steps * overhead + sent


def estimate_bytes(work: Workload, profile: ProfileConfig, width: int) -> float:
    """Estimate the peak memory of a rank in bytes, as its record measures it (``peak_bytes``).

    If ``micro_batches`` is not set, steps are split until they fit or a piece is one graph.

    Args:
        work: workload of an epoch.
        profile: machine profile.
        width: number of ranks.
    """
    ranks = RankLayout.of(work, profile, width)
    cpu = profile.device == "cpu"
    heap = HEAP if cpu else 1.0
    fixed = 1e9 * profile.process_gb + state_bytes(work, ranks, cpu=cpu)
    if cpu:
        fixed += work.held_bytes / width
    share = imbalance(work, ranks.data) * work.graphs_per_step / ranks.data
    one = heap * work.graph_bytes * min(work.largest, max(share, 1.0))
    step = max(heap * work.graph_bytes * share / (work.config.training.micro_batches or 1), one)
    if work.config.training.micro_batches is None:
        step = min(step, max(FULL * profile.memory_bytes - fixed, one))
    return fixed + step


def state_bytes(work: Workload, ranks: RankLayout, *, cpu: bool) -> float:
    """Return the bytes of weights, gradients and optimizer state on one rank.

    Args:
        work: workload; parameters, precision and optimizer are used.
        ranks: layout of the ranks.
        cpu: whether ranks run on CPUs, where the copy for a checkpoint is in the same memory.
    """
    parallel, training = work.config.parallel, work.config.training
    size = 8.0 if training.precision == "fp64" else 4.0
    held = weight_copies(training, cpu=cpu)
    weights = size * work.parameters / ranks.tensor
    if not parallel.is_sharded(ranks.width):
        return weights * held
    parts = parallel.copy_ranks(ranks.width, ranks.local)
    gathers = parallel.shard not in ("none", "gradients")
    whole = 1.0 / max(work.config.model.layers, 1) if gathers else 1.0
    return weights * (held / parts + whole)


def widest_ranks(work: Workload, most: int) -> int:
    """Return the largest allowed width, a power of two of at most ``most`` ranks.

    Every rank keeps at least ``min_graphs_per_rank`` graphs of a step.
    """
    graphs = work.config.training.global_batch or max(1, round(work.graphs_per_step))
    groups = max(1, graphs // work.config.training.min_graphs_per_rank)
    limit = max(1, min(groups * work.config.parallel.tensor, most))
    return 1 << (limit.bit_length() - 1)


class Quote:
    """Cost of a training at any width by formula, and the features that its correction uses."""

    def __init__(self, work: Workload, profile: ProfileConfig, max_width: int) -> None:
        """Prepare the estimates for a machine and for widths of at most ``max_width`` ranks."""
        self.work, self.profile = work, profile
        last = widest_ranks(work, max_width).bit_length()
        self.widths = tuple(1 << power for power in range(last))
        self.features = {
            f"machine:{profile.name}": 1.0,
            f"conv:{work.config.model.conv}": 1.0,
            "flops": math.log(max(work.flops, 1.0) / work.sizes.steps / TYPICAL_FLOPS),
            "steps": math.log(work.sizes.steps / TYPICAL_STEPS),
        }
        self._seconds: dict[int, float] = {}
        self._bytes: dict[int, float] = {}

    def seconds(self, width: int) -> float:
        """Return the estimated seconds per epoch at a width."""
        if width not in self._seconds:
            self._seconds[width] = estimate_seconds(self.work, self.profile, width)
        return self._seconds[width]

    def bytes(self, width: int) -> float:
        """Return the estimated bytes of memory of one rank at a width."""
        if width not in self._bytes:
            self._bytes[width] = estimate_bytes(self.work, self.profile, width)
        return self._bytes[width]


class CommandQuote:
    """Cost of a command before any measurement; its features are its searched values."""

    def __init__(
        self, values: Mapping[str, Scalar], profile: ProfileConfig, widths: tuple[int, ...]
    ) -> None:
        """Turn the values into features: signed ``log(1 + |x|)`` of numbers, one-hot choices."""
        self.profile, self.widths = profile, widths
        self.features = {f"machine:{profile.name}": 1.0}
        for key, value in values.items():
            if isinstance(value, bool | str):
                self.features[f"value:{key}={value}"] = 1.0
            else:
                self.features[f"value:{key}"] = math.copysign(math.log1p(abs(value)), value)

    def seconds(self, width: int) -> float:
        """Return ``COMMAND_SECONDS``, divided among the ranks with a small loss of efficiency."""
        return float(COMMAND_SECONDS / width**0.9)

    def bytes(self, width: int) -> float:
        """Return the bytes of an idle rank by the profile; no formula exists for a command."""
        return 1e9 * self.profile.process_gb or 1.0


@dataclass(frozen=True)
class Price:
    """Cost of a trial: formulas, corrected by the observations so far."""

    quote: Quote | CommandQuote
    """Cost by formula, without corrections."""
    widths: tuple[int, ...]
    """Allowed numbers of ranks, ascending; never empty."""
    factor: float
    """Correction of the formula's seconds at one rank, as a factor."""
    slope: float
    """Amount by which each doubling of the width changes the logarithm of ``factor``."""
    memory_factor: float
    """Correction of the formula's bytes, as a factor."""
    sigma: float
    """Standard deviation of the logarithm of the seconds."""
    fails: float
    """Probability that the trial fails."""
    own: Mapping[int, float] = field(default_factory=dict)
    """Measured seconds per epoch of this trial, by width."""

    @property
    def measured(self) -> bool:
        """Whether epochs of this trial were measured."""
        return bool(self.own)

    def epoch_seconds(self, width: int) -> float:
        """Return the seconds per epoch at a width, scaled from the nearest measured one if any."""
        if not self.own:
            return self._predicted(width)
        nearest = min(self.own, key=lambda known: (abs(math.log2(known / width)), known))
        return self.own[nearest] * self._predicted(width) / self._predicted(nearest)

    def tasks_seconds(self, epochs: float) -> tuple[float, ...]:
        """Return the seconds of ``epochs`` epochs at each width, as ``Task`` needs them.

        Returns:
            Seconds, in the order of ``widths``.
        """
        return tuple(epochs * self.epoch_seconds(width) for width in self.widths)

    def memory(self, width: int) -> float:
        """Return the predicted bytes of memory of one rank at a width."""
        return self.memory_factor * self.quote.bytes(width)

    def _predicted(self, width: int) -> float:
        scaled = self.factor * math.exp(self.slope * math.log2(width))
        return scaled * self.quote.seconds(width)
