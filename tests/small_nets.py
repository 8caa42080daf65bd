"""Small structures as batches, and nets on them, in fp64."""

import numpy as np
import pytest
import torch

from hydragnn_hpo.config.model_config import HeadConfig, ModelConfig
from hydragnn_hpo.data.batch import make_batch
from hydragnn_hpo.data.columns import Graph, columns_of
from hydragnn_hpo.data.structure import find_edges
from hydragnn_hpo.model.gnn import MultiHeadGNN

CUTOFF = 4.0
CELL = np.array([[4.5, 0.0, 0.0], [0.8, 4.2, 0.0], [-0.5, 0.6, 4.9]])


def atoms(seed, count=5, periodic=True):
    """Random atoms at least 1 angstrom apart: numbers, positions, cell."""
    random = np.random.default_rng(seed)
    positions = np.empty((0, 3))
    while len(positions) < count:
        candidate = random.random(3) @ CELL
        if (np.linalg.norm(positions - candidate, axis=1) > 1.0).all():
            positions = np.vstack((positions, candidate))
    numbers = random.choice([1, 6, 8, 26], count).astype(np.int16)
    return numbers, positions, CELL if periodic else np.zeros((3, 3))


def graph(numbers, positions, cell, **attributes):
    pbc = np.full(3, bool(cell.any()))
    edges, shift = find_edges(positions, cell, pbc, CUTOFF)
    return Graph(
        "x", numbers, positions, cell, pbc, edges, shift, {}, "x", None, attributes=attributes
    )


def batch_of(*graphs, dtype=torch.float64):
    columns = columns_of(graphs, {}, attributes=sorted(graphs[0].attributes))
    rows = range(len(graphs))
    return make_batch(columns, rows, cutoff=CUTOFF, dtype=dtype, pairs=True)


def target(level="graph", shape="scalar", **more):
    return {"level": level, "shape": shape, "mean": 0.0, "std": 1.0, **more}


TARGETS = {
    "energy": target(energy="total", mean=0.3, std=2.0),
    "forces": target("node", "vector", derived_from="energy", std=1.5),
    "stress": target("graph", "tensor", derived_from="energy", std=0.1),
    "gap": target(),
    "charge": target("node"),
}


def net(heads, stats=None, learn_weights=False, seed=3, **model):
    torch.manual_seed(seed)
    settings = {"conv": "schnet", "features": 12, "layers": 2, "cutoff": CUTOFF, "basis_size": 6}
    config = ModelConfig(**{**settings, **model})
    made = {name: HeadConfig(**values) for name, values in heads.items()}
    built = MultiHeadGNN(config, made, TARGETS, stats=stats, learn_weights=learn_weights)
    return built.double().eval()


@pytest.fixture
def make():
    """Everything the tests build with."""

    class Make:
        atoms = staticmethod(atoms)
        graph = staticmethod(graph)
        batch = staticmethod(batch_of)
        net = staticmethod(net)
        targets = TARGETS

    return Make
