"""Frozen trunks: a pretrained network with its weights, and the structures that it accepts.

Shapes: G graphs, N nodes, L layers, F features.
"""

import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import torch
from ase import Atoms
from ase.data import chemical_symbols
from msgspec import Struct
from numpy.typing import NDArray
from safetensors.torch import load
from torch import Tensor

from hydragnn_hpo.config import TRUNKS, TrunkSpec, read_trunk_file
from hydragnn_hpo.config.trunk_specs import hash_card, read_facts
from hydragnn_hpo.data import (
    Batch,
    Columns,
    Place,
    Rules,
    columns_of,
    edge_vectors,
    find_edges,
    graph_of,
    make_batch,
    offsets,
)
from hydragnn_hpo.errors import ConfigError, DataError, StorageError, unknown
from hydragnn_hpo.model.trunks.chgnet import CHGNet, CHGNetConfig
from hydragnn_hpo.model.trunks.mace import MACEConfig, MACENetwork
from hydragnn_hpo.model.trunks.sevennet import SevenNet, SevenNetConfig
from hydragnn_hpo.optional_packages import MissingPackage

_STEMS = {"chgnet": "chgnet-0.3.0", "sevennet": "sevennet-0-2024-07-11"}
"""Stem of the files in this folder by name of the trunk."""

AnyConfig = CHGNetConfig | SevenNetConfig | MACEConfig
AnyNetwork = CHGNet | SevenNet | MACENetwork


ConfigT = TypeVar("ConfigT", bound=AnyConfig)

MOST_ANGLES = 5_000_000
"""Most angles of a structure: an array of their features takes 1.3 GB. Metals have 130 an atom."""

BATCH_NODES = 64
"""Atoms from which a batch is complete: larger batches do not fit into caches."""

_MANY_EDGES = 10_000
"""Edges below which a structure is not dense or large enough for so many."""


REDISTRIBUTABLE = frozenset(
    (
        *("Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSD-3-Clause-LBNL", "CC-BY-4.0"),
        *("CC0-1.0", "MIT"),
    )
)
"""Licences that let anybody pass weights on, for any use. Not among them: ASL, the academic licence
of MACE-OFF, and FAIR-Chemistry, that of UMA. Source: https://spdx.org/licenses"""


class TrunkSource(Struct, frozen=True, forbid_unknown_fields=True):
    """File from which weights were converted."""

    wheel: str
    """Name and version of the package that ships it, or that read a user's file."""
    file: str
    """Path inside the wheel, or name of the user's file."""
    sha256: str
    """Checksum of the file."""


class _CardKind(Struct, frozen=True):
    """The field of a card that says what its other fields are."""

    architecture: str = "chgnet"


class TrunkCard(
    Struct,
    Generic[ConfigT],
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    eq=False,
    omit_defaults=True,
):
    """Description of a trunk, the content of its JSON file."""

    name: str
    """Name in settings."""
    architecture: str = "chgnet"
    """Kind of network: ``chgnet``, ``sevennet`` or ``mace``."""
    version: str
    """Version of the weights."""
    licence: str
    """SPDX identifier of the licence of the weights; empty if it is not known."""
    citation: str
    """Paper to cite."""
    trained_on: str
    """Data that the weights were trained on."""
    elements: frozenset[int]
    """Atomic numbers in these data."""
    source: TrunkSource
    """File from which the weights were converted."""
    sha256: str
    """Checksum of the weights."""
    config: ConfigT
    """Sizes of the network."""


_ARCHITECTURES: dict[str, tuple[Any, Callable[[Any], AnyNetwork]]] = {
    "chgnet": (TrunkCard[CHGNetConfig], CHGNet),
    "sevennet": (TrunkCard[SevenNetConfig], SevenNet),
    "mace": (TrunkCard[MACEConfig], MACENetwork),
}
"""Type of the card, and what allocates the network from its sizes, by the name of the kind."""


