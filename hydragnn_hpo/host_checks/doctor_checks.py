"""Checks of ``doctor``: pure functions from the facts of all hosts to findings, in one table."""

import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from hydragnn_hpo.config import ProfileConfig, cores_of
from hydragnn_hpo.config.machine_checks import misspelt
from hydragnn_hpo.host_checks.host_probe import (
    NO_ANSWER,
    HostFacts,
    LibraryFacts,
    NetworkFacts,
    ProbeRequest,
    ScratchFacts,
    SharedFacts,
    SystemFacts,
    format_cores,
    is_shared,
)
from hydragnn_hpo.launching.excluded_hosts import clean

State = Literal["ok", "slow", "wrong", "unknown"]
"""``slow`` works, but is far behind the others or the profile; ``unknown`` was not measurable."""

ORDER: tuple[State, ...] = ("wrong", "slow", "unknown", "ok")
"""States from worst to best."""


@dataclass(frozen=True)
class Finding:
    """One result of one check; its texts are single lines that a terminal can show."""

    check: str
    """Name of the check, such as ``all-reduce bandwidth``."""

    state: State

    observed: str
    """Result with its unit."""

    expected: str = ""
    """Value by the profile or by the other hosts."""

    cure: str = ""
    """Advice to the user, one short sentence."""

    hosts: tuple[str, ...] = ()
    """The host, both hosts of a pair, or none if it concerns this host or all hosts together."""

    figure: float | None = None
    """Measured number, if any, by which rows of a table are sorted."""

    def __post_init__(self) -> None:
        for key in ("check", "observed", "expected", "cure"):
            object.__setattr__(self, key, clean(getattr(self, key)))
        object.__setattr__(self, "hosts", tuple(map(clean, self.hosts)))

    @property
    def bad(self) -> bool:
        """Whether action is needed."""
        return self.state in ("slow", "wrong")


def worst(findings: Iterable[Finding]) -> State:
    """Return the worst state among some findings; ``ok`` of none."""
    states = {finding.state for finding in findings}
    return next((state for state in ORDER if state in states), "ok")


LEAST = 4
"""Fewest hosts that make a majority."""

_DEVIATIONS = 4.0
_NORMAL = 1.4826
"""Standard deviation over median absolute deviation of a normal distribution."""


def find_outliers(
    values: Mapping[str, float], factor: float, *, low_is_bad: bool
) -> dict[str, float]:
    """Return hosts whose value is worse than the median by a factor, and by far more than is usual.

    Args:
        values: value of each host.
        factor: factor, above 1, by which an outlier is worse than the median.
        low_is_bad: whether small values are bad (a speed) or large ones (a time).

    Returns:
        Host -> median of all; empty where too few hosts answered.

    Source: Leys et al. (2013), J. Exp. Soc. Psychol. 49, 764: median absolute deviation.
    """
    if len(values) < LEAST:
        return {}
    median = statistics.median(values.values())
    usual = _NORMAL * statistics.median(abs(value - median) for value in values.values())

    def bad(value: float) -> bool:
        far = value * factor < median if low_is_bad else value > median * factor
        return far and abs(value - median) > _DEVIATIONS * usual

    return {host: median for host, value in values.items() if bad(value)}


@dataclass(frozen=True)
class Expected:
    """The values with which all checks compare."""

    profile: ProfileConfig
    request: ProbeRequest
    hosts: tuple[str, ...]
    """Hosts to which the request was sent."""

    in_job: bool = False
    """Whether they are the hosts of a scheduler's job."""

    missing: dict[str, str] = field(default_factory=dict)
    """Hosts that did not answer, and why."""

    asked_at: float = 0.0
    """When the request was sent and the last answer arrived, by the controller's clock, in seconds
    since the epoch."""
    answered_at: float = float("inf")

    given: Mapping[str, int] = field(default_factory=dict)
    """Devices that Slurm assigned to this job, by host; empty if the scheduler reports none."""

    @property
    def devices(self) -> int:
        """Devices of a host; 0 if the profile does not set them."""
        profile = self.profile
        if profile.device == "cpu":
            return 0
        return len(set(profile.layout.device_of_slot)) or profile.slots_per_host

    def memory_mb(self, device: Literal["cpu", "gpu"]) -> float:
        """Return the memory of a GPU, or of a host that computes on its cores; 0 if not known."""
        profile = self.profile
        if profile.device != device:
            return 0.0
        each = profile.memory_gb * 1e9 / (1 << 20)
        return each if device == "gpu" else each * profile.slots_per_host


