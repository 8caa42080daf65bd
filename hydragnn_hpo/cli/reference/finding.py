"""Settings found by a part of their name, as lines for a terminal."""

import difflib
from collections.abc import Iterator

from hydragnn_hpo.cli.reference.files import FILES
from hydragnn_hpo.cli.reference.keys import NEEDED, Key, options
from hydragnn_hpo.errors import ConfigError


def lines(part: str) -> Iterator[str]:
    """Say what settings mean; of all of them only their names.

    Args:
        part: the end of a dotted name, or any part of one; empty for all.

    Raises:
        ConfigError: nothing is named so.
    """
    found = list(_found(part))
    if not found:
        raise _nothing(part)
    for title, key in found:
        yield _line(title, key) if part else f"{key.name}  ({title})"


def _found(part: str) -> Iterator[tuple[str, Key]]:
    """Give the settings whose name ends with or, if none does, holds what was asked."""
    every = list(_all())
    exact = [row for row in every if row[1].name == part or row[1].name.endswith(f".{part}")]
    yield from exact or (row for row in every if part in row[1].name)


def _all() -> Iterator[tuple[str, Key]]:
    for file in FILES:
        for table in file.tables():
            yield from ((file.title.strip("`").lower(), key) for key in table.keys)
    for conv, table in options():
        yield from ((f"options of {conv}", key) for key in table.keys)


def _line(title: str, key: Key) -> str:
    default = f"default {key.default}" if key.default else "may be left out"
    default = NEEDED if key.default == NEEDED else default
    search = f"; usually searched in {key.search}" if key.search else ""
    head = f"{key.name}  ({title}: {key.kind}; {default}{search})".replace("`", "")
    return f"{head}\n    {key.says.replace('`', '')}"


def _nothing(part: str) -> ConfigError:
    """Say what was perhaps meant."""
    names = [key.name for _, key in _all()]
    last = {name.rpartition(".")[2]: name for name in names}
    close = difflib.get_close_matches(part, [*names, *last], n=1)
    hint = f" Did you mean '{last.get(close[0], close[0])}'?" if close else ""
    return ConfigError(
        f"no setting is named '{part}'.{hint} All names: hydragnn-hpo reference, without a name."
    )
