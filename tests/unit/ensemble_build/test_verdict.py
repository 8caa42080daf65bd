"""What a verdict says, when, and when it must not: every rule on both sides of its threshold."""

import dataclasses
import math
from itertools import groupby
from types import SimpleNamespace

import numpy as np
import pytest

from hydragnn_hpo.ensemble_build import verdict
from hydragnn_hpo.ensemble_build.calibrated import fit_temperatures
from hydragnn_hpo.ensemble_build.predicted import MemberPredictions
from hydragnn_hpo.ensemble_build.verdict import judge
from hydragnn_hpo.ensemble_build.verdict_evidence import (
    DataCurve,
    FarValue,
    HeadEvidence,
    KindCoverage,
    Published,
    RowFacts,
    SearchEvidence,
    collect_evidence,
    cover_kinds,
    find_kinds,
    make_data_curve,
)
from hydragnn_hpo.uncertainty.calibrate import Calibration
from hydragnn_hpo.uncertainty.class_probabilities import temper
from hydragnn_hpo.uncertainty.paired_comparison import Comparison, compare
from hydragnn_hpo.uncertainty.uncertainty_scores import HeadOnLabels, random_ause

GOOD = HeadEvidence(
    "band_gap",
    "eV",
    mae=0.2,
    groups=100,
    spearman=0.5,
    ause=0.1,
    random_ause=0.3,
    inside=0.9,
    calibration_groups=100,
    mean=Comparison(1.0, -9.0),
    elements=Comparison(0.4, -5.0),
    descriptor=Comparison(0.35, -4.0),
    single=Comparison(0.25, -3.0),
    kinds=(KindCoverage("Fe", 0.9, 50),),
    published=Published(0.3, "a model"),
)


def verdict_by(rule, **changes):
    """Return level and sentence of one rule, or None, with some evidence changed."""
    verdicts = judge([dataclasses.replace(GOOD, **changes)])
    return next(((v["level"], v["sentence"]) for v in verdicts if v["rule"] == rule), None)


def test_a_good_head_gets_good_news_only_and_every_sentence_has_its_reason():
    verdicts = judge([GOOD], SearchEvidence("t1", [1.0] * 15, 0, [1.0] * 20, 4))
    assert [v["rule"] for v in verdicts] == [
        "mean",
        "elements",
        "descriptor",
        "published",
        "single",
        "ranking",
        "intervals",
    ]
    assert {v["level"] for v in verdicts} == {"good"}
    assert {v["head"] for v in verdicts} == {"band_gap"}
    assert all(v["because"] for v in verdicts)
    assert all(len(v["sentence"]) < 250 and v["sentence"].endswith(".") for v in verdicts)
    assert verdicts[0]["sentence"] == (
        "band gap: MAE 0.2 eV, 20 % of the error of always predicting the mean (100 groups of "
        "structures)."
    )


