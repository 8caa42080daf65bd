"""How alike the members err on ``sel``, head by head.

Shapes: M members, R rows (graphs, or nodes of a node-level head), w components.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Diversity:
    """How much a head gains by mixing: mse = mean_member_mse - ambiguity."""

    correlation: list[list[float]]
    """Of the members' errors, M x M; 1 on the diagonal. Errors that are all alike count as 1."""
    mean_correlation: float | None
    """Mean off the diagonal; None for one member."""
    mse: float
    """Of the mix, in the unit squared; per row, its components summed."""
    mean_member_mse: float
    """Weighted mean over the members."""
    ambiguity: float
    """Weighted mean square by which members differ from the mix."""

    def to_plain(self) -> dict[str, Any]:
        """Give plain data for JSON."""
        return asdict(self)


def diversity(predictions: np.ndarray, truth: np.ndarray, weights: np.ndarray) -> Diversity:
    """Compare the members of one head; their errors are centred only in the correlation.

    Args:
        predictions: of each member, [M, R, w].
        truth: [R, w].
        weights: of the members, [M], summing to 1.

    Source: Krogh & Vedelsby (1995), Neural network ensembles, cross validation, and active
    learning, NIPS 7, eq. 7: the identity is exact for every weighting.
    """
    errors = predictions - truth
    mix = np.tensordot(weights, predictions, 1)

    def mean_square(values: np.ndarray) -> np.ndarray:
        means: np.ndarray = (values**2).sum(axis=-1).mean(axis=-1)
        return means

    matrix = _correlation(errors.reshape(len(errors), -1))
    pairs = matrix[~np.eye(len(matrix), dtype=bool)]
    return Diversity(
        correlation=matrix.tolist(),
        mean_correlation=float(pairs.mean()) if len(pairs) else None,
        mse=float(mean_square(mix - truth)),
        mean_member_mse=float(weights @ mean_square(errors)),
        ambiguity=float(weights @ mean_square(predictions - mix)),
    )


def _correlation(errors: np.ndarray) -> np.ndarray:
    """Correlate rows; rows that do not vary differ in nothing."""
    centred = errors - errors.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(centred, axis=1)
    flat = norms <= 1e-300
    units = centred / np.where(flat, 1.0, norms)[:, None]
    matrix = np.clip(units @ units.T, -1.0, 1.0)
    matrix[np.ix_(flat, flat)] = 1.0
    np.fill_diagonal(matrix, 1.0)
    found: np.ndarray = matrix
    return found
