"""Errors by structure, element, size and composition, counted by hand."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from hydragnn_hpo.data.composition import Compositions, format_formula
from hydragnn_hpo.report import test_structures as module
from hydragnn_hpo.report.periodic_table import COLUMNS, list_places, place_of
from hydragnn_hpo.report.sections import structures
from hydragnn_hpo.report.sections.structures import worst_cells
from hydragnn_hpo.report.structure_errors import LabelledHead, StructureErrors
from hydragnn_hpo.report.test_structures import choose_shown, pack_structures


def head(truth, mean, graph, atom=None):
    """Return a head whose intervals reach 0.5 to each side."""
    values = [np.array(part, dtype=float).reshape(len(graph), -1) for part in (truth, mean)]
    places = np.zeros(len(graph), int) if atom is None else np.array(atom)
    half = np.full((len(graph), 1), 0.5)
    return LabelledHead("eV", atom is not None, *values, half, np.array(graph), places)


@pytest.fixture
def errors():
    """Water, two methanes of one group, and ozone without a label of the first target."""
    known = Compositions(
        ("water", "ch4:1", "ch4:2", "ozone"),
        np.array([8, 1, 1, 6, 1, 1, 1, 1, 6, 1, 1, 1, 1, 8, 8, 8], dtype=np.int16),
        np.array([3, 5, 5, 3]),
        np.array([4, 7, 7, 9]),
    )
    gap = head([1.0, 2.0, 3.0], [2.0, 2.5, 0.0], [0, 1, 2])  # errors 1, 0.5, 3
    charge = head([0.0] * 4, [0.1, -0.2, 0.4, 0.3], [0, 0, 1, 3], [0, 2, 0, 1])
    return StructureErrors(known, "test", {"gap": gap, "charge": charge}, ["ok"] * 4)


def test_the_worst_come_first_and_what_is_not_finite_is_left_out(errors):
    assert errors.worst("gap", 2) == [2, 0]
    assert errors.worst("charge", 9) == [2, 3, 1, 0]
    broken = head([1.0, 2.0], [np.nan, 2.5], [0, 1])
    assert dataclasses.replace(errors, heads={"gap": broken}).worst("gap", 9) == [1]


def test_a_row_says_everything_about_its_prediction(errors):
    assert worst_cells(errors, "gap", 2) == {
        **{"structure": "ch4:2", "formula": "CH4", "atom": None, "split": "test"},
        **{"truth": 3.0, "mean": 0.0, "half90": 0.5},
        **{"error": 3.0, "distance": None, "trust": "ok"},
    }
    assert worst_cells(errors, "charge", 1)["atom"] == "H 2"


def test_several_targets_with_a_large_spread_are_counted():
    one = "unseen coordination of N; large spread of gap"
    assert structures._shorten_trust(one) == one
    several = f"{one}; large spread of charge"
    assert (
        structures._shorten_trust(several) == "unseen coordination of N; large spread of 2 targets"
    )
    assert structures._shorten_trust("ok") == "ok"


def test_groups_and_compositions_share_the_error(errors):
    (methane, water) = errors.by_group("gap")
    assert (methane.label, methane.structures, methane.rows) == ("CH4", 2, 2)
    assert (methane.mae, methane.share) == pytest.approx((1.75, 3.5 / 4.5))
    assert (water.label, water.share) == ("H2O", pytest.approx(1.0 / 4.5))
    assert [part.label for part in errors.by_formula("charge")] == ["CH4", "H2O", "O3"]
    apart = dataclasses.replace(errors.structures, groups=np.arange(4))
    labels = [p.label for p in dataclasses.replace(errors, structures=apart).by_group("gap")]
    assert labels == ["CH4 (group 2)", "H2O", "CH4 (group 1)"]


def test_sizes_are_each_number_of_atoms_or_ranges(errors):
    parts = [(part.label, part.mae, part.structures) for part in errors.by_size("gap")]
    assert parts == [("3", 1.0, 1), ("5", 1.75, 2)]
    sizes = np.arange(1, 33)
    many = Compositions(tuple("x" * 32), np.ones(sizes.sum(), np.int16), sizes, sizes)
    one = head(np.zeros(32), np.ones(32), np.arange(32))
    parts = StructureErrors(many, "test", {"gap": one}).by_size("gap")
    assert [part.label for part in parts][:2] == ["1 to 4", "5 to 8"]
    assert [part.rows for part in parts] == [4] * 8


def test_elements_of_structures_are_weighted_by_their_share_and_atoms_by_themselves(errors):
    gap = errors.by_element("gap")
    assert set(gap) == {1, 6, 8}
    # Hydrogen: 2/3 of water with error 1, 4/5 of two methanes with errors 0.5 and 3.
    weighted = (2 / 3 * 1.0 + 4 / 5 * 0.5 + 4 / 5 * 3.0) / (2 / 3 + 8 / 5)
    assert (gap[1].mae, gap[1].structures) == (pytest.approx(weighted), 3)
    assert gap[6].mae == pytest.approx(1.75)
    assert (gap[8].mae, gap[8].structures) == (pytest.approx(1.0), 1), "ozone has no label"
    assert sum(part.share for part in gap.values()) == pytest.approx(1.0)
    charge = errors.by_element("charge")
    assert charge[8].mae == pytest.approx((0.1 + 0.3) / 2)
    assert (charge[1].mae, charge[1].rows) == (pytest.approx(0.2), 1)


def test_places_in_the_periodic_table():
    """Source: IUPAC's periodic table: group and period of well-known elements."""
    known = {1: (1, 1), 2: (1, 18), 5: (2, 13), 12: (3, 2), 26: (4, 8), 55: (6, 1), 79: (6, 11)}
    for number, (period, group) in known.items():
        assert place_of(number) == (period - 1, group - 1)
    assert place_of(57)[0] == place_of(71)[0] == 7
    assert place_of(72) == (5, 3)
    places = [place_of(number) for number in range(1, 119)]
    assert len(set(places)) == 118
    assert max(column for _, column in places) == COLUMNS - 1
    assert [number for *_, number in list_places([6])] == list(range(1, 11))


