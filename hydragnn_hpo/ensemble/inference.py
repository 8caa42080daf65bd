"""Load an ensemble and predict: mean, sigma, intervals and trust, on one or several devices.

On several devices the members are divided by what each costs.

Shapes: G graphs, R rows of a head (graphs or nodes), w its components.
"""

import heapq
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import torch
from ase import Atoms
from ase.data import atomic_numbers, chemical_symbols
from torch import Tensor

from hydragnn_hpo.config import WIDTHS
from hydragnn_hpo.config.convs.spec import is_user_conv, package_of, version_of
from hydragnn_hpo.data import Columns, GraphSet, Rules
from hydragnn_hpo.ensemble.artefact import (
    ArtefactContent,
    Coordination,
    HeadEntry,
    Manifest,
    read_artefact,
)
from hydragnn_hpo.ensemble.calibrate import Moments, graph_of_row, largest_per_graph
from hydragnn_hpo.ensemble.engine import (
    EDGES_PER_BATCH,
    EagerEngine,
    Engine,
    Member,
    devices_of,
    make_member,
    pieces,
)
from hydragnn_hpo.ensemble.structure_batches import columns_of_atoms, rules_for
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.model import variance_key

_TIMINGS = 3
"""Times that a member is timed; the least counts."""

Timer = Callable[[Engine, GraphSet, np.ndarray], float]


@dataclass(frozen=True)
class HeadPrediction:
    """What an ensemble predicts for one head; all in the head's unit."""

    mean: np.ndarray
    """Mean of the members, [R, w]."""
    std: np.ndarray
    """Calibrated standard deviation, [R, 1]; one for all components of a vector."""
    std_epistemic: np.ndarray
    """Spread of the members without calibration, [R, 1]."""
    lo90: np.ndarray
    """Lower end of the 90 % interval, [R, w]."""
    hi90: np.ndarray
    """Upper end of the 90 % interval, [R, w]."""
    bounds: Mapping[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    """Lower and upper end of the intervals of other levels, by percent, [R, w] each; empty unless
    levels were given."""
    members: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Values of each member that takes part, by trial, [R, w]; empty unless wanted."""


@dataclass(frozen=True)
class Prediction:
    """What an ensemble predicts for some structures, in their order."""

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
    """Turn the moments of all batches into mean, sigma and intervals of one head.

    Args:
        head: with its calibration.
        parts: moments of the batches in order, R rows in all.
        levels: intervals besides that of 90 %, in percent.
        members: values of each member for each batch, by trial, if they are wanted.
        stratum: name of each row's kind of structure, [R]; None where that makes no difference.
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
        members={name: np.concatenate(some) for name, some in (members or {}).items() if some},
    )


def _stack(parts: Sequence[np.ndarray], width: int) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros((0, width))


def compute_trust(
    manifest: Manifest,
    columns: Columns,
    indices: np.ndarray,
    heads: Mapping[str, HeadPrediction],
) -> tuple[str, ...]:
    """Find reasons not to believe the predictions for structures.

    These are an element or a number of neighbours that the training data lacks, a prediction that
    is not finite, and a larger spread than that of 99 % of the calibration structures.

    Args:
        manifest: calibration of the heads, elements and coordination of the training data.
        columns: graphs of these structures, and perhaps of others.
        indices: positions of these structures among them, [G].
        heads: predictions for these structures, by head.

    Returns:
        ``ok``, or the reasons with semicolons between, of each structure, [G].
    """
    reasons: list[list[str]] = [[] for _ in indices]
    here = columns.take(indices)
    graph_of_node = np.repeat(np.arange(len(indices)), here.num_nodes())
    unseen = ~np.isin(here.numbers, manifest.elements)
    for row, number in _pairs(graph_of_node[unseen], here.numbers[unseen]):
        reasons[row].append(f"unseen element {chemical_symbols[number]}")
    if manifest.coordination is not None:
        outside = outside_coordination(manifest.coordination, here)
        for row, number in _pairs(graph_of_node[outside], here.numbers[outside]):
            reasons[row].append(f"unseen coordination of {chemical_symbols[number]}")
    for name, head in heads.items():
        entry = manifest.heads[name]
        graph = graph_of_row(columns, indices, node=entry.level == "node")
        for row, reason in _reasons_of_head(name, entry, head, graph, len(indices)):
            reasons[row].append(reason)
    return tuple("; ".join(reason) or "ok" for reason in reasons)


