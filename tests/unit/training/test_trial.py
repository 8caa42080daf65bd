"""A trial's directory in, its result and predictions out: one real rank on a tiny store."""

import errno
import json
import os
import signal
import sys
import time

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from hydragnn_hpo.config.schema import load_config
from hydragnn_hpo.config.trial_config import (
    DISK_FULL,
    FILES_AWAY,
    INTERRUPTED,
    PEER_LOST,
    PlacementConfig,
)
from hydragnn_hpo.errors import ConfigError, DataError, StorageError
from hydragnn_hpo.files import storage
from hydragnn_hpo.metrics_log import read_records
from hydragnn_hpo.training import checkpoint
from hydragnn_hpo.training import trial as module
from hydragnn_hpo.training.divergence import Diverged
from hydragnn_hpo.training.trial import (
    _reason,
    load_trial,
    rank_main,
    run_by_hand,
)


def result_of(bench, attempt=1):
    return json.loads((bench.trial.attempt(attempt) / "result.json").read_text())


def records_of(bench, attempt=1):
    return list(read_records(bench.trial.attempt(attempt) / "metrics.jsonl"))


def test_a_completed_trial(bench, columns):
    config = bench.configure(epochs=3)
    assert rank_main(bench.place(epochs=3)) == 0
    result = result_of(bench)
    assert result["status"] == "completed"
    assert result["reason"] is None
    assert (result["epochs"], result["width"], result["trial"]) == (3, 1, "trial")
    assert result["units"] == {"energy": "eV", "charge": "e"}
    assert result["kernels"] == "numba"
    records = [r for r in records_of(bench) if r["record"] == "epoch"]
    best = min(records, key=lambda r: r["objective"])
    assert result["best_epoch"] == best["epoch"]
    assert result["objective"] == best["objective"]
    assert result["val_mae"] == best["val_mae"]
    assert result["train_seconds"] > 0
    _, state = checkpoint.read_checkpoint(bench.trial.best)
    assert state["seed"] == config.seed
    kinds = [r["record"] for r in records_of(bench)]
    assert kinds[:4] == ["start", "ready", "memory", "first_step"]
    assert kinds.count("first_step") == 1
    assert records_of(bench)[0]["units"] == result["units"]
    assert not (bench.trial.attempt(1) / "tensorboard").exists(), "nothing is shown unasked"


def test_predictions_are_of_the_best_epoch_and_never_of_test(bench, columns):
    bench.configure(epochs=3)
    rank_main(bench.place(epochs=3))
    arrays = load_file(bench.trial.attempt(1) / "predictions.safetensors")
    heads = ("energy", "charge")
    assert set(arrays) == {f"{s}/{n}" for s in ("val", "sel", "cal") for n in ("index", *heads)}
    test = set(columns.indices_of("test").tolist()) | set(columns.indices_of("train").tolist())
    for split in ("val", "sel", "cal"):
        assert arrays[f"{split}/index"].tolist() == columns.indices_of(split).tolist()
        assert not test & set(arrays[f"{split}/index"].tolist())
    rows = columns.indices_of("val")
    mask = columns.masks["energy"][rows]
    error = np.abs(arrays["val/energy"] - columns.targets["energy"][rows])[mask].mean()
    assert error == pytest.approx(result_of(bench)["val_mae"]["energy"], rel=1e-12)
    assert len(arrays["sel/charge"]) == columns.num_nodes()[columns.indices_of("sel")].sum()


def test_a_rung_stops_and_the_next_attempt_goes_on(bench):
    """That nothing of the break is left in weights and errors is seen in test_trainer.py."""
    bench.configure(epochs=4, ema=0.5)
    assert rank_main(bench.place(1, epochs=2)) == 0
    assert result_of(bench)["status"] == "stopped"
    assert result_of(bench)["epochs"] == 2
    assert rank_main(bench.place(2, epochs=4)) == 0
    assert result_of(bench, 2)["status"] == "completed"
    ready = records_of(bench, 2)[1]
    assert (ready["record"], ready["resumed"], ready["reached"]) == ("ready", True, 2)
    epoch_numbers = [
        r["epoch"] for a in (1, 2) for r in records_of(bench, a) if r["record"] == "epoch"
    ]
    assert epoch_numbers == [1, 2, 3, 4]


def test_early_stopping_is_completed_with_its_reason(bench):
    bench.configure(epochs=40, patience=1, learning_rate=0.3, schedule="constant")
    assert rank_main(bench.place(epochs=40)) == 0
    result = result_of(bench)
    assert (result["status"], result["reason"]) == ("completed", "early_stopping")
    assert result["epochs"] == result["best_epoch"] + 1 < 40


