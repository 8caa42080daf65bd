"""The Optuna storage, read back by Optuna."""

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState

from hydragnn_hpo.config.search import ParameterConfig
from hydragnn_hpo.report.exporting.formats import export
from hydragnn_hpo.report.exporting.optuna_storage import distribution
from hydragnn_hpo.report.facts import Facts

STATES = {
    "completed": TrialState.COMPLETE,
    "stopped": TrialState.PRUNED,
    "failed": TrialState.FAIL,
    "running": TrialState.RUNNING,
}


def study_of(path: Path, name: str) -> Any:
    if path.suffix == ".log":
        backend = optuna.storages.journal.JournalFileBackend(str(path))
        return optuna.load_study(study_name=name, storage=optuna.storages.JournalStorage(backend))
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    study = optuna.load_study(study_name=name, storage=storage)
    study.trials  # noqa: B018 - fills its cache
    storage.engine.dispose()
    return study


@pytest.fixture(params=[".db", ".log"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"study{request.param}"


@pytest.fixture
def _in_nepal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Live where clocks are 5:45 h ahead of UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "NPT-5:45")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_in_nepal")
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("which", ["made", "half"])
def test_a_study_holds_what_the_journal_says(
    which: str, out: Path, request: pytest.FixtureRequest
) -> None:
    campaign = request.getfixturevalue(which)
    export(campaign.facts, "optuna", out)
    trials = study_of(out, "made").trials
    assert [t.user_attrs["trial"] for t in trials] == list(campaign.raw.trials)
    for trial, (name, raw) in zip(trials, campaign.raw.trials.items(), strict=True):
        assert trial.params == raw["values"]
        curve = campaign.raw.curves[name]
        assert trial.intermediate_values == {n: e["objective"] for n, e in curve.items()}
        queued = TrialState.RUNNING if raw["placed"] else TrialState.WAITING
        assert trial.state == STATES.get(raw["status"], queued)
        if raw["status"] in ("completed", "stopped"):
            assert trial.values == [raw["last"]["objective"]]
            assert trial.user_attrs["val_mae.gap [eV]"] == raw["last"]["val_mae"]["gap"]
            assert trial.datetime_complete == datetime.fromtimestamp(raw["last"]["time"])
        if raw["status"] == "failed":
            assert trial.user_attrs["reason"] == raw["last"]["reason"]
        if raw["placed"]:
            assert trial.datetime_start == datetime.fromtimestamp(raw["placed"][0]["time"])
            assert trial.user_attrs["ranks"] == raw["placed"][-1]["width"]


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_study_can_be_gone_on_with(made: SimpleNamespace, out: Path) -> None:
    """Optuna itself takes the storage for its own: its best, its importances, its next trial."""
    export(made.facts, "optuna", out)
    study = study_of(out, "made")
    done = [r for r in made.raw.trials.values() if r["status"] == "completed"]
    assert study.best_value == min(r["last"]["objective"] for r in done)
    assert study.metric_names == ["weighted"]
    fresh = study.ask({"model.layers": IntDistribution(1, 5)})
    assert fresh.number == len(made.raw.trials)


def test_distributions_mean_what_the_space_means() -> None:
    def of(**values: Any) -> Any:
        return distribution(optuna, ParameterConfig(**values))

    assert of(choices=("a", 2, True)) == CategoricalDistribution(("a", 2, True))
    assert of(low=1, high=5) == IntDistribution(1, 5)
    assert of(low=1, high=64, log=True) == IntDistribution(1, 64, log=True)
    assert of(low=16, high=60, step=16) == IntDistribution(16, 48, step=16)
    assert of(low=1e-4, high=0.1, log=True) == FloatDistribution(1e-4, 0.1, log=True)
    assert of(low=3.5, high=5.0, step=0.5) == FloatDistribution(3.5, 5.0, step=0.5)
    assert of(low=0, high=1, step=0.25) == FloatDistribution(0.0, 1.0, step=0.25)


SEVERAL = """
name = "several"
data = [{card = "none"}]
trial = {heads = {gap = {}}}
space = {"model.layers" = {low = 1, high = 4}}
search = {trials = 3, finalists = 1, rungs = [2], objective = ["weighted", "parameters"]}
"""


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_several_goals_are_several_values(run_of: Any, out: Path) -> None:
    """Of (1, 9), (2, 5) and (3, 7) the last is worse than the second at both goals."""
    events: list[dict[str, Any]] = []
    for place, score in enumerate([(1.0, 9.0), (2.0, 5.0), (3.0, 7.0)]):
        values = {"model.layers": 9 if place == 2 else place + 1}
        attempt = {"attempt": 1, "until": 2, "width": 1, "slots": ["h:0"]}
        result = {"outcome": "completed", "objective": score[0], "score": list(score)}
        events += [
            {"event": "proposed", "trial": f"t{place}", "values": values, "until": 2},
            {"event": "placed", "trial": f"t{place}", **attempt},
            {"event": "ended", "trial": f"t{place}", "attempt": 1, **result},
        ]
    export(run_of(SEVERAL, events), "optuna", out)
    study = study_of(out, "several")
    assert study.metric_names == ["weighted", "parameters"]
    assert [t.values for t in study.trials] == [[1.0, 9.0], [2.0, 5.0], [3.0, 7.0]]
    assert sorted(t.number for t in study.best_trials) == [0, 1]
    outside = study.trials[2]
    assert outside.params == {}  # nine layers are outside of the space: said, but not modelled
    assert outside.user_attrs["params.model.layers"] == 9


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_hostile_names_are_text(hostile: Facts, out: Path) -> None:
    export(hostile, "optuna", out)
    trials = study_of(out, "hostile").trials
    assert trials[0].user_attrs["trial"] == "../../evil"
    assert trials[0].params == {"model.conv": "<b>", "model.layers": 1}
    said = "".join(str(t.user_attrs) for t in trials)
    assert "\x1b" not in said
    assert sorted(p.name for p in out.parent.iterdir()) == ["hostile", out.name]
