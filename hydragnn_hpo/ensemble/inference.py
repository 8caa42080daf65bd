"""Load an ensemble and predict: mean, sigma, intervals and trust, on one or several devices.

With several devices, members are distributed by their measured time per batch.

Shapes: G graphs, R rows of a head (graphs or nodes), w its components.
"""

import html
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from ase import Atoms
from ase.data import chemical_symbols
from torch import Tensor

from hydragnn_hpo.config import TrialConfig
from hydragnn_hpo.config.convs.spec import is_user_conv, package_of, version_of
from hydragnn_hpo.data import Columns, GraphSet, Rules, balance_load, offsets
from hydragnn_hpo.ensemble.artefact import (
    LOCAL_MEMBER,
    ArtefactContent,
    Manifest,
    find_constants,
    read_artefact,
)
from hydragnn_hpo.ensemble.descriptors import TrainingFeatures
from hydragnn_hpo.ensemble.engine import (
    EDGES_PER_BATCH,
    EagerEngine,
    Engine,
    Member,
    as_array,
    devices_of,
    make_member,
    pieces,
    predict_in_halves,
)
from hydragnn_hpo.ensemble.head_predictions import MemberValues, describe_heads
from hydragnn_hpo.ensemble.local_descriptors import LocalModels
from hydragnn_hpo.ensemble.local_members import LocalMember, open_local_members
from hydragnn_hpo.ensemble.model_card import render_model_card
from hydragnn_hpo.ensemble.packed_trunk import unpack_trunk
from hydragnn_hpo.ensemble.prediction import PredictedStructures, Prediction
from hydragnn_hpo.ensemble.structure_batches import columns_of_atoms, rules_for
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.model import variance_key
from hydragnn_hpo.model.trunks import FrozenTrunk, find_trunk
from hydragnn_hpo.model.trunks.embed import flat_features
from hydragnn_hpo.resources import find_shipped
from hydragnn_hpo.training import keep_freed_memory
from hydragnn_hpo.uncertainty import Moments

logger = logging.getLogger(__name__)

_TIMINGS = 3
"""Number of timed runs per member; the shortest time counts."""

Timer = Callable[[Engine, GraphSet, np.ndarray], float]
"""Returns the seconds that an engine takes for one batch, see ``time_engine``."""


