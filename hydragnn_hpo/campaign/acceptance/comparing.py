"""How far two trainings are from each other, as numbers and as findings; pure."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.launching.doctor.finding import Finding

Weights = Mapping[str, NDArray[Any]]

EQUAL_MAE = 1e-5
"""Largest relative difference of an error that placement may make in fp32 (Law 1)."""

RESUMED_MAE = 1e-6
"""The same for a trial in fp64 that went on from checkpoints on devices that add in no fixed
order; on CPUs nothing may differ at all (Law 5)."""


def errors_apart(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Give the largest relative difference of errors, head by head; infinity of unlike heads."""
    if one.keys() != other.keys() or not one:
        return float("inf")
    apart = (
        abs(one[head] - other[head]) / max(abs(one[head]), abs(other[head]), 1e-300) for head in one
    )
    return max(apart)


def weights_apart(one: Weights, other: Weights) -> float:
    """Give the largest difference of weights, tensor by tensor, over its largest weight."""
    if one.keys() != other.keys() or not one:
        return float("inf")
    most = 0.0
    for name in one:
        if one[name].shape != other[name].shape:
            return float("inf")
        if one[name].size:
            scale = max(float(np.abs(one[name]).max()), float(np.abs(other[name]).max()), 1e-300)
            most = max(most, float(np.abs(one[name] - other[name]).max()) / scale)
    return most


def same_bits(one: Weights, other: Weights) -> bool:
    """Whether every weight is the same in every bit."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and one[name].tobytes() == other[name].tobytes()
        for name in one
    )


def equal_width(what: str, errors: float, weights: float, hosts: tuple[str, ...]) -> Finding:
    """Say whether a trial on other slots came to the same result.

    Args:
        what: the two that were compared.
        errors: see ``errors_apart``.
        weights: see ``weights_apart``; shown, not judged: rounding grows with every step.
        hosts: of the wider one.
    """
    good = errors <= EQUAL_MAE
    return Finding(
        f"same result: {what}",
        "ok" if good else "wrong",
        found=f"validation MAE {errors:.1e} apart, weights {weights:.1e}",
        expected=f"at most {EQUAL_MAE:.0e} in MAE",
        cure=""
        if good
        else "see whether sums are right (all-reduce sums), and whether all hosts have the same "
        "versions and devices.",
        hosts=hosts,
        figure=errors,
    )


def resumed(same: bool, errors: float, *, exact: bool, hosts: tuple[str, ...]) -> Finding:
    """Say whether a trial that was interrupted came to the result of one that was not.

    Args:
        same: whether all weights are the same in every bit.
        errors: see ``errors_apart``.
        exact: whether they must be, as on CPUs.
        hosts: of the trial.
    """
    good = same if exact else errors <= RESUMED_MAE
    found = "the same in every bit" if same else f"validation MAE {errors:.1e} apart"
    return Finding(
        "same result: interrupted and unbroken",
        "ok" if good else "wrong",
        found=found,
        expected="the same in every bit" if exact else f"at most {RESUMED_MAE:.0e} in MAE",
        cure=""
        if good
        else "see whether checkpoints reach the file system whole (doctor's checks of files).",
        hosts=hosts,
        figure=errors,
    )
