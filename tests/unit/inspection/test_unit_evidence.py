"""What speaks for the unit of a property, on structures made for it; expected values by hand."""

import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator
from made_properties import PER_ATOM, complexes, look_at, metals, molecules, with_info

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.inspection.unit_evidence import UNKNOWN, guess_unit
from hydragnn_hpo.units import inside


def test_an_energy_of_a_table_has_a_unit_that_only_the_user_knows():
    totals = [sum(PER_ATOM[z] for z in atoms.numbers) for atoms in metals()]
    targets, _ = look_at(with_info(totals, "energy"), reader="table")
    assert (targets["energy"].config.energy, targets["energy"].unit.name) == ("total", "?")
    message, _ = look_at(with_info(totals, "energy"), reader="table", units={"energy": "Hartree"})
    assert (message["energy"].unit.name, message["energy"].unit.sure) == ("Hartree", "said")


def test_hartree_is_recognised_and_the_unit_of_forces_beside_it_is_asked_for():
    structures, energies = molecules()
    for atoms, energy in zip(structures, energies, strict=True):
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=atoms.positions)
    targets, _ = look_at(structures)
    assert (targets["energy"].unit.name, targets["energy"].unit.sure) == ("Hartree", "recognised")
    assert targets["forces"].unit.name == UNKNOWN
    assert targets["forces"].unit.choices == ("Hartree/angstrom", "Hartree/bohr")
    message, _ = look_at(structures, units={"forces": "Hartree/bohr"})
    assert message["forces"].config.derived_from == "energy"
    with pytest.raises(ConfigError, match="unknown unit 'Hartre'. Did you mean 'Hartree'"):
        look_at(structures, units={"energy": "Hartre"})


def test_a_unit_that_contradicts_the_numbers_is_reported():
    structures, energies = molecules()
    _, made = look_at(with_info(energies, "energy_eV", structures), reader="table")
    assert any("its size is that of energies in Hartree" in message for message in made.warnings)


UNITS = {
    "said": {
        "Band gap (eV)": "eV",
        "energy [Hartree]": "Hartree",
        "U0_kcal_mol": "kcal/mol",
        "dH_kj/mol": "kJ/mol",
        "formation_energy_ev_atom": "eV/atom",
        "e_mev_per_atom": "meV/atom",
        "formation_energy_ev_natom": "eV/atom",
        "bulk_gpa": "GPa",
        "stress_kbar": "kbar",
        "last phdos peak cm-1": "1/cm",
        "moment muB": "muB",
        "F_eV/Ang": "eV/angstrom",
        "shift [ppm]": "ppm",
        "mu (D)": "debye",
        "homo (Ha)": "Hartree",
        "alpha [a0^3]": "bohr^3",
    },
    "guessed": {
        "HOMO": "eV",
        "formation_energy_per_atom": "eV/atom",
        "e_above_hull": "eV/atom",
        "total_magnetization_per_atom": "muB/atom",
        "partial_charge": "e",
        "log_gvrh": "log10(GPa)",
        "shear_modulus": "GPa",
        "energy": "eV",
        "nmr_shielding": "ppm",
        "isotropic chemical shift": "ppm",
        "magnetic_shielding": "ppm",
        "cs_iso": "ppm",
        "dipole_moment": "e*angstrom",
        "Dipole_M": "e*angstrom",
        "mu": "e*angstrom",
        "magnetic_moment": "muB",
        "magnetic_dipole_moment": "muB",
        "total_moment": "muB",
        "vertical IP": "eV",
        "ionization_potential": "eV",
        "orbital_energies": "eV",
    },
    "unknown": dict.fromkeys(
        [
            *("logS", "y", "toxicity", "yield", "dihedral", "hev", "nmr_coupling", "redshift"),
            *("quadrupole_moment", "moment_of_inertia", "binding_affinity"),
        ],
        "1",
    ),
}


@pytest.mark.parametrize(
    ("sure", "name", "unit"),
    [(sure, name, unit) for sure, known in UNITS.items() for name, unit in known.items()],
)
def test_a_name_says_its_unit_or_what_is_usual(sure, name, unit):
    result = guess_unit(name)
    assert (result.name, result.sure) == (unit, sure)
    assert inside(result.name)


