"""A trial's price by formula, before anything ran: what an epoch goes through, what that takes.

Seconds and bytes at every width, from dimensions, statistics and a machine profile: operations and
memory traffic, unequal shares of ranks, and sending gradients and weights.

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
    LinkConfig,
    ProfileConfig,
    Scalar,
    TrialConfig,
    angle_cutoff,
    compute_epoch_size,
    count_parameters,
    differentiates,
    forward_flops,
    kept_bytes,
    kept_factor,
    pass_bytes,
    weight_copies,
)
from hydragnn_hpo.file_records import StoreStats, TargetStats

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
class EpochCounts:
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
    """Steps, counted by what they cost beside arithmetic: pieces and derivatives are more."""
    parameters: int
    graph_bytes: float
    """What the mean graph takes in a forward and backward pass, on a GPU."""

    @property
    def graphs_per_step(self) -> float:
        """Mean number of graphs in a step."""
        return self.sizes.graphs / self.sizes.steps


def epoch_workload(config: TrialConfig, stats: StoreStats) -> Workload:
    """Count what an epoch of a trial costs.

    Args:
        config: the trial.
        stats: what ``stats.json`` of its data says, or ``unite_stats`` of several.
    """
    model, targets, sizes = config.model, stats.get("targets", {}), count_epoch(config, stats)
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

    Between cutoffs that were counted it grows with the volume. ``config.data_config.mean_degree``,
    which takes the upper one alone, is off by a quarter for molecules; but nets were built with it.
    """
    known = [(0.0, 0.0), *sorted((float(r), float(d)) for r, d in stats["degree"].items())]
    for (near, few), (far, many) in pairwise(known):
        if cutoff <= far:
            return few + (many - few) * (cutoff**3 - near**3) / (far**3 - near**3)
    return known[-1][1]


def mean_triplets(stats: StoreStats, cutoff: float, most: float = math.inf) -> float:
    """Estimate the pairs of edges that meet at a node within a cutoff in angstrom.

    By the histogram of neighbours at the nearest cutoff that has one: few crowded nodes have most
    of the pairs. Without a histogram all nodes are taken to be alike.

    Args:
        stats: of the data.
        cutoff: in angstrom.
        most: neighbours that a node keeps at most.
    """
    mean = min(mean_neighbors(stats, cutoff), most)
    histograms = stats.get("degrees") or {}
    if not histograms:
        return mean * max(mean - 1.0, 0.0)
    nearest = min(histograms, key=lambda radius: abs(float(radius) - cutoff))
    counts = histograms[nearest]["all"]
    nodes, edges = sum(counts), sum(d * n for d, n in enumerate(counts))
    if not edges:
        return 0.0
    pairs = sum(d * (d - 1) * n for d, n in enumerate(counts))
    return float(pairs / nodes * (mean * nodes / edges) ** 2)


def relative_epoch_cost(
    config: TrialConfig, sizes: EpochCounts, targets: Mapping[str, TargetStats]
) -> float:
    """Return how much longer an epoch takes than its plain training steps alone.

    Args:
        config: the trial.
        sizes: of the epoch.
        targets: of the data, by name.
    """
    times = RECOMPUTED if config.parallel.recompute else 1.0
    times *= DERIVATIVES if differentiates(config.heads, targets) else 1.0
    return times * (1.0 + sizes.validated / BACKWARD)


def graph_cost_spread(stats: StoreStats) -> tuple[float, float]:
    """Return the spread of the graphs' costs and the cost of the largest, both over the mean.

    Edges stand for costs, from their histogram; where there is none, sizes are taken to be spread
    evenly between the smallest and the largest graph.

    Returns:
        Standard deviation over the mean, largest over the mean; 0 and 1 where nothing is known.
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
"""Of ``imbalance``: fits the shares that were measured, 1.11, 1.03 and 1.008 (uniform sizes, 2, 4
and 8 graphs per rank)."""

EXPOSED = 0.4
"""Share of sending that computing does not hide: .60 to .67 was hidden with DDP."""

EXPOSED_SHARDED = 0.7
"""The same where weights are gathered just before they are used; a guess."""

SPLIT = 0.7
"""Share of a net's arithmetic that is in the wide maps which ``tensor`` ranks share; a guess."""


