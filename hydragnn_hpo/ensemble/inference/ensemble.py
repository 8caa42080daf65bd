"""Predict with a whole ensemble: mean, calibrated sigma, intervals, trust.

Shapes: G graphs, N nodes, R rows of a head (G or N), w components.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch
from ase import Atoms
from torch import Tensor

from hydragnn_hpo.config.convs.user import is_user_conv, package_of, version_of
from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.graph_set import GraphSet
from hydragnn_hpo.data.structure import Rules
from hydragnn_hpo.ensemble.artefact import ArtefactContent, read_artefact
from hydragnn_hpo.ensemble.inference.batches import EDGES_PER_BATCH, pieces
from hydragnn_hpo.ensemble.inference.engine import Engine, make_engine
from hydragnn_hpo.ensemble.inference.member import Member, make_member
from hydragnn_hpo.ensemble.inference.prediction import Prediction, head_prediction
from hydragnn_hpo.ensemble.inference.rows import stratum_of_row
from hydragnn_hpo.ensemble.inference.structures import columns_of_atoms, rules_for
from hydragnn_hpo.ensemble.inference.trust import flags
from hydragnn_hpo.ensemble.manifest import Manifest
from hydragnn_hpo.ensemble.moments import Moments
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.model.gnn import variance_of

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
        self.engine: Engine = make_engine(self.members, self.device, compiled=compiled)

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
        content = read_artefact(Path(path))
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
        for member, said in self.engine.predict(graphs, indices):
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


def _check_trust(where: str, content: ArtefactContent, trust: Collection[str]) -> None:
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
