"""Checks of ``doctor``: pure functions from the facts of all hosts to findings."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hydragnn_hpo.config import ProfileConfig, cores_of, misspelt
from hydragnn_hpo.launching.doctor_findings import Finding, State, find_outliers
from hydragnn_hpo.launching.host_probe import ProbeRequest, is_shared


class _Facts(BaseModel):
    """Part of an answer; what it does not know is left out."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class SystemFacts(_Facts):
    """Cores, memory and limits."""

    cores: int
    allowed: str
    memory_mb: int
    kernel: str
    files: int
    """Open files that can be allowed; -1: no limit. So are the next two, in bytes."""
    core_bytes: int
    locked_bytes: int
    shm_mb: int


class BindingFacts(_Facts):
    """Cores that a process got which was bound to a slot's."""

    masks: tuple[str, ...]


class DevicesFacts(_Facts):
    """As the driver shows them to a process."""

    seen: int
    memory_mb: int


class InterfaceFacts(_Facts):
    """One of the fabric's."""

    address: str | None = None
    up: bool


class NetworkFacts(_Facts):
    """Interfaces of the host."""

    known: dict[str, str]
    fabric: dict[str, InterfaceFacts]


class LibrariesFacts(_Facts):
    """What could be loaded, and why others could not."""

    loaded: str
    tried: dict[str, str]


class ScratchFacts(_Facts):
    """The host's own disk; speeds in bytes per second."""

    path: str
    problem: str
    ours: bool = True
    free_mb: int = 0
    filesystem: str = "unknown"
    write: float | None = None
    read: float | None = None


class SharedFacts(_Facts):
    """The folder that all hosts see; the last five of hosts of the sample only."""

    path: str
    problem: str
    filesystem: str = "unknown"
    free_mb: int = 0
    won: tuple[int, ...] | None = None
    rename: bool | None = None
    sync_seconds: float | None = None
    ahead_seconds: float | None = None
    locks: str | None = None


class SoftwareFacts(_Facts):
    """Versions, and variables whose names tell no secret."""

    python: str
    executable: str
    package: str
    version: str
    torch_at: str
    torch_filesystem: str
    environment: dict[str, str]


class TorchFacts(_Facts):
    """How long an import took."""

    seconds: float | None = None
    version: str = ""
    problem: str = ""


class HostFacts(_Facts):
    """All that one host answered."""

    host: str = Field(min_length=1, max_length=255)
    clock: float
    errors: dict[str, str] = {}
    """Part -> why it is missing."""
    system: SystemFacts | None = None
    binding: BindingFacts | None = None
    devices: DevicesFacts | None = None
    network: NetworkFacts | None = None
    libraries: LibrariesFacts | None = None
    scratch: ScratchFacts | None = None
    shared: SharedFacts | None = None
    software: SoftwareFacts | None = None
    torch: TorchFacts | None = None


def parse_answer(text: str) -> HostFacts | None:
    """Read what a host answered; None where it is no answer."""
    try:
        return HostFacts.model_validate_json(text)
    except ValidationError:
        return None


@dataclass(frozen=True)
class Expected:
    """What all checks compare with."""

    profile: ProfileConfig
    request: ProbeRequest
    hosts: tuple[str, ...]
    """That we hold and asked."""

    missing: dict[str, str] = field(default_factory=dict)
    """Hosts that did not answer, and why."""

    asked_at: float = 0.0
    """When the request was sent and when the last answer was there, by our clock, in seconds since
    the epoch."""
    answered_at: float = float("inf")

    given: Mapping[str, int] = field(default_factory=dict)
    """Devices that Slurm gave to our job, by host; empty where nobody says."""

    here: bool = False
    """Whether this computer was asked alone, outside of any allocation."""

    @property
    def devices(self) -> int:
        """Devices of a host; 0 where the profile does not say."""
        profile = self.profile
        if profile.device == "cpu":
            return 0
        return len(set(profile.layout.device_of_slot)) or profile.slots_per_host

    @property
    def memory_mb(self) -> float:
        """Memory of a device, or of a host that computes on its cores; 0 if not known."""
        profile = self.profile
        each = profile.memory_gb * 1e9 / (1 << 20)
        return each if profile.device == "gpu" else each * profile.slots_per_host


