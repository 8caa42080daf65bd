"""Hosts and files that come and go: a campaign waits or drains, and no trial is at fault."""

import errno
import json
import os
import signal

import pytest
from unit.campaign.stub_backend import StubBackend
from unit.campaign.stub_campaign import Ran, campaign, events_of

from hydragnn_hpo.campaign import attempts as attempts_module
from hydragnn_hpo.campaign import controller as controller_module
from hydragnn_hpo.campaign.attempts import Attempts
from hydragnn_hpo.campaign.outcome import read_outcome
from hydragnn_hpo.campaign.setup import check_stores
from hydragnn_hpo.campaign.shutdown import Drained
from hydragnn_hpo.campaign.trial_kind import CommandTrials
from hydragnn_hpo.config import FILES_AWAY, PEER_LOST, STORE_VERSION
from hydragnn_hpo.errors import JobError, RunError, StorageError
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.leases import DRAINED, RANK_LEASE_LAPSED, read_release_reason


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(attempts_module, "PATIENCE_SECONDS", 0.1)


@pytest.fixture
def trainings(monkeypatch):
    """Judge attempts as those of trainings: codes of a command are its own."""
    monkeypatch.setattr(
        CommandTrials, "read_end", lambda _, attempt, *, until: read_outcome(attempt)
    )


class Flapping(StubBackend):
    """Hosts that are lost all together, so many times, and come back at once."""

    def flap(self, times):
        self.left = times
        return self

    def poll(self, timeout):
        if self.left and self.running and not self.gone:
            self.left -= 1
            for host in sorted({slot.host for slot in self.slots}):
                self.lose(host, "was not heard of for 10 s")
        elif self.gone and not any(e.kind == "host_lost" for e in self.events):
            for host in sorted(self.gone):
                names = [f"{host}:{n}" for n in range(self.slots_per_host)]
                self._tell("host_joined", None, host=host, slots=names)
            self.gone.clear()
        return super().poll(timeout)


def test_a_network_that_flaps_speaks_against_neither_trials_nor_hosts(tmp_path):
    """Each trial is lost oftener than ``max_restarts``, each host oftener than it may fail."""
    backend = Flapping(hosts=3).flap(7)
    ran = Ran(tmp_path, campaign(max_restarts=1, max_failures=1), backend)
    assert backend.left == 0
    assert len(ran.state.with_status("stopped")) == 6
    assert ran.state.hosts.quarantined == {}
    assert len([e for e in ran.events("host_lost")]) == 21
    excused = [e for e in ran.events("ended") if e["reason"] == "host_lost"]
    assert excused
    assert all(e["excused"] for e in excused)


def test_hosts_that_are_lost_each_at_its_time_are_still_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("hydragnn_hpo.campaign.state.AT_ONCE_SECONDS", -1.0)
    ran = Ran(tmp_path, campaign(trials=12), Flapping(hosts=3).flap(3))
    assert len(ran.state.hosts.quarantined) == 2, "all but the last"


class Ending(StubBackend):
    """Every job ends with the same codes, as long as a test says."""

    codes = (1,)
    width = 1
    first = None

    def _move(self, faked):
        if self.codes:
            self._end(faked, list(self.codes), first=self.first)
        else:
            super()._move(faked)


def test_a_starved_host_whose_leases_lapse_makes_no_trial_fail(tmp_path):
    def recover(state, controller):
        if sum(trial.attempt for trial in state.trials.values()) > 12:
            backend.codes = ()

    backend = Ending()
    backend.codes = (RANK_LEASE_LAPSED,)
    ran = Ran(tmp_path, campaign(max_restarts=1, max_failures=1), backend, watch=recover)
    assert len(ran.state.with_status("stopped")) == 6
    assert ran.state.hosts.failures == {}


def test_ranks_that_lose_each_other_are_not_alike(tmp_path, trainings):
    """The network between them is no bug that three trials share."""
    backend = Ending()
    backend.codes = (PEER_LOST,)
    backend.first = 0
    with pytest.raises(JobError, match="no trial has a result"):
        Ran(tmp_path, campaign(max_restarts=1), backend)
    failed = [e for e in events_of(tmp_path / "run", "ended") if e["outcome"] == "failed"]
    assert len(failed) == 6
    assert "lost each other 2 times in a row" in failed[0]["message"]


