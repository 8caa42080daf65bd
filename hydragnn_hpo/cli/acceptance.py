"""``hydragnn-hpo doctor --acceptance``: what a site runs once before it trusts us."""

import json
import math
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from hydragnn_hpo.campaign.acceptance.bench import Site
    from hydragnn_hpo.campaign.acceptance.report import Report, Stage
    from hydragnn_hpo.launching.doctor.finding import Finding
    from hydragnn_hpo.launching.doctor.place import Place

MINUTES = 10.0
"""Length of the campaign, if nothing else is asked for."""

LEASE_SECONDS = 30.0
"""Of ranks: results are accepted or not, and a host that was busy for a while is not lost."""


def accept(
    machine: Mapping[str, str | None],
    run_dir: Path | None,
    place: "Place",
    *,
    minutes: float,
    as_json: bool,
    dry_run: bool,
) -> None:
    """Run an acceptance, or go on with one, and end with 0 if nothing is wrong, else 1.

    Args:
        machine: values of ``[machine]``: ``profile`` (this computer's if None), ``pack`` and
            ``container``.
        run_dir: its folder; ``acceptance-MACHINE`` if left out.
        place: where we are.
        minutes: length of the campaign.
        as_json: print the report as JSON.
        dry_run: print what would be done.

    Raises:
        HydraError: the profile, the folder or the allocation is none.
    """
    from hydragnn_hpo.campaign.acceptance import stages
    from hydragnn_hpo.campaign.acceptance.report import Report

    site = _site(machine, run_dir, minutes, hosts=len(place.hosts))
    expected = _expected(site, place)
    if dry_run:
        _show_plan(site, expected)
        return
    report = Report(site.folder, site.profile.name, tuple(stages.STAGES))
    check, tell = partial(_checks, site, place), partial(_tell, as_json)
    stages.accept(site, report, check=check, expected=expected, tell=tell)
    _print(report, as_json)
    if not report.accepted:
        raise typer.Exit(1)


def _site(
    machine: Mapping[str, str | None], run_dir: Path | None, minutes: float, hosts: int
) -> "Site":
    from hydragnn_hpo.campaign.acceptance.bench import Site
    from hydragnn_hpo.config.campaign import MachineConfig
    from hydragnn_hpo.config.machine import HERE, find_profile
    from hydragnn_hpo.config.on_machine import on_machine
    from hydragnn_hpo.errors import ConfigError

    if not math.isfinite(minutes):
        raise ConfigError(f"--minutes {minutes}: give a number of minutes.")
    named = machine["profile"]
    profile = find_profile(named)
    counted = {"slots": profile.slots_per_host, "hosts": hosts}
    patient = MachineConfig(lease_seconds=LEASE_SECONDS)
    settled = on_machine(patient, {**machine, **counted, "profile": named or HERE})
    return Site(profile, settled, run_dir or Path(f"acceptance-{profile.name}"), minutes)


def _checks(site: "Site", place: "Place") -> "list[Finding]":
    """Have doctor look at every host."""
    from hydragnn_hpo.launching.doctor.examine import examine

    found = examine(site.profile, place, folder=site.folder, environment=os.environ)
    return list(found.findings)


def _expected(site: "Site", place: "Place") -> int:
    """Give the number of hosts that should come; 0 where nobody knows."""
    from hydragnn_hpo.launching.doctor.exclusion import hosts_excluded

    if site.machine.backend == "local":
        return 1
    if site.machine.backend == "ray":
        return 0
    return len(set(place.hosts) - hosts_excluded(site.folder).keys())


def _show_plan(site: "Site", expected: int) -> None:
    from hydragnn_hpo.campaign.acceptance.stages import STAGES
    from hydragnn_hpo.cli.words import count

    hosts = count(expected, "host") if expected else "the hosts that join"
    where = f"{site.profile.name}, backend '{site.machine.backend}', {hosts}"
    typer.echo(f"acceptance of {where}, into {site.folder}")
    for name, what in STAGES.items():
        typer.echo(f"  {name}: {what}")
    typer.echo(f"the campaign takes {site.minutes:g} minutes, the rest about as long")


def _tell(quiet: bool, stage: "Stage") -> None:
    if not quiet:
        typer.echo(f"{stage.name}: {stage.state} ({stage.seconds:.0f} s)", err=True)


def _print(report: "Report", as_json: bool) -> None:
    from hydragnn_hpo.cli.doctor_view import findings_table
    from hydragnn_hpo.cli.tables import console

    if as_json:
        typer.echo(json.dumps(report.to_plain()))
        return
    out = console()
    stages = [report.stages[name] for name in report.names if name in report.stages]
    found = [finding for stage in stages for finding in stage.findings]
    out.print(findings_table(found, f"Acceptance of {report.about['machine']}"))
    said = "accepted" if report.accepted else "not accepted: what is wrong stands above"
    whole = f"{report.about['machine']}: {said}; the whole report is {report.path}."
    out.print(whole, markup=False, soft_wrap=True)