def test_beside_totals_in_hartree_the_unit_of_a_dipole_is_asked_for():
    structures, energies = complexes()
    dipoles = np.linspace(0.5, 9.0, len(structures))
    for atoms, energy, dipole in zip(structures, energies, dipoles, strict=True):
        atoms.info |= {"Dipole_M": dipole, "Electronic_E": energy}
    targets, _ = look_at(structures, reader="database")
    energy, dipole = targets["Electronic_E"], targets["Dipole_M"]
    assert energy.config.energy == "total"
    assert (energy.unit.name, energy.unit.sure) == ("Hartree", "recognised")
    assert (dipole.unit.name, dipole.unit.sure) == ("?", "unknown")
    assert dipole.unit.choices[:2] == ("debye", "e*angstrom")
    told, _ = look_at(structures, reader="database", units={"Dipole_M": "debye"})
    assert (told["Dipole_M"].unit.name, told["Dipole_M"].unit.sure) == ("debye", "said")


@pytest.mark.parametrize(
    ("name", "reader", "structures", "unit"),
    [
        ("dipole", "smiles", None, "?"),
        ("mu", "table", None, "?"),
        ("dipole", "extxyz", None, "e*angstrom"),
        ("dipole", "table", metals(20), "e*angstrom"),
        ("mu", "table", metals(20), "1"),
    ],
)
def test_dipoles_of_molecules_are_asked_for_but_in_files_of_ase(name, reader, structures, unit):
    structures = structures or molecules()[0]
    values = np.linspace(0.3, 4.0, len(structures))
    targets, _ = look_at(with_info(values, name, structures), reader=reader)
    assert targets[name].unit.name == unit


def test_the_user_is_not_asked_for_the_unit_of_what_gets_no_head():
    structures = molecules()[0]
    vectors = np.random.default_rng(2).normal(0.0, 1.0, (len(structures), 3))
    targets, _ = look_at(with_info([*vectors], "dipole", structures), reader="table")
    assert not targets["dipole"].head
    assert (targets["dipole"].unit.name, targets["dipole"].unit.sure) == ("1", "unknown")
    told, _ = look_at(structures, reader="table", wanted=["dipole"])
    assert told["dipole"].unit.name == "?"


HOMO = np.linspace(-0.29, -0.22, 20)

LUMO = np.linspace(0.09, 0.02, 20)
"""Levels of molecules in Hartree."""


@pytest.mark.parametrize(
    ("levels", "unit", "sure"),
    [
        ({"homo": HOMO, "lumo": LUMO, "gap": LUMO - HOMO}, "Hartree", "recognised"),
        ({"homo": 27.2114 * HOMO, "lumo": 27.2114 * LUMO}, "eV", "guessed"),
        ({"lumo": LUMO}, "Hartree", "recognised"),
        ({"ionization_energy": -HOMO}, "Hartree", "recognised"),
        ({"homo": 27211.4 * HOMO}, "?", "unknown"),
        ({"singlet_triplet_gap": 3.0 * LUMO}, "Hartree", "recognised"),
        ({"fermi_level": HOMO}, "Hartree", "recognised"),
        ({"fermi_level": 27.2114 * HOMO}, "eV", "guessed"),
        ({"orbital_energies": np.outer(HOMO, [40.0, 3.0, 2.0, 1.0])}, "Hartree", "guessed"),
    ],
    ids=["hartree", "ev", "lumo", "ip", "mev", "st", "fermi", "fermi_ev", "all"],
)
def test_levels_agree_with_total_energies_where_their_size_allows_it(levels, unit, sure):
    structures, energies = molecules()
    for number, atoms in enumerate(structures):
        values = {name: column[number] for name, column in levels.items()}
        atoms.info = {**values, "u0": energies[number]}
    targets, _ = look_at(structures, reader="table")
    assert targets["u0"].unit.name == "Hartree"
    for name in levels:
        assert (targets[name].unit.name, targets[name].unit.sure) == (unit, sure), name


@pytest.mark.parametrize("reader", ["table", "extxyz"])
def test_levels_that_are_not_possible_in_ev_are_asked_for(reader):
    structures = with_info(HOMO, "homo", molecules()[0])
    targets, _ = look_at(with_info(LUMO, "lumo", structures), reader=reader)
    # The LUMO alone could be in eV, but not beside this HOMO.
    for name in ("homo", "lumo"):
        assert (targets[name].unit.name, targets[name].unit.sure) == ("?", "unknown")
        assert targets[name].unit.choices == ("Hartree", "Rydberg")
    said, _ = look_at(structures, reader=reader, units={"homo": "Hartree"})
    assert (said["lumo"].unit.name, said["lumo"].unit.sure) == ("Hartree", "recognised")