# Thresholds: .95 of the mean's error; two standard errors; Spearman .3, .1 and 2 / sqrt(Q - 1);
# binomial bands of 95 % (1.96 sqrt(.09 / Q): .0588 for 100 groups) and of 99 % for kinds.
CASES = {
    "learned": ("mean", {"mae": 0.95}, "good", "95 % of the error"),
    "not_learned": ("mean", {"mae": 0.96}, "warning", "was not learned"),
    "median": ("mean", {"median": Comparison(0.89, -9.0)}, "good", "22 % of the error of always"),
    "below_the_median": ("mean", {"median": Comparison(0.19, 0.5)}, "warning", "was not learned"),
    "near_the_mean": ("mean", {"median": Comparison(0.91, -9.0)}, "good", "20 % of the error"),
    "by_chance": ("mean", {"mean": Comparison(0.3, -1.9)}, "warning", "was not clearly learned"),
    "no_mean": ("mean", {"mean": Comparison()}, None, ""),
    "constant_target": ("mean", {"mean": Comparison(0.0, 0.0)}, None, ""),
    "structure": ("elements", {"elements": Comparison(0.4, -2.1)}, "good", "knows more"),
    "atoms": ("elements", {"is_node": True}, "good", "as the mean of each element alone has 0.4"),
    "elements_say_nothing": ("elements", {"elements": Comparison(1.2, -9.0)}, None, ""),
    "composition": ("elements", {"elements": Comparison(0.4, -1.9)}, "warning", "does not clearly"),
    "neither_learned": (
        "elements",
        {"mae": 0.97, "elements": Comparison(0.96, 0.5)},
        None,
        "",
    ),
    "composition_alone": (
        "elements",
        {"mae": 0.97, "elements": Comparison(0.5, 3.0)},
        "warning",
        "use the simpler model",
    ),
    "vectors": ("elements", {"elements": Comparison()}, None, ""),
    "beyond_atoms": (
        "descriptor",
        {"descriptor": Comparison(0.4, -2.1)},
        "good",
        "has 0.4 eV, the",
    ),
    "local": (
        "descriptor",
        {"descriptor": Comparison(0.4, -1.9)},
        "warning",
        "not clearly know more",
    ),
    "local_member": (
        "local",
        {"local": {"weight": 0.25, "mae": 0.5, "mae_without": 0.2, "mae_with": 0.15, "z": -4.0}},
        "good",
        "with the weight 0.25, as it lowers the error by 25 %, from 0.2 eV to 0.15",
    ),
    "local_left_out": (
        "local",
        {"local": {"weight": 0.0, "mae": 0.5, "mae_without": 0.2, "mae_with": 0.19, "z": -1.0}},
        None,
        "",
    ),
    "local_alone": (
        "descriptor",
        {"mae": 0.9, "descriptor": Comparison(0.5, 3.0)},
        "warning",
        "train",
    ),
    "local_of_energy": (
        "descriptor",
        {"mae": 0.9, "descriptor": Comparison(0.5, 2.1), "has_derivatives": True},
        "warning",
        "no member, as it gives no forces",
    ),
    "local_of_energy_alike": (
        "descriptor",
        {"mae": 0.9, "descriptor": Comparison(0.5, 1.9), "has_derivatives": True},
        "warning",
        "not clearly know more",
    ),
    "local_says_nothing": ("descriptor", {"descriptor": Comparison(0.96, -9.0)}, None, ""),
    "no_descriptor": ("descriptor", {"descriptor": Comparison()}, None, ""),
    "helps": ("single", {"single": Comparison(0.25, -2.1)}, "good", "by 20 % (0.25 eV)"),
    "chance": ("single", {"single": Comparison(0.25, -1.9)}, "note", "20 % better than its best"),
    "alike": ("single", {"single": Comparison(0.2, 0.5)}, "note", "as good as its best trial"),
    "unlearned_trial": ("single", {"mae": 0.97, "single": Comparison(0.98, -3.0)}, None, ""),
    "hurts": ("single", {"single": Comparison(0.16, 2.1)}, "warning", "25 % worse"),
    "one_trial": ("single", {"single": Comparison()}, None, ""),
    "ranks": ("ranking", {"spearman": 0.31}, "good", "may be used to pick"),
    "hardly": ("ranking", {"spearman": 0.29}, "note", "hardly ranks"),
    "few_groups_hardly": ("ranking", {"spearman": 0.5, "groups": 16}, "note", "hardly ranks"),
    "more_groups_rank": ("ranking", {"spearman": 0.5, "groups": 18}, "good", "Spearman 0.50"),
    "ranks_not": ("ranking", {"spearman": 0.09}, "warning", "do not pick"),
    "worse_than_random": ("ranking", {"ause": 0.3}, "warning", "do not pick"),
    "constant_sigma": ("ranking", {"spearman": math.nan}, None, ""),
    "hold": ("intervals", {"inside": 0.842}, "good", "hold 84 %"),
    "too_narrow": ("intervals", {"inside": 0.841}, "warning", "too few for 100 groups"),
    "wide_enough": ("intervals", {"inside": 0.958}, "good", "hold 96 %"),
    "too_wide": ("intervals", {"inside": 0.96}, "note", "more than they need"),
    "few_groups_hold": ("intervals", {"inside": 0.9, "groups": 30}, "good", "hold 90 %"),
    "few_groups_say_little": (
        "intervals",
        {"inside": 0.75, "groups": 12},
        "note",
        "the 90 % intervals hold 75 % of the values, which 12 groups of structures are too few to",
    ),
    "few_groups_too_narrow": ("intervals", {"inside": 0.7, "groups": 12}, "warning", "too few for"),
    "kind_holds": ("kinds", {"kinds": (KindCoverage("Fe", 0.80, 50),)}, None, ""),
    "kind_does_not": ("kinds", {"kinds": (KindCoverage("Fe", 0.78, 50),)}, "warning", "Fe (78 %)"),
    "enough_groups": ("groups", {"groups": 30, "calibration_groups": 30}, None, ""),
    "few_tested": ("groups", {"groups": 29}, "note", "tested on 29 groups"),
    "few_calibrated": ("groups", {"calibration_groups": 29}, "note", "calibrated on 29"),
    "better": ("published", {"mae": 0.3}, "good", "0 % above"),
    "worse": ("published", {"mae": 0.33}, "note", "10 % above the published 0.3 of a model"),
    "data_helps": (
        "data",
        {"data": DataCurve((250, 500, 1000), (0.3, 0.25, 0.2), -4.0, 9, 9)},
        "note",
        "more data should help: from 500 to 1,000 training structures the error fell by 20 % "
        "(+- 10 %), in the doubling before it fell by 17 %.",
    ),
    "data_helps_by_chance": (
        "data",
        {"data": DataCurve((250, 500, 1000), (0.3, 0.25, 0.2), -1.9, 9, 9)},
        "note",
        "cannot be told: from 500 to 1,000 training structures the error fell by 20 % (+- 21 %)",
    ),
    "up_and_down": (
        "data",
        {"data": DataCurve((250, 500, 1000), (1.0, 1.05, 0.85), -3.0, 9, 9)},
        "note",
        "cannot be told: from 500 to 1,000 training structures the error fell by 19 % (+- 13 %), "
        "in the doubling before it rose by 5 %.",
    ),
    "one_lucky_seed": (  # 6 % in the last doubling, but 1 - sqrt(.94 / 1.02) = 4 % in the mean
        "data",
        {"data": DataCurve((250, 500, 1000), (1.02, 1.0, 0.94), -9.0, 9, 9)},
        "note",
        "more data alone should hardly help",
    ),
    "data_hardly_helps": (
        "data",
        {"data": DataCurve((250, 500, 1000), (0.3, 0.2, 0.196), -0.6, 9, 9)},
        "note",
        "hardly help: from 500 to 1,000 training structures the error fell by 2 % (+- 7 %)",
    ),
    "more_data_hurts": (
        "data",
        {"data": DataCurve((250, 500, 1000), (0.2, 0.2, 0.206), 2.0, 9, 9)},
        "note",
        "hardly help: from 500 to 1,000 training structures the error rose by 3 % (+- 3 %)",
    ),
    "flat_as_nothing_is_learned": (
        "data",
        {"mae": 0.97, "data": DataCurve((250, 500, 1000), (1.0, 1.0, 0.99), -0.5, 9, 9)},
        None,
        "",
    ),
    "falls_towards_the_mean": (  # pure noise: smaller training sets are fitted more closely
        "data",
        {"mae": 0.97, "data": DataCurve((250, 500, 1000), (1.4, 1.2, 1.0), -4.0, 9, 9)},
        None,
        "",
    ),
    "falls_below_the_mean": (
        "data",
        {"mae": 0.97, "data": DataCurve((250, 500, 1000), (1.4, 1.1, 0.9), -4.0, 9, 9)},
        "note",
        "more data should help",
    ),
    "large_groups": (
        "data",
        {"data": DataCurve((250, 700, 1000), (0.3, 0.25, 0.2), -4.0, 9, 9)},
        None,
        "",
    ),
    "no_curve": ("data", {"data": None}, None, ""),
    "unpublished": ("published", {"published": None}, None, ""),
}


