"""Jobs that are not trials: one whose host is lost is sent to another."""

import json
import time

import pytest
from unit.campaign.loop.test_controller import campaign
from unit.campaign.stub_backend import StubBackend

from hydragnn_hpo.campaign.loop.controller import Controller
from hydragnn_hpo.campaign.setup import open_run
from hydragnn_hpo.config.trial import DISK_FULL, STALE
from hydragnn_hpo.errors import ConfigError, JobError
from hydragnn_hpo.launching.job import Event

KILLED = -9


class Sent(StubBackend):
    """Ends each errand at once, as ``ends`` says: with a code, or with an answer."""

    def __init__(self, ends, hosts=4, **more):
        super().__init__(hosts=hosts, **more)
        self.ends = list(ends)

    def start(self, job):
        self.started.append(job)
        end = self.ends.pop(0)
        if isinstance(end, dict):
            with open(job.spec["answer"], "x") as file:
                json.dump(end, file)
        codes = [end if isinstance(end, int) else 0]
        told = {"codes": codes, "first": 0, "signal_sent": False, "error": None, "away": []}
        self.events.append(Event("ended", job.id, time.time(), told))

    @property
    def used(self):
        return [slot.host for job in self.started for slot in job.slots]


@pytest.fixture
def sent(tmp_path):
    """Give what an errand answers, sent by a controller to such a backend."""
    config = campaign()

    def send(backend):
        run = open_run(config, tmp_path / "run")
        controller = Controller(config, run, cards={}, make_backend=lambda: backend)
        try:
            return controller.job("ensemble", {})
        finally:
            controller.close()

    return send


def test_an_errand_whose_host_is_lost_is_sent_to_another_host(sent):
    backend = Sent([KILLED, STALE, {"members": 3}])
    assert sent(backend) == {"members": 3}
    assert len(set(backend.used)) == 3
    assert len({job.lease for job in backend.started}) == 3, "a host that thaws holds no lease"


def test_an_errand_goes_to_the_same_host_again_where_there_is_no_other(sent):
    backend = Sent([KILLED, {"members": 3}], hosts=1)
    assert sent(backend) == {"members": 3}


def test_an_errand_is_given_up_once_three_were_lost(sent):
    backend = Sent([KILLED, KILLED, KILLED, {"members": 3}])
    with pytest.raises(JobError, match="ended without an answer"):
        sent(backend)
    assert len(backend.started) == 3


@pytest.mark.parametrize("code", [1, DISK_FULL])
def test_an_errand_that_failed_by_itself_is_not_sent_again(sent, code):
    backend = Sent([code, {"members": 3}])
    with pytest.raises(JobError, match="ended without an answer"):
        sent(backend)
    assert len(backend.started) == 1


def test_an_error_that_an_errand_answers_is_for_the_user_at_once(sent):
    backend = Sent([{"error": "no trial is left to choose from."}, {"members": 3}])
    with pytest.raises(ConfigError, match="no trial is left"):
        sent(backend)
    assert len(backend.started) == 1


def test_an_answer_counts_even_if_its_host_died_after_it(sent, tmp_path):
    class Late(Sent):
        def start(self, job):
            super().start(job)
            event = self.events.pop()
            self.events.append(
                Event("ended", job.id, event.time, {**event.data, "codes": [KILLED]})
            )

    backend = Late([{"members": 3}, {"members": 4}])
    assert sent(backend) == {"members": 3}
    assert not list((tmp_path / "run").glob(".ensemble*")), "nothing is left behind"
