"""Target statistics: from train alone, and safe to divide by."""

from dataclasses import replace

import numpy as np
import pytest

from hydragnn_hpo.config.data import TargetConfig
from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.normalize import target_stats
from hydragnn_hpo.data.statistics import edge_lengths, size_stats
from hydragnn_hpo.errors import DataError

TARGETS = {
    "energy": TargetConfig(level="graph", unit="meV"),
    "charge": TargetConfig(level="node", unit="e"),
    "push": TargetConfig(level="node", shape="vector", unit="eV/angstrom"),
}


@pytest.fixture
def divided(columns: Columns) -> Columns:
    split = np.arange(columns.num_graphs) % 5
    return replace(columns, split=split.astype(np.int8))


def test_scalars_are_centred_on_train(divided: Columns) -> None:
    stats = target_stats(divided, TARGETS)["energy"]
    train = [divided.targets["energy"][row, 0] for row in (0, 5, 10, 15)]
    mean = sum(train) / 4
    assert stats["mean"] == pytest.approx(mean)
    assert stats["std"] == pytest.approx((sum((x - mean) ** 2 for x in train) / 4) ** 0.5)
    assert stats["mad"] == pytest.approx(sum(abs(x - mean) for x in train) / 4)
    assert (stats["min"], stats["max"]) == (min(train), max(train))
    assert (stats["count"], stats["unit"]) == (4, "eV")


def test_other_splits_do_not_matter(divided: Columns) -> None:
    before = target_stats(divided, TARGETS)
    elsewhere = divided.split != 0
    divided.targets["energy"][elsewhere] += 100.0
    divided.targets["charge"][np.repeat(elsewhere, divided.num_nodes())] += 100.0
    assert target_stats(divided, TARGETS) == before


def test_vectors_keep_their_direction(divided: Columns) -> None:
    stats = target_stats(divided, TARGETS)["push"]
    train = divided.masks["push"] & np.repeat(divided.split == 0, divided.num_nodes())
    values = divided.targets["push"][train]
    assert stats["mean"] == 0.0
    assert stats["std"] == pytest.approx(np.sqrt((values**2).mean()))


def test_missing_values_do_not_count(divided: Columns) -> None:
    moved = replace(divided, split=np.where(np.arange(18) == 4, 0, 1).astype(np.int8))
    assert target_stats(moved, TARGETS)["charge"]["count"] == 11  # benzene less one


def test_a_constant_can_be_divided_by(divided: Columns) -> None:
    divided.targets["energy"][:] = -7.0
    divided.masks["energy"][:] = True
    assert target_stats(divided, TARGETS)["energy"]["std"] == 1.0


def test_a_target_without_training_values_is_an_error(divided: Columns) -> None:
    divided.masks["energy"][:] = False
    with pytest.raises(DataError, match="target 'energy' has no value in the training split"):
        target_stats(divided, TARGETS)


def test_sizes_and_degrees(divided: Columns) -> None:
    stats = size_stats(divided, 4.5)
    assert stats["num_graphs"] == 18
    # Three each of Cu, H2O, Ar, Na4Cl4, C6H6, C2.
    total = 3 * (1 + 3 + 1 + 8 + 12 + 2)
    assert stats["nodes"] == {"mean": total / 18, "min": 1, "max": 12, "total": total}
    assert list(stats["degree"]) == ["3.0", "4.0", "4.5"]
    assert stats["degree"]["4.5"] == pytest.approx(len(divided.edges) / len(divided.numbers))
    assert stats["degree"]["3.0"] < stats["degree"]["4.0"] < stats["degree"]["4.5"]
    assert edge_lengths(divided).max() <= 4.5
    assert stats["train_nodes"] == divided.num_nodes()[divided.split == 0].sum()
    assert stats["elements"] == [1, 6, 8, 11, 17, 18, 29]