@pytest.mark.parametrize(("rule", "changes", "level", "words"), CASES.values(), ids=CASES)
def test_a_rule_speaks_on_its_side_of_the_threshold(rule, changes, level, words):
    result = verdict_by(rule, **changes)
    assert (result[0] if result else None) == level
    assert words in (result[1] if result else "")


def test_nothing_is_praised_whose_test_structures_are_remembered():
    known = dataclasses.replace(GOOD, structures=50, remembered=2)
    verdicts = judge([known])
    assert {v["level"] for v in verdicts} == {"warning", "note"}
    (sentence,) = [v["sentence"] for v in verdicts if v["level"] == "warning"]
    assert sentence.startswith("SERIOUS: 2 of 50 test structures of band gap have a near copy")
    few = judge([dataclasses.replace(known, remembered=1)])
    assert [v["rule"] for v in few if v["level"] == "note"] == ["leakage"]
    assert not [
        v for v in judge([dataclasses.replace(known, remembered=0)]) if "copy" in v["sentence"]
    ]


def test_the_worst_kinds_come_first_and_the_others_are_counted():
    kinds = tuple(KindCoverage(f"e{n}", 0.5 - n / 100, 50) for n in range(8))
    assert verdict_by("kinds", kinds=kinds)[1].endswith(
        "e7 (43 %), e6 (44 %), e5 (45 %), e4 (46 %), e3 (47 %), e2 (48 %) and 2 more."
    )


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"curve": [1.0] * 15 + [0.979] * 5}, "training"),
        ({"curve": [1.0] * 15 + [0.981] * 5}, None),
        ({"curve": [1.0] * 6 + [0.5]}, None),
        ({"objectives": [1.0] * 6 + [0.979] * 3}, "search"),
        ({"objectives": [1.0] * 6 + [0.981] * 3}, None),
        ({"objectives": [0.979, *[1.0] * 8]}, None),
        ({"objectives": [1.0, 0.5]}, None),
        ({"candidates": 1}, "members"),
        ({"candidates": 2}, None),
    ],
)
def test_more_training_more_search_and_more_members(changes, rule):
    verdicts = judge([], SearchEvidence("t0007", **changes))
    assert [v["rule"] for v in verdicts] == ([rule] if rule else [])
    assert all(v["head"] is None for v in verdicts)


