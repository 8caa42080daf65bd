"""Distances to the training set in trunk features, against slow loops over single structures."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from hydragnn_hpo.data.store_access import open_store
from hydragnn_hpo.ensemble import descriptors
from hydragnn_hpo.ensemble.artefact import read_artefact
from hydragnn_hpo.ensemble.descriptors import (
    GRAPH,
    NODE,
    POINTS,
    features_from_arrays,
    features_to_arrays,
    nearest_distances,
    sample_training_set,
    stream_features,
)
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.prune import prune_members


@pytest.fixture
def content(built_zip):
    return read_artefact(built_zip)


@pytest.fixture
def graphs(built_zip):
    return open_store(built_zip.parent / "data/toy.bp")


def test_blocks_change_no_distance(monkeypatch):
    monkeypatch.setattr(descriptors, "_TOGETHER", 3)
    random = np.random.default_rng(0)
    points = random.normal(size=(10, 4))
    others = random.normal(size=(7, 4))
    expected = cdist(points, others).min(axis=1)
    assert nearest_distances(points, others) == pytest.approx(expected)
    apart = cdist(points, points) + np.diag(np.full(10, np.inf))
    alone = nearest_distances(points, points, themselves=True)
    assert alone == pytest.approx(apart.min(axis=1))
    assert nearest_distances(points[:0], others).shape == (0,)
    assert np.isinf(nearest_distances(points[:1], points[:1], themselves=True)).all()


def features_alone(ensemble, graphs, row):
    """Return the features of one structure and of its atoms in the member of the file."""
    (own,) = (m for m in ensemble.members if m.trial == ensemble.features.source)
    both = (GRAPH, NODE)
    ((_, seen),) = stream_features([own], graphs, np.array([row]), ensemble.device, both)
    assert seen[GRAPH][0] == pytest.approx(seen[NODE].mean(axis=0), rel=1e-5)
    return seen


def test_distances_are_those_of_a_slow_loop(built_zip, graphs):
    """All 24 training structures are in the file: the nearest is found one by one."""
    ensemble = Ensemble.load(built_zip)
    train = graphs.indices_of("train")
    test = graphs.indices_of("test")
    known = [features_alone(ensemble, graphs, row) for row in train.tolist()]
    measured = ensemble.training_distances(graphs, test)
    for level in (GRAPH, NODE):
        rows = np.concatenate([one[level] for one in known])
        spread = rows.std(axis=0) * np.sqrt(rows.shape[1])
        apart = cdist(rows / spread, rows / spread) + np.diag(np.full(len(rows), np.inf))
        spacing = np.median(apart.min(axis=1))
        new = np.concatenate([features_alone(ensemble, graphs, row)[level] for row in test])
        expected = cdist(new / spread, rows / spread).min(axis=1) / spacing
        assert measured[level] == pytest.approx(expected, rel=0.02, abs=0.01)  # half precision
    itself = ensemble.training_distances(graphs, train)
    assert itself[GRAPH].max() < 0.05
    assert itself[NODE].max() < 0.05


def test_the_sample_is_bounded_and_derives_from_its_seed(built_zip, graphs, monkeypatch):
    member = Ensemble.load(built_zip).members[0]
    monkeypatch.setattr(descriptors, "POINTS", 5)
    one, again, other = (
        sample_training_set(member, graphs, (GRAPH, NODE), seed=seed).levels for seed in (1, 1, 2)
    )
    for level in (GRAPH, NODE):
        assert one[level].points.shape[0] == 5
        assert one[level].points.dtype == np.float16
        assert np.array_equal(one[level].points, again[level].points)
        assert not np.array_equal(one[level].points, other[level].points)


def test_the_member_with_the_largest_weight_is_taken(content):
    members = content.manifest.members
    best = max(members, key=lambda member: (member.weight, -member.objective))
    assert content.features.source == best.trial
    assert set(content.features.levels) == {GRAPH, NODE}


def test_pruning_keeps_the_features_of_a_member_that_stays(content):
    trials = [member.trial for member in content.manifest.members]
    own = content.features.source
    others = [trial for trial in trials if trial != own]
    assert prune_members(content, [own, others[0]], where="file")[0].features is content.features
    assert prune_members(content, others, where="file")[0].features is None


def test_arrays_come_back_as_they_were(content):
    arrays = features_to_arrays(content.features)
    widths = {trial: config.model.features for trial, config in content.configs.items()}
    again = features_to_arrays(features_from_arrays(arrays, widths))
    assert all(np.array_equal(arrays[name], again[name]) for name in arrays)
    assert set(again) == set(arrays)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda a, t: a.clear(), "no features"),
        (lambda a, t: a.update({f"stranger/{p}": v for p, v in a.items()}), "no features"),
        (lambda a, t: a.pop(f"{t}/graph/mean"), "no features"),
        (lambda a, t: a.pop(f"{t}/node/points"), "missing"),
        (lambda a, t: a.update({f"{t}/node/mean": a[f"{t}/node/mean"][1:]}), "wrong shape"),
        (lambda a, t: a[f"{t}/graph/factor"].fill(np.nan), "infinite"),
        (lambda a, t: a[f"{t}/graph/spacing"].fill(0.0), "wrong shape"),
        (
            lambda a, t: a.update({f"{t}/graph/points": a[f"{t}/graph/points"].astype(int)}),
            "wrong shape",
        ),
        (
            lambda a, t: a.update(
                {f"{t}/graph/points": np.repeat(a[f"{t}/graph/points"], POINTS, axis=0)}
            ),
            "wrong shape",
        ),
    ],
)
def test_arrays_of_a_stranger_are_refused(content, change, reason):
    arrays = {name: of.copy() for name, of in features_to_arrays(content.features).items()}
    widths = {trial: config.model.features for trial, config in content.configs.items()}
    change(arrays, content.features.source)
    with pytest.raises(ValueError, match=reason):
        features_from_arrays(arrays, widths)
