"""Which hosts sum together, which pairs are slow or wrong, and jobs that do not end."""

import itertools
import time
from types import SimpleNamespace

import pytest

from hydragnn_hpo.config.machine import find_profile
from hydragnn_hpo.errors import JobError
from hydragnn_hpo.host_checks import network_probe as module
from hydragnn_hpo.host_checks.doctor_checks import to_exclude
from hydragnn_hpo.host_checks.network_probe import (
    FAR_PAIRS,
    check_pairs,
    choose_pairs,
    run_jobs,
    wait_for_hosts,
)
from hydragnn_hpo.launching.job import Event, Job, Slot

PAIR = ("node1", "node2")


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 17, 128, 8192])
def test_each_host_sums_and_none_with_two_at_a_time(count):
    hosts = [f"n{k}" for k in range(count)]
    rounds = choose_pairs(hosts)
    for pairs in rounds:
        together = list(itertools.chain(*pairs))
        assert len(together) == len(set(together))
    assert {host for pairs in rounds for pair in pairs for host in pair} == set(hosts)
    assert sum(map(len, rounds)) <= count // 2 + 1 + FAR_PAIRS


def test_pairs_are_neighbours_and_far_ones():
    near, far = choose_pairs([f"n{k}" for k in range(6)])
    assert near == [("n0", "n1"), ("n2", "n3"), ("n4", "n5")]
    assert far == [("n0", "n3"), ("n1", "n4"), ("n2", "n5")]
    assert choose_pairs(["a"]) == choose_pairs([]) == []


def answer(rate=2e10, latency=2e-5, wrong=0, networks=("gloo",)):
    return {
        "world": 2,
        "latency_seconds": latency,
        "bandwidth": [
            {"bytes": 2**20, "seconds": 1.0, "bus_bytes_per_second": 0.5 * rate},
            {"bytes": 2**24, "seconds": 1.0, "bus_bytes_per_second": rate},
        ],
        "networks": list(networks),
        "ranks": [{"rank": k, "host": f"node{k + 1}", "wrong": k * wrong} for k in range(2)],
    }


def bad(findings):
    return {(f.check, f.state, f.hosts) for f in findings if f.state != "ok"}


def test_a_pair_far_behind_the_others_is_slow_and_its_host_is_found():
    hosts = [f"n{k}" for k in range(8)]
    pairs = list(itertools.chain(*choose_pairs(hosts)))
    answers = {pair: answer(5e9 if "n5" in pair else 2e10) for pair in pairs}
    findings = check_pairs(answers, {}, find_profile("generic-slurm"))
    slow = {pair for pair in pairs if "n5" in pair}
    assert slow == {("n4", "n5"), ("n1", "n5")}
    assert bad(findings) == {("all-reduce bus bandwidth", "slow", pair) for pair in slow}
    assert list(to_exclude(findings, hosts)) == ["n5"]


def test_pairs_are_not_judged_by_a_guess():
    answers = {(f"a{k}", f"b{k}"): answer(1e6, 1.0) for k in range(8)}
    assert bad(check_pairs(answers, {}, find_profile("generic-slurm"))) == set()


def test_the_speed_of_a_pair_is_given_as_a_share_of_the_wire():
    profile = find_profile("frontier")  # 100 GB/s between hosts at best
    result = {f.check: f.observed for f in check_pairs({PAIR: answer(24e9)}, {}, profile)}
    assert result["all-reduce bus bandwidth"] == "24 GB/s, 24 % of the wire's"


def test_wrong_sums_and_pairs_that_never_met_are_wrong():
    answers = {("a", "b"): answer(wrong=3), ("c", "d"): answer()}
    findings = check_pairs(answers, {("e", "f"): "time was up"}, find_profile("generic-slurm"))
    assert bad(findings) == {
        ("all-reduce sums", "wrong", ("a", "b")),
        ("all-reduce sums", "wrong", ("e", "f")),
    }
    (wrong,) = [f for f in findings if f.hosts == ("a", "b") and f.state == "wrong"]
    assert "rank 1 of host node2" in wrong.observed
    assert wrong.cure


@pytest.mark.parametrize(
    ("used", "wanted", "state"),
    [
        (["AWS Libfabric"], "OFI", "ok"),
        (["Socket"], "AWS Libfabric", "wrong"),
        (["Socket", "AWS Libfabric"], "OFI", "wrong"),
        (["Socket"], "", "ok"),
        (["IB"], "IB", "ok"),
        (["gloo over ib0"], "AWS Libfabric", "ok"),
        ([""], "AWS Libfabric", "unknown"),
    ],
)
def test_another_network_than_the_profile_wants_is_wrong(used, wanted, state):
    profile = find_profile("generic-slurm")
    rank = profile.rank.model_copy(update={"many_hosts": {"NCCL_NET": wanted} if wanted else {}})
    profile = profile.model_copy(update={"rank": rank})
    result = {f.check: f for f in check_pairs({PAIR: answer(networks=used)}, {}, profile)}
    assert result["network used"].state == state


class FakeBackend:
    """Reports the events that a test has put down for it; stopped jobs end, if they may."""

    def __init__(self, *hosts, deaf=False):
        self.slots = tuple(Slot(host, 0, (), "cpu") for host in hosts)
        self.deaf = deaf
        self.events, self.started, self.stopped = [], [], []

    def report(self, kind, job, **data):
        self.events.append(Event(kind, job, time.time(), data))

    def start(self, job):
        self.started.append(job.id)

    def stop(self, job_id, grace=5.0):
        self.stopped.append(job_id)
        if not self.deaf:
            self.report("ended", job_id, codes=[-9])

    def poll(self, timeout):
        events, self.events = self.events, []
        return events


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "END_SECONDS", 0.1)
    monkeypatch.setattr(module, "GATHERING_SECONDS", 0.05)
    monkeypatch.setattr(module, "HOST_SECONDS", 0.1)
    slots = (Slot("a", 0, (), "cpu"),)
    return lambda name: Job(name, "probe", 1, {}, tmp_path / "log", None, slots)


def test_jobs_run_to_their_end(job):
    backend = FakeBackend("a")
    backend.report("started", "one", pids=[1])
    backend.report("ended", "other", codes=[1])
    backend.report("ended", "one", codes=[0])
    backend.report("ended", "two", codes=[1], error="could not run")

    errors = run_jobs(backend, [job("one"), job("two")], 600.0)

    assert backend.started == ["one", "two"]
    assert errors == {"one": None, "two": "could not run"}


def test_a_controller_that_stood_still_stops_its_jobs_before_it_gives_them_up(job, monkeypatch):
    clock = itertools.chain([0.0], itertools.repeat(1e6))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    backend = FakeBackend("a")
    assert run_jobs(backend, [job("slow")], 600.0) == {"slow": "was ended: its time was up"}
    assert backend.stopped == ["slow"]


def test_a_job_that_does_not_even_end_is_given_up(job):
    backend = FakeBackend("a", deaf=True)
    assert "did not end" in run_jobs(backend, [job("stuck")], 0.0)["stuck"]
    assert backend.stopped == ["stuck"]


@pytest.mark.usefixtures("job")
def test_hosts_are_waited_for():
    backend = FakeBackend("a", "a", "b")
    wait_for_hosts(backend, 2)
    wait_for_hosts(backend, 3)  # one does not come: the others begin
    with pytest.raises(JobError, match="no host joined"):
        wait_for_hosts(FakeBackend(), 1)
