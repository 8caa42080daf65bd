"""``hydragnn-hpo doctor``: what is right and wrong with the hosts that we hold, in one table."""

import json
import math
import os
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydragnn_hpo import log
from hydragnn_hpo.cli.arguments import DryRunOption, JsonOption
from hydragnn_hpo.cli.run_command import ContainerOption, PackOption
from hydragnn_hpo.cli.tables import console, make_table
from hydragnn_hpo.errors import ConfigError, RunError
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.sanitize import escape_controls
from hydragnn_hpo.words import count

if TYPE_CHECKING:
    from hydragnn_hpo.cli.acceptance import Acceptance
    from hydragnn_hpo.cli.fitted_table import FittedTable
    from hydragnn_hpo.config import ProfileConfig
    from hydragnn_hpo.host_checks import Finding
    from hydragnn_hpo.host_checks.doctor import JobHosts
    from hydragnn_hpo.host_checks.doctor_checks import State

MachineOption = Annotated[
    str | None,
    typer.Option("--machine", help="Machine profile; the run's, or what is found, if left out."),
]
RunOption = Annotated[
    Path | None,
    typer.Option("--run", help="Run directory: bad hosts are added to its exclude.hosts."),
]
HostsOption = Annotated[int, typer.Option(min=0, help="Hosts to check; 0: all of the allocation.")]
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
    minutes: MinutesOption = 10.0,
    pack: PackOption = None,
    container: ContainerOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Check this computer, or every host of the job that we are in, against its profile."""
    from hydragnn_hpo.config import find_profile
    from hydragnn_hpo.host_checks import find_job_hosts
    from hydragnn_hpo.host_checks.doctor_checks import worst

    log.configure(level=30)
    held = find_job_hosts(os.environ, hosts)
    _check_run_directory(None if acceptance else run_dir, held)  # an acceptance makes its own
    name = _profile_name(machine, run_dir, held)
    profile = find_profile(name)
    folder = run_dir or (Path(f"acceptance-{profile.name}") if acceptance else Path.cwd())
    examine = partial(_examine, name, profile, held, folder, quick=quick)
    if acceptance:
        from hydragnn_hpo.cli.acceptance import Acceptance

        values = {"profile": name, "pack": pack, "container": container}
        _accept(Acceptance(values, held, folder, minutes), examine, as_json=as_json, dry=dry_run)
        return
    target = _find_exclusion_list(run_dir, exclude)
    if dry_run:
        _show_command(profile, held, folder, as_json=as_json)
        return
    findings = examine()
    notes = _exclude(findings, held.hosts, target) if held.in_job else []
    _print(findings, profile, held, notes, as_json=as_json)
    if worst(findings) in ("slow", "wrong"):
        raise typer.Exit(1)


def _check_run_directory(run_dir: Path | None, held: "JobHosts") -> None:
    """Refuse a run directory that is not there, unless bad hosts of a job may be noted in it."""
    if run_dir is not None and not held.in_job and not run_dir.is_dir():
        raise RunError(
            f"{run_dir}: no such run directory, and no allocation whose hosts could be excluded "
            "from one; correct --run, or leave it out."
        )


def _accept(
    site: "Acceptance", examine: "Callable[[], list[Finding]]", *, as_json: bool, dry: bool
) -> None:
    """Accept a site, or show what would be done; exit with 1 if something is wrong.

    Args:
        site: what is accepted.
        examine: doctor's own checks.
        as_json: print the report as JSON.
        dry: only show the plan.
    """
    from hydragnn_hpo.cli.acceptance import accept

    if not math.isfinite(site.minutes):
        raise ConfigError(f"--minutes {site.minutes}: give a number of minutes.")
    if dry:
        typer.echo("\n".join(site.plan()))
        return
    report, findings = accept(site, examine)
    if as_json:
        typer.echo(json.dumps(report))
    else:
        console().print(findings_table(findings, f"Acceptance of {site.name}"))
        verdict = "accepted" if report["accepted"] else "not accepted: what is wrong stands above"
        path = site.folder / "acceptance.json"
        line = f"{site.name}: {verdict}; the whole report is {path}."
        console().print(line, markup=False, soft_wrap=True)
    if not report["accepted"]:
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
    from hydragnn_hpo.host_checks import examine_hosts, probe_network

    findings = examine_hosts(profile, held, folder=folder, environment=os.environ, machine=name)
    if held.in_job and len(held.able) > 1 and not quick:
        findings += probe_network(name or profile.name, profile, folder, len(held.able))
    return findings


def _profile_name(machine: str | None, run_dir: Path | None, held: "JobHosts") -> str | None:
    """Return the profile that was named, the run's, or a generic one."""
    from hydragnn_hpo.config import CampaignConfig, load_config
    from hydragnn_hpo.launching.transports import find_scheduler

    if machine is None and run_dir and RunDir(run_dir).campaign.exists():
        machine = load_config(RunDir(run_dir).campaign, CampaignConfig).machine.profile
    if machine or not held.in_job:
        return machine
    return find_scheduler(held.kind).profile


