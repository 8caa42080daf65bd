"""Predictions of the members for the calibration split: some of them can be calibrated again.

An ensemble file carries them as named arrays, so that members can be removed without the data set.

Shapes: C calibration structures, R rows of a head, w components.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from scipy.sparse import csr_array

from hydragnn_hpo.config import Bounds
from hydragnn_hpo.sanitize import escape_controls
from hydragnn_hpo.uncertainty.calibrate import (
    SYMBOLS,
    Calibration,
    Moments,
    calibrate,
    largest_per_graph,
)
from hydragnn_hpo.uncertainty.class_probabilities import calibrate_classes
from hydragnn_hpo.uncertainty.error_factors import RowFeatures, mark_elements, predicted_size

_KIND = "structures/kind/"
"""What the names of arrays begin with that mark the structures of one kind."""

_ATOMS = "structures/atoms/"
"""What the names of arrays about the atoms of all structures begin with."""

Widths = Mapping[str, int]
"""Components of each head."""

MOST_VALUES = 8_000_000
"""Most numbers of calibration data that an ensemble file carries: 64 MB."""


@dataclass(frozen=True)
class HeadCalibrationData:
    """One head on the calibration split, all rows."""

    truth: np.ndarray
    """The label, [R, w], in the unit; 0 where there is none."""
    mask: np.ndarray
    """Which rows have a label, [R]."""
    graph: np.ndarray
    """Position of each row's structure in the split, [R]."""
    predictions: Mapping[str, np.ndarray]
    """Prediction of each member that takes part in the head, by trial, [R, w], in the unit."""
    variances: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Variance of its own errors that a member predicts, by trial, [R, 1], in the unit squared;
    members that predict none are missing."""
    element: np.ndarray | None = None
    """Atomic number of each row's atom, [R], where elements have intervals of their own."""


@dataclass(frozen=True)
class AtomsOfStructures:
    """The atoms of the calibration split, N in all."""

    numbers: np.ndarray
    """Atomic number of each, [N]."""
    structure: np.ndarray
    """Position of the structure of each, rising, [N]."""