FactsByHost = Mapping[str, HostFacts]
Check = Callable[[FactsByHost, Expected], list[Finding]]
Value = Callable[[HostFacts, Expected], float | None]
Part = TypeVar("Part")


def each(
    part: Callable[[HostFacts], Part | None],
    check: Callable[[Part, Expected], Finding | None],
) -> Check:
    """Return a check of all hosts from a check of one part of one host, which names no host."""

    def check_all(answers: FactsByHost, expected: Expected) -> list[Finding]:
        parts = {host: part(facts) for host, facts in answers.items()}
        made = {host: check(of, expected) for host, of in parts.items() if of is not None}
        return [replace(finding, hosts=(host,)) for host, finding in made.items() if finding]

    return check_all


def _field(part: str, name: str) -> Value:
    """Return what reads one number of ``HostFacts``; None where its part is missing."""
    return lambda facts, _: getattr(getattr(facts, part), name, None)


_whole = "{:,.0f}".format
_seconds = "{:.1f} s".format


def _gigabytes(value: float) -> str:
    return f"{value * (1 << 20) / 1e9:.1f} GB"


def _rate(value: float) -> str:
    return f"{value / 1e9:.2f} GB/s" if value >= 1e8 else f"{value / 1e6:.1f} MB/s"


def _milliseconds(value: float) -> str:
    return f"{1e3 * value:.1f} ms"


@dataclass(frozen=True)
class HostFigure:
    """A number of every host."""

    check: str
    value: Value
    write: Callable[[float], str]
    cure: str

    def _values(self, answers: FactsByHost, expected: Expected) -> dict[str, float]:
        values = {host: self.value(facts, expected) for host, facts in answers.items()}
        return {host: value for host, value in values.items() if value is not None}

    def _findings(
        self, values: Mapping[str, float], bad: Collection[str], state: State, wanted: str
    ) -> list[Finding]:
        """Return a finding for each host: some have a bad state, the others are well."""
        return [
            Finding(self.check, state, self.write(value), wanted, self.cure, (host,), value)
            if host in bad
            else Finding(self.check, "ok", self.write(value), wanted, "", (host,), value)
            for host, value in values.items()
        ]


@dataclass(frozen=True)
class CountedFigure(HostFigure):
    """A number that every host should have, by the profile or as most others."""

    wanted: Callable[[Expected], float]
    """Value by the profile; 0 if it does not set one."""
    least: float = 1.0
    """Share of the wanted value that suffices; 1.0 requires it exactly."""

    def __call__(self, answers: FactsByHost, expected: Expected) -> list[Finding]:
        """Find hosts that have less than they should, or not what most others have."""
        values = self._values(answers, expected)
        counts = Counter(values.values())
        profile = self.wanted(expected)
        wanted = profile or max(counts, key=lambda value: (counts[value], value), default=0.0)
        usual = f"{self.write(wanted)} as on most hosts" if len(values) > 1 else ""
        most = wanted if self.least == 1.0 else float("inf")
        bad = {host for host, value in values.items() if not self.least * wanted <= value <= most}
        return self._findings(values, bad, "wrong", self.write(wanted) if profile else usual)