def test_of_a_search_that_gained_nothing_at_its_end_the_worth_is_told():
    objectives = [2.0, 1.25, *[1.5] * 6, 1.0, *[1.1] * 7]
    (verdict,) = judge([], SearchEvidence("t0007", objectives))
    assert (verdict["rule"], verdict["level"]) == ("search", "note")
    assert verdict["sentence"] == (
        "more search of this space should hardly help: half of the 16 trials came within 25 % of "
        "the best, and the last 5 gained 0 %."
    )
    assert judge([], SearchEvidence("t0007", objectives[:-1])) == []


def test_what_the_search_gained_over_what_was_tried_first_is_told():
    evidence = SearchEvidence("t0007", [2.0, 1.25, 1.5, 1.0], 2)
    (verdict,) = judge([], evidence)
    assert (verdict["rule"], verdict["level"]) == ("points", "note")
    assert verdict["sentence"] == (
        "the search gained 20 % over the 2 settings that it tried first."
    )
    assert judge([], dataclasses.replace(evidence, named=4)) == []


KNOWN = dataclasses.replace(
    GOOD,
    kinds=(KindCoverage("Fe", 0.5, 50),),
    local={"weight": 0.25, "mae": 0.5, "mae_without": 0.2, "mae_with": 0.15, "z": -4.0},
    data=DataCurve((250, 500, 1000), (0.3, 0.25, 0.2), -4.0, 9, 9),
    far=FarValue("a.xyz@7", 1e6, 4.2, is_error=True),
)
SEARCHED = SearchEvidence(
    "t1", [1.0] * 9, 2, [1.0] * 8, 1, {"elements": 1.0, "chgnet": 0.9}, ("chgnet",)
)