@dataclass(frozen=True)
class CalibrationData:
    """The calibration split with the predictions of the members for it."""

    group: np.ndarray
    """Group of each structure, [C]."""
    kind: np.ndarray
    """Name of each structure's kind, as ``Strata`` names them, [C]."""
    heads: Mapping[str, HeadCalibrationData]
    """By name of the head."""
    atoms: AtomsOfStructures | None = None
    """What factors of sigma need; None in files of earlier versions, which have none."""

    @property
    def values(self) -> int:
        """Number of labels and predictions in all heads."""
        return sum(
            a.size for head in self.heads.values() for a in (head.truth, *head.predictions.values())
        )

    def without(self, removed: Collection[str]) -> "CalibrationData":
        """Return the data of the members that are not removed; ``removed`` are trials."""
        heads = {
            name: replace(
                head,
                predictions={t: a for t, a in head.predictions.items() if t not in removed},
                variances={t: a for t, a in head.variances.items() if t not in removed},
            )
            for name, head in self.heads.items()
        }
        return replace(self, heads=heads)

    def factor_of_rows(self, name: str, mean: np.ndarray, fit: Calibration) -> np.ndarray:
        """Return the factors of sigma of the rows of a head, [R, 1].

        Args:
            name: of the head.
            mean: predictions, [R, w], in the unit.
            fit: the calibration of the head.
        """
        elements = self._elements(name)
        return np.ones((len(mean), 1)) if elements is None else fit.factor(elements, mean)

    def _features(self, name: str, mean: np.ndarray) -> RowFeatures | None:
        """Return what factors of the labelled rows depend on, if atoms are known.

        Args:
            name: of the head.
            mean: predictions of all rows, [R, w], in the unit.
        """
        elements = self._elements(name)
        mask = self.heads[name].mask
        return None if elements is None else RowFeatures(elements, predicted_size(mean)).of(mask)

    def _elements(self, name: str) -> csr_array | None:
        """Return 1 for each element that a row of a head contains, [R, 119], if atoms are known."""
        if self.atoms is None:
            return None
        numbers, structure = self.atoms.numbers, self.atoms.structure
        graph = self.heads[name].graph
        if np.array_equal(graph, structure):  # a row for each atom
            return mark_elements(numbers, np.arange(len(numbers)), len(numbers))
        return csr_array(mark_elements(numbers, structure, len(self.group))[graph])

    def moments(
        self, name: str, weights: Mapping[str, float], bounds: Bounds | None = None
    ) -> Moments:
        """Return the moments of one head, [R, w].

        Args:
            name: of the head.
            weights: of the members that take part, by trial, > 0.
            bounds: of the mean, in the unit.
        """
        head = self.heads[name]
        moments = Moments(bounds)
        for trial, weight in weights.items():
            moments.add(head.predictions[trial], weight, head.variances.get(trial))
        return moments

    def calibrate_head(
        self,
        name: str,
        weights: Mapping[str, float],
        scale: float,
        bounds: Bounds | None = None,
        *,
        is_class: bool = False,
    ) -> Calibration:
        """Calibrate one head for some weights, as ``ensemble build`` does.

        Args:
            name: of the head.
            weights: of the members that take part, by trial, > 0.
            scale: the target's standard deviation on the training split, in the unit.
            bounds: of the mean, in the unit.
            is_class: whether predictions are probabilities of classes.
        """
        head = self.heads[name]
        moments = self.moments(name, weights, bounds)
        by_element = head.element is not None
        stratum = SYMBOLS[head.element] if by_element else self.kind[head.graph]
        if is_class:
            return calibrate_classes(
                moments.mean[head.mask],
                head.truth[head.mask],
                group=self.group[head.graph][head.mask],
                largest=largest_per_graph(moments.spread[:, 0], head.graph, len(self.group)),
                stratum=stratum[head.mask],
            )
        return calibrate(
            (head.truth - moments.mean)[head.mask],
            moments.spread[head.mask],
            group=self.group[head.graph][head.mask],
            largest=largest_per_graph(moments.spread[:, 0], head.graph, len(self.group)),
            scale=scale,
            noise=moments.noise[head.mask],
            stratum=stratum[head.mask],
            features=self._features(name, moments.mean),
        )


def to_arrays(data: CalibrationData) -> dict[str, np.ndarray]:
    """Return the data as named arrays for an ensemble file.

    Returns:
        By name as the room's README lists them; in fp32 where that is exact, else in fp64.
    """
    arrays = {"structures/group": data.group.astype(np.int64)}
    for kind in np.unique(data.kind):
        arrays[f"{_KIND}{kind}"] = (data.kind == kind).astype(np.uint8)
    if data.atoms is not None:
        arrays[f"{_ATOMS}numbers"] = data.atoms.numbers.astype(np.uint8)
        arrays[f"{_ATOMS}structure"] = data.atoms.structure.astype(np.int64)
    for name, head in data.heads.items():
        arrays |= {
            f"{name}/truth": _to_fp32(head.truth),
            f"{name}/mask": head.mask.astype(np.uint8),
            f"{name}/graph": head.graph.astype(np.int64),
        }
        if head.element is not None:
            arrays[f"{name}/element"] = head.element.astype(np.uint8)
        arrays |= {f"{name}/said/{trial}": _to_fp32(a) for trial, a in head.predictions.items()}
        arrays |= {f"{name}/variance/{trial}": _to_fp32(a) for trial, a in head.variances.items()}
    return arrays


