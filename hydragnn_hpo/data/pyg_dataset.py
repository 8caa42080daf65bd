"""Graphs of a store for PyTorch Geometric: as ``Data``, as a dataset, as a loader.

Shapes: N nodes, E edges, w components of a target.
"""

import html
from collections.abc import Iterator
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from hydragnn_hpo.config import SPLITS
from hydragnn_hpo.data.batch import make_batch
from hydragnn_hpo.data.columns import GraphSet
from hydragnn_hpo.units import shown_unit

TARGET, MASK, ATTRIBUTE = "y_", "mask_", "attribute_"
"""Beginnings of the names under which targets, their masks and attributes stand in ``Data``."""


class StructureData(Data):  # type: ignore[misc]  # PyG has no types
    """A structure as PyG's ``Data``; batches concatenate its properties, whatever they are called.

    PyG counts on the number of nodes in a batch to every entry with ``index`` or ``batch`` in its
    name, and so would to a target such as ``refractive_index``.
    """

    def __inc__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Return what is added to an entry in a batch: nothing to a property."""
        if key.startswith((TARGET, MASK, ATTRIBUTE)):
            return 0
        return super().__inc__(key, value, *args, **kwargs)

    def __cat_dim__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the dimension along which a batch concatenates an entry: rows of a property."""
        if key.startswith((TARGET, MASK, ATTRIBUTE)):
            return 0
        return super().__cat_dim__(key, value, *args, **kwargs)


class PygDataset(Dataset[StructureData]):
    """Graphs as ``Data``, made when they are read; a list, as far as PyG is concerned."""

    def __init__(self, graphs: GraphSet, rows: NDArray[np.int64], dtype: torch.dtype) -> None:
        """Remember which graphs to read.

        Args:
            graphs: the graphs.
            rows: rows of those to read, in this order.
            dtype: type of positions, shifts, cells, targets and attributes.
        """
        self.graphs, self.rows, self.dtype = graphs, rows, dtype

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[StructureData]:
        return (self[place] for place in range(len(self)))

    @overload
    def __getitem__(self, place: int) -> StructureData: ...
    @overload
    def __getitem__(self, place: slice) -> "PygDataset": ...
    def __getitem__(self, place: int | slice) -> "StructureData | PygDataset":
        if isinstance(place, slice):
            return PygDataset(self.graphs, self.rows[place], self.dtype)
        return make_data(self.graphs, int(self.rows[range(len(self))[place]]), self.dtype)

    def __repr__(self) -> str:
        return f"PygDataset({len(self):,} graphs)"


def make_data(graphs: GraphSet, row: int, dtype: torch.dtype = torch.float32) -> StructureData:
    """Return one graph as PyG's ``Data``.

    Its entries: ``z`` (atomic numbers), ``pos``, ``cell`` [1, 3, 3], ``pbc`` [1, 3]; ``edge_index``
    (sender and receiver, as PyG has it), ``edge_shift`` in angstrom and ``edge_cell_shift`` in
    lattice vectors, both [E, 3]: the vector of an edge is ``pos[receiver] + edge_shift -
    pos[sender]``; ``y_NAME`` [1, w] or [N, w], 0 where missing, and ``mask_NAME``, where it is
    known; ``attribute_NAME`` [1]; ``laplacian`` where the store has it; ``split`` and ``name``.

    Args:
        graphs: the graphs.
        row: row of the graph.
        dtype: type of positions, shifts, cells, targets and attributes.
    """
    one = graphs.take(np.array([row]))
    batch = make_batch(one, [0], cutoff=None, dtype=dtype, targets=list(one.targets))
    split = int(one.split[0])
    entries: dict[str, Tensor | str | None] = {
        "z": batch.numbers,
        "pos": batch.positions,
        "cell": batch.cell,
        "pbc": torch.from_numpy(one.pbc.copy()),
        "edge_index": batch.edge_index,
        "edge_shift": batch.edge_shift.to(dtype),
        "edge_cell_shift": torch.from_numpy(one.edge_shift.astype(np.int64)),
        "split": SPLITS[split] if split >= 0 else "none",
        "name": one.ids[0],
    }
    entries |= {TARGET + name: value.to(dtype) for name, value in batch.targets.items()}
    entries |= {MASK + name: mask for name, mask in batch.masks.items()}
    entries |= {ATTRIBUTE + name: value for name, value in batch.attributes.items()}
    if batch.laplacian is not None:
        entries["laplacian"] = batch.laplacian
    return StructureData(**entries)


class GraphStore:
    """The graphs of a store, for scripts and notebooks."""

    def __init__(self, path: Path, graphs: GraphSet) -> None:
        """Wrap an open store.

        Args:
            path: path of the store.
            graphs: its graphs.
        """
        self.path, self.graphs = path, graphs

    def __len__(self) -> int:
        return self.graphs.num_graphs

    @property
    def targets(self) -> dict[str, str]:
        """The properties of its structures.

        Returns:
            Unit by name.
        """
        return {name: shown_unit(target) for name, target in self.graphs.stats["targets"].items()}

    @property
    def splits(self) -> dict[str, int]:
        """The parts that train, choose, calibrate and test.

        Returns:
            Number of structures by name of the split.
        """
        return {name: len(self.graphs.indices_of(name)) for name in SPLITS}

    def to_pyg(
        self, split: str | None = None, *, dtype: torch.dtype = torch.float32
    ) -> "PygDataset":
        """Return the graphs as PyG's ``Data``, see ``make_data`` for their entries.

        Args:
            split: name of a split; None means all graphs.
            dtype: type of all numbers that are no counts; total energies of many atoms need
                ``torch.float64``.

        Raises:
            DataError: there is no such split.
        """
        every = np.arange(len(self))
        rows = every if split is None else self.graphs.indices_of(split)
        return PygDataset(self.graphs, rows, dtype)

    def to_loader(
        self,
        split: str | None = None,
        *,
        batch_size: int = 32,
        shuffle: bool | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> DataLoader:
        """Return a PyG ``DataLoader`` of the graphs.

        Args:
            split: name of a split; None means all graphs.
            batch_size: graphs of a batch.
            shuffle: whether each epoch has its own order; by default that of ``train`` has.
            dtype: see ``to_pyg``.

        Raises:
            DataError: there is no such split.
        """
        mixed = split == "train" if shuffle is None else shuffle
        return DataLoader(self.to_pyg(split, dtype=dtype), batch_size=batch_size, shuffle=mixed)

    def __repr__(self) -> str:
        targets = ", ".join(f"{name} [{unit}]" for name, unit in self.targets.items())
        sizes = ", ".join(f"{name} {count:,}" for name, count in self.splits.items())
        return f"{self.path}: {len(self):,} graphs ({sizes}); {targets}"

    def _repr_html_(self) -> str:
        """Show the store in a sentence."""
        return f"<p>{html.escape(repr(self))}</p>"