def plugin_names(profile: ProfileConfig, environment: dict[str, str]) -> tuple[str, ...]:
    """Return the names by which RCCL or NCCL would load its network plugin.

    Source: docs.nvidia.com/deeplearning/nccl, NCCL_NET_PLUGIN: a library, or what follows
    ``libnccl-net-`` in its name; ``libnccl-net.so`` (RCCL: ``librccl-net.so``) if left out.
    """
    rank = profile.rank
    said = {**environment, **profile.batch.environment, **rank.environment, **rank.many_hosts}
    network = said.get("NCCL_NET", "").lower()
    name = said.get("NCCL_NET_PLUGIN", "")
    if name:
        return (name, f"libnccl-net-{name}.so", f"librccl-net-{name}.so")
    if network in ("", "socket", "ib"):
        return ()
    return ("librccl-net.so", "libnccl-net.so", "libnccl-net-ofi.so")


@dataclass(frozen=True)
class HostFigure:
    """Name, format and cure of one figure of a host."""

    check: str
    write: Callable[[float], str]
    cure: str
    """For hosts that are not as they should be."""


def compare_counts(
    figure: HostFigure, values: Mapping[str, float], expected: float, *, least: float = 1.0
) -> list[Finding]:
    """Find hosts that have less than a share of what is expected, or not what most others have.

    Args:
        figure: what it is about.
        values: of each host.
        expected: by the profile; 0 where it does not say.
        least: share of what is expected that will do; 1.0 wants it exactly.
    """
    wanted = expected or _usual(values)

    def fits(value: float) -> bool:
        return value == wanted if least == 1.0 else value >= least * wanted

    source = "" if expected else " as on most hosts" if len(values) > 1 else ""
    return [
        Finding(
            figure.check,
            "ok" if fits(value) else "wrong",
            figure.write(value),
            f"{figure.write(wanted)}{source}" if expected or len(values) > 1 else "",
            "" if fits(value) else figure.cure,
            (host,),
            value,
        )
        for host, value in values.items()
    ]


def _usual(values: Mapping[str, float]) -> float:
    """Return the most frequent value; the largest of those that are equally frequent."""
    counts = Counter(values.values())
    return max(counts, key=lambda value: (counts[value], value), default=0.0)


def compare_speeds(
    figure: HostFigure,
    values: Mapping[str, float],
    *,
    factor: float,
    low_is_bad: bool,
    limit: float | None = None,
    fine: float | None = None,
) -> list[Finding]:
    """Find hosts that are far behind the others, or beyond a limit.

    Args:
        figure: what it is about.
        values: of each host.
        factor: by which a host must be worse than the median.
        low_is_bad: whether small values are bad.
        limit: beyond which any host is slow.
        fine: up to which none is, whatever the others do: a time that nobody would notice.
    """
    slow = find_outliers(values, factor, low_is_bad=low_is_bad)
    if fine is not None:
        slow = {host: median for host, median in slow.items() if values[host] > fine}

    def state(host: str, value: float) -> State:
        beyond = limit is not None and (value < limit if low_is_bad else value > limit)
        return "slow" if host in slow or beyond else "ok"

    expectation = _expectation(figure, next(iter(slow.values()), None), limit, low_is_bad)
    return [
        _judged(figure, host, value, state(host, value), expectation)
        for host, value in values.items()
    ]


def _expectation(
    figure: HostFigure, median: float | None, limit: float | None, low_is_bad: bool
) -> str:
    """Return what is expected: as the others, else the limit."""
    if median is not None:
        return f"about {figure.write(median)} as on most hosts"
    edge = "at least" if low_is_bad else "at most"
    return "" if limit is None else f"{edge} {figure.write(limit)}"


