"""What the job ``probe`` makes of what ranks report."""

import json

import pytest
import torch

from hydragnn_hpo.training import allreduce_probe


def report(rank, *, seconds, latency):
    return {
        "rank": rank,
        "host": f"node{rank}",
        "wrong": 0,
        "latency_seconds": latency,
        "sizes": [10**6],
        "seconds": [seconds],
        "network": "Socket",
    }


def test_the_slowest_rank_says_how_long_it_took():
    """Of 4 ranks each byte passes the wire 2 * 3 / 4 times: 1 MB in 10 ms is 150 MB/s."""
    reports = [report(r, seconds=0.01 if r == 2 else 0.005, latency=1e-5 * r) for r in range(4)]

    result = allreduce_probe.merge_reports(reports)

    assert result["world"] == 4
    assert result["bandwidth"] == [
        {"bytes": 10**6, "seconds": 0.01, "bus_bytes_per_second": pytest.approx(150e6)}
    ]
    assert result["latency_seconds"] == pytest.approx(3e-5)
    assert result["networks"] == ["Socket"]
    assert [rank["host"] for rank in result["ranks"]] == ["node0", "node1", "node2", "node3"]
    json.dumps(result, allow_nan=False)


class Summing:
    """A rank whose sums are those of ``world`` ranks, but for one that is lost on the way."""

    def __init__(self, rank, world, *, lost=None):
        self.rank = rank
        self.world = world
        self.lost = lost
        self.device = torch.device("cpu")

    def sum(self, values):
        places = torch.arange(len(values))
        others = [r for r in range(self.world) if r not in (self.rank, self.lost)]
        for other in others:
            values += ((places + other) % 8).to(torch.float32)
        return values


@pytest.mark.parametrize("world", [1, 2, 3, 8, 9, 21])
def test_right_sums_are_right_on_every_rank(world):
    assert [
        allreduce_probe._count_wrong(Summing(rank, world), 4 * 40) for rank in range(world)
    ] == [0] * world


def test_a_lost_summand_shows_wherever_it_was_not_zero():
    """Rank 2 adds nothing at one place of eight."""
    assert allreduce_probe._count_wrong(Summing(0, 5, lost=2), 4 * 40) == 35


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("n:1:1 [0] NCCL INFO Using network AWS Libfabric\n", "AWS Libfabric"),
        ("NCCL INFO NET/IB : No device found.\nNCCL INFO Using network Socket\n", "Socket"),
        ("NCCL INFO NET/OFI Using aws-ofi-rccl 1.4.0\n", "OFI"),
        ("NCCL INFO NET/Socket : Using [0]hsn0:10.1.2.3<0>\n", "Socket"),
        ("NCCL INFO NET/Plugin: No plugin found (libnccl-net.so)\n", ""),
        ("", ""),
    ],
)
def test_the_network_is_named_as_the_library_names_it(text, name):
    assert allreduce_probe.parse_network(text) == name
