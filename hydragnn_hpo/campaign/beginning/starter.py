"""A first campaign for a card: the convs that fit its targets, with ranges that make sense."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydragnn_hpo.campaign.beginning.scope import Scope
from hydragnn_hpo.config.convs import CONV_SPECS, ConvSpec, search_ranges
from hydragnn_hpo.config.data import CardConfig, TargetConfig
from hydragnn_hpo.config.loading import to_toml
from hydragnn_hpo.config.search import ParameterConfig
from hydragnn_hpo.errors import ConfigError, unknown
from hydragnn_hpo.text import shown


def proposed(card: CardConfig) -> tuple[str, ...]:
    """Give the targets that nearly every conv can predict: all but vectors of their own."""
    return tuple(n for n, t in card.targets.items() if t.shape == "scalar" or t.derived_from)


def fitting(targets: Sequence[TargetConfig]) -> tuple[str, ...]:
    """Give the convs that can predict some targets."""
    derived = any(target.derived_from for target in targets)
    vectors = any(t.shape == "vector" and not t.derived_from for t in targets)

    def fits(spec: ConvSpec) -> bool:
        return (spec.forces or not derived) and (spec.vectors or not vectors)

    return tuple(name for name, spec in CONV_SPECS.items() if fits(spec))


@dataclass(frozen=True)
class Known:
    """What is known of the data beyond their card; nothing if there is only a card."""

    sums: frozenset[str] = frozenset()
    """Targets that grow with the structure and are no energies."""
    aside: Mapping[str, str] = field(default_factory=dict)
    """Targets that get no head at first, and why."""


def starter(
    card: CardConfig,
    named: str,
    convs: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
    *,
    scope: Scope | None = None,
    known: Known | None = None,
) -> str:
    """Write a campaign as TOML with comments.

    Args:
        card: the data set.
        named: how the campaign names it, a shipped name or a path.
        convs: convs to search; all that fit if left out.
        targets: targets to predict; all but vectors of their own if left out.
        scope: how much is searched.
        known: what is known of the data beyond the card.

    Raises:
        ConfigError: a target or conv is unknown, or a conv cannot predict a target.
    """
    known = known or Known()
    heads = heads_of(card, targets, known)
    able = able_convs(card, heads, convs)
    scope = scope or Scope()
    searched = tuple(convs or scope.convs or able)
    return "\n".join(_lines(card, named, searched, heads, scope=scope, known=known)) + "\n"


def heads_of(
    card: CardConfig, targets: Sequence[str] | None, known: Known | None = None
) -> tuple[str, ...]:
    """Give the targets that get a head; the energy of a derivative is always among them.

    Raises:
        ConfigError: a target is unknown.
    """
    aside = known.aside if known else {}
    first = tuple(name for name in proposed(card) if name not in aside)
    heads = tuple(targets or first or proposed(card) or card.targets)
    for name in heads:
        if name not in card.targets:
            raise ConfigError(unknown("target", name, card.targets))
    energies = [card.targets[name].derived_from for name in heads]
    return tuple(dict.fromkeys((*(name for name in energies if name), *heads)))


def able_convs(
    card: CardConfig, heads: Sequence[str], convs: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Give the convs that can predict some targets.

    Raises:
        ConfigError: one that was asked for is unknown, or cannot.
    """
    able = fitting([card.targets[name] for name in heads])
    for name in convs or ():
        if name not in CONV_SPECS:
            raise ConfigError(unknown("conv", name, CONV_SPECS))
        if name not in able:
            raise ConfigError(
                f"conv '{name}' cannot predict all of {', '.join(heads)} (forces, or vectors of "
                f"atoms): choose from {', '.join(able)}, or name fewer targets."
            )
    return tuple(convs or able)


def _lines(
    card: CardConfig,
    named: str,
    convs: tuple[str, ...],
    heads: tuple[str, ...],
    *,
    scope: Scope,
    known: Known,
) -> Iterator[str]:
    yield f"# A first campaign on {card.name}: copy it, change it."
    for why in scope.why:
        yield from commented(why)
    yield to_toml({"name": f"{card.name}_start", "seed": 0}).rstrip()
    yield "\n[[data]]"
    yield to_toml({"card": named}).rstrip()
    yield from _heads(card, heads, known)
    if card.attributes:
        yield "\n[trial.model]"
        yield "# Known properties of whole structures, told to every layer."
        yield to_toml({"attributes": list(card.attributes)}).rstrip()
    if scope.steps is not None:
        yield "\n[trial.training]"
        yield "# So many steps are called an epoch."
        yield f"steps_per_epoch = {scope.steps}"
    yield from _searched(card, convs, heads, scope)


