"""``hydragnn-hpo importance``: a table, JSON, and one sentence for what is wrong."""

import json

import pytest
from made_campaign import make_campaign
from typer.testing import CliRunner

from hydragnn_hpo.cli.command_line import app
from hydragnn_hpo.cli.results_commands import _print_importance
from hydragnn_hpo.errors import HydraError
from hydragnn_hpo.report.importance import Effect, Importance
from hydragnn_hpo.report.observations import Target

INVOKE = CliRunner()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_campaign(tmp_path_factory.mktemp("importance") / "run", trials=60).path


def ask(*words):
    return INVOKE.invoke(app, ["importance", *map(str, words)])


def test_all_targets_as_tables(run):
    done = ask(run)
    assert done.exit_code == 0, done.exception
    for messages in ("objective (weighted MAE)", "cost (slot-seconds", "peak memory", "P(failure)"):
        assert messages in done.output
    assert "PED-ANOVA, how much the best" in done.output
    assert "training.learning_rate" in done.output


def test_json_holds_every_number(run):
    done = ask(run, "--target", "cost", "--json")
    report = json.loads(done.output)
    (cost,) = report["targets"]
    assert cost["target"] == "cost"
    # Ten trials for each of its parameters are not there, so nothing is to be trusted.
    assert cost["trials"] < 10 * len(cost["parameters"])
    assert cost["trusted"] is False
    assert cost["out_of_bag_r2"] > 0.5
    assert set(list(cost["parameters"])[:2]) == {"model.features", "model.layers"}
    shares = [row["shap_share"] for row in cost["parameters"].values()]
    assert sum(shares) == pytest.approx(1.0)
    gap = json.loads(ask(run, "--head", "gap", "--json").output)["targets"]
    assert [each["label"] for each in gap] == ["MAE of gap"]


def test_what_may_be_chance_is_reported_not_to_be_trusted(capsys):
    effects = {"model.features": Effect(0.1, 1.0, 1.0, None, "")}
    _print_importance(Importance(Target("mae", "objective"), 9, 0.1, "too few", effects))
    assert "NOT TO BE TRUSTED: too few" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "costs"], "unknown target 'costs'. Did you mean 'cost'"),
        (["--head", "gap", "--target", "cost"], "--head goes with --target mae"),
    ],
)
def test_what_is_wrong_is_one_sentence(run, words, message):
    done = ask(run, *words)
    assert isinstance(done.exception, HydraError)
    assert message in str(done.exception)
