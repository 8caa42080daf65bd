"""Whole nets of every conv in fp32; in fp64 ``hydragnn_hpo.testing`` asks the same and more."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from hydragnn_hpo.config.model_config import HeadConfig, ModelConfig
from hydragnn_hpo.model.gnn import MultiHeadGNN
from hydragnn_hpo.testing.sample_structures import CUTOFF, batch_structures, random_structure

TARGETS = {
    "energy": {"level": "graph", "shape": "scalar", "mean": 0.3, "std": 2.0},
    "charge": {"level": "node", "shape": "scalar", "mean": 0.0, "std": 0.5},
    "force": {"level": "node", "shape": "vector", "mean": 0.0, "std": 1.5},
}


@pytest.fixture
def predict(conv):
    """A net with heads of every level and shape that its conv can carry."""
    torch.manual_seed(3)
    config = ModelConfig(conv=conv, features=16, layers=3, cutoff=CUTOFF, basis_size=8)
    targets = {n: t for n, t in TARGETS.items() if t["shape"] == "scalar" or config.spec.vectors}
    heads = {name: HeadConfig(pool="contributions") for name in targets}
    net = MultiHeadGNN(config, heads, targets).eval()
    return lambda structure: net(batch_structures([structure], torch.float32))


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("mirror", [1.0, -1.0])
def test_scalars_stay_and_vectors_turn(predict, periodic, mirror):
    made = random_structure(1, 7, periodic=periodic)
    turn = mirror * Rotation.from_euler("zyx", [0.3, -1.1, 2.0]).as_matrix()
    before = predict(made)
    after = predict(made.rotate(turn).translate(np.full(3, 3.0)))
    for name in before:
        expected = before[name]
        if name == "force":
            expected = expected @ torch.as_tensor(turn.T)
            assert expected.abs().max() > 1e-3
        torch.testing.assert_close(after[name], expected, rtol=2e-4, atol=2e-4)


def test_elements_are_told_apart(predict):
    made = random_structure(6, 7)
    one, two = (
        predict(replace(made, numbers=np.full_like(made.numbers, number))) for number in (6, 118)
    )
    assert (one["charge"] - two["charge"]).abs().min() > 1e-6
