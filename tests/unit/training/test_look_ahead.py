"""How graphs reach a training never shows in it: looked ahead, in windows, several sets."""

import threading
import tomllib

import numpy as np
import pytest
import torch

from hydragnn_hpo.config.schema import dump_config, parse_config
from hydragnn_hpo.config.trial_config import TrialConfig
from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.store_access import open_store
from hydragnn_hpo.training import epoch
from hydragnn_hpo.training.divergence import Diverged
from hydragnn_hpo.training.trainer import Trainer
from hydragnn_hpo.training.training_parts import build_parts
from hydragnn_hpo.training.trial import load_trial

from .conftest import ALONE, go, weights


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "look-ahead"]


def seen_by(trainer):
    """Note which graphs each step holds."""
    steps = []
    micro = trainer.parts.micro
    step = micro.take_step
    micro.take_step = lambda rows, *rest: (steps.append(rows.tolist()), step(rows, *rest))[1]
    return steps


@pytest.mark.parametrize("depth", [1, 2])
def test_looking_ahead_changes_nothing(train, monkeypatch, depth):
    plain = train()
    plain.run(2, go)
    assert epoch.prefetch_depth(plain.parts) == 0
    monkeypatch.setattr(epoch, "prefetch_depth", lambda _: depth)
    ahead = train()
    ahead.run(2, go)
    assert torch.equal(weights(ahead), weights(plain))
    assert not threads()


def test_a_training_that_breaks_off_leaves_no_thread(train, monkeypatch):
    monkeypatch.setattr(epoch, "prefetch_depth", lambda _: 2)
    trainer = train(learning_rate=1e200, clip_norm=None, warmup=0.0)
    with pytest.raises(Diverged):
        trainer.run(4, go)
    assert not threads()


def test_windows_from_disk_train_as_the_stage_does(train, store, tmp_path, monkeypatch):
    monkeypatch.setenv("HYDRAGNN_HPO_WINDOW_MEMORY", "1")
    staged = open_store(store, tmp_path)
    windows = open_store(store, access="windows")
    assert isinstance(staged, Columns)
    assert not isinstance(windows, Columns)
    made = [train(columns=graphs, shuffle_buffer=8) for graphs in (staged, windows)]
    assert [epoch.prefetch_depth(trainer.parts) for trainer in made] == [0, 1]
    seen = [seen_by(trainer) for trainer in made]
    for trainer in made:
        trainer.run(2, go)
    assert seen[0] == seen[1]
    assert torch.equal(*(weights(trainer) for trainer in made))


@pytest.fixture
def pair(bench, store):
    """A trial on two data sets with heads of both."""
    values = tomllib.loads(dump_config(bench.configure(epochs=4)))
    entries = [{"store": str(store), "ratio": 2.0}, {"store": str(store), "ratio": 1.0}]
    entries[1] |= {"prefix": "b_", "access": "windows"}
    values |= {"data": entries, "heads": {"energy": {}, "b_charge": {}}}

    def configure(**training):
        values["training"] |= training
        bench.trial.config.write_text(dump_config(parse_config(values, TrialConfig, "x")))
        return bench

    return configure


def test_two_data_sets_go_on_where_they_were(pair):
    """24 graphs of the first an epoch and 12 of the second: its passes go over two epochs."""
    bench = pair()
    config, graphs = load_trial(bench.trial)
    assert [isinstance(one, Columns) for one in graphs.sets] == [True, False], "as access says"
    unbroken = Trainer(build_parts(config, graphs, ALONE))
    whole = seen_by(unbroken)
    unbroken.run(4, go)
    first = Trainer(build_parts(config, graphs, ALONE))
    before = seen_by(first)
    bench.trial.checkpoints.mkdir()
    first.run(1, go, bench.trial.checkpoints)
    second = Trainer(build_parts(*load_trial(bench.trial), ALONE))
    assert second.resume(bench.trial.checkpoints)
    after = seen_by(second)
    second.run(4, go)
    assert before + after == whole
    assert torch.equal(weights(second), weights(unbroken))
    every = np.concatenate(whole)
    train = graphs.indices_of("train")
    assert np.bincount(every, minlength=80)[train].tolist() == [4] * 24 + [2] * 24


def test_loss_is_that_of_the_graphs_drawn(pair):
    bench = pair(learning_rate=1e-12, weight_decay=0.0)
    config, graphs = load_trial(bench.trial)
    records = []
    trainer = Trainer(
        build_parts(config, graphs, ALONE, lambda kind, **v: records.append((kind, v)))
    )
    drawn = np.concatenate(trainer.parts.order.steps(0))
    expected = {}
    for name in config.heads:
        total = known = 0.0
        for row in drawn:
            batch = trainer.parts.feed.batch_on_device(np.array([row]))
            with torch.no_grad():
                error = trainer.parts.model(batch)[name] - batch.targets[name]
            error = (error / trainer.parts.model.std(name))[batch.masks[name]].abs()
            bent = torch.where(error < 1, 0.5 * error**2, error - 0.5)
            total, known = total + bent.sum().item(), known + bent.numel()
        expected[name] = total / known
    trainer.run(1, go)
    (record,) = [values for kind, values in records if kind == "epoch"]
    assert record["loss"] == pytest.approx(expected, rel=1e-6)
