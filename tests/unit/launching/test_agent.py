"""How long an agent looks for a controller, by a clock that the test sets."""

from types import SimpleNamespace

import pytest

from hydragnn_hpo.launching import agent
from hydragnn_hpo.launching.agent import Session
from hydragnn_hpo.launching.link import ControllerAddress

LEASE = 10.0
PATIENCE = 120.0
"""Twelve leases, see ``_GIVE_UP_LEASES``."""


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(agent, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.fixture
def session(clock, monkeypatch, tmp_path) -> Session:
    """Return the session of an agent that knows a controller, which has gone."""
    gone = ControllerAddress("127.0.0.1", 1, epoch=1, lease_seconds=LEASE, run="tag")
    monkeypatch.setattr(agent, "_await_address", lambda host, run: gone)
    return Session("h1", "life", tmp_path)


def search(session, clock, seconds) -> bool:
    """Take turns for some seconds; return whether the agent still looks for a controller."""
    end = clock.now + seconds
    while clock.now < end:
        clock.now += 1.0
        if not session.connect(tuple):
            return False
    return True


def test_an_agent_gives_up_when_no_controller_answers(session, clock):
    assert search(session, clock, PATIENCE - 1.0)
    assert not search(session, clock, 2.0)


def test_time_in_which_an_agent_is_stopped_does_not_count(session, clock):
    """Or a job that ``scontrol suspend`` stopped for minutes cancels itself when it is resumed."""
    assert search(session, clock, 50.0)
    clock.now += 3600.0
    assert search(session, clock, PATIENCE - 50.0 - LEASE - 2.0)
    assert not search(session, clock, LEASE + 4.0)
