"""Render what init writes: a commented card from an inspection, and a first campaign for a card."""

import functools
import itertools
import os
import tomllib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydragnn_hpo.config import (
    INVARIANT,
    AttributeConfig,
    CampaignConfig,
    CardConfig,
    HeadConfig,
    ParameterConfig,
    Scalar,
    Space,
    TargetConfig,
    is_graph_scalar,
    parse_config,
    pool_of,
    render_toml,
)
from hydragnn_hpo.config.convs import CONV_SPECS, ConvSpec, search_ranges
from hydragnn_hpo.data import make_identifier
from hydragnn_hpo.errors import ConfigError, unknown
from hydragnn_hpo.inspection import UNKNOWN
from hydragnn_hpo.inspection.file_inspection import DataFile, Inspection, WeightColumn
from hydragnn_hpo.planning import FeaturesPrice, SearchBudget
from hydragnn_hpo.sanitize import escape_line, sanitize_line
from hydragnn_hpo.search.portfolio import ELEMENTS, EMBEDDING, Kind, choose_points

CERTAINTY = {
    "said": "unit",
    "recognised": "unit recognised",
    "guessed": "UNIT GUESSED, look at it",
    "unknown": "UNIT NOT KNOWN",
}

NOTES = {
    "unit_guessed": 'remove this line when you know: until then every number says "guessed"',
    "extensive": "a sum over atoms: a supercell has a multiple; where it is none, drop this line",
    "origin": "mass: of molecules, from positions; none: of crystals, from vectors of atoms alone",
    "min": "a gap is never negative: predictions and intervals end there",
    "sum": "so it is in each structure that was read: predictions sum to it exactly",
}
"""Comments above fields of targets in a card."""

STAGE_TWO_WEIGHT = 3.0
"""Weight in stage two of an energy beside its forces, whose weight is 10. It is set and not
searched, as trials that end at an earlier rung have no stage two to judge it by."""

CARD = """\
# Written by hydragnn-hpo init, to be read and corrected.
{{ summary | comment }}
{% for warning in inspection.warnings %}
{{ ("WARNING: " ~ warning) | comment }}
{% endfor %}
name = {{ inspection.name | toml }}
title = {{ title | toml }}
{% if column is not none %}
structure_column = {{ column | toml }}
{% endif %}
{% if inspection.max_bad is not none %}
# remove it when those that are set aside are mended
max_bad = {{ inspection.max_bad | toml }}
{% endif %}
{% if inspection.id_key is not none %}
id_key = {{ inspection.id_key | toml }}
{% endif %}
{% for path, reader, length in files %}

[[files]]
path = {{ path | toml }}
{% if reader is not none %}
reader = {{ reader | toml }}
{% endif %}
{% if length is not none %}
length = {{ length | toml }}
{% endif %}
{% endfor %}
{% for target in inspection.proposals.targets %}

{% for reason in target.why %}
{{ reason | comment }}
{% endfor %}
{{ ("values: " ~ target.spread) | comment }}
[targets.{{ target.name }}]
{% for field, value in target.lines.items() %}
{% if field == "unit" %}
{{ (certainty[target.unit.sure] ~ ": " ~ target.unit.why) | comment }}
{% elif field in notes %}
{{ notes[field] | comment }}
{% endif %}
{% if field == "axis" %}
axis = {first = {{ value.first }}, last = {{ value.last }}, unit = {{ value.unit | toml }}}
{% else %}
{{ field }} = {{ value | toml }}
{% endif %}
{% if field == "size" and target.config.axis is none %}
# axis = {first = 0.0, last = 10.0, unit = "eV"}
{% elif field == "unit" and value == unknown_unit %}
{{ ("write one of: " ~ target.unit.choices | join(", ")) | comment }}
{% endif %}
{% endfor %}
{% endfor %}
{% for name, key in attributes.items() %}

# known beforehand and told to the model; nothing to predict
[attributes.{{ name }}]
key = {{ key | toml }}
{% endfor %}
{% if weight is not none %}

# multiplies the loss of a structure in training, over its mean
[attributes.{{ weight_name }}]
{% for field, value in weight.model_dump(exclude_defaults=True).items() %}
{{ field }} = {{ value | toml }}
{% endfor %}
{% endif %}

{% for reason in left_out %}
{{ reason | comment }}
{% endfor %}
[graphs]
{{ neighbors | comment }}
cutoff = {{ inspection.geometry.cutoff | toml }}

[split]
{{ inspection.split.why | comment }}
group = {{ inspection.split.group | toml }}
# train, val (search), sel (members), cal (error bars), test
shares = {{ inspection.split.shares | toml }}
{% if inspection.split.published is not none %}
{{ inspection.split.published_why | comment }}
published = {{ inspection.split.published | toml }}
{% if inspection.split.published_test != "test" %}
published_test = {{ inspection.split.published_test | toml }}
{% endif %}
{% endif %}
"""