def _reasons_of_head(
    name: str, entry: HeadEntry, head: HeadPrediction, graph: np.ndarray, graphs: int
) -> Iterator[tuple[int, str]]:
    """Yield structures whose prediction of one head should not be believed, and why.

    Args:
        name: of the head.
        entry: of the head in the manifest.
        head: its prediction, R rows.
        graph: position of each row's structure, [R].
        graphs: number of structures.
    """
    broken = ~np.isfinite(head.mean).all(axis=1)
    for row in np.unique(graph[broken]).tolist():
        yield row, f"{name} is not finite"
    limit = entry.calibration.spread99 * (1 + 1e-9)  # forgives rounding
    largest = largest_per_graph(head.std_epistemic[:, 0], graph, graphs)
    for row in np.flatnonzero(largest > limit).tolist():
        yield row, f"large spread of {name}"


def outside_coordination(known: Coordination, columns: Columns) -> np.ndarray:
    """Check which atoms have fewer or more neighbours than any of their element in training, [N].

    Atoms of an element that is not in the training data do not count: they have their own reason.

    Args:
        known: numbers of neighbours in the training data.
        columns: graphs with all edges up to the cutoff of ``known``.
    """
    lowest, highest = np.zeros(128, np.int64), np.full(128, np.iinfo(np.int64).max)
    for symbol, (low, high) in known.ranges.items():
        lowest[atomic_numbers[symbol]], highest[atomic_numbers[symbol]] = low, high
    counts = neighbor_counts(columns, known.cutoff)
    out: np.ndarray = (counts < lowest[columns.numbers]) | (counts > highest[columns.numbers])
    return out


def neighbor_counts(columns: Columns, cutoff: float) -> np.ndarray:
    """Count the neighbours of each atom within a cutoff in angstrom, images included, [N]."""
    edges_of, first = np.diff(columns.edge_offset), columns.node_offset[:-1]
    graph = np.repeat(np.arange(columns.num_graphs), edges_of)
    sender, receiver = (columns.edges + first[graph][:, None]).T
    shift = np.einsum("ek,ekx->ex", columns.edge_shift, columns.cell[graph])
    vectors = columns.positions[receiver] + shift - columns.positions[sender]
    near = np.einsum("ex,ex->e", vectors, vectors) <= cutoff**2
    counts: np.ndarray = np.bincount(receiver[near], minlength=len(columns.numbers))
    return counts


def _pairs(graph: np.ndarray, number: np.ndarray) -> list[list[int]]:
    """Return graph and atomic number of some atoms, [n] each, every pair once, in order."""
    pairs: list[list[int]] = np.unique(np.stack((graph, number), axis=1), axis=0).tolist()
    return pairs


MemberValues = dict[str, list[np.ndarray]]
"""Values of each member for one head, by trial: a list with [R, w] of every batch."""


