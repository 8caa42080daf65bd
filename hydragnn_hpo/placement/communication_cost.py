"""What ranks lose to each other: unequal shares of a step, and sending gradients and weights."""

import math
from dataclasses import dataclass
from statistics import NormalDist

from hydragnn_hpo.config import LinkConfig, ProfileConfig
from hydragnn_hpo.placement.workload import Workload

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
        """Lay out ``width`` ranks on as few hosts as hold them."""
        tensor = work.config.parallel.tensor_ranks(width)
        local = min(width, profile.slots_per_host or width)
        return cls(width, local, width // tensor, tensor)

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return math.ceil(self.width / self.local)


def imbalance(work: Workload, ranks: int) -> float:
    """Give the largest share of a step over the mean of all, shared out by cost.

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
    """Give what the largest of some numbers is over their mean, if they are lognormal.

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
    """Give the seconds in which all ranks sum ``size`` bytes: within hosts, then between them.

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
    """Give the seconds of a step in which ranks send and do not compute.

    Gradients are summed once a step; with weights sharded between forward and backward pass they
    are gathered once more, half the bytes of a sum. Ranks that share wide maps sum the features of
    their nodes there and back in every round.
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
    """Give the part of its group's arithmetic that each rank does."""
    return 1.0 - SPLIT * (1.0 - 1.0 / ranks.tensor)
