"""Look at the test split, once (Law 6): what the ensemble is worth beside its yardsticks.

Shapes: M members, R rows of a head.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hydragnn_hpo.ensemble import target_rows
from hydragnn_hpo.ensemble.building.bench import Bench
from hydragnn_hpo.ensemble.building.calibration import strata_for
from hydragnn_hpo.ensemble.building.members import Said, mixed
from hydragnn_hpo.ensemble.uncertainty.calibrate import Calibration
from hydragnn_hpo.ensemble.uncertainty.evaluation import Predicted, curves_of, figures_of
from hydragnn_hpo.ensemble.uncertainty.moments import Moments
from hydragnn_hpo.ensemble.uncertainty.scores import mae
from hydragnn_hpo.records import finite

_OF_THE_SPLIT = ("rows", "mae", "rmse")
"""Figures that tables call ``test_mae`` and so on."""


def evaluate_heads(
    bench: Bench,
    said: Said,
    weights: Mapping[str, Mapping[str, np.ndarray]],
    calibrations: Mapping[str, Calibration],
    kept: str,
) -> tuple[dict[str, dict[str, Any]], dict[str, np.ndarray], dict[str, Any]]:
    """Score each head on the test split.

    Args:
        bench: what the steps share.
        said: what the members say about ``test``, the best single first.
        weights: by method and head the members' shares, [M].
        calibrations: by head.
        kept: the method whose mix is the ensemble.

    Returns:
        The table by head; the arrays of the figure; and the curves by head: what intervals promise
        against what they hold, errors against sigma, see ``curves_of``.
    """
    indices = bench.graphs.indices_of("test")
    table, curves, arrays = {}, {}, {"index": indices}
    for name, target in bench.targets.items():
        truth, mask = bench.truth(name, "test")
        truth = truth[mask]
        mixes = {m: mixed(said, name, w[name], mask) for m, w in weights.items()}
        found = _predicted(bench, name, truth, mixes[kept], mask)
        table[name] = _table(found, calibrations[name], target) | {
            "single_mae": mae(said[name][0][mask], truth),
            "test_mae_top_k": mae(mixes["top"].mean, truth),
            "test_mae_greedy": mae(mixes["greedy"].mean, truth),
        }
        curves[name] = finite(curves_of(found, calibrations[name]))
        arrays |= {f"{name}/{part}": a for part, a in _arrays(found, calibrations[name]).items()}
    return table, arrays, curves


def _arrays(found: Predicted, calibration: Calibration) -> dict[str, np.ndarray]:
    """Give what is drawn of every row: sigma as the members claim it, and calibrated."""
    sigma = found.sigma(calibration)
    half = calibration.half_width(sigma, 0.9, found.stratum)
    every = {"truth": found.truth, "mean": found.mean, "half90": half}
    return every | {"sigma": sigma, "raw_sigma": found.raw}


def _predicted(
    bench: Bench, name: str, truth: np.ndarray, mix: Moments, mask: np.ndarray
) -> Predicted:
    node, indices = target_rows.is_node(bench.graphs, name), bench.graphs.indices_of("test")
    stratum = target_rows.stratum_of_row(
        bench.graphs, strata_for(bench), node=node, indices=indices
    )
    return Predicted(truth, mix.mean, mix.spread, mix.noise, stratum[mask])


def _table(found: Predicted, calibration: Calibration, target: Mapping[str, Any]) -> dict[str, Any]:
    """Name one head's figures as tables and artefacts do; what has no value is None."""
    figures = {
        f"test_{name}" if name in _OF_THE_SPLIT else name: value
        for name, value in figures_of(found, calibration).items()
    }
    baseline = mae(float(target["mean"]), found.truth)
    plain: dict[str, Any] = finite(
        {
            "unit": target["unit"],
            **figures,
            "mean_baseline_mae": baseline,
            "ratio_to_mean": figures["test_mae"] / baseline if baseline else 0.0,
        }
    )
    return plain
