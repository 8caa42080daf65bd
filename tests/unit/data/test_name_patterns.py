"""Each regular expression about names says what its row of the table says."""

import ast
from pathlib import Path

import pytest

from hydragnn_hpo.data import name_patterns
from hydragnn_hpo.data.name_patterns import (
    NAMES,
    PATTERNS,
    UNIT_SUFFIXES,
    USUAL_UNITS,
    is_energy,
    is_per_atom,
    parse_calculator,
)
from hydragnn_hpo.units import is_unit

ROWS = {f"{group}.{key}": row for group, rows in PATTERNS.items() for key, row in rows.items()}

DATA = Path(name_patterns.__file__).parent
DECIDING = sorted((DATA.parent / "inspection").glob("*.py"))
"""Modules that decide what a property is."""
READERS = [*DATA.glob("*.py"), *DECIDING]
"""All that look names up in the table."""

ABOUT_TEXTS = {r"[^A-Za-z]+", r"[^A-Za-z0-9()]", r"\[.*?\]|[\d.e+-]+"}
"""Regular expressions of the room about formulas and error messages."""


@pytest.mark.parametrize("key", ROWS)
def test_a_pattern_matches_its_examples_and_none_of_its_near_misses(key):
    row = ROWS[key]
    assert row.examples
    assert row.near_misses
    assert [name for name in row.examples if not row.search(name)] == []
    assert [name for name in row.near_misses if row.search(name)] == []


def test_a_row_says_what_it_means_and_its_units_are_known():
    assert PATTERNS.keys() == {"names", "unit_suffixes", "usual_units"}
    assert [key for key, row in {**NAMES, **USUAL_UNITS}.items() if not row.says] == []
    units = [*UNIT_SUFFIXES, *(row.unit for row in USUAL_UNITS.values())]
    assert [unit for unit in units if not is_unit(unit)] == []


def test_names_are_looked_up_in_the_table_alone():
    strings = set()
    patterns = set()
    for path in READERS:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant):
                strings.add(node.value)
            is_search = isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re.")
            if is_search and path in DECIDING and path.stem != "run_folders":
                patterns.add(ast.unparse(node.args[0]))
    assert patterns == set(map(repr, ABOUT_TEXTS))
    assert NAMES.keys() - strings == set(), "no module asks for these"


def test_energies_are_known_by_name():
    energies = ["energy", "REF_energy", "E", "E_tot", "u0", "dft_total_energy"]
    others = ["homo", "gap", "e_above_hull", "zpve", "Fermi_energy", "egg"]
    assert [is_energy(name) for name in [*energies, *others]] == [True] * 6 + [False] * 6
    assert is_per_atom("formation energy per atom")
    assert not is_per_atom("spatial")


@pytest.mark.parametrize(
    ("name", "calculator"),
    [
        ("REF_energy", "ref"),
        ("energy_dft", "dft"),
        ("forces (eV/A)", ""),
        ("mace_forces_ev_a", "mace"),
        ("corrected_total_energy_per_atom", ""),
        ("gfn2_xtb_stress", "gfn2_xtb"),
    ],
)
def test_a_calculator_is_what_a_name_says_beside_its_quantity_and_unit(name, calculator):
    assert parse_calculator(name) == calculator
