"""Versions, the import of torch, limits, and variables that are known traps."""

from collections import Counter
from collections.abc import Mapping, Sequence

from hydragnn_hpo.config.variables import misspelt
from hydragnn_hpo.launching.doctor.checks.compare import Figure, compare_speeds
from hydragnn_hpo.launching.doctor.expected import Expected
from hydragnn_hpo.launching.doctor.facts import HostFacts, System
from hydragnn_hpo.launching.doctor.filesystems import is_shared
from hydragnn_hpo.launching.doctor.finding import Finding

_IMPORT_FINE, _IMPORT_LIMIT = 10.0, 30.0
_LEAST_FILES = 4096
_LEAST_SHM_MB = 512
_LEAST_LOCKED = 1 << 30


def _seconds(value: float) -> str:
    return f"{value:.1f} s"


IMPORT = Figure(
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
    """Judge where torch lies and how long its import takes."""
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
    """Judge open files, shared memory, and memory that network cards may lock."""
    fabric = bool(expected.order.interfaces)
    return [_limits(host, facts.system, fabric) for host, facts in answers.items() if facts.system]


def _limits(host: str, system: System, fabric: bool) -> Finding:
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
        traps = traps_in(facts.software.environment, expected.profile.rank.visible)
        for said, cure in traps:
            found.append(Finding("environment", "wrong", said, "", cure, (host,)))
        if not traps:
            found.append(Finding("environment", "ok", "no known trap", hosts=(host,)))
    return found


def traps_in(environment: Mapping[str, str], visible: str) -> Sequence[tuple[str, str]]:
    """Give what is found and its cure, for each known trap.

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
