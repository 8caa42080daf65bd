"""What TensorBoard reads is what the records say."""

import importlib.util

import pytest

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.metrics_log import read_records
from hydragnn_hpo.training.tensorboard_writer import TensorBoardWriter, curves
from hydragnn_hpo.training.trial import load_trial, rank_main


def curves_in(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return {
        name: [(event.step, event.value) for event in read.Scalars(name)]
        for name in read.Tags()["scalars"]
    }


def test_an_epoch_is_read_back(tmp_path):
    board = TensorBoardWriter(tmp_path / "board")
    for epoch in (1, 2):
        values = {"epoch": epoch, "objective": 0.5 / epoch, "val_mae": {"energy": 2.0 * epoch}}
        board.show("epoch", 1000.0 + epoch, values)
    board.show("checkpoint", 1005.0, {"epoch": 2, "bytes": 9})
    board.close()
    assert curves_in(tmp_path / "board") == {
        "objective": [(1, 0.5), (2, 0.25)],
        "val_mae/energy": [(1, 2.0), (2, 4.0)],
    }


def test_curves_are_numbers_at_any_depth():
    found = dict(curves({"a": {"b": {"c": 1}}, "name": "x", "none": None, "epoch": 3, "d": 0.5}))
    assert found == {"a/b/c": 1.0, "d": 0.5}


def test_a_trial_shows_its_epochs_on_request(bench):
    bench.configure(tensorboard=True, epochs=3)
    assert rank_main(bench.place(epochs=3)) == 0
    folder = bench.trial.attempt(1)
    told = [r for r in read_records(folder / "metrics.jsonl") if r["record"] == "epoch"]
    shown = curves_in(folder / "tensorboard")
    for name, values in (
        ("objective", [r["objective"] for r in told]),
        ("val_mae/charge", [r["val_mae"]["charge"] for r in told]),
        ("backward_seconds", [r["backward_seconds"] for r in told]),
    ):
        assert [step for step, _ in shown[name]] == [1, 2, 3]
        assert [value for _, value in shown[name]] == pytest.approx(values, rel=1e-6)


def test_nothing_is_shown_unasked(bench):
    bench.configure(epochs=1)
    assert rank_main(bench.place(epochs=1)) == 0
    assert not (bench.trial.attempt(1) / "tensorboard").exists()


def test_a_missing_package_is_said_before_anything_starts(bench, monkeypatch):
    bench.configure(tensorboard=True)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *_: None if name == "tensorboard" else find(name)
    )
    with pytest.raises(ConfigError, match=r"trial.toml: training.tensorboard .*hpo\[tensorboard\]"):
        load_trial(bench.trial)
