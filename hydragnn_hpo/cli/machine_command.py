"""``hydragnn-hpo machine``: list and show machine profiles."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hydragnn_hpo.cli.arguments import JsonOption
from hydragnn_hpo.cli.examples import show_examples
from hydragnn_hpo.cli.tables import console, make_table
from hydragnn_hpo.resources import resource_path

if TYPE_CHECKING:
    from hydragnn_hpo.cli.fitted_table import FittedTable
    from hydragnn_hpo.config import Profile, ProfileConfig

DEFAULT = "default"
"""Origin of a value that no file gives."""

HEADING = {"name", "description", "source", "checked", "extends"}
"""What is shown above and below the table of values."""

app = typer.Typer(no_args_is_help=True)


@app.command(epilog=show_examples("machine show"))
def show(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="A shipped name or a path; workstation if left out."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a machine profile, and the file that each value comes from."""
    from hydragnn_hpo.config import read_profile

    profile = read_profile(name)
    if as_json:
        typer.echo(json.dumps(to_plain(profile)))
        return
    screen = console()
    config = profile.config
    chain = ", which extends ".join(short_path(file) for file in profile.files)
    screen.out(f"{config.name}: {config.description}", style="bold", highlight=False)
    screen.out(f"{chain}; checked {config.checked}\n", style="dim", highlight=False)
    screen.print(values_table(profile))
    if config.layout.cores_of_slot:
        screen.out("\nslots of a host", style="bold")
        screen.print(slots_table(config))
    for title, lines in (
        ("not set: found where it runs, or not needed", [", ".join(list_unset(profile))]),
        ("where its numbers come from", [f"- {line}" for line in config.source]),
        ("doubtful", [f"- {line}" for line in list_warnings(profile)]),
    ):
        if lines:
            screen.out(f"\n{title}", style="bold")
        for line in lines:
            screen.print(line, highlight=False, markup=False)


@app.command("list", epilog=show_examples("machine list"))
def list_(as_json: JsonOption = False) -> None:
    """List the shipped profiles."""
    from hydragnn_hpo.config import find_profile
    from hydragnn_hpo.config.machine import known_profiles

    profiles = [find_profile(name) for name in known_profiles()]
    if not as_json:
        console().print(list_table(profiles))
        return
    keys = {"name", "description", "hosts", "slots_per_host", "memory_gb", "backend", "checked"}
    rows = [
        profile.model_dump(mode="json", include=keys) | {"scheduler": profile.batch.scheduler}
        for profile in profiles
    ]
    typer.echo(json.dumps(rows))


def to_plain(profile: "Profile") -> dict[str, Any]:
    """Return a profile as plain data for JSON.

    Returns:
        ``name``; ``files``: the profile and what it extends; ``values``: the resolved profile;
        ``origins``: file of each value by dotted key, or ``default``; ``warnings``.
    """
    from hydragnn_hpo.config import flatten_values

    values = profile.config.model_dump(mode="json", exclude={"extends"})
    origins = {place: profile.origins.get(place) for place, _ in flatten_values(values)}
    return {
        "name": profile.config.name,
        "files": [short_path(file) for file in profile.files],
        "values": values,
        "origins": {key: short_path(file) if file else DEFAULT for key, file in origins.items()},
        "warnings": list_warnings(profile),
    }


def list_warnings(profile: "Profile") -> list[str]:
    """Return sentences on doubtful values of a profile, also those that packages may bring."""
    from hydragnn_hpo.launching.transports import find_batch_doubts

    return [*profile.warnings, *find_batch_doubts(profile.config)]


def short_path(path: Path) -> str:
    """Return the name by which a user knows a file: shipped ones from ``launch`` on."""
    from hydragnn_hpo.config.machine import PROFILES

    ours = path.resolve().parent == resource_path(PROFILES).resolve()
    return f"{PROFILES}/{path.name}" if ours else str(path)


def values_table(profile: "Profile") -> "FittedTable":
    """Lay out the values that are set and the files they come from, by TOML table."""
    from rich.text import Text

    table = _table()
    table.add_texts("key", no_wrap=True)
    table.add_texts("value", "from")
    names = [file.name for file in profile.files]
    above = ""
    for place, value in sorted(_values(profile), key=lambda row: row[0].count(".") > 0):
        if _is_unset(value):
            continue
        section, _, key = place.partition(".") if "." in place else ("", "", place)
        if section != above:
            table.add_row(Text(f"[{section}]", "bold"))
            above = section
        file = profile.origins.get(place)
        origin = DEFAULT if file is None else file.name
        if file is not None and names.count(file.name) > 1:
            origin = short_path(file)
        cells = (key, format_value(value), origin)
        table.add_row(*cells, style="dim" if file is None else None)
    return table


def _values(profile: "Profile") -> Iterator[tuple[str, Any]]:
    from hydragnn_hpo.config import flatten_values

    return flatten_values(profile.config.model_dump(mode="json", exclude=HEADING))


def _is_unset(value: Any) -> bool:
    return value in (None, "", [], {}, 0)


def list_unset(profile: "Profile") -> list[str]:
    """Return the dotted keys without a value."""
    return [place for place, value in _values(profile) if _is_unset(value)]


def format_value(value: Any) -> str:
    """Format a value for a table."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "  ".join(format_value(item) for item in value)
    if isinstance(value, dict):
        return " ".join(f"{key}={format_value(item)}" for key, item in value.items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def slots_table(config: "ProfileConfig") -> "FittedTable":
    """Lay out device, cores, NUMA domain and network interface of each slot of a host."""
    from hydragnn_hpo.config import cores_of

    def value_of(values: Sequence[object], default: str = "") -> str:
        return str(values[slot]) if values else default

    layout = config.layout
    table = _table(drop=("mask", "interface"))
    table.add_numbers("slot", "device")
    table.add_texts("cores")
    table.add_numbers("mask", "NUMA")
    table.add_texts("interface")
    for slot in range(config.slots_per_host):
        cores = value_of(layout.cores_of_slot)
        table.add_row(
            str(slot),
            value_of(layout.device_of_slot, str(slot)),
            cores,
            hex(sum(1 << core for core in cores_of(cores))) if cores else "",
            value_of(layout.numa_of_slot),
            value_of(layout.nic_of_slot),
        )
    return table


def list_table(profiles: "Sequence[ProfileConfig]") -> "FittedTable":
    """Lay out the shipped profiles."""
    table = _table(drop=("batch", "backend"))
    table.add_texts("profile", no_wrap=True)
    table.add_texts("machine")
    table.add_numbers("hosts", "slots", "GB per slot")
    table.add_texts("backend", "batch", no_wrap=True)
    for profile in profiles:
        table.add_row(
            profile.name,
            profile.description,
            f"{profile.hosts:,}" if profile.hosts else "found",
            str(profile.slots_per_host or "found"),
            f"{profile.memory_gb:g}" if profile.memory_gb else "found",
            profile.backend,
            profile.batch.scheduler,
        )
    return table


def _table(drop: Sequence[str] = ()) -> "FittedTable":
    layout: dict[str, Any] = {"pad_edge": False, "header_style": "dim", "padding": (0, 3, 0, 0)}
    return make_table(drop=drop, box=None, **layout)
