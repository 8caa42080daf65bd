"""The trainer: resuming, stopping, clipping, diverging, and which epoch is kept."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from hydragnn_hpo.config.trial_config import TrainConfig
from hydragnn_hpo.data.folds import leave_fold_out
from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.training import checkpoint, ddp, parallel
from hydragnn_hpo.training import epoch as module
from hydragnn_hpo.training.checkpoint_saver import BackgroundJob
from hydragnn_hpo.training.divergence import Diverged
from hydragnn_hpo.training.evaluate import error_sums
from hydragnn_hpo.training.optim import LearningRateSchedule

from .conftest import epochs, go, weights


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("ema", [0.0, 0.8])
def test_resumed_equals_unbroken_bit_for_bit(train, tmp_path, ema, precision):
    settings = {"epochs": 5, "ema": ema, "precision": precision, "clip_norm": 0.5}
    unbroken = train(**settings)
    unbroken.run(5, go)
    first = train(**settings)
    assert not first.resume(tmp_path)
    first.run(2, go, tmp_path)
    second = train(**settings)
    assert second.resume(tmp_path)
    assert second.progress.epoch == 2
    second.run(5, go, tmp_path)
    assert torch.equal(weights(second), weights(unbroken))
    for name, value in unbroken.best.items():
        assert torch.equal(second.best[name], value), name
    same = ("epoch", "step", "best_epoch", "best_objective", "best_val")
    for field in same:
        assert getattr(second.progress, field) == getattr(unbroken.progress, field), field
    objectives = [r["objective"] for r in epochs(first) + epochs(second)]
    assert objectives == [r["objective"] for r in epochs(unbroken)]


def test_best_goes_on_over_a_break_even_if_the_rest_is_worse(train, tmp_path):
    first = train()
    first.run(2, go, tmp_path)
    best = {name: value.clone() for name, value in first.best.items()}
    second = train(learning_rate=3.0)  # what follows is ruined
    second.resume(tmp_path)
    second.run(4, go, tmp_path)
    assert second.progress.best_epoch == first.progress.best_epoch
    second.load_best_weights()
    for name, value in second.parts.model.state_dict().items():
        assert torch.equal(value, best[name]), name


@pytest.mark.parametrize("ema", [0.0, 0.6])
def test_best_epoch_is_kept_not_the_last(train, tmp_path, ema):
    trainer = train(learning_rate=0.2, epochs=6, ema=ema, schedule="constant", seed=2)
    trainer.run(6, go, tmp_path)
    objectives = [r["objective"] for r in epochs(trainer)]
    best = int(np.argmin(objectives)) + 1
    assert best < 6, "choose settings whose last epoch is not the best one"
    assert trainer.progress.best_epoch == best
    assert trainer.progress.best_objective == min(objectives)
    trainer.load_best_weights()
    sums = error_sums(trainer.parts.model, trainer.parts.feed, trainer.parts.val).numpy()
    mae = {name: sums[row, 0] / sums[row, 1] for row, name in enumerate(trainer.parts.config.heads)}
    assert mae == pytest.approx(epochs(trainer)[best - 1]["val_mae"], rel=1e-12)
    assert mae == pytest.approx(trainer.progress.best_val, rel=1e-12)
    tensors, state = checkpoint.read_checkpoint(tmp_path / "best.safetensors")
    assert state["progress"]["best_epoch"] == best
    for name, value in trainer.parts.model.state_dict().items():
        assert torch.equal(tensors[name], value), name


def test_what_a_fold_says_chooses_no_epoch_and_ends_nothing(train, columns, tmp_path):
    settings = {"learning_rate": 0.2, "epochs": 6, "schedule": "constant", "seed": 1}
    grouped = replace(columns, group=np.arange(40, dtype=np.int32))
    left = leave_fold_out(grouped, TrainConfig(fold=0, folds=3))
    trainer = train(columns=left, fold=0, folds=3, patience=1, **settings)
    trainer.run(6, go, tmp_path)
    objectives = [r["objective"] for r in epochs(trainer)]
    assert np.argmin(objectives) < 5, "choose settings whose last epoch is not the best one"
    assert (trainer.progress.epoch, trainer.progress.best_epoch) == (6, 6)
    assert trainer.progress.best_objective == objectives[-1]
    last = weights(trainer).clone()
    trainer.load_best_weights()
    assert torch.equal(weights(trainer), last)


STAGES = {"energy": {"weight": 2.0, "stage_two_weight": 30.0}, "charge": {"loss": "mae"}}


def test_stage_two_continues_with_its_own_weights_of_heads(train, tmp_path):
    staged = train(epochs=4, heads=STAGES, stage_two_share=0.5)
    staged.run(4, go)
    lighter = train(epochs=4)  # whose weights are those of stage one throughout
    lighter.run(2, go, tmp_path)
    heavier = train(epochs=4, heads={**STAGES, "energy": {"weight": 30.0}})
    heavier.resume(tmp_path)
    heavier.run(4, go)
    assert torch.equal(weights(staged), weights(heavier))
    lighter.run(4, go)
    assert not torch.equal(weights(staged), weights(lighter))


@pytest.mark.parametrize("rest", [2, 3, 4])
def test_a_trial_that_rests_at_a_rung_has_the_same_stages(train, tmp_path, rest):
    settings = {"epochs": 5, "heads": STAGES, "stage_two_share": 0.4}
    unbroken = train(**settings)
    unbroken.run(5, go)
    train(**settings).run(rest, go, tmp_path)
    second = train(**settings)
    second.resume(tmp_path)
    second.run(5, go, tmp_path)
    assert torch.equal(weights(second), weights(unbroken))
    for field in ("best_epoch", "best_objective", "best_val"):
        assert getattr(second.progress, field) == getattr(unbroken.progress, field), field


def test_the_best_epoch_is_one_of_stage_two_once_it_has_begun(train, monkeypatch):
    course = [0.3, 0.1, 0.5, 0.4, 0.6, 0.7]
    values = iter([*course, *course])
    monkeypatch.setattr(module, "compute_objective", lambda *_: next(values))
    trainer = train(epochs=6, heads=STAGES, stage_two_share=0.7, patience=3)
    trainer.run(2, go)
    assert (trainer.progress.best_epoch, trainer.progress.best_objective) == (2, 0.1)
    trainer.run(6, go)
    assert (trainer.progress.best_epoch, trainer.progress.best_objective) == (4, 0.4)
    plain = train(epochs=6)
    plain.run(6, go)
    assert plain.progress.best_epoch == 2


def test_patience_ends_the_training(train, monkeypatch):
    course = iter([0.9, 0.8, 0.85, 0.8, 0.81, 0.1, 0.1])
    monkeypatch.setattr(module, "compute_objective", lambda *_: next(course))
    trainer = train(epochs=50, patience=3)
    assert trainer.run(50, go) == "go"
    assert trainer.out_of_patience
    assert (trainer.progress.best_epoch, trainer.progress.epoch) == (2, 5), "equal is not better"


@pytest.fixture
def look_always(monkeypatch):
    """Look up after every step, and write checkpoints before the training goes on."""
    monkeypatch.setattr(ddp, "SYNC_SECONDS", 0.0)
    monkeypatch.setattr(BackgroundJob, "start", lambda self, job: job())


def test_a_stop_is_obeyed_at_the_end_of_the_epoch(train, tmp_path, look_always):
    trainer = train(epochs=9)
    assert (
        trainer.run(9, lambda: "stop" if trainer.progress.step >= 5 else "go", tmp_path) == "stop"
    )
    assert (trainer.progress.epoch, trainer.progress.step) == (2, 8)
    assert len(epochs(trainer)) == 2
    again = train(epochs=9)
    assert again.resume(tmp_path)
    assert (again.progress.epoch, again.progress.step) == (2, 8)


@pytest.mark.parametrize("step", [1, 5, 7, 8])
def test_an_interruption_is_obeyed_between_two_steps(train, tmp_path, look_always, step):
    unbroken = train(epochs=3, ema=0.5)
    unbroken.run(3, go)
    trainer = train(epochs=3, ema=0.5, checkpoint_seconds=1e6)

    def signal():
        return "interrupt" if trainer.progress.step >= step else "go"

    assert trainer.run(3, signal, tmp_path) == "interrupt"
    assert trainer.progress.step == step
    assert len(epochs(trainer)) == trainer.progress.epoch == step // 4
    assert [r["step"] for r in trainer.records if r["record"] == "checkpoint"] == [step]
    again = train(epochs=3, ema=0.5)
    assert again.resume(tmp_path)
    assert again.progress.step == step
    again.run(3, go, tmp_path)
    assert torch.equal(weights(again), weights(unbroken))
    curve = [(r["loss"], r["objective"]) for r in epochs(trainer) + epochs(again)]
    assert curve == [(r["loss"], r["objective"]) for r in epochs(unbroken)]


@pytest.mark.parametrize("limit", [1e-3, 0.2, None])
def test_gradients_are_clipped_to_the_norm(train, monkeypatch, limit):
    trainer = train(clip_norm=limit)
    seen = []
    before = parallel.nn.utils.get_total_norm
    monkeypatch.setattr(
        parallel.nn.utils, "get_total_norm", lambda g: seen.append(before(g).item()) or before(g)
    )
    after = []
    step = trainer.parts.state.optimizer.step

    def watched():
        grads = [p.grad.flatten() for p in trainer.parts.model.parameters() if p.grad is not None]
        after.append(torch.cat(grads).norm().item())
        step()

    trainer.parts.state.optimizer.step = watched
    trainer.run(1, go)
    assert len(seen) == len(after) == 4
    assert min(seen) > 1e-3, "else nothing is clipped"
    expected = [min(norm, limit or norm) for norm in seen]
    assert after == pytest.approx(expected, rel=1e-4)


def test_the_course_of_the_learning_rate_is_laid_over_the_full_budget(train):
    trainer = train(epochs=10, warmup=0.2)
    trainer.run(3, go)  # a rung
    rates = [r["learning_rate"] for r in epochs(trainer)]
    config = trainer.parts.config.training
    assert trainer.parts.schedule.total == 40
    assert rates == [LearningRateSchedule(config, 40, 7).rate(step) for step in (3, 7, 11)]


def poisoned(columns, split, value):
    rows = columns.indices_of(split)
    row = rows[columns.masks["energy"][rows]][0]
    targets = {**columns.targets, "energy": columns.targets["energy"].copy()}
    targets["energy"][row] = value
    return replace(columns, targets=targets)


def test_a_nan_target_diverges_in_its_epoch_and_leaves_no_weights(train, columns, tmp_path):
    trainer = train(columns=poisoned(columns, "train", np.nan))
    with pytest.raises(Diverged, match=r"^epoch 1, step [1-4]: the gradient of "):
        trainer.run(4, go, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_validation_that_is_not_finite_diverges(train, columns):
    trainer = train(columns=poisoned(columns, "val", np.inf))
    with pytest.raises(Diverged, match=r"^epoch 1: validation MAE .*'energy': inf.* not finite"):
        trainer.run(4, go)
    assert trainer.best == {}


def test_a_head_without_any_validation_target_is_refused(train, columns):
    masks = {**columns.masks, "energy": columns.masks["energy"].copy()}
    masks["energy"][columns.indices_of("val")] = False
    with pytest.raises(DataError, match=r"head 'energy': .*validation split .*; drop the head"):
        train(columns=replace(columns, masks=masks))


def test_counts_are_components_that_a_graph_has(train, columns):
    trainer = train(conv="painn", heads={"energy": {}, "charge": {}, "push": {}})
    counts = trainer.parts.stepper.counts
    nodes = columns.num_nodes()
    assert counts["energy"].tolist() == [int(graph % 5 != 0) for graph in range(len(nodes))]
    assert counts["charge"].tolist() == [sum(i % 3 != 0 for i in range(n)) for n in nodes]
    assert counts["push"].tolist() == (3 * nodes).tolist()


def test_the_seed_of_the_trial_and_nothing_else_decides_weights_and_order(train):
    torch.manual_seed(99)
    one = train(seed=4)
    torch.manual_seed(1)
    same = train(seed=4)
    other = train(seed=5)
    assert torch.equal(weights(one), weights(same))
    assert not torch.equal(weights(one), weights(other))
    assert [each.tolist() for each in one.parts.order.steps(0)] != [
        each.tolist() for each in other.parts.order.steps(0)
    ]
    one.run(2, go)
    torch.rand(3)  # a training draws nothing from torch's global generator
    same.run(2, go)
    assert torch.equal(weights(one), weights(same))


@pytest.fixture
def taught(train, tmp_path):
    """A trained trial's checkpoint, and its trunk."""
    trainer = train(heads={"charge": {}}, seed=8)
    trainer.run(2, go, tmp_path)
    trainer.load_best_weights()
    return tmp_path / "best.safetensors", dict(trainer.parts.model.trunk.named_parameters())


