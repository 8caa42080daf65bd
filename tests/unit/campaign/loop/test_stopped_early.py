"""Stopping rules inside a campaign: who is ended, what it costs, and what a restart knows."""

import pytest
from unit.campaign.loop.test_controller import Ran, campaign
from unit.campaign.stub_backend import StubBackend

from hydragnn_hpo.campaign.loop.attempts import rule_of
from hydragnn_hpo.campaign.loop.book import Book

RULED = {"trials": 16, "rungs": [12], "finalists": 2, "grace": 3}


@pytest.fixture(params=["median", "curve"])
def ran(request, tmp_path):
    return Ran(tmp_path, campaign(**RULED, stop_rule=request.param), StubBackend())


def test_the_worse_are_ended_before_their_rung_and_the_best_is_not(ran):
    rule = ran.config.search.stop_rule
    ended = [t for t in ran.state.trials.values() if t.reason == rule]
    rest = [t for t in ran.state.trials.values() if t not in ended]
    assert ended
    assert all(t.status == "stopped" and 3 <= t.epoch < 12 for t in ended)
    assert {(t.reason, t.epoch) for t in rest} == {(None, 12)}
    assert min(ran.state.trials.values(), key=lambda t: t.values["x"]) in rest
    asked = {e["trial"]: e["why"] for e in ran.events("asked")}
    assert set(asked) == {t.name for t in ended}
    assert all("epochs" in why for why in asked.values())


def test_a_later_controller_knows_what_an_earlier_one_saw(ran):
    book = Book(ran.run.journal, 99, lambda: 0.0)
    try:
        rule = rule_of(ran.config, book)
        verdicts = [rule.observe("late", epoch, 9.0, until=12) for epoch in range(1, 8)]
    finally:
        book.close()
    assert any(verdicts)


def test_without_a_rule_all_come_to_their_rung(tmp_path):
    ran = Ran(tmp_path, campaign(**RULED), StubBackend())
    assert {t.epoch for t in ran.state.trials.values()} == {12}
