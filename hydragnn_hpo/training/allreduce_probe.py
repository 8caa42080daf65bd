"""Speed and correctness of all-reduce over the ranks of a job: the job ``probe``.

The ranks meet as those of a trial do. ``campaign.network_probe`` compares what they measure.
"""

import json
import os
import re
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from hydragnn_hpo import log
from hydragnn_hpo.errors import HydraError
from hydragnn_hpo.files import read_json, write_json
from hydragnn_hpo.training.ddp import Ranks, join_ranks

LATENCY_BYTES = 8
LATENCY_SAMPLES, SUMS_PER_SAMPLE = 40, 5
"""Short sums are timed some at a time: looking whether a device is done takes as long as one."""

BANDWIDTH_SAMPLES = 5
WARM_UP = 3
"""The first sums open connections and buffers."""

_VISIBLE = (
    *("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "ZE_AFFINITY_MASK",
)
"""What may say which device a rank sees."""

_PERIOD = 8
_FLOAT_BYTES = 4
_USED = re.compile(r"Using network (.+?)\s*$", re.MULTILINE)
_CHOSEN = re.compile(r"NET/(\w+)\s*:? +(?:Using|Selected)", re.MULTILINE)

Report = dict[str, Any]


def job_main(spec: dict[str, Any]) -> int:
    """Sum over all ranks and report correctness and speed; the entry point of agents.

    Args:
        spec: ``answer``, the JSON file that rank 0 writes; ``sizes`` in bytes; ``one_host``:
            whether all ranks share a host; ``seconds`` that ranks wait for each other.

    Returns:
        0, or 1 where this rank could not do its part: the answer then is ``{"error": ...}``.
    """
    answer, rank = Path(spec["answer"]), int(os.environ.get("RANK", "0"))
    log.configure(rank=rank)
    os.environ["HYDRAGNN_HPO_COLLECTIVE_SECONDS"] = str(spec["seconds"])
    nccl_log = _log_network(answer, rank)
    try:
        torch.set_num_threads(1)
        began = time.perf_counter()
        ranks = join_ranks(answer.with_suffix(".meeting") if spec["one_host"] else None)
        report = {"rank": rank, **_describe_rank(ranks)}
        if ranks.world > 1:
            report |= {"join_seconds": time.perf_counter() - began}
            report |= _measure(ranks, spec["sizes"])
            report |= {"network": _used_network(nccl_log, ranks)}
        _send_report(ranks, report, answer)
        ranks.leave()
    except (RuntimeError, OSError, HydraError) as error:
        first = str(error).strip().splitlines()[:1] or [type(error).__name__]
        if not answer.exists() or "error" not in read_json(answer):
            write_json(answer, {"error": f"rank {rank} on {os.uname().nodename}: {first[0]}"})
        raise
    return 0


def _describe_rank(ranks: Ranks) -> Report:
    """Return host, device and cores of this rank."""
    device = ranks.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "host": os.uname().nodename,
        "device": name,
        "visible": next(filter(None, map(os.environ.get, _VISIBLE)), ""),
        "cores": sorted(os.sched_getaffinity(0)),
    }


