"""Whole nets of every conv in fp32: symmetry, and elements told apart."""

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("mirror", [1.0, -1.0])
def test_scalars_stay_and_vectors_turn(net, make, periodic, mirror):
    numbers, positions, cell, pbc = make.structure(1, periodic=periodic)
    turn = mirror * Rotation.from_euler("zyx", [0.3, -1.1, 2.0]).as_matrix()
    before = net(make.batch([make.graph(numbers, positions, cell, pbc)]))
    moved = make.graph(numbers, positions @ turn.T + 3.0, cell @ turn.T, pbc)
    after = net(make.batch([moved]))
    for name in before:
        expected = before[name]
        if name == "force":
            expected = expected @ torch.as_tensor(turn.T)
            assert expected.abs().max() > 1e-3
        torch.testing.assert_close(after[name], expected, rtol=2e-4, atol=2e-4)


def test_elements_are_told_apart(net, make):
    numbers, positions, cell, pbc = make.structure(6)
    one = net(make.batch([make.graph(np.full_like(numbers, 6), positions, cell, pbc)]))
    two = net(make.batch([make.graph(np.full_like(numbers, 118), positions, cell, pbc)]))
    assert (one["charge"] - two["charge"]).abs().min() > 1e-6
