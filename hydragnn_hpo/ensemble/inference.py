"""What an ensemble says about structures: mean, calibrated sigma, interval, trust.

Shapes: G graphs, N nodes, R rows of a head (G or N), w components.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import torch
from ase import Atoms
from ase.data import chemical_symbols
from torch import Tensor

from hydragnn_hpo.config.convs.user import is_user_conv, package_of, version_of
from hydragnn_hpo.config.data import WIDTHS
from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.graph_set import GraphSet
from hydragnn_hpo.data.structure import Rules
from hydragnn_hpo.ensemble.artefact import archive
from hydragnn_hpo.ensemble.artefact.manifest import HeadEntry, Manifest
from hydragnn_hpo.ensemble.engine import EDGES_PER_BATCH, Engine, pieces
from hydragnn_hpo.ensemble.engines.choose import engine_of
from hydragnn_hpo.ensemble.member import Member, make_member
from hydragnn_hpo.ensemble.structure_batches import columns_of_atoms, rules_for
from hydragnn_hpo.ensemble.target_rows import graph_of_row, largest_per_graph, stratum_of_row
from hydragnn_hpo.ensemble.uncertainty.moments import Moments
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.model.gnn import variance_of


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
    bounds: Mapping[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    """Ends of the intervals of other levels that were asked for, by percent, each [R, w]."""
    members: Mapping[str, np.ndarray] = field(default_factory=dict)
    """What each member says, by its trial, [R, w]; empty unless asked for."""


@dataclass(frozen=True)
class Prediction:
    """What an ensemble says about some structures, in their order."""

    heads: dict[str, HeadPrediction]
    """By head; node-level heads hold all nodes of the first structure, then the next."""
    trust: tuple[str, ...]
    """``ok``, or why a structure's predictions should not be believed, [G]."""


def head_prediction(
    head: HeadEntry,
    parts: Sequence[Moments],
    *,
    levels: Sequence[int] = (),
    members: Mapping[str, Sequence[np.ndarray]] | None = None,
    stratum: np.ndarray | None = None,
) -> HeadPrediction:
    """Turn the moments of batch after batch into mean, sigma and intervals of one head.

    Args:
        head: with its calibration.
        parts: moments of the batches.
        levels: intervals besides that of 90 %, in percent.
        members: what each member said of each batch.
        stratum: name of each row's kind of structure, [R]; all alike if left out.
    """
    mean = _stack([part.mean for part in parts], WIDTHS[head.shape])
    spread = _stack([part.spread for part in parts], 1)
    noise = _stack([part.noise for part in parts], 1)
    sigma = head.calibration.sigma(spread, noise)
    half = head.calibration.half_width(sigma, 0.9, stratum)
    wide = {n: head.calibration.half_width(sigma, n / 100, stratum) for n in levels}
    return HeadPrediction(
        mean,
        sigma,
        spread,
        mean - half,
        mean + half,
        bounds={level: (mean - width, mean + width) for level, width in wide.items()},
        members={name: np.concatenate(said) for name, said in (members or {}).items() if said},
    )


def _stack(parts: Sequence[np.ndarray], width: int) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros((0, width))


def flags(
    manifest: Manifest,
    columns: Columns,
    indices: np.ndarray,
    heads: Mapping[str, HeadPrediction],
) -> tuple[str, ...]:
    """Give ``ok`` or the reasons against each structure's predictions, [G]."""
    reasons: list[list[str]] = [[] for _ in indices]
    here = columns.take(indices)
    graph_of_node = np.repeat(np.arange(len(indices)), here.num_nodes())
    unseen = ~np.isin(here.numbers, manifest.elements)
    for row, number in _pairs(graph_of_node[unseen], here.numbers[unseen]):
        reasons[row].append(f"unseen element {chemical_symbols[number]}")
    if manifest.coordination is not None:
        outside = manifest.coordination.outside(here)
        for row, number in _pairs(graph_of_node[outside], here.numbers[outside]):
            reasons[row].append(f"unseen coordination of {chemical_symbols[number]}")
    for name, head in heads.items():
        limit = manifest.heads[name].calibration.spread99 * (1 + 1e-9)
        node = manifest.heads[name].level == "node"
        graph = graph_of_row(columns, node=node, indices=indices)
        largest = largest_per_graph(head.std_epistemic[:, 0], graph, len(indices))
        broken = ~np.isfinite(head.mean).all(axis=1)
        for row in np.unique(graph[broken]).tolist():
            reasons[row].append(f"{name} is not finite")
        for row in np.flatnonzero(largest > limit).tolist():
            reasons[row].append(f"large spread of {name}")
    return tuple("; ".join(reason) or "ok" for reason in reasons)


def _pairs(graph: np.ndarray, number: np.ndarray) -> list[list[int]]:
    """Give graph and atomic number of some atoms, each pair once, in order."""
    pairs: list[list[int]] = np.unique(np.stack((graph, number), axis=1), axis=0).tolist()
    return pairs


Said = dict[str, list[np.ndarray]]
"""What members say of a head in batch after batch, by their trial."""


