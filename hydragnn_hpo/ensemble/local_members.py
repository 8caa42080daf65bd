"""The regressions on local descriptors that are members of an ensemble, beside its nets.

A head has one of them, fitted on the training split, or one for each fold. Together they have the
weight u in the mean, and the nets share 1 - u. In the spread each counts as any member does: with
m the mean of the nets, s its spread and l a single regression, the whole has the squared spread
(1 - u) s^2 + u (1 - u) (l - m)^2.

Shapes: K regressions, G graphs, R rows of a head, w components.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from hydragnn_hpo.data import Columns
from hydragnn_hpo.ensemble.artefact import BaselineEntry, HeadEntry
from hydragnn_hpo.ensemble.baselines import CompositionModel
from hydragnn_hpo.ensemble.local_descriptors import ElementModel, LocalModels, find_start

Sum = float | str | None
"""What the values of a structure's atoms sum to: a number, the name of an attribute, or nothing."""


@dataclass(frozen=True)
class LocalMember:
    """A regression of each head that has one, fitted on the same structures."""

    models: LocalModels
    """What is added to the starts, for at least these heads."""
    starts: Mapping[str, ElementModel | None]
    """What the regression of each head corrects, as ``find_start`` returns it."""
    sums: Mapping[str, Sum]
    """What the values of a structure's atoms sum to, by head."""

    def restrict_to(self, heads: Sequence[str]) -> Self:
        """Return the member for some of its heads."""
        models = LocalModels(self.models.basis, {name: self.models.heads[name] for name in heads})
        return type(self)(models, {name: self.starts[name] for name in heads}, self.sums)

    def describe_start(self, head: str) -> BaselineEntry:
        """Return what the regression of a head corrects, as a part of an ensemble file.

        Zeros stand for nothing, and for the moment of a charge, which the file gives elsewhere.
        """
        start = self.starts[head]
        if isinstance(start, CompositionModel):
            return start.as_entry()
        return BaselineEntry(mean=(0.0,) * self.models.heads[head][0].width)

    def predict(self, columns: Columns) -> dict[str, np.ndarray]:
        """Predict all rows of each head.

        Args:
            columns: graphs with all edges up to the cutoff of the densities.

        Returns:
            By head, [R, w], in its unit.
        """
        heads = self.models.predict_heads(columns, self.starts)
        return {name: shift_to_sum(v, columns, self.sums.get(name)) for name, v in heads.items()}


def shift_to_sum(values: np.ndarray, columns: Columns, total: Sum) -> np.ndarray:
    """Shift the values of each structure's atoms by the same amount, so that they have their sum.

    Nets do the same, see ``model.gnn.SumConstraint``.

    Args:
        values: values of the atoms, [N, w].
        columns: the structures.
        total: the sum, of tensors that of the diagonal; None leaves the values as they are.
    """
    if total is None or not len(values):
        return values
    sizes = columns.num_nodes()
    wanted = columns.attributes[total] if isinstance(total, str) else np.full(len(sizes), total)
    graph = np.repeat(np.arange(len(sizes)), sizes)
    sums = np.stack([np.bincount(graph, part, len(sizes)) for part in values.T], axis=1)
    unit = np.eye(3).ravel() if values.shape[1] > 1 else np.ones(1)
    missing = (wanted[:, None] * unit - sums) / np.maximum(sizes, 1)[:, None]
    shifted: np.ndarray = values + missing[graph]
    return shifted


def open_local_members(
    heads: Mapping[str, HeadEntry], models: Sequence[LocalModels]
) -> tuple[LocalMember, ...]:
    """Return the regressions of an ensemble file.

    Args:
        heads: heads of the manifest.
        models: those of the file, K.

    Returns:
        The K regressions; empty where no head has any.
    """
    names = [name for name, head in heads.items() if head.local is not None]
    return tuple(
        LocalMember(
            models=one,
            starts={name: _open_start(heads[name], number) for name in names},
            sums={name: heads[name].sum for name in names},
        )
        for number, one in enumerate(models)
    )


def _open_start(head: HeadEntry, number: int) -> ElementModel | None:
    """Return what a regression of a head corrects; ``number`` counts the regressions."""
    assert head.local is not None
    entry = head.local.elements[number]
    is_node = head.level == "node"
    return find_start(CompositionModel.from_entry(entry, is_node=is_node), head.origin, head.charge)