@pytest.mark.parametrize("table", ["HEAD_RULES", "SEARCH_RULES"])
def test_each_row_of_the_table_is_a_sentence_of_known_fields(table, monkeypatch):
    rules = getattr(verdict, table)
    names = [name for name, _ in groupby(rules, key=lambda row: row.name)]
    assert len(names) == len(set(names)), "the rows of a rule follow each other"
    monkeypatch.setattr(verdict, "HEAD_RULES", ())
    monkeypatch.setattr(verdict, "SEARCH_RULES", ())
    for row in rules:
        alone = dataclasses.replace(row, holds=verdict.otherwise)
        monkeypatch.setattr(verdict, table, (alone,))
        said = judge([KNOWN], SEARCHED)
        assert [one["rule"] for one in said] == [row.name] * (row.level is not None)
        for one in said:
            assert one["because"]
            assert one["sentence"].endswith(".")
            assert not set("{}|") & set(one["sentence"] + one["because"])


def test_groups_are_the_units_of_a_comparison():
    errors = np.array([1.0, 1.0, 2.0])
    other = np.array([2.0, 3.0, 2.0])
    # Differences by group: -3 and 0; mean -1.5, standard deviation 3 / sqrt(2) = 2.1213, and the
    # sum of two groups has sqrt(2) times that, 3: z = -1.
    actual = compare(errors, other, np.array([7, 7, 9]))
    assert actual == pytest.approx((7 / 3, -1.0), rel=1e-5)
    assert compare(errors, other, np.array([7, 7, 7])) == pytest.approx((7 / 3, 0.0), rel=1e-5)


def test_a_learning_curve_counts_groups_too():
    quarter = np.array([4.0, 4.0, 4.0])
    half = np.array([2.0, 3.0, 2.0])
    full = np.ones(3)
    fits = [(10, quarter), (20, half), (41, full)]
    result = make_data_curve(fits, np.array([7, 7, 9]), epochs=3, full=9)
    # Differences by group: -3 and -1; standard deviation sqrt(2), the sum of two has 2: z = -2.
    assert result.maes == pytest.approx((4.0, 7 / 3, 1.0), rel=1e-5)
    assert (result.structures, result.z) == ((10, 20, 41), pytest.approx(-2.0))
    assert (result.epochs, result.full) == (3, 9)


def test_an_error_without_a_unit_is_a_number():
    assert "MAE 0.2, 20 %" in verdict_by("mean", unit="1")[1]
    assert "has 0.4, the ensemble" in verdict_by("elements", unit="1")[1]


def test_noise_is_called_noise_and_nothing_else_is_concluded():
    random = np.random.default_rng(0)
    truth = random.normal(size=(120, 1))
    mean = 0.1 * random.normal(size=(120, 1))
    sigma = np.ones((120, 1)) + 0.01 * random.random((120, 1))
    known = Calibration(a=1.0, b=0.0, quantiles={"0.9": 1.645}, spread99=1.0, rows=99, groups=99)
    predicted = HeadOnLabels(
        truth, mean, sigma, 0.0 * sigma, np.full(120, "all"), np.ones((120, 1))
    )
    others = {
        "mean": np.zeros((120, 1)),
        "elements": 0.1 * random.normal(size=(120, 1)),
        "single": 0.15 * random.normal(size=(120, 1)),
    }
    curve = DataCurve((25, 50, 100), (0.8, 0.79, 0.8), 0.3, 9, 9)
    head = HeadEvidence("x", "eV", data=curve)
    verdicts = judge(
        [collect_evidence(head, predicted, known, RowFacts(np.arange(120), {}, others))]
    )
    assert [v["rule"] for v in verdicts] == ["mean", "ranking", "intervals"]
    assert "was not learned" in verdicts[0]["sentence"]
    assert "do not pick" in verdicts[1]["sentence"]


