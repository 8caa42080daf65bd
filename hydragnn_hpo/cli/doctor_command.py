"""``hydragnn-hpo doctor``: what is right and wrong with the hosts that we hold."""

import json
import os
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydragnn_hpo.cli.acceptance import MINUTES, Acceptance, accept
from hydragnn_hpo.cli.arguments import DryRunOption, JsonOption
from hydragnn_hpo.cli.run_command import ContainerOption, PackOption
from hydragnn_hpo.cli.words import count

if TYPE_CHECKING:
    from hydragnn_hpo.config import ProfileConfig
    from hydragnn_hpo.launching import Finding, JobHosts

MachineOption = Annotated[
    str | None,
    typer.Option("--machine", help="Machine profile; the run's, or what is found, if left out."),
]
RunOption = Annotated[
    Path | None,
    typer.Option("--run", help="Run directory: bad hosts are added to its exclude.hosts."),
]
HostsOption = Annotated[int, typer.Option(min=0, help="Hosts to look at; 0: all we hold.")]
ExcludeOption = Annotated[
    Path | None, typer.Option(help="File to which bad hosts are added, in place of the run's.")
]


QuickOption = Annotated[
    bool, typer.Option("--quick", help="Let no hosts sum in pairs: one short step, no agents.")
]
AcceptanceOption = Annotated[
    bool,
    typer.Option("--acceptance", help="Do all that a site should see once; see acceptance.md."),
]
MinutesOption = Annotated[
    float, typer.Option(min=0.1, max=1e5, help="Length of the campaign of an acceptance.")
]


def doctor(
    machine: MachineOption = None,
    run_dir: RunOption = None,
    hosts: HostsOption = 0,
    exclude: ExcludeOption = None,
    quick: QuickOption = False,
    acceptance: AcceptanceOption = False,
    minutes: MinutesOption = MINUTES,
    pack: PackOption = None,
    container: ContainerOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Check this computer, or every host of the job that we are in, against its profile."""
    from hydragnn_hpo import log
    from hydragnn_hpo.config import find_profile
    from hydragnn_hpo.launching import find_job_hosts, worst

    log.configure(level=30)
    held = find_job_hosts(os.environ, hosts)
    name = _profile_name(machine, run_dir, held)
    profile = find_profile(name)
    if acceptance:
        machine_values = {"profile": name, "pack": pack, "container": container}
        folder = run_dir or Path(f"acceptance-{profile.name}")
        site = Acceptance(machine_values, held, folder, minutes)
        examine = partial(_examine, name, profile, held, folder, quick=quick)
        accept(site, examine, as_json=as_json, dry_run=dry_run)
        return
    folder, target = run_dir or Path.cwd(), _find_exclusion_list(run_dir, exclude)
    if dry_run:
        _show_command(profile, held, folder)
        return
    findings = _examine(name, profile, held, folder, quick=quick)
    notes = _exclude(findings, held.hosts, target) if held.kind != "here" else []
    _print(findings, profile, held, notes, as_json=as_json)
    if worst(findings) in ("slow", "wrong"):
        raise typer.Exit(1)


def _examine(
    name: str | None, profile: "ProfileConfig", held: "JobHosts", folder: Path, *, quick: bool
) -> "list[Finding]":
    """Examine all hosts and, unless it must be quick, the network between them.

    Args:
        name: of the profile, as it was given.
        profile: the profile itself.
        held: the hosts.
        folder: a folder that all hosts should see.
        quick: leave the network out.
    """
    from hydragnn_hpo.campaign import probe_network
    from hydragnn_hpo.launching import examine_hosts

    findings = examine_hosts(profile, held, folder=folder, environment=os.environ)
    if held.kind != "here" and len(held.able) > 1 and not quick:
        findings += probe_network(name or profile.name, profile, folder, len(held.able))
    return findings


def _profile_name(machine: str | None, run_dir: Path | None, held: "JobHosts") -> str | None:
    """Return the profile that was named, the run's, or a generic one."""
    from hydragnn_hpo.config import CampaignConfig, load_config
    from hydragnn_hpo.layout import RunDir

    if machine is None and run_dir and RunDir(run_dir).campaign.exists():
        machine = load_config(RunDir(run_dir).campaign, CampaignConfig).machine.profile
    unnamed = {"slurm": "generic-slurm", "pbs": "generic-pbs", "here": None}
    return machine or unnamed[held.kind]


def _find_exclusion_list(run_dir: Path | None, exclude: Path | None) -> Path | None:
    """Return the list to add to; refuse a bad one before anything is started."""
    from hydragnn_hpo.launching import read_excluded
    from hydragnn_hpo.layout import RunDir

    target = exclude or (RunDir(run_dir).excluded if run_dir else None)
    if target and target.exists():
        read_excluded(target)
    return target


def _show_command(profile: "ProfileConfig", held: "JobHosts", folder: Path) -> None:
    """Print what would be started."""
    from hydragnn_hpo.launching import make_request

    request = make_request(profile, held, folder / ".doctor", os.environ)
    argv = held.argv(request, profile.step.agents)
    typer.echo(f"profile {profile.name}; would start: {shlex.join(argv)}")


def _exclude(findings: "Sequence[Finding]", hosts: Sequence[str], target: Path | None) -> list[str]:
    """Add bad hosts to a list; return sentences about it."""
    from hydragnn_hpo.launching import add_excluded, read_excluded, to_exclude

    bad = to_exclude(findings, hosts)
    known = set(read_excluded(target)) if target and target.exists() else set()
    notes = []
    if bad and len(set(bad) | known) >= len(hosts):
        notes.append("None is excluded: none would be left. Mend the site or the profile first.")
    elif bad and target:
        add_excluded(target, bad)
        notes.append(f"{count(len(bad), 'host')} in {target}: campaigns leave them alone.")
    elif bad:
        notes.append("Give --run RUN or --exclude FILE to have bad hosts left alone.")
    if well := [host for host in hosts if host in known and host not in bad]:
        from hydragnn_hpo.launching import compress

        names = compress(well)
        notes.append(f"Well again, but still in {target}: {names}. Remove their lines to use them.")
    return notes


def _print(
    findings: "Sequence[Finding]",
    profile: "ProfileConfig",
    held: "JobHosts",
    notes: Sequence[str],
    *,
    as_json: bool,
) -> None:
    from hydragnn_hpo.cli.findings_view import findings_headline, findings_plain, findings_table
    from hydragnn_hpo.cli.tables import console

    if as_json:
        report = {"machine": profile.name, "hosts": list(held.hosts), "notes": list(notes)}
        typer.echo(json.dumps(report | findings_plain(findings)))
        return
    console().print(
        findings_table(findings, findings_headline(findings, profile.name, len(held.hosts)))
    )
    for note in notes:
        typer.echo(note)
