"""Predict a target from the elements alone: what a model of the structure must beat.

A target of whole structures is a ridge regression on the composition (Meredig et al. 2014, Phys.
Rev. B 89, 094104, showed how far composition alone can go), a number per atom is the mean of its
element. Vectors per atom have no such baseline: by symmetry their mean is zero.

Shapes: G graphs, N nodes, Z elements, R rows of a target (graphs or nodes), w components.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hydragnn_hpo.data import Columns

PENALTIES = (1e-8, 1e-6, 1e-4, 1e-2)
"""Ridge penalties to choose from on ``val``, relative to the mean square of the features."""

_ELEMENTS = 128


@dataclass(frozen=True)
class ElementBaseline:
    """Predictions from the elements of a structure or an atom."""

    weights: np.ndarray
    """Of a graph-level target: one row per feature of ``_features``, [2 x 128 + 1, w]; of a
    node-level one: the mean of each element, [128, w]."""
    is_node: bool
    """Whether the target has one value per node."""

    def predict(self, columns: Columns) -> np.ndarray:
        """Return the predictions for all rows of the target, [R, w]."""
        rows: np.ndarray
        rows = self.weights[columns.numbers] if self.is_node else _features(columns) @ self.weights
        return rows


def fit_baseline(
    target: str, train: Iterable[Columns], val: Iterable[Columns]
) -> ElementBaseline | None:
    """Fit the baseline of a target.

    Args:
        target: name of the target.
        train: graphs of the training split, in pieces.
        val: graphs of the validation split, in pieces; they choose the penalty.

    Returns:
        The baseline; None for vectors per atom, and where nothing is labelled.
    """
    pieces = iter(train)
    first = next(pieces, None)
    if first is None:
        return None
    is_node, width = first.levels[target] == "node", first.targets[target].shape[1]
    if is_node and width > 1:
        return None
    size = _ELEMENTS if is_node else 2 * _ELEMENTS + 1
    normal, moment = np.zeros((size, size)), np.zeros((size, width))
    counts, total = np.zeros(size), np.zeros(width)
    for piece in (first, *pieces):
        mask = piece.masks[target]
        values = piece.targets[target][mask]
        total += values.sum(axis=0)
        if is_node:
            elements = piece.numbers[mask]
            counts += np.bincount(elements, minlength=size)
            np.add.at(moment, elements, values)
        else:
            features = _features(piece)[mask]
            counts[-1] += len(features)
            normal += features.T @ features
            moment += features.T @ values
    if not counts.sum():
        return None
    if is_node:
        unseen = counts == 0
        means = np.where(
            unseen[:, None], total / counts.sum(), moment / np.maximum(counts, 1)[:, None]
        )
        return ElementBaseline(means, is_node=True)
    scale = np.trace(normal) / np.count_nonzero(np.diag(normal))
    choices = [
        ElementBaseline(_solve(normal, moment, penalty * scale), is_node=False)
        for penalty in PENALTIES
    ]
    errors = np.zeros(len(choices))
    for piece in val:
        mask = piece.masks[target]
        for number, choice in enumerate(choices):
            errors[number] += np.abs(choice.predict(piece) - piece.targets[target])[mask].sum()
    return choices[int(np.argmin(errors))]


def _solve(normal: np.ndarray, moment: np.ndarray, penalty: float) -> np.ndarray:
    """Solve the normal equations of the elements that occur; others get the weight 0."""
    known = np.diag(normal) > 0
    weights = np.zeros_like(moment)
    inner = normal[np.ix_(known, known)] + penalty * np.eye(int(known.sum()))
    weights[known] = np.linalg.lstsq(inner, moment[known], rcond=None)[0]
    return weights


def _features(columns: Columns) -> np.ndarray:
    """Return counts and fractions of the elements of each graph, and 1, [G, 2 x 128 + 1]."""
    sizes = columns.num_nodes()
    graph = np.repeat(np.arange(len(sizes)), sizes)
    counts = np.zeros((len(sizes), _ELEMENTS))
    np.add.at(counts, (graph, columns.numbers), 1.0)
    fractions = counts / np.maximum(sizes, 1)[:, None]
    return np.concatenate([counts, fractions, np.ones((len(sizes), 1))], axis=1)