@pytest.mark.parametrize(
    ("settings", "reason", "message"),
    [
        ({"model": {"cutoff": 4.5}}, "bad_config",
         "model.cutoff is 4.5 angstrom, the store's edges end at 4:"),
        ({"heads": {"enrgy": {}}}, "bad_config", "Did you mean 'energy'?"),
        ({"conv": "schnet", "heads": {"push": {}}}, "bad_config", "carries no vectors: use "),
        ({"learning_rate": 1e200, "clip_norm": None, "warmup": 0.0}, "diverged",
         "epoch 1, step 2: the gradient of "),
    ],
)  # fmt: skip
def test_a_trial_that_cannot_end_well_fails_with_its_reason(bench, settings, reason, message):
    bench.configure(**settings)
    assert rank_main(bench.place()) == 1
    result = result_of(bench)
    assert (result["status"], result["reason"]) == ("failed", reason)
    assert message in result["message"]
    assert "objective" not in result, "a failed trial has no score (Law 9)"


@pytest.fixture
def ask(monkeypatch):
    """Send this rank requests through a pipe, as its agent does."""
    reading, writing = os.pipe()
    monkeypatch.setenv("HYDRAGNN_HPO_REQUESTS", str(reading))
    yield lambda words: os.write(writing, words)
    os.close(reading)
    os.close(writing)


def requests_in(records):
    return [record["request"] for record in records if record["record"] == "request"]


def test_a_request_to_stop_cancels_with_a_result(bench, ask):
    bench.configure(epochs=9)
    spec = bench.place(epochs=9)
    ask(b"stop\n")
    assert rank_main(spec) == 0
    assert result_of(bench)["status"] == "cancelled"
    assert result_of(bench)["epochs"] == 1
    assert requests_in(records_of(bench)) == ["stop"]


def test_a_request_to_yield_leaves_a_checkpoint_and_no_result(bench, ask, monkeypatch):
    bench.configure(epochs=3)
    spec = bench.place(1, epochs=3)
    ask(b"yield\n")
    assert rank_main(spec) == INTERRUPTED
    assert not (bench.trial.attempt(1) / "result.json").exists()
    last = records_of(bench)[-1]
    assert (last["record"], last["wish"], last["reason"]) == ("obeyed", "interrupt", "paused")
    assert requests_in(records_of(bench)) == ["yield"]
    monkeypatch.delenv("HYDRAGNN_HPO_REQUESTS")  # the next attempt has a pipe of its own
    assert rank_main(bench.place(2, epochs=3)) == 0
    ready = records_of(bench, 2)[1]
    assert (ready["resumed"], ready["reached"], ready["step"]) == (True, 0, 1), "in mid-epoch"
    assert result_of(bench, 2)["status"] == "completed"


def test_a_signal_interrupts_between_two_steps(bench, monkeypatch):
    bench.configure(epochs=9)
    spec = bench.place(epochs=9)
    real = module._write_record

    def kick(writers, kind, **values):
        real(writers, kind, **values)
        if kind == "first_step":
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(module, "_write_record", kick)
    assert rank_main(spec) == INTERRUPTED
    records = records_of(bench)
    assert [r["record"] for r in records][-3:] == ["first_step", "checkpoint", "obeyed"]
    assert records[-2]["step"] == 1
    assert (records[-1]["wish"], records[-1]["reason"]) == ("interrupt", "walltime")
    assert not (bench.trial.attempt(1) / "result.json").exists()
    size = (bench.trial.checkpoints / "last.safetensors").stat().st_size
    assert records[-2]["bytes"] == size


def test_the_end_of_the_allocation_interrupts(bench, monkeypatch):
    bench.configure(epochs=3)
    monkeypatch.setenv("HYDRAGNN_HPO_END", str(time.time() + 36000))
    monkeypatch.setenv("HYDRAGNN_HPO_END_MARGIN", "36100")
    assert rank_main(bench.place(1, epochs=3)) == INTERRUPTED
    last = records_of(bench)[-1]
    assert (last["record"], last["wish"], last["reason"]) == ("obeyed", "interrupt", "walltime")
    monkeypatch.setenv("HYDRAGNN_HPO_END_MARGIN", "3500")
    assert rank_main(bench.place(2, epochs=3)) == 0
    assert records_of(bench, 2)[1]["step"] == 1
    assert result_of(bench, 2)["status"] == "completed"


