"""A first campaign for a card: the convs that fit its targets, with ranges that make sense."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydragnn_hpo.config.convs import CONV_SPECS, ConvSpec, search_ranges
from hydragnn_hpo.config.data import CardConfig, TargetConfig
from hydragnn_hpo.config.loading import to_toml
from hydragnn_hpo.config.search import ParameterConfig
from hydragnn_hpo.errors import ConfigError, unknown

FEATURES = (32, 64, 96, 128)
"""Widths to search: every number of attention heads divides them."""


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


def starter(
    card: CardConfig,
    named: str,
    convs: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
) -> str:
    """Write a campaign as TOML with comments.

    Args:
        card: the data set.
        named: how the campaign names it, a shipped name or a path.
        convs: convs to search; all that fit if left out.
        targets: targets to predict; all but vectors of their own if left out.

    Raises:
        ConfigError: a target or conv is unknown, or a conv cannot predict a target.
    """
    heads = tuple(targets or proposed(card) or card.targets)
    for name in heads:
        if name not in card.targets:
            raise ConfigError(unknown("target", name, card.targets))
    able = fitting([card.targets[name] for name in heads])
    for name in convs or ():
        if name not in CONV_SPECS:
            raise ConfigError(unknown("conv", name, CONV_SPECS))
        if name not in able:
            raise ConfigError(
                f"conv '{name}' cannot predict all of {', '.join(heads)} (forces, or vectors of "
                f"atoms): choose from {', '.join(able)}, or name fewer targets."
            )
    return "\n".join(_lines(card, named, tuple(convs or able), heads)) + "\n"


def _lines(
    card: CardConfig, named: str, convs: tuple[str, ...], heads: tuple[str, ...]
) -> Iterator[str]:
    yield f"# A first campaign on {card.name}: copy it, change it."
    yield to_toml({"name": f"{card.name}_start", "seed": 0}).rstrip()
    yield "\n[[data]]"
    yield to_toml({"card": named}).rstrip()
    for name in heads:
        target = card.targets[name]
        yield f"\n[trial.heads.{name}]"
        if target.derived_from:
            yield f"# The derivative of {target.derived_from}."
            yield "weight = 10.0"
        elif target.energy:
            yield "# An energy is a sum over atoms."
            yield 'pool = "contributions"'
    for name in card.targets:
        if name not in heads:
            yield f"\n# [trial.heads.{name}]"
    yield "\n[space]"
    for key, parameter in _space(card, convs):
        yield f'"{key}" = {_shown(parameter)}'
    yield from _left_out(convs)
    yield "\n[search]"
    yield "trials = 60"
    yield "initial = 20"
    yield "rungs = [10, 40]"
    yield "\n[ensemble]"
    yield "members = 6"


def _space(card: CardConfig, convs: tuple[str, ...]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    reach = card.graphs.cutoff
    yield "model.conv", {"choices": list(convs)}
    yield "model.features", {"choices": list(FEATURES)}
    yield "model.layers", {"low": 2, "high": 4}
    yield (
        "model.cutoff",
        {"low": min(4.0, reach), "high": reach} if reach > 4 else {"choices": [reach]},
    )
    yield "training.learning_rate", {"low": 3e-4, "high": 1e-2, "log": True}
    yield "training.global_batch", {"choices": [16, 32, 64]}
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