class FrozenTrunk(TrunkCard[AnyConfig], frozen=True, kw_only=True, eq=False):
    """A pretrained network whose weights do not change."""

    network: AnyNetwork
    """The network, in fp32 on the CPU."""
    checksum: str
    """SHA-256 of the card, which includes that of the weights, and of the version of this code."""

    @property
    def record(self) -> dict[str, Any]:
        """Content of its JSON file.

        Returns:
            Plain values, see ``TrunkCard``.
        """
        fields = {name: getattr(self, name) for name in TrunkCard.__struct_fields__}
        plain: dict[str, Any] = msgspec.to_builtins(TrunkCard(**fields), order="sorted")
        if plain.get("architecture") == "chgnet":  # msgspec leaves it out only if it is identical
            del plain["architecture"]
        return plain

    @property
    def may_travel(self) -> bool:
        """Whether its licence lets an ensemble carry the weights."""
        return self.licence in REDISTRIBUTABLE

    @property
    def spec(self) -> TrunkSpec:
        """What settings need to know of it."""
        return TRUNKS.get(self.name) or read_facts(self.record, self.name).spec

    @property
    def layers(self) -> int:
        """Blocks of features of an atom, L: its element's embedding, then one per convolution."""
        return self.config.convolutions + 1

    @property
    def width(self) -> int:
        """Features of a block, F."""
        return self.config.features

    @property
    def cutoff(self) -> float:
        """Largest distance of neighbours, in angstrom."""
        return self.config.cutoff

    def features(
        self, columns: Columns, graphs: Sequence[int], *, batch_nodes: int = BATCH_NODES
    ) -> NDArray[np.float32]:
        """Return the features of all atoms of structures, [N, L, F].

        Args:
            columns: structures, with or without periodic directions; their edges are not read.
            graphs: rows of the structures, in the order of the result.
            batch_nodes: structures are added to a batch until it has this many atoms.

        Raises:
            DataError: a structure has an element that the trunk was not trained on, a coordinate
                that is not finite, too many angles, or atoms so close that features are not finite.
        """
        pieces = [np.zeros((0, self.layers, self.width), dtype=np.float32)]
        for rows in split_rows(columns.num_nodes(), graphs, batch_nodes):
            with torch.no_grad():
                values = self.network(self._make_batch(columns, rows)).numpy()
            finite = np.isfinite(values).all(axis=(1, 2))
            if not finite.all():
                last = np.cumsum(columns.num_nodes()[rows])
                row = rows[int(np.searchsorted(last, finite.argmin(), side="right"))]
                problem = "has atoms that are too close to each other"
                raise self._error(columns, row, problem, "correct it or leave it out")
            pieces.append(values)
        return np.concatenate(pieces)

    def _make_batch(self, columns: Columns, rows: list[int]) -> Batch:
        """Return structures as a batch in fp64, with edges up to the cutoff in pairs."""
        edges, shifts = zip(*(self._find_edges(columns, row) for row in rows), strict=True)
        chosen = replace(
            columns.take(np.asarray(rows, dtype=np.int64)),
            edges=np.concatenate(edges),
            edge_shift=np.concatenate(shifts),
            edge_offset=offsets(np.array([len(each) for each in edges])),
            edge_translation=None,
        )
        # fp32 would lose digits of angles near 180 degrees, where the arc cosine is steep, and of
        # the phases of radial functions.
        every = range(len(rows))
        return make_batch(chosen, every, cutoff=None, dtype=torch.float64, pairs=True)

    def _find_edges(
        self, columns: Columns, row: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int16]]:
        """Check a structure, and return its edges and their shifts, see ``data.find_edges``."""
        nodes = slice(columns.node_offset[row], columns.node_offset[row + 1])
        numbers = columns.numbers[nodes]
        positions = columns.positions[nodes]
        cell = columns.cell[row]
        foreign = ~np.isin(numbers, list(self.elements))
        if foreign.any():
            atom = int(foreign.argmax())
            element = chemical_symbols[numbers[atom]]
            raise self._error(
                columns,
                row,
                f"has {element} at atom {atom + 1}, an element that {self.name} was not trained on",
                "leave it out, or use no trunk",
            )
        if not (np.isfinite(positions).all() and np.isfinite(cell).all()):
            raise self._error(
                columns, row, "has a position or cell that is not finite", "correct it"
            )
        edges, shift = find_edges(positions, cell, columns.pbc[row], self.cutoff)
        self._check_angles(columns, row, edges, shift)
        return edges, shift

    def _check_angles(
        self, columns: Columns, row: int, edges: NDArray[np.int32], shift: NDArray[np.int16]
    ) -> None:
        """Refuse a structure whose angles would fill the memory; few edges form few of them."""
        reach = getattr(self.config, "angle_cutoff", 0.0)
        if not reach or len(edges) < _MANY_EDGES:
            return
        nodes = slice(columns.node_offset[row], columns.node_offset[row + 1])
        vectors = edge_vectors(columns.positions[nodes], columns.cell[row], edges, shift)
        near = np.linalg.norm(vectors, axis=1) < reach
        meeting = np.bincount(edges[near, 1])
        angles = int((meeting * (meeting - 1)).sum())
        if angles > MOST_ANGLES:
            problem = f"has {angles:,} angles between bonds below {reach:g} angstrom"
            raise self._error(columns, row, problem, f"leave it out: {MOST_ANGLES:,} are the most")

    def _error(self, columns: Columns, row: int, problem: str, cure: str) -> DataError:
        return DataError(f"structure {row} ({columns.ids[row]}) {problem}; {cure}.")


def columns_to_describe(structures: Iterable[Atoms]) -> Columns:
    """Return structures as columns for ``FrozenTrunk.features``, which reads no edges.

    Raises:
        DataError: a structure cannot be used.
    """
    rules = Rules(cutoff=1.0, min_distance=0.0, targets={})
    places = (Place(Path("structures"), row, str(row)) for row in itertools.count())
    return columns_of([graph_of(each, next(places), rules) for each in structures], {})