def test_narrow_gaps_of_crystals_metals_and_between_spins_are_possible_in_ev():
    narrow = np.linspace(0.0, 0.3, 20)
    crystals, _ = look_at(with_info(narrow, "gap", metals(20)), reader="table")
    assert (crystals["gap"].unit.name, crystals["gap"].unit.sure) == ("eV", "guessed")
    clusters = [Atoms("Na3", np.eye(3) * (3.0 + 0.01 * n)) for n in range(20)]
    assert look_at(with_info(narrow, "gap", clusters), reader="table")[0]["gap"].unit.name == "eV"
    between, _ = look_at(with_info(narrow, "singlet_triplet_gap", molecules()[0]), reader="table")
    assert between["singlet_triplet_gap"].unit.name == "eV"


def test_the_energy_of_a_gap_potential_is_no_gap():
    energies = -900.0 - np.arange(20.0) ** 2
    targets, _ = look_at(with_info(energies, "gap_energy", metals(20)))
    assert (targets["gap_energy"].unit.name, targets["gap_energy"].unit.sure) == ("eV", "guessed")
    assert guess_unit("homogeneity").name == "1"


def test_units_that_the_file_states_are_said_and_unknown_ones_are_named():
    structures, energies = molecules()
    values = {"gap": LUMO - HOMO, "mu": 10.0 * LUMO, "A": HOMO**2, "u0": np.array(energies)}
    for name, column in values.items():
        with_info(column, name, structures)
    stated = {"gap": "Ha", "mu": "D", "A": "GHz", "u0": "furlong"}
    targets, _ = look_at(structures, reader="database", stated=stated)
    assert [targets[name].unit.name for name in ("gap", "mu", "A")] == ["Hartree", "debye", "1"]
    assert {targets[name].unit.sure for name in ("gap", "mu")} == {"said"}
    assert "'GHz'" in targets["A"].unit.why
    assert (targets["u0"].unit.name, targets["u0"].unit.sure) == ("Hartree", "recognised")
    told, _ = look_at(structures, reader="database", stated=stated, units={"gap": "eV"})
    assert told["gap"].unit.name == "eV"


def test_an_energy_per_atom_may_be_said_to_be_in_ev():
    means = [np.mean([PER_ATOM[z] for z in atoms.numbers]) for atoms in metals(40)]
    structures = with_info(means, "formation_energy_per_atom (eV)", metals(40))
    targets, _ = look_at(structures, reader="table")
    (result,) = (each for key, each in targets.items() if key.startswith("formation"))
    assert (result.unit.name, result.unit.sure) == ("eV/atom", "said")
    assert result.config.energy == "per_atom"


def test_an_energy_of_molecules_in_a_table_is_asked_for_even_where_sizes_are_alike():
    structures = [molecule("CH3OH") for _ in range(20)]
    targets, _ = look_at(
        with_info(np.linspace(3.0, 5.0, 20), "internal_energy", structures), reader="table"
    )
    energy = targets["internal_energy"]
    assert (energy.config.energy, energy.unit.name) == (None, "?")
    assert "kcal/mol" in energy.unit.choices
    in_ase, _ = look_at(structures, reader="extxyz")
    assert in_ase["internal_energy"].unit.name == "eV"


def test_evidence_for_a_unit_counts_by_its_rank():
    """Each kind is taken away in turn: the user, the file, the name, values, what is usual."""
    structures, energies = molecules()
    with_info(energies, "total_energy_ev", structures)
    with_info(energies, "total_energy", structures)
    with_info(HOMO * 27.2114, "homo", structures)
    with_info(LUMO, "yield", structures)
    stated = {"total_energy_ev": "kcal/mol", "yield": "furlong"}
    told = {"total_energy_ev": "meV"}
    by_user, _ = look_at(structures, reader="table", units=told, stated=stated)
    by_file, _ = look_at(structures, reader="table", stated=stated)
    others, _ = look_at(structures, reader="table", wanted=["total_energy_ev", "total_energy"])
    found = [by_user["total_energy_ev"], by_file["total_energy_ev"], others["total_energy_ev"]]
    found += [others["total_energy"], others["homo"], by_file["yield"], others["yield"]]
    assert [(each.unit.name, each.unit.sure) for each in found] == [
        *(("meV", "said"), ("kcal/mol", "said"), ("eV", "said")),
        *(("Hartree", "recognised"), ("eV", "guessed"), ("1", "unknown"), ("1", "unknown")),
    ]
    assert "furlong" in by_file["yield"].unit.why
    assert "nothing says it" in others["yield"].unit.why
