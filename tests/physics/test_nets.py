"""Whole nets of every conv in fp32: symmetry, images, batches, what a share may lack."""

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from hydragnn_hpo.config.convs import CONV_SPECS
from hydragnn_hpo.config.model_config import HeadConfig, ModelConfig
from hydragnn_hpo.model.gnn import MultiHeadGNN


def close(found, expected, tolerance):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("mirror", [1.0, -1.0])
def test_scalars_stay_and_vectors_turn(net, make, dtype, tolerance, periodic, mirror):
    numbers, positions, cell, pbc = make.structure(1, periodic=periodic)
    turn = mirror * Rotation.from_euler("zyx", [0.3, -1.1, 2.0]).as_matrix()
    before = net(make.batch([make.graph(numbers, positions, cell, pbc)], dtype))
    moved = make.graph(numbers, positions @ turn.T + 3.0, cell @ turn.T, pbc)
    after = net(make.batch([moved], dtype))
    for name in before:
        expected = before[name]
        if name == "force":
            expected = expected @ torch.as_tensor(turn.T)
            assert expected.abs().max() > 1e-3
        close(after[name], expected, tolerance)


def test_node_order_does_not_matter(net, make, dtype, tolerance):
    numbers, positions, cell, pbc = make.structure(2, periodic=True)
    order = np.random.default_rng(0).permutation(len(numbers))
    before = net(make.batch([make.graph(numbers, positions, cell, pbc)], dtype))
    after = net(make.batch([make.graph(numbers[order], positions[order], cell, pbc)], dtype))
    close(after["energy"], before["energy"], tolerance)
    for name in set(before) - {"energy"}:
        close(after[name], before[name][order], tolerance)


def test_a_batch_is_only_a_speed_up(net, make, dtype, tolerance):
    graphs = [make.graph(*make.structure(s, 3 + s, periodic=bool(s % 2))) for s in range(4)]
    alone = [net(make.batch([one], dtype)) for one in graphs]
    together = net(make.batch(graphs, dtype))
    for name, values in together.items():
        close(values, torch.cat([one[name] for one in alone]), tolerance)


def test_a_supercell_gives_the_same_answer_per_atom(net, make, dtype, tolerance):
    numbers, positions, cell, pbc = make.structure(4, 5, periodic=True)
    small = net(make.batch([make.graph(numbers, positions, cell, pbc)], dtype))
    twice = np.vstack((positions, positions + cell[0]))
    large_cell = np.vstack((2 * cell[0], cell[1], cell[2]))
    big = make.graph(np.tile(numbers, 2), twice, large_cell, pbc)
    large = net(make.batch([big], dtype))
    close(large["energy"], small["energy"], tolerance)
    for name in set(small) - {"energy"}:
        close(large[name], small[name].repeat(2, 1), tolerance)


def test_images_count(net, make, dtype):
    numbers, positions, cell, _ = make.structure(4, 5, periodic=True)
    periodic = net(make.batch([make.graph(numbers, positions, cell, np.full(3, True))], dtype))
    open_ = net(make.batch([make.graph(numbers, positions, cell, np.full(3, False))], dtype))
    assert (periodic["energy"] - open_["energy"]).abs() > 1e-4


def test_isolated_atom_and_no_edges_at_all_are_finite(net, make, dtype):
    alone = make.graph(
        np.array([26], np.int16), np.zeros((1, 3)), np.zeros((3, 3)), np.zeros(3, bool)
    )
    pair = np.array([[0.0, 0, 0], [30.0, 0, 0]])
    apart = make.graph(np.array([1, 8], np.int16), pair, np.zeros((3, 3)), np.zeros(3, bool))
    batch = make.batch([alone, apart], dtype)
    assert batch.edge_index.shape == (2, 0)
    net.train()
    outputs = net(batch)
    sum(values.sum() for values in outputs.values()).backward()
    assert all(torch.isfinite(values).all() for values in outputs.values())
    assert all(torch.isfinite(p.grad).all() for p in net.parameters() if p.grad is not None)


def test_an_empty_share_gives_zero_gradients(net, make, dtype):
    batch = make.batch([make.graph(*make.structure(1))], dtype)
    empty = type(batch)(
        numbers=batch.numbers[:0],
        positions=batch.positions[:0],
        edge_index=batch.edge_index[:, :0],
        pairs=batch.pairs[:, :0],
        edge_shift=batch.edge_shift[:0],
        graph_of_node=batch.graph_of_node[:0],
        num_graphs=0,
        targets={},
        masks={},
        graph_index=batch.graph_index[:0],
    )
    sum(values.sum() for values in net(empty).values()).backward()
    assert all((p.grad == 0).all() for p in net.parameters())


def test_elements_are_told_apart(net, make, dtype):
    numbers, positions, cell, pbc = make.structure(6)
    one = net(make.batch([make.graph(np.full_like(numbers, 6), positions, cell, pbc)], dtype))
    two = net(make.batch([make.graph(np.full_like(numbers, 118), positions, cell, pbc)], dtype))
    assert (one["charge"] - two["charge"]).abs().min() > 1e-6


@pytest.mark.parametrize("conv", list(CONV_SPECS))
def test_seed_decides_the_weights(conv):
    def weights(seed):
        torch.manual_seed(seed)
        target = {"e": {"level": "graph", "shape": "scalar", "mean": 0.0, "std": 1.0}}
        built = MultiHeadGNN(ModelConfig(conv=conv), {"e": HeadConfig()}, target)
        return torch.cat([p.flatten() for p in built.parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))
