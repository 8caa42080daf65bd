"""Truths of a split, taken from the store piece by piece."""

import numpy as np
import pytest

from hydragnn_hpo.data.store_access import open_store
from hydragnn_hpo.ensemble_build import candidates


@pytest.mark.parametrize("piece", [1, 7, 1000])
@pytest.mark.parametrize("access", ["stage", "windows"])
def test_truth_is_that_of_the_graphs_requested(finished, monkeypatch, piece, access):
    monkeypatch.setattr(candidates, "GRAPHS_TOGETHER", piece)
    whole = open_store(finished / "data/toy.bp")
    graphs = open_store(finished / "data/toy.bp", access=access)
    indices = whole.indices_of("test")[::-1]
    energy, known = candidates.read_truth(graphs, "energy", indices)
    assert np.array_equal(energy, whole.targets["energy"][indices])
    assert known.all()
    charge, known = candidates.read_truth(graphs, "charge", indices)
    of_nodes = [
        whole.targets["charge"][whole.node_offset[g] : whole.node_offset[g + 1]] for g in indices
    ]
    assert np.array_equal(charge, np.concatenate(of_nodes))
    assert len(known) == len(charge)


def test_no_graphs_have_no_truth(finished):
    graphs = open_store(finished / "data/toy.bp")
    values, known = candidates.read_truth(graphs, "charge", np.zeros(0, dtype=np.int64))
    assert values.shape == (0, 1)
    assert known.shape == (0,)
