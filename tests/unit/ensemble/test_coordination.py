"""Numbers of neighbours against counts by hand and a slow loop."""

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.neighborlist import neighbor_list

from hydragnn_hpo.ensemble.coordination import Coordination, measure_coordination, neighbor_counts
from hydragnn_hpo.ensemble.structure_batches import columns_of_atoms, rules_for


@pytest.mark.parametrize(("cutoff", "count"), [(2.7, 12), (3.7, 18), (4.5, 42)])
def test_shells_of_fcc(cutoff: float, count: int) -> None:
    """Copper, a = 3.61: 12 at 2.55, 6 at 3.61, 24 at 4.42 angstrom."""
    columns = columns_of_atoms([bulk("Cu", a=3.61)], rules_for(5.0))
    assert neighbor_counts(columns, cutoff).tolist() == [count]


def test_many_structures_as_ase_counts_them() -> None:
    rng = np.random.default_rng(0)
    several = [molecule("CH3CH2OH"), bulk("NaCl", "rocksalt", a=5.64), bulk("Fe") * (2, 1, 1)]
    for atoms in several:
        atoms.rattle(0.05, rng=rng)
    columns = columns_of_atoms(several, rules_for(4.0))
    expected = [
        np.bincount(neighbor_list("i", atoms, 3.0), minlength=len(atoms)) for atoms in several
    ]
    assert neighbor_counts(columns, 3.0).tolist() == np.concatenate(expected).tolist()


def test_ranges_and_who_is_outside() -> None:
    """Water and peroxide show oxygen with 2 neighbours; a lone O has 0, O of H3O has 3."""
    rules = rules_for(1.3)
    train = [molecule("H2O"), molecule("CO2"), molecule("CO")]
    known = measure_coordination((columns_of_atoms([one], rules) for one in train), 1.3)
    assert known.cutoff == 1.3
    assert known.ranges == {"H": (1, 1), "C": (1, 2), "O": (1, 2)}
    lone, crowded = Atoms("O"), Atoms("OH3", [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)])
    new = columns_of_atoms([molecule("H2O"), lone, crowded, Atoms("Fe")], rules)
    assert known.outside(new).tolist() == [
        *(False, False, False),
        True,
        *(True, False, False, False),
        False,
    ]


def test_an_empty_split_has_no_ranges() -> None:
    assert measure_coordination([], 2.0) == Coordination(2.0, {})