class Ensemble:
    """Members with one calibration; predictions are the same alone and in any batch (Law 7)."""

    def __init__(
        self,
        manifest: Manifest,
        members: Sequence[Member],
        device: str = "cpu",
        *,
        compiled: bool = False,
    ) -> None:
        """Move members to a device; they are kept in the order of their names.

        Args:
            manifest: heads, calibration, provenance.
            members: nets with their weights; moved to ``device``.
            device: where they predict, as torch names it.
            compiled: True runs them as machine code, see ``CompiledEngine``.
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
            device: where to predict, as torch names it.
            precision: ``fp32`` or ``fp64`` for all members; each its own if None.
            trust: packages whose convs may be imported, which runs their code.
            compiled: True compiles members at the first batch, or takes them from the user's
                cache; those that cannot be compiled stay as they are.

        Raises:
            DataError: the file cannot be used; one sentence says why.
        """
        content = read_artefact(Path(path), to_predict=True)
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
        """The longest edge that graphs need, in angstrom."""
        return self.manifest.cutoff

    @property
    def rules(self) -> Rules:
        """How structures become graphs that every member can use."""
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
            indices: positions of the graphs wanted, in that order, [G]; all if None.
            edges_per_batch: edges and nodes of a batch, about, which bounds its memory.
            levels: intervals besides that of 90 %, in percent, see ``levels_known``.
            members: True also returns the values of each member.

        Raises:
            DataError: a structure cannot become a graph, or the store's edges are too short.
        """
        columns = self._columns(structures)
        if indices is None:
            indices = np.arange(columns.num_graphs)
        indices = np.asarray(indices, dtype=np.int64)
        parts: dict[str, list[Moments]] = {name: [] for name in self.manifest.heads}
        values: dict[str, MemberValues] = {name: {} for name in self.manifest.heads}
        for piece in pieces(columns, indices, edges_per_batch):
            for name, moments in self.moments(columns, piece, values if members else None).items():
                parts[name].append(moments)
        kinds = self._kinds(columns, indices)
        heads = {
            name: head_prediction(
                head, parts[name], levels=levels, members=values[name], stratum=kinds[name]
            )
            for name, head in self.manifest.heads.items()
        }
        return Prediction(heads, compute_trust(self.manifest, columns, indices, heads))

    def _columns(self, structures: Columns | Atoms | Sequence[Atoms]) -> Columns:
        if isinstance(structures, Columns):
            self._check_cutoff(structures)
            return structures
        several = [structures] if isinstance(structures, Atoms) else structures
        return columns_of_atoms(several, self.rules)

    def _kinds(self, graphs: GraphSet, indices: np.ndarray) -> dict[str, np.ndarray | None]:
        """Return by head the kind of each row's structure, [R]; None where all have one table."""
        kinds: dict[str, np.ndarray | None] = dict.fromkeys(self.manifest.heads)
        for name, head in self.manifest.heads.items():
            if head.calibration.tables:
                node, strata = head.level == "node", self.manifest.strata
                kinds[name] = strata.of_rows(graphs, indices, node=node)
        return kinds

    def moments(
        self, graphs: GraphSet, indices: np.ndarray, collect: dict[str, MemberValues] | None = None
    ) -> dict[str, Moments]:
        """Run all members on one batch of graphs.

        Args:
            graphs: with edges up to the ensemble's cutoff.
            indices: positions of the graphs of the batch, [G].
            collect: gets the values of each member, by head; None where they are not wanted.

        Returns:
            Mean, spread and predicted variance by head, of R rows each.
        """
        moments = {name: Moments() for name in self.manifest.heads}
        for member, heads in self.engine.predict(graphs, indices):
            for name, weight in member.weights.items():
                noise = heads.get(variance_key(name))
                values = as_array(heads[name])
                moments[name].add(values, weight, None if noise is None else as_array(noise))
                if collect is not None:
                    collect[name].setdefault(member.trial, []).append(values)
        return moments

    def levels_known(self) -> tuple[int, ...]:
        """Return the levels that ``predict`` accepts.

        Returns:
            Whole percents that every head has an interval for, rising.
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


def as_array(values: Tensor) -> np.ndarray:
    """Return a tensor of any device as an array of the same shape in fp64."""
    array: np.ndarray = values.detach().double().cpu().numpy()
    return array


def _check_trust(where: str, content: ArtefactContent, trust: Collection[str]) -> None:
    """Refuse to run code of packages that are not trusted (Law 10)."""
    for name in sorted({config.model.conv for config in content.configs.values()}):
        if not is_user_conv(name) or package_of(name) in trust:
            continue
        package = package_of(name)
        made = content.manifest.packages.get(package, "unknown")
        raise DataError(
            f"{where}: a member's conv is '{name}', whose code would be run (version {made} made "
            f"it, {version_of(name)} is here): say that you trust it, with --trust {package}."
        )


def load_ensemble(
    named: str, archive: Path, *, trust: Collection[str] = (), compiled: bool = False
) -> Ensemble:
    """Load an ensemble that predicts on one device, or with its members on several.

    Args:
        named: names of devices, see ``devices_of``.
        archive: the ensemble's file.
        trust: packages whose convs may be imported, which runs their code.
        compiled: True predicts with machine code.

    Raises:
        ConfigError: there is no such device.
        DataError: the file cannot be used.
    """
    devices = devices_of(named)
    ensemble = Ensemble.load(archive, device=devices[0], trust=trust, compiled=compiled)
    if len(devices) > 1:
        ensemble.engine = MultiDeviceEngine(ensemble.members, devices, compiled=compiled)
    return ensemble


def make_engine(
    members: Sequence[Member], device: torch.device, *, compiled: bool = False
) -> Engine:
    """Return a compiled engine if wanted, a stacked one on a GPU, else an eager one.

    Args:
        members: whose nets are on ``device``.
        device: where they predict.
        compiled: True runs them as machine code.
    """
    if compiled:  # tracers and compilers take a second to import: only where they are used
        from hydragnn_hpo.ensemble.traced_engines import CompiledEngine

        return CompiledEngine(members, device)
    if device.type == "cuda":
        from hydragnn_hpo.ensemble.traced_engines import StackedEngine

        return StackedEngine(members, device)
    return EagerEngine(members, device)


def assign_members(costs: Sequence[float], devices: int) -> list[list[int]]:
    """Divide members among devices so that all devices end at about the same time.

    The longest comes first, and each goes to the device that is free first; the time is at most 4/3
    of the shortest possible.

    Args:
        costs: seconds of each member.
        devices: number of devices.

    Returns:
        Positions of the members of each device, rising.

    Source: Graham (1969), SIAM J. Appl. Math. 17, 416.
    """
    busy = [(0.0, device) for device in range(devices)]
    assigned: list[list[int]] = [[] for _ in busy]
    for cost, member in sorted(((cost, -n) for n, cost in enumerate(costs)), reverse=True):
        until, device = heapq.heappop(busy)
        assigned[device].append(-member)
        heapq.heappush(busy, (until + cost, device))
    return [sorted(members) for members in assigned]


def time_engine(engine: Engine, graphs: GraphSet, indices: np.ndarray) -> float:
    """Return the seconds that an engine takes for one batch: the least of several tries.

    Args:
        engine: to be timed; it runs once before, so that tracing and the like do not count.
        graphs: with edges up to the longest cutoff of its members.
        indices: positions of the graphs of the batch, [G].
    """
    seconds = []
    for _ in range(1 + _TIMINGS):
        began = time.perf_counter()
        for _, heads in engine.predict(graphs, indices):
            for values in heads.values():
                values.cpu()  # a GPU has worked when its result is here
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


class MultiDeviceEngine:
    """Engines of several devices that run in parallel; the first batch divides the members."""

    def __init__(
        self,
        members: Sequence[Member],
        devices: Sequence[str],
        *,
        compiled: bool = False,
        timer: Timer = time_engine,
    ) -> None:
        """Keep the members; the first batch divides them.

        Args:
            members: of the ensemble.
            devices: as torch names them; all of one kind.
            compiled: True predicts with machine code.
            timer: times an engine on the first batch.
        """
        self.members, self.devices = tuple(members), tuple(devices)
        self.engines: tuple[Engine, ...] = ()
        self._compiled, self._timer = compiled, timer
        self._pool = ThreadPoolExecutor(len(self.devices), thread_name_prefix="device")

    def predict(
        self, graphs: GraphSet, indices: np.ndarray
    ) -> Iterator[tuple[Member, dict[str, Tensor]]]:
        """Yield each member's heads and variances for one batch of graphs, device after device."""
        if not self.engines:
            self.divide(graphs, indices)

        def run(engine: Engine) -> list[tuple[Member, dict[str, Tensor]]]:
            return list(engine.predict(graphs, indices))

        # the list starts all devices before the first result is waited for
        for future in [self._pool.submit(run, engine) for engine in self.engines]:
            yield from future.result()

    def divide(self, graphs: GraphSet, indices: np.ndarray) -> list[list[str]]:
        """Time each member on a batch, and move it to its device.

        Args:
            graphs: with edges up to the ensemble's cutoff.
            indices: positions of the graphs of the batch, [G].

        Returns:
            Trials of the members of each device.
        """
        first = torch.device(self.devices[0])
        for member in self.members:
            member.model.to(first)
        alone = [make_engine([member], first, compiled=self._compiled) for member in self.members]
        costs = [self._timer(engine, graphs, indices) for engine in alone]
        engines, names = [], []
        for name, positions in zip(
            self.devices, assign_members(costs, len(self.devices)), strict=True
        ):
            members = [self.members[position] for position in positions]
            for member in members:
                member.model.to(torch.device(name))
            engines.append(make_engine(members, torch.device(name), compiled=self._compiled))
            names.append([member.trial for member in members])
        self.engines = tuple(engines)
        return names
