"""``hydragnn-hpo machine``: list, show and check machine profiles."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hydragnn_hpo.cli.arguments import JsonOption
from hydragnn_hpo.resources import resource_path

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from hydragnn_hpo.config import Profile, ProfileConfig

DEFAULT = "default"
"""Origin of a value that no file gives."""

HEADING = {"name", "description", "source", "checked", "extends"}
"""What is shown above and below the table of values."""


def plain(profile: "Profile") -> dict[str, Any]:
    """Return a profile as plain data: values, where each is from, what is doubtful."""
    values = profile.config.model_dump(mode="json", exclude={"extends"})
    origins = {place: profile.origins.get(place) for place, _ in leaves(values)}
    return {
        "name": profile.config.name,
        "files": [short(file) for file in profile.files],
        "values": values,
        "origins": {key: short(file) if file else DEFAULT for key, file in origins.items()},
        "warnings": list(profile.warnings),
    }


def leaves(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Return dotted key and value of all that a profile holds."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def short(path: Path) -> str:
    """Return the name by which a user knows a file: shipped ones from ``launch`` on."""
    from hydragnn_hpo.config import PROFILES

    ours = path.resolve().parent == resource_path(PROFILES).resolve()
    return f"{PROFILES}/{path.name}" if ours else str(path)


def heading(profile: "Profile") -> str:
    """Print the machine, and the files of its profile."""
    from rich.markup import escape

    config = profile.config
    chain = ", which extends ".join(short(file) for file in profile.files)
    first = f"[bold]{escape(config.name)}[/]: {escape(config.description)}"
    return f"{first}\n[dim]{escape(chain)}; checked {config.checked}[/]"


def values_table(profile: "Profile") -> "Table":
    """Lay out what is set and from where, table by table of the file."""
    from rich.markup import escape

    table = _table(("key", "value", "from"), folded=("value", "from"))
    values = profile.config.model_dump(mode="json", exclude=HEADING)
    simple = {key: value for key, value in values.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    for section, content in {"": simple, **tables}.items():
        rows = [row for row in leaves(content, f"{section}." if section else "") if _is_set(row[1])]
        if section and rows:
            table.add_row(f"[bold]\\[{section}][/]")
        for place, value in rows:
            origin = _origin(profile, place)
            name = place.removeprefix(f"{section}.") if section else place
            cells = (name, text_of(value), origin)
            table.add_row(*map(escape, cells), style="dim" if origin == DEFAULT else None)
    return table


def _origin(profile: "Profile", place: str) -> str:
    """Name the file of a value, as shortly as the chain allows."""
    if (file := profile.origins.get(place)) is None:
        return DEFAULT
    alike = [other for other in profile.files if other.name == file.name]
    return file.name if len(alike) == 1 else short(file)


def _is_set(value: Any) -> bool:
    return value not in (None, "", [], {}, 0)


def unset(profile: "Profile") -> list[str]:
    """Return the keys that hold nothing."""
    values = profile.config.model_dump(mode="json", exclude=HEADING)
    return [place for place, value in leaves(values) if not _is_set(value)]


def slots_table(config: "ProfileConfig") -> "Table":
    """Lay out what is near to what on a host."""
    from hydragnn_hpo.config import cores_of

    layout = config.layout
    columns = ("slot", "device", "cores", "mask", "NUMA", "interface")
    table = _table(columns, right=("slot", "device", "mask", "NUMA"))
    for slot in range(config.slots_per_host):
        cores = _nth(layout.cores_of_slot, slot)
        table.add_row(
            str(slot),
            _nth(layout.device_of_slot, slot, str(slot)),
            cores,
            hex(sum(1 << core for core in cores_of(cores))) if cores else "",
            _nth(layout.numa_of_slot, slot),
            _nth(layout.nic_of_slot, slot),
        )
    return table


def _nth(values: Sequence[object], index: int, otherwise: str = "") -> str:
    return str(values[index]) if values else otherwise


def list_table(profiles: "Sequence[ProfileConfig]") -> "Table":
    """Lay out the profiles that ship."""
    from rich.markup import escape

    numbers = ("hosts", "slots", "GB per slot")
    columns = ("profile", "machine", *numbers, "backend", "batch")
    table = _table(columns, right=numbers, folded=("machine",))
    for found in profiles:
        table.add_row(
            found.name,
            escape(found.description),
            f"{found.hosts:,}" if found.hosts else "found",
            str(found.slots_per_host or "found"),
            f"{found.memory_gb:g}" if found.memory_gb else "found",
            found.backend,
            found.batch.scheduler,
        )
    return table


def bullets(lines: Sequence[str]) -> "Iterator[RenderableType]":
    """Return lines as items of a list."""
    from rich.markup import escape
    from rich.padding import Padding

    for line in lines:
        yield Padding(f"- {escape(line)}", (0, 0, 0, 2), expand=False)


def text_of(value: Any) -> str:
    """Write a value for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "  ".join(text_of(item) for item in value)
    if isinstance(value, dict):
        return " ".join(f"{key}={text_of(item)}" for key, item in value.items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _table(
    columns: Sequence[str], *, right: Sequence[str] = (), folded: Sequence[str] = ()
) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
    for name in columns:
        table.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=name not in folded,
            overflow="fold",
        )
    return table


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
    pass
    from hydragnn_hpo.cli.tables import console
    from hydragnn_hpo.config import read_profile

    profile = read_profile(name)
    if as_json:
        typer.echo(json.dumps(plain(profile)))
        return
    screen = console()
    screen.print(heading(profile), highlight=False)
    screen.print()
    screen.print(values_table(profile))
    if profile.config.layout.cores_of_slot:
        screen.print("\n[bold]slots of a host[/]")
        screen.print(slots_table(profile.config))
    screen.print("\n[bold]not set: found where it runs, or not needed[/]")
    screen.print(", ".join(unset(profile)), style="dim", highlight=False)
    screen.print("\n[bold]where its numbers come from[/]")
    for line in bullets(profile.config.source):
        screen.print(line, highlight=False)
    if profile.warnings:
        screen.print("\n[bold yellow]doubtful[/]")
    for line in bullets(profile.warnings):
        screen.print(line, highlight=False)


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the profiles that ship."""
    from hydragnn_hpo.cli.tables import console
    from hydragnn_hpo.config import find_profile, known_profiles

    profiles = [find_profile(name) for name in known_profiles()]
    if not as_json:
        console().print(list_table(profiles))
        return
    keys = {"name", "description", "hosts", "slots_per_host", "memory_gb", "backend", "checked"}
    rows = [profile.model_dump(mode="json", include=keys) for profile in profiles]
    both = zip(rows, profiles, strict=True)
    typer.echo(json.dumps([row | {"scheduler": of.batch.scheduler} for row, of in both]))
