"""Error against ensemble size: the mean of 1, 2, 3 and more members.

Shapes: C candidates, M members, R rows of a head.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hydragnn_hpo.ensemble.select import ScoredHead, greedy_order
from hydragnn_hpo.ensemble.uncertainty_scores import mae

MOST = 24
"""Largest ensemble that is tried: errors hardly move any more."""

Known = tuple[Sequence[int], Mapping[str, ScoredHead]]
"""The candidates that predicted another split, and its heads: predictions [M, R, w] of those."""


def compute_size_curves(
    heads: Mapping[str, ScoredHead], objectives: Sequence[float], test: Known
) -> dict[str, list[dict[str, Any]]]:
    """Return the errors of means of 1, 2, 3 and more candidates; nothing is chosen by them.

    Args:
        heads: on ``sel``, of all candidates, [C, R, w].
        objectives: of the candidates, [C].
        test: what some of the candidates predicted on ``test``; no other is run there (Law 6).

    Returns:
        By method (``top``: the K of lowest objective; ``greedy``: the first K that greedy selection
        draws on ``sel``), for K = 1, 2 and so on: ``members``; ``added``, the candidate that came
        in; ``sel_mae`` by head; ``test_mae`` by head, None where one of them did not predict
        ``test``.
    """
    most = min(len(objectives), MOST)
    orders = {
        "top": np.argsort(np.asarray(objectives, np.float64), kind="stable")[:most].tolist(),
        "greedy": greedy_order(list(heads.values()), most),
    }
    return {
        method: [_size(heads, order[: k + 1], test) for k in range(len(order))]
        for method, order in orders.items()
    }


def errors_alone(heads: Mapping[str, ScoredHead], candidate: int) -> dict[str, float]:
    """Return the error of one candidate by head."""
    return {name: mae(head.predictions[candidate], head.truth) for name, head in heads.items()}


def _size(heads: Mapping[str, ScoredHead], members: Sequence[int], test: Known) -> dict[str, Any]:
    place = {candidate: row for row, candidate in enumerate(test[0])}
    is_known = all(candidate in place for candidate in members)
    return {
        "members": len(members),
        "added": members[-1],
        "sel_mae": _errors(heads, members),
        "test_mae": _errors(test[1], [place[c] for c in members]) if is_known else None,
    }


def _errors(heads: Mapping[str, ScoredHead], rows: Sequence[int]) -> dict[str, float]:
    taken = list(rows)
    return {
        name: mae(head.predictions[taken].mean(axis=0), head.truth) for name, head in heads.items()
    }
