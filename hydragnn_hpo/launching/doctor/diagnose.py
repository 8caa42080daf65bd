"""All checks, and the hosts that are better left alone."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from hydragnn_hpo.launching.doctor.checks.fabric import check_interfaces, check_plugin
from hydragnn_hpo.launching.doctor.checks.hardware import (
    check_affinity,
    check_cores,
    check_device_memory,
    check_devices,
    check_given,
    check_memory,
)
from hydragnn_hpo.launching.doctor.checks.presence import check_answers, check_number
from hydragnn_hpo.launching.doctor.checks.software import (
    check_environment,
    check_limits,
    check_torch,
    check_versions,
)
from hydragnn_hpo.launching.doctor.checks.storage import (
    check_clocks,
    check_disk_speed,
    check_scratch,
    check_shared,
)
from hydragnn_hpo.launching.doctor.expected import Expected
from hydragnn_hpo.launching.doctor.facts import HostFacts
from hydragnn_hpo.launching.doctor.finding import Finding

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


def diagnose(
    answers: Mapping[str, HostFacts], expected: Expected, names: Iterable[str] = tuple(CHECKS)
) -> list[Finding]:
    """Judge all facts by some checks."""
    return [finding for name in names for finding in CHECKS[name](answers, expected)]


def to_exclude(findings: Sequence[Finding], hosts: Sequence[str]) -> dict[str, str]:
    """Give the hosts that are better left alone, with what was found there.

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
    """Give the hosts of one check that are to blame, with what was found and expected."""
    bad = {f.hosts[0]: _said(f) for f in group if f.bad and len(f.hosts) == 1}
    pairs = [finding for finding in group if len(finding.hosts) == 2]
    good = {host for finding in pairs if not finding.bad for host in finding.hosts}
    for finding in pairs:
        blamed = [host for host in finding.hosts if host not in good]
        if finding.bad and len(blamed) == 1:
            bad.setdefault(blamed[0], _said(finding))
    return bad


def _said(finding: Finding) -> str:
    return f"{finding.found}, expected {finding.expected}" if finding.expected else finding.found
