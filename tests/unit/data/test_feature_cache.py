"""Features of foundation models beside a store; the model here counts neighbours."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hydragnn_hpo.config import TrainConfig
from hydragnn_hpo.data import Columns, FeatureCache, make_batch, open_store
from hydragnn_hpo.data import feature_cache as module
from hydragnn_hpo.data.folds import leave_fold_out
from hydragnn_hpo.data.store_builder import build_store
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.file_records import FeatureStats


def features_of(columns: Columns) -> np.ndarray:
    """Number the atoms of each structure, and repeat their element."""
    places = [np.arange(count) for count in columns.num_nodes()]
    return np.stack([np.concatenate(places), columns.numbers], axis=1).astype(np.float32)


@pytest.fixture
def store(card: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "PIECE", 5)
    path = card.with_name("tiny.bp")
    build_store(card, path)
    return path


@pytest.fixture
def cache(store: Path) -> FeatureCache:
    return FeatureCache(store, "counts", "a" * 64)


def filled(cache: FeatureCache) -> FeatureCache:
    graphs = open_store(cache.store, access="windows")
    cache.compute_pieces(graphs, features_of)
    assert cache.join_pieces(graphs)
    return cache


@pytest.mark.parametrize("access", ["stage", "windows"])
def test_graphs_of_every_access_come_with_their_features(cache, access):
    graphs = filled(cache).attach(open_store(cache.store, access=access))
    rows = np.array([7, 2, 2, 0])
    taken = graphs.take(rows)
    np.testing.assert_array_equal(taken.features["counts"], features_of(taken))
    batch = make_batch(graphs, rows, cutoff=None)
    np.testing.assert_array_equal(batch.features["counts"].numpy(), features_of(taken))


def test_moments_are_those_of_the_atoms_of_train(cache):
    known = filled(cache).open()[1]
    graphs = open_store(cache.store)
    train = features_of(graphs.take(graphs.indices_of("train"))).astype(np.float64)
    np.testing.assert_allclose(known["mean"], train.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(known["std"], train.std(axis=0), rtol=1e-6)


def test_a_fold_left_out_leaves_the_features_in_place(cache):
    graphs = filled(cache).attach(open_store(cache.store, access="windows"))
    fold = leave_fold_out(graphs, TrainConfig(epochs=1, fold=1, folds=3))
    val = fold.indices_of("val")
    assert set(val) != set(graphs.indices_of("val"))
    taken = fold.take(val)
    np.testing.assert_array_equal(taken.features["counts"], features_of(taken))
    assert set(taken.split) == {1}


def test_a_killed_computation_goes_on_and_does_nothing_twice(cache):
    graphs = open_store(cache.store, access="windows")
    done: list[int] = []

    def dies(columns: Columns) -> np.ndarray:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(columns.num_graphs)
        return features_of(columns)

    with pytest.raises(KeyboardInterrupt):
        cache.compute_pieces(graphs, dies)
    assert not cache.join_pieces(graphs)
    seen: list[int] = []
    fresh: list[int] = []

    def counted(columns: Columns) -> np.ndarray:
        fresh.append(columns.num_graphs)
        return features_of(columns)

    cache.compute_pieces(graphs, counted, report=seen.append)
    assert cache.join_pieces(graphs)
    assert (len(done), len(fresh), sum(seen)) == (2, len(seen) - 2, graphs.num_graphs)
    assert sorted(path.suffix for path in cache.folder.iterdir()) == [".json", ".npy"]


def test_other_weights_and_other_structures_have_features_of_their_own(cache, store):
    filled(cache)
    other = replace(cache, checksum="b" * 64)
    assert cache.find_other_version() is None
    assert other.find_other_version() == "a" * 64
    with pytest.raises(DataError, match="dataset embed"):
        other.open()
    index = json.loads((store / "index.json").read_text())
    assert cache.is_whole
    index["checksum"] = "0" * len(index["checksum"])
    (store / "index.json").write_text(json.dumps(index))
    assert not cache.is_whole


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def widened(path: Path) -> None:
    np.save(path, np.zeros((4, 9), np.float16))


def object_array(path: Path) -> None:
    np.save(path, np.array([print], dtype=object), allow_pickle=True)


@pytest.mark.parametrize("damage", [cut, widened, object_array])
def test_a_damaged_array_is_refused(cache, damage: Callable[[Path], None]):
    damage(filled(cache).path)
    with pytest.raises(DataError, match="is damaged"):
        cache.open()


def test_several_sets_have_the_moments_of_all_their_atoms():
    from hydragnn_hpo.config.data_config import _features

    random = np.random.default_rng(0)
    parts = [random.normal(size=(30, 2)), random.normal(3.0, 2.0, size=(50, 2))]
    sets = [
        {
            "train_nodes": len(part),
            "features": {"m": FeatureStats(mean=part.mean(0).tolist(), std=part.std(0).tolist())},
        }
        for part in parts
    ]
    pooled = _features(sets)["m"]
    whole = np.concatenate(parts)
    np.testing.assert_allclose(pooled["mean"], whole.mean(axis=0))
    np.testing.assert_allclose(pooled["std"], whole.std(axis=0))
