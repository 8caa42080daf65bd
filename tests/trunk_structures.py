"""Structures for frozen trunks: without edges, as stored examples, and real ones."""

import gzip
import io
import os
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.io import read

from hydragnn_hpo.data.columns import Graph, columns_of


def columns_without_edges(*structures):
    """Return structures as columns without edges."""
    graphs = [
        Graph(
            f"s{number}",
            atoms.numbers.astype(np.int16),
            atoms.positions,
            atoms.cell.array,
            atoms.pbc,
            np.zeros((0, 2), dtype=np.int32),
            np.zeros((0, 3), dtype=np.int16),
            {},
            "x",
            None,
        )
        for number, atoms in enumerate(structures)
    ]
    return columns_of(graphs, {})


def example(row):
    """Return the structure of a row of expected values."""
    fields = ("numbers", "positions", "cell", "pbc")
    return Atoms(**{name: row[name] for name in fields})


def crystals_of_all_systems(count):
    """Return real crystals of all seven systems, the smallest of each first."""
    spglib = pytest.importorskip("spglib")
    folder = Path(os.environ["HYDRAGNN_HPO_DATA"])
    packed = (folder / "mp_magnetic" / "mp_mag_multihead_760.extxyz.gz").read_bytes()
    text = gzip.decompress(packed).decode()
    borders = np.array([1, 3, 16, 75, 143, 168, 195])  # first space group of each crystal system
    by_system: dict[int, list[Atoms]] = {}
    for atoms in sorted(read(io.StringIO(text), ":", format="extxyz"), key=len):
        cell = (atoms.cell.array, atoms.get_scaled_positions(), atoms.numbers)
        group = spglib.get_symmetry_dataset(cell, symprec=0.1).number
        system = int(np.searchsorted(borders, group, side="right"))
        by_system.setdefault(system, []).append(atoms)
    assert len(by_system) == 7
    taken = [found[: -(-count // 7)] for found in by_system.values()]
    return [atoms for found in taken for atoms in found]
