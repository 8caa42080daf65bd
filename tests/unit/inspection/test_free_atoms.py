"""The unit of all-electron total energies is recognised by energies of free atoms."""

import numpy as np
import pytest
from made_properties import complexes

from hydragnn_hpo.inspection.element_fits import count_elements
from hydragnn_hpo.inspection.free_atoms import recognise_total_energy

METHANE, WATER, AMMONIA = -40.51, -76.44, -56.56
"""Total energies in Hartree (CCSD(T) near the basis limit, as in textbooks)."""


@pytest.mark.parametrize(
    ("unit", "factor"),
    [("Hartree", 1.0), ("eV", 27.2114), ("kcal/mol", 627.51), ("kJ/mol", 2625.5), ("Rydberg", 2.0)],
)
def test_the_unit_of_all_electron_energies_is_recognised(unit, factor):
    numbers = [np.array([6, 1, 1, 1, 1]), np.array([8, 1, 1])] * 8
    counts, kinds = count_elements(numbers)
    assert kinds == [1, 6, 8]
    assert counts[0].tolist() == [4, 1, 0]
    energies = factor * np.array([METHANE, WATER] * 8)
    assert recognise_total_energy(energies, counts, kinds) == unit


def test_three_compositions_are_enough_to_recognise_all_electron_energies():
    molecules = [[6, 1, 1, 1, 1], [8, 1, 1], [7, 1, 1, 1]]
    counts, kinds = count_elements([np.array(numbers) for numbers in molecules])
    energies = np.array([METHANE, WATER, AMMONIA])
    assert recognise_total_energy(energies, counts, kinds) == "Hartree"
    assert recognise_total_energy(energies[::-1], counts, kinds) is None
    assert recognise_total_energy(energies[:2], counts[:2], kinds) is None


def test_energies_without_core_electrons_are_not_recognised():
    counts, kinds = count_elements([np.array([6, 1, 1, 1, 1]), np.array([8, 1, 1])] * 8)
    tight_binding = 27.2114 * np.array([-4.175, -5.070] * 8)  # GFN2-xTB
    assert recognise_total_energy(tight_binding, counts, kinds) is None
    heavy, elements = count_elements([np.array([29, 29])] * 20)
    assert recognise_total_energy(np.full(20, -3280.0), heavy, elements) is None


@pytest.mark.parametrize(("unit", "factor"), [("Hartree", 1.0), ("eV", 27.2114), ("Rydberg", 2.0)])
def test_totals_with_pseudopotentials_for_metals_are_recognised_by_light_elements(unit, factor):
    structures, energies = complexes()
    counts, kinds = count_elements([atoms.numbers for atoms in structures])
    assert recognise_total_energy(factor * energies, counts, kinds) == unit
    # Without their cores, light elements are not recognised either.
    valence = counts @ [
        {1: -0.6, 6: -5.7, 7: -10.1, 8: -16.1, 9: -24.4}.get(z, -9.0) for z in kinds
    ]
    assert recognise_total_energy(valence, counts, kinds) is None
    few = slice(0, 12)  # for 8 elements
    assert recognise_total_energy(factor * energies[few], counts[few], kinds) is None
