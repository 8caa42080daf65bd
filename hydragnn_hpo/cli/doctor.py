"""``hydragnn-hpo doctor``: what is right and wrong with the hosts that we hold."""

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydragnn_hpo.cli.acceptance import MINUTES, accept
from hydragnn_hpo.cli.arguments import DryRunOption, JsonOption
from hydragnn_hpo.cli.run import ContainerOption, PackOption

if TYPE_CHECKING:
    from hydragnn_hpo.config.machine import ProfileConfig
    from hydragnn_hpo.launching.doctor.finding import Finding
    from hydragnn_hpo.launching.doctor.place import Place

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
    from hydragnn_hpo.config.machine import find_profile
    from hydragnn_hpo.launching.doctor.finding import worst
    from hydragnn_hpo.launching.doctor.place import find_place

    log.configure(level=30)
    place = find_place(os.environ, hosts)
    name = _name(machine, run_dir, place)
    if acceptance:
        asked = {"profile": name, "pack": pack, "container": container}
        accept(asked, run_dir, place, minutes=minutes, as_json=as_json, dry_run=dry_run)
        return
    profile, folder, target = find_profile(name), run_dir or Path.cwd(), _target(run_dir, exclude)
    if dry_run:
        _show(profile, place, folder)
        return
    findings = _look(name, profile, place, folder, quick=quick)
    notes = _exclude(findings, place.hosts, target) if place.kind != "here" else []
    _print(findings, profile, place, notes, as_json=as_json)
    if worst(findings) in ("slow", "wrong"):
        raise typer.Exit(1)


def _look(
    name: str | None, profile: "ProfileConfig", place: "Place", folder: Path, *, quick: bool
) -> "list[Finding]":
    """Look at all hosts, and unless it must be quick at what connects them."""
    from hydragnn_hpo.campaign.links import look_at_links
    from hydragnn_hpo.launching.doctor.examine import examine

    examined = examine(profile, place, folder=folder, environment=os.environ)
    findings = list(examined.findings)
    if place.kind != "here" and len(place.able) > 1 and not quick:
        findings += look_at_links(name or profile.name, profile, folder, len(place.able))
    return findings


def _name(machine: str | None, run_dir: Path | None, place: "Place") -> str | None:
    """Give the profile that was named, or the run's, or one that guesses nothing of these hosts."""
    from hydragnn_hpo.config.campaign import CampaignConfig
    from hydragnn_hpo.config.loading import load
    from hydragnn_hpo.layout import RunDir

    if machine is None and run_dir and RunDir(run_dir).campaign.exists():
        machine = load(RunDir(run_dir).campaign, CampaignConfig).machine.profile
    unnamed = {"slurm": "generic-slurm", "pbs": "generic-pbs", "here": None}
    return machine or unnamed[place.kind]


def _target(run_dir: Path | None, exclude: Path | None) -> Path | None:
    """Give the list to add to; a bad one is refused before anything is started."""
    from hydragnn_hpo.launching.doctor.exclusion import read_excluded
    from hydragnn_hpo.layout import RunDir

    target = exclude or (RunDir(run_dir).excluded if run_dir else None)
    if target and target.exists():
        read_excluded(target)
    return target


def _show(profile: "ProfileConfig", place: "Place", folder: Path) -> None:
    """Print what would be started."""
    from hydragnn_hpo.launching.doctor.examine import order_for

    order = order_for(profile, place, folder / ".doctor", os.environ)
    argv = place.argv(order, profile.step.agents)
    typer.echo(f"profile {profile.name}; would start: {shlex.join(argv)}")


def _exclude(findings: "Sequence[Finding]", hosts: Sequence[str], target: Path | None) -> list[str]:
    """Add bad hosts to a list; gives sentences about it."""
    from hydragnn_hpo.cli.words import count
    from hydragnn_hpo.launching.doctor.diagnose import to_exclude
    from hydragnn_hpo.launching.doctor.exclusion import exclude_more, read_excluded

    bad = to_exclude(findings, hosts)
    known = set(read_excluded(target)) if target and target.exists() else set()
    notes = []
    if bad and len(set(bad) | known) >= len(hosts):
        notes.append("None is excluded: none would be left. Mend the site or the profile first.")
    elif bad and target:
        exclude_more(target, bad)
        notes.append(f"{count(len(bad), 'host')} in {target}: campaigns leave them alone.")
    elif bad:
        notes.append("Give --run RUN or --exclude FILE to have bad hosts left alone.")
    if well := [host for host in hosts if host in known and host not in bad]:
        from hydragnn_hpo.launching.slurm.hostlist import compress

        names = compress(well)
        notes.append(f"Well again, but still in {target}: {names}. Remove their lines to use them.")
    return notes


def _print(
    findings: "Sequence[Finding]",
    profile: "ProfileConfig",
    place: "Place",
    notes: Sequence[str],
    *,
    as_json: bool,
) -> None:
    from hydragnn_hpo.cli.doctor_view import findings_plain, findings_table, headline
    from hydragnn_hpo.cli.tables import console

    if as_json:
        told = {"machine": profile.name, "hosts": list(place.hosts), "notes": list(notes)}
        typer.echo(json.dumps(told | findings_plain(findings)))
        return
    console().print(findings_table(findings, headline(findings, profile.name, len(place.hosts))))
    for note in notes:
        typer.echo(note)
