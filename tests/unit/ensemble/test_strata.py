"""Kinds of structures by hand."""

import numpy as np
import pytest
from ase import Atoms

from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.ensemble.strata import Strata, size_strata
from hydragnn_hpo.ensemble.structure_batches import columns_of_atoms, rules_for


def columns(*formulas: str) -> Columns:
    structures = []
    for formula in formulas:
        atoms = Atoms(formula)
        atoms.positions[:, 0] = 2.0 * np.arange(len(atoms))
        structures.append(atoms)
    return columns_of_atoms(structures, rules_for(3.0))


@pytest.mark.parametrize(
    ("formula", "name"),
    [
        ("CH4O", "organic"),
        ("MgO", "oxygen"),
        ("NaCl", "halogen"),
        ("TiON", "oxygen+pnictogen"),
        ("FeS2", "chalcogen"),
        ("CaCO3", "oxygen"),
        ("CuAu", "no anion"),
        ("TiC", "no anion"),
        ("LiH", "no anion"),
    ],
)
def test_chemistry_by_the_anions(formula: str, name: str) -> None:
    assert Strata("chemistry").names(columns("Fe", formula, "H2O")).tolist() == [
        "no anion",
        name,
        "oxygen",
    ]


def test_no_structure_has_no_chemistry() -> None:
    assert len(Strata("chemistry").names(columns())) == 0


def test_sizes_are_cut_in_thirds() -> None:
    strata = size_strata(np.array([2, 2, 3, 4, 5, 6, 10, 12, 40]))
    assert strata.edges == (3, 6)
    names = ["1 to 3 atoms", "4 to 6 atoms", "7 or more atoms"]
    assert strata.of_sizes(np.array([1, 3, 4, 6, 7, 900])).tolist() == [
        names[0], names[0], names[1], names[1], names[2], names[2],
    ]  # fmt: skip


def test_structures_of_one_size_are_one_kind() -> None:
    strata = size_strata(np.full(30, 5))
    assert strata.edges == ()
    assert strata.of_sizes(np.array([5, 9])).tolist() == ["1 or more atoms"] * 2


def test_all_are_alike_by_default() -> None:
    assert set(Strata().names(columns("Fe", "MgO")).tolist()) == {"all"}
