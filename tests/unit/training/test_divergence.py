"""Trainings that come to nothing end early and say where; those that recover do not."""

import numpy as np
import pytest
import torch

from hydragnn_hpo.training.divergence import Diverged
from hydragnn_hpo.training.train_state import Progress

from .conftest import go


def judge(guard, course):
    """Let a guard judge a course of one head's errors, in spreads of its target."""
    progress = Progress()
    for progress.epoch, error in enumerate(course, start=1):
        mae = {"energy": 3.0 * error}
        progress.lost = guard.check_objective(error, mae, std={"energy": 3.0}, progress=progress)
        if 3.0 * error < progress.best_val.get("energy", np.inf):
            progress.best_val = mae


@pytest.mark.parametrize(
    "course",
    [
        [1.3, 10.1, 1.4, 43.9, 1.0, 6974.6, 1.0],
        [1999039.2, 85201.3, 200210.7, 8083.5, 3278.4, 4.6, 4.6, 2.1, 1.0],
        [3231.1, 65605.9, 10532136.3, 47.5, 66.7, 418981.6, 1.1, 0.9],
        [1.0, 200.0, 200.0, 1.0, 200.0, 200.0, 1.0],
        [0.01, 90.0, 90.0, 90.0, 90.0],
    ],
)
def test_courses_that_recover_are_left_alone(train, course):
    """The first three were seen, with learning rates of .3 and 1, PaiNN and SchNet."""
    judge(train().parts.guard, course)


def test_an_explosion_is_named_when_it_stays(train):
    pattern = r"^epoch 6: .* of energy exploded from 26.1 to 1.65e\+19, 5\d+ spreads, for 3 epochs"
    with pytest.raises(Diverged, match=pattern):
        judge(train().parts.guard, [9.9e23, 3.1e11, 8.7, 5.4e18, 1.4e18, 5.5e18, 6.1e17])


def blow_up(trainer):
    """After the first epoch, make the heads' answers some million times too large."""

    def blow(kind, **values):
        if kind == "epoch" and values["epoch"] == 1:
            with torch.no_grad():
                for name, weight in trainer.parts.model.named_parameters():
                    if not name.startswith("trunk"):
                        weight *= 1e4

    trainer.on_record.append(blow)


def test_a_trainings_explosion_ends_it_at_the_same_epoch_over_a_break(train, tmp_path):
    settings = {"learning_rate": 1e-12, "weight_decay": 0.0, "epochs": 9}
    unbroken = train(**settings)
    blow_up(unbroken)
    with pytest.raises(Diverged, match=r"^epoch 4: the validation MAE of \w+ exploded"):
        unbroken.run(9, go)
    first = train(**settings)
    blow_up(first)
    first.run(3, go, tmp_path)
    second = train(**settings)
    assert second.resume(tmp_path)
    with pytest.raises(Diverged, match=r"^epoch 4: the validation MAE of \w+ exploded"):
        second.run(9, go)


@pytest.mark.parametrize("living", [(), (2,)])
def test_a_dead_trunk_is_named_unless_any_step_gives_it_a_gradient(train, living):
    trainer = train(epochs=1)
    for parameter in trainer.parts.model.trunk.parameters():
        parameter.register_hook(lambda g: g if trainer.progress.step in living else 0.0 * g)
    if living:
        trainer.run(1, go)
        return
    pattern = (
        r"^epoch 1: in every step the gradient of the whole trunk \(trunk\.\S+ and all others\)"
    )
    with pytest.raises(Diverged, match=pattern):
        trainer.run(1, go)


def test_tiny_gradients_are_alive(train):
    """The square of 1e-30 is 0 in fp32."""
    trainer = train(epochs=1, precision="fp32")
    for parameter in trainer.parts.model.trunk.parameters():
        parameter.register_hook(lambda g: torch.full_like(g, 1e-30))
    trainer.run(1, go)


def test_a_weight_that_no_graph_reads_is_named_when_it_is_not_finite(train):
    """An element that no graph has: neither errors nor gradients show it."""
    trainer = train()
    with torch.no_grad():
        trainer.parts.model.trunk.embedding.weight[-1] = torch.nan
    with pytest.raises(Diverged, match=r"^epoch 1: the weights of trunk.embedding.weight are not"):
        trainer.run(1, go)


def test_all_ranks_decide_by_what_all_have_found(train):
    """Rank 1 of 3 holds the broken part of a sharded weight, rank 2 alone a living gradient."""
    guard = train().parts.guard
    guard.check_weights(np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]), epoch=2)
    names = [name for name, _ in guard.model.named_parameters()]
    with pytest.raises(Diverged, match=f"epoch 2: the weights of {names[1]} are not finite"):
        guard.check_weights(np.array([[1.0, 0.0], [1.0, 2.0], [1.0, 0.0]]), epoch=2)
    with pytest.raises(Diverged, match="epoch 2: in every step"):
        guard.check_weights(np.zeros((3, 2)), epoch=2)