def split_rows(
    num_nodes: NDArray[np.int64], graphs: Sequence[int], batch_nodes: int = BATCH_NODES
) -> Iterator[list[int]]:
    """Yield runs of graphs, each until it has ``batch_nodes`` nodes.

    Args:
        num_nodes: nodes of every graph, [G].
        graphs: rows of the graphs to be split.
        batch_nodes: nodes from which a run is complete.
    """
    rows = [int(row) for row in graphs]
    first = size = 0
    for last, row in enumerate(rows, start=1):
        size += num_nodes[row]
        if size >= batch_nodes or last == len(rows):
            yield rows[first:last]
            first = last
            size = 0


def open_trunk(record: object, weights: Mapping[str, Tensor]) -> FrozenTrunk:
    """Return a trunk of the record and weights that another file holds, such as an ensemble.

    Args:
        record: content of the trunk's JSON file.
        weights: by name.

    Raises:
        DataError: the record is not sound, or weights and sizes are not those of a known network.
    """
    try:
        card = read_card(record)
        _check_sizes(card)
        network = _build(card)
        shapes = {name: value.shape for name, value in network.state_dict().items()}
        if shapes != {name: value.shape for name, value in weights.items()}:
            raise ValueError("its sizes are not those of this network")
        network.load_state_dict(dict(weights))
    except MissingPackage:
        raise
    except (msgspec.MsgspecError, ConfigError, RuntimeError, TypeError, ValueError) as error:
        raise DataError(
            f"a foundation model cannot be used ({str(error)[:200]}); get its file again."
        ) from error
    return _freeze(card, network)


def _check_sizes(card: TrunkCard[AnyConfig]) -> None:
    """Raise ``ValueError`` if a network that ships here would be built in other sizes."""
    if card.name in _STEMS and card.architecture != card.name:
        raise ValueError(f"'{card.name}' is no {card.architecture}")
    if card.architecture in _STEMS and card.config != find_trunk(card.architecture).config:
        raise ValueError("its sizes are not those of this network")


def _build(card: TrunkCard[AnyConfig]) -> AnyNetwork:
    with torch.random.fork_rng(devices=[]):  # layers draw weights that are overwritten
        _, build = _ARCHITECTURES[card.architecture]
        return build(card.config)


def read_card(record: object) -> TrunkCard[AnyConfig]:
    """Return a card from the plain values of its JSON file.

    Raises:
        ValueError: the values are not those of a card.
    """
    kind = msgspec.convert(record, _CardKind).architecture
    if kind not in _ARCHITECTURES:
        raise ValueError(unknown("architecture", kind, _ARCHITECTURES))
    try:
        card: TrunkCard[AnyConfig] = msgspec.convert(record, _ARCHITECTURES[kind][0])
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    return card


def _freeze(card: TrunkCard[AnyConfig], network: AnyNetwork) -> FrozenTrunk:
    network.eval().requires_grad_(False)
    trunk = FrozenTrunk(**msgspec.structs.asdict(card), network=network, checksum="")
    return msgspec.structs.replace(trunk, checksum=hash_card(trunk.record))


@functools.cache
def find_trunk(name: str) -> FrozenTrunk:
    """Return a trunk by its name in settings; it is read once.

    Raises:
        ConfigError: there is no such trunk.
        StorageError: its files are missing or damaged.
    """
    if name not in _STEMS:
        raise ConfigError(unknown("trunk", name, _STEMS))
    return read_trunk(Path(__file__).parent, _STEMS[name])


def read_trunk(folder: Path, stem: str) -> FrozenTrunk:
    """Read a trunk from its card and its weights.

    Args:
        folder: where both files are.
        stem: their name without the ending.

    Raises:
        StorageError: a file is missing, or the weights are not those that the card names.
    """
    try:
        description = (folder / f"{stem}.json").read_bytes()
        weights = (folder / f"{stem}.safetensors").read_bytes()
        card = read_card(msgspec.json.decode(description))
    except (OSError, msgspec.DecodeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StorageError(
            f"{folder / stem}: the trunk cannot be read ({reason}); install hydragnn-hpo again."
        ) from error
    checksum = hashlib.sha256(weights).hexdigest()
    if checksum != card.sha256:
        raise StorageError(
            f"{folder / stem}.safetensors: has the checksum {checksum[:16]} in place of "
            f"{card.sha256[:16]}; install hydragnn-hpo again."
        )
    network = _build(card)
    network.load_state_dict(load(weights))
    return _freeze(card, network)


def load_trunk(name: str) -> FrozenTrunk:
    """Return a trunk by its name in settings, or by the card of a user's (``NAME.json``).

    Raises:
        ConfigError: there is no such trunk, or a file of a user's is missing or was changed.
        DataError: a user's files are not sound.
    """
    if not name.endswith(".json"):
        return find_trunk(name)
    path = Path(name)
    facts = read_trunk_file(path)
    trunk = open_trunk(
        json.loads(path.read_bytes()), load(path.with_suffix(".safetensors").read_bytes())
    )
    if trunk.checksum != facts.spec.checksum:
        raise DataError(f"{path}: is not as 'trunk convert' writes cards: make it again, by that.")
    return trunk
