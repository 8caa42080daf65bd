"""Predictions of the ensemble on the test split, for each row."""

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from hydragnn_hpo.errors import RunError
from hydragnn_hpo.layout import RunDir


def load_predictions(run: RunDir) -> dict[str, np.ndarray]:
    """Load the ensemble's predictions on the test split.

    Returns:
        Arrays by ``HEAD/PART``, [rows, components], in the head's unit; parts are ``truth``,
        ``mean``, ``half90`` (half the 90 % interval), and, in newer runs, ``sigma`` and
        ``raw_sigma`` (before calibration) and ``distance`` (to the training set, [rows, 1]).

    Raises:
        RunError: there is no ensemble yet, or the file is damaged.
    """
    path = run.report / "test_predictions.safetensors"
    if not path.exists():
        build = f"hydragnn-hpo ensemble build {run.path}"
        raise RunError(f"{run.path}: has no ensemble yet: run '{build}'.")
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: cannot be read ({error}); build the ensemble again.") from error


def read_test_predictions(run: RunDir) -> dict[str, dict[str, np.ndarray]]:
    """Read the test predictions of a run.

    Returns:
        By head, arrays ``truth``, ``mean``, ``half90``, ``sigma`` and ``raw_sigma``, as far as the
        run has them, flattened over components, [n]. Empty if the file is missing or damaged.
    """
    try:
        arrays = load_predictions(run)
    except RunError:
        return {}
    heads: dict[str, dict[str, np.ndarray]] = {}
    for name in arrays:
        head, _, part = name.rpartition("/")
        if part == "truth":
            shape = arrays[name].shape
            known = {p: arrays.get(f"{head}/{p}") for p in _PARTS}
            try:
                heads[head] = {
                    p: np.broadcast_to(a, shape).ravel() for p, a in known.items() if a is not None
                }
            except ValueError:
                continue  # its shape differs from that of the truth
    return {
        head: parts
        for head, parts in heads.items()
        if {"truth", "mean"} <= set(parts) and parts["truth"].size
    }


_PARTS = ("truth", "mean", "half90", "sigma", "raw_sigma")


def sample_evenly(values: np.ndarray, limit: int) -> np.ndarray:
    """Choose at most ``limit`` rows, evenly in the order of their values; deterministic."""
    order = np.argsort(values, kind="stable")
    if len(order) <= limit:
        return order
    return order[np.linspace(0, len(order) - 1, limit).round().astype(np.int64)]


def parity_range(truth: np.ndarray, mean: np.ndarray, half: np.ndarray) -> tuple[float, float]:
    """Choose the range of both axes: all points, and intervals as far as points stay apart.

    Args:
        truth: references, [n].
        mean: predictions, [n].
        half: half of each interval, [n].

    Returns:
        Lower and upper end.
    """
    low = float(min(truth.min(), mean.min()))
    high = float(max(truth.max(), mean.max()))
    room = 0.05 * (high - low) or 0.5
    least = float((mean - half).min())
    most = float((mean + half).max())
    return max(low - 4 * room, min(low - room, least)), min(high + 4 * room, max(high + room, most))
