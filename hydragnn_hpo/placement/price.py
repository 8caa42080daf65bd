"""A trial's price at every width: seconds per epoch, memory, chance of failure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hydragnn_hpo.config import FULL, HEAP, ProfileConfig, Scalar, weight_copies
from hydragnn_hpo.placement.communication_cost import (
    RankLayout,
    exposed_communication_seconds,
    imbalance,
    tensor_parallel_share,
)
from hydragnn_hpo.placement.workload import Workload

TYPICAL_FLOPS, TYPICAL_STEPS = 1e9, 100.0
"""Operations of a step and steps of an epoch at which the machine's factor holds as it is."""

COMMAND_SECONDS = 60.0
"""What a command takes per epoch as long as nobody knows."""


def estimate_seconds(work: Workload, profile: ProfileConfig, width: int) -> float:
    """Price one epoch on ``width`` ranks in seconds, before anything ran.

    Arithmetic and memory traffic are shared out, unequally; what a step costs beside them is not.
    """
    ranks = RankLayout.of(work, profile, width)
    computed = work.flops / profile.flops_per_second + work.moved / profile.bytes_per_second
    shared = computed * tensor_parallel_share(ranks) * imbalance(work, ranks.data) / ranks.data
    started = profile.step_seconds + profile.layer_seconds * work.config.model.layers
    sent = work.sizes.steps * exposed_communication_seconds(work, profile, ranks)
    return shared + work.steps * started + sent


def estimate_bytes(work: Workload, profile: ProfileConfig, width: int) -> float:
    """Estimate the memory that a rank takes, in bytes, as its ``peak_bytes`` will tell it.

    Where steps are not cut up by configuration they are cut until they fit, or hold one graph.
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
    """Give what weights, gradients and the optimizer's state take of a rank, in bytes."""
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
    """Give the most ranks, a power of two, that leave every one its least number of graphs."""
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
        """Give the seconds per epoch at a width."""
        if width not in self._seconds:
            self._seconds[width] = estimate_seconds(self.work, self.profile, width)
        return self._seconds[width]

    def bytes(self, width: int) -> float:
        """Give the memory of a rank at a width, in bytes."""
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
        """Give a constant, shared out with a little loss per doubling."""
        return float(COMMAND_SECONDS / width**0.9)

    def bytes(self, width: int) -> float:
        """Give nothing: what a command takes is known when it ran."""
        return 1e9 * self.profile.process_gb or 1.0


@dataclass(frozen=True)
class Price:
    """What is known of a trial's cost, at the moment it was asked for."""

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
        """Give the seconds per epoch at a width, from its own time at the nearest one if it ran."""
        if not self.own:
            return self._predicted(width)
        nearest = min(self.own, key=lambda known: (abs(math.log2(known / width)), known))
        return self.own[nearest] * self._predicted(width) / self._predicted(nearest)

    def tasks_seconds(self, epochs: float) -> tuple[float, ...]:
        """Give the seconds of some epochs at each of its widths, as ``Task`` has them."""
        return tuple(epochs * self.epoch_seconds(width) for width in self.widths)

    def memory(self, width: int) -> float:
        """Give the bytes that a rank takes at a width."""
        return self.memory_factor * self.quote.bytes(width)

    def _predicted(self, width: int) -> float:
        scaled = self.factor * math.exp(self.slope * math.log2(width))
        return scaled * self.quote.seconds(width)
