"""A person stops a campaign: nothing new begins, whatever the brain or a crash does meanwhile."""

import pytest
from unit.campaign.loop.test_controller import Ran, asking, campaign
from unit.campaign.stub_backend import StubBackend

from hydragnn_hpo.campaign.loop import steering
from hydragnn_hpo.campaign.loop.steering import Steering
from hydragnn_hpo.campaign.loop.thinker import Thinker


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(steering, "LOOK_SECONDS", 0.0)


def test_what_the_brain_proposes_later_is_left(tmp_path, monkeypatch):
    """It was asked before the stop and answers after it, while a trial still runs."""
    holding, stopped, answer = [], [], Thinker.answer

    def held(self, wait=False):
        return answer(self, wait) if stopped or not holding else None

    def watch(state, controller):
        if state.count("stopped") > 2 and controller.proposals.thinker.asking:
            holding.append(True)
        if state.ending:
            stopped.append(len(state.trials))
        wish(state, controller)

    def fate(trial, attempt, epoch):
        return "frozen" if trial == "t0000" and len(stopped) < 5 else None

    monkeypatch.setattr(Thinker, "answer", held)
    wish = asking((lambda state: holding and not state.count("queued"), "stop", {}))
    ran = Ran(tmp_path, campaign(trials=50), StubBackend(fate=fate), watch=watch)
    assert len(ran.state.trials) == stopped[0]


def test_a_stop_that_a_crash_interrupts_is_obeyed_by_the_next_controller(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def drop(self, trial, why, **more):
        if self.book.state.count("cancelled"):
            raise Killed
        dropped(self, trial, why, **more)

    dropped = Steering._drop
    config = campaign(trials=60)
    enough = asking((lambda state: state.count("queued") > 8, "stop", {}))
    monkeypatch.setattr(Steering, "_drop", drop)
    with pytest.raises(Killed):
        Ran(tmp_path, config, StubBackend(slots_per_host=12), watch=enough)
    monkeypatch.setattr(Steering, "_drop", dropped)
    ran = Ran(tmp_path, config, StubBackend(hosts=1, slots_per_host=1))
    assert ran.state.ending
    assert ran.state.count("cancelled") > 5, "those that waited are cancelled"