class Ensemble:
    """Members and their calibration; how structures are batched changes no prediction (Law 7)."""

    def __init__(
        self,
        manifest: Manifest,
        members: Sequence[Member],
        device: str = "cpu",
        *,
        configs: Mapping[str, TrialConfig] | None = None,
    ) -> None:
        """Move the members to a device, and sort them by trial.

        On a CPU this process keeps freed memory from then on, see ``keep_freed_memory``.

        Args:
            manifest: heads, calibration, provenance.
            members: nets with their weights; moved to ``device``.
            device: torch device to predict on.
            configs: configurations of the members, by trial, for the model card.
        """
        self.manifest = manifest
        self.configs = dict(configs or {})
        self.features: TrainingFeatures | None = None  # those of the file, see ``load``
        self.local: LocalModels | None = None  # likewise
        self.local_members: tuple[LocalMember, ...] = ()  # likewise
        self.trunks: dict[str, FrozenTrunk] = {}  # likewise, those of the package where missing
        self._embedded: tuple[GraphSet, np.ndarray, Columns] | None = None
        self._warned: set[str] = set()
        self.device = torch.device(device)
        self.members = tuple(sorted(members, key=lambda member: member.trial))
        for member in self.members:
            member.model.to(self.device)
        if self.device.type == "cpu":  # with it large batches take two thirds of the time
            keep_freed_memory()
        self.engine: Engine = make_engine(self.members, self.device)

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
            path: the ``ensemble.zip``; ``workflows/small_organics.zip`` is the shipped one, unless
                there is a file of this name.
            device: torch device to predict on.
            precision: ``fp32`` or ``fp64`` for all members; None keeps each member's own.
            trust: packages whose convs may be imported, which runs their code.

        Raises:
            DataError: the file cannot be used; one sentence says why.
        """
        path = find_shipped(Path(path)) or Path(path)
        content = read_artefact(path, to_predict=True)
        _check_trust(str(path), content, trust)
        manifest = content.manifest
        members = []
        for entry in manifest.members:
            member = make_member(
                content.configs[entry.trial],
                content.weights[entry.trial],
                manifest.targets(),
                weights=entry.weights,
                where=str(path),
            )
            members.append(member if precision is None else member.in_precision(precision))
        ensemble = cls(manifest, members, device, configs=content.configs)
        ensemble.features, ensemble.local = content.features, content.local
        ensemble.local_members = open_local_members(manifest.heads, content.local_members)
        ensemble.trunks = {
            name: unpack_trunk(path, name, packed, manifest.trunk_spec(name))
            for name, packed in content.trunks.items()
        }
        return ensemble

    @property
    def cutoff(self) -> float:
        """The longest edge that graphs need, in angstrom."""
        return self.manifest.cutoff

    @property
    def rules(self) -> Rules:
        """The rules that turn structures into graphs usable by every member."""
        known = self.manifest
        trunks = [known.trunk_spec(name) for name in known.trunks]
        return rules_for(self.cutoff, known.attributes, known.laplacian, trunks)

    def predict(
        self,
        structures: Columns | Atoms | Sequence[Atoms],
        indices: np.ndarray | None = None,
        *,
        edges_per_batch: int = EDGES_PER_BATCH,
        levels: Sequence[int] = (),
        members: bool = False,
        unlabelled: bool = False,
    ) -> Prediction:
        """Predict every head for some structures.

        Args:
            structures: one ``ase.Atoms`` or several, or graphs of a store with edges up to at
                least the ensemble's cutoff.
            indices: positions of the graphs to predict, in output order, [G]; all if None.
            edges_per_batch: approximate edges plus nodes of a batch, which bounds its memory.
            levels: interval levels besides 90, in percent, see ``levels_known``.
            members: True also returns the predictions of each member.
            unlabelled: True also predicts rows that ``find_unlabelled`` lets be missing.

        Raises:
            DataError: a structure cannot become a graph, or the store's edges are too short.
        """
        columns = self._columns(structures)
        self._warn_of_levels(() if columns is structures else levels)  # commands say it
        indices = np.arange(columns.num_graphs) if indices is None else np.asarray(indices)
        parts: dict[str, list[Moments]] = {name: [] for name in self.manifest.heads}
        values: dict[str, MemberValues] = {name: {} for name in self.manifest.heads}
        for piece in pieces(columns, indices, edges_per_batch):
            for name, moments in self.moments(columns, piece, values if members else None).items():
                parts[name].append(moments)
        here = columns.take(indices)
        prediction = describe_heads(
            self.manifest,
            here,
            parts,
            levels=levels,
            members=values,
            strata=self.manifest.strata,
            unlabelled=unlabelled,
        )
        return replace(prediction, structures=self._describe(structures, columns, indices))

    def _warn_of_levels(self, levels: Sequence[int]) -> None:
        """Log once what had too few groups for the intervals of some levels, in percent."""
        for sentence in self.manifest.unguaranteed(levels):
            if sentence not in self._warned:
                self._warned.add(sentence)
                logger.warning("%s", sentence)

    def _describe(
        self, structures: Columns | Atoms | Sequence[Atoms], columns: Columns, indices: np.ndarray
    ) -> PredictedStructures:
        """Return names and atoms of the structures that are predicted."""
        names: Sequence[str] = columns.ids.take(indices)
        if not isinstance(structures, Columns):
            several = [structures] if isinstance(structures, Atoms) else structures
            names = [find_name(several[row]) for row in indices.tolist()]
        first, last = columns.node_offset[indices], columns.node_offset[indices + 1]
        pieces_of = [columns.numbers[a:b] for a, b in zip(first, last, strict=True)]
        numbers = np.concatenate(pieces_of) if pieces_of else columns.numbers[:0]
        return PredictedStructures(names, numbers, offsets(last - first), self.manifest.heads)

    def model_card(self) -> str:
        """Return the model card, in Markdown: members, data, heads, errors, limits."""
        return render_model_card(self.manifest, self.configs, self.constants)

    @property
    def constants(self) -> dict[str, float]:
        """Constants of each structure in sums over atoms, see ``find_constants``.

        Returns:
            The constant in the unit of the head, by name.
        """
        weights = {member.trial: member.model.state_dict() for member in self.members}
        return find_constants(self.manifest, weights)

    def __repr__(self) -> str:
        known = self.manifest
        heads = ", ".join(f"{name} [{head.shown_unit}]" for name, head in known.heads.items())
        elements = " ".join(chemical_symbols[z] for z in known.elements)
        count = len(self.members)
        return (
            f"Ensemble of {count} member{'' if count == 1 else 's'} of campaign "
            f"'{known.created_by.campaign}' for {heads}; elements {elements}; cutoff "
            f"{self.cutoff:g} angstrom; on {self.device}"
        )

    def _repr_html_(self) -> str:
        """Show the ensemble, and the errors of its heads on the test split."""
        rows = []
        for name, head in self.manifest.heads.items():
            scores = self.manifest.evaluation.get(name, {})
            numbers = (scores.get(key) for key in ("test_mae", "mean_baseline_mae", "coverage90"))
            cells = (name, head.shown_unit, *("-" if n is None else f"{n:.4g}" for n in numbers))
            rows.append("".join(f"<td>{html.escape(cell)}</td>" for cell in cells))
        titles = ("head", "unit", "test MAE", "MAE of the mean", "share in 90 % interval")
        top = "".join(f"<th>{title}</th>" for title in titles)
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<p>{html.escape(repr(self))}</p><table><tr>{top}</tr>{body}</table>"

    def _columns(self, structures: Columns | Atoms | Sequence[Atoms]) -> Columns:
        if isinstance(structures, Columns):
            self._check_cutoff(structures)
            return structures
        several = [structures] if isinstance(structures, Atoms) else structures
        return columns_of_atoms(several, self.rules)

    def embed(self, graphs: GraphSet, indices: np.ndarray) -> tuple[GraphSet, np.ndarray]:
        """Add the features that members begin from to some graphs, unless they have them.

        The last batch is kept: what predicts also asks for distances.

        Args:
            graphs: graphs.
            indices: positions of the graphs wanted, [G].

        Returns:
            Graphs with features, and the positions of the graphs wanted.
        """
        lacking = [n for n in self.manifest.trunks if n not in graphs.stats.get("features", {})]
        if not lacking:
            return graphs, indices
        rows = np.arange(len(indices))
        kept = self._embedded
        if kept is None or kept[0] is not graphs or not np.array_equal(kept[1], indices):
            columns = graphs.take(indices)
            trunks = {name: self.trunks.get(name) or find_trunk(name) for name in lacking}
            features = {name: flat_features(trunk, columns) for name, trunk in trunks.items()}
            made = replace(columns, features={**columns.features, **features})
            kept = self._embedded = (graphs, indices, made)
        return kept[2], rows

    def moments(
        self, graphs: GraphSet, indices: np.ndarray, collect: dict[str, MemberValues] | None = None
    ) -> dict[str, Moments]:
        """Run all members on one batch of graphs, in halves where memory runs out.

        Args:
            graphs: graphs with edges up to the ensemble's cutoff.
            indices: positions of the graphs of the batch, [G].
            collect: predictions of each member by head; extended, unless None.

        Returns:
            Moments by head (mean, spread, predicted variance), R rows each.
        """
        moments = {name: Moments(head.bounds) for name, head in self.manifest.heads.items()}
        graphs, indices = self.embed(graphs, indices)
        for member, heads in predict_in_halves(self.engine, graphs, indices, self.device):
            for name, weight in member.weights.items():
                noise = heads.get(variance_key(name))
                values = as_array(heads[name])
                moments[name].add(values, weight, None if noise is None else as_array(noise))
                if collect is not None:
                    collect[name].setdefault(member.trial, []).append(values)
        for name, several in self._predict_local(graphs, indices).items():
            share = self.manifest.shares(name)[LOCAL_MEMBER]
            for values in several:  # the nets have the weight 1 together
                moments[name].add(values, share / (1.0 - share) / len(several))
            if collect is not None:
                collect[name].setdefault(LOCAL_MEMBER, []).append(np.mean(several, axis=0))
        return moments

    def _predict_local(self, graphs: GraphSet, indices: np.ndarray) -> dict[str, list[np.ndarray]]:
        """Predict with the regressions on local descriptors.

        Args:
            graphs: graphs with edges up to the ensemble's cutoff.
            indices: positions of the graphs of the batch, [G].

        Returns:
            Predictions of each, [R, w], by head; empty where no head has any.
        """
        if not self.local_members:
            return {}
        columns = graphs.take(indices)
        each = [member.predict(columns) for member in self.local_members]
        return {name: [one[name] for one in each] for name in each[0]}

    def training_distances(self, graphs: GraphSet, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Compute distances to the training set, see ``TrainingFeatures.distances``.

        Args:
            graphs: graphs with edges up to the ensemble's cutoff.
            indices: positions of the graphs wanted, [G].

        Returns:
            Distances by level, [G] and [N]; empty if the training set is not known.
        """
        if self.features is None:
            return {}
        graphs, indices = self.embed(graphs, indices)
        return self.features.distances(self.members, graphs, indices)

    def levels_known(self) -> tuple[int, ...]:
        """Return the levels that ``predict`` accepts.

        Returns:
            Whole percents for which every head has an interval, ascending.
        """
        known = [head.calibration.levels for head in self.manifest.heads.values()]
        common = set.intersection(*(set(levels) for levels in known))
        whole = {level: round(100 * level) for level in sorted(common)}
        return tuple(n for level, n in whole.items() if abs(100 * level - n) < 1e-9)

    def _check_cutoff(self, columns: Columns) -> None:
        longest = float(columns.stats["cutoff"])
        if longest < self.cutoff:
            raise DataError(
                f"the graphs hold edges up to {longest:g} angstrom, the ensemble needs "
                f"{self.cutoff:g}: build them with that cutoff."
            )


