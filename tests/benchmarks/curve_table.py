"""Recorded learning curves as a finite search space: what a proposal costs, and what it reaches."""

import gzip
import json
import math
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn_hpo.config import CampaignConfig, Scalar, Space
from hydragnn_hpo.ensemble_build.member_selection import ScoredHead, weigh_alone
from hydragnn_hpo.search.space import (
    active_parameters,
    configuration_key,
    order_by_conditions,
    position_of,
)

CURVES = Path(__file__).parent / "curves"
SETS = ("castelli_mini", "small_organics", "magnetic_crystals", "acetylacetone", "magnetic_nodes")
ROUNDS = 12
"""Draws of each greedy selection, as ``ensemble.rounds``."""
KIND = "model.conv"
KIND_DISTANCE = 3.0
"""Squared distance of two convs: a proposal keeps its conv while one of that is left."""


def is_recorded(name: str) -> bool:
    """Check whether a set has a table."""
    return (CURVES / f"{name}.json.gz").exists()


class CurveTable:
    """Configurations that all trained to the last rung, and their curves.

    Shapes: n configurations, E epochs.
    """

    def __init__(self, name: str) -> None:
        """Read the table of a set, without failed trials."""
        self.name = name
        text = (CURVES / f"{name}.toml").read_text()
        self.campaign = CampaignConfig.model_validate(tomllib.loads(text))
        self.space: Space = self.campaign.space
        self.order = order_by_conditions(self.space)
        rows: dict[str, Any] = {}
        self._completed: list[str] = []
        """Trials in the order of the stored predictions, repeated configurations among them."""
        self._predictions: dict[str, tuple[np.ndarray, np.ndarray]] | None = None
        self._places: list[int] = []
        for row in json.loads(gzip.decompress((CURVES / f"{name}.json.gz").read_bytes())):
            if row["status"] == "completed":
                self._completed.append(row["trial"])
                rows.setdefault(configuration_key(self._active(row)), row)
        whole = list(rows.values())
        self.trials = [row["trial"] for row in whole]
        self.values = [self._active(row) for row in whole]
        self.epochs = self.campaign.search.rungs[-1]
        self.best = np.array([_best_so_far(row["objective"], self.epochs) for row in whole])
        """Best objective up to each epoch, which is what rungs compare, [n, E]."""
        self.best_errors = np.array([_errors_of_best(row, self.epochs) for row in whole])
        """Validation errors of the heads at the epoch of ``best``, [n, E, H]."""
        self.seconds = np.array([statistics.median(row["seconds"]) for row in whole])
        """Of one epoch, [n]: the median, as other programs disturb single ones."""
        self.start = statistics.median(row["start_seconds"] for row in whole)
        """Seconds that a start takes."""
        self.reached = self._average_seeds()
        """Objective at the end, [n]: the mean over seeds where there are several."""
        self.errors = {
            head: np.array([min(row[head]) for row in whole])
            for head in whole[0]
            if head.startswith("val_mae.")
        }
        """Lowest validation error of each head, [n]."""
        self.portfolio: list[dict[str, Scalar]] = []
        """Made of other sets, see ``make_portfolio``; completed by middle values."""
        self._codes = np.array([self._encode(values) for values in self.values])

    def __len__(self) -> int:
        return len(self.values)

    def _active(self, row: Mapping[str, Any]) -> dict[str, Scalar]:
        return active_parameters(self.space, row["values"])

    def _average_seeds(self) -> np.ndarray:
        """Return the objective that configurations reach, without the luck of the best seeds."""
        reached = self.best[:, -1].copy()
        path = CURVES / f"{self.name}_seeds.json"
        if path.exists():
            again = json.loads(path.read_text()).values()
            for place, trial in enumerate(self.trials):
                others = [min(seed[trial]) for seed in again if trial in seed]
                reached[place] = statistics.mean([reached[place], *others])
        return reached

    def measure_ensemble(self, rows: Sequence[int]) -> float:
        """Return the error of an ensemble of some configurations where nothing was chosen, ``cal``.

        Each head weights them as ensembles do, on one half of the rows, and is judged on the other
        one, in turns. The error is the mean over heads of the MAE in units of the labels' spread.
        """
        if self._predictions is None:
            places = {trial: place for place, trial in enumerate(self._completed)}
            with np.load(CURVES / f"{self.name}.npz") as stored:
                self._predictions = {
                    key.split("/")[1]: (stored[key], stored[f"label/{key}"])
                    for key in stored.files
                    if key.startswith("cal/")
                }
            self._places = [places[trial] for trial in self.trials]
        chosen = [self._places[row] for row in rows]
        errors = []
        for made, labels in self._predictions.values():
            known = ~np.isnan(labels)
            numbers = np.arange(known.sum())
            truth = labels[known][:, None]
            predicted = np.stack([made[row][known] for row in chosen])[..., None]
            head = ScoredHead(predicted, truth, 1.0 / truth.std(), numbers)
            for half in (numbers < len(numbers) // 2, numbers >= len(numbers) // 2):
                weights = weigh_alone([head.take(half, slice(None))], ROUNDS)
                away = np.tensordot(weights, predicted[:, ~half], 1) - truth[~half]
                errors.append(np.abs(away).mean() / truth.std())
        return float(np.mean(errors))

    def _encode(self, values: Mapping[str, Scalar]) -> list[float]:
        """Place a configuration: ordered values in [0, 1], labels on axes of their own.

        Returns:
            NaN for each coordinate of a key that is inactive.
        """
        code: list[float] = []
        for name in self.order:
            parameter = self.space[name]
            choices = parameter.choices
            if choices is None or all(_is_number(choice) for choice in choices):
                code.append(position_of(parameter, values[name]) if name in values else math.nan)
                continue
            height = math.sqrt(KIND_DISTANCE / 2.0 if name == KIND else 0.5)
            for choice in choices:
                code.append(height * (values[name] == choice) if name in values else math.nan)
        return code

    def take_nearest(self, values: Mapping[str, Scalar], used: set[int]) -> int | None:
        """Return the row of the nearest configuration that is not used yet, and use it.

        Args:
            values: an active configuration.
            used: rows that were handed out; the new one is added.
        """
        apart = np.nansum((self._codes - np.array(self._encode(values))) ** 2, axis=1)
        apart[list(used)] = math.inf
        row = int(np.argmin(apart))
        if not math.isfinite(apart[row]):
            return None
        used.add(row)
        return row


def _errors_of_best(row: Mapping[str, Any], epochs: int) -> np.ndarray:
    """Return the errors of a configuration's heads at its best epoch so far, [E, H]."""
    objective = np.array(row["objective"][:epochs])
    first = np.minimum.accumulate(objective) == objective
    places = np.maximum.accumulate(np.where(first, np.arange(len(objective)), 0))
    heads = [head for head in sorted(row) if head.startswith("val_mae.")]
    errors = np.stack([np.array(row[head])[places] for head in heads], axis=1)
    return np.pad(errors, ((0, epochs - len(errors)), (0, 0)), mode="edge")


def _is_number(choice: Scalar) -> bool:
    return isinstance(choice, int | float) and not isinstance(choice, bool)


def _best_so_far(objective: list[float], epochs: int) -> np.ndarray:
    """Return the lowest objective up to each epoch; one that stopped early keeps its last."""
    best = np.minimum.accumulate(np.array(objective[:epochs]))
    return np.pad(best, (0, epochs - len(best)), mode="edge")