def _measure(ranks: Ranks, sizes: Sequence[int]) -> Report:
    """Time sums of a few bytes and of many, and check their results."""
    began = time.perf_counter()
    wrong = _count_wrong(ranks, LATENCY_BYTES)
    first = time.perf_counter() - began
    few = torch.zeros(LATENCY_BYTES // _FLOAT_BYTES, device=ranks.device)
    latency = _median_seconds(ranks, few, LATENCY_SAMPLES, SUMS_PER_SAMPLE)
    seconds = []
    for size in sizes:
        wrong += _count_wrong(ranks, size)
        many = torch.zeros(size // _FLOAT_BYTES, device=ranks.device)
        seconds.append(_median_seconds(ranks, many, BANDWIDTH_SAMPLES, 1))
    told = {"first_seconds": first, "latency_seconds": latency, "seconds": seconds}
    return {**told, "sizes": list(sizes), "wrong": wrong}


def _count_wrong(ranks: Ranks, size: int) -> int:
    """Count the elements of a sum that are wrong on this rank.

    Rank r holds (r + i) mod 8 at place i: sums are whole numbers below 2^24 up to two million
    ranks, so that fp32 holds them whatever the order.
    """
    places = torch.arange(size // _FLOAT_BYTES, device=ranks.device) % _PERIOD
    found = ((places + ranks.rank) % _PERIOD).to(torch.float32)
    ranks.sum(found)
    rounds, rest = divmod(ranks.world, _PERIOD)
    whole = rounds * _PERIOD * (_PERIOD - 1) // 2
    right = [whole + sum((i + r) % _PERIOD for r in range(rest)) for i in range(_PERIOD)]
    expected = torch.tensor(right, dtype=torch.float32, device=ranks.device)[places]
    return int((found != expected).sum())


def _median_seconds(ranks: Ranks, values: Tensor, samples: int, sums: int) -> float:
    """Return the seconds of one sum of zeros: the median of some samples of some sums."""
    for _ in range(WARM_UP):
        ranks.sum(values)
    return statistics.median(
        _time(lambda: [ranks.sum(values) for _ in range(sums)], ranks.device) / sums
        for _ in range(samples)
    )


def _time(act: Callable[[], Any], device: torch.device) -> float:
    _synchronize(device)
    began = time.perf_counter()
    act()
    _synchronize(device)
    return time.perf_counter() - began


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _send_report(ranks: Ranks, report: Report, answer: Path) -> None:
    """Collect the reports of all ranks on rank 0, which writes the answer."""
    if ranks.store is None:
        write_json(answer, {"world": 1, "ranks": [report]})
        return
    store = PrefixStore("probe", ranks.store)
    if not ranks.first:
        store.set(str(ranks.rank), json.dumps(report))
        return
    told = [report, *(json.loads(store.get(str(rank))) for rank in range(1, ranks.world))]
    write_json(answer, merge_reports(told))


def merge_reports(reports: Sequence[Report]) -> Report:
    """Merge the reports of several ranks: the slowest rank decides how long it took.

    Bus bandwidth is the bandwidth of the slowest wire whatever the number of ranks p: bytes over
    seconds, times 2 (p - 1) / p. Source: NVIDIA nccl-tests, doc/PERFORMANCE.md.
    """
    world, sizes = len(reports), reports[0]["sizes"]
    slowest = [max(report["seconds"][n] for report in reports) for n in range(len(sizes))]
    factor = 2 * (world - 1) / world
    keys = ("rank", "host", "device", "visible", "cores", "wrong")
    return {
        "world": world,
        **{
            key: max(report[key] for report in reports)
            for key in ("join_seconds", "first_seconds", "latency_seconds")
        },
        "bandwidth": [
            {"bytes": size, "seconds": seconds, "bus_bytes_per_second": factor * size / seconds}
            for size, seconds in zip(sizes, slowest, strict=True)
        ],
        "networks": sorted({report["network"] for report in reports}),
        "ranks": [{key: report[key] for key in keys} for report in reports],
    }


def _log_network(answer: Path, rank: int) -> Path:
    """Make NCCL or RCCL log what it uses into a file of this rank."""
    nccl_log = answer.with_suffix(f".{rank}.network")
    os.environ |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}
    os.environ["NCCL_DEBUG_FILE"] = str(nccl_log)
    return nccl_log


def _used_network(nccl_log: Path, ranks: Ranks) -> str:
    if ranks.device.type == "cpu":
        return f"gloo over {os.environ.get('GLOO_SOCKET_IFNAME') or 'any interface'}"
    return parse_network(nccl_log.read_text(errors="replace")) if nccl_log.exists() else ""


def parse_network(text: str) -> str:
    """Return the network that NCCL or RCCL logs, as it calls it; empty if it logs none.

    A name and no number is read from what a library prints (Law 2): there is no other way. Newer
    versions say ``Using network NAME``, older ones only which of their parts found a device.
    """
    found = _USED.search(text) or _CHOSEN.search(text)
    return found[1] if found else ""