@dataclass(frozen=True)
class RankLayout:
    """How the ranks of one trial lie and what they share."""

    width: int
    """All of them."""
    local: int
    """Those of one host."""
    data: int
    """Groups that see different graphs."""
    tensor: int
    """Ranks of a group, which share wide maps."""

    @classmethod
    def of(cls, work: Workload, profile: ProfileConfig, width: int) -> "RankLayout":
        """Lay out ``width`` ranks on as few hosts as hold them.

        Args:
            work: names how the trial is split.
            profile: the machine, which has the slots of a host.
            width: ranks.
        """
        tensor = work.config.parallel.tensor_ranks(width)
        local = min(width, profile.slots_per_host or width)
        return cls(width, local, width // tensor, tensor)

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return math.ceil(self.width / self.local)


def imbalance(work: Workload, ranks: int) -> float:
    """Return the largest share of a step over the mean of all, shared out by cost.

    The largest of three reasons. Shares are sums of graphs of different sizes: what cannot be
    evened out falls with the square of the graphs per rank, as each graph from the second on
    fills the gaps that those before it left. One graph alone, the largest of a step, is more than
    a share. Graphs are alike, and do not divide by the ranks.
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
    """Return what the largest of some numbers is over their mean, if they are lognormal.

    Args:
        count: of the numbers.
        spread: their standard deviation over their mean.

    Source: Blom (1958), Statistical Estimates and Transformed Beta-Variables, for the largest of
    normal numbers.
    """
    if count <= 1.0 or not spread:
        return 1.0
    deviations = _NORMAL.inv_cdf((count - 0.375) / (count + 0.25))
    variance = math.log1p(spread**2)
    return math.exp(deviations * math.sqrt(variance) - variance / 2)


def all_reduce_seconds(ranks: RankLayout, profile: ProfileConfig, size: float) -> float:
    """Return the seconds in which all ranks sum ``size`` bytes: within hosts, then between them.

    Args:
        ranks: how they lie.
        profile: the machine, which has bandwidth and latency of its links.
        size: in bytes.

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
    """Return the seconds of a step in which ranks send and do not compute.

    Gradients are summed once a step; with weights sharded between forward and backward pass they
    are gathered once more, half the bytes of a sum. Ranks that share wide maps sum the features of
    their nodes there and back in every round.

    Args:
        work: what an epoch costs.
        profile: the machine.
        ranks: how they lie.
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
    """Return the part of its group's arithmetic that each rank does."""
    return 1.0 - SPLIT * (1.0 - 1.0 / ranks.tensor)


TYPICAL_FLOPS, TYPICAL_STEPS = 1e9, 100.0
"""Operations of a step and steps of an epoch at which the machine's factor holds as it is."""

COMMAND_SECONDS = 60.0
"""Seconds per epoch of a command before one was measured."""


def estimate_seconds(work: Workload, profile: ProfileConfig, width: int) -> float:
    """Price one epoch on ``width`` ranks in seconds, before anything ran.

    Arithmetic and memory traffic are shared out, unequally; what a step costs beside them is not.

    Args:
        work: what an epoch costs.
        profile: the machine.
        width: ranks.
    """
    ranks = RankLayout.of(work, profile, width)
    computed = work.flops / profile.flops_per_second + work.moved / profile.bytes_per_second
    shared = computed * tensor_parallel_share(ranks) * imbalance(work, ranks.data) / ranks.data
    overhead = profile.step_seconds + profile.layer_seconds * work.config.model.layers
    sent = work.sizes.steps * exposed_communication_seconds(work, profile, ranks)
    return shared + work.steps * overhead + sent


def estimate_bytes(work: Workload, profile: ProfileConfig, width: int) -> float:
    """Estimate the memory that a rank takes, in bytes, as its ``peak_bytes`` will tell it.

    Where steps are not cut up by configuration they are cut until they fit, or hold one graph.

    Args:
        work: what an epoch costs.
        profile: the machine.
        width: ranks.
    """
    ranks, cpu = RankLayout.of(work, profile, width), profile.device == "cpu"
    heap = HEAP if cpu else 1.0
    fixed = 1e9 * profile.process_gb + state_bytes(work, ranks, cpu=cpu)
    share = imbalance(work, ranks.data) * work.graphs_per_step / ranks.data
    one = heap * work.graph_bytes * min(work.largest, max(share, 1.0))
    step = max(heap * work.graph_bytes * share / (work.config.training.micro_batches or 1), one)
    if work.config.training.micro_batches is None:
        step = min(step, max(FULL * profile.memory_bytes - fixed, one))
    return fixed + step


def state_bytes(work: Workload, ranks: RankLayout, *, cpu: bool) -> float:
    """Return what weights, gradients and the optimizer's state take of a rank, in bytes.

    Args:
        work: names parameters, precision and optimizer.
        ranks: how they lie and what they share.
        cpu: whether they run on a processor, where what is written down is held, too.
    """
    parallel, training = work.config.parallel, work.config.training
    size = 8.0 if training.precision == "fp64" else 4.0
    held = weight_copies(training, cpu=cpu)
    weights = size * work.parameters / ranks.tensor
    if not parallel.is_sharded(ranks.width):
        return weights * held
    parts = parallel.copy_ranks(ranks.width, ranks.local)
    whole = 1.0 if parallel.shard in ("none", "gradients") else 1.0 / work.config.model.layers
    return weights * (held / parts + whole)


def widest_ranks(work: Workload, most: int) -> int:
    """Return the most ranks, a power of two, that leave every one its least number of graphs."""
    graphs = work.config.training.global_batch or max(1, round(work.graphs_per_step))
    groups = max(1, graphs // work.config.training.min_graphs_per_rank)
    limit = max(1, min(groups * work.config.parallel.tensor, most))
    return 1 << (limit.bit_length() - 1)


class Quote:
    """A trial's price at any width before anything ran."""

    def __init__(self, work: Workload, profile: ProfileConfig, max_width: int) -> None:
        """Price a trial for a machine on at most ``max_width`` ranks."""
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
        """Return the seconds per epoch at a width."""
        if width not in self._seconds:
            self._seconds[width] = estimate_seconds(self.work, self.profile, width)
        return self._seconds[width]

    def bytes(self, width: int) -> float:
        """Return the memory of a rank at a width, in bytes."""
        if width not in self._bytes:
            self._bytes[width] = estimate_bytes(self.work, self.profile, width)
        return self._bytes[width]


class CommandQuote:
    """The same for a command: nothing is known but its searched values."""

    def __init__(
        self, values: Mapping[str, Scalar], profile: ProfileConfig, widths: tuple[int, ...]
    ) -> None:
        """Take the values apart: numbers by their logarithm, choices one by one."""
        self.profile, self.widths = profile, widths
        self.features = {f"machine:{profile.name}": 1.0}
        for key, value in values.items():
            if isinstance(value, bool | str):
                self.features[f"value:{key}={value}"] = 1.0
            else:
                self.features[f"value:{key}"] = math.copysign(math.log1p(abs(value)), value)

    def seconds(self, width: int) -> float:
        """Return a constant, shared out with a little loss per doubling."""
        return float(COMMAND_SECONDS / width**0.9)

    def bytes(self, width: int) -> float:
        """Return the profile's own size: what a command takes is known when it ran."""
        return 1e9 * self.profile.process_gb or 1.0


@dataclass(frozen=True)
class Price:
    """What a trial costs, as far as it is known at the time of the call."""

    quote: Quote | CommandQuote
    """Its price before anything ran."""
    widths: tuple[int, ...]
    """Ranks it may have, powers of two, rising; never empty."""
    factor: float
    """On its seconds at one rank, from what ran."""
    slope: float
    """What each doubling of the width adds to the logarithm of that."""
    memory_factor: float
    """On its memory."""
    sigma: float
    """Standard deviation of the logarithm of the seconds."""
    fails: float
    """Probability that it fails."""
    own: Mapping[int, float] = field(default_factory=dict)
    """Seconds per epoch that it took itself, by width."""

    @property
    def measured(self) -> bool:
        """Whether its own speed is known."""
        return bool(self.own)

    def epoch_seconds(self, width: int) -> float:
        """Return the seconds per epoch at a width, from its own time at the nearest if it ran."""
        if not self.own:
            return self._predicted(width)
        nearest = min(self.own, key=lambda known: (abs(math.log2(known / width)), known))
        return self.own[nearest] * self._predicted(width) / self._predicted(nearest)

    def tasks_seconds(self, epochs: float) -> tuple[float, ...]:
        """Return the seconds of some epochs at each of its widths, as ``Task`` has them.

        Returns:
            Seconds, in the order of ``widths``.
        """
        return tuple(epochs * self.epoch_seconds(width) for width in self.widths)

    def memory(self, width: int) -> float:
        """Return the bytes that a rank takes at a width."""
        return self.memory_factor * self.quote.bytes(width)

    def _predicted(self, width: int) -> float:
        scaled = self.factor * math.exp(self.slope * math.log2(width))
        return scaled * self.quote.seconds(width)
