"""Which predictions should not be believed, and why."""

from pathlib import Path

import numpy as np
import pytest
from ase import Atoms

from hydragnn_hpo.ensemble.inference.ensemble import Ensemble
from hydragnn_hpo.ensemble.inference.trust import flags


@pytest.fixture
def ensemble(built_zip: Path) -> Ensemble:
    return Ensemble.load(built_zip)


def test_an_element_is_named_once_however_many_atoms(ensemble: Ensemble) -> None:
    atoms = Atoms("CFeFeNi", [(0, 0, 0), (1.5, 0, 0), (0, 1.5, 0), (0, 0, 1.5)])
    said = ensemble.predict([atoms, Atoms("CO", [(0, 0, 0), (1.5, 0, 0)])]).trust
    assert said[0].count("unseen element Fe") == 1
    assert "unseen element Ni" in said[0]
    assert "unseen element" not in said[1]


def test_neighbours_are_those_of_training(ensemble: Ensemble) -> None:
    """Alone, no atom has a neighbour; in training each had at least one within 3 angstrom."""
    known = ensemble.manifest.coordination
    assert known is not None
    assert known.cutoff == 3.0
    assert set(known.ranges) == {"H", "C", "N", "O"}
    assert min(low for low, _ in known.ranges.values()) >= 1
    said = ensemble.predict([Atoms("C")]).trust
    assert "unseen coordination of C" in said[0]


def test_most_structures_like_those_of_training_are_not_flagged(built_zip: Path) -> None:
    from hydragnn_hpo.data.open_store import open_store

    columns = open_store(built_zip.parent / "data/toy.bp")
    ensemble = Ensemble.load(built_zip)
    train = columns.indices_of("train")
    assert not any("coordination" in text for text in ensemble.predict(columns, train).trust)


def test_an_ensemble_that_does_not_know_coordination_is_silent(ensemble: Ensemble) -> None:
    ensemble.manifest = ensemble.manifest.model_copy(update={"coordination": None})
    assert "coordination" not in ensemble.predict([Atoms("C")]).trust[0]


def test_graphs_are_taken_in_the_order_asked_for(ensemble: Ensemble) -> None:
    from hydragnn_hpo.ensemble.inference.structures import columns_of_atoms

    several = [Atoms("CO", [(0, 0, 0), (1.5, 0, 0)]), Atoms("Fe"), Atoms("C")]
    columns = columns_of_atoms(several, ensemble.rules)
    whole = flags(ensemble.manifest, columns, np.array([2, 0, 1]), {})
    alone = [flags(ensemble.manifest, columns, np.array([row]), {})[0] for row in (2, 0, 1)]
    assert list(whole) == alone
    assert whole[0] == "unseen coordination of C"
    assert whole[2] == "unseen element Fe"
