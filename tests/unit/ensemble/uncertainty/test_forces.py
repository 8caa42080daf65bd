"""The force deviation of DP-GEN, spelt out with a loop over members and atoms."""

import numpy as np

from hydragnn_hpo.ensemble.uncertainty.forces import force_deviation, largest_deviation
from hydragnn_hpo.ensemble.uncertainty.moments import moments_of


def test_deviation_as_its_definition_says() -> None:
    """sqrt(<|f - <f>|^2>) of each atom, <> the mean over four members of equal weight."""
    forces = np.random.default_rng(0).normal(size=(4, 5, 3))
    found = force_deviation(moments_of(forces, [1.0] * 4).variance)
    for atom in range(5):
        mean = sum(forces[m, atom] for m in range(4)) / 4
        squares = [float(((forces[m, atom] - mean) ** 2).sum()) for m in range(4)]
        np.testing.assert_allclose(found[atom], np.sqrt(sum(squares) / 4), rtol=1e-12)


def test_the_largest_of_each_structure() -> None:
    offsets = np.array([0, 2, 2, 5])
    found = largest_deviation(np.array([0.1, 0.4, 0.2, 0.9, 0.3]), offsets)
    assert found.tolist() == [0.4, 0.0, 0.9]
