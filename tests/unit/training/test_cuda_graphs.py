"""Replayed steps are those whose kernels are launched singly; what cannot be replayed is not.

There is no GPU here, see ``tests/replays.py``; ``tests/gpu`` checks the same with CUDA graphs.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from replays import record_by_running, replay_on_cpu

from hydragnn_hpo.data.batch_layout import pad_batch
from hydragnn_hpo.testing.sample_structures import batch_structures, random_structure
from hydragnn_hpo.training import cuda_graphs, training_parts
from hydragnn_hpo.training.cuda_graphs import Replays
from hydragnn_hpo.training.ddp import Ranks

from .conftest import difference, epochs, go, make_config, weights

CPU = torch.device("cpu")


@pytest.fixture
def train(columns, train):
    """Train on edges that are sorted by receiver, as stores hold them."""
    return partial(train, replace(columns, edges=np.ascontiguousarray(columns.edges[:, ::-1])))


@pytest.fixture
def replaying(monkeypatch):
    """Let trials on a CPU replay their steps; tells how they are recorded."""

    def switch(on=True, record=record_by_running):
        replay_on_cpu(monkeypatch.setattr, record)
        if not on:
            monkeypatch.setattr(training_parts, "can_replay", lambda *_, fixed_shapes: False)

    return switch


def both(train, replaying, **settings):
    """Train a trial twice: launching kernels singly, and replaying them."""
    trainers = []
    for on in (False, True):
        replaying(on)
        trainers.append(train(**settings))
        trainers[-1].run(4, go)
    return trainers


@pytest.mark.parametrize("settings", [
    {"conv": "painn"}, {"conv": "pna"}, {"conv": "gin", "optimizer": "muon"},
    {"micro_batches": 3, "balance": "uncertainty"}, {"ema": 0.9, "clip_norm": 0.1},
    {"conv": "mfc"},
], ids=lambda settings: "-".join(map(str, settings.values())))  # fmt: skip
def test_replayed_trials_are_those_launched_singly(train, replaying, settings):
    single, replayed = both(train, replaying, **settings)
    assert difference(single, replayed) < 1e-12
    for one, other in zip(epochs(single), epochs(replayed), strict=True):
        assert one["objective"] == pytest.approx(other["objective"], rel=1e-12)
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-12)
    recorded = replayed.parts.stepper.replays and replayed.parts.stepper.replays.recordings
    assert bool(recorded) == (settings.get("conv") != "mfc")


def test_resumed_replays_repeat_the_bits(train, replaying, tmp_path):
    replaying()
    whole, first, second = (train() for _ in range(3))
    whole.run(4, go)
    first.run(2, go, tmp_path)
    assert second.resume(tmp_path)
    second.run(4, go)
    assert torch.equal(weights(second), weights(whole))


def fail(error):
    def record(work, device):
        work()
        raise error

    return record


def bake(work, device):
    """Record what does not depend on the inputs."""
    outputs = work()
    return work, {name: values.clone() for name, values in outputs.items()}


@pytest.mark.parametrize(
    ("record", "message"),
    [(fail(RuntimeError("it waits")), "it waits"), (bake, "a recording is")],
    ids=["fails", "is wrong"],
)
def test_what_cannot_be_recorded_is_launched_singly(train, replaying, caplog, record, message):
    replaying(on=False)
    single = train()
    single.run(2, go)
    replaying(record=record)
    trial = train()
    trial.run(2, go)
    assert difference(single, trial) < 1e-12
    assert trial.parts.stepper.replays.problem.startswith(message)
    assert not trial.parts.stepper.replays.recordings
    assert caplog.text.count("kernels are launched singly") == 2  # of steps and of validations


def test_a_recording_without_memory_cuts_steps(train, replaying):
    left = [1]

    def record(work, device):
        if left:
            left.pop()
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return record_by_running(work, device)

    replaying(on=False)
    single = train(micro_batches=2)
    single.run(2, go)
    replaying(record=record)
    trial = train(micro_batches=1)
    trial.run(2, go)
    assert trial.parts.micro.pieces == 2
    assert difference(single, trial) < 1e-12
    assert trial.parts.stepper.replays.recordings


def batch_of(nodes):
    return pad_batch(batch_structures([random_structure(0, nodes)]))


@pytest.fixture
def replays(replaying):
    """Replays of a pass that doubles positions, and the numbers of its calls."""
    replaying()
    calls = []

    def work(batch, numbers):
        calls.append(len(batch.numbers))
        return {"doubled": 2.0 * batch.positions + numbers.sum()}

    made = Replays(work, CPU)
    made.calls = calls
    return made


def test_a_size_is_recorded_once_and_inputs_are_copied(replays):
    first = batch_of(5)
    second = batch_of(5)
    second.positions.add_(1.0)
    kept = [batch.positions.clone() for batch in (first, second)]
    given = [replays.run(first), replays.run(second, None), replays.run(first)]
    assert len(replays.recordings) == 1
    for outputs, positions in zip(given, (*kept, kept[0]), strict=True):
        assert torch.equal(outputs["doubled"], 2.0 * positions)
    assert torch.equal(first.positions, kept[0])
    numbered = batch_of(6)
    assert torch.equal(
        replays.run(numbered, torch.ones(3))["doubled"], 2.0 * numbered.positions + 3.0
    )


def test_what_is_not_padded_runs_singly(replays):
    batch = batch_structures([random_structure(0)])
    replays.run(batch)
    assert replays.calls == [len(batch.numbers)]
    assert not replays.recordings


def test_sizes_beyond_the_last_run_singly(replays, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MOST", 2)
    sizes = [4, 7, 11]
    for nodes in sizes * 2:
        batch = batch_of(nodes)
        assert torch.equal(replays.run(batch)["doubled"], 2.0 * batch.positions)
    assert len(replays.recordings) == 2


def test_a_size_may_run_singly_at_first(replays):
    replays.singly = 1
    for recordings in (0, 1, 1):
        replays.run(batch_of(5))
        assert len(replays.recordings) == recordings


def test_only_whole_weights_on_gpus_are_replayed():
    card = torch.device("cuda:0")
    ask = partial(cuda_graphs.can_replay, fixed_shapes=True)
    wanted = make_config(cuda_graphs=True)
    assert ask(wanted, Ranks(0, 1, card))
    assert not cuda_graphs.can_replay(wanted, Ranks(0, 1, card), fixed_shapes=False)
    assert not ask(wanted, Ranks(0, 1, CPU))
    assert ask(wanted, Ranks(0, 2, card))
    sharded = wanted.model_copy(
        update={"parallel": wanted.parallel.model_copy(update={"shard": "full"})}
    )
    assert ask(sharded, Ranks(0, 1, card))
    assert not ask(sharded, Ranks(0, 2, card))
    assert not ask(make_config(), Ranks(0, 1, card))
    recomputed = wanted.model_copy(
        update={"parallel": wanted.parallel.model_copy(update={"recompute": True})}
    )
    assert not ask(recomputed, Ranks(0, 1, card))
