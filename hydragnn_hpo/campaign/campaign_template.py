"""Render a commented first campaign for a card: convs that fit its targets, with ranges."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydragnn_hpo.campaign.search_budget import SearchBudget
from hydragnn_hpo.config import CardConfig, ParameterConfig, TargetConfig, render_toml
from hydragnn_hpo.config.convs import CONV_SPECS, ConvSpec, search_ranges
from hydragnn_hpo.errors import ConfigError, unknown

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
{% elif name in hints.extensive %}
# It grows with the structure.
pool = "sum"
{% endif %}
{% endfor %}
{% for name in card.targets if name not in heads %}

{% if name in hints.aside %}
{{ hints.aside[name] | comment }}
{% endif %}
# [trial.heads.{{ name }}]
{% endfor %}
{% if card.attributes %}

[trial.model]
# Known properties of whole structures, told to every layer.
attributes = {{ card.attributes | list | toml }}
{% endif %}
{% if budget.steps is not none %}

[trial.training]
# So many steps are called an epoch.
steps_per_epoch = {{ budget.steps }}
{% endif %}

[space]
{% if other_convs %}
{{ ("could be tried as well: " ~ other_convs | join(", ")) | comment }}
{% endif %}
"model.conv" = {{ convs | toml }}
"model.features" = {{ budget.features | toml }}
"model.layers" = {{ {"low": budget.layers[0], "high": budget.layers[1]} | toml }}
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
# so many are spread over the space before the others are chosen by what was learned
initial = {{ budget.initial }}
# epochs after which one trial in three goes on, and of those that do
rungs = {{ budget.rungs | toml }}
{% if budget.finalists is not none %}
finalists = {{ budget.finalists }}
{% endif %}

[ensemble]
members = {{ budget.members }}
"""


@dataclass(frozen=True)
class HeadHints:
    """Knowledge of the targets beyond their card; empty if there is only a card."""

    extensive: frozenset[str] = frozenset()
    """Targets that grow with the structure and are no energies."""
    aside: Mapping[str, str] = field(default_factory=dict)
    """Targets that get no head at first, and the reason."""


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
    heads = choose_heads(card, targets, hints)
    able = choose_convs(card, heads, convs)
    searched = tuple(convs or budget.convs or able)
    ranges = _collect_ranges(searched)
    return render_toml(
        CAMPAIGN,
        card=card,
        card_path=card_path,
        heads=heads,
        convs=searched,
        other_convs=[name for name in choose_convs(card, heads) if name not in searched],
        budget=budget,
        hints=hints,
        options={name: _range_with_owners(*each) for name, each in ranges.items()},
        other_ranges=list(_other_ranges(searched, ranges)),
    )


def choose_heads(
    card: CardConfig, targets: Sequence[str] | None, hints: HeadHints | None = None
) -> tuple[str, ...]:
    """Choose the targets that get a head; the energy of a derivative is always among them.

    Raises:
        ConfigError: a target is unknown.
    """
    # Nearly every conv can predict these; vectors of their own are left to the user.
    usual = tuple(n for n, t in card.targets.items() if t.shape == "scalar" or t.derived_from)
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
                f"conv '{name}' cannot predict all of {', '.join(heads)} (forces, or vectors of "
                f"atoms): choose from {', '.join(able)}, or name fewer targets."
            )
    return tuple(convs or able)


def _can_predict(spec: ConvSpec, targets: Sequence[TargetConfig]) -> bool:
    derived = any(target.derived_from for target in targets)
    vectors = any(t.shape == "vector" and not t.derived_from for t in targets)
    return (spec.forces or not derived) and (spec.vectors or not vectors)


Ranges = Mapping[str, tuple[ParameterConfig, list[str]]]


def _collect_ranges(convs: Sequence[str]) -> Ranges:
    """Return each option's range and the convs that have it; the first conv's range counts."""
    ranges: dict[str, tuple[ParameterConfig, list[str]]] = {}
    for conv in convs:
        for name, parameter in search_ranges(CONV_SPECS[conv].options).items():
            first, owners = ranges.setdefault(name, (parameter, []))
            if first == parameter:
                owners.append(conv)
    return ranges


def _other_ranges(convs: Sequence[str], ranges: Ranges) -> Iterator[tuple[str, str, Any]]:
    """Yield conv, option and range where a conv's own range is not the one that is searched."""
    for conv in convs:
        for name, parameter in search_ranges(CONV_SPECS[conv].options).items():
            if conv not in ranges[name][1]:
                values = _range_values(parameter)
                yield conv, name, values["choices"] if set(values) == {"choices"} else values


def _range_values(parameter: ParameterConfig) -> dict[str, Any]:
    return parameter.model_dump(exclude_defaults=True)


def _range_with_owners(parameter: ParameterConfig, owners: Sequence[str]) -> dict[str, Any]:
    convs = owners[0] if len(owners) == 1 else owners
    return _range_values(parameter) | {"when": {"model.conv": convs}}
