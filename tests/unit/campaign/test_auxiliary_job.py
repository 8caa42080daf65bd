"""Jobs that are not trials: one whose host is lost is sent to another."""

import errno
import json
import os
import time

import pytest
from unit.campaign.stub_backend import StubBackend
from unit.campaign.stub_campaign import campaign, events_of

from hydragnn_hpo.campaign import auxiliary_job
from hydragnn_hpo.campaign.controller import Controller
from hydragnn_hpo.campaign.setup import open_run
from hydragnn_hpo.campaign.shutdown import Drained, ShutdownRequest
from hydragnn_hpo.config.trial_config import DISK_FULL, OUT_OF_MEMORY, STALE
from hydragnn_hpo.errors import ConfigError, JobError, StorageError, answer_of
from hydragnn_hpo.launching.job import Event
from hydragnn_hpo.leases import DRAINED, PAUSED, RANK_LEASE_LAPSED, read_release_reason

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
        fields = {"codes": codes, "first": 0, "signal_sent": False, "error": None, "away": []}
        self.events.append(Event("ended", job.id, time.time(), fields))

    @property
    def used(self):
        return [slot.host for job in self.started for slot in job.slots]


@pytest.fixture
def sent(tmp_path):
    """Return what an errand answers, sent by a controller to such a backend."""
    config = campaign()

    def send(backend):
        run = open_run(config, tmp_path / "run")
        controller = Controller(config, run, cards={}, make_backend=lambda: backend)
        try:
            return controller.job("ensemble", {})
        finally:
            controller.close()

    return send


@pytest.mark.parametrize(
    ("hosts", "codes"),
    [
        (4, [KILLED, STALE]),
        (1, [KILLED]),
        (1, [os.EX_OSERR, os.EX_OSERR]),
        (1, [os.EX_CANTCREAT, os.EX_CANTCREAT]),
        (1, [RANK_LEASE_LAPSED, RANK_LEASE_LAPSED]),
        (4, [1]),
    ],
)
def test_an_errand_that_its_host_cost_is_sent_to_another_host_where_there_is_one(
    sent, hosts, codes
):
    class Leaving(Sent):
        def start(self, job):
            super().start(job)
            left_over = job.log.parent / ".ensemble.1.0.lease.ranks"  # as launchers leave it
            left_over.mkdir(exist_ok=True)
            (left_over / "0.started").touch()

    backend = Leaving([*codes, {"members": 3}], hosts=hosts)
    assert sent(backend) == {"members": 3}
    assert len(set(backend.used)) == min(hosts, len(codes) + 1)


def test_an_errand_is_given_up_once_three_were_lost(sent):
    backend = Sent([KILLED, KILLED, KILLED, {"members": 3}])
    with pytest.raises(JobError, match="ended without an answer"):
        sent(backend)
    assert len(backend.started) == 3


def test_an_errand_that_took_too_much_memory_says_so(sent, caplog):
    with pytest.raises(JobError, match="killed by the kernel, as the memory of its host"):
        sent(Sent([OUT_OF_MEMORY] * 3))
    again = "the ensemble job was killed, as memory had run out; it is sent again."
    assert caplog.messages.count(again) == 2, "the third time it is given up"


@pytest.mark.parametrize(
    ("code", "error", "pattern"),
    [
        (1, JobError, "ended without an answer"),
        (DISK_FULL, StorageError, "because the disk is full; make room, then run the same command"),
    ],
)
@pytest.mark.parametrize(("hosts", "starts"), [(4, 2), (1, 1)])
def test_an_errand_that_failed_by_itself_is_tried_on_one_other_host(
    sent, code, error, pattern, hosts, starts
):
    backend = Sent([code, code, {"members": 3}], hosts=hosts)
    with pytest.raises(error, match=pattern):
        sent(backend)
    assert len(set(backend.used)) == len(backend.started) == starts


