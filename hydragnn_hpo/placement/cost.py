"""What a trial costs: from its dimensions and the data's statistics, corrected by what ran.

A first model: seconds per epoch on p ranks = compute / p / efficiency + steps * overhead.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hydragnn_hpo.config.counting import (
    angle_cutoff,
    differentiates,
    forward_flops,
    triplets_of,
)
from hydragnn_hpo.config.sizes import epoch_size, mean_degree
from hydragnn_hpo.config.trial import TrialConfig

BACKWARD = 3.0
"""A training step costs about three forward passes."""

DERIVATIVES = 3.0
"""Training on forces differentiates twice: about three times a step on energies alone."""

FLOPS_PER_SECOND = 4e9
"""First guess for one slot; wrong by a factor is fine, it is corrected after the first trials."""

STEP_SECONDS = 0.004
"""First guess of what a step costs beside arithmetic."""

SERIAL = 0.12
"""Loss of efficiency per added rank: e(p) = 1 / (1 + SERIAL * (p - 1))."""


def efficiency(width: int) -> float:
    """Give the share of ideal speed-up that ``width`` ranks reach."""
    return 1.0 / (1.0 + SERIAL * (width - 1))


@dataclass
class CostModel:
    """Predicts seconds per epoch on one slot; learns a factor per conv."""

    stats: Mapping[str, Any]
    observed: dict[str, list[float]] = field(default_factory=dict)
    """Ratios of measured to predicted seconds, by conv."""

    def raw(self, config: TrialConfig, width: int = 1) -> float:
        """Price one epoch on ``width`` slots in seconds, before correction.

        Arithmetic is shared out among the ranks, what a step costs beside it is not.
        """
        ratios = [entry.ratio for entry in config.data]
        size = epoch_size(self.stats, config.training, ratios)
        degree = mean_degree(self.stats, config.model.cutoff)
        edges = size.nodes * min(degree, config.model.max_neighbors or degree)
        angle = angle_cutoff(config.model)
        near = 0.0 if angle is None else mean_degree(self.stats, angle)
        triplets = triplets_of(size.nodes, near)
        flops: float = BACKWARD * forward_flops(config.model, size.nodes, edges, triplets)
        if differentiates(config.heads, self.stats.get("targets", {})):
            flops *= DERIVATIVES
        shared: float = flops / FLOPS_PER_SECOND / (width * efficiency(width))
        return shared + size.steps * STEP_SECONDS

    def epoch_seconds(self, config: TrialConfig, width: int = 1) -> float:
        """Price one epoch on ``width`` slots in seconds."""
        every = [ratio for ratios in self.observed.values() for ratio in ratios]
        ratios = self.observed.get(config.model.conv) or every or [1.0]
        return self.raw(config, width) * statistics.median(ratios)

    def learn(self, config: TrialConfig, width: int, seconds: float) -> None:
        """Take in the measured seconds of one epoch at some width."""
        ratio = seconds / self.raw(config, width)
        self.observed.setdefault(config.model.conv, []).append(ratio)
