"""What attempts tell, whatever it is, and what becomes of it."""

import math

import pytest
from unit.campaign.stub_backend import StubBackend
from unit.campaign.stub_campaign import Killed, Ran, asking, campaign

from hydragnn_hpo.campaign.attempts import replay_stop_rule
from hydragnn_hpo.campaign.event_store import EventStore
from hydragnn_hpo.campaign.journal import read_journal
from hydragnn_hpo.campaign.state import fold

HUGE = 10**400


class Scribbling(StubBackend):
    """One trial is a command that writes what it likes into its records."""

    def scribble(self, record, words):
        self.record, self.words = record, words
        return self

    def _tell(self, kind, job, **data):
        if kind == "record" and data["record"] == self.record and job.startswith("t0001."):
            data |= self.words
        super()._tell(kind, job, **data)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ("epoch", {"energy": 5.0}),
        ("epoch", {"energy": {"cpu": {"train": math.inf}}}),
        ("epoch", {"train_seconds": math.nan}),
        ("epoch", {"train_seconds": 1e308, "val_seconds": 1e308}),
        ("epoch", {"epoch": HUGE}),
        ("epoch", {"objective": [1.0], "best_objective": "good"}),
        ("first_step", {"time": math.inf}),
        ("checkpoint", {"epoch": math.inf}),
        ("checkpoint", {"epoch": HUGE}),
        ("checkpoint", {"step": math.inf}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_whatever_a_command_writes_its_campaign_ends_and_can_be_read_again(tmp_path, record, words):
    killed = iter([True])

    def fate(trial, attempt, epoch):
        return "killed" if trial == "t0001" and epoch == 2 and next(killed, None) else None

    backend = Scribbling(fate=fate).scribble(record, words)
    ran = Ran(tmp_path, campaign(trials=8, rungs=[3], stop_rule="median", grace=1), backend)
    assert len(ran.state.ranked()) == 8
    again = fold(read_journal(ran.run.journal)).trials["t0001"]
    assert vars(again) == vars(ran.state.trials["t0001"])
    assert again.joules == 0.0
    assert Ran(tmp_path, ran.config, StubBackend()).backend.started == []


@pytest.mark.parametrize(
    ("energy", "joules"),
    [
        ({"train": {"host": 100.0, "accelerator": 60.0}, "val": {"host": 10.0, "cpu": 4.0}}, 110.0),
        ({"train": {"cpu": 20.0, "accelerator": 60.0}, "val": {"cpu": 2.0}}, 82.0),
    ],
    ids=["whole hosts", "parts"],
)
def test_a_counter_of_the_whole_host_stands_alone(tmp_path, energy, joules):
    """Cray's ``energy`` holds its ``accelN_energy``: see ``training.energy.PARTS``."""
    backend = Scribbling().scribble("epoch", {"energy": energy})
    state = Ran(tmp_path, campaign(rungs=[3]), backend).state
    assert state.trials["t0001"].joules == pytest.approx(3 * joules)


@pytest.mark.parametrize("words", [{"objective": HUGE}, {"val_mae": {"energy": HUGE}}])
def test_a_number_without_end_in_a_result_is_none(tmp_path, words):
    class Boasting(StubBackend):
        def _write(self, faked, result):
            super()._write(faked, result | (words if faked.job.id == "t0001.1" else {}))

    trial = Ran(tmp_path, campaign(), Boasting()).state.trials["t0001"]
    if "objective" in words:
        assert (trial.status, trial.reason) == ("failed", "bug")
    else:
        assert (trial.status, trial.val_mae) == ("stopped", {})


class Busy(StubBackend):
    """A trial that is at its last epoch and never comes to look for wishes."""

    def ask(self, job_id, wish):
        self.last_request = wish


def begun(state):
    return bool(state.trials) and state.trials["t0000"].status == "running"


def test_a_person_does_not_wait_for_a_yield_that_never_comes(tmp_path):
    cancel = asking((lambda state: bool(backend.last_request), "cancel", {"trial": "t0000"}))
    backend = Busy(fate=lambda trial, attempt, epoch: "frozen" if trial == "t0000" else None)
    backend.last_request = None

    def watch(state, controller):
        if begun(state):
            controller.attempts.ask(state.trials["t0000"], "resized", width=2)
        cancel(state, controller)

    trial = Ran(tmp_path, campaign(), backend, watch=watch).state.trials["t0000"]
    assert (backend.last_request, trial.status, trial.attempt) == ("yield", "cancelled", 1)


class Deadly(StubBackend):
    def ask(self, job_id, wish):
        raise Killed


def dead(folder, config):
    """Leave a campaign whose controller died between the note of a wish and the wish."""

    def watch(state, controller):
        if begun(state):
            controller.attempts.ask(state.trials["t0000"], "resized", width=2)

    backend = Deadly(fate=lambda trial, attempt, epoch: "frozen")
    with pytest.raises(Killed):
        Ran(folder, config, backend, watch=watch)
    return backend


def test_what_a_lost_controller_noted_and_did_not_ask_is_requested_by_its_heir(tmp_path):
    config = campaign()
    heir = StubBackend()
    heir.running["t0000.1"] = dead(tmp_path, config).running["t0000.1"]
    heir._tell("adopted", "t0000.1")
    ran = Ran(tmp_path, config, heir)
    (first, *_) = [e for e in ran.events("ended") if e["trial"] == "t0000"]
    assert (first["outcome"], first["reason"]) == ("interrupted", "resized")


def test_what_is_not_waited_for_is_ended_when_it_comes_back(tmp_path):
    """The ensemble of a lost controller would go on beside that of its heir."""
    config = campaign()
    heir = StubBackend()
    dead(tmp_path, config)
    stopped = []
    heir.stop = lambda job, grace: stopped.append(job)
    heir._tell("adopted", "ensemble.1.1")
    Ran(tmp_path, config, heir)
    assert stopped == ["ensemble.1.1"]


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
    requests = {e["trial"]: e["why"] for e in ran.events("asked")}
    assert set(requests) == {t.name for t in ended}
    assert all("epochs" in why for why in requests.values())


def test_a_later_controller_knows_what_an_earlier_one_saw(ran):
    event_store = EventStore(ran.run.journal, 99, lambda: 0.0)
    try:
        rule = replay_stop_rule(ran.config, event_store)
        verdicts = [rule.observe("late", epoch, 9.0, until=12) for epoch in range(1, 8)]
    finally:
        event_store.close()
    assert any(verdicts)