@pytest.mark.parametrize("frozen", [False, True])
def test_a_trunk_is_taken_over(train, taught, frozen):
    path, trunk = taught
    trainer = train(seed=1, start_from=str(path), freeze_trunk=frozen, balance="uncertainty")
    heads = [p.detach().clone() for p in trainer.parts.model.heads.parameters()]
    for name, parameter in trainer.parts.model.trunk.named_parameters():
        assert torch.equal(parameter, trunk[name])
    trainer.run(2, go)
    moved = [not torch.equal(p, trunk[n]) for n, p in trainer.parts.model.trunk.named_parameters()]
    assert not any(moved) if frozen else all(moved)
    pairs = zip(trainer.parts.model.heads.parameters(), heads, strict=True)
    assert all(not torch.equal(now, before) for now, before in pairs)
    assert trainer.parts.model.log_variances.abs().min() > 0


def test_a_trunk_of_another_shape_is_refused(train, taught):
    path, _ = taught
    with pytest.raises(ConfigError, match="start_from: the trunk in .* has another shape"):
        train(start_from=str(path), model={"layers": 2})
    with pytest.raises(ConfigError, match="training.start_from: .*none.safetensors"):
        train(start_from=str(path.parent / "none.safetensors"))


def test_freezing_needs_something_learned(train):
    with pytest.raises(ValueError, match="freeze_trunk keeps a trunk that has learned nothing"):
        train(freeze_trunk=True)


