"""Centre and spread of every target, fitted on the training split only.

Shapes: G graphs, N nodes.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hydragnn_hpo.config.data import TargetConfig
from hydragnn_hpo.data.baseline import element_baseline
from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.units import inside


def target_stats(columns: Columns, targets: Mapping[str, TargetConfig]) -> dict[str, Any]:
    """Describe every target; all numbers are in our own units and from ``train`` alone.

    A scalar has its mean and standard deviation. A vector or tensor has mean 0 and the
    root mean square of its components: only a common factor keeps it a vector. ``mad`` is the mean
    absolute deviation from the mean, what predicting the mean costs on the training split.
    A target that never changes has ``std`` 1, so that one can divide by it.

    Raises:
        DataError: a target has no value in the training split.
    """
    return {name: _describe(columns, name, target) for name, target in targets.items()}


def attribute_stats(columns: Columns) -> dict[str, dict[str, float]]:
    """Give centre and spread of each attribute on the training split, for models told of it."""
    train = columns.split == 0
    found = {}
    for name, values in columns.attributes.items():
        known = values[train] if train.any() else values
        found[name] = {"mean": float(known.mean()), "std": float(known.std()) or 1.0}
    return found


def _describe(columns: Columns, name: str, target: TargetConfig) -> dict[str, Any]:
    train = columns.split == 0
    chosen = train if target.level == "graph" else np.repeat(train, columns.num_nodes())
    values = columns.targets[name][chosen & columns.masks[name]]
    if not len(values):
        raise DataError(
            f"target '{name}' has no value in the training split: drop it from the card, or "
            "add structures that have it."
        )
    mean = float(values.mean()) if target.shape == "scalar" else 0.0
    spread = float(np.sqrt(np.square(values - mean).mean()))
    return {
        "level": target.level,
        "shape": target.shape,
        "unit": _unit(target),
        "energy": target.energy,
        "derived_from": target.derived_from,
        "description": target.description,
        "mean": mean,
        "std": spread if spread > 1e-12 * max(1.0, abs(mean)) else 1.0,
        "min": float(values.min()),
        "max": float(values.max()),
        "count": len(values),
        "mad": float(np.abs(values - mean).mean()),
        "elements": element_baseline(columns, name, target, mean),
    }


def _unit(target: TargetConfig) -> str:
    """Name the unit inside; a divided value says so."""
    unit = inside(target.unit)[1]
    return f"{unit}/atom" if target.per_atom else unit