def render_card(inspection: Inspection, folder: Path) -> str:
    """Render a card as TOML.

    Args:
        inspection: the inspection of the files.
        folder: where the card will lie; files below it are named from there.

    Raises:
        ConfigError: the files need different settings, or a name is no UTF-8.
    """
    geometry = inspection.geometry
    return render_toml(
        CARD,
        inspection=inspection,
        summary=f"{count_structures(inspection)}; {describe_geometry(inspection)}.",
        title=f"{sanitize_line(inspection.files[0].path.name)}, as found by init",
        column=_find_column(inspection.files),
        files=[
            (path_from(file.path, folder), file.card_reader, file.length)
            for file in inspection.files
        ],
        certainty=CERTAINTY,
        notes=NOTES,
        unknown_unit=UNKNOWN,
        attributes=_name_attributes(inspection.proposals.attributes),
        weight=_propose_weight(inspection.weight),
        weight_name=name_weight(inspection),
        left_out=[
            f"no target: {escape_line(name)[:60]!r} {why}"
            for name, why in inspection.proposals.left_out
        ],
        neighbors=f"{geometry.degree:.0f} neighbours on average; {geometry.cutoff_why}",
    )


def path_from(path: Path, folder: Path) -> str:
    """Return the name by which a card in a folder finds a file: relative if it lies below.

    Raises:
        ConfigError: its name is no UTF-8, as a card is.
    """
    whole = Path(os.path.abspath(path))
    home = Path(os.path.abspath(folder))
    name = str(whole.relative_to(home)) if whole.is_relative_to(home) else str(whole)
    if any("\ud800" <= letter <= "\udfff" for letter in name):
        raise ConfigError(f"{name}: its name is no UTF-8, a card cannot say it: rename it.")
    return name


def count_structures(inspection: Inspection) -> str:
    """Return the number of structures in words, how many were read, and how many are usable."""
    sample = inspection.sample
    read = len(sample.structures) + sample.bad
    aside = sample.bad + len(inspection.set_aside)
    how = "all read" if read == sample.total else f"{read:,} of them read"
    how += f", {read - aside:,} usable, {aside:,} set aside" if aside else ", all usable"
    return f"{'' if sample.exact else 'about '}{sample.total:,} structures ({how})"


