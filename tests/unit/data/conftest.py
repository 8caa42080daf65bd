"""Small structures, cards and stores for the tests of the data floor."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.io import write

from hydragnn_hpo.config.data_config import TargetConfig
from hydragnn_hpo.data.columns import Columns, columns_of
from hydragnn_hpo.data.structure import Place, Rules, graph_of

CARD = """
name = "tiny"
[[files]]
path = "tiny.extxyz"
[targets.energy]
level = "graph"
unit = "eV"
energy = "total"
[targets.charge]
level = "node"
unit = "e"
[graphs]
cutoff = 4.0
[split]
group = "structure"
"""

TARGETS = {
    "energy": TargetConfig(level="graph", unit="eV", optional=True),
    "charge": TargetConfig(level="node", unit="e", optional=True),
    "push": TargetConfig(level="node", shape="vector", unit="eV/angstrom", optional=True),
}


def labelled(atoms: Atoms, seed: int) -> Atoms:
    """Shake a structure and give it properties."""
    random = np.random.default_rng(seed)
    atoms.rattle(0.05, seed=seed)
    atoms.info["energy"] = float(random.normal())
    atoms.arrays["charge"] = random.normal(size=len(atoms))
    atoms.arrays["push"] = random.normal(size=(len(atoms), 3))
    return atoms


@pytest.fixture
def structures() -> list[Atoms]:
    """Crystals and molecules, a single atom among them."""
    kinds = [
        bulk("Cu"),
        molecule("H2O"),
        Atoms("Ar"),
        bulk("NaCl", "rocksalt", a=5.6, cubic=True),
        molecule("C6H6"),
        Atoms("C2", positions=[[0, 0, 0], [1.2, 0.7, 0]], cell=[2.4, 4, 9], pbc=[1, 1, 0]),
    ]
    return [labelled(kinds[n % len(kinds)].copy(), n) for n in range(18)]


@pytest.fixture
def columns(structures: list[Atoms]) -> Columns:
    """Columns of the structures; some properties are missing."""
    del structures[1].info["energy"], structures[3].arrays["push"]
    structures[4].arrays["charge"][2] = np.nan
    rules = Rules(4.5, 0.1, TARGETS)
    places = [Place(Path("s"), n + 1, f"s{n}") for n in range(len(structures))]
    graphs = [graph_of(*pair, rules) for pair in zip(structures, places, strict=True)]
    return columns_of(graphs, TARGETS)


@pytest.fixture
def card(tmp_path: Path, structures: list[Atoms]) -> Path:
    """A card beside its file of 18 structures."""
    write(tmp_path / "tiny.extxyz", structures, format="extxyz")
    path = tmp_path / "tiny.toml"
    path.write_text(CARD)
    return path


@pytest.fixture
def graph() -> Callable[..., object]:
    """Make a graph of one structure the way a build does."""

    def make(atoms: Atoms, **targets: TargetConfig) -> object:
        return graph_of(atoms, Place(Path("some.extxyz"), 7, "it"), Rules(4.0, 0.1, targets))

    return make
