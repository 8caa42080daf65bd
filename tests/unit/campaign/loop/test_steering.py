"""The controller looks at a wish again: files may be old, or written by hand."""

import logging
import tomllib
from types import SimpleNamespace

import pytest

from hydragnn_hpo.campaign.loop import steering
from hydragnn_hpo.campaign.loop.steering import Steering
from hydragnn_hpo.campaign.requests import write_request
from hydragnn_hpo.campaign.state import State
from hydragnn_hpo.config.campaign import CampaignConfig
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.shipped import shipped


class Book:
    """Notes go to a list and into the state."""

    def __init__(self):
        self.state, self.notes = State(), []

    def note(self, kind, **values):
        self.notes.append((kind, values.get("trial")))
        self.state.apply({"event": kind, "time": 0.0, "epoch": 1, **values})


@pytest.fixture
def steered(tmp_path, monkeypatch):
    """One failed trial, and one whose values never made a trial."""
    monkeypatch.setattr(steering, "LOOK_SECONDS", 0.0)
    book, run = Book(), RunDir(tmp_path)
    for name, reason in (("t0000", "diverged"), ("t0001", "bad_config")):
        book.note("proposed", trial=name, values={}, until=4)
        book.note("ended", trial=name, outcome="failed", reason=reason, message="no.")
    book.notes.clear()
    values = tomllib.loads(shipped("workflows/quickstart.toml").read_text())
    attempts = SimpleNamespace(config=CampaignConfig.model_validate(values), news=False)
    return Steering(run, book, attempts), book, run


def test_a_wish_that_makes_sense_is_obeyed_once(steered):
    steer, book, run = steered
    write_request(run, "retry", trial="t0000")
    steer.turn()
    steer.turn()
    assert book.notes == [("retried", "t0000")]
    assert not list(run.requests.iterdir())


@pytest.mark.parametrize("trial", ["t0001", "t0099"])
def test_one_that_makes_none_is_refused_and_gone(steered, trial, caplog):
    steer, book, run = steered
    write_request(run, "retry", trial=trial)
    with caplog.at_level(logging.WARNING):
        steer.turn()
    assert (book.notes, list(run.requests.iterdir())) == ([], [])
    assert f"refused: {'t0001 cannot run' if trial == 't0001' else 'there is no trial'}" in (
        caplog.text
    )