def _find_exclusion_list(run_dir: Path | None, exclude: Path | None) -> Path | None:
    """Return the list to add to; refuse a bad one before anything is started."""
    from hydragnn_hpo.launching.excluded_hosts import read_excluded

    target = exclude or (RunDir(run_dir).excluded if run_dir else None)
    if target and target.exists():
        read_excluded(target)
    return target


def _show_command(
    profile: "ProfileConfig", held: "JobHosts", folder: Path, *, as_json: bool
) -> None:
    """Print what would be started; names of hosts may hold anything."""
    from hydragnn_hpo.host_checks.doctor import make_request

    request = make_request(profile, held, folder / ".doctor", os.environ)
    argv = held.argv(request, profile.step.agents)
    if as_json:
        typer.echo(json.dumps({"profile": profile.name, "command": list(argv)}))
        return
    line = f"profile {profile.name}; would start: {shlex.join(argv)}"
    typer.echo(escape_controls(line))


def _exclude(findings: "Sequence[Finding]", hosts: Sequence[str], target: Path | None) -> list[str]:
    """Add bad hosts to a list; return sentences about it."""
    from hydragnn_hpo.host_checks.doctor_checks import to_exclude
    from hydragnn_hpo.launching.excluded_hosts import add_excluded, read_excluded
    from hydragnn_hpo.launching.slurm_allocation import compress_hosts, find_excluded

    bad = to_exclude(findings, hosts)
    known, _ = find_excluded(hosts, read_excluded(target) if target and target.exists() else ())
    notes = []
    if bad and len(set(bad) | known) >= len(hosts):
        notes.append("None is excluded: none would be left. Mend the site or the profile first.")
    elif bad and target:
        add_excluded(target, bad)
        notes.append(f"{count(len(bad), 'host')} in {target}: campaigns exclude them.")
    elif bad:
        notes.append("Give --run RUN or --exclude FILE to exclude bad hosts from campaigns.")
    if well := [host for host in hosts if host in known and host not in bad]:
        names = compress_hosts(well)
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
    """Print findings and sentences about them.

    Args:
        findings: of all checks.
        profile: what the hosts should be.
        held: the hosts.
        notes: about hosts to exclude.
        as_json: as one object.
    """
    from hydragnn_hpo.host_checks.doctor_checks import worst

    state = worst(findings)
    hosts = len(held.hosts)
    if as_json:
        plain = [asdict(finding) for finding in findings]
        report = {"machine": profile.name, "hosts": list(held.hosts), "notes": list(notes)}
        typer.echo(json.dumps({**report, "state": state, "findings": plain}))
        return
    bad = {host for finding in findings if finding.bad for host in finding.hosts}
    on = f" on {count(len(bad), 'host')} of {hosts:,}" if bad and hosts > 1 else ""
    title = f"{count(hosts, 'host')} as '{profile.name}': {VERDICTS[state]}{on}"
    console().print(findings_table(findings, title))
    for note in notes:
        typer.echo(note)