@pytest.mark.parametrize(
    ("name", "error", "code"),
    [("best", errno.ENOSPC, DISK_FULL), ("last", errno.EIO, FILES_AWAY)],
)
def test_what_a_disk_refuses_the_thread_interrupts_the_trial(bench, monkeypatch, name, error, code):
    """Three trials that had failed alike ended the campaign, for a hiccup of a minute."""
    bench.configure(epochs=3, checkpoint_seconds=0.0)
    real = checkpoint.write_pieces

    def refused(path, pieces, **how):
        if path.name == f"{name}.safetensors":
            with storage(path):
                raise OSError(error, os.strerror(error))
        real(path, pieces, **how)

    with monkeypatch.context() as patch:
        patch.setattr(module, "FILES_AWAY_SECONDS", 0.0)
        patch.setattr(checkpoint, "write_pieces", refused)
        assert rank_main(bench.place(1, epochs=3)) == code
    assert not (bench.trial.attempt(1) / "result.json").exists()
    assert rank_main(bench.place(2, epochs=3)) == 0
    assert result_of(bench, 2)["status"] == "completed"


def test_by_hand_makes_its_own_attempts_at_the_full_budget(bench):
    bench.configure(epochs=2)
    code, sentence = run_by_hand(bench.trial)
    assert code == 0
    assert "completed after epoch 2, val MAE energy " in sentence
    assert " eV, charge " in sentence
    placement = load_config(bench.trial.attempt(1) / "placement.toml", PlacementConfig)
    assert (placement.attempt, placement.epochs, placement.width) == (1, 2, 1)
    assert run_by_hand(bench.trial)[0] == 0, "a finished trial only predicts again"
    assert records_of(bench, 2)[1]["reached"] == 2
    assert bench.trial.attempts() == [1, 2]


def test_by_hand_requests_of_an_agent_are_not_read(bench, ask):
    """The number may be another descriptor by then: it was meant for a process above."""
    bench.configure(epochs=2)
    ask(b"yield\n")
    assert run_by_hand(bench.trial)[0] == 0


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Diverged("x"), "diverged"),
        (torch.OutOfMemoryError("x"), "out_of_memory"),
        (ConfigError("x"), "bad_config"),
        (DataError("x"), "bad_config"),
        (StorageError("x"), "bug"),
        (RuntimeError("mat1 and mat2"), "bug"),
    ],
)
def test_every_error_has_its_reason(error, reason):
    assert _reason(error)[0] == reason
    assert _reason(MemoryError()) == ("out_of_memory", "no memory left")


@pytest.mark.parametrize("placed", [True, False], ids=["placed", "by hand"])
def test_a_store_that_is_gone_is_away_for_an_agent_and_wrong_for_a_person(
    bench, monkeypatch, placed
):
    """The controller has seen the store before it placed the trial."""
    bench.configure(epochs=2)
    config = bench.trial.config
    config.write_text(config.read_text().replace(str(bench.store), "gone.bp"))
    monkeypatch.setattr(module, "FILES_AWAY_SECONDS", 0.0)
    if placed:
        assert rank_main(bench.place(1, epochs=2)) == FILES_AWAY
        assert not (bench.trial.attempt(1) / "result.json").exists()
    else:
        code, sentence = run_by_hand(bench.trial)
        assert code == 2
        assert sentence.startswith("error: bad_config: ")
        assert "is not a graph store" in sentence


def test_a_lost_peer_is_no_failure(bench, monkeypatch):
    bench.configure()
    spec = bench.place()

    def lost(*_):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer")

    monkeypatch.setattr(module, "join_ranks", lost)
    assert rank_main(spec) == PEER_LOST
    assert not (bench.trial.attempt(1) / "result.json").exists()


def test_a_trial_shows_its_epochs_on_request(bench):
    bench.configure(tensorboard=True, epochs=3)
    assert rank_main(bench.place(epochs=3)) == 0
    records = [r for r in records_of(bench) if r["record"] == "epoch"]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(bench.trial.attempt(1) / "tensorboard"))
    accumulator.Reload()
    assert "bytes" not in accumulator.Tags()["scalars"], "only epochs are shown"
    for name, values in (
        ("objective", [r["objective"] for r in records]),
        ("val_mae/charge", [r["val_mae"]["charge"] for r in records]),
        ("backward_seconds", [r["backward_seconds"] for r in records]),
    ):
        assert [event.step for event in accumulator.Scalars(name)] == [1, 2, 3]
        assert [event.value for event in accumulator.Scalars(name)] == pytest.approx(
            values, rel=1e-6
        )


def test_a_missing_package_is_reported_before_anything_starts(bench, monkeypatch):
    bench.configure(tensorboard=True)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ConfigError, match=r"trial.toml: training.tensorboard .*hpo\[tensorboard\]"):
        load_trial(bench.trial)
