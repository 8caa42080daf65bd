"""Units are read off names where they stand there; else guessed, and said to be guessed."""

import pytest

from hydragnn_hpo.data.look.units import is_energy, says_per_atom, unit_of
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
    found = unit_of(name)
    assert (found.name, found.sure) == (unit, "said")
    assert inside(found.name)


@pytest.mark.parametrize(("name", "unit"), GUESSED.items())
def test_what_is_usual_is_a_guess(name, unit):
    found = unit_of(name)
    assert (found.name, found.sure) == (unit, "guessed")
    assert inside(found.name)


@pytest.mark.parametrize("name", NONE)
def test_otherwise_nothing_is_known_and_nothing_converted(name):
    found = unit_of(name)
    assert (found.name, found.sure) == ("1", "unknown")


@pytest.mark.parametrize("name", ["energy", "REF_energy", "E", "E_tot", "u0", "dft_total_energy"])
def test_energies_by_name(name):
    assert is_energy(name)


@pytest.mark.parametrize("name", ["homo", "gap", "e_above_hull", "zpve", "Fermi_energy", "egg"])
def test_other_names_are_no_energies(name):
    assert not is_energy(name)


def test_per_atom_by_name():
    assert says_per_atom("formation energy per atom")
    assert not says_per_atom("spatial")
