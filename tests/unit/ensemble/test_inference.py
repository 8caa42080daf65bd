"""An ensemble's answers do not depend on batches, order of members, or how graphs were built."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from ase.data import chemical_symbols

from hydragnn_hpo.data.batch import make_batch
from hydragnn_hpo.data.store_access import open_store
from hydragnn_hpo.ensemble.artefact import read_artefact
from hydragnn_hpo.ensemble.engine import make_member, member_batches
from hydragnn_hpo.ensemble.head_predictions import neighbor_counts, outside_coordination
from hydragnn_hpo.ensemble.inference import Ensemble, Prediction
from hydragnn_hpo.ensemble.structure_batches import columns_of_atoms, rules_for
from hydragnn_hpo.ensemble_build.packed import measure_coordination
from hydragnn_hpo.errors import DataError

FIELDS = ("mean", "std", "std_epistemic", "lo90", "hi90")


@pytest.fixture
def built(built_zip):
    return (
        Ensemble.load(built_zip, precision="fp64"),
        open_store(built_zip.parent / "data/toy.bp"),
    )


def assert_same(first: Prediction, second: Prediction, tolerance: float = 1e-11) -> None:
    assert first.trust == second.trust
    for name, head in first.heads.items():
        for key in FIELDS:
            np.testing.assert_allclose(
                getattr(head, key), getattr(second.heads[name], key), atol=tolerance, rtol=0
            )


def test_batches_and_the_order_of_members_do_not_matter(built):
    ensemble, columns = built
    together = ensemble.predict(columns, edges_per_batch=10**9)
    assert_same(together, ensemble.predict(columns, edges_per_batch=1))
    assert_same(together, ensemble.predict(columns, edges_per_batch=100))
    turned = Ensemble(ensemble.manifest, ensemble.members[::-1])
    assert_same(together, turned.predict(columns, edges_per_batch=10**9), tolerance=0.0)


def test_the_order_of_structures_is_kept(built):
    ensemble, columns = built
    whole = ensemble.predict(columns)
    flagged = next(graph for graph in range(10, 60) if whole.trust[graph] != "ok")
    order = (5, flagged, 9)
    some = ensemble.predict(columns, np.array(order))
    assert some.trust == tuple(whole.trust[graph] for graph in order)
    assert some.trust.count("ok") == 2
    for row, graph in enumerate(order):
        np.testing.assert_allclose(
            some.heads["energy"].mean[row], whole.heads["energy"].mean[graph], atol=1e-11
        )
    first = columns.node_offset[5]
    size = columns.num_nodes()[5]
    np.testing.assert_allclose(
        some.heads["charge"].mean[:size],
        whole.heads["charge"].mean[first : first + size],
        atol=1e-11,
    )


def test_a_large_spread_is_flagged(built):
    ensemble, columns = built
    cal = columns.indices_of("cal")
    prediction = ensemble.predict(columns, cal)
    limit = ensemble.manifest.heads["energy"].calibration.spread99
    expected = prediction.heads["energy"].std_epistemic[:, 0] > limit * (1 + 1e-9)
    actual = np.array(["large spread of energy" in trust for trust in prediction.trust])
    np.testing.assert_array_equal(actual, expected)
    assert expected.sum() == 1
    assert prediction.trust.count("ok") >= len(cal) - 2


def test_each_member_gets_its_own_cap(built):
    ensemble, columns = built
    first, *others = ensemble.members
    capped = Ensemble(ensemble.manifest, (replace(first, max_neighbors=2), *others))
    rows = columns.indices_of("cal")
    for member, batch in member_batches(capped.members, columns, rows, capped.device):
        cap = 2 if member.trial == first.trial else None
        wanted = make_batch(columns, rows, cutoff=member.cutoff, max_neighbors=cap)
        assert batch.edge_index.shape == wanted.edge_index.shape
    every = make_batch(columns, rows, cutoff=first.cutoff).edge_index
    two = make_batch(columns, rows, cutoff=first.cutoff, max_neighbors=2).edge_index
    assert two.shape < every.shape


def test_a_member_has_the_cap_of_its_trial(built_zip):
    content = read_artefact(built_zip)
    entry = content.manifest.members[0]
    config = content.configs[entry.trial]
    for cap in (None, 7):
        model = config.model.model_copy(update={"max_neighbors": cap})
        member = make_member(
            config.model_copy(update={"model": model}),
            content.weights[entry.trial],
            content.manifest.targets(),
            weights={"energy": 1.0},
            where="x",
        )
        assert member.max_neighbors == cap


def test_no_structures_give_no_rows(built):
    ensemble, columns = built
    nothing = ensemble.predict(columns, np.array([], dtype=int))
    assert nothing.trust == ()
    assert nothing.heads["energy"].mean.shape == (0, 1)


def test_short_edges_are_refused(built):
    ensemble, columns = built
    columns.stats["cutoff"] = 3.0
    with pytest.raises(DataError, match="the graphs hold edges up to 3 angstrom"):
        ensemble.predict(columns)


def test_loading_leaves_torchs_generator_alone(built_zip):
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    Ensemble.load(built_zip)
    assert torch.equal(torch.rand(4), expected)


def factor_by_hand(factors, symbols, value):
    """Factor of a row: of each of its elements once, then of the value, between 1/3 and 3."""
    log = sum(np.log(factors.elements.get(symbol, 1.0)) for symbol in set(symbols))
    (x0, x1, x2) = factors.values
    (y0, y1, y2) = np.log(factors.at_values)
    value = min(max(value, x0), x2)
    if value <= x1:
        log += y0 + (y1 - y0) * (value - x0) / (x1 - x0)
    else:
        log += y1 + (y2 - y1) * (value - x1) / (x2 - x1)
    return min(max(np.exp(log), 1 / 3), 3.0)


def test_the_mean_is_that_of_the_members_and_its_intervals_are_the_calibrated_ones(
    built, factored_zip, predict_alone
):
    ensemble = Ensemble.load(factored_zip, precision="fp64")
    columns = built[1]
    indices = np.arange(9)
    assert len({member.cutoff for member in ensemble.members}) > 1
    result = ensemble.predict(columns, indices, edges_per_batch=60, levels=(50, 95), members=True)
    assert {50, 80, 90, 95} <= set(ensemble.levels_known())
    alone = [predict_alone(member, columns, indices) for member in ensemble.members]
    for name, head in result.heads.items():
        known = ensemble.manifest.heads[name].calibration
        weights = [member.weights[name] for member in ensemble.members]
        mean = np.average([one[name] for one in alone], axis=0, weights=weights)
        np.testing.assert_allclose(head.mean, mean, atol=1e-11)
        some = columns.take(indices)
        node = name == "charge"
        atoms = [chemical_symbols[z] for z in some.numbers]
        ends = some.node_offset
        rows = atoms if node else [atoms[a:b] for a, b in zip(ends[:-1], ends[1:], strict=True)]
        factor = [
            factor_by_hand(known.factors, [symbols] if node else symbols, value)
            for symbols, value in zip(rows, head.mean[:, 0], strict=True)
        ]
        sigma = np.array(factor)[:, None] * np.sqrt(known.a * head.std_epistemic**2 + known.b)
        np.testing.assert_allclose(head.std, sigma, atol=1e-13)
        assert np.ptp(factor) > 0.3
        assert set(head.bounds) == {50, 95}
        kinds = ensemble.manifest.strata.names(some)
        strata = [chemical_symbols[z] for z in some.numbers] if node else kinds
        for level, (low, high) in (head.bounds | {90: (head.lo90, head.hi90)}).items():
            own = [known.tables.get(kind, known.quantiles)[f"{level / 100:g}"] for kind in strata]
            half = np.array(own)[:, None] * sigma
            np.testing.assert_allclose(high - head.mean, half, atol=1e-12)
            np.testing.assert_allclose(head.mean - low, half, atol=1e-12)
        assert list(head.members) == [member.trial for member in ensemble.members]
        for member, one in zip(ensemble.members, alone, strict=True):
            np.testing.assert_allclose(head.members[member.trial], one[name], atol=1e-11)


@pytest.fixture
def ensemble(built_zip):
    return Ensemble.load(built_zip)


def test_neighbours_are_those_of_training(ensemble, built_zip):
    """Alone, no atom has a neighbour; in training each had at least one within 3 angstrom."""
    known = ensemble.manifest.coordination
    assert known is not None
    assert known.cutoff == 3.0
    assert set(known.ranges) == {"H", "C", "N", "O"}
    assert min(low for low, _ in known.ranges.values()) >= 1
    columns = open_store(built_zip.parent / "data/toy.bp")
    trust = ensemble.predict(columns, columns.indices_of("train")).trust
    assert not any("coordination" in text for text in trust)
    assert "unseen coordination of C" in ensemble.predict([Atoms("C")]).trust[0]
    ensemble.manifest = ensemble.manifest.model_copy(update={"coordination": None})
    assert "coordination" not in ensemble.predict([Atoms("C")]).trust[0]


@pytest.mark.parametrize(("cutoff", "count"), [(2.7, 12), (3.7, 18), (4.5, 42)])
def test_shells_of_fcc(cutoff, count):
    """Copper, a = 3.61: 12 at 2.55, 6 at 3.61, 24 at 4.42 angstrom."""
    columns = columns_of_atoms([bulk("Cu", a=3.61)], rules_for(5.0))
    assert neighbor_counts(columns, cutoff).tolist() == [count]


def test_ranges_and_who_is_outside():
    """Water and peroxide show oxygen with 2 neighbours; a lone O has 0, O of H3O has 3."""
    rules = rules_for(1.3)
    train = [molecule("H2O"), molecule("CO2"), molecule("CO")]
    known = measure_coordination((columns_of_atoms([one], rules) for one in train), 1.3)
    assert known.cutoff == 1.3
    assert known.ranges == {"H": (1, 1), "C": (1, 2), "O": (1, 2)}
    lone = Atoms("O")
    crowded = Atoms("OH3", [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)])
    new = columns_of_atoms([molecule("H2O"), lone, crowded, Atoms("Fe")], rules)
    assert outside_coordination(known, new).tolist() == [
        *(False, False, False),
        True,
        *(True, False, False, False),
        False,
    ]
