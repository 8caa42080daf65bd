"""Predict with a whole ensemble: mean, calibrated sigma, intervals, trust.

Shapes: G graphs, N nodes, R rows of a head (G or N), w components.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from ase.data import chemical_symbols

from hydragnn_hpo.config.convs.user import is_user_conv, package_of, version_of
from hydragnn_hpo.config.data import WIDTHS
from hydragnn_hpo.data.batch import Batch, make_batch
from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.graph_set import GraphSet
from hydragnn_hpo.data.structure import Rules
from hydragnn_hpo.ensemble import artefact
from hydragnn_hpo.ensemble.manifest import Manifest
from hydragnn_hpo.ensemble.member import Member, make_member
from hydragnn_hpo.ensemble.moments import Moments
from hydragnn_hpo.ensemble.rows import graph_of_row, largest_per_graph, node_rows
from hydragnn_hpo.ensemble.structures import columns_of_atoms, rules_for
from hydragnn_hpo.errors import DataError

EDGES_PER_BATCH = 40_000
"""Structures are predicted in batches of about this many edges and nodes."""


@dataclass(frozen=True)
class HeadPrediction:
    """One head; all in the head's unit."""

    mean: np.ndarray
    """Mean of the members, [R, w]."""
    std: np.ndarray
    """Calibrated standard deviation, [R, 1]; one for all components of a vector."""
    std_epistemic: np.ndarray
    """Spread of the members as it is, [R, 1]."""
    lo90: np.ndarray
    """Lower end of the 90 % interval, [R, w]."""
    hi90: np.ndarray
    """Upper end of the 90 % interval, [R, w]."""


@dataclass(frozen=True)
class Prediction:
    """What an ensemble says about some structures, in their order."""

    heads: dict[str, HeadPrediction]
    """By head; node-level heads hold all nodes of the first structure, then the next."""
    trust: tuple[str, ...]
    """``ok``, or why a structure's predictions should not be believed, [G]."""


