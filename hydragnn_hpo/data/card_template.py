"""Render a commented card from the inspection of files."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from hydragnn_hpo.config import render_toml
from hydragnn_hpo.data.inspect import DataFile, Inspection
from hydragnn_hpo.data.properties import make_identifier
from hydragnn_hpo.data.unit_inference import UNKNOWN
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.sanitize import escape_line

CERTAINTY = {
    "said": "unit",
    "recognised": "unit recognised",
    "guessed": "UNIT GUESSED, look at it",
    "unknown": "UNIT NOT KNOWN",
}

CARD = """\
# Written by hydragnn-hpo init, to be read and corrected.
{{ summary | comment }}
{% for warning in found.warnings %}
{{ ("WARNING: " ~ warning) | comment }}
{% endfor %}
name = {{ found.name | toml }}
title = {{ title | toml }}
{% if column is not none %}
structure_column = {{ column | toml }}
{% endif %}
{% if found.id_key is not none %}
id_key = {{ found.id_key | toml }}
{% endif %}
{% for path, reader in files %}

[[files]]
path = {{ path | toml }}
{% if reader is not none %}
reader = {{ reader | toml }}
{% endif %}
{% endfor %}
{% for target in found.proposals.targets %}

{% for reason in target.why %}
{{ reason | comment }}
{% endfor %}
{{ ("values: " ~ target.spread) | comment }}
[targets.{{ target.name }}]
{% if target.key != target.name %}
key = {{ target.key | toml }}
{% endif %}
level = {{ target.level | toml }}
{% if target.shape != "scalar" %}
shape = {{ target.shape | toml }}
{% endif %}
{{ (certainty[target.unit.sure] ~ ": " ~ target.unit.why) | comment }}
unit = {{ target.unit.name | toml }}
{% if target.unit.name == unknown_unit %}
# write one of: eV, meV, Hartree, Rydberg, kcal/mol, kJ/mol
{% endif %}
{% if target.energy is not none %}
energy = {{ target.energy | toml }}
{% endif %}
{% if target.derived_from is not none %}
derived_from = {{ target.derived_from | toml }}
{% endif %}
{% if target.optional %}
optional = true
{% endif %}
{% endfor %}
{% for name, key in attributes.items() %}

# known beforehand and told to the model; nothing to predict
[attributes.{{ name }}]
key = {{ key | toml }}
{% endfor %}

{% for reason in left_out %}
{{ reason | comment }}
{% endfor %}
[graphs]
{{ neighbors | comment }}
cutoff = {{ found.geometry.cutoff | toml }}

[split]
{{ found.split.why | comment }}
group = {{ found.split.group | toml }}
# train, val (search), sel (members), cal (error bars), test
shares = {{ found.split.shares | toml }}
{% if found.split.published is not none %}
published = {{ found.split.published | toml }}
{% endif %}
"""


def render_card(found: Inspection, folder: Path) -> str:
    """Render a card as TOML.

    Args:
        found: the inspection of the files.
        folder: where the card will lie; files below it are named from there.

    Raises:
        ConfigError: the files need different settings, or a name is no UTF-8.
    """
    geometry = found.geometry
    return render_toml(
        CARD,
        found=found,
        summary=_summarize(found),
        title=f"{escape_line(found.files[0].path.name)}, as found by init",
        column=_find_column(found.files),
        files=[(path_from(file.path, folder), file.card_reader) for file in found.files],
        certainty=CERTAINTY,
        unknown_unit=UNKNOWN,
        attributes=_name_attributes(found.proposals.attributes),
        left_out=[
            f"no target: {escape_line(name)[:60]!r} {why}" for name, why in found.proposals.left_out
        ],
        neighbors=f"{geometry.degree:.0f} neighbours on average; {geometry.cutoff_why}",
    )


def count_noun(number: int, noun: str) -> str:
    """Return a number of things in words.

    >>> count_noun(1, "element"), count_noun(2, "element")
    ('1 element', '2 elements')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def path_from(path: Path, folder: Path) -> str:
    """Return the name by which a card in a folder finds a file: relative if it lies below.

    Raises:
        ConfigError: its name is no UTF-8, as a card is.
    """
    whole, home = Path(os.path.abspath(path)), Path(os.path.abspath(folder))
    name = str(whole.relative_to(home)) if whole.is_relative_to(home) else str(whole)
    if any("\ud800" <= letter <= "\udfff" for letter in name):
        raise ConfigError(f"{name}: its name is no UTF-8, a card cannot say it: rename it.")
    return name


def _summarize(found: Inspection) -> str:
    geometry, sample = found.geometry, found.sample
    read = len(sample.structures) + sample.bad
    how = "all of them were read" if read == sample.total else f"{read:,} of them were read"
    fewest, median, most = geometry.sizes
    return (
        f"{'' if sample.exact else 'about '}{sample.total:,} structures ({how}); {fewest} to "
        f"{most} atoms, median {median}; {geometry.periodic}; "
        f"{count_noun(len(geometry.elements), 'element')}: {' '.join(geometry.elements)}."
    )


def _find_column(files: Sequence[DataFile]) -> str | None:
    columns = {file.column for file in files}
    if len(columns) > 1:
        raise ConfigError(
            f"{files[0].path}: the structures are in column '{files[0].column}' here and elsewhere "
            "in other files: give files of one kind, or one init for each."
        )
    return columns.pop()


def _name_attributes(keys: Sequence[str]) -> dict[str, str]:
    """Return the key of each attribute by a name that a card accepts and no other has."""
    named: dict[str, str] = {}
    for key in keys:
        name = make_identifier(key, "attribute")
        numbered = (f"{name}_{number}" for number in itertools.count(2))
        free = (each for each in itertools.chain([name], numbered) if each not in named)
        named[next(free)] = key
    return named