def _judged(figure: HostFigure, host: str, value: float, state: State, expected: str) -> Finding:
    cure = "" if state == "ok" else figure.cure
    return Finding(figure.check, state, figure.write(value), expected, cure, (host,), value)


NO_ANSWER = "no answer in time"
"""What a probe says of a part that it had to kill."""


def check_answers(answers: Mapping[str, HostFacts], expected: Expected) -> list[Finding]:
    """Find hosts that did not answer, and parts of a host that hang."""
    found = [
        Finding(
            check="answer",
            state="wrong",
            found=reason,
            expected="one line within the time",
            cure="Tell the site; leave the host out.",
            hosts=(host,),
        )
        for host, reason in expected.missing.items()
    ]
    for host, facts in answers.items():
        found.append(_parts(host, facts.errors))
    return found


def _parts(host: str, errors: Mapping[str, str]) -> Finding:
    state: State = "ok"
    if errors:
        hangs = any(NO_ANSWER in why for why in errors.values())
        state = "wrong" if hangs else "unknown"
    said = "; ".join(f"{part}: {why}" for part, why in errors.items())
    cure = "A driver or file system of the host hangs: tell the site." if state == "wrong" else ""
    return Finding("answer", state, said or "complete", "complete", cure, (host,))


def check_number(answers: Mapping[str, HostFacts], expected: Expected) -> list[Finding]:
    """Compare the number of hosts with that of the whole machine."""
    held, known = len(expected.hosts), expected.profile.hosts
    if expected.here or not known:
        return []
    state: State = "ok" if held <= known else "wrong"
    cure = f"Is this '{expected.profile.name}'? Name the right --machine." if held > known else ""
    return [Finding("number of hosts", state, f"{held:,}", f"at most {known:,}", cure)]


_LEAST_MEMORY = 0.9
"""Of what a data sheet promises: firmware and drivers take their share."""


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _gigabytes(value: float) -> str:
    return f"{value * (1 << 20) / 1e9:.1f} GB"


CORES = HostFigure("cores", _whole, "Cores are off, or it is another kind of host: leave it out.")
MEMORY = HostFigure(
    "memory", _gigabytes, "Memory is missing: tell the site and leave the host out."
)
DEVICE_MEMORY = HostFigure(
    "device memory", _gigabytes, "Is this the profile's device, or a part of it (MIG)?"
)
SEEN = HostFigure(
    "devices (driver)",
    _whole,
    "A device is lost, or hidden from this step: leave the host out and tell the site.",
)
GIVEN = HostFigure(
    "devices (Slurm)",
    _whole,
    "Slurm counts other devices there: leave the host out, or ask with the profile's flags.",
)


def check_cores(answers: Mapping[str, HostFacts], expected: Expected) -> list[Finding]:
    """Compare physical cores with the profile, or with the other hosts."""
    values = {h: float(f.system.cores) for h, f in answers.items() if f.system and f.system.cores}
    return compare_counts(CORES, values, expected.profile.layout.cores)


def check_memory(answers: Mapping[str, HostFacts], expected: Expected) -> list[Finding]:
    """Compare the memory of hosts with the profile where they compute on it, or with the others."""
    values = {h: float(f.system.memory_mb) for h, f in answers.items() if f.system}
    wanted = expected.memory_mb if expected.profile.device == "cpu" else 0.0
    return compare_counts(MEMORY, values, wanted, least=_LEAST_MEMORY)


