"""What an ensemble is worth on labelled structures: figures, curves, kinds, warnings.

Shapes: G graphs, R rows of a head that have a label, w components.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.ensemble.artefact.manifest import HeadEntry
from hydragnn_hpo.ensemble.engine import EDGES_PER_BATCH, pieces
from hydragnn_hpo.ensemble.evaluation.reading import Labelled
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.uncertainty.evaluation import (
    Predicted,
    curves_of,
    figures_of,
    strata_of,
)
from hydragnn_hpo.ensemble.uncertainty.scores import mae
from hydragnn_hpo.ensemble.uncertainty.strata import By, Strata, size_strata
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.records import finite

FAR = 20.0
"""Standard deviations of the training data that labels may lie from its mean, in the median,
before their unit is doubted."""

_Parts = list[list[np.ndarray]]


@dataclass(frozen=True)
class HeadEvaluation:
    """One head on the structures that have its label."""

    entry: HeadEntry
    """What the ensemble says of the head."""
    found: Predicted
    """Predictions and labels, row by row."""
    figures: dict[str, float]
    """By name, see ``figures_of``; beside them ``mean_baseline_mae`` and ``ratio_to_mean``."""
    strata: dict[str, dict[str, float]]
    """By kind of structure, if asked for."""

    def as_plain(self) -> dict[str, Any]:
        """Give it as data for JSON; what has no value is None."""
        plain: dict[str, Any] = {
            "unit": self.entry.unit,
            "level": self.entry.level,
            **self.figures,
            "strata": self.strata,
            "curves": curves_of(self.found, self.entry.calibration),
        }
        return {name: finite(value) for name, value in plain.items()}


@dataclass
class Evaluation:
    """An ensemble on labelled structures."""

    heads: dict[str, HeadEvaluation]
    """By name; those that have a label."""
    structures: int
    """Structures that were predicted."""
    errors: list[str] = field(default_factory=list)
    """Why others were not, a sentence each."""
    warnings: list[str] = field(default_factory=list)
    """What to know before the figures are believed."""

    def as_plain(self) -> dict[str, Any]:
        """Give it as data for JSON."""
        return {
            "structures": self.structures,
            "errors": self.errors,
            "warnings": self.warnings,
            "heads": {name: head.as_plain() for name, head in self.heads.items()},
        }


def evaluate(
    ensemble: Ensemble, labelled: Iterable[Labelled], heads: Iterable[str], by: By = "all"
) -> Evaluation:
    """Predict labelled structures and hold the predictions against the labels.

    What was predicted is kept row by row; the structures are not.

    Args:
        ensemble: what predicts.
        labelled: structures, some at a time.
        heads: names of the heads that have labels.
        by: kinds of structures to show apart.

    Raises:
        DataError: no structure has a label.
    """
    parts: dict[str, _Parts] = {name: [] for name in heads}
    sizes, chemistry, errors = [np.zeros(0, dtype=np.int64)], [], list[str]()
    for some in labelled:
        errors.extend(some.errors)
        first = sum(map(len, sizes))
        sizes.append(some.columns.num_nodes())
        chemistry.append(Strata("chemistry").names(some.columns))
        _predict(ensemble, some.columns, parts, first)
    kinds = _kinds(by, np.concatenate(sizes), chemistry)
    done = Evaluation({}, sum(map(len, sizes)), errors)
    for name, rows in parts.items():
        _judge(done, name, ensemble.manifest.heads[name], rows, kinds)
    if not done.heads:
        reason = f" ({errors[0]})" if errors else ""
        raise DataError(
            f"no structure has a label of {', '.join(parts)}{reason}: look at the keys in the "
            "card, or say --target HEAD=KEY."
        )
    return done


def _predict(ensemble: Ensemble, graphs: Columns, parts: dict[str, _Parts], first: int) -> None:
    """Add truth, mean, spread, noise, stratum and structure of the rows that have a label."""
    for piece in pieces(graphs, np.arange(graphs.num_graphs), EDGES_PER_BATCH):
        moments, columns = ensemble.moments(graphs, piece), graphs.take(piece)
        strata, counts = ensemble.manifest.strata.names(columns), columns.num_nodes()
        for name, rows in parts.items():
            node = ensemble.manifest.heads[name].level == "node"
            stratum = np.repeat(strata, counts) if node else strata
            graph = np.repeat(first + piece, counts) if node else first + piece
            said = moments[name]
            whole = (columns.targets[name], said.mean, said.spread, said.noise, stratum, graph)
            rows.append([part[columns.masks[name]] for part in whole])


def _kinds(by: By, size: np.ndarray, chemistry: list[np.ndarray]) -> np.ndarray | None:
    """Name each structure's kind for the table; by size in thirds of what is evaluated."""
    if by == "all" or not len(size):
        return None
    return np.concatenate(chemistry) if by == "chemistry" else size_strata(size).of_sizes(size)


def _judge(
    done: Evaluation, name: str, entry: HeadEntry, rows: _Parts, kinds: np.ndarray | None
) -> None:
    if not rows:
        return
    *whole, graph = (np.concatenate(part) for part in zip(*rows, strict=True))
    found = Predicted(*whole)
    broken = ~np.isfinite(found.mean).all(axis=1)
    if broken.any():
        count = len(np.unique(graph[broken]))
        done.warnings.append(f"'{name}' of {count} structures is not finite; they are left out.")
        found, graph = found.of(~broken), graph[~broken]
    if not len(found.truth):
        done.warnings.append(f"no structure has a label of '{name}'.")
        return
    away = abs(float(np.median(found.truth)) - entry.mean)
    if entry.std > 0 and away > FAR * entry.std:
        done.warnings.append(
            f"labels of '{name}' lie {away / entry.std:.3g} standard deviations of the training "
            f"data from its mean: are they in the unit that was said? The ensemble predicts "
            f"{entry.unit}."
        )
    figures = figures_of(found, entry.calibration)
    baseline = mae(entry.mean, found.truth)
    figures["mean_baseline_mae"] = baseline
    figures["ratio_to_mean"] = figures["mae"] / baseline if baseline else 0.0
    strata = {} if kinds is None else strata_of(found, entry.calibration, kinds[graph])
    done.heads[name] = HeadEvaluation(entry, found, figures, strata)
