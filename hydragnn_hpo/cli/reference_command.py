"""``hydragnn-hpo reference``: what a setting means, found by a part of its name."""

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydragnn_hpo.errors import ConfigError

if TYPE_CHECKING:
    from hydragnn_hpo.cli.reference_pages import Key


def reference(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="A setting, or a part of its name, as learning_rate.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the pages of all settings and commands into a checkout.", hidden=True
        ),
    ] = None,
) -> None:
    """Say what settings mean: type, default, documentation; all names without one."""
    if out is not None:
        from hydragnn_hpo.cli.reference_pages import commands_page, settings_page
        from hydragnn_hpo.files import write_text

        write_text(out / "hydragnn_hpo" / "config" / "REFERENCE.md", settings_page())
        write_text(
            out / "hydragnn_hpo" / "cli" / "REFERENCE.md",
            commands_page(context.find_root().command),
        )
        return
    for line in find_settings(name or ""):
        typer.echo(line)


def find_settings(part: str) -> Iterator[str]:
    """Yield what settings mean; of all of them only their names.

    Args:
        part: the end of a dotted name, or any part of one; empty for all.

    Raises:
        ConfigError: nothing is named so.
    """
    from hydragnn_hpo.cli.reference_pages import every_key

    rows = list(every_key())
    exact = [row for row in rows if row[1].name == part or row[1].name.endswith(f".{part}")]
    found = exact or [row for row in rows if part in row[1].name]
    if not found:
        names = [key.name for _, key in rows]
        last = {name.rpartition(".")[2]: name for name in names}
        close = difflib.get_close_matches(part, [*names, *last], n=1)
        hint = f" Did you mean '{last.get(close[0], close[0])}'?" if close else ""
        raise ConfigError(
            f"no setting is named '{part}'.{hint} All names: hydragnn-hpo reference, without a "
            "name."
        )
    for title, key in found:
        yield _describe(title, key) if part else f"{key.name}  ({title})"


def _describe(title: str, key: "Key") -> str:
    default = f"default {key.default}" if key.default else "may be left out"
    default = "needed" if key.default == "needed" else default
    search = f"; usually searched in {key.search}" if key.search else ""
    head = f"{key.name}  ({title}: {key.kind}; {default}{search})".replace("`", "")
    return f"{head}\n    {key.says.replace('`', '')}"