def check_devices(answers: Mapping[str, HostFacts], expected: Expected) -> list[Finding]:
    """Compare the devices that the driver shows to a process of ours."""
    values = {h: float(f.devices.seen) for h, f in answers.items() if f.devices}
    if any(values.values()):
        return compare_counts(SEEN, values, expected.devices)
    if expected.profile.rank.accelerator == "xpu":
        found = "not counted: no tool that we know lists Intel's"
        cure = "Ranks will tell: let hosts sum in pairs (no --quick), or run --acceptance."
        return [Finding(SEEN.check, "unknown", found, "", cure, (host,)) for host in values]
    if not expected.devices:
        return _no_devices(values, expected)
    return compare_counts(SEEN, values, expected.devices)


def _no_devices(values: Mapping[str, float], expected: Expected) -> list[Finding]:
    """Report what it means that there are no devices."""
    state: State = "ok"
    found, cure = "none: ranks compute on cores", ""
    if expected.given:
        found = f"none, though Slurm gave us {max(expected.given.values())}"
        state, cure = "unknown", "See that nvidia-smi is on PATH, or that /sys/class/kfd is there."
    return [Finding("devices (driver)", state, found, "", cure, (host,)) for host in values]


def check_given(answers: Mapping[str, HostFacts], expected: Expected) -> list[Finding]:
    """Compare the devices that Slurm gave to our job."""
    values = {host: float(expected.given.get(host, 0)) for host in answers if expected.given}
    if not any(values.values()) and not expected.devices:
        return []
    return compare_counts(GIVEN, values, expected.devices)


def check_device_memory(answers: Mapping[str, HostFacts], expected: Expected) -> list[Finding]:
    """Compare the smallest device of each host."""
    seen = {host: facts.devices for host, facts in answers.items() if facts.devices}
    values = {host: float(d.memory_mb) for host, d in seen.items() if d.memory_mb}
    wanted = expected.memory_mb if expected.profile.device == "gpu" else 0.0
    return compare_counts(DEVICE_MEMORY, values, wanted, least=_LEAST_MEMORY)


def check_affinity(answers: Mapping[str, HostFacts], expected: Expected) -> list[Finding]:
    """Compare the cores that bound processes got with those of their slots."""
    wanted = [cores_of(text) for text in expected.request.slots]
    found = []
    for host, facts in answers.items():
        if facts.binding and wanted:
            found.append(_affinity(host, facts.binding.masks, wanted, expected.request.slots))
        elif facts.system and not wanted:
            said = f"cores {facts.system.allowed}"
            found.append(Finding("affinity", "ok", said, hosts=(host,)))
    return found


def _affinity(
    host: str, masks: tuple[str, ...], wanted: list[tuple[int, ...]], slots: tuple[str, ...]
) -> Finding:
    """Check the masks of one host; the first that differs is shown."""
    for index, mask in enumerate(masks):
        if mask != slots[index] and _cores(mask) != set(wanted[index]):
            return Finding(
                check="affinity",
                state="wrong",
                found=f"slot {index}: {mask}",
                expected=slots[index],
                cure="The step is confined to other cores: ask for whole hosts (--exclusive, no "
                "-c), or correct layout.cores_of_slot; if one host only, leave it out.",
                hosts=(host,),
            )
    return Finding("affinity", "ok", f"{len(masks)} masks as in the profile", hosts=(host,))


def _cores(mask: str) -> set[int]:
    try:
        return set(cores_of(mask))
    except ValueError:  # the kernel's excuse
        return set()


def check_interfaces(answers: Mapping[str, HostFacts], expected: Expected) -> list[Finding]:
    """Find interfaces of the profile that are missing or down."""
    names = expected.request.interfaces
    seen = {host: facts.network for host, facts in answers.items() if facts.network}
    if not names:
        return [
            Finding("fabric interfaces", "ok", ", ".join(sorted(network.known)), hosts=(host,))
            for host, network in seen.items()
        ]
    return [_interfaces(host, network, names) for host, network in seen.items()]


