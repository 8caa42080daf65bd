"""What sums over ranks say of a machine; expected numbers are counted by hand."""

from datetime import date

import pytest

from hydragnn_hpo.config.machine import ProfileConfig
from hydragnn_hpo.launching.probing.judging import expected_latency, judge

ONE, TWO = ("node1",), ("node1", "node2")


def profile(**rank) -> ProfileConfig:
    """Promise 10 us and 50 GB/s within a host, 20 us and 25 GB/s between (50 GB/s of wire)."""
    return ProfileConfig(
        name="made",
        description="made up",
        source=("made up",),
        checked=date(2026, 11, 21),
        device="gpu",
        flops_per_second=1.0,
        bytes_per_second=1.0,
        step_seconds=0.0,
        layer_seconds=0.0,
        within={"latency_seconds": 10e-6, "bytes_per_second": 50e9},
        between={
            "latency_seconds": 20e-6,
            "bytes_per_second": 25e9,
            "peak_bytes_per_second": 50e9,
        },
        start_seconds=1.0,
        cold_start_seconds=1.0,
        restart_seconds=1.0,
        rank=rank,
    )


def answer(**changes):
    """Give what two good ranks of two hosts say."""
    return {
        "world": 2,
        "latency_seconds": 50e-6,
        "bandwidth": [
            {"bytes": 2**20, "seconds": 1.0, "bus_bytes_per_second": 5e9},
            {"bytes": 2**24, "seconds": 1.0, "bus_bytes_per_second": 24e9},
        ],
        "networks": ["AWS Libfabric"],
        "ranks": [{"rank": r, "host": f"node{r + 1}", "wrong": 0} for r in range(2)],
    } | changes


def judged(found, hosts=TWO, **rank):
    return {finding.check: finding for finding in judge(found, hosts, profile(**rank))}


def test_what_keeps_its_promises_is_ok():
    told = judged(answer(), many_hosts={"NCCL_NET": "AWS Libfabric"})
    assert {finding.state for finding in told.values()} == {"ok"}
    assert {finding.hosts for finding in told.values()} == {TWO}
    assert not any(finding.cure for finding in told.values())
    speed = told["all-reduce bus bandwidth"]
    assert speed.found == "24 GB/s, 48 % of the wire's"
    assert speed.expected == "about 25 GB/s, the wire carries 50 GB/s"


def test_one_wrong_sum_is_wrong_and_names_its_rank():
    ranks = [{"rank": r, "host": f"node{r + 1}", "wrong": 3 * r} for r in range(2)]
    found = judged(answer(ranks=ranks))["all-reduce sums"]
    assert found.state == "wrong"
    assert "rank 1 of host node2" in found.found
    assert found.cure


@pytest.mark.parametrize(
    ("measured", "state"), [(13e9, "ok"), (12e9, "slow"), (2.6e9, "slow"), (2.4e9, "wrong")]
)
def test_bandwidth_is_compared_with_the_links_promise(measured, state):
    entry = {"bytes": 2**24, "seconds": 1.0, "bus_bytes_per_second": measured}
    assert judged(answer(bandwidth=[entry]))["all-reduce bus bandwidth"].state == state
    within = judged(answer(bandwidth=[entry]), hosts=ONE)["all-reduce bus bandwidth"]
    assert within.expected == "about 50 GB/s"


@pytest.mark.parametrize(
    ("world", "hosts", "microseconds"),
    [(2, 1, 20), (8, 1, 60), (2, 2, 40), (16, 2, 60 + 40), (24, 3, 60 + 80)],
)
def test_latency_grows_with_the_logarithm_of_ranks_and_hosts(world, hosts, microseconds):
    """Two rounds per doubling: 8 ranks take 6 rounds of 10 us, 3 hosts 4 rounds of 20 us."""
    assert expected_latency(world, hosts, profile()) == pytest.approx(1e-6 * microseconds)


def test_latency_far_above_the_promise_is_wrong():
    """Two hosts: 40 us and 100 us of handling; a tenth of the speed is 1.4 ms."""
    assert judged(answer(latency_seconds=0.27e-3))["all-reduce latency"].state == "ok"
    assert judged(answer(latency_seconds=1.3e-3))["all-reduce latency"].state == "slow"
    assert judged(answer(latency_seconds=1.5e-3))["all-reduce latency"].state == "wrong"


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
    rank = {"many_hosts": {"NCCL_NET": wanted}} if wanted else {}
    assert judged(answer(networks=used), **rank)["network used"].state == state


def test_one_host_may_use_what_it_likes():
    """Within a host devices copy to each other; Frontier even wants sockets there."""
    rank = {"environment": {"NCCL_NET": "AWS Libfabric"}}
    assert judged(answer(networks=["Socket"]), ONE, **rank)["network used"].state == "ok"
