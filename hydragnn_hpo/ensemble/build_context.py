"""All that the steps of a build share: the run, its cards, its graphs, its candidates.

Shapes: C candidates, R rows of a head, w components.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hydragnn_hpo.config import (
    CampaignConfig,
    CardConfig,
    ModelConfig,
    angle_cutoff,
    forward_flops,
    load_config,
)
from hydragnn_hpo.data import GraphSet
from hydragnn_hpo.ensemble import target_rows
from hydragnn_hpo.ensemble.candidates import Candidate, find_candidates, read_stored_predictions
from hydragnn_hpo.errors import RunError
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.placement import Stats, mean_neighbors, mean_triplets
from hydragnn_hpo.training import open_graphs


@dataclass(frozen=True)
class BuildContext:
    """All that the steps share."""

    run: RunDir
    campaign: CampaignConfig
    cards: tuple[CardConfig, ...]
    graphs: GraphSet
    candidates: list[Candidate]

    @property
    def targets(self) -> dict[str, dict[str, Any]]:
        """Return the statistics of the targets that the heads predict."""
        return {n: self.graphs.stats["targets"][n] for n in self.candidates[0].config.heads}

    def scale(self, name: str) -> float:
        """Return the divisor of a head's MAE in the objective of a trial: the target's spread."""
        return float(self.targets[name]["std"]) or 1.0

    def stored(self, split: str) -> dict[str, np.ndarray]:
        """Return the stored predictions of all candidates for a split, by head, [C, R, w]."""
        each = [read_stored_predictions(c, split, self.graphs) for c in self.candidates]
        return {name: np.stack([one[name] for one in each]) for name in self.targets}

    def truth(self, name: str, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Return a target on a split, [R, w], and which rows have it, [R]; at least one does."""
        values, mask = target_rows.truth(self.graphs, name, self.graphs.indices_of(split))
        if not mask.any():
            raise RunError(
                f"{self.run.path}: no structure of the split '{split}' has the target '{name}': "
                "raise its share in the card's [split], or drop the head."
            )
        return values, mask

    def groups(self, name: str, split: str) -> int:
        """Count the groups of structures that have a target on a split: what is independent."""
        indices = self.graphs.indices_of(split)
        node = target_rows.is_node(self.graphs, name)
        graph = target_rows.graph_of_row(self.graphs, node=node, indices=indices)
        return len(np.unique(self.graphs.group[indices][graph][self.truth(name, split)[1]]))


def open_build_context(run: RunDir) -> BuildContext:
    """Open what a finished campaign left.

    Raises:
        HydraError: there is nothing to build an ensemble from.
    """
    campaign = load_config(run.campaign, CampaignConfig)
    candidates = find_candidates(run)
    first = candidates[0]
    graphs = open_graphs(first.folder, first.config)
    stores = [first.folder.path / entry.store for entry in first.config.data]
    cards = tuple(load_config(store / "card.toml", CardConfig) for store in stores)
    return BuildContext(run, campaign, cards, graphs, candidates)


def flops_per_graph(model: ModelConfig, stats: Stats) -> float:
    """Estimate the operations that a net spends on the mean structure of a store.

    Args:
        model: the net; its heads cost next to nothing.
        stats: what the store says of its graphs.
    """
    nodes, most = float(stats["nodes"]["mean"]), model.max_neighbors or math.inf
    edges = nodes * min(mean_neighbors(stats, model.cutoff), most)
    angle = angle_cutoff(model)
    triplets = 0.0 if angle is None else nodes * mean_triplets(stats, angle, most)
    return forward_flops(model, nodes, edges, triplets)
