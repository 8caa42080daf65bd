"""A terminal that changes its size at a bad moment."""

from types import SimpleNamespace

import pytest

from hydragnn_hpo.cli import watch_run
from hydragnn_hpo.cli.watch_run import wait


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Let time pass only while somebody sleeps."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)

    def sleep(seconds):
        clock.now += seconds

    clock.sleep = sleep
    monkeypatch.setattr(watch_run, "time", clock)


def test_a_size_that_came_while_it_was_drawn_is_drawn_once():
    """Between the picture and the waiting: else the old size stands until the next look."""
    console = SimpleNamespace(size=(132, 40))
    picture = SimpleNamespace(drawn_for=(80, 24))
    drawn = []

    def redraw():
        drawn.append(console.size)
        picture.drawn_for = console.size

    wait(redraw, picture, console, 0.12)
    assert drawn == [(132, 40)]


def test_a_size_that_stays_is_not_drawn_again():
    drawn = []
    wait(
        lambda: drawn.append(1),
        SimpleNamespace(drawn_for=(80, 24)),
        SimpleNamespace(size=(80, 24)),
        0.12,
    )
    assert drawn == []