def _interfaces(host: str, network: NetworkFacts, names: tuple[str, ...]) -> Finding:
    up = [n for n in names if n in network.fabric and network.fabric[n].up]
    addressed = [name for name in up if network.fabric[name].address]
    bad = [name for name in names if name not in addressed]
    state: State = "ok" if not bad else "wrong"
    cure = "Tell the site: traffic goes over fewer wires, or none." if bad else ""
    if not addressed:
        cure = f"This host has {', '.join(sorted(network.known))}: correct 'interfaces', or tell "
        cure += "the site."
    return Finding(
        check="fabric interfaces",
        state=state,
        found=f"{', '.join(addressed) or 'none'} up" + (f"; {', '.join(bad)} not" if bad else ""),
        expected=f"{', '.join(names)} up",
        cure=cure,
        hosts=(host,),
    )


def check_plugin(answers: Mapping[str, HostFacts], expected: Expected) -> list[Finding]:
    """Find hosts where the network plugin of RCCL or NCCL cannot be loaded."""
    if not expected.request.libraries:
        return []
    found = []
    for host, facts in answers.items():
        if facts.libraries is None:
            continue
        loaded = facts.libraries.loaded
        why = next(iter(facts.libraries.tried.values()), "")
        found.append(
            Finding(
                check="network plugin",
                state="ok" if loaded else "wrong",
                found=loaded or why,
                expected=" or ".join(expected.request.libraries),
                cure=""
                if loaded
                else "Load its module (rccl-net-plugin, aws-ofi-nccl) or set NCCL_NET_PLUGIN: "
                "without it RCCL takes TCP, 3 to 4 times slower.",
                hosts=(host,),
            )
        )
    return found


_LEAST_FREE_MB = 1024
_SYNC_FINE, _SYNC_LIMIT = 0.1, 1.0
_SKEW_SLOW, _SKEW_WRONG = 2.0, 15.0
"""Seconds. A controller's lease is stale after 30 by the file server's clock, and a rank leaves
its last checkpoint at least 30 before the allocation ends, by its own."""


def _rate(value: float) -> str:
    return f"{value / 1e9:.2f} GB/s" if value >= 1e8 else f"{value / 1e6:.1f} MB/s"


def _milliseconds(value: float) -> str:
    return f"{1e3 * value:.1f} ms"


_DISK = "Its disk is busy, full or failing: leave the host out."
WRITE = HostFigure("scratch write", _rate, _DISK)
READ = HostFigure("scratch read", _rate, _DISK)
SYNC = HostFigure(
    "shared fsync",
    _milliseconds,
    "Each result and checkpoint waits for it: use a faster file system for the run directory.",
)


def check_scratch(answers: Mapping[str, HostFacts], expected: Expected) -> list[Finding]:
    """Check place, owner and room of the host's own disk."""
    seen = {host: facts.scratch for host, facts in answers.items() if facts.scratch}
    several = len(expected.hosts) > 1
    return [_scratch(host, disk, several) for host, disk in seen.items()]


def _scratch(host: str, disk: ScratchFacts, several: bool) -> Finding:
    state: State = "wrong"
    found, cure = f"{disk.path} {disk.problem}", "Ask for it when you submit, or name another."
    if not disk.problem:
        found = f"{disk.path} ({disk.filesystem}), {disk.free_mb / 1024:,.0f} GiB free"
        if not disk.ours:
            cure = "It belongs to somebody else: name a folder of your own."
        elif disk.free_mb < _LEAST_FREE_MB:
            cure = "Make room there, or name another place in 'scratch'."
        elif several and is_shared(disk.filesystem):
            cure = "All hosts would write to one file system: name a local disk in 'scratch'."
        else:
            state, cure = "ok", ""
            if disk.filesystem == "tmpfs":
                cure = "It takes memory: stores staged there leave less for ranks."
    return Finding("scratch", state, found, "local, ours, 1 GiB free", cure, (host,))


