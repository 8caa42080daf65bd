"""Jobs of an acceptance: run to their end, or ended when their time is up."""

import itertools
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hydragnn_hpo.campaign.acceptance import bench as module
from hydragnn_hpo.campaign.acceptance.bench import Bench, Site
from hydragnn_hpo.config.campaign import MachineConfig
from hydragnn_hpo.config.machine import find_profile
from hydragnn_hpo.errors import JobError
from hydragnn_hpo.launching.job import Event, Job, Slot


class Told:
    """A backend that says what a test has put down for it; stopped jobs end, if they may."""

    def __init__(self, slots, *, deaf=False):
        self.slots, self.deaf = slots, deaf
        self.events, self.started, self.stopped = [], [], []

    def say(self, kind, job, **data):
        self.events.append(Event(kind, job, time.time(), data))

    def start(self, job):
        self.started.append(job.id)

    def stop(self, job_id, grace=5.0):
        self.stopped.append(job_id)
        if not self.deaf:
            self.say("ended", job_id, codes=[-9])

    def poll(self, timeout):
        told, self.events = self.events, []
        return told


def slot(host, index=0):
    return Slot(host, index, (), "cpu")


def job(name, tmp_path):
    return Job(name, "train", 1, {}, tmp_path / "log", tmp_path / "lease", None, (slot("a"),))


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "END_SECONDS", 0.1)
    monkeypatch.setattr(module, "GATHERING_SECONDS", 0.05)
    monkeypatch.setattr(module, "HOST_SECONDS", 0.1)

    def make(*slots, **options):
        backend = Told(slots or (slot("a"),), **options)
        site = Site(find_profile(), MachineConfig(), tmp_path, 1.0)
        return Bench(site, backend, lambda: None), backend

    return make


def test_jobs_run_to_their_end(made, tmp_path):
    bench, backend = made()
    heard = []
    backend.say("started", "one", pids=[1])
    backend.say("ended", "other", codes=[1])  # of another stage
    backend.say("ended", "one", codes=[0])
    backend.say("ended", "two", codes=[1], error="could not run")

    ended = bench.run([job("one", tmp_path), job("two", tmp_path)], 600.0, heard.append)

    assert backend.started == ["one", "two"]
    assert ended["one"].well
    assert (ended["two"].well, ended["two"].error) == (False, "could not run")
    assert [(event.kind, event.job) for event in heard] == [
        *(("started", "one"), ("ended", "one"), ("ended", "two")),
    ]


def test_a_job_that_takes_too_long_is_ended_and_not_well(made, tmp_path):
    bench, backend = made()
    ended = bench.run([job("slow", tmp_path)], 0.0)["slow"]
    assert backend.stopped == ["slow"]
    assert not ended.well
    assert "time was up" in ended.error


def test_who_was_stopped_meanwhile_ends_its_jobs_before_it_gives_them_up(
    made, tmp_path, monkeypatch
):
    clock = itertools.chain([0.0], itertools.repeat(1e6))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    bench, backend = made()
    ended = bench.run([job("slow", tmp_path)], 600.0)["slow"]
    assert backend.stopped == ["slow"]
    assert "time was up" in ended.error


def test_a_job_that_does_not_even_end_is_given_up(made, tmp_path):
    bench, backend = made(deaf=True)
    ended = bench.run([job("stuck", tmp_path)], 0.0)["stuck"]
    assert backend.stopped == ["stuck"]
    assert ended.codes == ()
    assert "did not end" in ended.error


def test_what_a_killed_acceptance_left_is_stopped(made, tmp_path):
    bench, backend = made()
    backend.say("adopted", "old")
    backend.say("ended", "new", codes=[0])
    bench.run([job("new", tmp_path)], 600.0)
    assert backend.stopped == ["old"]


def test_hosts_are_waited_for(made):
    bench, backend = made(slot("a"), slot("a", 1), slot("b"))
    bench.gather(expected=2)
    bench.gather(expected=3)  # one does not come: the others begin
    assert {host: len(slots) for host, slots in bench.hosts.items()} == {"a": 2, "b": 1}
    backend.slots = ()
    with pytest.raises(JobError, match="no host joined"):
        bench.gather()


def test_no_folder_is_used_twice(made):
    bench, _ = made()
    assert [bench.new_folder("x").name for _ in range(2)] == ["x.001", "x.002"]
    assert isinstance(bench.new_folder("y"), Path)
