"""``hydragnn-hpo machine``: which machine profiles there are, and what one says."""

import json
from typing import Annotated

import typer

from hydragnn_hpo.cli.arguments import JsonOption

app = typer.Typer(no_args_is_help=True)


@app.command()
def show(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="A shipped name or a path; workstation if left out."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a machine profile with the file that each value is from."""
    from hydragnn_hpo.cli import machine_view
    from hydragnn_hpo.cli.tables import console
    from hydragnn_hpo.config.machine import read_profile

    profile = read_profile(name)
    if as_json:
        typer.echo(json.dumps(machine_view.plain(profile)))
        return
    screen = console()
    screen.print(machine_view.heading(profile), highlight=False)
    screen.print()
    screen.print(machine_view.values_table(profile))
    if profile.config.layout.cores_of_slot:
        screen.print("\n[bold]slots of a host[/]")
        screen.print(machine_view.slots_table(profile.config))
    screen.print("\n[bold]not set: found where it runs, or not needed[/]")
    screen.print(", ".join(machine_view.unset(profile)), style="dim", highlight=False)
    screen.print("\n[bold]where its numbers come from[/]")
    for line in machine_view.bullets(profile.config.source):
        screen.print(line, highlight=False)
    if profile.warnings:
        screen.print("\n[bold yellow]doubtful[/]")
    for line in machine_view.bullets(profile.warnings):
        screen.print(line, highlight=False)


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the profiles that ship."""
    from hydragnn_hpo.cli.machine_view import list_table
    from hydragnn_hpo.cli.tables import console
    from hydragnn_hpo.config.machine import find_profile, known_profiles

    profiles = [find_profile(name) for name in known_profiles()]
    if not as_json:
        console().print(list_table(profiles))
        return
    keys = {"name", "description", "hosts", "slots_per_host", "memory_gb", "backend", "checked"}
    rows = [profile.model_dump(mode="json", include=keys) for profile in profiles]
    both = zip(rows, profiles, strict=True)
    typer.echo(json.dumps([row | {"scheduler": of.batch.scheduler} for row, of in both]))
