"""``hydragnn-hpo reference``: what a setting means, found by a part of its name."""

from pathlib import Path
from typing import Annotated

import typer


def reference(
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
        _write(out)
        return
    from hydragnn_hpo.cli.reference.finding import lines

    for line in lines(name or ""):
        typer.echo(line)


def _write(checkout: Path) -> None:
    from hydragnn_hpo.cli.main import app
    from hydragnn_hpo.cli.reference.pages import commands, settings
    from hydragnn_hpo.files import write_text

    write_text(checkout / "hydragnn_hpo" / "config" / "REFERENCE.md", settings())
    write_text(checkout / "hydragnn_hpo" / "cli" / "REFERENCE.md", commands(app))