class Ensemble:
    """A set of members with one calibration; answers are the same in any batch (Law 7)."""

    def __init__(self, manifest: Manifest, members: Sequence[Member], device: str = "cpu") -> None:
        """Take the members; they are kept in the order of their names.

        Args:
            manifest: heads, calibration, provenance.
            members: models with their weights.
            device: where they predict.
        """
        self.manifest = manifest
        self.device = torch.device(device)
        self.members = tuple(sorted(members, key=lambda member: member.trial))
        for member in self.members:
            member.model.to(self.device)

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        device: str = "cpu",
        precision: str | None = None,
        trust: Collection[str] = (),
    ) -> Self:
        """Read an ensemble file.

        Args:
            path: the ``ensemble.zip``.
            device: where to predict.
            precision: ``fp32`` or ``fp64`` for all members; each its own if left out.
            trust: packages whose convs may be imported, which runs their code.

        Raises:
            DataError: the file cannot be used; one sentence says why.
        """
        content = artefact.read(Path(path))
        _check_trust(str(path), content, trust)
        manifest, members = content.manifest, []
        for entry in manifest.members:
            member = make_member(
                content.configs[entry.trial],
                content.weights[entry.trial],
                manifest.targets(),
                weight=entry.weight,
                where=str(path),
            )
            members.append(member if precision is None else member.in_precision(precision))
        return cls(manifest, members, device)

    @property
    def cutoff(self) -> float:
        """Give the longest edge that graphs must hold, in angstrom."""
        return self.manifest.cutoff

    @property
    def rules(self) -> Rules:
        """Say how structures become graphs that every member can use."""
        known = self.manifest
        return rules_for(self.cutoff, known.attributes, known.laplacian)

    def predict(
        self,
        columns: Columns,
        indices: np.ndarray | None = None,
        *,
        edges_per_batch: int = EDGES_PER_BATCH,
    ) -> Prediction:
        """Predict every head for some structures of a store.

        Args:
            columns: the graphs, with edges up to at least the ensemble's cutoff.
            indices: which of them, in which order; all if left out.
            edges_per_batch: bounds the memory of one batch.

        Raises:
            DataError: the store's edges are too short.
        """
        if indices is None:
            indices = np.arange(len(columns.node_offset) - 1)
        indices = np.asarray(indices, dtype=np.int64)
        self._check_cutoff(columns)
        parts: dict[str, list[Moments]] = {name: [] for name in self.manifest.heads}
        for piece in pieces(columns, indices, edges_per_batch):
            for name, moments in self._moments(columns, piece).items():
                parts[name].append(moments)
        spreads = {name: _stack([m.spread for m in some], 1) for name, some in parts.items()}
        heads = {
            name: self._head(name, _stack([m.mean for m in some], self._width(name)), spreads[name])
            for name, some in parts.items()
        }
        return Prediction(heads, self._trust(columns, indices, heads))

    def predict_atoms(self, atoms: Any) -> Prediction:
        """Predict every head for one ``ase.Atoms``.

        Raises:
            DataError: the structure cannot become a graph.
        """
        return self.predict(columns_of_atoms(atoms, self.rules))

    def batches(self, columns: Columns, indices: np.ndarray) -> Iterator[tuple[Member, Batch]]:
        """Pair each member with the batch it needs; members alike share one batch."""
        yield from member_batches(self.members, columns, indices, self.device)

    @torch.no_grad()
    def _moments(self, columns: Columns, indices: np.ndarray) -> dict[str, Moments]:
        moments = {name: Moments() for name in self.manifest.heads}
        for member, batch in self.batches(columns, indices):
            said = member.model(batch)
            for name in moments:
                moments[name].add(said[name].double().cpu().numpy(), member.weight)
        return moments

    def _width(self, name: str) -> int:
        return WIDTHS[self.manifest.heads[name].shape]

    def _head(self, name: str, mean: np.ndarray, spread: np.ndarray) -> HeadPrediction:
        calibration = self.manifest.heads[name].calibration
        sigma = calibration.sigma(spread)
        half = calibration.half_width(sigma)
        return HeadPrediction(mean, sigma, spread, mean - half, mean + half)

    def _check_cutoff(self, columns: Columns) -> None:
        found = float(columns.stats["cutoff"])
        if found < self.cutoff:
            raise DataError(
                f"the graphs hold edges up to {found:g} angstrom, the ensemble needs "
                f"{self.cutoff:g}: build them with that cutoff."
            )

    def _trust(
        self, columns: Columns, indices: np.ndarray, heads: dict[str, HeadPrediction]
    ) -> tuple[str, ...]:
        reasons: list[list[str]] = [[] for _ in indices]
        counts = columns.num_nodes()[indices]
        numbers = np.split(columns.numbers[node_rows(columns, indices)], np.cumsum(counts)[:-1])
        for row, atoms in enumerate(numbers[: len(indices)]):
            unseen = sorted(set(atoms.tolist()) - set(self.manifest.elements))
            reasons[row] += [f"unseen element {chemical_symbols[z]}" for z in unseen]
        for name, head in heads.items():
            limit = self.manifest.heads[name].calibration.spread99 * (1 + 1e-9)
            graph = self._graph_of_row(columns, name, indices)
            largest = largest_per_graph(head.std_epistemic[:, 0], graph, len(indices))
            broken = ~np.isfinite(head.mean).all(axis=1)
            for row in np.unique(graph[broken]).tolist():
                reasons[row].append(f"{name} is not finite")
            for row in np.flatnonzero(largest > limit).tolist():
                reasons[row].append(f"large spread of {name}")
        return tuple("; ".join(reason) or "ok" for reason in reasons)

    def _graph_of_row(self, columns: Columns, name: str, indices: np.ndarray) -> np.ndarray:
        node = self.manifest.heads[name].level == "node"
        return graph_of_row(columns, node=node, indices=indices)


def _check_trust(where: str, content: artefact.Content, trust: Collection[str]) -> None:
    """Refuse to run code of packages that nobody said they trust (Law 10)."""
    for name in sorted({config.model.conv for config in content.configs.values()}):
        if not is_user_conv(name) or package_of(name) in trust:
            continue
        package = package_of(name)
        made = content.manifest.packages.get(package, "unknown")
        raise DataError(
            f"{where}: a member's conv is '{name}', whose code would be run (version {made} made "
            f"it, {version_of(name)} is here): say that you trust it, with --trust {package}."
        )


def pieces(columns: GraphSet, indices: np.ndarray, limit: int) -> Iterator[np.ndarray]:
    """Cut graphs into batches of about ``limit`` edges and nodes, order kept."""
    size = np.cumsum(columns.num_edges()[indices] + columns.num_nodes()[indices])
    group = (size - 1) // limit
    yield from np.split(indices, np.flatnonzero(np.diff(group)) + 1) if len(indices) else ()


def member_batches(
    members: Iterable[Member], columns: GraphSet, indices: np.ndarray, device: torch.device
) -> Iterator[tuple[Member, Batch]]:
    """Pair members with batches of some graphs, each masked to the member's own cutoff."""
    made: dict[tuple[float, torch.dtype, int | None], Batch] = {}
    for member in members:
        key = (member.cutoff, member.dtype, member.max_neighbors)
        if key not in made:
            batch = make_batch(
                columns,
                indices,
                cutoff=member.cutoff,
                dtype=member.dtype,
                max_neighbors=member.max_neighbors,
                pairs=True,
            )
            made[key] = batch.to(device)
        yield member, made[key]


def _stack(parts: Sequence[np.ndarray], width: int) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros((0, width))
