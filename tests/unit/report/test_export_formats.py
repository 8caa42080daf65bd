"""What every export keeps to: whole or not at all, over nothing, one sentence where it cannot."""

import os
import socket
import struct
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from hydragnn_hpo.config.search_config import ParameterConfig as Parameter
from hydragnn_hpo.errors import ConfigError, HydraError, RunError
from hydragnn_hpo.report import export_formats
from hydragnn_hpo.report.export_formats import (
    FORMATS,
    SUFFIXES,
    export,
    folder_names,
    isolate_tracker,
)
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.surrogate import make_distribution

NOTHING = """
name = "nothing"
command = {argv = ["true"]}
space = {a = [1, 2]}
search = {trials = 2, finalists = 1, rungs = [1]}
"""


@pytest.mark.parametrize("to", FORMATS)
def test_nothing_is_written_over(to: str, made: SimpleNamespace, tmp_path: Path) -> None:
    there = tmp_path / f"there{SUFFIXES.get(to, ('',))[0]}"
    there.write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        export(made.facts, to, there)
    assert there.read_text() == "mine"


@pytest.mark.parametrize(
    ("to", "out", "trial", "says"),
    [
        ("excel", "x", None, "unknown format 'excel'"),
        ("optuna", "x.txt", None, "name it NAME.db or NAME.sqlite3 or NAME.log"),
        ("best", "best", None, "name it NAME.toml"),
        ("csv", "x", "t0001", "--trial goes with --to best"),
        ("best", "x.toml", "t042", "unknown trial 't042'. Did you mean"),
    ],
)
def test_what_cannot_be_is_reported(
    to: str, out: str, trial: str | None, says: str, made: SimpleNamespace, tmp_path: Path
) -> None:
    with pytest.raises(HydraError, match=says):
        export(made.facts, to, tmp_path / out, trial=trial)
    assert not list(tmp_path.iterdir())


def test_what_is_not_there_yet_is_reported(run_of: Any, tmp_path: Path) -> None:
    for to in FORMATS:
        out = tmp_path / f"out{SUFFIXES.get(to, ('',))[0]}"
        with pytest.raises(RunError, match="no trial was proposed yet"):
            export(run_of(NOTHING, []), to, out)
    events = [{"event": "proposed", "trial": "t0000", "values": {"a": 1}, "until": 1}]
    with pytest.raises(RunError, match="no trial has a result yet"):
        export(run_of(NOTHING, events), "best", tmp_path / "best.toml")


def test_a_full_disk_leaves_nothing(
    made: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export_formats, "_to_csv", full)
    with pytest.raises(HydraError, match="No space left"):
        export(made.facts, "csv", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_names_of_folders_lead_nowhere_else() -> None:
    names = ["t0001", "../t", ".._t", "/etc/passwd", "", ".", "..", "a" * 300, "a" * 301]
    result = folder_names(names)
    assert result["t0001"] == "t0001"
    assert len(set(result.values())) == len(names)
    for name in result.values():
        assert name not in ("", ".", "..")
        assert "/" not in name
        assert len(name) < 120


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
    study = study_of(out, "made")
    trials = study.trials
    done = [r for r in campaign.raw.trials.values() if r["status"] == "completed"]
    assert study.best_value == min(r["last"]["objective"] for r in done)
    assert study.metric_names == ["weighted"]
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
def test_hostile_names_are_text_in_a_study(hostile: Facts, out: Path) -> None:
    export(hostile, "optuna", out)
    trials = study_of(out, "hostile").trials
    assert trials[0].user_attrs["trial"] == "../../evil"
    assert trials[0].params == {"model.conv": "<b>", "model.layers": 1}
    assert "\x1b" not in "".join(str(trial.user_attrs) for trial in trials)
    assert sorted(path.name for path in out.parent.iterdir()) == ["hostile", out.name]


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Note every address beyond this computer that an export looks up or connects to."""
    tried: list[Any] = []
    real = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1", "localhost"):
            tried.append(address)
            raise OSError("no network in tests")
        real(self, address)

    def resolve(host: Any, *_: Any, **__: Any) -> Any:
        tried.append(host)
        raise OSError("no network in tests")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return tried


@pytest.fixture
def lured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set what would send an export elsewhere; give the user's own folder."""
    home = tmp_path / "home"
    home.mkdir()
    for name, value in {
        "HOME": str(home),
        "MLFLOW_TRACKING_URI": "http://tracker.invalid",
        "MLFLOW_TRACKING_TOKEN": "secret",
        "WANDB_MODE": "online",
        "WANDB_API_KEY": "0" * 40,
        "WANDB_BASE_URL": "http://wandb.invalid",
        "WANDB_DIR": str(home),
    }.items():
        monkeypatch.setenv(name, value)
    return home


def tensors(folder: Path) -> Any:
    pytest.importorskip("tensorboard", reason="needs the extra [tensorboard].")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0}).Reload()


