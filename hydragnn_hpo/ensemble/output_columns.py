"""What the columns of an output are called, and what stands in them; the same in all formats.

The columns of a head ``t`` are ``t``, ``t_std``, ``t_std_epistemic``, ``t_lo90`` and ``t_hi90``
(or of other levels); a vector has ``t_x``, ``t_y``, ``t_z`` and so on, but one ``t_std``. The value
of one member is ``t_TRIAL``. Names carry no unit, so that scripts do not break over it.

Shapes: G graphs, R rows of a head (G or N), w components.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

import numpy as np

from hydragnn_hpo.data import Columns
from hydragnn_hpo.ensemble.artefact import Manifest
from hydragnn_hpo.ensemble.inference import HeadPrediction, Prediction
from hydragnn_hpo.ensemble.structure_batches import Structures

AXES = {
    "scalar": ("",),
    "vector": ("_x", "_y", "_z"),
    "tensor": tuple(f"_{a}{b}" for a in "xyz" for b in "xyz"),
}
"""What is put behind the names of components, by the shape of a head."""


@dataclass(frozen=True, eq=False)
class PredictedRows:
    """Some structures and their predictions, without edges."""

    structures: Structures
    """Good ones and bad ones."""
    prediction: Prediction
    """For the good ones."""

    def good(self) -> list[int]:
        """Return the positions of the structures that were predicted, in order."""
        errors = self.structures.errors
        return [place for place in range(len(self.structures.ids)) if place not in errors]

    @property
    def num_nodes(self) -> np.ndarray:
        """Number of atoms of each good structure, [G]."""
        return self.structures.columns.num_nodes()


def make_rows(structures: Structures, prediction: Prediction) -> PredictedRows:
    """Return both together, without the edges, which take most of the memory."""
    columns = structures.columns
    light = replace(
        columns,
        edges=columns.edges[:0],
        edge_shift=columns.edge_shift[:0],
        edge_offset=np.zeros_like(columns.edge_offset),
        edge_translation=None,
        laplacian=None,
    )
    return PredictedRows(replace(structures, columns=light), prediction)


@dataclass(frozen=True)
class OutputColumns:
    """Which columns there are."""

    manifest: Manifest
    """Heads, units, provenance."""
    levels: tuple[int, ...] = (90,)
    """Intervals, in percent."""
    members: bool = False
    """Whether each member has columns of its own."""
    keep: tuple[str, ...] = ()
    """Keys of the input that are copied."""
    ensemble: str = ""
    """Checksum of the ensemble's file."""

    def names(self, level: str) -> list[str]:
        """Return the heads of a level: ``graph`` or ``node``."""
        return [name for name, head in self.manifest.heads.items() if head.level == level]

    def titles(self, name: str) -> list[str]:
        """Return the titles of a head's columns."""
        axes = AXES[self.manifest.heads[name].shape]
        ends = [f"_{end}{level}{axis}" for level, end, axis in self._ends(axes)]
        own = [f"_{trial}{axis}" for trial in self.trials(name) for axis in axes]
        return [name + tail for tail in (*axes, "_std", "_std_epistemic", *ends, *own)]

    def values(self, name: str, head: HeadPrediction) -> np.ndarray:
        """Return a head's columns side by side, in the order of their titles, [R, columns]."""
        bounds = {**head.bounds, 90: (head.lo90, head.hi90)}
        ends = [array for level in self.levels for array in bounds[level]]
        own = [head.members[trial] for trial in self.trials(name)]
        parts = [head.mean, head.std, head.std_epistemic, *ends, *own]
        return np.hstack(parts) if len(head.mean) else np.zeros((0, len(self.titles(name))))

    def trials(self, name: str) -> list[str]:
        """Return the members that have columns of their own for a head, by name."""
        if not self.members:
            return []
        return sorted(m.trial for m in self.manifest.members if name in m.weights)

    def lacking(self, found: Container[str]) -> tuple[str, ...]:
        """Return the keys to copy that no structure had.

        Args:
            found: those that some structure had.
        """
        return tuple(key for key in self.keep if key not in found)

    def provenance(self) -> dict[str, str]:
        """Return where the numbers come from."""
        manifest = self.manifest
        return {
            "ensemble_sha256": self.ensemble,
            "campaign": manifest.created_by.campaign,
            "package": manifest.package,
        }

    def _ends(self, axes: tuple[str, ...]) -> Iterator[tuple[int, str, str]]:
        for level in self.levels:
            for end in ("lo", "hi"):
                yield from ((level, end, axis) for axis in axes)


def split_nodes(columns: Columns, values: np.ndarray) -> list[np.ndarray]:
    """Cut the rows of a node-level head into those of each structure."""
    return np.split(values, columns.node_offset[1:-1]) if columns.num_graphs else []
