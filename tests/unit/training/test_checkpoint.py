"""Checkpoints: what goes in comes out, and damage is told in a sentence."""

import errno
import json
import os
import struct
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.training import checkpoint, ddp
from hydragnn_hpo.training.checkpoint_saver import BackgroundJob, prune_checkpoints
from hydragnn_hpo.training.epoch import take_step
from hydragnn_hpo.training.resume import save_training
from hydragnn_hpo.training.train_state import AveragedWeights

from .conftest import go, weights


def test_round_trip_with_state(tmp_path):
    path = tmp_path / "last.safetensors"
    tensors = {
        "a": torch.randn(3, 4, dtype=torch.float64).T,
        "b": torch.tensor(7.0),
        "same": torch.arange(5),
    }
    tensors["shared"] = tensors["same"]
    state = {"progress": {"epoch": 3, "best": 0.1 + 0.2, "nothing": None}, "seed": 5, "u": "\u00e5"}
    checkpoint.write_checkpoint(path, tensors, state)
    result, stored_state = checkpoint.read_checkpoint(path)
    assert stored_state == state
    assert result.keys() == tensors.keys()
    for name, value in tensors.items():
        assert result[name].dtype == value.dtype
        assert torch.equal(result[name], value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["last.safetensors"]


def test_no_pickle_inside(tmp_path):
    path = tmp_path / "last.safetensors"
    checkpoint.write_checkpoint(path, {"a": torch.ones(2)}, {"k": 1})
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    assert json.loads(header["__metadata__"]["state"]) == {"k": 1}
    assert len(content) == 8 + length + 8


@pytest.mark.parametrize("damage", ["cut", "header", "missing", "folder"])
def test_damage_is_a_sentence(tmp_path, damage):
    path = tmp_path / "last.safetensors"
    checkpoint.write_checkpoint(path, {"a": torch.ones(100)}, {})
    content = path.read_bytes()
    if damage == "cut":
        path.write_bytes(content[:-7])
    elif damage == "header":
        path.write_bytes(b"\xff" * 8 + content[8:])
    else:
        path.unlink()
        if damage == "folder":
            path.mkdir()
    with pytest.raises(StorageError, match=r"last.safetensors: cannot be read as a checkpoint \("):
        checkpoint.read_checkpoint(path)


@pytest.fixture
def slow(monkeypatch):
    """Hold every file back until the gate is opened; tells what was asked for."""
    gate = threading.Event()
    written_names = []
    real = checkpoint.write_pieces

    def write(path, pieces, **how):
        written_names.append(path.name)
        assert gate.wait(60)
        real(path, pieces, **how)

    monkeypatch.setattr(checkpoint, "write_pieces", write)
    yield gate, written_names
    gate.set()


def save(trainer, folder):
    save_training(trainer.parts, trainer.progress, trainer.best, folder)


def test_training_goes_on_while_a_checkpoint_is_written(train, tmp_path, slow, monkeypatch):
    monkeypatch.setattr(ddp, "SYNC_SECONDS", 0.0)
    gate, written_names = slow
    trainer = train(epochs=3, checkpoint_seconds=0.0)

    def signal():
        if trainer.progress.step == 6:
            gate.set()
        return "go"

    trainer.run(3, signal, tmp_path)
    saved = [r["step"] for r in trainer.records if r["record"] == "checkpoint"]
    assert saved[0] == 1
    assert saved[1] >= 6, "while one is being written, no other begins"
    assert saved[-1] == 12, "the last one always happens"
    assert written_names[0] == "last.safetensors", "in the first epoch nothing is the best yet"
    assert written_names.index("best.safetensors") < written_names.index("last.safetensors", 1)


def test_a_checkpoint_holds_what_was_when_it_was_requested(train, tmp_path, slow):
    gate, _ = slow
    trainer = train(epochs=3, ema=0.5, checkpoint_seconds=1e6)
    trainer.run(1, go)
    before = {name: v.clone() for name, v in trainer.parts.saver.train_state.tensors().items()}
    with trainer.parts.saver:
        save(trainer, tmp_path)
        for batches in trainer.parts.order.steps(1):
            pieces = trainer.parts.micro.make_ahead(batches)
            take_step(trainer.parts, trainer.progress, batches, pieces)
        trainer.progress.best_val["energy"] = 99.0
        gate.set()
    tensors, state = checkpoint.read_checkpoint(tmp_path / "last.safetensors")
    assert {"model", "optimizer", "average", "best"} == {name.split("/")[0] for name in tensors}
    moments = {name for name in tensors if name.startswith("optimizer/")}
    assert moments == {
        f"optimizer/{name}/{key}"
        for name, _ in trainer.parts.model.named_parameters()
        for key in ("exp_avg", "exp_avg_sq", "step")
    }
    for name, value in before.items():
        assert torch.equal(tensors[name], value), name
    assert (state["progress"]["epoch"], state["progress"]["step"]) == (1, 4)
    assert state["progress"]["best_val"]["energy"] != 99.0
    assert (state["made_by"]["world"], state["made_by"]["device"]) == (1, "cpu")
    assert state["made_by"]["torch"] == torch.__version__


def test_large_models_are_saved_more_rarely(train):
    saver = train().parts.saver
    now = [0.0]
    saver.clock = lambda: now[0]
    saver.every = 10.0
    saver.pause_seconds = 2.0
    saver._began = 0.0
    due = []
    for seconds in (9.0, 11.0, 39.0, 41.0):
        now[0] = seconds
        due.append(saver.due)
    assert due == [False, False, False, True], "2 s in 40 s are 5 %"
    saver.pause_seconds, now[0] = 0.1, 11.0
    assert saver.due


def test_best_is_not_written_again_unless_it_changed(train, tmp_path, monkeypatch):
    written_names = []
    real = checkpoint.write_pieces
    monkeypatch.setattr(
        checkpoint,
        "write_pieces",
        lambda p, c, **how: (written_names.append(p.stem), real(p, c, **how))[1],
    )
    course = iter([0.9, 0.95, 0.8, 0.85])
    monkeypatch.setattr("hydragnn_hpo.training.epoch.compute_objective", lambda *_: next(course))
    trainer = train(epochs=4, checkpoint_seconds=1e6)
    for epoch in range(1, 5):
        trainer.run(epoch, go, tmp_path)
    assert written_names == ["best", "last", "last", "best", "last", "last"]


def test_nothing_is_written_twice_at_one_step(train, tmp_path):
    trainer = train(epochs=1)
    trainer.run(1, go, tmp_path)
    save(trainer, tmp_path)
    again = train(epochs=1)
    again.resume(tmp_path)
    save(again, tmp_path)
    steps = [r["step"] for t in (trainer, again) for r in t.records if r["record"] == "checkpoint"]
    assert steps == [4]


@pytest.mark.parametrize("epochs", [2, 4])
def test_a_full_disk_is_reported_at_the_next_checkpoint_or_at_the_end(
    train, tmp_path, monkeypatch, epochs
):
    def full(path, pieces, **_):
        raise StorageError(f"{path}: cannot be written (No space left on device)")

    trainer = train(epochs=epochs, checkpoint_seconds=0.0)
    trainer.run(1, go)
    monkeypatch.setattr(checkpoint, "write_pieces", full)
    with pytest.raises(StorageError, match=r"best.safetensors: cannot be written \(No space"):
        trainer.run(epochs, go, tmp_path)
    assert trainer.progress.epoch <= 2
    assert not [r for r in trainer.records if r["record"] == "checkpoint"]


def test_the_first_error_counts(train, tmp_path, monkeypatch, caplog):
    def full(path, pieces, **_):
        raise StorageError("full")

    monkeypatch.setattr(checkpoint, "write_pieces", full)
    trainer = train(epochs=1)
    with pytest.raises(ValueError, match="another"), trainer.parts.saver:  # noqa: PT012
        save(trainer, tmp_path)
        raise ValueError("another")
    assert "the last checkpoint failed too: full" in caplog.text


def pointer(folder, name, step):
    (folder / "last.json").write_text(json.dumps({"folder": name, "progress": {"step": step}}))
    (folder / name).mkdir(exist_ok=True)


@pytest.mark.parametrize(("whole", "parts", "newest"), [(5, 4, "last"), (4, 5, "sharded")])
def test_the_newest_counts_where_a_kill_left_two(train, tmp_path, whole, parts, newest):
    saver = train().parts.saver
    assert saver._list_origins(tmp_path) == []
    checkpoint.write_checkpoint(tmp_path / "last.safetensors", {}, {"progress": {"step": whole}})
    pointer(tmp_path, "a", parts)
    assert saver._list_origins(tmp_path)[0] == newest


def test_parts_that_do_not_count_are_removed(tmp_path):
    for name in ("sharded-000000004", "sharded-000000005", "sharded-000000006"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").touch()
    pointer(tmp_path, "sharded-000000005", 5)
    (tmp_path / "micro.json").touch()
    prune_checkpoints(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"sharded-000000005", "last.json", "micro.json"}
    (tmp_path / "last.json").unlink()
    prune_checkpoints(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"micro.json"}


def test_a_pointer_to_nothing_is_reported_and_the_training_begins_again(train, tmp_path, caplog):
    pointer(tmp_path, "sharded-000000005", 5)
    trainer = train()
    assert not trainer.resume(tmp_path)
    assert "sharded-000000005: cannot be read as a checkpoint (" in caplog.text
    (record,) = [r for r in trainer.records if r["record"] == "unreadable"]
    assert record["checkpoint"] == "last.json"


def test_a_damaged_pointer_removes_its_parts_and_one_out_of_reach_nothing(tmp_path, monkeypatch):
    pointer(tmp_path, "sharded-000000005", 5)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", Mock(side_effect=OSError(errno.EIO, "away")))
        prune_checkpoints(tmp_path)
    assert (tmp_path / "sharded-000000005").exists()
    (tmp_path / "last.json").write_text("{")
    prune_checkpoints(tmp_path)
    assert not (tmp_path / "sharded-000000005").exists()


@pytest.fixture
def trained(train, tmp_path):
    """Leave the checkpoints of two epochs, of which the first is the best one."""

    def make(**settings):
        first = train(epochs=4, checkpoint_seconds=0.0, **settings)
        first.run(1, go, tmp_path)
        first.progress.best_objective = -1.0
        first.run(2, go, tmp_path)
        return first

    return make


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


def of_another_version(path):
    tensors, state = checkpoint.read_checkpoint(path)
    tensors["model/older"] = torch.ones(1)
    checkpoint.write_checkpoint(path, tensors, state)


def without_progress(path):
    tensors, _ = checkpoint.read_checkpoint(path)
    checkpoint.write_checkpoint(path, tensors, {})


@pytest.mark.parametrize(
    ("damage", "ema"), [(cut, 0.8), (of_another_version, 0.0), (without_progress, 0.8)]
)
def test_what_cannot_be_read_sends_a_training_back_to_its_best_epoch(
    train, trained, tmp_path, damage, ema
):
    first = trained(ema=ema)
    damage(tmp_path / "last.safetensors")
    again = train(epochs=4, ema=ema)
    assert again.resume(tmp_path)
    assert [r["checkpoint"] for r in again.records] == ["last.safetensors"]
    assert (again.resumed_from, again.progress.epoch) == ("best", 1)
    assert again.progress.step == again.parts.order.steps_per_epoch
    for name, value in again.parts.model.state_dict().items():
        assert torch.equal(value, first.best[name]), name
    again.run(4, go, tmp_path)
    assert again.progress.epoch == 4


@pytest.mark.parametrize("damage", [cut, of_another_version])
def test_without_anything_that_can_be_read_a_training_is_an_unbroken_one(
    train, trained, tmp_path, damage
):
    trained()
    for name in ("best", "last"):
        damage(tmp_path / f"{name}.safetensors")
    again = train(epochs=2)
    unbroken = train(epochs=2)
    assert not again.resume(tmp_path)
    assert again.resumed_from is None
    for trainer in (again, unbroken):
        trainer.run(2, go)
    assert torch.equal(weights(again), weights(unbroken))


def test_a_checkpoint_out_of_reach_is_not_given_up(train, trained, tmp_path, monkeypatch):
    trained()

    def away(path, **_):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(checkpoint, "safe_open", away)
    with pytest.raises(StorageError, match="cannot be read as a checkpoint"):
        train(epochs=4).resume(tmp_path)


def test_average_against_a_slow_loop():
    model = nn.Linear(2, 1).double()
    average = AveragedWeights(model, 0.5)
    expected = [p.tolist() for p in model.weight[0]]
    for step in range(20):
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[step + 1.0, -step]]))
        average.update(step)
        keep = min(0.5, (1 + step) / (10 + step))
        live = [step + 1.0, -float(step)]
        expected = [keep * e + (1 - keep) * v for e, v in zip(expected, live, strict=True)]
    assert average.mean["weight"][0].tolist() == pytest.approx(expected, rel=1e-14)


def test_swap_shows_the_average_and_a_second_swap_undoes_it():
    model = nn.Linear(3, 2)
    average = AveragedWeights(model, 0.9)
    with torch.no_grad():
        model.bias.add_(1.0)
    average.update(5)
    live = model.bias.detach().clone()
    mean = average.mean["bias"].clone()
    assert not torch.equal(live, mean)
    for expected, kept in ((mean, live), (live, mean)):
        average.swap()
        assert torch.equal(model.bias, expected)
        assert torch.equal(average.mean["bias"], kept)


def test_a_job_without_a_thread_is_done_at_once(monkeypatch):
    """Its stack may not fit where memory is limited."""

    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    job = BackgroundJob()
    done = []
    job.start(lambda: done.append(1))
    assert done == [1]
    assert not job.busy
    job.start(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        job.wait()