def entries(trainer, until):
    """Count how often control enters the trainer's file from another, by calls and by returns."""
    place = sys.modules[type(trainer).__module__].__file__
    moves = []

    def watch(frame, event, _):
        inside = frame
        outside = frame.f_back
        if event == "return":
            inside, outside = outside, inside
        if event in ("call", "return") and inside and outside:
            files = (inside.f_code.co_filename, outside.f_code.co_filename)
            moves.append(files[0] == place != files[1])

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        trainer.run(until, go)
    finally:
        sys.setprofile(before)
    return sum(moves)


def test_an_epoch_is_read_without_coming_back_to_the_trainer_all_the_time(train):
    trainer = train(epochs=6)
    trainer.run(1, go)
    one = entries(trainer, 2)
    assert entries(trainer, 4) - one <= 15, "more than a reader follows"


def weighted(columns, weight, energy):
    """The columns with a weight for every second structure, which has another energy."""
    half = np.arange(columns.num_graphs) % 2 == 1
    energies = np.where(half[:, None], energy, columns.targets["energy"])
    stats = {**columns.stats, "attributes": {"w": {"mean": 1.0, "std": 1.0, "min": 0.0}}}
    made = {"w": np.where(half, weight, 1.0)}
    targets = {**columns.targets, "energy": energies}
    return replace(columns, attributes=made, targets=targets, stats=stats)


def test_structures_of_weight_0_teach_nothing(train, columns):
    def learned(weight, energy):
        heads = {"energy": {}}
        trainer = train(weighted(columns, weight, energy), heads=heads, weight_by="w")
        trainer.run(2, go)
        return weights(trainer)

    assert torch.equal(learned(0.0, 7.0), learned(0.0, -50.0))
    assert not torch.equal(learned(0.5, 7.0), learned(0.5, -50.0))
