"""Units come from names or values, or are marked as guessed; sums are told from means."""

import numpy as np
import pytest

from hydragnn_hpo.data.unit_inference import (
    classify_growth,
    count_elements,
    explained_variance,
    guess_unit,
    is_energy,
    is_per_atom,
    recognise_total_energy,
)
from hydragnn_hpo.units import inside

SAID = {
    "gap_ev": "eV",
    "Band gap (eV)": "eV",
    "energy [Hartree]": "Hartree",
    "U0_kcal_mol": "kcal/mol",
    "dH_kj/mol": "kJ/mol",
    "formation_energy_ev_atom": "eV/atom",
    "e_mev_per_atom": "meV/atom",
    "bulk_gpa": "GPa",
    "stress_kbar": "kbar",
    "last phdos peak cm-1": "1/cm",
    "moment muB": "muB",
    "F_eV/Ang": "eV/angstrom",
}

GUESSED = {
    "band_gap": "eV",
    "HOMO": "eV",
    "formation_energy_per_atom": "eV/atom",
    "e_above_hull": "eV/atom",
    "magmom": "muB",
    "total_magnetization_per_atom": "muB/atom",
    "partial_charge": "e",
    "log_gvrh": "log10(GPa)",
    "shear_modulus": "GPa",
    "energy": "eV",
}

NONE = ["logS", "y", "property", "toxicity", "yield", "dihedral", "hev"]


@pytest.mark.parametrize(("name", "unit"), SAID.items())
def test_a_name_says_its_unit(name, unit):
    found = guess_unit(name)
    assert (found.name, found.sure) == (unit, "said")
    assert inside(found.name)


@pytest.mark.parametrize(("name", "unit"), GUESSED.items())
def test_what_is_usual_is_a_guess(name, unit):
    found = guess_unit(name)
    assert (found.name, found.sure) == (unit, "guessed")
    assert inside(found.name)


@pytest.mark.parametrize("name", NONE)
def test_otherwise_nothing_is_known_and_nothing_converted(name):
    found = guess_unit(name)
    assert (found.name, found.sure) == ("1", "unknown")


@pytest.mark.parametrize("name", ["energy", "REF_energy", "E", "E_tot", "u0", "dft_total_energy"])
def test_energies_by_name(name):
    assert is_energy(name)


@pytest.mark.parametrize("name", ["homo", "gap", "e_above_hull", "zpve", "Fermi_energy", "egg"])
def test_other_names_are_no_energies(name):
    assert not is_energy(name)


def test_per_atom_by_name():
    assert is_per_atom("formation energy per atom")
    assert not is_per_atom("spatial")


RANDOM = np.random.default_rng(5)


def crystals(count=60, kinds=3, largest=12):
    """Counts of atoms of some elements, [G, Z]; sizes differ."""
    counts = RANDOM.integers(0, largest, (count, kinds)).astype(float)
    counts[:, 0] += 1.0
    return counts


def test_a_sum_over_atoms_is_extensive():
    counts = crystals()
    energies = counts @ np.array([-3.0, -5.5, 1.25]) + RANDOM.normal(0, 0.3, len(counts))
    assert classify_growth(energies, counts) == "extensive"


def test_a_mean_over_atoms_is_intensive():
    counts = crystals()
    energies = counts @ np.array([-3.0, -5.5, 1.25]) / counts.sum(axis=1)
    assert classify_growth(energies + RANDOM.normal(0, 0.05, len(counts)), counts) == "intensive"


def test_a_gap_that_is_about_the_same_everywhere_is_intensive():
    counts = crystals()
    assert classify_growth(5.0 + RANDOM.normal(0, 0.1, len(counts)), counts) == "intensive"


def test_the_order_of_a_file_does_not_matter():
    counts = np.array([[2.0], [4.0]] * 20)
    assert classify_growth(10.0 * counts[:, 0], counts) == "extensive"


def test_noise_says_nothing():
    counts = crystals(200)
    assert classify_growth(RANDOM.normal(0, 1, len(counts)), counts) is None


def test_equal_sizes_and_few_structures_say_nothing():
    alike = np.tile([3.0, 2.0], (50, 1))
    assert classify_growth(RANDOM.normal(0, 1, 50), alike) is None
    few = crystals(11)
    assert classify_growth(few.sum(axis=1), few) is None


def test_one_element_of_all_sizes_is_extensive():
    counts = np.arange(1.0, 41.0)[:, None]
    assert classify_growth(-3.5 * counts[:, 0] + RANDOM.normal(0, 0.05, 40), counts) == "extensive"


def test_explained_is_judged_on_rows_that_were_not_fitted():
    weights = np.array([[1.0], [1.0], [2.0], [2.0], [3.0], [3.0]])
    fit = np.array([True, False] * 3)
    perfect = explained_variance(2.0 * weights[:, 0], weights, fit)
    assert perfect == pytest.approx(1.0, abs=1e-5)
    crossed = explained_variance(np.array([1.0, -1.0, 2.0, -2.0, 3.0, -3.0]), weights, fit)
    # fitted slope 1, held out -1, -2, -3: residuals 2, 4, 6 against a variance of 2/3 times 3
    assert crossed == pytest.approx(1.0 - (4 + 16 + 36) / 2.0, abs=1e-3)


METHANE, WATER = {6: 1, 1: 4}, {8: 1, 1: 2}
"""Total energies in Hartree: -40.51 and -76.44 (CCSD(T) near the basis limit, as in textbooks)."""


@pytest.mark.parametrize(
    ("unit", "factor"),
    [("Hartree", 1.0), ("eV", 27.2114), ("kcal/mol", 627.51), ("kJ/mol", 2625.5), ("Rydberg", 2.0)],
)
def test_the_unit_of_all_electron_energies_is_recognised(unit, factor):
    numbers = [np.array([6, 1, 1, 1, 1]), np.array([8, 1, 1])] * 8
    counts, kinds = count_elements(numbers)
    assert kinds == [1, 6, 8]
    assert counts[0].tolist() == [4, 1, 0]
    energies = factor * np.array([-40.51, -76.44] * 8)
    assert recognise_total_energy(energies, counts, kinds) == unit


def test_energies_without_core_electrons_are_not_recognised():
    counts, kinds = count_elements([np.array([6, 1, 1, 1, 1]), np.array([8, 1, 1])] * 8)
    tight_binding = 27.2114 * np.array([-4.175, -5.070] * 8)  # GFN2-xTB
    assert recognise_total_energy(tight_binding, counts, kinds) is None
    heavy, elements = count_elements([np.array([29, 29])] * 20)
    assert recognise_total_energy(np.full(20, -3280.0), heavy, elements) is None