def find_name(atoms: Atoms) -> str:
    """Return the ``name`` or ``id`` in the ``info`` of a structure; empty if there is none."""
    found_names = (atoms.info.get(key) for key in ("name", "id"))
    return next((name for name in found_names if isinstance(name, str)), "")


def _check_trust(where: str, content: ArtefactContent, trust: Collection[str]) -> None:
    """Raise ``DataError`` if a member needs code of an untrusted package (Law 10)."""
    for name in sorted({config.model.conv for config in content.configs.values()}):
        if not is_user_conv(name) or package_of(name) in trust:
            continue
        package = package_of(name)
        made = content.manifest.packages.get(package, "unknown")
        raise DataError(
            f"{where}: a member's conv is '{name}', whose code would be run (version {made} made "
            f"it, {version_of(name)} is here): say that you trust it, with --trust {package}."
        )


def load_ensemble(named: str, archive: Path, *, trust: Collection[str] = ()) -> Ensemble:
    """Load an ensemble to predict on one device, or with its members distributed over several.

    Args:
        named: names of devices, see ``devices_of``.
        archive: path of the ``ensemble.zip``.
        trust: packages whose convs may be imported, which runs their code.

    Raises:
        ConfigError: there is no such device.
        DataError: the file cannot be used.
    """
    devices = devices_of(named)
    ensemble = Ensemble.load(archive, device=devices[0], trust=trust)
    if len(devices) > 1:
        ensemble.engine = MultiDeviceEngine(ensemble.members, devices)
    return ensemble


