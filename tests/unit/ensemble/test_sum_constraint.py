"""Charges that sum to the total charge of their structure, from labels to every way to predict."""

from pathlib import Path

import numpy as np
import pytest
from ase.build import molecule

from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.store_access import open_store
from hydragnn_hpo.ensemble.artefact import read_artefact
from hydragnn_hpo.ensemble.artefact_writer import write_artefact
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.prune import choose_members, prune_members
from hydragnn_hpo.ensemble.stacked_engine import StackedEngine
from hydragnn_hpo.errors import DataError

ROUNDING = 1e-12
"""Largest error of a sum over few atoms in fp64, in e."""


def sums_of(columns: Columns, values: np.ndarray) -> np.ndarray:
    """Sum the values of the nodes of each graph, one by one."""
    ends = columns.node_offset
    return np.array([values[a:b].sum() for a, b in zip(ends[:-1], ends[1:], strict=True)])


@pytest.fixture
def ensemble(summed_run: Path) -> Ensemble:
    return Ensemble.load(summed_run / "ensemble.zip")


def test_a_store_knows_the_sum_and_by_how_much_labels_miss_it(summed_run: Path) -> None:
    described = open_store(summed_run / "data/toy.bp").stats["targets"]["charge"]
    assert described["sum"] == "total"
    assert 0.0 <= described["sum_miss"] < 1e-14


def test_the_mean_and_each_member_sum_to_the_attribute(
    summed_run: Path, ensemble: Ensemble
) -> None:
    store = open_store(summed_run / "data/toy.bp")
    assert read_artefact(summed_run / "ensemble.zip").manifest.heads["charge"].sum == "total"
    assert set(ensemble.manifest.attributes) == {"total"}
    columns = store.take(np.arange(60))
    charge = ensemble.predict(columns, members=True)["charge"]
    shares = ensemble.manifest.shares("charge")
    assert len(shares) > 1
    for values in (charge.mean, *charge.members.values()):
        np.testing.assert_allclose(
            sums_of(columns, values), columns.attributes["total"], atol=ROUNDING, rtol=0
        )
    np.testing.assert_allclose((charge.lo90 + charge.hi90) / 2, charge.mean, atol=ROUNDING)
    assert charge.std.min() > 0


def test_a_batch_changes_nothing(summed_run: Path, ensemble: Ensemble) -> None:
    columns = open_store(summed_run / "data/toy.bp").take(np.arange(12))
    together = ensemble.predict(columns)["charge"].mean
    alone = [ensemble.predict(columns, np.array([row]))["charge"].mean for row in range(12)]
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-6)


def test_members_that_are_stacked_sum_too(summed_run: Path, ensemble: Ensemble) -> None:
    columns = open_store(summed_run / "data/toy.bp").take(np.arange(8))
    rows = np.arange(8)
    twins = [ensemble.members[0], ensemble.members[0]]
    for member, heads in StackedEngine(twins, ensemble.device).predict(columns, rows):
        summed = sums_of(columns, heads["charge"].numpy())
        np.testing.assert_allclose(summed, columns.attributes["total"], atol=ROUNDING)
        assert member.trial == twins[0].trial


def test_a_structure_without_the_total_is_refused(ensemble: Ensemble) -> None:
    with pytest.raises(DataError, match="has no 'total' for attribute 'total'; add it"):
        ensemble.predict(molecule("H2O"))


def test_pruned_members_keep_the_sum(summed_run: Path, tmp_path: Path) -> None:
    whole = read_artefact(summed_run / "ensemble.zip")
    small, _ = prune_members(whole, choose_members(whole.manifest, 2, ()), where="whole")
    write_artefact(tmp_path / "small.zip", small)
    small = Ensemble.load(tmp_path / "small.zip")
    atoms = molecule("H2O")
    atoms.info["total"] = 1.0
    assert small.predict(atoms)["charge"].mean.sum() == pytest.approx(1.0, abs=ROUNDING)


def test_a_single_atom_has_the_total(ensemble: Ensemble) -> None:
    atoms = molecule("O")
    atoms.info["total"] = 1.0
    assert ensemble.predict(atoms)["charge"].mean == pytest.approx(1.0, abs=ROUNDING)