def _heads(card: CardConfig, heads: tuple[str, ...], known: Known) -> Iterator[str]:
    for name in heads:
        target = card.targets[name]
        yield f"\n[trial.heads.{name}]"
        if target.derived_from:
            yield f"# The derivative of {target.derived_from}."
            yield "weight = 10.0"
        elif target.energy:
            yield "# An energy is a sum over atoms."
            yield 'pool = "contributions"'
        elif name in known.sums:
            yield "# It grows with the structure."
            yield 'pool = "sum"'
    for name in card.targets:
        if name not in heads:
            yield ""
            if name in known.aside:
                yield from commented(known.aside[name])
            yield f"# [trial.heads.{name}]"


def _searched(
    card: CardConfig, convs: tuple[str, ...], heads: tuple[str, ...], scope: Scope
) -> Iterator[str]:
    able = fitting([card.targets[name] for name in heads])
    yield "\n[space]"
    if others := [name for name in able if name not in convs]:
        yield from commented(f"could be tried as well: {', '.join(others)}")
    for key, parameter in _space(card, convs, scope):
        yield f'"{key}" = {_shown(parameter)}'
    yield from _left_out(convs)
    yield "\n[search]"
    yield f"trials = {scope.trials}"
    yield "# so many are spread over the space before the others are chosen by what was learned"
    yield f"initial = {scope.initial}"
    yield "# epochs after which one trial in three goes on, and of those that do"
    yield to_toml({"rungs": list(scope.rungs)}).rstrip()
    if scope.finalists is not None:
        yield f"finalists = {scope.finalists}"
    yield "\n[ensemble]"
    yield f"members = {scope.members}"


def commented(text: str) -> list[str]:
    """Write a sentence as comments; whatever is in it, it stays one."""
    plain = " ".join(shown(text).split())
    return [f"# {line}" for line in textwrap.wrap(plain, 96)]


def _space(
    card: CardConfig, convs: tuple[str, ...], scope: Scope
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    reach = card.graphs.cutoff
    yield "model.conv", {"choices": list(convs)}
    yield "model.features", {"choices": list(scope.features)}
    yield "model.layers", {"low": scope.layers[0], "high": scope.layers[1]}
    yield (
        "model.cutoff",
        {"low": 4.0, "high": reach, "step": 0.25} if reach > 4 else {"choices": [reach]},
    )
    yield "training.learning_rate", {"low": 3e-4, "high": 1e-2, "log": True}
    yield "training.global_batch", {"choices": list(scope.batches)}
    for name, (parameter, owners) in _options(convs).items():
        when = {"model.conv": owners[0] if len(owners) == 1 else owners}
        found = parameter.model_dump(exclude_defaults=True)
        yield f"model.options.{name}", {**found, "when": when}


def _options(convs: tuple[str, ...]) -> dict[str, tuple[ParameterConfig, list[str]]]:
    """Give each option's range and the convs that have it; the first conv's range counts."""
    found: dict[str, tuple[ParameterConfig, list[str]]] = {}
    for conv in convs:
        for name, parameter in search_ranges(CONV_SPECS[conv].options).items():
            known, owners = found.setdefault(name, (parameter, []))
            if known == parameter:
                owners.append(conv)
    return found


def _left_out(convs: tuple[str, ...]) -> Iterator[str]:
    options = _options(convs)
    for conv in convs:
        for name, parameter in search_ranges(CONV_SPECS[conv].options).items():
            if conv not in options[name][1]:
                shown = _shown(parameter.model_dump(exclude_defaults=True))
                yield f"# {conv} has its own range of {name}, {shown}; here it keeps its default."


def _shown(parameter: Mapping[str, Any]) -> str:
    """Write a range or choices on one line."""
    if set(parameter) == {"choices"}:
        return _value(parameter["choices"])
    inside = ", ".join(f"{_key(key)} = {_value(value)}" for key, value in parameter.items())
    return "{ " + inside + " }"


def _key(key: str) -> str:
    return f'"{key}"' if "." in key else key


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return _shown(value)
    return to_toml({"x": value}).strip().removeprefix("x = ")