def test_kinds_of_few_groups_have_no_coverage():
    group = np.arange(20) // 2
    inside = np.r_[np.ones(10), np.zeros(10)]
    every = np.ones(20, bool)
    half = np.arange(20) < 10
    (actual,) = cover_kinds(inside, group, {"all": every, "half": half})
    assert actual == ("all", 0.5, 10)


def test_a_structure_belongs_to_all_its_elements_and_an_atom_to_its_own():
    # H2O, CH4
    numbers = np.array([1, 1, 8, 6, 1, 1, 1, 1])
    sizes = np.array([3, 5])
    graphs = find_kinds(numbers, sizes, np.array([1, 0]))
    assert {k: m.tolist() for k, m in graphs.items() if len(k) < 3} == {
        "H": [True, True],
        "C": [True, False],
        "O": [False, True],
    }
    assert len(find_kinds(np.ones(6, int), np.array([3, 3]), np.arange(2))) == 1, "of one size"
    atoms = find_kinds(numbers, sizes, np.repeat([0, 1], sizes), numbers)
    assert atoms["H"].tolist() == [True, True, False, False, True, True, True, True]
    assert {k for k in atoms if len(k) > 2} == {k for k in graphs if len(k) > 2}


def test_evidence_is_computed_by_row_from_what_is_predicted():
    truth = np.array([[0.0], [0.0], [1.0], [1.0]])
    mean = np.array([[0.1], [0.2], [1.3], [1.4]])
    sigma = np.array([[0.1], [0.2], [0.3], [0.4]])
    known = Calibration(a=1.0, b=0.0, quantiles={"0.9": 1.1}, spread99=1.0, rows=9, groups=9)
    predicted = HeadOnLabels(truth, mean, sigma, 0.0 * sigma, np.full(4, "all"), np.ones((4, 1)))
    others = {"mean": np.full((4, 1), 0.5), "single": truth + 0.5}
    facts = RowFacts(np.arange(4), {}, others)
    result = collect_evidence(HeadEvidence("e", "eV"), predicted, known, facts)
    assert result.mae == pytest.approx(0.25)
    assert result.mean.mae == pytest.approx(0.5)
    assert result.single.mae == pytest.approx(0.5)
    assert math.isnan(result.elements.mae)
    assert result.spearman == pytest.approx(1.0)
    assert result.ause == pytest.approx(0.0)
    # The oracle leaves .1, .15, .2 of .25 after removing 3, 2, 1 of 4: 1 - (1 + .8 + .6 + .4) / 4.
    assert result.random_ause == random_ause(np.array([0.1, 0.2, 0.3, 0.4])) == pytest.approx(0.3)
    assert result.inside == pytest.approx(1.0)
    assert (result.groups, result.calibration_groups) == (4, 9)


@pytest.mark.parametrize(("is_error", "what"), [(True, "error"), (False, "label")])
def test_a_label_or_error_far_from_all_others_is_named_with_its_structure(is_error, what):
    level, sentence = verdict_by("far", far=FarValue("a.xyz@7", 1e6, 4.2, is_error))
    assert level == "warning"
    assert f"the {what} of structure a.xyz@7, 1e+06 eV, is far from all others" in sentence
    assert "(median 4.2)" in sentence
    assert verdict_by("far") is None


