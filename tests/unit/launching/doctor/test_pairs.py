"""Which hosts sum together, and which pairs are slow."""

import itertools

import pytest

from hydragnn_hpo.config.machine import find_profile
from hydragnn_hpo.launching.doctor.diagnose import to_exclude
from hydragnn_hpo.launching.doctor.pairs import FAR_PAIRS, choose_pairs, judge_pairs


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


def answer(rate=2e10, latency=2e-5, wrong=0):
    ranks = [{"rank": k, "host": "x", "wrong": wrong} for k in range(2)]
    bandwidth = [{"bytes": 2**20, "seconds": 1.0, "bus_bytes_per_second": rate}]
    return {
        "world": 2,
        "latency_seconds": latency,
        "bandwidth": bandwidth,
        "networks": ["gloo"],
        "ranks": ranks,
    }


def bad(findings):
    return {(f.check, f.state, f.hosts) for f in findings if f.state != "ok"}


def test_a_pair_far_behind_the_others_is_slow_and_its_host_is_found():
    hosts = [f"n{k}" for k in range(8)]
    pairs = list(itertools.chain(*choose_pairs(hosts)))
    told = {pair: answer(5e9 if "n5" in pair else 2e10) for pair in pairs}
    findings = judge_pairs(told, {}, find_profile("generic-slurm"))
    slow = {pair for pair in pairs if "n5" in pair}
    assert slow == {("n4", "n5"), ("n1", "n5")}
    assert bad(findings) == {("all-reduce bus bandwidth", "slow", pair) for pair in slow}
    assert list(to_exclude(findings, hosts)) == ["n5"]


def test_pairs_are_not_judged_by_a_guess():
    told = {(f"a{k}", f"b{k}"): answer(1e6, 1.0) for k in range(8)}
    assert bad(judge_pairs(told, {}, find_profile("generic-slurm"))) == set()


def test_wrong_sums_and_pairs_that_never_met_are_wrong():
    told = {("a", "b"): answer(wrong=3), ("c", "d"): answer()}
    findings = judge_pairs(told, {("e", "f"): "time was up"}, find_profile("generic-slurm"))
    assert bad(findings) == {
        ("all-reduce sums", "wrong", ("a", "b")),
        ("all-reduce sums", "wrong", ("e", "f")),
    }