def from_arrays(
    arrays: Mapping[str, np.ndarray], weights: Mapping[str, Mapping[str, float]], width: Widths
) -> CalibrationData:
    """Read named arrays and check all of them.

    Args:
        arrays: as ``to_arrays`` returns them, of untrusted origin.
        weights: by head and trial; each of these must have predictions.
        width: components of each head.

    Raises:
        ValueError: arrays are missing, too many, of a wrong shape, or not finite.
    """
    # an array that is read is taken out: none may be left
    left = dict(arrays)
    heads = {}
    take = partial(_take, left)
    group, kind, atoms = _structures(left)
    for name, shares in weights.items():
        rows = len(left.get(f"{name}/mask", ()))
        shape = (rows, width[name])
        graph = take(f"{name}/graph", (rows,), "i")
        if rows and not (graph.min() >= 0 and graph.max() < len(group)):
            raise ValueError(f"'{name}/graph' names structures that are not there")
        mask = take(f"{name}/mask", (rows,), "u").astype(bool)
        if not mask.any():
            raise ValueError(f"'{name}' has no row with a truth")
        own = {t: f"{name}/variance/{t}" for t in shares}
        elements = f"{name}/element"
        element = take(elements, (rows,), "u") if elements in left else None
        if element is not None and not (element < len(SYMBOLS)).all():
            raise ValueError(f"'{elements}' names elements that do not exist")
        heads[name] = HeadCalibrationData(
            truth=take(f"{name}/truth", shape, "f"),
            mask=mask,
            graph=graph,
            predictions={t: take(f"{name}/said/{t}", shape, "f") for t in shares},
            variances={t: take(k, (rows, 1), "f") for t, k in own.items() if k in left},
            element=element,
        )
    if left:
        raise ValueError(f"'{min(left)}' is about nothing in the ensemble")
    return CalibrationData(group, kind, heads, atoms)


def _atoms(left: dict[str, np.ndarray], structures: int) -> AtomsOfStructures | None:
    """Take the atoms of some structures out of the arrays that are left, if they are there."""
    names = [f"{_ATOMS}numbers", f"{_ATOMS}structure"]
    if left.keys().isdisjoint(names):
        return None
    size = len(left.get(names[0], ()))
    numbers, structure = (
        _take(left, name, (size,), kind) for name, kind in zip(names, "ui", strict=True)
    )
    if not (numbers < len(SYMBOLS)).all():
        raise ValueError(f"'{names[0]}' names elements that do not exist")
    whole = np.unique(structure)
    if not np.array_equal(whole, np.arange(structures)) or (np.diff(structure) < 0).any():
        raise ValueError(f"'{names[1]}' does not list the atoms of each structure")
    return AtomsOfStructures(numbers, structure)


def _structures(
    left: dict[str, np.ndarray],
) -> tuple[np.ndarray, np.ndarray, AtomsOfStructures | None]:
    """Take what is known of structures out of the arrays that are left.

    Returns:
        Group and kind of each, [C] each; their atoms, None in files of earlier versions.
    """
    size = len(left.get("structures/group", ()))
    group = _take(left, "structures/group", (size,), "i")
    names = [key.removeprefix(_KIND) for key in left if key.startswith(_KIND)]
    chosen = np.array([_take(left, f"{_KIND}{kind}", (size,), "u") for kind in names])
    if (
        not names
        or escape_controls("".join(names)) != "".join(names)
        or not (chosen.sum(axis=0) == 1).all()
    ):
        raise ValueError("structures do not have one kind each")
    return group, np.array(names)[chosen.argmax(axis=0)], _atoms(left, size)


def _take(left: dict[str, np.ndarray], key: str, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Take one array out of those that are left.

    Args:
        left: arrays by name; ``key`` is removed.
        key: name of the array.
        shape: that it must have.
        kind: of its numbers, as numpy calls it: ``f``, ``i`` or ``u``.
    """
    array = left.pop(key, None)
    if array is None:
        raise ValueError(f"'{key}' is missing")
    if array.shape != shape or array.dtype.kind != kind or not np.isfinite(array).all():
        raise ValueError(f"'{key}' has a wrong shape or kind, or numbers that are not finite")
    return array.astype(np.float64) if kind == "f" else array


def _to_fp32(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, dtype=np.float64)
    short = values.astype(np.float32)
    return short if np.array_equal(short.astype(np.float64), values) else values
