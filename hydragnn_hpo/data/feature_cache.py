"""Features that a foundation model gives to the atoms of a store, computed once.

They lie beside the store, in ``NAME.features/``: one array ``MODEL-KEY.npy``, [all nodes, F] in
half precision, in the store's order, and ``MODEL-KEY.json`` with what they were computed from. The
key follows from the contents of the store and of the model's weights, so that neither can change
unseen. Any number of processes may compute them together: a piece is written whole or not at all.

Shapes: N nodes, F features.
"""

import hashlib
import io
import random
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.data.columns import Columns, GraphSet, Runs, offsets, rows_of_split
from hydragnn_hpo.data.store_index import read_index
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.file_records import FeatureStats, StoreStats
from hydragnn_hpo.files import read_json, storage, whole_file, write_bytes, write_json

PIECE = 256
"""Graphs of a piece: what a killed process loses at most, a second or a minute of work."""

Compute = Callable[[Columns], NDArray[np.float32]]
"""Returns the features of all atoms of some graphs, [N, F]."""

_SMALLEST_SPREAD = 1e-6
"""Standard deviations below are rounding: such a feature is the same for all atoms."""


class FeatureRecord(TypedDict):
    """Content of the JSON file beside an array of features."""

    trunk: str
    """Name of the foundation model."""
    checksum: str
    """Checksum of its weights and of the code that reads them."""
    store: str
    """Checksum of the store."""
    nodes: int
    """Rows of the array."""
    stats: FeatureStats
    """Mean and standard deviation over the atoms of the train split."""


