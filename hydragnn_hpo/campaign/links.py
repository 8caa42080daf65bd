"""Sums over pairs of hosts, by the backend that a campaign would use there."""

from pathlib import Path

from hydragnn_hpo.campaign.acceptance.bench import Bench, Site
from hydragnn_hpo.campaign.acceptance.short_campaign import campaign_of
from hydragnn_hpo.campaign.backends import make_backend
from hydragnn_hpo.config.campaign import MachineConfig
from hydragnn_hpo.config.machine import ProfileConfig
from hydragnn_hpo.config.on_machine import on_machine
from hydragnn_hpo.errors import HydraError, JobError
from hydragnn_hpo.launching.doctor.examine import meeting_place
from hydragnn_hpo.launching.doctor.finding import Finding
from hydragnn_hpo.launching.doctor.pairs import Pair, choose_pairs, judge_pairs
from hydragnn_hpo.launching.probing.order import Probe

ROUND_SECONDS = 90.0
"""For all pairs of a round, side by side, and the lease of their ranks: a busy host is not lost."""


def look_at_links(name: str, profile: ProfileConfig, folder: Path, hosts: int) -> list[Finding]:
    """Have pairs of hosts sum, one rank on each host.

    Args:
        name: of the profile, shipped or a path.
        profile: it.
        folder: which all hosts see; what is written there is removed.
        hosts: how many we hold.
    """
    try:
        patient = MachineConfig(lease_seconds=ROUND_SECONDS)
        machine = on_machine(patient, {"profile": name, "hosts": hosts})
        with meeting_place(folder) as met:
            site = Site(profile, machine, met, 0.0)
            with make_backend(campaign_of(site), met) as backend:
                bench = Bench(site, backend, lambda: None)
                bench.gather(hosts)
                return _sums(bench)
    except HydraError as error:
        cure = "Campaigns could not start there either: see the sentence."
        return [Finding("all-reduce sums", "wrong", str(error), cure=cure)]


def _sums(bench: Bench) -> list[Finding]:
    slots = {host: some[0] for host, some in bench.hosts.items()}
    answers, failures = {}, {}
    for number, pairs in enumerate(choose_pairs(list(slots))):
        probes: dict[Pair, Probe] = {
            pair: Probe(bench.site.folder, f"pair.{number}.{k}", [slots[host] for host in pair])
            for k, pair in enumerate(pairs)
        }
        ended = bench.run([probe.job() for probe in probes.values()], ROUND_SECONDS)
        for pair, probe in probes.items():
            try:
                answers[pair] = probe.answer()
            except JobError as error:
                failures[pair] = ended[probe.name].error or str(error)
    return judge_pairs(answers, failures, bench.site.profile)
