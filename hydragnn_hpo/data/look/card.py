"""A card with comments, from a look at files."""

import itertools
import os
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydragnn_hpo.config.loading import to_toml
from hydragnn_hpo.data.look.files import Opened, plain
from hydragnn_hpo.data.look.kinds import slug
from hydragnn_hpo.data.look.look import Look
from hydragnn_hpo.data.look.targets import Proposal
from hydragnn_hpo.data.look.units import UNKNOWN
from hydragnn_hpo.errors import ConfigError

WIDTH = 98

_SURE = {
    "said": "unit",
    "recognised": "unit recognised",
    "guessed": "UNIT GUESSED, look at it",
    "unknown": "UNIT NOT KNOWN",
}


def card_text(seen: Look, folder: Path) -> str:
    """Write a card as TOML.

    Args:
        seen: the look.
        folder: where the card will lie; files below it are named from there.

    Raises:
        ConfigError: the files need different settings.
    """
    return "\n".join(_lines(seen, folder)) + "\n"


def _lines(seen: Look, folder: Path) -> Iterator[str]:
    around, sample = seen.surroundings, seen.sample
    yield from _said("Written by hydragnn-hpo init, to be read and corrected.")
    about = "" if sample.exact else "about "
    read = len(sample.structures) + sample.bad
    looked = "all of them were read" if read == sample.total else f"{read:,} of them were read"
    few, middle, most = around.sizes
    yield from _said(
        f"{about}{sample.total:,} structures ({looked}); {few} to {most} atoms, median {middle}; "
        f"{around.periodic}; {counted(len(around.elements), 'element')}: "
        f"{' '.join(around.elements)}."
    )
    for warning in seen.warnings:
        yield from _said(f"WARNING: {warning}")
    yield _pair("name", seen.name)
    yield _pair("title", f"{plain(seen.files[0].path.name)}, as found by init")
    column = _column(seen.files)
    if column is not None:
        yield _pair("structure_column", column)
    if seen.id_key is not None:
        yield _pair("id_key", seen.id_key)
    for one in seen.files:
        yield from ("", "[[files]]", _pair("path", named(one.path, folder)))
        if one.said is not None:
            yield _pair("reader", one.said)
    for target in seen.judged.targets:
        yield from _target(target)
    for word, name in _words(seen.judged.attributes).items():
        yield from ("", *_said("known beforehand and told to the model; nothing to predict"))
        yield f"[attributes.{word}]"
        yield _pair("key", name)
    yield from _rest(seen)


def _target(target: Proposal) -> Iterator[str]:
    yield ""
    for why in target.why:
        yield from _said(why)
    yield from _said(f"values: {target.spread}")
    yield f"[targets.{target.name}]"
    if target.key != target.name:
        yield _pair("key", target.key)
    yield _pair("level", target.level)
    if target.shape != "scalar":
        yield _pair("shape", target.shape)
    yield from _said(f"{_SURE[target.unit.sure]}: {target.unit.why}")
    yield _pair("unit", target.unit.name)
    if target.unit.name == UNKNOWN:
        yield from _said("write one of: eV, meV, Hartree, Rydberg, kcal/mol, kJ/mol")
    if target.energy is not None:
        yield _pair("energy", target.energy)
    if target.derived_from is not None:
        yield _pair("derived_from", target.derived_from)
    if target.optional:
        yield "optional = true"


def _rest(seen: Look) -> Iterator[str]:
    around, split = seen.surroundings, seen.split
    yield ""
    for name, why in seen.judged.left_out:
        yield from _said(f"no target: {plain(name)[:60]!r} {why}")
    yield "[graphs]"
    yield from _said(f"{around.degree:.0f} neighbours on average; {around.cutoff_why}")
    yield _pair("cutoff", around.cutoff)
    yield from ("", "[split]", *_said(split.why))
    yield _pair("group", split.group)
    yield from _said("train, val (search), sel (members), cal (error bars), test")
    yield _pair("shares", list(split.shares))
    if split.published is not None:
        yield _pair("published", split.published)


def _said(text: str) -> list[str]:
    """Write a comment; whatever is in it, it stays one."""
    found = textwrap.wrap(plain(text).replace('\\"', '"'), WIDTH - 2, break_long_words=True)
    return [f"# {line}" for line in found]


def _pair(key: str, value: object) -> str:
    return to_toml({key: value}).strip()


def _words(names: Sequence[str]) -> dict[str, str]:
    """Give each attribute a name that a card may use and that no other has."""
    found: dict[str, str] = {}
    for name in names:
        word = slug(name, "attribute")
        others = (f"{word}_{number}" for number in itertools.count(2))
        found[word if word not in found else next(o for o in others if o not in found)] = name
    return found


def counted(number: int, word: str) -> str:
    """Give a number of things in words.

    >>> counted(1, "element"), counted(2, "element")
    ('1 element', '2 elements')
    """
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _column(files: tuple[Opened, ...]) -> str | None:
    columns = {one.column for one in files}
    if len(columns) > 1:
        raise ConfigError(
            f"{files[0].path}: the structures are in column '{files[0].column}' here and elsewhere "
            "in other files: give files of one kind, or one init for each."
        )
    return columns.pop()


def named(path: Path, folder: Path) -> str:
    """Name a file so that a card in a folder finds it: from there if it lies below, else whole.

    Raises:
        ConfigError: its name is no UTF-8, as a card is.
    """
    whole, home = Path(os.path.abspath(path)), Path(os.path.abspath(folder))
    name = str(whole.relative_to(home)) if whole.is_relative_to(home) else str(whole)
    if any("\ud800" <= letter <= "\udfff" for letter in name):
        raise ConfigError(f"{name}: its name is no UTF-8, a card cannot say it: rename it.")
    return name
