"""Scratch space, the shared folder, and clocks."""

from collections import Counter
from collections.abc import Mapping

from hydragnn_hpo.launching.doctor.checks.compare import Figure, compare_speeds
from hydragnn_hpo.launching.doctor.expected import Expected
from hydragnn_hpo.launching.doctor.facts import HostFacts, Scratch, Shared
from hydragnn_hpo.launching.doctor.filesystems import is_shared
from hydragnn_hpo.launching.doctor.finding import Finding, State

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
WRITE = Figure("scratch write", _rate, _DISK)
READ = Figure("scratch read", _rate, _DISK)
SYNC = Figure(
    "shared fsync",
    _milliseconds,
    "Each result and checkpoint waits for it: use a faster file system for the run directory.",
)


def check_scratch(answers: Mapping[str, HostFacts], expected: Expected) -> list[Finding]:
    """Judge place, owner and room of the host's own disk."""
    seen = {host: facts.scratch for host, facts in answers.items() if facts.scratch}
    several = len(expected.hosts) > 1
    return [_scratch(host, disk, several) for host, disk in seen.items()]


def _scratch(host: str, disk: Scratch, several: bool) -> Finding:
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
    """Judge the shared folder: seen by all, made once, renamed whole."""
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


def _seen(host: str, shared: Shared) -> Finding:
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
    """Judge files that one host alone may make: each must have had exactly one winner."""
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