class Ensemble:
    """A set of members with one calibration; answers are the same in any batch (Law 7)."""

    def __init__(
        self,
        manifest: Manifest,
        members: Sequence[Member],
        device: str = "cpu",
        *,
        compiled: bool = False,
    ) -> None:
        """Take the members; they are kept in the order of their names.

        Args:
            manifest: heads, calibration, provenance.
            members: models with their weights.
            device: where they predict.
            compiled: run them as machine code, see ``engines.compiled``.
        """
        self.manifest = manifest
        self.device = torch.device(device)
        self.members = tuple(sorted(members, key=lambda member: member.trial))
        for member in self.members:
            member.model.to(self.device)
        self.compiled = compiled
        self.engine: Engine = engine_of(self.members, self.device, compiled=compiled)

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        device: str = "cpu",
        precision: str | None = None,
        trust: Collection[str] = (),
        compiled: bool = False,
    ) -> Self:
        """Read an ensemble file.

        Args:
            path: the ``ensemble.zip``.
            device: where to predict.
            precision: ``fp32`` or ``fp64`` for all members; each its own if left out.
            trust: packages whose convs may be imported, which runs their code.
            compiled: compile members when they first meet structures, or take them from the
                user's cache; those that cannot be compiled stay as they are.

        Raises:
            DataError: the file cannot be used; one sentence says why.
        """
        content = archive.read(Path(path))
        _check_trust(str(path), content, trust)
        manifest, members = content.manifest, []
        for entry in manifest.members:
            member = make_member(
                content.configs[entry.trial],
                content.weights[entry.trial],
                manifest.targets(),
                weights=entry.weights,
                where=str(path),
            )
            members.append(member if precision is None else member.in_precision(precision))
        return cls(manifest, members, device, compiled=compiled)

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
        structures: Columns | Atoms | Sequence[Atoms],
        indices: np.ndarray | None = None,
        *,
        edges_per_batch: int = EDGES_PER_BATCH,
        levels: Sequence[int] = (),
        members: bool = False,
    ) -> Prediction:
        """Predict every head for some structures.

        Args:
            structures: one ``ase.Atoms`` or several, or graphs of a store with edges up to at
                least the ensemble's cutoff.
            indices: which of the graphs, in which order; all if left out.
            edges_per_batch: bounds the memory of one batch.
            levels: intervals besides that of 90 %, in percent, see ``levels_known``.
            members: also give what each member says.

        Raises:
            DataError: a structure cannot become a graph, or the store's edges are too short.
        """
        columns = self._columns(structures)
        if indices is None:
            indices = np.arange(columns.num_graphs)
        indices = np.asarray(indices, dtype=np.int64)
        parts: dict[str, list[Moments]] = {name: [] for name in self.manifest.heads}
        said: dict[str, Said] = {name: {} for name in self.manifest.heads}
        for piece in pieces(columns, indices, edges_per_batch):
            for name, moments in self.moments(columns, piece, said if members else None).items():
                parts[name].append(moments)
        kinds = self._kinds(columns, indices)
        heads = {
            name: head_prediction(
                head, parts[name], levels=levels, members=said[name], stratum=kinds[name]
            )
            for name, head in self.manifest.heads.items()
        }
        return Prediction(heads, flags(self.manifest, columns, indices, heads))

    def _columns(self, structures: Columns | Atoms | Sequence[Atoms]) -> Columns:
        if isinstance(structures, Columns):
            self._check_cutoff(structures)
            return structures
        several = [structures] if isinstance(structures, Atoms) else structures
        return columns_of_atoms(several, self.rules)

    def _kinds(self, graphs: GraphSet, indices: np.ndarray) -> dict[str, np.ndarray | None]:
        """Give by head the kind of structure of each row, where that decides its intervals."""
        kinds: dict[str, np.ndarray | None] = dict.fromkeys(self.manifest.heads)
        for name, head in self.manifest.heads.items():
            if head.calibration.tables:
                node, strata = head.level == "node", self.manifest.strata
                kinds[name] = stratum_of_row(graphs, strata, node=node, indices=indices)
        return kinds

    def moments(
        self, graphs: GraphSet, indices: np.ndarray, heard: dict[str, Said] | None = None
    ) -> dict[str, Moments]:
        """Stream the members over one batch of graphs: by head, mean and spread.

        Args:
            graphs: with edges up to the ensemble's cutoff.
            indices: of the batch.
            heard: where each member's own values are kept, by head, if they are wanted.
        """
        moments = {name: Moments() for name in self.manifest.heads}
        for member, said in self.engine.said(graphs, indices):
            for name, weight in member.weights.items():
                noise = said.get(variance_of(name))
                values = as_array(said[name])
                moments[name].add(values, weight, None if noise is None else as_array(noise))
                if heard is not None:
                    heard[name].setdefault(member.trial, []).append(values)
        return moments

    def levels_known(self) -> tuple[int, ...]:
        """Give the whole percents that every head has an interval for."""
        known = [head.calibration.levels for head in self.manifest.heads.values()]
        common = set.intersection(*(set(levels) for levels in known))
        whole = {level: round(100 * level) for level in sorted(common)}
        return tuple(n for level, n in whole.items() if abs(100 * level - n) < 1e-9)

    def _check_cutoff(self, columns: Columns) -> None:
        found = float(columns.stats["cutoff"])
        if found < self.cutoff:
            raise DataError(
                f"the graphs hold edges up to {found:g} angstrom, the ensemble needs "
                f"{self.cutoff:g}: build them with that cutoff."
            )


def as_array(values: Tensor) -> np.ndarray:
    """Give a tensor of any device as an array in fp64."""
    array: np.ndarray = values.detach().double().cpu().numpy()
    return array


def _check_trust(where: str, content: archive.Content, trust: Collection[str]) -> None:
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
