"""Heads for vectors and tensors rotate, mirror and translate, on every conv that can."""

from itertools import product

import numpy as np
import pytest
import torch
from ase.data import atomic_masses

from hydragnn_hpo.config.convs import CONV_SPECS
from hydragnn_hpo.config.model_config import HeadConfig, ModelConfig, count_parameters
from hydragnn_hpo.model.gnn import MultiHeadGNN, TargetBaseline
from hydragnn_hpo.testing.checks.symmetry_checks import MIRROR, ROTATION, rotate_predictions
from hydragnn_hpo.testing.sample_structures import CUTOFF, batch_structures, random_structure

TARGETS = {
    f"{level}_{shape}_{origin}": {
        "level": level,
        "shape": shape,
        "unit": "1",
        "mean": 0.0 if shape == "vector" else 0.4,
        "std": 1.5,
        "origin": None if level == "node" else origin,
    }
    for level, shape, origin in (
        *product(["graph"], ["vector", "tensor"], ["mass", "none"]),
        ("node", "vector", ""),
        ("node", "tensor", ""),
    )
}
MOLECULE = random_structure(3, 7, periodic=False)


def build(conv, loss="huber"):
    """Build a net with all heads that a conv can have, with noise on parameters that are zero."""
    able = CONV_SPECS[conv].vectors
    names = [name for name in TARGETS if able or name.endswith("mass")]
    model = ModelConfig(conv=conv, features=8, layers=2, cutoff=CUTOFF, basis_size=4)
    heads = {name: HeadConfig(loss=loss) for name in names}
    torch.manual_seed(1)
    net = MultiHeadGNN(model, heads, TARGETS).double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    assert count_parameters(model, heads, TARGETS) == sum(p.numel() for p in net.parameters())
    return net


def predict(net, *structures):
    with torch.no_grad():
        return net(batch_structures(list(structures)))


@pytest.mark.parametrize("conv", CONV_SPECS)
def test_vectors_and_tensors_of_molecules_are_equivariant(conv):
    net = build(conv)
    before = predict(net, MOLECULE)
    for matrix in (ROTATION, MIRROR @ ROTATION):
        moved = MOLECULE.rotate(matrix).translate(np.array([11.0, -3.0, 7.0]))
        after = predict(net, moved)
        for name, expected in rotate_predictions(before, matrix).items():
            assert expected.abs().max() > 1e-3, name
            torch.testing.assert_close(after[name], expected, rtol=0, atol=1e-9)


def test_tensors_of_structures_are_symmetric_and_have_their_mean():
    predicted = predict(build("painn"), MOLECULE)
    for name in ("graph_tensor_mass", "graph_tensor_none"):
        tensor = predicted[name].view(3, 3)
        torch.testing.assert_close(tensor, tensor.T)
        assert (tensor - torch.diag(tensor.diagonal())).abs().max() > 1e-3
    atoms = predicted["node_tensor_"].view(-1, 3, 3)
    assert (atoms - atoms.transpose(1, 2)).abs().max() > 1e-4
    head = HeadConfig()
    numbers = torch.zeros(1, 9, dtype=torch.float64)
    batch = batch_structures([MOLECULE])
    mean = TargetBaseline(TARGETS["graph_tensor_mass"], head)(numbers, batch).view(3, 3)
    torch.testing.assert_close(mean, torch.tensor(0.4).double() * torch.eye(3).double())


def test_tensors_of_atoms_obey_the_acoustic_sum_rule_and_rotate():
    """Born charges sum to the total charge times the unit tensor, from every side."""
    described = {"born": TARGETS["node_tensor_"] | {"sum": -2.0}}
    model = ModelConfig(conv="painn", features=8, layers=2, cutoff=CUTOFF, basis_size=4)
    torch.manual_seed(1)
    net = MultiHeadGNN(model, {"born": HeadConfig()}, described).double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    other = random_structure(5, 4, periodic=True)
    before = predict(net, MOLECULE, other)
    first, second = before["born"].split([len(MOLECULE.numbers), len(other.numbers)])
    for atoms in (first, second):
        wanted = -2.0 * torch.eye(3, dtype=torch.float64)
        torch.testing.assert_close(atoms.sum(0).view(3, 3), wanted, rtol=0, atol=1e-12)
        assert atoms.std() > 1e-2
    after = predict(net, MOLECULE.rotate(ROTATION), other.rotate(ROTATION))
    expected = rotate_predictions(before, ROTATION)["born"]
    torch.testing.assert_close(after["born"], expected, rtol=0, atol=1e-9)


def test_a_batch_predicts_as_one_by_one_with_variances():
    net = build("painn", loss="nll")
    other = random_structure(5, 4, periodic=False)
    together, first, second = (predict(net, *s) for s in ((MOLECULE, other), (MOLECULE,), (other,)))
    assert {name for name in together if ":" in name} == {f"{n}:variance" for n in net.heads}
    for name, values in together.items():
        alone = torch.cat((first[name], second[name]))
        torch.testing.assert_close(values, alone, rtol=0, atol=1e-10)


def test_the_dipole_of_an_ion_moves_with_its_origin():
    """By a change of origin from R to S, a dipole of charge Q changes by Q (R - S)."""
    target = {**TARGETS["graph_vector_mass"], "charge": "q"}
    batch = batch_structures([MOLECULE])
    batch.attributes["q"] = torch.tensor([2.0], dtype=torch.float64)
    numbers = torch.ones(1, 3, dtype=torch.float64)
    about = {
        origin: TargetBaseline({**target, "origin": origin}, HeadConfig())(numbers, batch)
        for origin in ("mass", "geometry")
    }
    masses = atomic_masses[MOLECULE.numbers]
    heavy = (masses[:, None] * MOLECULE.positions).sum(axis=0) / masses.sum()
    expected = 2.0 * (MOLECULE.positions.mean(axis=0) - heavy)
    difference = (about["mass"] - about["geometry"])[0].numpy()
    np.testing.assert_allclose(difference, expected, rtol=0, atol=1e-12)