def test_a_campaign_whose_last_host_can_start_nothing_drains_where_others_were_lost(tmp_path):
    backend = StubBackend(hosts=2, fate=lambda trial, attempt, epoch: "frozen")

    def watch(state, controller):
        if state.count("running") and not backend.gone:
            backend.lose("h1")
        elif state.hosts.lost:
            backend._tell(
                "zygote_lost", None, host="h0", error="no module named torch; install it."
            )

    with pytest.raises(Drained, match="no module named torch"):
        Ran(tmp_path, campaign(), backend, watch=watch)
    assert read_release_reason(tmp_path / "run") == DRAINED


def test_files_out_of_reach_fail_no_trial_and_drain_at_last(tmp_path, monkeypatch, trainings):
    monkeypatch.setattr(controller_module, "HOST_SECONDS", 0.5)
    backend = Ending()
    backend.codes = (FILES_AWAY,)
    with pytest.raises(Drained, match="no trial could reach its files"):
        Ran(tmp_path, campaign(max_restarts=1, max_failures=1), backend)
    assert read_release_reason(tmp_path / "run") == DRAINED
    ran = Ran(tmp_path, campaign(max_restarts=1, max_failures=1), StubBackend())
    assert len(ran.state.with_status("stopped")) == 6
    assert {e["reason"] for e in ran.events("ended")} == {"files_away", None}


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError])
def test_a_run_directory_that_goes_away_drains_its_campaign(tmp_path, monkeypatch, error):
    """A mount that is gone shows no result: an end that is read now would lose one."""
    run = tmp_path / "run"
    stat = os.stat
    end = Attempts.end

    def deny(path, *args, **values):
        if str(run) in str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, *args, **values)

    with monkeypatch.context() as patch:

        def lose_mount(*args, **values):
            if error is FileNotFoundError:
                run.rename(tmp_path / "elsewhere")
            else:
                patch.setattr(os, "stat", deny)
            end(*args, **values)

        patch.setattr(Attempts, "end", lose_mount)
        with pytest.raises(Drained, match="is out of reach"):
            Ran(tmp_path, campaign(), StubBackend())
    if error is FileNotFoundError:
        (tmp_path / "elsewhere").rename(run)
        (run / "controller/000001.lease").write_text("{}")  # its process would be gone
    assert len(Ran(tmp_path, campaign(), StubBackend()).state.with_status("stopped")) == 6


def test_a_trial_that_failed_in_a_later_attempt_does_not_break_the_next_run(tmp_path):
    """Its epochs are known, so that it has a price, and a configuration to learn it by."""

    failing = set()

    def fate(trial, attempt, epoch):
        if attempt == 2 and not failing:
            failing.add(trial)
        return "bad_config" if trial in failing else None

    config = campaign(rungs=[2, 4])
    first = Ran(tmp_path, config, StubBackend(fate=fate))
    (trial,) = first.state.with_status("failed")
    assert (failing, trial.attempt) == ({trial.name}, 2)
    assert list(trial.rung_scores) == [2], "it was promoted before"
    again = Ran(tmp_path, config, StubBackend())
    assert [t.name for t in again.state.with_status("failed")] == [trial.name]


def test_a_store_of_another_version_is_refused_before_anything_starts(tmp_path):
    run = RunDir(tmp_path)
    store = run.store("x")
    store.mkdir(parents=True)
    (store / "index.json").write_text(json.dumps({"version": STORE_VERSION}))
    check_stores(run, ["x", "not_built_yet"])
    for content in ({"version": STORE_VERSION + 1}, {}, []):
        (store / "index.json").write_text(json.dumps(content))
        with pytest.raises(RunError, match=r"x\.bp: is a graph store of version .* --run\.$"):
            check_stores(run, ["x"])
    (store / "index.json").write_text("{")
    with pytest.raises(StorageError, match="is damaged"):
        check_stores(run, ["x"])


@pytest.mark.parametrize("number", ["SIGSEGV", "SIGBUS", "SIGABRT"])
def test_a_program_that_crashes_twice_is_a_bug_and_no_host_is_blamed(tmp_path, trainings, number):
    backend = Ending(hosts=3)
    backend.codes = (-int(signal.Signals[number]),)
    backend.first = 0
    with pytest.raises(JobError, match=rf"^3 trials failed alike.* crashed .*{number}"):
        Ran(tmp_path, campaign(), backend)
    ended = events_of(tmp_path / "run", "ended")
    assert [e["reason"] for e in ended if e["trial"] == "t0000"] == ["crashed", "bug"]
    assert not [e for e in events_of(tmp_path / "run") if "failed" in e["event"]]