@dataclass(frozen=True)
class MeasuredFigure(HostFigure):
    """A speed or a time, in which no host should be far behind the others."""

    factor: float
    """Factor by which an outlier is worse than the median."""
    low_is_bad: bool = False
    limit: float = float("inf")
    """Above which any host is slow."""
    fine: float = 0.0
    """Up to which no host is slow, as such a short time has no effect."""

    def __call__(self, answers: FactsByHost, expected: Expected) -> list[Finding]:
        """Find hosts that are far behind the others, or beyond the limit."""
        values = self._values(answers, expected)
        medians = find_outliers(values, self.factor, low_is_bad=self.low_is_bad)
        behind = {host: median for host, median in medians.items() if values[host] > self.fine}
        wanted = "" if self.limit == float("inf") else f"at most {self.write(self.limit)}"
        if behind:
            wanted = f"about {self.write(next(iter(behind.values())))} as on most hosts"
        bad = {host for host, value in values.items() if host in behind or value > self.limit}
        return self._findings(values, bad, "slow", wanted)


def check_answers(answers: FactsByHost, expected: Expected) -> list[Finding]:
    """Find hosts that did not answer, and parts of a host that hang."""
    wanted, cure = "one line within the time", "Tell the site; leave the host out."
    missing = [
        Finding("answer", "wrong", reason, wanted, cure, (host,))
        for host, reason in expected.missing.items()
    ]
    return missing + each(lambda facts: facts, _check_parts)(answers, expected)


def _check_parts(facts: HostFacts, expected: Expected) -> Finding:
    if not facts.errors:
        return Finding("answer", "ok", "complete", "complete")
    errors = "; ".join(f"{part}: {why}" for part, why in facts.errors.items())
    if not any(NO_ANSWER in why for why in facts.errors.values()):
        return Finding("answer", "unknown", errors, "complete")
    cure = "A driver or file system of the host hangs: tell the site."
    return Finding("answer", "wrong", errors, "complete", cure)


_LEAST_MEMORY = 0.9
"""Least share of the nominal memory, of which firmware and drivers use a part."""

DEVICES = CountedFigure(
    "devices (driver)",
    _field("devices", "count"),
    _whole,
    "A device is lost, or hidden from this step: leave the host out and tell the site.",
    lambda expected: expected.devices,
)


def check_devices(answers: FactsByHost, expected: Expected) -> list[Finding]:
    """Compare the devices that the driver shows to this user's processes."""
    counts = {host: facts.devices.count for host, facts in answers.items() if facts.devices}
    state: State = "ok"
    shown, cure = "none: ranks compute on cores", ""
    if any(counts.values()):
        return DEVICES(answers, expected)
    if expected.profile.rank.accelerator == "xpu":
        state, shown = "unknown", "not counted: no tool that we know lists Intel's"
        cure = "Ranks will tell: let hosts sum in pairs (no --quick), or run --acceptance."
    elif expected.devices:
        return DEVICES(answers, expected)
    elif expected.given:
        state = "unknown"
        shown = f"none, though Slurm gave us {max(expected.given.values())}"
        cure = "See that nvidia-smi is on PATH, or that /sys/class/kfd is there."
    return [Finding(DEVICES.check, state, shown, "", cure, (host,)) for host in counts]


def check_affinity(system: SystemFacts, expected: Expected) -> Finding:
    """Check whether agents can bind ranks to the cores of their slots."""
    slots = expected.profile.layout.cores_of_slot
    if not slots:
        return Finding("affinity", "ok", f"cores {system.allowed}")
    try:
        allowed = set(cores_of(system.allowed))
    except ValueError:
        return Finding("affinity", "unknown", system.allowed)
    for index, text in enumerate(slots):
        usable = allowed.intersection(cores_of(text))
        if usable != set(cores_of(text)):
            return Finding(
                check="affinity",
                state="wrong",
                observed=f"slot {index}: {format_cores(usable) or 'none of its cores'}",
                expected=text,
                cure="The step is confined to other cores: ask for whole hosts (--exclusive, no "
                "-c), or correct layout.cores_of_slot; if one host only, leave it out.",
            )
    return Finding("affinity", "ok", f"{len(slots)} slots have their cores")


