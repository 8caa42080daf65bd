"""Sums over atoms: n cells have n times the energy of one, molecules far apart the sum of both."""

import numpy as np
import pytest
import torch

from hydragnn_hpo.config import HeadConfig, ModelConfig
from hydragnn_hpo.model import MultiHeadGNN
from hydragnn_hpo.model.convs import CONVS
from hydragnn_hpo.testing.sample_structures import (
    Structure,
    batch_structures,
    molecule_and_crystal,
    random_structure,
)

NUMBERS = [0.0] * 119
for number, value in {1: -13.6, 6: -1030.0, 8: -2040.0, 26: -34300.0}.items():
    NUMBERS[number] = value


def described(**kind):
    """Return a target with the statistics of a store, in which one structure has 4 eV more."""
    return {
        "level": "graph", "shape": "scalar", "mean": -5000.0, "std": 900.0, **kind,
        "elements": {"by_number": NUMBERS, "mean": 0.0, "std": 0.3},
        "atom_mean": {"mean": -1250.0, "std": 700.0, "atoms": 400},
    }  # fmt: skip


TARGETS = {"energy": described(energy="total"), "volume": described(extensive=True)}


@pytest.fixture(params=CONVS)
def net(request):
    """Return a function that builds a net of a conv with a kind of baseline."""

    def build(baseline):
        torch.manual_seed(0)
        heads = {name: HeadConfig(baseline=baseline) for name in TARGETS}
        model = ModelConfig(conv=request.param, features=16, layers=2, cutoff=4.0)
        return MultiHeadGNN(model, heads, TARGETS).double().eval()

    return build


def join(first, second):
    return Structure(
        np.append(first.numbers, second.numbers),
        np.vstack((first.positions, second.positions + [30.0, 0.0, 0.0])),
        first.cell,
    )


@pytest.mark.parametrize("baseline", ["elements", "mean"])
def test_they_grow_with_the_structure(net, baseline):
    crystal = molecule_and_crystal()[1]
    alone = [random_structure(seed, 4 + seed) for seed in range(2)]
    several = [crystal, crystal.double_cell(), crystal.double_cell().double_cell()]
    with torch.no_grad():
        predicted = net(baseline)(batch_structures([*several, *alone, join(*alone)]))
    for values in predicted.values():
        cell, double, large, first, second, both = values.flatten().tolist()
        assert [double, large] == pytest.approx([2 * cell, 4 * cell], rel=1e-9)
        assert both == pytest.approx(first + second, rel=1e-9)


def test_forces_of_an_energy_per_atom_are_those_of_the_total():
    """The same weights: the mean of the contributions, times their number, is their sum."""
    results = []
    for kind, unit in (("total", "eV"), ("per_atom", "eV/atom")):
        targets = {
            "energy": described(energy=kind, unit=unit) | {"atom_mean": None},
            "forces": {
                "level": "node", "shape": "vector", "derived_from": "energy", "mean": 0.0,
                "std": 1.0,
            },
            "stress": {
                "level": "graph", "shape": "tensor", "derived_from": "energy", "mean": 0.0,
                "std": 1.0,
            },
        }  # fmt: skip
        torch.manual_seed(0)
        heads = {name: HeadConfig() for name in targets}
        model = ModelConfig(conv="schnet", features=16, layers=2, cutoff=4.0)
        net = MultiHeadGNN(model, heads, targets).double().eval()
        results.append(net(batch_structures(molecule_and_crystal())))
    total, per_atom = results
    sizes = torch.tensor([[6.0], [5.0]], dtype=torch.float64)
    torch.testing.assert_close(per_atom["energy"] * sizes, total["energy"], rtol=1e-12, atol=0.0)
    for name in ("forces", "stress"):
        assert total[name].abs().max() > 1e-6
        torch.testing.assert_close(per_atom[name], total[name], rtol=1e-9, atol=1e-12)
