"""``hydragnn-hpo reference``: what a setting means, found by a part of its name."""

import difflib
from collections.abc import Iterator
from typing import Annotated

import typer

from hydragnn_hpo.errors import ConfigError


def reference(
    name: Annotated[
        str | None, typer.Argument(help="A setting, or a part of its name, such as learning_rate.")
    ] = None,
) -> None:
    """Explain a setting: type, default, documentation; without a name, list all settings."""
    for line in find_settings(name or ""):
        typer.echo(line)


def find_settings(part: str) -> Iterator[str]:
    """Yield the documentation of matching settings; for an empty part, the names of all.

    Args:
        part: the end of a dotted name, or any part of one; empty for all.

    Raises:
        ConfigError: no setting matches.
    """
    from hydragnn_hpo.cli.reference_settings import NEEDED, read_settings

    rows = list(read_settings())
    exact = [row for row in rows if f".{row[1].name}".endswith(f".{part}")]
    matches = exact or [row for row in rows if part in row[1].name]
    if not matches:
        last = {key.name.rpartition(".")[2]: key.name for _, key in rows}
        known = last | {key.name: key.name for _, key in rows}
        close = difflib.get_close_matches(part, known, n=1)
        hint = f" Did you mean '{known[close[0]]}'?" if close else ""
        raise ConfigError(
            f"no setting is named '{part}'.{hint} All names: hydragnn-hpo reference, without a "
            "name."
        )
    for where, key in matches:
        if not part:
            yield f"{key.name}  ({where})"
            continue
        default = f"default {key.default}" if key.default else "may be left out"
        default = NEEDED if key.default == NEEDED else default
        head = f"{key.name}  ({where}: {key.kind}; {default})"
        yield f"{head}\n    {key.text}".replace("`", "")
