"""Structures and nets in fp32; in fp64 ``hydragnn_hpo.testing`` asks the same and more."""

import numpy as np
import pytest
import torch

from hydragnn_hpo.config.convs import CONV_SPECS
from hydragnn_hpo.config.model_config import HeadConfig, ModelConfig
from hydragnn_hpo.data.batch import make_batch
from hydragnn_hpo.data.columns import Graph, columns_of
from hydragnn_hpo.data.structure import find_edges
from hydragnn_hpo.model.gnn import MultiHeadGNN

CUTOFF = 4.0
TARGETS = {
    "energy": {"level": "graph", "shape": "scalar", "mean": 0.3, "std": 2.0},
    "charge": {"level": "node", "shape": "scalar", "mean": 0.0, "std": 0.5},
    "force": {"level": "node", "shape": "vector", "mean": 0.0, "std": 1.5},
}


@pytest.fixture(params=list(CONV_SPECS))
def conv(request):
    return request.param


@pytest.fixture
def net(conv):
    """A net with heads of every level and shape that its conv can carry."""
    torch.manual_seed(3)
    config = ModelConfig(conv=conv, features=16, layers=3, cutoff=CUTOFF, basis_size=8)
    targets = {n: t for n, t in TARGETS.items() if t["shape"] == "scalar" or config.spec.vectors}
    heads = {name: HeadConfig(pool="contributions") for name in targets}
    return MultiHeadGNN(config, heads, targets).eval()


def structure(seed, num_nodes=7, periodic=False):
    """Random atoms at least 0.9 angstrom apart; a skewed cell where periodic."""
    random = np.random.default_rng(seed)
    cell = np.array([[4.5, 0.0, 0.0], [0.8, 4.2, 0.0], [-0.5, 0.6, 4.9]])
    box = cell if periodic else 4.0 * np.eye(3)
    positions = np.empty((0, 3))
    while len(positions) < num_nodes:
        candidate = random.random(3) @ box
        if (np.linalg.norm(positions - candidate, axis=1) > 0.9).all():
            positions = np.vstack((positions, candidate))
    numbers = random.choice([1, 6, 8, 26], num_nodes).astype(np.int16)
    return numbers, positions, (cell if periodic else np.zeros((3, 3))), np.full(3, periodic)


def graph(numbers, positions, cell, pbc, cutoff=CUTOFF):
    edges, shift = find_edges(positions, cell, pbc, cutoff)
    return Graph("x", numbers, positions, cell, pbc, edges, shift, {}, "x", None)


def batch_of(graphs, cutoff=CUTOFF):
    columns = columns_of(graphs, {})
    return make_batch(columns, range(len(graphs)), cutoff=cutoff, dtype=torch.float32, pairs=True)


@pytest.fixture
def make():
    """Everything the tests build structures with."""

    class Make:
        structure = staticmethod(structure)
        graph = staticmethod(graph)
        batch = staticmethod(batch_of)

    return Make
