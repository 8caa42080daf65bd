"""Cores, memory, devices, and the cores that slots really get."""

from collections.abc import Mapping

from hydragnn_hpo.config.site import cores_of
from hydragnn_hpo.launching.doctor.checks.compare import Figure, compare_counts
from hydragnn_hpo.launching.doctor.expected import Expected
from hydragnn_hpo.launching.doctor.facts import HostFacts
from hydragnn_hpo.launching.doctor.finding import Finding, State

_LEAST_MEMORY = 0.9
"""Of what a data sheet promises: firmware and drivers take their share."""


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _gigabytes(value: float) -> str:
    return f"{value * (1 << 20) / 1e9:.1f} GB"


CORES = Figure("cores", _whole, "Cores are off, or it is another kind of host: leave it out.")
MEMORY = Figure("memory", _gigabytes, "Memory is missing: tell the site and leave the host out.")
DEVICE_MEMORY = Figure(
    "device memory", _gigabytes, "Is this the profile's device, or a part of it (MIG)?"
)
SEEN = Figure(
    "devices (driver)",
    _whole,
    "A device is lost, or hidden from this step: leave the host out and tell the site.",
)
GIVEN = Figure(
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
    """Say what it means that there are none."""
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
    wanted = [cores_of(text) for text in expected.order.slots]
    found = []
    for host, facts in answers.items():
        if facts.binding and wanted:
            found.append(_affinity(host, facts.binding.masks, wanted, expected.order.slots))
        elif facts.system and not wanted:
            said = f"cores {facts.system.allowed}"
            found.append(Finding("affinity", "ok", said, hosts=(host,)))
    return found


def _affinity(
    host: str, masks: tuple[str, ...], wanted: list[tuple[int, ...]], slots: tuple[str, ...]
) -> Finding:
    """Judge the masks of one host; the first that differs is shown."""
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