def describe_geometry(inspection: Inspection) -> str:
    """Return sizes, periodic directions and elements in words."""
    geometry = inspection.geometry
    fewest, median, most = geometry.sizes
    count = len(geometry.elements)
    sizes = f"{fewest} to {most} atoms, median {median}" if fewest < most else f"{most} atoms each"
    return (
        f"{sizes}; {geometry.periodic}; "
        f"{count:,} element{'' if count == 1 else 's'}: {' '.join(geometry.elements)}"
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
        named[make_identifier(key, "attribute", named)] = key
    return named


def _propose_weight(column: WeightColumn | None) -> AttributeConfig | None:
    """Return the attribute of a card that weighs structures: 1 for each text, and where absent."""
    if column is None:
        return None
    numbers = dict.fromkeys(column.texts, 1.0)
    default = None if column.complete else 1.0
    return AttributeConfig(key=column.key, numbers=numbers, default=default, weighs=True)


def name_weight(inspection: Inspection) -> str:
    """Return the attribute that weighs structures, by a name that a card accepts; may be empty."""
    if inspection.weight is None:
        return ""
    others = _name_attributes(inspection.proposals.attributes)
    return make_identifier(inspection.weight.key, "weight", others)


CAMPAIGN = """\
# A first campaign on {{ card.name }}: copy it, change it.
{% for reason in budget.why %}
{{ reason | comment }}
{% endfor %}
name = {{ (card.name ~ "_start") | toml }}
seed = 0

[[data]]
card = {{ card_path | toml }}
{% for name in heads %}
{% set target = card.targets[name] %}

[trial.heads.{{ name }}]
{% if target.derived_from %}
# The derivative of {{ target.derived_from }}.
weight = 10.0
{% elif target.energy %}
# An energy is a sum over atoms.
pool = "contributions"
{% endif %}
{% if name in staged %}
# Weight in the last quarter of the epochs, before that 1: as in MACE's stage two.
stage_two_weight = {{ stage_two_weight | toml }}
{% endif %}
{% if name in hints.heavy_tailed %}
# Few structures hold most of the spread: their squares would hide the others.
loss = "mae"
{% endif %}
{% endfor %}
{% for name in card.targets if name not in heads %}

{% if name in hints.aside %}
{{ hints.aside[name] | comment }}
{% endif %}
# [trial.heads.{{ name }}]
{% endfor %}
{% if attributes %}

[trial.model]
# Known properties of whole structures, told to every layer.
attributes = {{ attributes | toml }}
{% endif %}
{% if weight or budget.steps is not none %}

[trial.training]
{% if weight %}
# Multiplies the loss of each structure; errors count all alike.
weight_by = {{ weight | toml }}
{% endif %}
{% if budget.steps is not none %}
# So many steps are called an epoch.
steps_per_epoch = {{ budget.steps }}
{% endif %}
{% endif %}

[space]
{% if other_convs %}
{{ ("could be tried as well: " ~ other_convs | join(", ")) | comment }}
{% endif %}
"model.conv" = {{ convs | toml }}
"model.features" = {{ features | toml }}
{% if hints.trunks %}
# elements alone, or also features of a foundation model{{ few_rounds }}
"model.embedding" = {{ (["elements"] + (hints.trunks | list)) | toml }}
{% endif %}
"model.layers" = {{ {"low": layers[0], "high": layers[1]} | toml }}
{% if pools %}
# layers through which atoms pass before a structure pools them
"model.atom_layers" = {{ ([0, 1, 2] if hints.trunks else [0, 2]) | toml }}
{% endif %}
{% if card.graphs.cutoff > 4 %}
"model.cutoff" = {{ {"low": 4.0, "high": card.graphs.cutoff, "step": 0.25} | toml }}
{% else %}
"model.cutoff" = {{ [card.graphs.cutoff] | toml }}
{% endif %}
"training.learning_rate" = { low = 0.0003, high = 0.01, log = true }
"training.global_batch" = {{ budget.batches | toml }}
{% for name, values in options.items() %}
"model.options.{{ name }}" = {{ values | toml }}
{% endfor %}
{% for conv, name, values in other_ranges %}
# {{ conv }} has its own range of {{ name }}, {{ values | toml }}; here it keeps its default.
{% endfor %}

[search]
trials = {{ budget.trials }}
{% if points %}
# tried first: what did well on other data sets; the search learns from it
initial_points = [
{% for point in points %}
    {{ point | toml }},
{% endfor %}
]
{% endif %}
{% if features | max > budget.features | max %}
# so wide without rounds alone, where it costs little
constraints = ["model.features <= {{ budget.features | max }} or model.layers == 0"]
{% endif %}
# so many are spread over the space before the others are chosen by what was learned
initial = {{ budget.initial }}
# epochs after each of which one trial in three goes on, and of the last
rungs = {{ budget.rungs | toml }}
{% if budget.finalists is not none %}
finalists = {{ budget.finalists }}
{% endif %}
{% if budget.fit == "cross" %}
promotion = "together"
{% endif %}

[ensemble]
{% if budget.fit == "cross" %}
# the finalists train again on folds of all labels but those of test
fit = "cross"
{% else %}
members = {{ budget.members }}
{% endif %}
"""


@dataclass(frozen=True)
class HeadHints:
    """Knowledge of the targets beyond their card; empty if there is only a card."""

    aside: Mapping[str, str] = field(default_factory=dict)
    """Targets that get no head at first, and the reason."""
    heavy_tailed: Set[str] = frozenset()
    """Targets of which few structures hold most of the spread."""
    trunks: tuple[str, ...] = ()
    """Foundation models whose features the search may begin from."""
    needs_rounds: bool = False
    """Whether nets need rounds beside features: where structures are no crystals, of which alone
    these models know."""
    prices: tuple[FeaturesPrice, ...] = ()
    """What their features take."""
    weight: str = ""
    """Attribute that weighs structures in training; empty for none."""

    @property
    def may_lack_rounds(self) -> bool:
        """Whether nets on features of a foundation model may do without rounds of a conv."""
        return bool(self.trunks) and not self.needs_rounds


def render_campaign(
    card: CardConfig,
    card_path: str,
    convs: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
    *,
    budget: SearchBudget | None = None,
    hints: HeadHints | None = None,
) -> str:
    """Render a campaign as TOML with comments.

    Args:
        card: the data set.
        card_path: name of the card in the campaign, a shipped name or a path.
        convs: convs to search; all that fit if left out.
        targets: targets to predict; all but vectors of their own if left out.
        budget: how much is searched.
        hints: knowledge of the data beyond the card.

    Raises:
        ConfigError: a target or conv is unknown, or a conv cannot predict a target.
    """
    hints, budget = hints or HeadHints(), budget or SearchBudget()
    weighing = (name for name, known in card.attributes.items() if known.weighs)
    weight = hints.weight or next(weighing, "")
    heads = choose_heads(card, targets, hints)
    able = choose_convs(card, heads, convs)
    searched = tuple(convs or budget.convs or able)
    options, other_ranges = _collect_ranges(searched)
    pools = any(_is_pooled(card.targets[name]) for name in heads)
    features = budget.features
    if hints.may_lack_rounds and max(features) < FEATURES_WITHOUT_ROUNDS:
        features = (*features, FEATURES_WITHOUT_ROUNDS)
    render = functools.partial(
        render_toml,
        CAMPAIGN,
        card=card,
        card_path=card_path,
        heads=heads,
        attributes=[
            name for name, known in card.attributes.items() if not known.weighs and name != weight
        ],
        convs=searched,
        other_convs=[name for name in choose_convs(card, heads) if name not in searched],
        budget=budget,
        weight=weight,
        features=features,
        hints=hints,
        few_rounds="" if hints.needs_rounds else ", which needs few rounds beside",
        layers=(0, min(budget.layers[1], 3)) if hints.may_lack_rounds else budget.layers,
        options=options,
        other_ranges=other_ranges,
        staged=_find_staged_energies(card, heads),
        stage_two_weight=STAGE_TWO_WEIGHT,
        pools=pools,
    )
    space = parse_config(tomllib.loads(render(points=[])), CampaignConfig, where=card.name).space
    return render(points=_choose_first(space, hints, budget))


FEATURES_WITHOUT_ROUNDS = 64
"""Width that the search may give nets without rounds on a foundation model's features."""


EVERY = 4
"""One in so many of the points tried first has no features of a foundation model."""


def _choose_first(space: Space, hints: HeadHints, budget: SearchBudget) -> list[dict[str, Scalar]]:
    """Return what is tried first; beside rounds, with features of each model in turn and without.

    Where nets may lack rounds, one in ``EVERY`` has no features: they may tell energies, and
    elements band edges, so that an ensemble wants both.

    Args:
        space: searched keys.
        hints: say whether nets may begin from features.
        budget: number of points, and widths.
    """
    kind: Kind = "features" if hints.may_lack_rounds else "elements"
    points = choose_points(kind, space, budget.points)
    if hints.may_lack_rounds:
        without = choose_points("elements", space, budget.points // EVERY)
        for number, point in enumerate(without, start=1):
            points.insert(EVERY * number - 1, point)
    elif hints.trunks:
        embeddings = itertools.cycle([*hints.trunks, ELEMENTS])
        points = [{**point, EMBEDDING: next(embeddings)} for point in points]
    return [_narrow(point, max(budget.features)) for point in points[: budget.points]]


def _narrow(point: Mapping[str, Scalar], widest: int) -> dict[str, Scalar]:
    """Return a point with at most the width that nets with rounds may have, if it has some."""
    width = point["model.features"]
    assert isinstance(width, int)
    return {**point, "model.features": min(width, widest) if point["model.layers"] else width}


def _find_staged_energies(card: CardConfig, heads: Sequence[str]) -> set[str]:
    """Return the energies with forces whose weight is raised in stage two.

    Between compositions only energies tell the difference. Of few compositions, whose structures
    are split one by one or as frames of trajectories, forces tell the energy but for a constant.
    """
    if card.split.group in ("structure", "trajectory"):
        return set()
    return {energy for name in heads if (energy := card.targets[name].derived_from)}


def _is_pooled(target: TargetConfig) -> bool:
    """Check whether the head of a target pools features, and not its numbers of each atom."""
    return is_graph_scalar(HeadConfig(), vars(target)) and (
        pool_of(HeadConfig(), vars(target)) != "contributions"
    )


def choose_heads(
    card: CardConfig, targets: Sequence[str] | None, hints: HeadHints | None = None
) -> tuple[str, ...]:
    """Choose the targets that get a head; the energy of a derivative is always among them.

    Args:
        card: the data set.
        targets: names that the user wants; the usual ones if None.
        hints: targets to set aside unless the user names them.

    Returns:
        Names of targets, energies of derivatives first.

    Raises:
        ConfigError: a target is unknown.
    """
    # Nearly every conv can predict these; vectors of their own are left to the user.
    usual = tuple(n for n, t in card.targets.items() if t.shape in INVARIANT or t.derived_from)
    first = tuple(name for name in usual if not hints or name not in hints.aside)
    heads = tuple(targets or first or usual or card.targets)
    for name in heads:
        if name not in card.targets:
            raise ConfigError(unknown("target", name, card.targets))
    energies = [card.targets[name].derived_from for name in heads]
    return tuple(dict.fromkeys((*(name for name in energies if name), *heads)))


def choose_convs(
    card: CardConfig, heads: Sequence[str], convs: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Return the wanted convs, or all that can predict some targets.

    Args:
        card: the data set.
        heads: the targets.
        convs: the convs that the user wants; all if left out.

    Returns:
        Names of convs.

    Raises:
        ConfigError: a wanted one is unknown, or cannot predict a target.
    """
    targets = [card.targets[name] for name in heads]
    able = tuple(name for name, spec in CONV_SPECS.items() if _can_predict(spec, targets))
    for name in convs or ():
        if name not in CONV_SPECS:
            raise ConfigError(unknown("conv", name, CONV_SPECS))
        if name not in able:
            raise ConfigError(
                f"conv '{name}' cannot predict all of {', '.join(heads)} (forces, or vectors "
                f"and tensors): choose from {', '.join(able)}, or name fewer targets."
            )
    return tuple(convs or able)


def _can_predict(spec: ConvSpec, targets: Sequence[TargetConfig]) -> bool:
    derived = any(target.derived_from for target in targets)
    vectors = any(
        t.shape not in INVARIANT and not t.derived_from and t.origin not in ("mass", "geometry")
        for t in targets
    )
    return (spec.forces or not derived) and (spec.vectors or not vectors)


def _collect_ranges(
    convs: Sequence[str],
) -> tuple[dict[str, dict[str, Any]], list[tuple[str, str, Any]]]:
    """Collect the ranges of the options of convs; of each option the first conv's range counts.

    Returns:
        By option the range that is searched and the convs that have it; and conv, option and
        range where a conv has a range of its own.
    """
    searched: dict[str, tuple[ParameterConfig, list[str]]] = {}
    others = []
    for conv in convs:
        for name, parameter in search_ranges(CONV_SPECS[conv].options).items():
            first, owners = searched.setdefault(name, (parameter, []))
            if first == parameter:
                owners.append(conv)
            else:
                values = parameter.model_dump(exclude_defaults=True)
                others.append((conv, name, values.get("choices", values)))
    options = {}
    for name, (parameter, owners) in searched.items():
        when = {"model.conv": owners[0] if len(owners) == 1 else owners}
        options[name] = parameter.model_dump(exclude_defaults=True) | {"when": when}
    return options, others