@dataclass(frozen=True)
class FeatureCache:
    """Place and key of a store's features from one foundation model."""

    store: Path
    """The store, ``NAME.bp``."""
    trunk: str
    """Name of the model."""
    checksum: str
    """Checksum of its weights and of the code that reads them."""

    @property
    def folder(self) -> Path:
        """Folder of all features of the store."""
        return self.store.with_suffix(".features")

    @property
    def path(self) -> Path:
        """The array."""
        text = f"{read_index(self.store).checksum} {self.checksum}"
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        return self.folder / f"{self.trunk}-{key}.npy"

    @property
    def is_whole(self) -> bool:
        """Whether the features are there; the record is written after the array."""
        return self.path.with_suffix(".json").exists()

    def find_other_version(self) -> str | None:
        """Return the checksum of another version of the model with features of this very store."""
        content = read_index(self.store).checksum
        for file in sorted(self.folder.glob(f"{self.trunk}-*.json")):
            record: FeatureRecord = read_json(file)
            if record["store"] == content and record["checksum"] != self.checksum:
                return record["checksum"]
        return None

    def open(self) -> tuple[NDArray[np.float16], FeatureStats]:
        """Map the features into memory.

        Returns:
            The features, [N, F], and their statistics.

        Raises:
            DataError: they are not there, or damaged.
        """
        path = self.path
        if not self.is_whole:
            raise DataError(
                f"{self.store}: has no features of '{self.trunk}': run hydragnn-hpo dataset embed "
                f"{self.store} --trunk {self.trunk}."
            )
        record: FeatureRecord = read_json(path.with_suffix(".json"))
        try:
            values = np.load(path, mmap_mode="r", allow_pickle=False)
            if values.dtype != np.float16 or values.shape != _shape_of(record):
                raise ValueError(f"its shape is {values.shape}")
        except (OSError, ValueError, KeyError) as error:
            raise DataError(
                f"{path}: is damaged ({error}): remove it and its .json, and compute it again."
            ) from error
        return values.view(np.ndarray), record["stats"]

    def compute_pieces(
        self,
        graphs: GraphSet,
        compute: Compute,
        *,
        seed: int = 0,
        report: Callable[[int], None] = lambda graphs: None,
    ) -> None:
        """Compute the pieces that are not there yet, in an order of this process's own.

        Args:
            graphs: those of the store.
            compute: the model.
            seed: of the order, another one for each process.
            report: called with the number of graphs of each piece that is there.

        Raises:
            DataError: the model does not take a structure.
            StorageError: the disk is full.
        """
        work = self._work_folder()
        with storage(work):
            work.mkdir(parents=True, exist_ok=True)
        pieces = list(_pieces(graphs))
        random.Random(seed).shuffle(pieces)
        for rows in pieces:
            file = work / _name(rows)
            if not file.exists():
                values = compute(graphs.take(rows)).astype(np.float16)
                buffer = io.BytesIO()
                np.save(buffer, values, allow_pickle=False)
                write_bytes(file, buffer.getvalue())
            report(len(rows))

    def join_pieces(self, graphs: GraphSet) -> bool:
        """Write array and record from the pieces; return False where one is missing.

        Raises:
            StorageError: the disk is full.
        """
        if self.is_whole:
            return True
        work = self._work_folder()
        pieces = list(_pieces(graphs))
        files = [work / _name(rows) for rows in pieces]
        if not all(file.exists() for file in files):
            return False
        moments = _Moments()
        train = graphs.split == 0
        nodes = graphs.num_nodes()
        width = np.load(files[0]).shape[1]
        with whole_file(self.path) as stream:
            shape = (int(nodes.sum()), width)
            header = {"descr": "<f2", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_2_0(stream, header)
            for rows, file in zip(pieces, files, strict=True):
                values = np.load(file, allow_pickle=False)
                moments.add(values[np.repeat(train[rows], nodes[rows])])
                stream.write(values.tobytes())
        record: FeatureRecord = {
            "trunk": self.trunk,
            "checksum": self.checksum,
            "store": read_index(self.store).checksum,
            "nodes": int(nodes.sum()),
            "stats": moments.stats(),
        }
        write_json(self.path.with_suffix(".json"), record)
        shutil.rmtree(work, ignore_errors=True)
        return True

    def attach(self, graphs: GraphSet) -> GraphSet:
        """Return the graphs of the store with these features.

        Raises:
            DataError: the features are not there, or damaged.
        """
        values, known = self.open()
        stats: StoreStats = {
            **graphs.stats,
            "features": {**graphs.stats.get("features", {}), self.trunk: known},
        }
        if isinstance(graphs, Columns):
            return replace(graphs, features={**graphs.features, self.trunk: values}, stats=stats)
        return FeaturedGraphs(graphs, self.trunk, values, stats)

    def _work_folder(self) -> Path:
        return self.folder / f".{self.path.stem}.work"


def _shape_of(record: FeatureRecord) -> tuple[int, int]:
    return record["nodes"], len(record["stats"]["mean"])


def _pieces(graphs: GraphSet) -> Iterable[NDArray[np.int64]]:
    for first in range(0, graphs.num_graphs, PIECE):
        yield np.arange(first, min(first + PIECE, graphs.num_graphs))


def _name(rows: NDArray[np.int64]) -> str:
    """Return the file of a piece; processes with pieces of another size do not meet in it."""
    return f"{rows[0]:09d}-{rows[-1]:09d}.npy"


class _Moments:
    """Sums over rows, for means and standard deviations."""

    def __init__(self) -> None:
        self.count = 0
        self.sum: Any = 0.0
        self.squares: Any = 0.0

    def add(self, values: NDArray[np.float16]) -> None:
        """Add rows, [n, F]."""
        wide = values.astype(np.float64)
        self.count += len(wide)
        self.sum = self.sum + wide.sum(axis=0)
        self.squares = self.squares + (wide * wide).sum(axis=0)

    def stats(self) -> FeatureStats:
        """Return means and standard deviations."""
        count = max(self.count, 1)
        mean = self.sum / count
        std = np.sqrt(np.maximum(self.squares / count - mean**2, 0.0))
        std = np.where(std < _SMALLEST_SPREAD, 1.0, std)
        return {"mean": mean.tolist(), "std": std.tolist()}


class FeaturedGraphs:
    """Graphs that are not in memory, with features that are mapped; a ``GraphSet``."""

    def __init__(
        self, graphs: GraphSet, trunk: str, features: NDArray[np.float16], stats: StoreStats
    ) -> None:
        """Wrap graphs.

        Args:
            graphs: the graphs.
            trunk: name of the model.
            features: of all nodes, in the order of the graphs, [N, F].
            stats: those of the graphs, with those of the features.
        """
        self._graphs = graphs
        self._trunk, self._features = trunk, features
        self._offset = offsets(graphs.num_nodes().astype(np.int64))
        self.split, self.group = graphs.split, graphs.group
        self.levels, self.windows = graphs.levels, graphs.windows
        self.stats = stats

    @property
    def num_graphs(self) -> int:
        """Number of graphs, G."""
        return self._graphs.num_graphs

    def indices_of(self, split: str) -> NDArray[np.int64]:
        """Return the rows of a split, ascending."""
        return rows_of_split(self.split, split)

    def num_nodes(self) -> NDArray[np.int64]:
        """Nodes of each graph, [G]."""
        return self._graphs.num_nodes()

    def num_edges(self) -> NDArray[np.int64]:
        """Edges of each graph, [G]."""
        return self._graphs.num_edges()

    def known(self, name: str) -> NDArray[np.int64]:
        """Count the known rows of a target in each graph, [G]: at most 1, or its nodes."""
        return self._graphs.known(name)

    def take(self, rows: NDArray[np.int64]) -> Columns:
        """Copy some graphs into memory, in the order of ``rows``, which may repeat."""
        rows = np.asarray(rows, dtype=np.int64).reshape(-1)
        taken = self._graphs.take(rows)
        own = Runs(self._offset, rows).of(self._features)
        return replace(
            taken,
            split=self.split[rows],
            features={**taken.features, self._trunk: own},
            stats=self.stats,
        )

    def close(self) -> None:
        """Close the files and shared memory of the graphs."""
        if close := getattr(self._graphs, "close", None):
            close()
