"""Profiles that change others: chains of files become one table, with the origin of each value."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydragnn_hpo.config.loading import read_toml
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.shipped import find

EXTENDS = "extends"
"""The key that names what a file changes."""


@dataclass(frozen=True)
class Inherited:
    """What a chain of files says together."""

    values: dict[str, Any]
    """Tables merged key by key, everything else as the nearest file says it."""

    origins: dict[str, Path]
    """File of each value, by its dotted key."""

    files: tuple[Path, ...]
    """The chain: the file that was asked for, then what each extends."""


def inherited(path: Path, folder: str) -> Inherited:
    """Read a file and all that it extends.

    Args:
        path: the file.
        folder: where files that ship lie.

    Raises:
        ConfigError: a file is missing, is no TOML, or extends itself.
    """
    chain: list[tuple[Path, dict[str, Any]]] = []
    following: Path | None = path
    while following is not None:
        current, values = following, read_toml(following)
        named = values.pop(EXTENDS, None)
        chain.append((current, values))
        following = None if named is None else _named(current, named, folder)
        seen = [file for file, _ in chain]
        if following is not None and following.resolve() in [file.resolve() for file in seen]:
            circle = " -> ".join(str(file) for file in (*seen, following))
            raise ConfigError(f"{path}: {EXTENDS} runs in a circle: {circle}: break it.")
    merged: dict[str, Any] = {}
    origins: dict[str, Path] = {}
    for file, values in reversed(chain):
        merged = merge(merged, values)
        origins |= dict.fromkeys(_leaves(values), file)
    kept = set(_leaves(merged))
    origins = {key: origins[key] for key in origins if key in kept}
    return Inherited(merged, origins, tuple(file for file, _ in chain))


def _named(file: Path, named: Any, folder: str) -> Path:
    """Find what a file extends: beside it first, then among what ships, then as a path.

    A file may have the name of what it extends.
    """
    if not isinstance(named, str) or not named or not named.isprintable():
        raise ConfigError(f"{file}: '{EXTENDS}' is {named!r}: write the name of a profile or file.")
    for beside in (file.parent / named, file.parent / f"{named}.toml"):
        if beside.is_file() and not beside.samefile(file):
            return beside
    try:
        return find(named, folder)
    except ConfigError as error:
        raise ConfigError(f"{file}: {EXTENDS}: {error}") from error


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one table over another: tables key by key, lists and values replace.

    ``false`` takes away what it lies over, unless that is a yes or no itself: TOML has no null.
    """
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if isinstance(value, Mapping):
            merged[key] = merge(under if isinstance(under, Mapping) else {}, value)
        elif value is False and key in merged and not isinstance(under, bool):
            del merged[key]
        else:
            merged[key] = value
    return merged


def _leaves(values: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}"