def check_interfaces(network: NetworkFacts, expected: Expected) -> Finding:
    """Check whether the profile's interfaces are up and have an address."""
    wanted, usable = expected.request.interfaces, network.fabric
    known = ", ".join(sorted(network.addresses))
    if not wanted:
        return Finding("fabric interfaces", "ok", known)
    bad = [name for name in wanted if name not in usable]
    shown = f"{', '.join(usable) or 'none'} up" + (f"; {', '.join(bad)} not" if bad else "")
    cure = "Tell the site: traffic goes over fewer wires, or none." if bad else ""
    if not usable:
        cure = f"This host has {known}: correct 'interfaces', or tell the site."
    state: State = "wrong" if bad else "ok"
    return Finding("fabric interfaces", state, shown, f"{', '.join(wanted)} up", cure)


def plugin_names(profile: ProfileConfig, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names by which RCCL or NCCL would load its network plugin.

    Source: docs.nvidia.com/deeplearning/nccl, NCCL_NET_PLUGIN: a library, or what follows
    ``libnccl-net-`` in its name; ``libnccl-net.so`` (RCCL: ``librccl-net.so``) if left out.

    Returns:
        The names in the order in which they are tried; none where no plugin is used.
    """
    rank = profile.rank
    known = {**environment, **profile.batch.environment, **rank.environment, **rank.many_hosts}
    network = known.get("NCCL_NET", "").lower()
    name = known.get("NCCL_NET_PLUGIN", "")
    if name:
        return (name, f"libnccl-net-{name}.so", f"librccl-net-{name}.so")
    if network in ("", "socket", "ib"):
        return ()
    return ("librccl-net.so", "libnccl-net.so", "libnccl-net-ofi.so")


def check_plugin(library: LibraryFacts, expected: Expected) -> Finding | None:
    """Check whether the network plugin of RCCL or NCCL can be loaded."""
    wanted = " or ".join(expected.request.libraries)
    if not wanted:
        return None
    if library.loaded:
        return Finding("network plugin", "ok", library.loaded, wanted)
    cure = (
        "Load its module (rccl-net-plugin, aws-ofi-nccl) or set NCCL_NET_PLUGIN: without it RCCL "
        "takes TCP, 3 to 4 times slower."
    )
    return Finding("network plugin", "wrong", library.problem, wanted, cure)


_LEAST_FREE_MB = 1024


def check_scratch(scratch: ScratchFacts, expected: Expected) -> Finding:
    """Check place, owner and room of the host's own disk."""
    state: State = "wrong"
    kind = scratch.filesystem
    shown = f"{scratch.path} ({kind}), {scratch.free_mb / 1024:,.0f} GiB free"
    if scratch.problem:
        shown = f"{scratch.path} {scratch.problem}"
        cure = "Ask for it when you submit, or name another."
    elif not scratch.ours:
        cure = "It belongs to another user: name a folder of your own."
    elif scratch.free_mb < _LEAST_FREE_MB:
        cure = "Make room there, or name another place in 'scratch'."
    elif len(expected.hosts) > 1 and is_shared(kind):
        cure = "All hosts would write to one file system: name a local disk in 'scratch'."
    else:
        state, cure = "ok", ""
        if kind == "tmpfs":
            cure = "It takes memory: stores staged there leave less for ranks."
    return Finding("scratch", state, shown, "local, ours, 1 GiB free", cure)


def check_shared(shared: SharedFacts, expected: Expected) -> Finding:
    """Check whether a host sees the shared folder and can write there."""
    if shared.problem:
        cure = "Give --run a folder on a file system that all hosts mount and can write."
        shown = f"{shared.path} {shared.problem}"
        return Finding("shared folder", "wrong", shown, "seen and writable", cure)
    shown = f"{shared.filesystem}, {shared.free_mb / 1024:,.0f} GiB free"
    if shared.free_mb < _LEAST_FREE_MB:
        return Finding("shared folder", "wrong", shown, cure="Make room there.")
    return Finding("shared folder", "ok", shown)


def check_races(answers: FactsByHost, expected: Expected) -> list[Finding]:
    """Check files that one host alone may create: each must have had exactly one winner."""
    name = "shared exclusive creation"
    shared = (facts.shared for facts in answers.values() if facts.shared)
    won = [facts.won for facts in shared if facts.won is not None]
    if not won:
        return []
    winners = Counter(number for numbers in won for number in numbers)
    double = [number for number, count in winners.items() if count > 1]
    wanted = f"once each, tried by {len(won)}"
    if winners and not double:
        return [Finding(name, "ok", "once each", wanted)]
    shown = f"{len(double)} of {len(winners)} files made by several hosts"
    cure = (
        "Hosts see different folders, or O_EXCL does not hold: two controllers could start on one "
        "run. Use another file system."
    )
    return [Finding(name, "wrong", shown if winners else "no file could be made", wanted, cure)]


def check_rename(shared: SharedFacts, expected: Expected) -> Finding | None:
    """Check whether files are replaced whole."""
    name = "shared rename"
    if shared.rename is None:
        return None
    if shared.rename:
        return Finding(name, "ok", "atomic", "atomic")
    cure = "Files would be seen half written: use another file system."
    return Finding(name, "wrong", "shows neither the old nor the new file", "atomic", cure)


_SKEW_SLOW, _SKEW_WRONG = 2.0, 15.0
"""Seconds. A controller's lease is stale after 30 by the file server's clock, and a rank leaves
its last checkpoint at least 30 before the allocation ends, by its own."""


def check_clock(facts: HostFacts, expected: Expected) -> Finding:
    """Compare a host's clock with the file server's where known, else with ours."""
    ahead = facts.shared.ahead_seconds if facts.shared else None
    against = "file server"
    if ahead is None:
        ahead = max(0.0, facts.clock - expected.answered_at)
        ahead += min(0.0, facts.clock - expected.asked_at)
        against = "controller"
    off = abs(ahead)
    shown = f"{off:.1f} s {'ahead of' if ahead >= 0 else 'behind'} the {against}"
    if off < 0.05:
        shown = f"as the {against}"
    state: State = "ok" if off <= _SKEW_SLOW else "slow" if off <= _SKEW_WRONG else "wrong"
    cure = (
        "Have the site run NTP: ranks would leave their last checkpoint too late or too early, "
        "and a live controller may be taken for dead (leases of ranks do not suffer)."
    )
    wanted = f"within {_SKEW_SLOW:.0f} s"
    return Finding("clock", state, shown, wanted, "" if state == "ok" else cure, figure=ahead)


def check_versions(answers: FactsByHost, expected: Expected) -> list[Finding]:
    """Find hosts whose Python or whose copy of this package is not that of the others."""
    versions = {
        host: f"Python {its.python}, hydragnn-hpo {its.version} ({its.package[:8]})"
        for host, facts in answers.items()
        if (its := facts.software)
    }
    usual = max(versions.values(), key=[*versions.values()].count, default="")
    wanted = f"{usual} as on most hosts"
    cure = "Another environment: see PATH and modules there."
    return [
        Finding("versions", "ok", version, hosts=(host,))
        if version == usual
        else Finding("versions", "wrong", version, wanted, cure, (host,))
        for host, version in versions.items()
    ]


_PACK = "Put the environment on the hosts' own disks: pack and broadcast it."


def check_torch(facts: HostFacts, expected: Expected) -> Finding | None:
    """Check whether torch can be imported, and where it lies."""
    if facts.software is None:
        return None
    kind = facts.software.torch_filesystem
    if not facts.software.torch_at:
        cure = "Install hydragnn-hpo with torch in this environment."
        return Finding("torch", "wrong", "not installed", cure=cure)
    if facts.torch and facts.torch.problem:
        cure = "Import torch there by hand: a library of its environment is missing."
        return Finding("torch", "wrong", facts.torch.problem, cure=cure)
    if len(expected.hosts) > 1 and is_shared(kind):
        shown, cure = f"on a shared file system ({kind})", f"{_PACK} All ranks import at once."
        return Finding("torch", "slow", shown, "on a local disk", cure)
    return Finding("torch", "ok", f"on {kind}")


_LEAST_FILES = 4096
_LEAST_SHM_MB = 512
_LEAST_LOCKED = 1 << 30


def check_limits(system: SystemFacts, expected: Expected) -> Finding:
    """Check open files, memory of the job, shared memory, and memory that may be locked."""
    files, shm_mb, locked = system.open_files, system.shm_mb, system.locked_bytes
    bad = {}
    if 0 <= files < _LEAST_FILES:
        bad[f"{files} open files"] = "Raise ulimit -n (hard)."
    if expected.in_job and system.memory_mb < _LEAST_MEMORY * system.installed_mb:
        given = _gigabytes(system.memory_mb)
        installed = _gigabytes(system.installed_mb)
        cure = "Ask for all memory of the hosts (batch.memory of the profile, salloc --mem=0)."
        bad[f"{given} of {installed} memory for the job"] = cure
    if shm_mb < _LEAST_SHM_MB:
        bad[f"{shm_mb} MiB in /dev/shm"] = "Give containers more (--shm-size), or empty it."
    if expected.request.interfaces and 0 <= locked < _LEAST_LOCKED:
        cure = "Raise ulimit -l: network cards lock memory."
        bad[f"{locked >> 20} MiB may be locked"] = cure
    if bad:
        wanted = f"{_LEAST_FILES} files, {_LEAST_SHM_MB} MiB"
        return Finding("limits", "wrong", ", ".join(bad), wanted, " ".join(bad.values()))
    number = "no limit of" if files < 0 else f"{files:,}"
    return Finding("limits", "ok", f"{number} open files, {shm_mb / 1024:,.1f} GiB /dev/shm")


def check_environment(answers: FactsByHost, expected: Expected) -> list[Finding]:
    """Find variables that are known to hide devices, to hang, or to be ignored."""
    visible = expected.profile.rank.visible
    traps = {
        host: _find_traps(facts.software.environment, visible) or [("no known trap", "")]
        for host, facts in answers.items()
        if facts.software
    }
    return [
        Finding("environment", "wrong" if cure else "ok", shown, "", cure, (host,))
        for host, pairs in traps.items()
        for shown, cure in pairs
    ]


def _find_traps(environment: Mapping[str, str], visible: str) -> Sequence[tuple[str, str]]:
    """Return what is found and its cure, for each known trap.

    Args:
        environment: as ranks would inherit it.
        visible: the variable by which the profile shows a rank its device.

    Source: HPE, AMD and OLCF on RCCL over Slingshot; ROCm documentation, "GPU isolation".
    """
    traps = []
    both = {"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}
    if both <= set(environment):
        cure = "Unset HIP_VISIBLE_DEVICES: it counts again within what ROCR_ shows."
        traps.append(("ROCR_ and HIP_VISIBLE_DEVICES are both set", cure))
    if visible in both and "CUDA_VISIBLE_DEVICES" in environment:
        cure = "Unset it: on ROCm it selects once more, and hides devices."
        traps.append(("CUDA_VISIBLE_DEVICES is set on ROCm", cure))
    if environment.get("FI_MR_CACHE_MONITOR", "").lower() == "memhooks":
        traps.append(("FI_MR_CACHE_MONITOR is memhooks", "Set it to kdreg2: memhooks deadlocks."))
    for name in environment:
        if meant := misspelt(name):
            traps.append((f"{name} is set", f"Nothing reads it: it is called {meant}."))
    return traps


_DISK = "Its disk is busy, full or failing: leave the host out."

CHECKS: dict[str, Check] = {
    "answers": check_answers,
    "cores": CountedFigure(
        "cores",
        _field("system", "cores"),
        _whole,
        "Cores are off, or it is another kind of host: leave it out.",
        lambda expected: expected.profile.layout.cores,
    ),
    "memory": CountedFigure(
        "memory",
        _field("system", "memory_mb"),
        _gigabytes,
        "Memory is missing: tell the site and leave the host out.",
        lambda expected: expected.memory_mb("cpu"),
        _LEAST_MEMORY,
    ),
    "devices": check_devices,
    "given": CountedFigure(
        "devices (Slurm)",
        lambda facts, expected: expected.given.get(facts.host, 0) if expected.given else None,
        _whole,
        "Slurm counts other devices there: leave the host out, or ask with the profile's flags.",
        lambda expected: expected.devices,
    ),
    "device memory": CountedFigure(
        "device memory",
        _field("devices", "memory_mb"),
        _gigabytes,
        "Is this the profile's device, or a part of it (MIG)?",
        lambda expected: expected.memory_mb("gpu"),
        _LEAST_MEMORY,
    ),
    "affinity": each(lambda facts: facts.system, check_affinity),
    "interfaces": each(lambda facts: facts.network, check_interfaces),
    "plugin": each(lambda facts: facts.libraries, check_plugin),
    "scratch": each(lambda facts: facts.scratch, check_scratch),
    "write": MeasuredFigure(
        "scratch write", _field("scratch", "write"), _rate, _DISK, 3.0, low_is_bad=True
    ),
    "read": MeasuredFigure(
        "scratch read", _field("scratch", "read"), _rate, _DISK, 3.0, low_is_bad=True
    ),
    "shared": each(lambda facts: facts.shared, check_shared),
    "races": check_races,
    "rename": each(lambda facts: facts.shared, check_rename),
    "sync": MeasuredFigure(
        "shared fsync",
        _field("shared", "sync_seconds"),
        _milliseconds,
        "Each result and checkpoint waits for it: use a faster file system for the run directory.",
        factor=5.0,
        limit=1.0,
        fine=0.1,
    ),
    "clocks": each(lambda facts: facts, check_clock),
    "versions": check_versions,
    "torch": each(lambda facts: facts, check_torch),
    "import": MeasuredFigure(
        "torch import",
        _field("torch", "seconds"),
        _seconds,
        _PACK,
        factor=3.0,
        limit=30.0,
        fine=10.0,
    ),
    "limits": each(lambda facts: facts.system, check_limits),
    "environment": check_environment,
}
"""Name -> check, in the order of the table."""

OFF_SITE = (
    *("answers", "shared", "races", "rename", "sync", "clocks", "versions", "torch", "import"),
    *("limits", "environment"),
)
"""Checks that apply to a host outside the profile's machine, such as a login host."""


def run_checks(
    answers: FactsByHost, expected: Expected, names: Iterable[str] = tuple(CHECKS)
) -> list[Finding]:
    """Run some checks over the facts of all hosts.

    Args:
        answers: host -> its facts.
        expected: what the checks compare with.
        names: keys of ``CHECKS``.
    """
    return [finding for name in names for finding in CHECKS[name](answers, expected)]


def to_exclude(findings: Sequence[Finding], hosts: Sequence[str]) -> dict[str, str]:
    """Choose the hosts to exclude.

    A problem on more than half of the hosts is one of the site or the profile, and excludes no
    host. A pair excludes a host if all pairs of that host are bad and those of its
    partners are not.

    Returns:
        Host -> what is wrong there.
    """
    reasons: dict[str, list[str]] = {}
    for check in dict.fromkeys(finding.check for finding in findings):
        bad = _bad_hosts([finding for finding in findings if finding.check == check])
        if 2 * len(bad) > len(hosts):
            continue
        for host, finding in bad.items():
            wanted = f", expected {finding.expected}" if finding.expected else ""
            reasons.setdefault(host, []).append(f"{check}: {finding.observed}{wanted}")
    return {host: "; ".join(reasons[host]) for host in hosts if host in reasons}


def _bad_hosts(group: Sequence[Finding]) -> dict[str, Finding]:
    """Return the hosts of one check that are to blame, each with a finding."""
    bad = {
        finding.hosts[0]: finding for finding in group if finding.bad and len(finding.hosts) == 1
    }
    pairs = [finding for finding in group if len(finding.hosts) == 2]
    good = {host for finding in pairs if not finding.bad for host in finding.hosts}
    for finding in pairs:
        blamed = [host for host in finding.hosts if host not in good]
        if finding.bad and len(blamed) == 1:
            bad.setdefault(blamed[0], finding)
    return bad