def test_formulas_are_in_the_order_of_hill():
    assert format_formula([8, 1, 1]) == "H2O"
    assert format_formula([1, 1, 8, 6, 1, 1]) == "CH4O"


def test_the_worst_of_every_target_are_shown_first_and_the_page_stays_small(errors, monkeypatch):
    assert choose_shown(errors)[:2] == [1, 2], "the worst of each target"
    monkeypatch.setattr(module, "MOST_ATOMS", 8)
    assert len(choose_shown(errors)) == 1
    monkeypatch.setattr(module, "MOST_SHOWN", 0)
    assert choose_shown(errors) == []


def test_positions_are_packed_to_a_thousandth_of_an_angstrom():
    positions = np.array([[0.0, 0, 0], [1.1, 0.2, -3], [60, 5, 5], [0, 0, 0]])
    cell = np.stack([np.zeros((3, 3)), 4.0 * np.eye(3)])
    columns = SimpleNamespace(
        num_graphs=2,
        numbers=np.array([8, 1, 26, 8], dtype=np.int16),
        node_offset=np.array([0, 2, 4]),
        positions=positions,
        cell=cell,
        pbc=np.array([[False] * 3, [True, True, False]]),
        num_nodes=lambda: np.array([2, 2]),
    )
    packed = pack_structures(columns)
    steps = np.repeat(packed["steps"], 2)[:, None]
    at = packed["positions"].reshape(-1, 3) * steps
    assert at[1] - at[0] == pytest.approx(positions[1] - positions[0], abs=2e-3)
    assert at[3] - at[2] == pytest.approx(positions[3] - positions[2], abs=2e-3)
    assert packed["cells"][0] is None
    origin = np.array(packed["cells"][1][:3])
    vectors = np.array(packed["cells"][1][3:])
    assert at[3] - origin == pytest.approx(positions[3], abs=2e-3)
    assert vectors.reshape(3, 3) == pytest.approx(cell[1])
    assert packed["elements"]["1"] == ["H", "#ffffff", 0.31]  # Cordero (2008)
