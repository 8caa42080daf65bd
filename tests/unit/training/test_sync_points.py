"""When ranks look up: after the first step, then about once a second, never far ahead at once."""

import torch

from hydragnn_hpo.training.ddp import Ranks, SyncPoints

ALONE = Ranks(0, 1, torch.device("cpu"))


class Clock:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def course(seconds_per_step, until, start=0):
    """Return the steps at which a training of some pace looks up."""
    clock = Clock()
    seen = []
    looks = SyncPoints(ALONE, lambda: "go", step=start, clock=clock)
    for step in range(start + 1, until + 1):
        clock.now += seconds_per_step
        if looks.due(step):
            looks.agree(step, save=False)
            seen.append(step)
    return seen, looks


def test_slow_steps_are_all_looked_after():
    assert course(2.0, 5)[0] == [1, 2, 3, 4, 5]


def test_quick_steps_are_looked_after_once_a_second():
    seen, looks = course(0.01, 1000)
    assert seen[:4] == [1, 5, 21, 85], "four times as far each time"
    assert [b - a for a, b in zip(seen[3:], seen[4:], strict=False)] == [100] * (len(seen) - 4)
    assert 0.99 < looks.longest < 1.01


def test_a_resumed_training_counts_its_own_steps_only():
    assert course(0.5, 1010, start=1000)[0] == [1001, 1003, 1005, 1007, 1009]
