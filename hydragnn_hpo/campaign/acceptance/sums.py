"""Stage ``sums``: all-reduce within hosts, between two, and over all, against the profile."""

from dataclasses import replace

from hydragnn_hpo.campaign.acceptance.bench import Bench
from hydragnn_hpo.errors import JobError
from hydragnn_hpo.launching.doctor.finding import Finding
from hydragnn_hpo.launching.job import Slot
from hydragnn_hpo.launching.probing.judging import judge
from hydragnn_hpo.launching.probing.order import Probe

WIDEST_HOSTS = 512
"""Trials are not wider (see ``reference/hpc.md``), and so the widest sum is not either."""

SIDE_BY_SIDE = 256
"""Hosts that sum by themselves at a time."""


def run(bench: Bench, seconds: float) -> list[Finding]:
    """Sum on each host by itself, on the first two and the farthest two, and on all together."""
    hosts = bench.hosts
    names, found = list(hosts), list[Finding]()
    within = [name for name in names if len(hosts[name]) > 1]
    if not within:
        found.append(Finding("all-reduce, one host", "unknown", "not testable: one slot per host"))
    for at in range(0, len(within), SIDE_BY_SIDE):
        some = {name: hosts[name] for name in within[at : at + SIDE_BY_SIDE]}
        found += _judged(bench, some, "one host", seconds / 4)
    if len(names) == 1:
        found.append(Finding("all-reduce, two hosts", "unknown", "not testable: there is one host"))
    else:
        found += _judged(bench, _together(hosts, names[:2]), "two hosts", seconds / 4)
    if len(names) > 2:
        far = _together(hosts, [names[0], names[-1]])
        found += _judged(bench, far, "two hosts far apart", seconds / 4)
        widest = names[:WIDEST_HOSTS]
        found += _judged(bench, _together(hosts, widest), f"{len(widest)} hosts", seconds / 4)
    return found


def _together(hosts: dict[str, tuple[Slot, ...]], names: list[str]) -> dict[str, tuple[Slot, ...]]:
    return {", ".join(names): tuple(slot for name in names for slot in hosts[name])}


def _judged(
    bench: Bench, groups: dict[str, tuple[Slot, ...]], where: str, seconds: float
) -> list[Finding]:
    """Let each group of slots sum, side by side, and judge what comes out."""
    folder = bench.new_folder("sums")
    probes = [Probe(folder, f"{folder.name}.{n}", s) for n, s in enumerate(groups.values())]
    ended = bench.run([probe.job() for probe in probes], seconds)
    found: list[Finding] = []
    for probe in probes:
        hosts = tuple(dict.fromkeys(slot.host for slot in probe.slots))
        try:
            if error := ended[probe.name].error:
                raise JobError(f"the job {error}; see {probe.log}.")
            told = judge(probe.answer(), hosts, bench.site.profile)
        except JobError as error:
            told = [Finding("all-reduce sums", "wrong", str(error), cure=_CURE, hosts=hosts)]
        found += [replace(finding, check=f"{finding.check}, {where}") for finding in told]
    return found


_CURE = "can these hosts reach each other on the fabric's interface, ports 20000-29999 and up?"