def single(value: float) -> float:
    """Round to 32 bits, as event files do."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def test_tensorboard_shows_the_journal(made: SimpleNamespace, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra [tensorboard].")
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    export(made.facts, "tensorboard", tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(made.raw.trials)
    for name in list(made.raw.trials)[:12]:
        raw = made.raw.trials[name]
        board = tensors(tmp_path / "out" / name)
        curve = sorted(made.raw.curves[name].values(), key=lambda e: e["reached"])
        scalars = board.Scalars("objective") if curve else []
        assert [(s.step, s.value, s.wall_time) for s in scalars] == [
            (e["reached"], single(e["objective"]), e["time"]) for e in curve
        ]
        if raw["last"] and raw["last"]["outcome"] != "failed":
            (result,) = board.Scalars("result/val_mae/gap")
            assert result.value == single(raw["last"]["val_mae"]["gap"])
        metadata = board.summary_metadata["_hparams_/session_start_info"]
        data = HParamsPluginData.FromString(metadata.plugin_data.content)
        results = data.session_start_info.hparams
        assert results["model.conv"].string_value == raw["values"]["model.conv"]
        assert results["model.layers"].number_value == raw["values"]["model.layers"]


def test_hostile_names_stay_in_the_folder_of_tensorboard(hostile: Facts, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra [tensorboard].")
    export(hostile, "tensorboard", tmp_path / "a" / "out")
    assert len(list((tmp_path / "a" / "out").iterdir())) == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "hostile"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
@pytest.mark.usefixtures("lured")
def test_hostile_names_are_text_in_mlflow(
    hostile: Facts, tmp_path: Path, offline: list[Any]
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs the extra [mlflow].")
    export(hostile, "mlflow", tmp_path / "out")
    assert not offline
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/out/mlflow.db")
    experiment = client.get_experiment_by_name("hostile")
    tags = [run.data.tags for run in client.search_runs([experiment.experiment_id])]
    assert len(tags) == 6
    assert "\x1b" not in str(tags)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_mlflow_finds_the_journal(
    made: SimpleNamespace, tmp_path: Path, offline: list[Any], lured: Path
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs the extra [mlflow].")
    export(made.facts, "mlflow", tmp_path / "out")
    assert not offline
    assert not list(lured.iterdir())
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["mlflow.db"]
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/out/mlflow.db")
    experiment = client.get_experiment_by_name("made")
    runs = {r.info.run_name: r for r in client.search_runs([experiment.experiment_id])}
    assert set(runs) == set(made.raw.trials)
    for name, raw in made.raw.trials.items():
        run = runs[name]
        assert run.data.params == {key: str(value) for key, value in raw["values"].items()}
        failed = raw["status"] == "failed"
        assert run.info.status == ("FAILED" if failed else "FINISHED")
        assert run.data.tags["unit.val_mae.gap"] == "eV"
        if not failed:
            assert run.data.metrics["result/val_mae.gap"] == raw["last"]["val_mae"]["gap"]
    name = next(iter(made.raw.curves))
    metrics = client.get_metric_history(runs[name].info.run_id, "objective")
    curve = made.raw.curves[name].values()
    assert {(m.step, m.value) for m in metrics} == {(e["reached"], e["objective"]) for e in curve}


def records(path: Path) -> Iterator[Any]:
    """Read what W&B keeps: records of protobuf in blocks of 32 kB, as LevelDB's log.

    Source: https://github.com/google/leveldb/blob/main/doc/log_format.md, 2026-11-22.
    """
    from wandb.proto import wandb_internal_pb2

    content = path.read_bytes()
    at = 7
    whole = b""
    while at + 7 <= len(content):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", content[at : at + 7])
        whole += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


@pytest.mark.slow
def test_wandb_keeps_the_journal(
    half: SimpleNamespace, tmp_path: Path, offline: list[Any], lured: Path
) -> None:
    pytest.importorskip("wandb", reason="needs the extra [wandb].")
    export(half.facts, "wandb", tmp_path / "out")
    assert not offline
    assert not list(lured.iterdir())
    files = list((tmp_path / "out" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == len(half.raw.trials)
    for path in files[:8]:
        name = path.stem.removeprefix("run-")
        wandb_records = list(records(path))
        (run,) = [r.run for r in wandb_records if r.WhichOneof("record_type") == "run"]
        config = {u.key: u.value_json for u in run.config.update}
        assert run.display_name == name
        assert run.project == "made"
        raw = half.raw.trials[name]
        assert config["model.conv"] == f'"{raw["values"]["model.conv"]}"'
        rows = [r.history for r in wandb_records if r.WhichOneof("record_type") == "history"]
        seen = {}
        for row in rows:
            items = {i.key or ".".join(i.nested_key): i.value_json for i in row.item}
            seen[int(items["_step"])] = float(items["objective"])
        assert seen == {n: e["objective"] for n, e in half.raw.curves[name].items()}


def test_their_libraries_see_nothing_of_the_user(
    lured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNRELATED", "kept")
    before = dict(os.environ)
    with isolate_tracker(tmp_path, {"WANDB_MODE": "offline"}):
        theirs = {k: v for k, v in os.environ.items() if k.startswith(("WANDB", "MLFLOW"))}
        assert theirs == {"WANDB_MODE": "offline"}
        assert os.environ["HOME"] == str(tmp_path)
        assert os.environ["UNRELATED"] == "kept"
    assert dict(os.environ) == before


def test_distributions_mean_what_the_space_means() -> None:
    def of(**values: Any) -> optuna.distributions.BaseDistribution:
        return make_distribution(Parameter(**values))

    assert of(choices=("a", 2, True)) == CategoricalDistribution(("a", 2, True))
    assert of(low=1, high=5) == IntDistribution(1, 5)
    assert of(low=1, high=64, log=True) == IntDistribution(1, 64, log=True)
    assert of(low=16, high=60, step=16) == IntDistribution(16, 48, step=16)
    assert of(low=1e-4, high=0.1, log=True) == FloatDistribution(1e-4, 0.1, log=True)
    assert of(low=3.5, high=5.0, step=0.5) == FloatDistribution(3.5, 5.0, step=0.5)
    assert of(low=0, high=1, step=0.25) == FloatDistribution(0.0, 1.0, step=0.25)
    assert of(low=0.0, high=1.0, step=0.3) == FloatDistribution(0.0, 0.9, step=0.3)
