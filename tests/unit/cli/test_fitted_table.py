"""Every table of the commands in narrow terminals: columns go, numbers stay whole."""

import io
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from made_campaign import make_campaign
from rich.cells import cell_len
from rich.console import Console

from hydragnn_hpo.campaign import read_leaderboard
from hydragnn_hpo.cli import (
    check_layer_command,
    dataset_command,
    ensemble_command,
    ensemble_evaluate,
    machine_command,
    predict_command,
    results_commands,
    tables,
)
from hydragnn_hpo.cli.fitted_table import FittedTable
from hydragnn_hpo.config.machine import known_profiles, read_profile
from hydragnn_hpo.ensemble import read_artefact
from hydragnn_hpo.ensemble.prediction import HeadPrediction
from hydragnn_hpo.report.importance import Effect, Importance
from hydragnn_hpo.report.observations import Target
from hydragnn_hpo.resources import resource_path

NUMBER = re.compile(r"[-+]?[\d.,]*\d[\d.,]*(?:e[-+]?\d+)?")


def draw(table, width):
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue()


def numbers(text):
    """Return the words of a drawn table that are numbers."""
    words = re.split(r"[\s\u2500-\u257f|()\[\]:%=]+", text)
    return {word.strip(",") for word in words if NUMBER.fullmatch(word.strip(","))}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_campaign(tmp_path_factory.mktemp("tables") / "run", trials=40)


@pytest.fixture(scope="module")
def built(run):
    return json.loads((run.report / "ensemble.json").read_bytes())


def of_leaderboard(run, built):
    board = read_leaderboard(run).best(20)
    objectives = [f"{row.objective:.4f}" for row in board.rows if row.objective is not None]
    weights = {member["trial"]: member["weight"] for member in built["members"]}
    yield tables.leaderboard_table(board), objectives
    yield tables.leaderboard_table(board, weights), objectives


def of_ensemble(run, built):
    maes = [f"{head['test_mae']:.4f}" for head in built["heads"].values()]
    yield tables.ensemble_table(built["heads"]), maes
    (first, head), *_ = built["heads"].items()
    yield tables.ensemble_table({first: {**head, "test_norm_error": 0.98765}}), ["0.9877"]
    losses = [f"{mix['sel_loss']:.4f}" for mix in built["selection"].values()]
    yield ensemble_command.selection_table(built), losses
    rmses = [f"{head['mse'] ** 0.5:.4f}" for head in built["diversity"].values()]
    yield ensemble_command.diversity_table(built), rmses


def of_archive(run, built):
    content = read_artefact(resource_path("workflows/small_organics.zip"))
    objectives = [f"{member.objective:.4f}" for member in content.manifest.members]
    yield ensemble_command._heads_table(content), []
    yield ensemble_command._members_table(content), objectives
    effect = SimpleNamespace(
        unit="meV/atom", mae_before=12.34, mae_after=123.4, width90_before=1234.0, width90_after=0.5
    )
    yield ensemble_command._prune_table({"formation_energy": effect}), ["12.34", "0.5"]


def of_picks(run, built):
    entry = {"pick": 117, "id": "pool.extxyz@x", "score": 1234.5, "distance": 0.12345}
    entry |= {f"{name}_std": 123.45 for name in "abcdef"} | {"max_force": 98.76, "trust": "ok"}
    plain = {"picked": [entry], "counts": {"read": 1}}
    plain |= {"mean_distance": 0.5, "mean_distance_top": 0.25}
    yield ensemble_command._picks_table(plain), ["1234"]


