"""Speed and correctness of all-reduce over the ranks of a job: the job ``probe``.

The ranks join in the same way as those of a trial. ``campaign.network_probe`` compares the
measurements.
"""

import json
import os
import re
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from hydragnn_hpo import log
from hydragnn_hpo.errors import HydraError
from hydragnn_hpo.files import read_json, write_json
from hydragnn_hpo.training.ddp import Ranks, join_ranks

LATENCY_BYTES = 8
"""Size of a short sum in bytes."""
LATENCY_SAMPLES, SUMS_PER_SAMPLE = 40, 5
"""Number of samples of short sums, and of sums in each: waiting for a device takes as long as a
sum."""

BANDWIDTH_SAMPLES = 5
"""Samples of one long sum each."""

WARM_UP = 3
"""Sums before the first sample, which open connections and buffers."""

_PERIOD = 8
_FLOAT_BYTES = 4
_USED = re.compile(r"Using network (.+?)\s*$", re.MULTILINE)
_CHOSEN = re.compile(r"NET/(\w+)\s*:? +(?:Using|Selected)", re.MULTILINE)


class ProbeSpec(TypedDict):
    """The ``spec`` of a job of kind ``probe``."""

    answer: str
    """Path of the JSON file that rank 0 writes: ``AllReduceReport``, or ``{"error": sentence}``."""
    sizes: list[int]
    """Sizes of the long sums in bytes."""
    one_host: bool
    """Whether all ranks share a host."""
    seconds: float
    """How long ranks wait for each other, in seconds."""


class RankCheck(TypedDict):
    """Whether the sums of a rank were right."""

    rank: int
    """Its number."""
    host: str
    """Name of its host."""
    wrong: int
    """Elements of all sums that had a wrong value."""


class RankReport(RankCheck):
    """Measurements of one rank."""

    latency_seconds: float
    """Median time of a short sum."""
    sizes: list[int]
    """Sizes of the long sums in bytes."""
    seconds: list[float]
    """Median time of a sum of each size."""
    network: str
    """Network that NCCL, RCCL or gloo uses; empty if unknown."""


class BandwidthPoint(TypedDict):
    """Speed of sums of one size."""

    bytes: int
    """Size of the sum."""
    seconds: float
    """Median time on the slowest rank."""
    bus_bytes_per_second: float
    """Bandwidth of the slowest link, see ``merge_reports``."""


class AllReduceReport(TypedDict):
    """Measurements of all ranks."""

    world: int
    """Number of ranks."""
    latency_seconds: float
    """Median time of a short sum on the slowest rank."""
    bandwidth: list[BandwidthPoint]
    """By size, in the order of the spec."""
    networks: list[str]
    """Networks that the ranks use, sorted."""
    ranks: list[RankCheck]
    """By rank."""


def job_main(spec: ProbeSpec) -> int:
    """Sum over all ranks and report correctness and speed; the entry point of agents.

    Returns:
        0; a rank that fails writes the answer ``{"error": sentence}`` and raises.
    """
    answer = Path(spec["answer"])
    rank = int(os.environ.get("RANK", "0"))
    log.configure(rank=rank)
    nccl_log = answer.with_suffix(f".{rank}.network")
    os.environ |= {
        "HYDRAGNN_HPO_COLLECTIVE_SECONDS": str(spec["seconds"]),
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
        "NCCL_DEBUG_FILE": str(nccl_log),
    }
    try:
        torch.set_num_threads(1)
        ranks = join_ranks(answer.with_suffix(".meeting") if spec["one_host"] else None)
        _send_report(ranks, _measure(ranks, spec["sizes"], nccl_log), answer)
        ranks.barrier()
    except (RuntimeError, OSError, HydraError) as error:
        first = str(error).strip().splitlines()[:1] or [type(error).__name__]
        if not answer.exists() or "error" not in read_json(answer):
            write_json(answer, {"error": f"rank {rank} on {os.uname().nodename}: {first[0]}"})
        raise
    return 0


