"""What members said about the calibration split: enough to calibrate fewer of them anew.

Shapes: C calibration structures, R rows of a head, w components.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from hydragnn_hpo.ensemble.target_rows import largest_per_graph
from hydragnn_hpo.ensemble.uncertainty.calibrate import Calibration, calibrate
from hydragnn_hpo.ensemble.uncertainty.moments import Moments
from hydragnn_hpo.text import shown

_KIND = "structures/kind/"
Widths = Mapping[str, int]

MOST_VALUES = 8_000_000
"""Numbers that an ensemble carries as evidence at most, 64 MB; larger ones stay at home."""


@dataclass(frozen=True)
class HeadEvidence:
    """One head on the calibration split, all rows."""

    truth: np.ndarray
    """[R, w] in the unit; 0 where there is none."""
    mask: np.ndarray
    """Which rows have a truth, [R]."""
    graph: np.ndarray
    """Position of each row's structure, [R]."""
    said: Mapping[str, np.ndarray]
    """Prediction of each member that takes part in the head, by trial, [R, w]."""
    variances: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Variance that members predict for themselves, by trial, [R, 1]; those that do."""


@dataclass(frozen=True)
class Evidence:
    """The calibration split as the members saw it."""

    group: np.ndarray
    """Group of each structure, [C]."""
    kind: np.ndarray
    """Name of each structure's kind, as ``Strata`` names them, [C]."""
    heads: Mapping[str, HeadEvidence]
    """By name."""

    @property
    def values(self) -> int:
        """Give how many numbers it holds."""
        return sum(
            a.size for head in self.heads.values() for a in (head.truth, *head.said.values())
        )

    def without(self, removed: set[str]) -> "Evidence":
        """Give the evidence of the other members."""
        heads = {
            name: HeadEvidence(
                head.truth,
                head.mask,
                head.graph,
                {trial: a for trial, a in head.said.items() if trial not in removed},
                {trial: a for trial, a in head.variances.items() if trial not in removed},
            )
            for name, head in self.heads.items()
        }
        return Evidence(self.group, self.kind, heads)

    def moments(self, name: str, weights: Mapping[str, float]) -> Moments:
        """Give mean and spread of one head for some weights by trial."""
        head, moments = self.heads[name], Moments()
        for trial, weight in weights.items():
            moments.add(head.said[trial], weight, head.variances.get(trial))
        return moments

    def calibration(self, name: str, weights: Mapping[str, float], scale: float) -> Calibration:
        """Calibrate one head for some weights, as it is done when an ensemble is built.

        Args:
            name: of the head.
            weights: by trial, > 0.
            scale: the target's standard deviation.
        """
        head, moments = self.heads[name], self.moments(name, weights)
        return calibrate(
            (head.truth - moments.mean)[head.mask],
            moments.spread[head.mask],
            group=self.group[head.graph][head.mask],
            largest=largest_per_graph(moments.spread[:, 0], head.graph, len(self.group)),
            scale=scale,
            noise=moments.noise[head.mask],
            stratum=self.kind[head.graph][head.mask],
        )


def to_arrays(evidence: Evidence) -> dict[str, np.ndarray]:
    """Give evidence as named arrays; fp32 where that loses nothing."""
    arrays = {"structures/group": evidence.group.astype(np.int64)}
    for kind in np.unique(evidence.kind):
        arrays[f"{_KIND}{kind}"] = (evidence.kind == kind).astype(np.uint8)
    for name, head in evidence.heads.items():
        arrays |= {
            f"{name}/truth": _short(head.truth),
            f"{name}/mask": head.mask.astype(np.uint8),
            f"{name}/graph": head.graph.astype(np.int64),
        }
        arrays |= {f"{name}/said/{trial}": _short(a) for trial, a in head.said.items()}
        arrays |= {f"{name}/variance/{trial}": _short(a) for trial, a in head.variances.items()}
    return arrays


def from_arrays(
    arrays: Mapping[str, np.ndarray], weights: Mapping[str, Mapping[str, float]], width: Widths
) -> Evidence:
    """Read evidence back.

    Args:
        arrays: as ``to_arrays`` gives them; nothing about them is believed.
        weights: by head and trial: what must be there.
        width: components of each head.

    Raises:
        ValueError: arrays are missing, too many, of a wrong shape, or not finite.
    """
    left, heads = dict(arrays), {}
    take = partial(_take, left)
    group, kind = _structures(left)
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
        heads[name] = HeadEvidence(
            truth=take(f"{name}/truth", shape, "f"),
            mask=mask,
            graph=graph,
            said={t: take(f"{name}/said/{t}", shape, "f") for t in shares},
            variances={t: take(k, (rows, 1), "f") for t, k in own.items() if k in left},
        )
    if left:
        raise ValueError(f"'{min(left)}' is about nothing in the ensemble")
    return Evidence(group, kind, heads)


def _structures(left: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    size = len(left.get("structures/group", ()))
    group = _take(left, "structures/group", (size,), "i")
    names = [key.removeprefix(_KIND) for key in left if key.startswith(_KIND)]
    chosen = np.array([_take(left, f"{_KIND}{kind}", (size,), "u") for kind in names])
    if not names or shown("".join(names)) != "".join(names) or not (chosen.sum(axis=0) == 1).all():
        raise ValueError("structures do not have one kind each")
    return group, np.array(names)[chosen.argmax(axis=0)]


def _take(left: dict[str, np.ndarray], key: str, shape: tuple[int, ...], kind: str) -> np.ndarray:
    found = left.pop(key, None)
    if found is None:
        raise ValueError(f"'{key}' is missing")
    if found.shape != shape or found.dtype.kind != kind or not np.isfinite(found).all():
        raise ValueError(f"'{key}' has a wrong shape or kind, or numbers that are not finite")
    return found.astype(np.float64) if kind == "f" else found


def _short(values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, dtype=np.float64)
    short = values.astype(np.float32)
    return short if np.array_equal(short.astype(np.float64), values) else values
