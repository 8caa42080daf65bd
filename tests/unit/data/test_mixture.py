"""Several data sets as one: rows, targets, statistics."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from comparing import assert_alike

from hydragnn_hpo.config.data_config import (
    SPLITS,
    CardConfig,
    MixedConfig,
    TargetConfig,
    targets_of,
    unite_stats,
    unite_targets,
)
from hydragnn_hpo.data.batch import make_batch
from hydragnn_hpo.data.columns import Columns, without_edges
from hydragnn_hpo.data.graph_sizes import size_stats
from hydragnn_hpo.data.mixture import Mixture, unite
from hydragnn_hpo.data.normalize import fit_target_stats
from hydragnn_hpo.errors import ConfigError

PLAIN = MixedConfig()
ROWS = np.array([17, 2, 20, 2, 0, 25, 19])


TARGETS = {
    "energy": TargetConfig(level="graph", unit="eV", energy="total", optional=True),
    "charge": TargetConfig(level="node", unit="e", optional=True),
    "push": TargetConfig(level="node", shape="vector", unit="eV/angstrom", optional=True),
    "alpha": TargetConfig(level="graph", shape="tensor", unit="angstrom^3"),
}


def built(columns: Columns, name: str, *keys: str) -> Columns:
    """Return columns with some of the targets and the statistics that a build gives them."""
    targets = {key: TARGETS[key] for key in keys}
    made = replace(
        columns,
        targets={key: columns.targets[key] for key in keys},
        masks={key: columns.masks[key] for key in keys},
        levels={key: columns.levels[key] for key in keys},
    )
    counts = np.bincount(made.split, minlength=5).tolist()
    stats = {"name": name, "splits": dict(zip(SPLITS, counts, strict=True))}
    fitted = {"targets": fit_target_stats(made, targets)}
    return replace(made, stats={**stats, **size_stats(made, 4.5), **fitted})


@pytest.fixture
def sets(columns: Columns) -> list[Columns]:
    """Two data sets: 18 graphs with energy and charge, 8 of them again with charge and push."""
    first = columns.take(np.arange(18))
    second = columns.take(np.arange(4, 12))
    for graphs in (first, second):
        graphs.split[:] = np.arange(graphs.num_graphs) % 5
    return [built(first, "a", "energy", "charge"), built(second, "b", "charge", "push")]


def test_one_set_stays_itself(sets: list[Columns]) -> None:
    assert unite(sets[:1], [PLAIN]) is sets[0]


def test_rows_lie_end_to_end(sets: list[Columns]) -> None:
    mixture = Mixture(sets, [PLAIN, PLAIN], ["charge"])
    assert mixture.num_graphs == 26
    assert mixture.num_nodes().tolist() == [*sets[0].num_nodes(), *sets[1].num_nodes()]
    assert mixture.num_edges().tolist() == [*sets[0].num_edges(), *sets[1].num_edges()]
    for split in ("train", "test"):
        wanted = [*sets[0].indices_of(split), *(18 + sets[1].indices_of(split))]
        assert mixture.indices_of(split).tolist() == wanted
    assert not set(mixture.group[:18].tolist()) & set(mixture.group[18:].tolist())
    assert mixture.windows.tolist() == [0, 18, 26]


def test_graphs_come_as_their_own_set_gives_them(sets: list[Columns]) -> None:
    mixture = Mixture(sets, [PLAIN, PLAIN], ["charge"])
    assert mixture.take(np.array([], dtype=np.int64)).num_graphs == 0
    taken = mixture.take(ROWS)
    assert taken.num_graphs == len(ROWS)
    assert taken.group.tolist() == mixture.group[ROWS].tolist()
    for place, row in enumerate(ROWS.tolist()):
        one = taken.take(np.array([place]))
        own = sets[row >= 18].take(np.array([row - 18 * (row >= 18)]))
        for name in ("numbers", "positions", "cell", "pbc", "edges", "edge_shift", "split"):
            np.testing.assert_array_equal(getattr(one, name), getattr(own, name))
        np.testing.assert_array_equal(one.targets["charge"], own.targets["charge"])
        assert list(one.ids) == list(own.ids)
        lacking = "energy" if row >= 18 else "push"
        assert not one.masks[lacking].any()
        assert one.masks["energy" if row < 18 else "push"].tolist() == (
            own.masks["energy" if row < 18 else "push"].tolist()
        )


def test_batches_and_counts_know_what_is_missing(sets: list[Columns]) -> None:
    mixture = Mixture(sets, [PLAIN, PLAIN], ["charge"])
    batch = make_batch(mixture, ROWS, cutoff=3.0, targets=["energy", "push", "charge"])
    known = [bool(row < 18 and sets[0].masks["energy"][row]) for row in ROWS]
    assert batch.masks["energy"].tolist() == known
    assert batch.graph_index.tolist() == ROWS.tolist()
    assert mixture.known("energy").tolist() == [*sets[0].known("energy"), *[0] * 8]
    assert mixture.known("push").tolist() == [*[0] * 18, *sets[1].known("push")]
    assert mixture.known("charge").tolist() == [*sets[0].known("charge"), *sets[1].known("charge")]


def test_a_prefix_keeps_targets_apart(sets: list[Columns]) -> None:
    mixture = Mixture(sets, [PLAIN, MixedConfig(prefix="b_")])
    assert set(mixture.levels) == {"energy", "charge", "b_charge", "b_push"}
    taken = mixture.take(np.array([3, 20]))
    first = taken.num_nodes()[0]
    assert not taken.masks["charge"][first:].any()
    assert not taken.masks["b_charge"][:first].any()
    assert mixture.stats["targets"]["b_push"] == sets[1].stats["targets"]["push"]


def test_shared_targets_are_described_as_if_built_together(columns: Columns) -> None:
    """Targets of two sets, one of them without spread, as one build would describe them."""
    columns.split[:] = np.arange(18) % 3
    columns.targets["energy"][10:] = 2.5
    keys = ("energy", "charge")
    whole = built(columns, "x", *keys).stats["targets"]
    halves = [columns.take(np.arange(10)), columns.take(np.arange(10, 18))]
    sets = [built(half, "x", *keys) for half in halves]
    actual = Mixture(sets, [PLAIN, PLAIN], keys).stats["targets"]
    assert_alike(actual, whole, rel=1e-9)


def test_shared_tensors_have_the_spread_about_their_common_mean(columns: Columns) -> None:
    columns.split[:] = 0
    tensors = np.random.default_rng(3).normal(size=(18, 9))
    tensors[10:] += 5.0 * np.eye(3).ravel()
    columns.targets["alpha"] = tensors
    columns.levels["alpha"] = "graph"
    columns.masks["alpha"] = np.ones(18, bool)
    sets = [built(columns.take(rows), "x", "alpha") for rows in (np.arange(10), np.arange(10, 18))]
    stats = unite_stats([each.stats for each in sets], [PLAIN, PLAIN], ["alpha"])
    shared = stats["targets"]["alpha"]
    rest = tensors - tensors[:, ::4].mean() * np.eye(3).ravel()
    assert shared["mean"] == pytest.approx(tensors[:, ::4].mean())
    assert shared["std"] == pytest.approx(np.sqrt((rest**2).mean()))


def test_what_describes_a_target_holds_no_edges(columns: Columns) -> None:
    light = without_edges(columns)
    assert light.edges.shape == (0, 2)
    assert light.edges.base is light.edge_shift.base is None, "a view would keep all edges"


def test_sizes_add_up(sets: list[Columns]) -> None:
    sets[1].stats["cutoff"] = 4.0
    stats = unite_stats([graphs.stats for graphs in sets], [PLAIN, PLAIN], ["charge"])
    assert stats["num_graphs"] == 26
    assert stats["cutoff"] == 4.0
    assert stats["splits"]["train"] == sum((graphs.split == 0).sum() for graphs in sets)
    nodes = np.concatenate([graphs.num_nodes() for graphs in sets])
    assert stats["nodes"] == {"mean": nodes.mean(), "min": 1, "max": 12, "total": nodes.sum()}
    degree = [graphs.stats["degree"]["4.0"] for graphs in sets]
    weights = [len(graphs.numbers) for graphs in sets]
    assert stats["degree"]["4.0"] == pytest.approx(np.average(degree, weights=weights))
    assert list(stats["degree"]) == ["3.0", "4.0"]


def test_edges_end_at_the_shortest_cutoff(sets: list[Columns]) -> None:
    """The first set reaches 4.5 angstrom; one that reaches 3 has to be cut out of it."""
    sets[1].stats["cutoff"] = 3.0
    mixture = Mixture(sets, [PLAIN, PLAIN], ["charge"])
    assert mixture.stats["cutoff"] == 3.0
    rows = np.arange(18)
    batch = make_batch(mixture, rows, cutoff=3.0, dtype=torch.float64)
    sender, receiver = batch.edge_index
    vectors = batch.positions[receiver] - batch.positions[sender] + batch.edge_shift
    lengths = np.sqrt(np.sum(vectors.numpy() ** 2, axis=1))
    alone = make_batch(sets[0], rows, cutoff=None, dtype=torch.float64)
    sender, receiver = alone.edge_index
    every = alone.positions[receiver] - alone.positions[sender] + alone.edge_shift
    assert lengths.max() <= 3.0
    assert len(lengths) == (np.sqrt(np.sum(every.numpy() ** 2, axis=1)) <= 3.0).sum()


def test_only_what_all_sets_have_conditions_a_model(sets: list[Columns]) -> None:
    nodes = [len(graphs.numbers) for graphs in sets]
    charged = [
        replace(graphs, attributes={"charge": np.arange(graphs.num_graphs, dtype=float), **more})
        for graphs, more in zip(sets, ({"spin": np.zeros(18)}, {}), strict=True)
    ]
    taken = Mixture(charged, [PLAIN, PLAIN], ["charge"]).take(ROWS)
    assert {name: v.tolist() for name, v in taken.attributes.items()} == {
        "charge": [17, 2, 2, 2, 0, 7, 1]
    }
    for widths, kept in (((3, 3), True), ((3, 2), False), ((3, None), False)):
        coded = [
            graphs if k is None else replace(graphs, laplacian=np.ones((n, k), np.float32))
            for graphs, n, k in zip(sets, nodes, widths, strict=True)
        ]
        taken = Mixture(coded, [PLAIN, PLAIN], ["charge"]).take(ROWS)
        assert (taken.laplacian is not None) == kept


def test_cards_speak_of_their_targets_in_our_units() -> None:
    def card(unit: str, **more: object) -> CardConfig:
        values = {"level": "graph", "unit": unit, **more}
        return CardConfig(name="x", files=[{"path": "x"}], targets={"e": values})

    targets = [targets_of(card("kcal/mol")), targets_of(card("eV"))]
    assert unite_targets(targets, [PLAIN, PLAIN], ["e"])["e"]["unit"] == "eV"
    assert targets_of(card("eV", per_atom=True))["e"]["unit"] == "eV/atom"


def test_degrees_are_known_at_every_cutoff_of_a_mixture(sets: list[Columns]) -> None:
    """Sets whose cutoffs have no number in common: 2.5 stands between, as the cube."""
    first = {**sets[0].stats, "cutoff": 4.0, "degree": {"3.0": 8.0, "4.0": 16.0}}
    second = {**sets[1].stats, "cutoff": 2.5, "degree": {"2.5": 2.0}}
    actual = unite_stats([first, second], [PLAIN, PLAIN], ["charge"])["degree"]
    nodes = [one["nodes"]["total"] for one in (first, second)]
    assert actual == {
        "2.5": pytest.approx(np.average([8.0 * (2.5 / 3.0) ** 3, 2.0], weights=nodes))
    }


TARGET = {"level": "graph", "shape": "scalar", "unit": "eV", "energy": "total"}


@pytest.mark.parametrize(
    ("second", "shared", "says"),
    [
        (TARGET, [], r"data sets 1 and 2 both have a target 'e': give one of them a prefix"),
        ({**TARGET, "unit": "eV/atom"}, ["e"], "'e' has unit eV in one data set and eV/atom in"),
        ({**TARGET, "level": "node"}, ["e"], "'e' has level graph in one data set and node in"),
        ({**TARGET, "derived_from": "x"}, ["e"], "'e' has derived_from None in one data set and x"),
        (TARGET, ["e", "f"], "shared names 'f', which no two data sets have"),
    ],
)
def test_nothing_is_mixed_by_accident(second: dict, shared: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        unite_targets([{"e": TARGET}, {"e": second}], [PLAIN, PLAIN], shared)


def test_derivatives_follow_their_energy() -> None:
    force = {"level": "node", "shape": "vector", "unit": "eV/angstrom", "derived_from": "e"}
    result = unite_targets([{"e": TARGET, "f": force}], [MixedConfig(prefix="x_")])
    assert result["x_f"]["derived_from"] == "x_e"