def check_disk_speed(answers: Mapping[str, HostFacts], expected: Expected) -> list[Finding]:
    """Find disks far slower than the others'."""
    seen = {host: facts.scratch for host, facts in answers.items() if facts.scratch}
    found = []
    for figure, key in ((WRITE, "write"), (READ, "read")):
        values = {host: getattr(disk, key) for host, disk in seen.items() if getattr(disk, key)}
        found += compare_speeds(figure, values, factor=3.0, low_is_bad=True)
    return found


def check_shared(answers: Mapping[str, HostFacts], expected: Expected) -> list[Finding]:
    """Check the shared folder: seen by all, made once, renamed whole."""
    seen = {host: facts.shared for host, facts in answers.items() if facts.shared}
    found = [_seen(host, shared) for host, shared in seen.items()]
    found += _races({h: s.won for h, s in seen.items() if s.won is not None}, expected)
    for host, shared in seen.items():
        if shared.rename is not None:
            found.append(_rename(host, shared.rename))
        if shared.locks:
            said = f"{shared.locks}; nothing of ours relies on them there"
            found.append(Finding("shared locks", "ok", said, hosts=(host,)))
    values = {h: s.sync_seconds for h, s in seen.items() if s.sync_seconds is not None}
    return found + compare_speeds(
        SYNC, values, factor=5.0, low_is_bad=False, limit=_SYNC_LIMIT, fine=_SYNC_FINE
    )


def _seen(host: str, shared: SharedFacts) -> Finding:
    if shared.problem:
        cure = "Give --run a folder that all hosts see, or set machine.shared_files = false."
        found = f"{shared.path} {shared.problem}"
        return Finding("shared folder", "wrong", found, "seen and writable", cure, (host,))
    full = shared.free_mb < _LEAST_FREE_MB
    return Finding(
        check="shared folder",
        state="wrong" if full else "ok",
        found=f"{shared.filesystem}, {shared.free_mb / 1024:,.0f} GiB free",
        cure="Make room there." if full else "",
        hosts=(host,),
    )


def _races(won: Mapping[str, tuple[int, ...]], expected: Expected) -> list[Finding]:
    """Check files that one host alone may create: each must have had exactly one winner."""
    if not won:
        return []
    winners = Counter(number for numbers in won.values() for number in numbers)
    double = [number for number, count in winners.items() if count > 1]
    bad = bool(double) or not winners
    said = f"{len(double)} of {len(winners)} files made by several hosts" if double else "once each"
    return [
        Finding(
            check="shared exclusive creation",
            state="wrong" if bad else "ok",
            found=said if winners else "no file could be made",
            expected=f"once each, tried by {len(won)}",
            cure="Hosts see different folders, or O_EXCL does not hold: two controllers could "
            "start on one run. Use another file system."
            if bad
            else "",
        )
    ]


def _rename(host: str, works: bool) -> Finding:
    cure = "" if works else "Files would be seen half written: use another file system."
    said = "atomic" if works else "shows neither the old nor the new file"
    return Finding("shared rename", "ok" if works else "wrong", said, "atomic", cure, (host,))


def check_clocks(answers: Mapping[str, HostFacts], expected: Expected) -> list[Finding]:
    """Compare clocks of hosts with the file server's where known, and with ours."""
    found = []
    for host, facts in answers.items():
        ahead = facts.shared.ahead_seconds if facts.shared else None
        against = "file server"
        if ahead is None:
            ahead = max(0.0, facts.clock - expected.answered_at)
            ahead += min(0.0, facts.clock - expected.asked_at)
            against = "controller"
        found.append(_clock(host, ahead, against))
    return found


def _clock(host: str, ahead: float, against: str) -> Finding:
    off = abs(ahead)
    state: State = "wrong" if off > _SKEW_WRONG else "slow" if off > _SKEW_SLOW else "ok"
    cure = (
        ""
        if state == "ok"
        else (
            "Have the site run NTP: ranks would leave their last checkpoint too late or too early, "
            "and a live controller may be taken for dead (leases of ranks do not suffer)."
        )
    )
    said = f"{off:.1f} s {'ahead of' if ahead >= 0 else 'behind'} the {against}"
    found = said if off >= 0.05 else f"as the {against}"
    return Finding("clock", state, found, f"within {_SKEW_SLOW:.0f} s", cure, (host,), ahead)