def of_evaluation(run, built):
    keys = [key for key, _ in (*ensemble_evaluate._PLAIN, *ensemble_evaluate._WITH_RAW)]
    figures = dict.fromkeys((*keys, *(f"raw_{key}" for key in keys), "area_conformal"), 1234.0)
    figures |= {"mae": 0.00123, "rows": 123_456}
    head = SimpleNamespace(
        entry=SimpleNamespace(shown_unit="eV/angstrom"),
        figures=figures,
        strata={"all": figures},
        evidence=SimpleNamespace(described_by="local descriptors"),
    )
    names = ("forces", "energy", "gap", "dipole", "polarizability", "heat_capacity")
    done = SimpleNamespace(structures=7, heads=dict.fromkeys(names, head))
    yield ensemble_evaluate.evaluation_table(done), ["0.00123", "123456", "1.23e+03"]
    yield ensemble_evaluate.strata_table(done), ["0.00123", "123456"]
    classes = {"rows": 17, "mae": 0.321, "rmse": 0.5, "accuracy": 0.875, "auc": 0.9, "ece": 0.1}
    of_class = SimpleNamespace(
        entry=SimpleNamespace(shown_unit="1"),
        figures=classes,
        strata={"all": classes},
        evidence=SimpleNamespace(described_by="local descriptors"),
    )
    done = SimpleNamespace(structures=7, heads={"phase": of_class})
    yield ensemble_evaluate.evaluation_table(done), ["0.321", "0.875"]
    yield ensemble_evaluate.strata_table(done), ["0.321", "17"]


def of_predictions(run, built):
    names = ("energy", "gap", "dipole", "polarizability", "heat_capacity")
    manifest = SimpleNamespace(
        heads={n: SimpleNamespace(level="graph", shape="scalar", shown_unit="eV") for n in names}
    )
    values = HeadPrediction(
        mean=np.full((1, 1), -1234.5678),
        std=np.full((1, 1), 0.1234),
        std_epistemic=np.full((1, 1), 0.1),
        lo90=np.full((1, 1), -1235.0),
        hi90=np.full((1, 1), -1234.0),
    )
    predicted = SimpleNamespace(heads=dict.fromkeys(names, values), trust=["unseen elements"])
    rows = SimpleNamespace(prediction=predicted, each=lambda: [(0, 0, "my molecules.xyz", None)])
    columns = SimpleNamespace(manifest=manifest, levels=(90,))
    yield predict_command.render_table(columns, [rows], 20), ["-1234.568", "0.123", "-1234.000"]


def of_classes(heads, **probabilities):
    """The table of one structure with heads of classes, as text."""
    manifest = SimpleNamespace(heads=heads)
    predicted = SimpleNamespace(
        heads={
            name: SimpleNamespace(mean=np.array([values])) for name, values in probabilities.items()
        },
        trust=["ok"],
    )
    rows = SimpleNamespace(prediction=predicted, each=lambda: [(0, 0, "mine.csv@0", None)])
    console = Console(file=io.StringIO(), width=110)
    columns = SimpleNamespace(manifest=manifest, levels=(90,))
    console.print(predict_command.render_table(columns, [rows], 20))
    return console.file.getvalue()


def test_predicted_classes_are_shown_with_their_probabilities():
    classes = [f"c{number}" for number in range(5)]
    heads = {
        "soluble": SimpleNamespace(level="graph", shape="class", classes=["no", "yes"]),
        "phase": SimpleNamespace(level="graph", shape="class", classes=classes),
        "smell": SimpleNamespace(level="graph", shape="class", classes=["no", "yes"]),
    }
    text = of_classes(
        heads, soluble=[0.13, 0.87], phase=[0.1, 0.02, 0.5, 0.3, 0.08], smell=[np.nan, np.nan]
    )
    assert "yes 0.87, no 0.13" in text
    assert "c2 0.50, c3 0.30, c0 0.10, ..." in text
    assert "missing" in text
    assert "per atom" not in text
    assert "standard deviation" not in text


def test_what_the_table_of_predictions_lacks_is_named():
    heads = {
        "soluble": SimpleNamespace(level="graph", shape="class", classes=["no", "yes"]),
        "dos": SimpleNamespace(level="graph", shape="spectrum"),
        "forces": SimpleNamespace(level="node", shape="vector"),
    }
    text = of_classes(heads, soluble=[0.13, 0.87])
    assert "values per atom, and spectra: add --out NAME.csv" in " ".join(text.split())


