"""What sums over ranks say of a machine, against what its profile promises."""

import math
from collections.abc import Mapping
from typing import Any

from hydragnn_hpo.config.machine import LinkConfig, ProfileConfig
from hydragnn_hpo.launching.doctor.finding import Finding, State

SLOW, WRONG = 0.5, 0.1
"""Shares of a promised speed below which it is called so: promises are good to about a factor of
two, and what goes over TCP where it should not loses more than three quarters."""

HANDLING_SECONDS = 100e-6
"""What a rank may take beside the wire for one sum: starting it, looking whether it is done."""

_KINDS = {"gloo": "gloo", "libfabric": "OFI", "ofi": "OFI", "socket": "Socket", "ib": "IB"}
"""Parts of names, the first that fits counts."""


def judge(
    answer: Mapping[str, Any], hosts: tuple[str, ...], profile: ProfileConfig
) -> list[Finding]:
    """Say whether ranks sum rightly, soon and fast enough, over the network that they should use.

    Args:
        answer: of a probe of two ranks or more.
        hosts: ids of the hosts of its ranks.
        profile: what the machine promises.
    """
    link = profile.between if len(hosts) > 1 else profile.within
    return [
        _sums(answer, hosts),
        _latency(answer, hosts, profile),
        _bandwidth(answer, hosts, link),
        _network(answer, hosts, profile),
    ]


def _sums(answer: Mapping[str, Any], hosts: tuple[str, ...]) -> Finding:
    bad = [rank for rank in answer["ranks"] if rank["wrong"]]
    return Finding(
        "all-reduce sums",
        "wrong" if bad else "ok",
        found=f"wrong on rank {bad[0]['rank']} of host {bad[0]['host']} and {len(bad) - 1} more"
        if bad
        else f"right on all {answer['world']} ranks",
        expected="right on every rank",
        cure="trust no training on these hosts: try another version of RCCL or NCCL and its "
        "network plugin, then leave the hosts out."
        if bad
        else "",
        hosts=hosts,
        figure=float(len(bad)),
    )


def expected_latency(world: int, hosts: int, profile: ProfileConfig) -> float:
    """Give the seconds that a sum of a few bytes may take.

    Rounds by halving and doubling, within hosts and then between them, as ``placement.cost``
    prices them.
    """
    local = math.ceil(world / hosts)
    within = 2 * math.ceil(math.log2(local)) * profile.within.latency_seconds
    return within + 2 * math.ceil(math.log2(hosts)) * profile.between.latency_seconds


def _latency(answer: Mapping[str, Any], hosts: tuple[str, ...], profile: ProfileConfig) -> Finding:
    found = answer["latency_seconds"]
    expected = expected_latency(answer["world"], len(hosts), profile)
    state = _state((expected + HANDLING_SECONDS) / found)
    return Finding(
        "all-reduce latency",
        state,
        found=f"{1e6 * found:.0f} us",
        expected=f"about {1e6 * expected:.0f} us",
        cure=f"{_NETWORK}; are cores of the slots bound near their devices, and free?"
        if state != "ok"
        else "",
        hosts=hosts,
        figure=found,
    )


_NETWORK = "see that the fabric's interfaces and plugin are used (next line)"


def _bandwidth(answer: Mapping[str, Any], hosts: tuple[str, ...], link: LinkConfig) -> Finding:
    best = max(entry["bus_bytes_per_second"] for entry in answer["bandwidth"])
    peak = link.peak_bytes_per_second
    state = _state(best / link.bytes_per_second)
    over = f", {100 * best / peak:.0f} % of the wire's" if peak else ""
    promised = f", the wire carries {_rate(peak)}" if peak else ""
    return Finding(
        "all-reduce bus bandwidth",
        state,
        found=f"{_rate(best)}{over}",
        expected=f"about {_rate(link.bytes_per_second)}{promised}",
        cure=f"{_NETWORK}; compare with nccl-tests, then correct the profile or leave the host out."
        if state != "ok"
        else "",
        hosts=hosts,
        figure=best,
    )


def _network(answer: Mapping[str, Any], hosts: tuple[str, ...], profile: ProfileConfig) -> Finding:
    """Compare what was used with the profile's NCCL_NET: without its plugin RCCL takes TCP."""
    more = profile.rank.many_hosts if len(hosts) > 1 else profile.rank.one_host
    wanted = {**profile.rank.environment, **more}.get("NCCL_NET", "")
    used = answer["networks"]
    kinds = {_kind(name) for name in used}
    needed = wanted and len(hosts) > 1 and kinds != {"gloo"}
    state: State = "ok"
    if not all(used):
        state = "unknown"
    elif needed and kinds != {_kind(wanted)}:
        state = "wrong"
    return Finding(
        "network used",
        state,
        found=", ".join(name or "not told" for name in used),
        expected=wanted,
        cure="load the network plugin's module, or name it in NCCL_NET_PLUGIN of the profile: "
        "without it everything goes over TCP."
        if state == "wrong"
        else "",
        hosts=hosts,
    )


def _kind(network: str) -> str:
    """Give one name for what versions of the plugins call differently."""
    words = network.lower()
    return next((kind for part, kind in _KINDS.items() if part in words), network)


def _state(share: float) -> State:
    return "ok" if share >= SLOW else "slow" if share >= WRONG else "wrong"


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.3g} GB/s"