_IMPORT_FINE, _IMPORT_LIMIT = 10.0, 30.0
_LEAST_FILES = 4096
_LEAST_SHM_MB = 512
_LEAST_LOCKED = 1 << 30


def _seconds(value: float) -> str:
    return f"{value:.1f} s"


IMPORT = HostFigure(
    "torch import",
    _seconds,
    "Put the environment on the hosts' own disks: pack and broadcast it.",
)


def check_versions(answers: Mapping[str, HostFacts], expected: Expected) -> list[Finding]:
    """Find hosts whose Python or whose copy of this package is not that of the others."""
    seen = {host: facts.software for host, facts in answers.items() if facts.software}
    if not seen:
        return []
    kinds = {host: (s.python, s.version, s.package) for host, s in seen.items()}
    usual = Counter(kinds.values()).most_common(1)[0][0]
    found = []
    for host, kind in kinds.items():
        same = kind == usual
        found.append(
            Finding(
                check="versions",
                state="ok" if same else "wrong",
                found=_version(kind),
                expected="" if same else f"{_version(usual)} as on most hosts",
                cure="" if same else "Another environment is found there: see PATH and modules.",
                hosts=(host,),
            )
        )
    return found


def _version(kind: tuple[str, str, str]) -> str:
    python, version, package = kind
    return f"Python {python}, hydragnn-hpo {version} ({package[:8]})"


def check_torch(answers: Mapping[str, HostFacts], expected: Expected) -> list[Finding]:
    """Check where torch lies and how long its import takes."""
    found = []
    several = len(expected.hosts) > 1
    for host, facts in answers.items():
        if facts.software is None:
            continue
        where, kind = facts.software.torch_at, facts.software.torch_filesystem
        if not where:
            cure = "Install hydragnn-hpo with torch in this environment."
            found.append(Finding("torch", "wrong", "not installed", "", cure, (host,)))
        elif facts.torch and facts.torch.problem:
            cure = "Import torch there by hand: a library of its environment is missing."
            found.append(Finding("torch", "wrong", facts.torch.problem, "", cure, (host,)))
        elif several and is_shared(kind):
            cure = f"{IMPORT.cure} All ranks import at once."
            said = f"on a shared file system ({kind})"
            found.append(Finding("torch", "slow", said, "on a local disk", cure, (host,)))
        else:
            found.append(Finding("torch", "ok", f"on {kind}", hosts=(host,)))
    times = {h: f.torch.seconds for h, f in answers.items() if f.torch and f.torch.seconds}
    return found + compare_speeds(
        IMPORT, times, factor=3.0, low_is_bad=False, limit=_IMPORT_LIMIT, fine=_IMPORT_FINE
    )


def check_limits(answers: Mapping[str, HostFacts], expected: Expected) -> list[Finding]:
    """Check open files, shared memory, and memory that network cards may lock."""
    fabric = bool(expected.request.interfaces)
    return [_limits(host, facts.system, fabric) for host, facts in answers.items() if facts.system]


def _limits(host: str, system: SystemFacts, fabric: bool) -> Finding:
    bad, cures = [], []
    if 0 <= system.files < _LEAST_FILES:
        bad.append(f"{system.files} open files")
        cures.append("Raise ulimit -n (hard).")
    if system.shm_mb < _LEAST_SHM_MB:
        bad.append(f"{system.shm_mb} MiB in /dev/shm")
        cures.append("Give containers more (--shm-size), or empty it.")
    if fabric and 0 <= system.locked_bytes < _LEAST_LOCKED:
        bad.append(f"{system.locked_bytes >> 20} MiB may be locked")
        cures.append("Raise ulimit -l: network cards lock memory.")
    note = ""
    if system.core_bytes < 0:
        note = "Cores of crashed ranks are written in full: ulimit -c 0 spares the disk."
    files = "no limit of" if system.files < 0 else f"{system.files:,}"
    return Finding(
        check="limits",
        state="wrong" if bad else "ok",
        found=", ".join(bad) or f"{files} open files, {system.shm_mb / 1024:,.1f} GiB /dev/shm",
        expected=f"{_LEAST_FILES} files, {_LEAST_SHM_MB} MiB" if bad else "",
        cure=" ".join(cures) or note,
        hosts=(host,),
    )