def _measure(ranks: Ranks, sizes: Sequence[int], nccl_log: Path) -> RankReport:
    """Time short and long sums, and check their results."""
    wrong = _count_wrong(ranks, LATENCY_BYTES)
    latency = _median_seconds(ranks, LATENCY_BYTES, LATENCY_SAMPLES, SUMS_PER_SAMPLE)
    seconds = []
    for size in sizes:
        wrong += _count_wrong(ranks, size)
        seconds.append(_median_seconds(ranks, size, BANDWIDTH_SAMPLES, 1))
    return {
        "rank": ranks.rank,
        "host": os.uname().nodename,
        "wrong": wrong,
        "latency_seconds": latency,
        "sizes": list(sizes),
        "seconds": seconds,
        "network": _used_network(nccl_log, ranks),
    }


def _count_wrong(ranks: Ranks, size: int) -> int:
    """Count the elements of a sum that are wrong on this rank.

    Rank r has (r + i) mod 8 at index i. Up to two million ranks, all partial sums are integers
    below 2^24, which fp32 holds exactly, whatever their order.
    """
    places = torch.arange(size // _FLOAT_BYTES, device=ranks.device) % _PERIOD
    values = ((places + ranks.rank) % _PERIOD).to(torch.float32)
    ranks.sum(values)
    rounds, rest = divmod(ranks.world, _PERIOD)
    whole = rounds * _PERIOD * (_PERIOD - 1) // 2
    sums = [whole + sum((i + r) % _PERIOD for r in range(rest)) for i in range(_PERIOD)]
    expected = torch.tensor(sums, dtype=torch.float32, device=ranks.device)[places]
    return int((values != expected).sum())


def _median_seconds(ranks: Ranks, size: int, samples: int, sums: int) -> float:
    """Return the median time of one sum of zeros in seconds.

    Args:
        ranks: this rank among those of the job.
        size: bytes of the summed array.
        samples: number of measurements.
        sums: number of sums in each measurement.
    """
    values = torch.zeros(size // _FLOAT_BYTES, device=ranks.device)
    for _ in range(WARM_UP):
        ranks.sum(values)
    return statistics.median(_sample_seconds(ranks, values, sums) / sums for _ in range(samples))


def _sample_seconds(ranks: Ranks, values: Tensor, sums: int) -> float:
    _synchronize(ranks.device)
    began = time.perf_counter()
    for _ in range(sums):
        ranks.sum(values)
    _synchronize(ranks.device)
    return time.perf_counter() - began


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _send_report(ranks: Ranks, report: RankReport, answer: Path) -> None:
    """Collect the reports of all ranks on rank 0, which writes the answer."""
    reports = [report]
    if ranks.store is not None:
        store = PrefixStore("probe", ranks.store)
        if not ranks.first:
            store.set(str(ranks.rank), json.dumps(report))
            return
        reports += [json.loads(store.get(str(rank))) for rank in range(1, ranks.world)]
    write_json(answer, merge_reports(reports))


def merge_reports(reports: Sequence[RankReport]) -> AllReduceReport:
    """Merge the reports of all ranks; times are those of the slowest rank.

    Bus bandwidth is the bandwidth of the slowest link for any number of ranks p: bytes over
    seconds, times 2 (p - 1) / p. Source: NVIDIA nccl-tests, doc/PERFORMANCE.md.
    """
    world = len(reports)
    sizes = reports[0]["sizes"]
    slowest = [max(report["seconds"][n] for report in reports) for n in range(len(sizes))]
    factor = 2 * (world - 1) / world
    return {
        "world": world,
        "latency_seconds": max(report["latency_seconds"] for report in reports),
        "bandwidth": [
            {"bytes": size, "seconds": seconds, "bus_bytes_per_second": factor * size / seconds}
            for size, seconds in zip(sizes, slowest, strict=True)
        ],
        "networks": sorted({report["network"] for report in reports}),
        "ranks": [
            {"rank": report["rank"], "host": report["host"], "wrong": report["wrong"]}
            for report in reports
        ],
    }


def _used_network(nccl_log: Path, ranks: Ranks) -> str:
    if ranks.device.type == "cpu":
        return f"gloo over {os.environ.get('GLOO_SOCKET_IFNAME') or 'any interface'}"
    return parse_network(nccl_log.read_text(errors="replace")) if nccl_log.exists() else ""


def parse_network(text: str) -> str:
    """Return the name of the network in a log of NCCL or RCCL; empty if it has none.

    NCCL reports the network only in its log; Law 2 forbids to parse logs for numbers, not for
    names. Newer versions log ``Using network NAME``, older ones the plugin that found a device.
    """
    match = _USED.search(text) or _CHOSEN.search(text)
    return match[1] if match else ""