VERDICTS: "dict[State, str]" = {
    "ok": "all is well",
    "unknown": "nothing is wrong with what could be seen",
    "slow": "something is slow",
    "wrong": "something is wrong",
}

MOST_LETTERS = 34
"""Letters of a host list; the rest is counted."""

MOST_NAMED = 16
"""Hosts of which the larger part is named, too."""

COLOURS: "dict[State, str]" = {
    "ok": "green",
    "slow": "yellow",
    "wrong": "bold red",
    "unknown": "cyan",
}


@dataclass(frozen=True)
class FindingRow:
    """All findings of one check in one state."""

    check: str
    state: "State"
    where: str
    observed: str
    expected: str
    cure: str


def rows_of(findings: "Sequence[Finding]") -> list[FindingRow]:
    """Group findings: a row for each check and state, checks as they came."""
    from hydragnn_hpo.host_checks.doctor_checks import ORDER

    groups: dict[str, dict[State, list[Finding]]] = {}
    for finding in findings:
        groups.setdefault(finding.check, {}).setdefault(finding.state, []).append(finding)
    total = len({host for finding in findings for host in finding.hosts})
    return [
        FindingRow(
            check=check,
            state=state,
            where=where_of(by[state], total),
            observed=_span(by[state]),
            expected=_most_common([finding.expected for finding in by[state]]),
            cure=" ".join([*dict.fromkeys(each.cure for each in by[state] if each.cure)][:2]),
        )
        for check, by in groups.items()
        for state in ORDER
        if state in by
    ]


def where_of(alike: "Sequence[Finding]", total: int) -> str:
    """Name the hosts of some findings: pairs, a host list, a count, or ``here``."""
    from hydragnn_hpo.launching.slurm_allocation import compress_hosts, sort_by_number

    pairs = [f"{f.hosts[0]} - {f.hosts[1]}" for f in alike if len(f.hosts) == 2]
    if pairs:
        named = ", ".join(pairs)
        return named if len(named) <= MOST_LETTERS else count(len(pairs), "pair")
    hosts = {host for finding in alike for host in finding.hosts}
    if not hosts:
        return "here"
    if len(hosts) == total > 1:
        return f"all {total:,}"
    if 2 * len(hosts) > total > MOST_NAMED:
        return f"{len(hosts):,} of {total:,}"
    named = compress_hosts(sort_by_number(sorted(hosts)))
    counted = count(len(hosts), "host")
    if len(named) <= MOST_LETTERS:
        return named
    return f"{counted}: {named[: MOST_LETTERS - len(counted) - 5].rstrip(',- ')}..."


def _span(alike: "Sequence[Finding]") -> str:
    """Return what was found: one value, from the least to the largest, or the most common."""
    values = [finding.observed for finding in alike]
    if len(set(values)) == 1:
        return values[0]
    numbered = [finding for finding in alike if finding.figure is not None]
    if len(numbered) == len(alike):
        ends = [end(numbered, key=lambda f: f.figure or 0.0) for end in (min, max)]
        return f"{ends[0].observed} to {ends[1].observed}"
    return _most_common(values)


def _most_common(values: Sequence[str]) -> str:
    kinds = Counter(values).most_common()
    more = len(kinds) - 1
    first = kinds[0][0]
    return f"{first} (and {more} other{'s' if more > 1 else ''})" if more else first


def findings_table(findings: "Sequence[Finding]", title: str) -> "FittedTable":
    """Lay out findings."""
    from rich.box import SIMPLE_HEAD
    from rich.text import Text

    table = make_table(title, title_style="bold", box=SIMPLE_HEAD)
    table.add_texts("check", "state", "where", no_wrap=True)
    table.add_texts("found")
    last = ""
    for row in rows_of(findings):
        colour = COLOURS[row.state]
        text = Text(row.observed)
        if row.expected and row.state != "ok":
            text.append(f" (expected: {row.expected})", "dim")
        if row.cure:
            text.append(f"\n-> {row.cure}", "italic" if row.state == "ok" else colour)
        check = "" if row.check == last else row.check
        table.add_row(check, Text(row.state, colour), row.where, text)
        last = row.check
    return table