def check_environment(answers: Mapping[str, HostFacts], expected: Expected) -> list[Finding]:
    """Find variables that are known to hide devices, to hang, or to be ignored."""
    found = []
    for host, facts in answers.items():
        if facts.software is None:
            continue
        traps = find_traps(facts.software.environment, expected.profile.rank.visible)
        for said, cure in traps:
            found.append(Finding("environment", "wrong", said, "", cure, (host,)))
        if not traps:
            found.append(Finding("environment", "ok", "no known trap", hosts=(host,)))
    return found


def find_traps(environment: Mapping[str, str], visible: str) -> Sequence[tuple[str, str]]:
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


Check = Callable[[Mapping[str, HostFacts], Expected], list[Finding]]

CHECKS: dict[str, Check] = {
    "answers": check_answers,
    "number": check_number,
    "cores": check_cores,
    "memory": check_memory,
    "devices": check_devices,
    "given": check_given,
    "device memory": check_device_memory,
    "affinity": check_affinity,
    "interfaces": check_interfaces,
    "plugin": check_plugin,
    "scratch": check_scratch,
    "disk speed": check_disk_speed,
    "shared": check_shared,
    "clocks": check_clocks,
    "versions": check_versions,
    "torch": check_torch,
    "limits": check_limits,
    "environment": check_environment,
}
"""In the order of the table."""


OFF_SITE = ("answers", "shared", "clocks", "versions", "torch", "limits", "environment")
"""Checks that make sense on a host that is none of the profile's, such as a login host."""


def run_checks(
    answers: Mapping[str, HostFacts], expected: Expected, names: Iterable[str] = tuple(CHECKS)
) -> list[Finding]:
    """Run some checks over the facts of all hosts."""
    return [finding for name in names for finding in CHECKS[name](answers, expected)]


def to_exclude(findings: Sequence[Finding], hosts: Sequence[str]) -> dict[str, str]:
    """Return the hosts that are better left alone, with what was found there.

    What is wrong on more than half of the hosts is wrong with the site or the profile: it
    excludes nobody. A pair excludes a host if all pairs of that host are bad and those of its
    partners are not.
    """
    reasons: dict[str, list[str]] = {}
    by_check: dict[str, list[Finding]] = {}
    for finding in findings:
        by_check.setdefault(finding.check, []).append(finding)
    for check, group in by_check.items():
        bad = _bad_hosts(group)
        if 2 * len(bad) > len(hosts):
            continue
        for host, said in bad.items():
            reasons.setdefault(host, []).append(f"{check}: {said}")
    return {host: "; ".join(reasons[host]) for host in hosts if host in reasons}


def _bad_hosts(group: Sequence[Finding]) -> dict[str, str]:
    """Return the hosts of one check that are to blame, with what was found and expected."""
    bad = {f.hosts[0]: _reason(f) for f in group if f.bad and len(f.hosts) == 1}
    pairs = [finding for finding in group if len(finding.hosts) == 2]
    good = {host for finding in pairs if not finding.bad for host in finding.hosts}
    for finding in pairs:
        blamed = [host for host in finding.hosts if host not in good]
        if finding.bad and len(blamed) == 1:
            bad.setdefault(blamed[0], _reason(finding))
    return bad


def _reason(finding: Finding) -> str:
    return f"{finding.found}, expected {finding.expected}" if finding.expected else finding.found