def test_an_error_of_a_disk_is_one_of_its_host_until_another_has_it_too(sent):
    error = {"error": "/tmp: cannot be written (No space left on device); make room."} | {
        "storage": True
    }
    assert sent(Sent([error, {"members": 3}])) == {"members": 3}
    backend = Sent([error, error, {"members": 3}])
    with pytest.raises(StorageError, match="No space left"):
        sent(backend)
    assert len(backend.started) == 2
    answers = answer_of(StorageError("full.")), answer_of(ConfigError("wrong."))
    assert [one.get("storage") for one in answers] == [True, None]


def test_an_error_that_an_errand_answers_is_for_the_user_at_once(sent):
    backend = Sent([{"error": "no trial is left to choose from; run more."}, {"members": 3}])
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


def test_an_answer_that_a_file_server_shows_late_is_waited_for(sent):
    class Slow(Sent):
        """Shows the answer some polls after the rank ended."""

        polls = 0

        def start(self, job):
            super().start(job)
            os.rename(job.spec["answer"], job.spec["answer"] + "~")

        def poll(self, timeout):
            self.polls += 1
            if self.started and self.polls == 8:
                file = self.started[-1].spec["answer"]
                os.rename(file + "~", file)
            return super().poll(timeout)

    backend = Slow([{"members": 3}])
    assert sent(backend) == {"members": 3}
    assert len(backend.started) == 1


def test_an_answer_that_never_shows_is_not_waited_for_without_end(sent, monkeypatch):
    monkeypatch.setattr(auxiliary_job, "LATE_SECONDS", 0.05)
    with pytest.raises(JobError, match="ended without an answer"):
        sent(Sent([0, 0, 0]))


class Busy(StubBackend):
    """Errands never end; trials do."""

    def start(self, job):
        if job.kind == "command":
            super().start(job)
        else:
            self.started.append(job)


@pytest.fixture
def ensemble(tmp_path):
    """Run a campaign with a backend to its errand, which ``meanwhile`` is to end."""
    config = campaign()

    def build(backend, meanwhile, pause=None):
        run = open_run(config, tmp_path / "run")

        def watch(state, controller):
            if backend.started and backend.started[-1].kind == "ensemble":
                meanwhile(backend)

        controller = Controller(
            config,
            run,
            cards={},
            make_backend=lambda: backend,
            watch=watch,
            pause=pause or ShutdownRequest(),
        )
        try:
            controller.run()
            controller.job("ensemble", {})
        finally:
            controller.close()

    return build


def drain(backend, pause):
    pause.draining = True


def interrupt(backend, pause):
    pause.wanted = True


def end_by_the_clock(backend, pause):
    backend.ends_at = 0.0


def lose_files(backend, pause):
    raise OSError(errno.ESTALE, "Stale file handle", "RUN")


@pytest.mark.parametrize(
    ("meanwhile", "error", "says", "left"),
    [
        (drain, Drained, "the scheduler ends", DRAINED),
        (end_by_the_clock, Drained, "the allocation ends", DRAINED),
        (lose_files, Drained, "Stale file handle", DRAINED),
        (interrupt, KeyboardInterrupt, None, PAUSED),
    ],
)
def test_what_ends_a_campaign_ends_it_during_an_errand_too(
    ensemble, tmp_path, meanwhile, error, says, left
):
    """Others who serve the campaign take over only from one that was drained."""
    pause = ShutdownRequest()
    with pytest.raises(error, match=says):
        ensemble(Busy(), lambda backend: meanwhile(backend, pause), pause)
    assert read_release_reason(tmp_path / "run") == left
    if meanwhile is drain:
        assert events_of(tmp_path / "run", "draining")


def test_hosts_that_are_lost_during_an_errand_are_in_the_journal(ensemble, tmp_path):
    def lose(backend):
        if "h1" not in backend.gone:
            backend.lose("h1")
        elif events_of(tmp_path / "run", "host_lost"):
            backend.ends_at = 0.0

    with pytest.raises(Drained):
        ensemble(Busy(hosts=2), lose)
    assert [e["host"] for e in events_of(tmp_path / "run", "host_lost")] == ["h1"]
