"""What the sections on the search and the ensemble say: fronts by eye, curves by loop."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_campaign import make_campaign
from safetensors.numpy import load_file
from unit.report.tiny_run import at, ended, facts_of, placed

from hydragnn_hpo.config.search_config import ParameterConfig
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.charts import is_wide
from hydragnn_hpo.report.facts import Facts, read_facts
from hydragnn_hpo.report.page_blocks import Doubtful, Figure, Section, Table, flatten
from hydragnn_hpo.report.sections import SECTIONS, parallel
from hydragnn_hpo.report.sections.parallel import parameter_axis, round_ticks
from hydragnn_hpo.report.sections.pareto import collect_costs, pareto_places, read_latencies
from hydragnn_hpo.report.sections.trials import make_details
from hydragnn_hpo.report.surrogate import grid_values, partial_dependence

NORM = "test_norm_error"
SEARCH = ("parallel", "slices", "pareto", "heads", "members", "importance", "slots", "worst")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return read_facts(make_campaign(tmp_path_factory.mktemp("made") / "run", trials=60))


@pytest.fixture(scope="module")
def sections(made: Facts) -> dict[str, Section]:
    result = {name: SECTIONS[name](made) for name in ("heads", "members")}
    return {name: section for name, section in result.items() if section is not None}


def blocks(section: Section, kind: type) -> dict[str, Any]:
    return {b.key: b for b in flatten(section.blocks) if isinstance(b, kind)}


def test_a_goal_named_parameters_is_shown_once_with_the_scores_of_the_search(
    tmp_path: Path,
) -> None:
    facts = read_facts(make_campaign(tmp_path, trials=30, objective=("weighted", "parameters")))
    section = SECTIONS["pareto"](facts)
    assert section is not None
    charts = blocks(section, Figure)
    assert [chart.title for chart in charts.values()].count("Objective against parameters") == 1
    every = {x for trace in charts["goal1"].data for x in trace["x"].tolist()}
    scores = [trial.trial.score for trial, _ in facts.scored_trials()]
    assert every == {score[1] for score in scores if isinstance(score, tuple)}


def test_tables_and_details_name_the_conv_that_the_campaign_fixes(tmp_path: Path) -> None:
    facts = read_facts(make_campaign(tmp_path, trials=30, conv="gat"))
    values = {}
    for name, key in (("members", "members"), ("progress", "top"), ("costs", "convs")):
        section = SECTIONS[name](facts)
        assert section is not None
        table = blocks(section, Table)[key]
        place = [column.key for column in table.columns].index("conv")
        values[name] = {row[place] for row in table.rows}
    assert values == {"members": {"gat"}, "progress": {"gat"}, "costs": {"gat"}}
    details = make_details(facts).content
    assert all(["conv", "gat"] in trial["facts"] for trial in details.values())


def test_the_regression_that_joined_is_a_member_with_its_weight_by_head(made: Facts) -> None:
    """Six nets share all of a head, or the 75 % that a regression of the weight 0.25 leaves."""
    assert made.ensemble is not None
    joined: Any = {"charge": {"weight": 0.25}, "gap": {"weight": 0.0}}
    section = SECTIONS["members"](
        replace(made, ensemble={**made.ensemble, "local_descriptors": joined})
    )
    assert section is not None
    table = blocks(section, Table)["members"]
    keys = ["weight", *(f"weight.{head}" for head in ("energy_per_atom", "gap", "charge"))]
    places = [[column.key for column in table.columns].index(key) for key in keys]
    *nets, last = [[row[place] for place in places] for row in table.rows]
    assert len(nets) == 6
    assert nets[0] == pytest.approx([(2 / 6 + 0.125) / 3, 1 / 6, 1 / 6, 0.125])
    assert (table.rows[-1][0], last) == ("local descriptors", [0.25, None, None, 0.25])
    for place in places[1:]:
        assert sum(row[place] or 0.0 for row in table.rows) == pytest.approx(1.0)


def test_the_regression_is_named_by_what_it_reads(made: Facts) -> None:
    assert made.ensemble is not None
    joined: Any = {"charge": {"weight": 0.25}}
    described = "features of CHGNet 0.3.0"
    table: Any = {**made.ensemble, "local_descriptors": joined, "described_by": described}
    facts = replace(made, ensemble=table)
    members = SECTIONS["members"](facts)
    headline = SECTIONS["headline"](facts)
    assert members is not None
    assert headline is not None
    assert blocks(members, Table)["members"].rows[-1][0] == described
    titles = {column.key: column.label for column in blocks(headline, Table)["heads"].columns}
    assert titles["descriptor"] == described


def test_norms_of_errors_are_shown_where_a_target_has_some(made: Facts) -> None:
    assert made.ensemble is not None
    heads: Any = made.ensemble["heads"] | {
        "charge": {**made.ensemble["heads"]["charge"], "test_norm_error": 0.75}
    }
    values = {}
    for name, facts in (
        ("none", made),
        ("one", replace(made, ensemble={**made.ensemble, "heads": heads})),
    ):
        section = SECTIONS["heads"](facts)
        assert section is not None
        table = blocks(section, Table)["scores"]
        keys = [column.key for column in table.columns]
        values[name] = [row[keys.index(NORM)] for row in table.rows] if NORM in keys else None
    assert values == {"none": None, "one": [None, None, 0.75]}


def test_sections_without_results_are_left_out(tmp_path: Path) -> None:
    run = make_campaign(tmp_path / "run", trials=8)
    opened = run.journal.read_bytes().splitlines(keepends=True)[:3]
    run.journal.write_bytes(b"".join(opened))
    (run.report / "ensemble.json").unlink()
    facts = read_facts(run)
    assert [key for key in SEARCH if SECTIONS[key](facts) is not None] == []


def test_a_configuration_has_the_weight_of_its_fits_on_folds(made: Facts) -> None:
    weights = dict(made.members)
    first, second, *_ = weights
    other, unrelated = (name for name in list(made.trials)[:2])
    folds = {(other, 0): first, (other, 1): second, (unrelated, 0): "t9999"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made.state, "folds", folds)
        assert made.members == weights | {other: weights[first] + weights[second]}


# -- parallel coordinates ----------------------------------------------------------------


def test_a_logarithmic_axis_stands_at_exponents() -> None:
    rate = ParameterConfig(low=1e-4, high=1e-1, log=True)
    axis = parameter_axis("rate", rate, [1e-4, 1e-3, 1e-1])
    assert axis["values"] == pytest.approx([-4, -3, -1])
    assert dict(zip(axis["ticktext"], axis["tickvals"], strict=True)) == pytest.approx(
        {"0.0001": -4, "0.001": -3, "0.01": -2, "0.1": -1}
    )


def test_choices_stand_at_their_number_and_inactive_ones_below() -> None:
    conv = ParameterConfig(choices=("schnet", True, 1))
    axis = parameter_axis("conv", conv, [1, "schnet", None, True])
    assert np.round(axis["values"]).tolist() == [2, 0, 0, 1]
    assert axis["values"][2] < axis["values"][1]
    assert axis["ticktext"] == ["not active", "schnet", "true", "1"]
    low, high = axis["range"]
    assert low <= axis["values"].min() <= axis["values"].max() <= high
    assert axis["values"][2] == pytest.approx(axis["tickvals"][0], abs=0.1)


def test_lines_of_one_choice_do_not_hide_each_other() -> None:
    same = parameter_axis("batch", ParameterConfig(choices=(16, 32)), [16, 32, 16, 16])
    assert len(set(same["values"].tolist())) == 4
    whole = parameter_axis("layers", ParameterConfig(low=1, high=4), [1, 2, 2, 4])
    assert np.round(whole["values"]).tolist() == [1, 2, 2, 4]
    assert whole["tickvals"] == [1, 2, 3, 4]


def test_ticks_are_round() -> None:
    assert round_ticks(0.0, 1.0) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert round_ticks(3.7, 129.0) == [20.0, 40.0, 60.0, 80.0, 100.0, 120.0]
    assert round_ticks(-0.03, 0.03) == [-0.03, -0.02, -0.01, 0.0, 0.01, 0.02, 0.03]


def test_too_many_lines_are_thinned_and_the_best_stay(
    made: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "MAX_LINES", 12)
    section = SECTIONS["parallel"](made)
    assert section is not None
    figure = blocks(section, Figure)["coordinates"]
    objective = figure.data[0]["dimensions"][-1]["values"]
    assert len(objective) == 12
    scores = [first(t.trial.score) for t in made.trials.values() if t.trial.score is not None]
    best = sorted(scores)[:3]
    assert sorted(objective)[:3] == pytest.approx(np.log10(best) if is_wide(scores) else best)
    assert "12 of the" in figure.caption


def first(score: Any) -> float:
    return score[0] if isinstance(score, tuple) else score


# -- fronts --------------------------------------------------------------------------------


def test_the_front_is_that_of_the_eye() -> None:
    #        score
    #   3    a
    #   2        b   c        c is dearer than b and no better; d is the best; e dearer still
    #   1                d   e
    cost_score = [(4.0, 1.0), (1.0, 3.0), (3.0, 2.0), (2.0, 2.0), (5.0, 1.0), (2.0, 2.0)]
    assert pareto_places(cost_score) == [1, 3, 5, 0]  # cheapest first; the twins b stand together
    assert pareto_places([]) == []


def test_of_many_points_the_front_is_what_comparing_all_pairs_finds() -> None:
    rng = np.random.default_rng(2)
    points = [tuple(p) for p in rng.integers(0, 40, (400, 2)).astype(float).tolist()]
    slow = {
        k
        for k, (c, s) in enumerate(points)
        if not any(d <= c and t <= s and (d, t) != (c, s) for d, t in points)
    }
    assert set(pareto_places(points)) == slow


def test_tables_of_the_best_and_of_the_fronts_by_hand(tmp_path: Path) -> None:
    """t1 went further than t0; t2 is worse and larger than t0, and held its slot for less time."""
    events = [at(0, "opened", units={}, slots=["a:0", "b:0", "c:0"])]
    scores, sizes = (0.4, 0.5, 0.6), (7, 5, 9)
    for number, host in enumerate("abc"):
        name = f"t{number}"
        values = {"model.features": 3 + number}
        events += [at(0, "proposed", name, values=values, until=4), placed(1, name, f"{host}:0")]
    for number, seconds in enumerate((20, 30, 10)):
        fields = {"parameters": sizes[number], "reached": 4}
        events += [ended(1 + seconds, f"t{number}", "stopped", scores[number], **fields)]
    events += [at(40, "promoted", trials=["t1"], until=8, last=True)]
    events += [placed(40, "t1", "b:0", until=8, attempt=2)]
    events += [ended(45, "t1", "completed", 0.5, attempt=2, parameters=5, reached=8)]
    facts = facts_of(tmp_path, sorted(events, key=lambda event: event["time"]))
    parallel_section, pareto = (SECTIONS[key](facts) for key in ("parallel", "pareto"))
    assert parallel_section is not None
    assert pareto is not None
    assert blocks(parallel_section, Table)["best"].rows == (
        ("t1", 0.5, 8, 4), ("t0", 0.4, 4, 3), ("t2", 0.6, 4, 5),
    )  # fmt: skip
    fronts = blocks(pareto, Table)["fronts"]
    keys = [column.key for column in fronts.columns]
    results = [dict(zip(keys, row, strict=True)) for row in fronts.rows]
    wanted = ("trial", "objective", "parameters", "slot_seconds", "on")
    assert [tuple(row[key] for key in wanted) for row in results] == [
        ("t0", 0.4, 7.0, 20.0, "parameters, training cost"),
        ("t1", 0.5, 5.0, 35.0, "parameters"),
        ("t2", 0.6, 9.0, 10.0, "training cost"),
    ]


def test_latency_is_the_median_epoch_of_the_last_attempt_on_one_rank(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.store("a").mkdir(parents=True)
    (run.store("a") / "stats.json").write_text(json.dumps({"splits": {"val": 50}}))

    def attempt(trial: str, number: int, world: int, seconds: list[float]) -> None:
        folder = run.trial(trial).attempt(number)
        folder.mkdir(parents=True)
        records = [{"record": "start", "world": world}]
        records += [{"record": "epoch", "val_seconds": s} for s in seconds]
        torn = '\n{"record": "epo'
        (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)) + torn)

    attempt("one", 1, 1, [9.0])
    attempt("one", 2, 1, [1.0, 4.0, 2.0])
    attempt("one", 3, 2, [0.5])  # two ranks share the work
    attempt("wide", 1, 4, [0.1])
    attempt("begun", 1, 1, [])
    assert read_latencies(run, ["one", "wide", "begun", "absent"]) == {"one": 2.0 / 50}
    (run.store("a") / "stats.json").unlink()
    assert read_latencies(run, ["one"]) == {}


def test_costs_are_slot_seconds_and_energy_where_nearly_all_of_it_was_counted(
    tmp_path: Path,
) -> None:
    """Of 10 s on two slots 17.9 and 18 slot-seconds were metered: 90 % is enough."""
    events = [at(0, "opened", units={}, slots=["a:0", "a:1", "b:0", "b:1"])]
    for name, host in (("t0", "a"), ("t1", "b")):
        events += [at(0, "proposed", name, values={}, until=4)]
        events += [placed(10, name, f"{host}:0", f"{host}:1")]
    metered = {"t0": [5e3, 17.9], "t1": [7e3, 18.0]}
    events += [at(19, "energy", trials=metered, idle=0.0, watts=1.0, hosts=2, parts=["cpu"])]
    events += [ended(20, name, "stopped", 0.5, parameters=7) for name in ("t0", "t1")]
    facts = facts_of(tmp_path, events)
    actual = {cost.key: dict(cost.of) for cost in collect_costs(facts, {"t0": 0.5, "t1": 0.5})}
    assert actual == {
        "parameters": {"t0": 7.0, "t1": 7.0},
        "latency": {},
        "slot_seconds": {"t0": 20.0, "t1": 20.0},
        "energy": {"t1": 7.0},
    }


# -- partial dependence -------------------------------------------------------------------

SPACE = {
    "x": ParameterConfig(low=0.0, high=1.0),
    "n": ParameterConfig(low=1, high=3),
    "kind": ParameterConfig(choices=("a", "b")),
    "only_b": ParameterConfig(low=0.0, high=2.0, when={"kind": "b"}),
}


def known(points: list[dict[str, Any]]) -> np.ndarray:
    """Return x^2 + 10 n, and the last parameter where it is on."""
    return np.array([p["x"] ** 2 + 10 * p["n"] + p.get("only_b", 0.0) for p in points])


def test_the_dependence_of_a_known_function_is_its_own_part() -> None:
    background = [
        {"x": 0.5, "n": 1, "kind": "a", "only_b": 1.0},
        {"x": 0.1, "n": 3, "kind": "b", "only_b": 2.0},
    ]
    n = partial_dependence(SPACE, "n", known, background)
    assert n is not None
    # Mean of x^2 is (0.25 + 0.01) / 2; the last parameter adds 2 in one of two.
    assert n.values == (1, 2, 3)
    assert n.expected == pytest.approx([10 + 1.13, 20 + 1.13, 30 + 1.13])
    x = partial_dependence(SPACE, "x", known, background)
    assert x is not None
    assert x.expected == pytest.approx([v**2 + 20 + 1.0 for v in x.values])
    kind = partial_dependence(SPACE, "kind", known, background)
    assert kind is not None
    assert kind.expected == pytest.approx([20 + 0.13, 20 + 0.13 + 1.5])  # 'b' turns it on
    only = partial_dependence(SPACE, "only_b", known, background)
    assert only is not None
    assert only.expected == pytest.approx([0.01 + 30 + v for v in only.values])
    assert partial_dependence(SPACE, "only_b", known, background[:1]) is None


def test_grids_name_all_choices_and_spread_over_ranges() -> None:
    assert grid_values(SPACE["kind"]) == ["a", "b"]
    assert grid_values(SPACE["n"]) == [1, 2, 3]
    fine = grid_values(ParameterConfig(low=1e-4, high=1e-1, log=True))
    assert np.diff(np.log10(np.array(fine, float))) == pytest.approx(3 / 11, rel=1e-3)


def test_slices_follow_the_planted_effect_and_noise_is_doubted(tmp_path: Path) -> None:
    planted = SECTIONS["slices"](read_facts(make_campaign(tmp_path / "a", trials=120)))
    assert planted is not None
    charts = blocks(planted, Figure)
    over = [t for t in charts["slice.training.learning_rate"].data if "dependence" in t["name"]]
    # The planted best rate is at 0.4 of three decades from 1e-4.
    assert over[0]["x"][int(np.argmin(over[0]["y"]))] == pytest.approx(10 ** (-4 + 1.2), rel=0.9)
    noise = SECTIONS["slices"](
        read_facts(make_campaign(tmp_path / "b", trials=60, noise_only=True))
    )
    assert noise is not None
    doubt = [block for block in noise.blocks if isinstance(block, Doubtful)]
    assert "not to be trusted" in doubt[0].why
    charts = [f for f in blocks(noise, Figure).values() if f.key.startswith("slice.")]
    assert not any("dependence" in t["name"] for f in charts for t in f.data)


def test_a_slice_shows_each_trial_at_its_first_rung(made: Facts) -> None:
    section = SECTIONS["slices"](made)
    assert section is not None
    dots = blocks(section, Figure)["slice.model.layers"].data[0]
    expected = {
        k + 1: (t.trial.values["model.layers"], t.trial.rung_scores[3])
        for k, t in enumerate(made.trials.values())
        if 3 in t.trial.rung_scores
    }
    result = zip(dots["marker"]["color"], zip(dots["x"], dots["y"], strict=True), strict=True)
    assert dict(result) == expected


# -- heads and members ---------------------------------------------------------------------


def test_parity_shows_which_intervals_miss(made: Facts, sections: dict[str, Section]) -> None:
    arrays = load_file(made.run.report / "test_predictions.safetensors")
    charts = blocks(sections["heads"], Figure)
    assert made.ensemble is not None
    for name, scores in made.ensemble["heads"].items():
        inside, outside, _ = charts[f"parity.{name}"].data
        share = len(inside["x"]) / (len(inside["x"]) + len(outside["x"]))
        assert share == pytest.approx(scores["coverage90"])
        far = np.abs(arrays[f"{name}/truth"] - arrays[f"{name}/mean"])
        far = far[far > arrays[f"{name}/half90"]]
        assert sorted(np.abs(outside["x"] - outside["y"])) == pytest.approx(sorted(far))
        assert f"MAE {scores['test_mae']:.3g} " in charts[f"parity.{name}"].title


def test_the_calibration_curve_is_that_of_a_loop(made: Facts, sections: dict[str, Section]) -> None:
    arrays = load_file(made.run.report / "test_predictions.safetensors")
    charts = blocks(sections["heads"], Figure)
    lines = {t["name"]: t for t in charts["calibration.gap"].data}
    for name, key in (("calibrated", "sigma"), ("raw", "raw_sigma")):
        z = np.abs(arrays["gap/truth"] - arrays["gap/mean"]) / arrays[f"gap/{key}"]
        for level, share in zip(lines[name]["x"], lines[name]["y"], strict=True):
            count = sum(math.erf(value / math.sqrt(2.0)) <= level for value in z.ravel())
            assert share == pytest.approx(count / len(z), abs=1.5 / len(z))


def test_an_ensemble_with_torn_predictions_is_still_shown(tmp_path: Path) -> None:
    run = make_campaign(tmp_path / "run", trials=20)
    (run.report / "test_predictions.safetensors").write_bytes(b"torn")
    section = SECTIONS["heads"](read_facts(run))
    assert section is not None
    texts = [getattr(block, "text", "") for block in flatten(section.blocks)]
    assert any("not there to be drawn" in text for text in texts)
