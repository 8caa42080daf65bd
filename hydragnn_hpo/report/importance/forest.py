"""A forest of extra trees that predicts a target, how far to trust it, and what it says of each.

SHAP values of a trial sum to its prediction minus that of the average point of the space.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from hydragnn_hpo.report.importance.design import Matrix

TREES, DEPTH, LEAF = 100, 8, 2
"""Deeper trees explain 1 % more of 2,000 trials and take SHAP half as long again."""

AT_A_TIME = 20
"""Trials that SHAP explains in one call: after ten seconds it would draw a progress bar."""


@dataclass(frozen=True)
class Forest:
    """A fitted forest."""

    model: Any
    """Of scikit-learn."""
    skill: float
    """Share of the variance that it explains in trials that its trees have not seen (out-of-bag
    R2). For failures, which are 0 or 1, this is the Brier skill score against their base rate."""


def fit(rows: Matrix, values: Matrix, *, seed: int) -> Forest:
    """Fit a forest to rows [N, C] and values [N].

    Each tree sees a bootstrap sample; the others are its test.
    Source: Geurts, Ernst and Wehenkel (2006), doi:10.1007/s10994-006-6226-1.
    """
    from sklearn.ensemble import ExtraTreesRegressor

    model = ExtraTreesRegressor(
        n_estimators=TREES,
        max_depth=DEPTH,
        min_samples_leaf=LEAF,
        bootstrap=True,
        random_state=seed,
    )
    model.fit(rows, values)
    return Forest(model, _out_of_bag(model, rows, values))


def shap_values(forest: Forest, points: Matrix, background: Matrix) -> Matrix:
    """Give each column's part of each prediction, [N, C].

    The background is drawn evenly over the space: with the trials in its place, a parameter that
    the search has settled would seem to be of no importance.
    Source: Lundberg et al. (2020), doi:10.1038/s42256-019-0138-9 (interventional).
    """
    with warnings.catch_warnings():  # it loads its plots, too, with colours of an old kind
        warnings.simplefilter("ignore")
        from shap import TreeExplainer

    explainer = TreeExplainer(forest.model, data=background, feature_perturbation="interventional")
    found = [
        explainer.shap_values(points[begin : begin + AT_A_TIME], check_additivity=False)
        for begin in range(0, len(points), AT_A_TIME)
    ]
    return np.concatenate(found).reshape(points.shape).astype(np.float64)


def _out_of_bag(model: Any, rows: Matrix, values: Matrix) -> float:
    """Give R2 over the trials that at least one tree has not seen.

    Written out, since scikit-learn warns of trials that all trees have seen and scores them as 0.
    """
    total, count = np.zeros(len(values)), np.zeros(len(values))
    for tree, seen in zip(model.estimators_, model.estimators_samples_, strict=True):
        unseen = np.ones(len(values), dtype=bool)
        unseen[seen] = False
        if unseen.any():
            total[unseen] += tree.predict(rows[unseen].astype(np.float32))
            count[unseen] += 1
    kept = count > 0
    if not kept.any():
        return 0.0
    rest = np.sum((values[kept] - total[kept] / count[kept]) ** 2)
    spread = np.sum((values[kept] - values[kept].mean()) ** 2)
    return float(1.0 - rest / spread) if spread > 0 else 0.0
