"""All-reduce between pairs of hosts, by the backend that a campaign would use there.

Ranks of a job of kind ``probe`` (``training.allreduce_probe``) sum over each pair of hosts. Pairs
are compared with each other: figures of links in profiles are good to a factor of two only.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from hydragnn_hpo.campaign.backends import backend_on
from hydragnn_hpo.config import MachineConfig, ProfileConfig, resolve_machine
from hydragnn_hpo.errors import HydraError, JobError
from hydragnn_hpo.files import read_json, storage
from hydragnn_hpo.host_checks.doctor import temporary_folder
from hydragnn_hpo.host_checks.doctor_checks import Finding, find_outliers
from hydragnn_hpo.launching import Backend, Job, Slot

Pair = tuple[str, str]

MB = 2**20
SIZES = {"cpu": (MB, 4 * MB, 16 * MB)}
"""Bytes to sum by kind of device; gloo needs a second for what a GPU sends in a millisecond."""

DEVICE_SIZES = (MB, 4 * MB, 16 * MB, 64 * MB, 256 * MB)

JOIN_SECONDS = 60.0
"""How long ranks wait for each other by default."""

ROUND_SECONDS = 90.0
"""For all pairs of a round, side by side, and the lease of their ranks: a busy host is not lost."""

ANSWER = "answer.json"
"""In the folder of a job."""

POLL_SECONDS = 0.05
HOST_SECONDS = 600.0
"""How long to wait for the first host."""

GATHERING_SECONDS = 20.0
"""The probe starts without missing hosts once none has joined for so long."""

END_SECONDS = 20.0
"""How long a job that was stopped may take to end."""

FAR_PAIRS = 8
"""Pairs of hosts that are far apart in the list, beside all neighbours."""

_SUMS, _NETWORK = "all-reduce sums", "network used"
_RATE, _LATENCY = "all-reduce bus bandwidth", "all-reduce latency"
_FACTORS = {_RATE: (2.0, True), _LATENCY: (4.0, False)}
"""Check -> by how much a pair must be worse than the median, and whether low is bad."""

_KINDS = {"gloo": "gloo", "libfabric": "OFI", "ofi": "OFI", "socket": "Socket", "ib": "IB"}
"""Parts of names of networks, the first that fits counts."""


def make_probe_job(folder: Path, slots: Sequence[Slot], seconds: float = JOIN_SECONDS) -> Job:
    """Create the folder of a job of kind ``probe``, and return the job for the backend.

    Args:
        folder: of the job, new, which all hosts see. Its name is the job's.
        slots: of its ranks, in rank order.
        seconds: how long ranks wait for each other.
    """
    with storage(folder):
        folder.mkdir(mode=0o700, parents=True)
    device = slots[0].device.partition(":")[0]
    spec = {
        "answer": str((folder / ANSWER).resolve()),
        "sizes": list(SIZES.get(device, DEVICE_SIZES)),
        "one_host": len({slot.host for slot in slots}) == 1,
        "seconds": seconds,
    }
    return Job(
        id=folder.name,
        kind="probe",
        width=len(slots),
        spec=spec,
        log=folder / "log",
        watch=None,
        slots=tuple(slots),
    )


class RankSums(TypedDict):
    """What one rank found."""

    rank: int
    host: str
    """Name of its host, as the system has it."""
    wrong: int
    """Elements of sums that are wrong."""


class SumSpeed(TypedDict):
    """Sums of one size."""

    bytes: int
    """Of one sum."""
    seconds: float
    """Median of the slowest rank."""
    bus_bytes_per_second: float
    """What passes the slowest wire."""


class ProbeAnswer(TypedDict):
    """What the ranks of a probe found, see ``allreduce_probe.merge_reports``."""

    world: int
    """Number of ranks."""
    latency_seconds: float
    """Of a sum of a few bytes, on the slowest rank."""
    bandwidth: list[SumSpeed]
    """By size."""
    networks: list[str]
    """What the communication libraries used; an empty name where one does not tell."""
    ranks: list[RankSums]
    """All of them, by rank."""


def read_answer(folder: Path) -> ProbeAnswer:
    """Read the answer of a job that has ended, see ``allreduce_probe.merge_reports``.

    Raises:
        JobError: there is no answer, or it is an error.
    """
    log = folder / "log"
    if not (folder / ANSWER).exists():
        raise JobError(f"the ranks of {folder.name} ended without an answer: see {log}.")
    values = read_json(folder / ANSWER)
    if "error" in values:
        raise JobError(f"{str(values['error']).rstrip('.')}: see {log}.")
    answer: ProbeAnswer = values
    return answer


def probe_network(name: str, profile: ProfileConfig, folder: Path, hosts: int) -> list[Finding]:
    """Sum over pairs of hosts, one rank on each host, and compare the pairs.

    Args:
        name: of the profile, shipped or a path.
        profile: the profile itself.
        folder: a folder that all hosts see; what is written there is removed.
        hosts: number of hosts that we hold.
    """
    try:
        patient = MachineConfig(lease_seconds=ROUND_SECONDS)
        machine = resolve_machine(patient, {"profile": name, "hosts": hosts})
        with temporary_folder(folder) as shared, backend_on(machine, shared) as backend:
            wait_for_hosts(backend, hosts)
            return _probe_pairs(backend, profile, shared)
    except HydraError as error:
        cure = "Campaigns could not start there either: see the sentence."
        return [Finding(_SUMS, "wrong", str(error), cure=cure)]


def _probe_pairs(backend: Backend, profile: ProfileConfig, folder: Path) -> list[Finding]:
    slots = {slot.host: slot for slot in reversed(backend.slots)}
    answers, failures = {}, {}
    hosts = list(dict.fromkeys(slot.host for slot in backend.slots))
    for number, pairs in enumerate(choose_pairs(hosts)):
        folders = {pair: folder / f"pair.{number}.{k}" for k, pair in enumerate(pairs)}
        jobs = [make_probe_job(of, [slots[h] for h in pair]) for pair, of in folders.items()]
        errors = run_jobs(backend, jobs, ROUND_SECONDS)
        for pair, of in folders.items():
            try:
                answers[pair] = read_answer(of)
            except JobError as error:
                failures[pair] = errors[of.name] or str(error)
    return check_pairs(answers, failures, profile)


def wait_for_hosts(backend: Backend, expected: int) -> None:
    """Wait until the expected hosts have joined, or no further one joins.

    Raises:
        JobError: no host joins.
    """
    began = changed = time.monotonic()
    seen = 0
    while seen < expected:
        backend.poll(POLL_SECONDS)
        now = time.monotonic()
        if (count := len({slot.host for slot in backend.slots})) != seen:
            seen, changed = count, now
        elif seen and now > changed + GATHERING_SECONDS:
            return
        elif not seen and now > began + HOST_SECONDS:
            raise JobError(f"no host joined within {HOST_SECONDS:.0f} s: see the agents' logs.")


def run_jobs(backend: Backend, jobs: Sequence[Job], seconds: float) -> dict[str, str | None]:
    """Run jobs side by side to their end; stop those that are too slow.

    Args:
        backend: runs them.
        jobs: each on slots of its own, with ids that were never used.
        seconds: time limit.

    Returns:
        Id of each job -> why it could not run or did not end in time, or None.
    """
    waiting = {job.id for job in jobs}
    errors = dict[str, str | None]()
    late = set[str]()
    for job in jobs:
        backend.start(job)
    deadline = time.monotonic() + seconds
    give_up = math.inf
    while waiting and (now := time.monotonic()) < give_up:
        if now >= deadline and not late:
            give_up = now + END_SECONDS  # from now: this process may have been stopped meanwhile
            late |= waiting
            for name in late:
                backend.stop(name, grace=2.0)
        for event in backend.poll(POLL_SECONDS):
            if event.kind == "ended" and event.job in waiting:
                waiting.remove(event.job)
                overdue = "was ended: its time was up" if event.job in late else None
                errors[event.job] = overdue or event.data.get("error")
    unfinished = f"did not end within {seconds + END_SECONDS:.0f} s"
    return errors | dict.fromkeys(waiting, unfinished)


def choose_pairs(hosts: Sequence[str], far: int = FAR_PAIRS) -> list[list[Pair]]:
    """Choose pairs in rounds; in a round no host has two partners.

    Args:
        hosts: neighbours in the network side by side.
        far: most pairs that are half of the list apart.
    """
    count = len(hosts)
    rounds = [[(hosts[k], hosts[k + 1]) for k in range(0, count - 1, 2)]]
    if count % 2 and count > 1:
        rounds.append([(hosts[-2], hosts[-1])])
    half = count // 2
    if half >= 2:
        step = max(1, half // max(1, far))
        rounds.append([(hosts[k], hosts[k + half]) for k in range(0, half, step)][:far])
    return [pairs for pairs in rounds if pairs]


def check_pairs(
    answers: Mapping[Pair, ProbeAnswer],
    failures: Mapping[Pair, str],
    profile: ProfileConfig,
) -> list[Finding]:
    """Check each pair's sums and network, and compare the speeds of all pairs.

    Args:
        answers: of the probes that came to an end.
        failures: why others did not.
        profile: the machine's, which names the network to use.
    """
    cure = "Can they reach each other on the fabric's interface, at ports from 20000 on?"
    findings = [
        Finding(_SUMS, "wrong", why, "right on both", cure, pair) for pair, why in failures.items()
    ]
    findings += [_check_sums(answer, pair) for pair, answer in answers.items()]
    findings += _compare(_LATENCY, [_latency(a, pair) for pair, a in answers.items()])
    peak = profile.between.peak_bytes_per_second
    findings += _compare(_RATE, [_bandwidth(a, pair, peak) for pair, a in answers.items()])
    return findings + [_check_network(a["networks"], pair, profile) for pair, a in answers.items()]


def _latency(answer: ProbeAnswer, pair: Pair) -> Finding:
    seconds = answer["latency_seconds"]
    return Finding(_LATENCY, "ok", f"{1e6 * seconds:.0f} us", hosts=pair, figure=seconds)


def _bandwidth(answer: ProbeAnswer, pair: Pair, peak: float | None) -> Finding:
    best = max(entry["bus_bytes_per_second"] for entry in answer["bandwidth"])
    share = f", {100 * best / peak:.0f} % of the wire's" if peak else ""
    return Finding(_RATE, "ok", f"{best / 1e9:.3g} GB/s{share}", hosts=pair, figure=best)


def _check_sums(answer: ProbeAnswer, pair: Pair) -> Finding:
    bad = [rank for rank in answer["ranks"] if rank["wrong"]]
    if not bad:
        result = f"right on all {answer['world']} ranks"
        return Finding(_SUMS, "ok", result, "right on every rank", "", pair, 0.0)
    result = f"wrong on rank {bad[0]['rank']} of host {bad[0]['host']} and {len(bad) - 1} more"
    cure = (
        "trust no training on these hosts: try another version of RCCL or NCCL and its network "
        "plugin, then leave the hosts out."
    )
    return Finding(_SUMS, "wrong", result, "right on every rank", cure, pair, float(len(bad)))


def _check_network(used: Sequence[str], pair: Pair, profile: ProfileConfig) -> Finding:
    """Compare the network with the profile's NCCL_NET: without its plugin RCCL takes TCP."""
    wanted = {**profile.rank.environment, **profile.rank.many_hosts}.get("NCCL_NET", "")
    kinds = {_network_kind(name) for name in used}
    result = ", ".join(name or "not told" for name in used)
    if not all(used):
        return Finding(_NETWORK, "unknown", result, wanted, hosts=pair)
    if not wanted or kinds in ({"gloo"}, {_network_kind(wanted)}):
        return Finding(_NETWORK, "ok", result, wanted, hosts=pair)
    cure = (
        "load the network plugin's module, or name it in NCCL_NET_PLUGIN of the profile: without "
        "it everything goes over TCP."
    )
    return Finding(_NETWORK, "wrong", result, wanted, cure, pair)


def _network_kind(network: str) -> str:
    """Return one name for what versions of the plugins call differently."""
    words = network.lower()
    return next((kind for part, kind in _KINDS.items() if part in words), network)


def _compare(check: str, alike: Sequence[Finding]) -> list[Finding]:
    """Compare the figures of one check with their median."""
    factor, low_is_bad = _FACTORS[check]
    values = {" - ".join(f.hosts): f.figure for f in alike if f.figure is not None}
    slow = find_outliers(values, factor, low_is_bad=low_is_bad)
    if not slow:
        return list(alike)
    median = next(iter(slow.values()))
    usual = min(alike, key=lambda f: abs((f.figure or 0.0) - median)).observed
    cure = (
        "One of the two, or a wire between them: leave the host out that is in other slow pairs, "
        "too."
    )
    expected = f"about {usual} as most pairs"
    return [
        replace(finding, state="slow", expected=expected, cure=cure)
        if " - ".join(finding.hosts) in slow
        else finding
        for finding in alike
    ]
