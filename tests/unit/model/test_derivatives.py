"""Forces and stress against finite differences of the energy, and training on them."""

import numpy as np
import pytest
import torch

HEADS = {"energy": {"pool": "contributions"}, "forces": {}, "stress": {}}


def energy_of(net, make, numbers, positions, cell):
    with torch.no_grad():
        return net(make.batch(make.graph(numbers, positions, cell)), only=["energy"])[
            "energy"
        ].item()


@pytest.mark.parametrize("conv", ["schnet", "painn"])
def test_forces_are_minus_the_slope(make, conv):
    net = make.net(HEADS, conv=conv)
    (numbers, positions, cell) = make.atoms(1)
    result = net(make.batch(make.graph(numbers, positions, cell)))["forces"].numpy()
    for node, axis in ((0, 0), (2, 1), (4, 2)):
        ends = []
        for sign in (1.0, -1.0):
            moved = positions.copy()
            moved[node, axis] += sign * 1e-5
            ends.append(energy_of(net, make, numbers, moved, cell))
        assert -(ends[0] - ends[1]) / 2e-5 == pytest.approx(result[node, axis], abs=1e-8)
    np.testing.assert_allclose(result.sum(axis=0), 0.0, atol=1e-12)


def test_stress_is_the_slope_by_strain_over_the_volume(make):
    net = make.net(HEADS)
    (numbers, positions, cell) = make.atoms(2)
    actual = net(make.batch(make.graph(numbers, positions, cell)))["stress"].numpy().reshape(3, 3)
    volume = abs(np.linalg.det(cell))
    for row, column in ((0, 0), (1, 1), (0, 2)):
        ends = []
        for sign in (1.0, -1.0):
            strain = np.zeros((3, 3))
            strain[row, column] += 0.5 * sign * 1e-5
            strain[column, row] += 0.5 * sign * 1e-5
            bend = np.eye(3) + strain
            ends.append(energy_of(net, make, numbers, positions @ bend, cell @ bend))
        assert (ends[0] - ends[1]) / 2e-5 / volume == pytest.approx(actual[row, column], abs=1e-9)
    np.testing.assert_allclose(actual, actual.T, atol=1e-14)


def test_molecules_have_no_stress(make):
    net = make.net(HEADS)
    solid = make.graph(*make.atoms(3))
    molecule = make.graph(*make.atoms(4, periodic=False))
    result = net(make.batch(solid, molecule))
    assert result["stress"][1].tolist() == [0.0] * 9
    assert result["stress"][0].abs().max() > 1e-6
    assert result["forces"].shape == (10, 3)


def test_answers_keep_no_graph_where_no_gradient_is_wanted(make):
    net = make.net(HEADS)
    batch = make.batch(make.graph(*make.atoms(5)))
    with torch.no_grad():
        result = net(batch)
    assert not any(values.requires_grad for values in result.values())
    assert set(net(batch, only=["forces"])) == {"forces"}


def test_a_loss_of_forces_and_stress_has_the_right_slope_by_a_weight(make):
    net = make.net(HEADS, conv="painn").train()
    batch = make.batch(make.graph(*make.atoms(6)))
    weight = net.trunk.convs[0].filters.maps[1].weight

    def loss():
        result = net(batch)
        return result["forces"].square().sum() + 30.0 * result["stress"].square().sum()

    (slope,) = torch.autograd.grad(loss(), weight)
    place = np.unravel_index(int(slope.abs().argmax()), slope.shape)
    ends = []
    for step in (1e-5, -2e-5):
        with torch.no_grad():
            weight[place] += step
        ends.append(loss().item())
    assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(slope[place].item(), rel=1e-6)


def test_both_derivatives_of_a_batch_are_those_of_its_graphs(make):
    net = make.net(HEADS)
    graphs = [make.graph(*make.atoms(seed)) for seed in (7, 8, 9)]
    together = net(make.batch(*graphs))
    alone = [net(make.batch(one)) for one in graphs]
    for name in HEADS:
        torch.testing.assert_close(together[name], torch.cat([one[name] for one in alone]))
