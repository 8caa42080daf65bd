"""Predict a target from the elements alone: what a model of the structure must beat.

A target of whole structures is a ridge regression on the composition (Meredig et al. 2014, Phys.
Rev. B 89, 094104, showed how far composition alone can go): on counts and fractions of elements,
and a constant; for a sum over atoms on counts alone, without a constant, for an energy per atom on
fractions alone. A number per atom is the mean of its element. Vectors per atom have no such
baseline: by symmetry their mean is zero.

Shapes: R rows of a target (graphs or nodes), w components, D features.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from ase.data import atomic_numbers, chemical_symbols

from hydragnn_hpo.config import INVARIANT, is_extensive
from hydragnn_hpo.data import Columns
from hydragnn_hpo.ensemble.artefact import BaselineEntry
from hydragnn_hpo.file_records import TargetStats

PENALTIES = (1e-8, 1e-6, 1e-4, 1e-2)
"""Ridge penalties to choose from on ``val``, relative to the mean square of the features."""

_ELEMENTS = 128
_DIGITS = 9
"""Significant digits of a weight in a file; threads decide the last ones of a sum."""


@dataclass(frozen=True)
class CompositionModel:
    """A linear model of the elements of a structure, or of the element of an atom."""

    mean: np.ndarray
    """Mean of the labels, [w]."""
    weights: np.ndarray
    """One row per feature, [D, w]; 0 for elements without a label."""
    is_node: bool
    """Whether the target has one value per node."""

    def predict(self, columns: Columns) -> np.ndarray:
        """Return the predictions for all rows of the target, [R, w]."""
        rows: np.ndarray = self.mean + _features(columns, node=self.is_node) @ self.weights
        return rows

    def as_entry(self) -> BaselineEntry:
        """Return the model as a part of an ensemble file."""
        tables = [
            {
                chemical_symbols[z]: _round(table[z])
                for z in np.flatnonzero(table.any(axis=1)).tolist()
            }
            for table in np.split(self.weights, len(self.weights) // _ELEMENTS)
        ]
        names = ("atoms", "fractions")
        return BaselineEntry(mean=_round(self.mean), **dict(zip(names, tables, strict=False)))

    @classmethod
    def from_entry(cls, entry: BaselineEntry, *, is_node: bool) -> Self:
        """Return the model that a part of an ensemble file describes.

        Args:
            entry: the part.
            is_node: whether the target has one value per node.
        """
        tables = [entry.atoms] if is_node else [entry.atoms, entry.fractions]
        weights = np.zeros((len(tables) * _ELEMENTS, len(entry.mean)))
        for number, table in enumerate(tables):
            for symbol, weight in table.items():
                weights[number * _ELEMENTS + atomic_numbers[symbol]] = weight
        return cls(np.array(entry.mean), weights, is_node)


def _round(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(f"{value:.{_DIGITS}g}") for value in values)


def fit_baseline(
    name: str, target: TargetStats, train: Iterable[Columns], val: Iterable[Columns]
) -> CompositionModel | None:
    """Fit the baseline of a target.

    Args:
        name: name of the target.
        target: its level, shape and kind of energy.
        train: graphs of the training split, in pieces.
        val: graphs of the validation split, in pieces; they choose the penalty.

    Returns:
        The baseline; None for vectors, tensors per atom, and where nothing is labelled.
    """
    is_node = target["level"] == "node"
    if target["shape"] not in INVARIANT and (is_node or target["shape"] == "vector"):
        return None
    normal = moment = sums = total = np.zeros(())
    count = 0
    for piece in train:
        values = piece.targets[name][piece.masks[name]]
        features = _features_of(target, piece)[piece.masks[name]]
        normal, moment = normal + features.T @ features, moment + features.T @ values
        sums, total = sums + features.sum(axis=0), total + values.sum(axis=0)
        count += len(values)
    if not count:
        return None
    start = np.zeros((len(normal), len(total)))
    if is_extensive(target):
        # the same for each atom
        mean = np.zeros_like(total)
        start[sums > 0] = total / sums.sum()
        moment = moment - normal @ start
    else:
        mean = total / count
        moment = moment - np.outer(sums, mean)
    scale = np.trace(normal) / np.count_nonzero(np.diag(normal))
    choices = [
        CompositionModel(mean, start + _solve(normal, moment, penalty * scale), is_node)
        for penalty in PENALTIES
    ]
    return _choose(choices, name, val)


def _choose(
    choices: Sequence[CompositionModel], name: str, val: Iterable[Columns]
) -> CompositionModel:
    """Return the model with the smallest error of a target on some graphs, in pieces."""
    errors = np.zeros(len(choices))
    for piece in val:
        mask = piece.masks[name]
        for number, choice in enumerate(choices):
            errors[number] += np.abs(choice.predict(piece) - piece.targets[name])[mask].sum()
    return choices[int(np.argmin(errors))]


def _features_of(target: TargetStats, columns: Columns) -> np.ndarray:
    """Return the features that may predict a target, [R, D]; others are 0.

    Sums over atoms have counts alone, energies per atom fractions alone.
    """
    features = _features(columns, node=target["level"] == "node")
    if is_extensive(target):
        features[:, _ELEMENTS:] = 0.0
    elif target.get("energy"):
        features[:, :_ELEMENTS] = 0.0
    return features


def _solve(normal: np.ndarray, moment: np.ndarray, penalty: float) -> np.ndarray:
    """Solve the normal equations of the elements that occur; others get the weight 0."""
    known = np.diag(normal) > 0
    weights = np.zeros_like(moment)
    inner = normal[np.ix_(known, known)] + penalty * np.eye(int(known.sum()))
    weights[known] = np.linalg.lstsq(inner, moment[known], rcond=None)[0]
    return weights


def _features(columns: Columns, *, node: bool) -> np.ndarray:
    """Return counts and fractions of the elements of each graph, or a 1 for each atom's, [R, D]."""
    sizes = np.ones(len(columns.numbers), dtype=np.int64) if node else columns.num_nodes()
    row = np.repeat(np.arange(len(sizes)), sizes)
    counts = np.zeros((len(sizes), _ELEMENTS))
    np.add.at(counts, (row, columns.numbers), 1.0)
    if node:
        return counts
    return np.concatenate([counts, counts / np.maximum(sizes, 1)[:, None]], axis=1)