def of_data(run, built):
    degrees = {"6": {"all": [0, 123_456, 7, 12_345]}, "10": {"all": [0] * 90 + [3]}}
    overview = {"degrees": degrees, "degree": {"6": 123.4, "10": 90.0}}
    yield dataset_command._degrees(overview), ["123.4", "90.0"]
    keys = ("mean", "std", "median", "min", "max")
    summary = dict.fromkeys(keys, -12345.678) | {"values": 123_456_789, "missing": 0.1234}
    splits = {"train": summary | {"counts": [1, 2]}, "bins": [-1.0, 1.0]}
    target = {"unit": "eV", "level": "graph", "shape": "scalar", "description": ""}
    yield dataset_command._target("energy", target, splits)[1], ["123456789"]
    shared = {"structures": 123_456, "twins": 12_345, "groups": 1234, "compositions": 99_999}
    leakage = {"splits": {"test": shared}, "twins": [], "groups": []}
    yield dataset_command._leakage(leakage, 3)[0], ["123456", "12345", "1234", "99999"]
    outliers = {"count": 123_456, "values": 9_876_543, "scale": 123.0, "scale_unit": "meV/atom"}
    outliers |= {"subtracted": "composition, a linear fit", "unit": "eV", "rows": [], "far": 0}
    report = {"z_limit": 8.0, "outliers": {"formation_energy": outliers}}
    yield dataset_command._outliers(report, 3)[0], ["123456", "9876543"]


def of_layers(run, built):
    findings = [
        SimpleNamespace(
            name="turns with the structure, batched",
            result="passed",
            measured=1.234e-12,
            bound="1.0e-10",
            asks="x",
            detail="y",
        )
    ]
    report = SimpleNamespace(conv="mine:Layer", options={}, findings=findings)
    yield check_layer_command._table(report, wide=False), ["1.2e-12"]


def of_machines(run, built):
    profiles = [read_profile(name) for name in known_profiles()]
    for profile in profiles:
        yield machine_command.slots_table(profile.config), []
    yield machine_command.list_table([profile.config for profile in profiles]), []


MAKERS = (
    of_leaderboard,
    of_ensemble,
    of_archive,
    of_picks,
    of_evaluation,
    of_predictions,
    of_data,
    of_layers,
    of_machines,
)


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_no_number_is_cut(make, width, run, built):
    for table, kept in make(run, built):
        wide = draw(table, 400)
        narrow = draw(table, width)
        assert max(map(cell_len, narrow.splitlines())) <= width
        assert "\u2026" not in narrow
        assert numbers(narrow) <= numbers(wide), narrow
        assert numbers(narrow) >= set(kept), narrow


@pytest.mark.parametrize("width", [80, 60])
def test_importances_and_comparisons_are_whole(width, run, monkeypatch):
    def drawn(columns):
        out = io.StringIO()
        monkeypatch.setattr(results_commands, "console", lambda: Console(file=out, width=columns))
        effect = Effect(shap=0.1234, shap_share=0.5, fanova=0.4, ped_anova=0.3, least_at="0.0012")
        target = Target("mae", "objective")
        effects = {"training.learning_rate": effect, "model.options.num_gaussians": effect}
        results_commands._print_importance(Importance(target, 60, 0.7, None, effects))
        return out.getvalue()

    assert numbers(drawn(width)) <= numbers(drawn(400))
    assert "0.1234" in drawn(width)


def test_what_is_left_out_is_named(run):
    table = tables.leaderboard_table(read_leaderboard(run).best(3))
    assert "left out" not in draw(table, 400)
    last = " ".join(draw(table, 60).splitlines()[-4:])
    assert "left out for lack of width: ranks, status" in " ".join(last.split())


@pytest.mark.parametrize(
    ("conv", "expected"), [(None, {"schnet", "painn", "gat"}), ("gat", {"gat"})]
)
def test_each_trial_has_its_conv_searched_or_fixed(conv, expected, tmp_path):
    run = make_campaign(tmp_path / "run", trials=12, finished=False, conv=conv)
    board = read_leaderboard(run)
    assert {row.conv for row in board.rows} == expected
    lines = draw(tables.leaderboard_table(board), 400).splitlines()
    for row in board.rows:
        [line] = (line for line in lines if row.trial in line.split())
        assert row.conv in line.split()


def test_text_is_wrapped_before_numbers_are():
    table = FittedTable()
    table.add_numbers("gap")
    table.add_texts("trust")
    table.add_row("3.903 +- 0.278  [3.422, 4.383]", "large spread of gap; large spread of charge")
    drawn = draw(table, 60)
    assert "3.903 +- 0.278  [3.422, 4.383]" in drawn
    assert len(drawn.splitlines()) == 6  # the text takes two lines
