"""What a finished run offers an ensemble: trials that may become members, their graphs and labels.

Shapes: C candidates, R rows of a head (graphs, or nodes of a node-level head), w components.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from hydragnn_hpo.config import (
    CampaignConfig,
    CardConfig,
    ModelConfig,
    TrialConfig,
    angle_cutoff,
    forward_flops,
    load_config,
)
from hydragnn_hpo.data import GraphSet
from hydragnn_hpo.ensemble.calibrate import GRAPHS_TOGETHER, Strata, graph_of_row, size_strata
from hydragnn_hpo.errors import RunError
from hydragnn_hpo.file_records import StoreStats, TargetStats
from hydragnn_hpo.files import read_json
from hydragnn_hpo.layout import RunDir, TrialDir
from hydragnn_hpo.placement import mean_neighbors, mean_triplets
from hydragnn_hpo.training import open_graphs


@dataclass(frozen=True)
class Candidate:
    """A trial that came to a good end."""

    trial: str
    """Name of the trial."""
    folder: TrialDir
    """Its directory."""
    config: TrialConfig
    """Its configuration."""
    status: str
    """``completed``, or ``stopped`` at a rung."""
    objective: float
    """Validation objective, in standard deviations."""
    val_mae: dict[str, float]
    """Validation MAE by head, in the head's unit."""
    predictions: Path
    """File with its predictions on val, sel and cal."""


Trials = list[tuple[TrialDir, TrialConfig, dict[str, Any]]]


def _read_results(run: RunDir) -> Trials:
    """Return trials with configuration and result, best objective first, those without one last.

    Only the current attempt's result counts: a trial that is being trained on has none.
    """
    trials: Trials = []
    for path in (run.path / "trials").glob("*/trial.toml"):
        trial = TrialDir(path.parent)
        attempts = trial.attempts()
        result = trial.attempt(attempts[-1]) / "result.json" if attempts else None
        if result is not None and result.exists():
            trials.append((trial, load_config(path, TrialConfig), read_json(result)))

    def rank(one: tuple[TrialDir, TrialConfig, dict[str, Any]]) -> tuple[float, str]:
        objective = one[2].get("objective")
        return math.inf if objective is None else float(objective), one[0].path.name

    return sorted(trials, key=rank)


def list_leaderboard(run: RunDir) -> list[dict[str, Any]]:
    """List ``trial conv status objective epochs`` of every trial with a result, best first."""
    return [
        {
            "trial": trial.path.name,
            "conv": config.model.conv,
            "status": result["status"],
            "objective": result.get("objective"),
            "epochs": result.get("epochs"),
        }
        for trial, config, result in _read_results(run)
    ]


def find_candidates(run: RunDir) -> list[Candidate]:
    """Return the trials to choose members from, best validation objective first.

    These are the ones trained to the full budget; where there are none, those that were
    stopped at a rung.

    Raises:
        RunError: no trial came to a good end, or their heads differ.
    """
    scored = [one for one in _read_results(run) if one[2].get("objective") is not None]
    for status in ("completed", "stopped"):
        candidates = [
            Candidate(
                trial=trial.path.name,
                folder=trial,
                config=config,
                status=status,
                objective=float(result["objective"]),
                val_mae=result["val_mae"],
                predictions=trial.attempt(trial.attempts()[-1]) / "predictions.safetensors",
            )
            for trial, config, result in scored
            if result["status"] == status
        ]
        if candidates:
            _check_heads(run, candidates)
            return candidates
    raise RunError(
        f"{run.path}: no trial has completed or reached a rung, so there is nothing to build an "
        "ensemble from: let the campaign run on."
    )


def _check_heads(run: RunDir, candidates: list[Candidate]) -> None:
    first = set(candidates[0].config.heads)
    for other in candidates[1:]:
        if set(other.config.heads) != first:
            raise RunError(
                f"{run.path}: trials {candidates[0].trial} and {other.trial} predict different "
                "heads and cannot share an ensemble: give all trials the same heads."
            )


def read_stored_predictions(
    candidate: Candidate, split: str, graphs: GraphSet
) -> dict[str, np.ndarray]:
    """Return what a trial predicted on ``val``, ``sel`` or ``cal``, by head, [R, w] in fp64.

    Args:
        candidate: the trial.
        split: name of the split.
        graphs: the store, whose split must be the same.

    Raises:
        RunError: the file is missing or damaged, or is about other structures.
    """
    path = candidate.predictions
    try:
        arrays = load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: cannot be read ({error}); run the campaign again.") from error
    index = arrays.get(f"{split}/index")
    if index is None or not np.array_equal(index, graphs.indices_of(split)):
        raise RunError(
            f"{path}: is about other structures than the store's split '{split}'; "
            "the store was changed after the trial: start a new run directory."
        )
    return {
        name: np.asarray(arrays[f"{split}/{name}"], np.float64) for name in candidate.config.heads
    }


def read_truth(graphs: GraphSet, target: str, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Read a target of some graphs of a store.

    Args:
        graphs: the store.
        target: its name.
        indices: of the graphs.

    Returns:
        The values, [R, w] in fp64, and which rows have one, [R].
    """
    values, masks = [], []
    for first in range(0, max(len(indices), 1), GRAPHS_TOGETHER):
        columns = graphs.take(indices[first : first + GRAPHS_TOGETHER])
        values.append(columns.targets[target])
        masks.append(columns.masks[target])
    return np.concatenate(values), np.concatenate(masks)


@dataclass(frozen=True)
class BuildContext:
    """All that the steps of a build share."""

    run: RunDir
    campaign: CampaignConfig
    cards: tuple[CardConfig, ...]
    graphs: GraphSet
    candidates: list[Candidate]

    @property
    def targets(self) -> dict[str, TargetStats]:
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
        values, mask = read_truth(self.graphs, name, self.graphs.indices_of(split))
        if not mask.any():
            raise RunError(
                f"{self.run.path}: no structure of the split '{split}' has the target '{name}': "
                "raise its share in the card's [split], or drop the head."
            )
        return values, mask

    def is_node(self, name: str) -> bool:
        """Check whether a target has one value per node."""
        return bool(self.targets[name]["level"] == "node")

    def graph_of_row(self, name: str, split: str) -> np.ndarray:
        """Return the position of each row's structure in a split, [R]."""
        return graph_of_row(self.graphs, self.graphs.indices_of(split), node=self.is_node(name))

    def groups(self, name: str, split: str) -> int:
        """Count the groups of structures that have a target on a split: what is independent."""
        group = self.graphs.group[self.graphs.indices_of(split)][self.graph_of_row(name, split)]
        return len(np.unique(group[self.truth(name, split)[1]]))

    @cached_property
    def strata(self) -> Strata:
        """The strata that may have intervals of their own; targets are not used."""
        by = self.campaign.ensemble.intervals
        if by == "size":
            return size_strata(self.graphs.num_nodes()[self.graphs.indices_of("cal")])
        return Strata(by)


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


def flops_per_graph(model: ModelConfig, stats: StoreStats) -> float:
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