def make_engine(members: Sequence[Member], device: torch.device) -> Engine:
    """Return a stacked engine on a GPU, else an eager one.

    Args:
        members: members whose nets are on ``device`` already.
        device: device to predict on.
    """
    if device.type == "cuda":
        from hydragnn_hpo.ensemble.stacked_engine import StackedEngine

        return StackedEngine(members, device)
    return EagerEngine(members, device)


def time_engine(engine: Engine, graphs: GraphSet, indices: np.ndarray) -> float:
    """Return the seconds that an engine takes for one batch, the shortest of several runs.

    Args:
        engine: the engine to time; an untimed run comes first, so tracing does not count.
        graphs: graphs with edges up to the longest cutoff of its members.
        indices: positions of the graphs of the batch, [G].
    """
    seconds = []
    for _ in range(1 + _TIMINGS):
        began = time.perf_counter()
        for _, heads in engine.predict(graphs, indices):
            for values in heads.values():
                values.cpu()  # waits for the GPU, which runs asynchronously
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


class MultiDeviceEngine:
    """One engine per device, run in parallel; timings of the first batch distribute the members."""

    def __init__(
        self,
        members: Sequence[Member],
        devices: Sequence[str],
        *,
        timer: Timer = time_engine,
    ) -> None:
        """Store the members; they are distributed at the first batch.

        Args:
            members: members of the ensemble.
            devices: torch devices, all of one kind.
            timer: times an engine on the first batch.
        """
        self.members = tuple(members)
        self.devices = tuple(devices)
        self.engines: tuple[Engine, ...] = ()
        self._timer = timer
        self._pool = ThreadPoolExecutor(len(self.devices), thread_name_prefix="device")

    def predict(
        self, graphs: GraphSet, indices: np.ndarray
    ) -> Iterator[tuple[Member, dict[str, Tensor]]]:
        """Yield each member's heads and variances for one batch of graphs, device after device."""
        if not self.engines:
            self.divide(graphs, indices)

        def run(engine: Engine) -> list[tuple[Member, dict[str, Tensor]]]:
            return list(engine.predict(graphs, indices))

        # the list submits work to all devices before waiting for the first result
        for future in [self._pool.submit(run, engine) for engine in self.engines]:
            yield from future.result()

    def divide(self, graphs: GraphSet, indices: np.ndarray) -> list[list[str]]:
        """Time each member on a batch, and move it to its device.

        Args:
            graphs: graphs with edges up to the ensemble's cutoff.
            indices: positions of the graphs of the batch, [G].

        Returns:
            Trials of the members of each device.
        """
        first = torch.device(self.devices[0])
        for member in self.members:
            member.model.to(first)
        alone = [make_engine([member], first) for member in self.members]
        costs = [self._timer(engine, graphs, indices) for engine in alone]
        engines, names = [], []
        shares = balance_load(costs, len(self.devices))
        for name, positions in zip(self.devices, shares, strict=True):
            members = [self.members[position] for position in positions]
            for member in members:
                member.model.to(torch.device(name))
            engines.append(make_engine(members, torch.device(name)))
            names.append([member.trial for member in members])
        self.engines = tuple(engines)
        return names
