"""Graphs that the benchmarks of the data floor work on, ours and as the peer has them."""

import gzip
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from ase import Atoms
from ase.io import read
from torch_geometric.data import Data, InMemoryDataset

from hydragnn_hpo.config.data_config import CardConfig, FileConfig, TargetConfig
from hydragnn_hpo.data.columns import Arrays, Columns, Names, arrays_of, offsets
from hydragnn_hpo.data.store_access import open_store
from hydragnn_hpo.data.store_builder import build_store
from hydragnn_hpo.data.store_parts import WINDOW, describe_columns, write_index, write_part
from hydragnn_hpo.file_records import StoreStats
from hydragnn_hpo.files import whole_folder
from hydragnn_hpo.resources import resource_path

PUBLIC = os.environ.get("HYDRAGNN_HPO_DATA")
ATOMS, EDGES = 4, 24
"""Nodes and edges of a small graph."""
FILES = (
    "mp_magnetic/mp_mag_multihead_760.extxyz.gz",
    "mp_magnetic/mp_mag_nodes_3675.extxyz.gz",
    "perovskites/matbench_perovskites_17178.extxyz.gz",
)


def molecules(folder: Path) -> Path:
    """Build the store of the shipped molecules."""
    build_store(resource_path("graph_datasets/g2_xtb.toml"), folder / "g2.bp")
    return folder / "g2.bp"


def crystals(folder: Path) -> Path:
    """Build the store of 760 magnetic crystals."""
    if PUBLIC is None:
        raise SystemExit("set HYDRAGNN_HPO_DATA to the folder of public data sets.")
    build_store(resource_path("graph_datasets/magnetic_crystals.toml"), folder / "crystals.bp")
    return folder / "crystals.bp"


def structures(count: int, files: Sequence[str] = FILES) -> list[Atoms]:
    """Read crystals of 2 to 168 atoms, magnetic ones between perovskites."""
    if PUBLIC is None:
        raise SystemExit("set HYDRAGNN_HPO_DATA to the folder of public data sets.")
    results: list[Atoms] = []
    for name in files:
        text = gzip.decompress((Path(PUBLIC) / name).read_bytes()).decode()
        results += read(io.StringIO(text), ":", format="extxyz")
    chosen = np.random.default_rng(1).permutation(len(results))[:count]
    return [results[row] for row in chosen]


def in_memory(store: Path) -> Columns:
    """Read all graphs of a store."""
    stored = open_store(store, access="windows")
    return stored.take(np.arange(stored.num_graphs))


def as_data(columns: Columns) -> list[Data]:
    """Give graphs as the peer has them, with everything that our batches carry."""
    result = []
    for row in range(columns.num_graphs):
        one = columns.take(np.array([row]))
        shift = one.edge_shift @ one.cell[0]
        data = Data(
            z=torch.from_numpy(one.numbers.astype(np.int64)),
            pos=torch.from_numpy(one.positions).float(),
            edge_index=torch.from_numpy(one.edges.T.astype(np.int64)).contiguous(),
            edge_shift=torch.from_numpy(shift).float(),
            **{name: torch.from_numpy(value).float() for name, value in one.targets.items()},
        )
        result.append(data)
    return result


class Stored(InMemoryDataset):
    """The peer's data set in one file."""

    def __init__(self, root: Path, data: list[Data] | None = None) -> None:
        self.given = data
        super().__init__(str(root))
        self.load(self.processed_paths[0])

    @property
    def processed_file_names(self) -> list[str]:
        return ["data.pt"]

    def process(self) -> None:
        self.save(self.given, self.processed_paths[0])


def small_graphs(path: Path, count: int) -> None:
    """Write a store of many small graphs straight from arrays, window by window."""
    card = CardConfig(
        name="small",
        files=(FileConfig(path="generated"),),
        targets={"energy": TargetConfig(level="graph", unit="eV")},
    )
    sizes = [min(WINDOW, count - first) for first in range(0, count, WINDOW)]
    columns = describe_columns(_window(0, 1), {"energy": "graph"})
    table = np.array([[n, n * ATOMS, n * EDGES, n * 8] for n in sizes], dtype=np.int64)
    windows = (_window(first, n) for first, n in zip(range(0, count, WINDOW), sizes, strict=True))
    target = {"level": "graph", "shape": "scalar", "unit": "eV", "mean": 0.0, "std": 1.0}
    stats = cast(
        "StoreStats",
        {"name": "small", "cutoff": 5.0, "num_graphs": count, "targets": {"energy": target}},
    )
    with whole_folder(path) as folder:
        entry, rows = write_part(folder, 0, windows, columns, table)
        write_index(folder, columns, [entry], rows, stats, card)


def _window(first: int, count: int) -> Arrays:
    """Make graphs of 4 atoms and 24 edges each: every ordered pair, twice."""
    random = np.random.default_rng(first)
    pairs = np.array([(i, j) for i in range(ATOMS) for j in range(ATOMS) if i != j] * 2)
    names = Names.of(f"g{number:07d}" for number in range(first, first + count))
    shift = np.repeat(np.array([[0, 0, 0], [1, 0, 0]], dtype=np.int16), EDGES // 2, axis=0)
    columns = Columns(
        numbers=random.integers(1, 90, count * ATOMS).astype(np.int16),
        positions=random.normal(size=(count * ATOMS, 3)),
        cell=np.broadcast_to(8.0 * np.eye(3), (count, 3, 3)),
        pbc=np.ones((count, 3), dtype=bool),
        node_offset=offsets(np.full(count, ATOMS)),
        edge_offset=offsets(np.full(count, EDGES)),
        edges=np.tile(pairs, (count, 1)).astype(np.int32),
        edge_shift=np.tile(shift, (count, 1)),
        targets={"energy": random.normal(size=(count, 1))},
        masks={"energy": np.ones(count, dtype=bool)},
        levels={"energy": "graph"},
        split=(np.arange(first, first + count) % 10 // 6).astype(np.int8),
        group=np.arange(first, first + count, dtype=np.int32),
        ids=names,
    )
    return arrays_of(columns)


def skewed_sizes(count: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Draw nodes and edges of graphs: uniform from 2 to 200 atoms, or lognormal.

    About 42 edges an atom, as the magnetic crystals have within 5 angstrom.
    """
    random = np.random.default_rng(7)
    if kind == "uniform":
        nodes = random.integers(2, 201, count)
    else:
        nodes = np.maximum(2, random.lognormal(3.0, 1.0, count)).astype(np.int64)
    degree = random.normal(42.0, 6.0, count).clip(12.0, 80.0)
    return nodes, (nodes * degree).astype(np.int64)