def class_head(truth: np.ndarray, classes: tuple[str, ...]) -> HeadEvidence:
    """Evidence of a head of classes that is sure and right."""
    rows = len(truth)
    known = np.eye(len(classes))[truth]
    mean = 0.9 * known + 0.1 / len(classes)
    zeros = np.zeros((rows, 1))
    ones = np.ones((rows, 1))
    predicted = HeadOnLabels(known, mean, zeros, zeros, np.full(rows, "all"), ones)
    calibration = Calibration(
        a=1.0, b=0.0, quantiles={"0.9": 0.9}, spread99=1.0, rows=rows, groups=rows, temperature=1.0
    )
    facts = RowFacts(np.arange(rows), {}, {"mean": np.full(known.shape, 1 / len(classes))})
    return collect_evidence(
        HeadEvidence("tox", "1", classes=classes), predicted, calibration, facts
    )


def test_a_head_of_classes_is_praised_only_where_each_class_was_tested():
    both = judge([class_head(np.arange(60) % 2, ("safe", "toxic"))])
    assert "good" in {one["level"] for one in both}
    assert "classes" not in {one["rule"] for one in both}

    one = judge([class_head(np.zeros(60, dtype=int), ("safe", "toxic"))])
    assert "good" not in {each["level"] for each in one}
    (missing,) = (each for each in one if each["rule"] == "classes")
    assert missing["level"] == "warning"
    assert "tox was tested on no structure of 'toxic' (of 2 classes)" in missing["sentence"]

    many = class_head(np.zeros(60, dtype=int), tuple("abcdefghi"))
    assert many.class_groups == (60, 0, 0, 0, 0, 0, 0, 0, 0)
    (missing,) = (each for each in judge([many, GOOD]) if each["rule"] == "classes")
    assert "'b', 'c', 'd', 'e', 'f', 'g' and 2 more (of 9 classes)" in missing["sentence"]
    assert "good" in {each["level"] for each in judge([many, GOOD]) if each["head"] == GOOD.name}


def test_a_trial_that_is_only_too_sure_is_no_worse_than_the_tempered_ensemble():
    """A net knows the probabilities, but says their fourth power: a temperature of 4 mends it.

    It saw the first half of the structures, and repeats their classes.
    """
    random = np.random.default_rng(0)
    rows = 4000
    known = random.dirichlet([1.0, 1.0, 1.0], rows)
    truth = np.eye(3)[[random.choice(3, p=row) for row in known]]
    sure = known**4 / (known**4).sum(axis=1, keepdims=True)
    cal = sure.copy()
    place = np.arange(rows)
    cal[: rows // 2] = 0.99 * truth[: rows // 2] + 0.01 / 3
    context = SimpleNamespace(
        targets={"phase": {}, "gap": {}},
        is_class=lambda name: name == "phase",
        rows_of=lambda split: place,
        unseen_by=lambda net: ("val", place[rows // 2 :]),
        truth=lambda name, split: (truth, np.ones(rows, dtype=bool)),
        graph_of_row=lambda name, split: place,
        group_of_row=lambda name, split: place,
    )
    temperatures = fit_temperatures(context, None, MemberPredictions({"phase": cal[None]}))
    assert temperatures == {"phase": pytest.approx(4.0, rel=0.1)}

    zeros = np.zeros((rows, 1))
    predicted = HeadOnLabels(truth, known, zeros, zeros, np.full(rows, "all"), np.ones((rows, 1)))
    calibration = Calibration(
        a=1.0, b=0.0, quantiles={"0.9": 0.9}, spread99=1.0, rows=rows, groups=rows, temperature=1.0
    )
    levels = {}
    for name, single in (("raw", sure), ("tempered", temper(sure, temperatures["phase"]))):
        facts = RowFacts(place, {}, {"mean": np.full((rows, 3), 1 / 3), "single": single})
        head = collect_evidence(HeadEvidence("phase", "1"), predicted, calibration, facts)
        levels[name] = {one["rule"]: one["level"] for one in judge([head])}["single"]
    assert levels == {"raw": "good", "tempered": "note"}
