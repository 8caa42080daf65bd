"""TensorBoard, MLflow and W&B, each read back; nothing leaves the folder."""

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hydragnn_hpo.report.exporting.formats import export
from hydragnn_hpo.report.exporting.outside import at_home
from hydragnn_hpo.report.facts import Facts


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Note every address beyond this computer that somebody tries to reach."""
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
        raw, board = made.raw.trials[name], tensors(tmp_path / "out" / name)
        curve = sorted(made.raw.curves[name].values(), key=lambda e: e["reached"])
        shown = board.Scalars("objective") if curve else []
        assert [(s.step, s.value, s.wall_time) for s in shown] == [
            (e["reached"], single(e["objective"]), e["time"]) for e in curve
        ]
        if raw["last"] and raw["last"]["outcome"] != "failed":
            (result,) = board.Scalars("result/val_mae/gap")
            assert result.value == single(raw["last"]["val_mae"]["gap"])
        metadata = board.summary_metadata["_hparams_/session_start_info"]
        data = HParamsPluginData.FromString(metadata.plugin_data.content)
        found = data.session_start_info.hparams
        assert found["model.conv"].string_value == raw["values"]["model.conv"]
        assert found["model.layers"].number_value == raw["values"]["model.layers"]


def test_tensorboard_stays_in_its_folder(hostile: Facts, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra [tensorboard].")
    export(hostile, "tensorboard", tmp_path / "a" / "out")
    assert len(list((tmp_path / "a" / "out").iterdir())) == 6
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "hostile"]


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
    told = client.get_metric_history(runs[name].info.run_id, "objective")
    curve = made.raw.curves[name].values()
    assert {(m.step, m.value) for m in told} == {(e["reached"], e["objective"]) for e in curve}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_mlflow_takes_hostile_names(hostile: Facts, tmp_path: Path, offline: list[Any]) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs the extra [mlflow].")
    export(hostile, "mlflow", tmp_path / "out")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/out/mlflow.db")
    experiment = client.get_experiment_by_name("hostile")
    tags = [run.data.tags for run in client.search_runs([experiment.experiment_id])]
    assert len(tags) == 6
    assert "\x1b" not in str(tags)


def records(path: Path) -> Iterator[Any]:
    """Read what W&B keeps: records of protobuf in blocks of 32 kB, as LevelDB's log.

    Source: https://github.com/google/leveldb/blob/main/doc/log_format.md, 2026-11-22.
    """
    from wandb.proto import wandb_internal_pb2

    content, at, whole = path.read_bytes(), 7, b""
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
        told = list(records(path))
        (run,) = [r.run for r in told if r.WhichOneof("record_type") == "run"]
        config = {u.key: u.value_json for u in run.config.update}
        assert run.display_name == name
        assert run.project == "made"
        raw = half.raw.trials[name]
        assert config["model.conv"] == f'"{raw["values"]["model.conv"]}"'
        rows = [r.history for r in told if r.WhichOneof("record_type") == "history"]
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
    with at_home(tmp_path, {"WANDB_MODE": "offline"}):
        theirs = {k: v for k, v in os.environ.items() if k.startswith(("WANDB", "MLFLOW"))}
        assert theirs == {"WANDB_MODE": "offline"}
        assert os.environ["HOME"] == str(tmp_path)
        assert os.environ["UNRELATED"] == "kept"
    assert dict(os.environ) == before
