"""Rules of a search space: which keys are active, which values are allowed, where they are set.

An *active* configuration has only the keys whose conditions hold; trials are started and compared
by it. A *canonical* one has all keys, inactive ones at a fixed value; brains model it.
"""

import copy
import difflib
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hydragnn_hpo.config import ParameterConfig, Scalar, Space, flatten_values
from hydragnn_hpo.errors import ConfigError, unknown

PARTS = ("model", "heads", "training", "parallel")
"""Tables of a trial that may be searched."""

DIGITS = 6
"""Significant digits of a searched real number, so that TOML files stay readable."""


def active_parameters(space: Space, values: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Keep the keys whose conditions hold, through chains of conditions.

    A condition on a key that is not searched counts as met: ``check_space`` has checked it.

    Returns:
        Values by key, in the order of the space.
    """
    known: dict[str, bool] = {}
    return {
        name: values[name]
        for name in space
        if name in values and _is_active(space, name, values, known)
    }


def is_active(space: Space, name: str, values: Mapping[str, Scalar]) -> bool:
    """Check whether the conditions of one key hold.

    Args:
        space: searched keys.
        name: of the key.
        values: by key; a key that is absent meets no condition.
    """
    return _is_active(space, name, values, {})


def _is_active(
    space: Space, name: str, values: Mapping[str, Scalar], known: dict[str, bool]
) -> bool:
    """Check one key; ``known`` keeps answers, as many keys may depend on the same ones."""
    if name not in known:
        known[name] = all(
            parent in values
            and _is_active(space, parent, values, known)
            and any(same_value(values[parent], value) for value in _several(wanted))
            for parent, wanted in space[name].when.items()
            if parent in space
        )
    return known[name]


def canonical_values(space: Space, values: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Set every key: inactive ones to the lowest value, or the first choice.

    Returns:
        A value for every key of the space.

    Raises:
        ConfigError: an active key has no value.
    """
    kept = active_parameters(space, values)
    full = {name: kept.get(name, lowest_value(parameter)) for name, parameter in space.items()}
    for name in space:
        if name not in kept and is_active(space, name, full | kept):
            raise ConfigError(f"searched key '{name}' is active but has no value: add it.")
    return full


def configuration_key(values: Mapping[str, Scalar]) -> str:
    """Hash active values: equal configurations have equal keys, on every machine."""
    text = json.dumps(dict(values), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def lowest_value(parameter: ParameterConfig) -> Scalar:
    """Return the lowest value, or the first choice."""
    return parameter.choices[0] if parameter.choices is not None else value_at(parameter, 0.0)


def middle_value(parameter: ParameterConfig) -> Scalar:
    """Return the middle of a range, on its scale, or the first choice."""
    return parameter.choices[0] if parameter.choices is not None else value_at(parameter, 0.5)


def list_values(parameter: ParameterConfig) -> Sequence[Scalar] | None:
    """List all values of a parameter; None if it is continuous."""
    if parameter.choices is not None:
        return parameter.choices
    if parameter.step is not None:
        return [_nth(parameter, index) for index in range(_steps(parameter))]
    if parameter.integer:
        low, high = _bounds(parameter)
        return range(int(low), int(high) + 1)
    return None


def value_at(parameter: ParameterConfig, position: float) -> Scalar:
    """Return the value at a position in [0, 1); discrete values get equal shares of it."""
    if parameter.choices is not None:
        count = len(parameter.choices)
        return parameter.choices[min(int(position * count), count - 1)]
    if parameter.step is not None:
        return _nth(parameter, min(int(position * _steps(parameter)), _steps(parameter) - 1))
    low, high = _bounds(parameter)
    if parameter.integer:
        low, high = low - 0.5, high + 0.5
    if parameter.log:
        return snap_value(parameter, math.exp(math.log(low) + position * math.log(high / low)))
    return snap_value(parameter, low + position * (high - low))


def values_at(space: Space, positions: Iterable[float]) -> dict[str, Scalar]:
    """Return the value of each searched key at its position in [0, 1).

    Returns:
        Values by key, in the order of the space.
    """
    pairs = zip(space.items(), positions, strict=True)
    return {name: value_at(parameter, position) for (name, parameter), position in pairs}


def position_of(parameter: ParameterConfig, value: Scalar) -> float:
    """Return a position in [0, 1] from which ``value_at`` leads back to a value."""
    if parameter.choices is not None:
        return (choice_index(parameter, value) + 0.5) / len(parameter.choices)
    low, high = _bounds(parameter)
    number = float(value)
    if parameter.step is not None:
        return (round((number - low) / parameter.step) + 0.5) / _steps(parameter)
    if parameter.integer:
        low, high = low - 0.5, high + 0.5
    if parameter.log:
        return math.log(number / low) / math.log(high / low)
    return (number - low) / (high - low)


def snap_value(parameter: ParameterConfig, raw: Any) -> Scalar:
    """Return the allowed value nearest to a raw one, in the parameter's own type.

    Raises:
        ConfigError: it is none of the choices, or not a number.
    """
    if parameter.choices is not None:
        return parameter.choices[choice_index(parameter, raw)]
    if isinstance(raw, bool) or not isinstance(raw, (int, float)) or not math.isfinite(raw):
        raise ConfigError(f"searched value {raw!r} is not a number of its range: correct it.")
    low, high = _bounds(parameter)
    if parameter.step is not None:
        index = round((raw - low) / parameter.step)
        return _nth(parameter, min(max(index, 0), _steps(parameter) - 1))
    if parameter.integer:
        return min(max(round(raw), int(low)), int(high))
    return min(max(_readable(raw, high - low, parameter.log), low), high)


def choice_index(parameter: ParameterConfig, raw: Any) -> int:
    """Return the place of a value among the choices.

    Raises:
        ConfigError: it is none of them.
    """
    choices = parameter.choices or ()
    for index, choice in enumerate(choices):
        if same_value(choice, raw):
            return index
    known = ", ".join(map(str, choices))
    raise ConfigError(f"searched value {raw!r} is none of the choices. Known: {known}.")


def apply_values(template: Mapping[str, Any], values: Mapping[str, Scalar]) -> dict[str, Any]:
    """Set dotted keys in a deep copy of a template; missing tables are made.

    Returns:
        Nested tables; the template is not changed.

    Raises:
        ConfigError: a key leads through something that is not a table.
    """
    filled = copy.deepcopy(dict(template))
    for name, value in values.items():
        *tables, last = name.split(".")
        place = filled
        for part in tables:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ConfigError(
                    f"searched key '{name}' leads through trial.{part}, which is a value and "
                    "no table: rename the key, or remove the value."
                )
        place[last] = value
    return filled


def check_space(
    space: Space, template: Mapping[str, Any], parts: Sequence[str] | None = PARTS
) -> None:
    """Raise an error if a space cannot be searched.

    Args:
        space: searched keys.
        template: fixed values of all trials.
        parts: tables that may be searched; None for a command, which has keys of its own.

    Raises:
        ConfigError: a key is no part of a trial, keys overlap, a condition names an unknown
            key or an impossible value, or conditions run in a circle.
    """
    fixed = fixed_values(template)
    for name in space:
        if parts is not None:
            _check_part(name, parts)
        for other in space:
            if other.startswith(name + "."):
                raise ConfigError(f"searched key '{name}' contains '{other}': search only one.")
        for parent, wanted in space[name].when.items():
            _check_condition(space, fixed, name, (parent, wanted))
    order_by_conditions(space)
    apply_values(template, {name: lowest_value(parameter) for name, parameter in space.items()})


def _check_part(name: str, parts: Sequence[str]) -> None:
    first, _, rest = name.partition(".")
    if first not in parts or not rest:
        hint = difflib.get_close_matches(first, parts, n=1)
        meant = f" Did you mean '{hint[0]}.{rest}'?" if hint and rest else ""
        raise ConfigError(
            f"searched key '{name}' is no part of a trial.{meant} Begin it with one of "
            f"{', '.join(parts)}, then a dot."
        )


def _check_condition(
    space: Space, fixed: Mapping[str, Any], name: str, condition: tuple[str, Any]
) -> None:
    parent, wanted = condition
    if parent in space:
        for value in _several(wanted):
            if not is_in(space[parent], value):
                raise ConfigError(
                    f"space.{name}: when '{parent}' is {value!r}, which it never is: use a "
                    "value from its range or choices."
                )
    elif parent not in fixed:
        raise ConfigError(f"space.{name}: when names an {unknown('key', parent, [*space, *fixed])}")
    elif not any(same_value(fixed[parent], value) for value in _several(wanted)):
        raise ConfigError(
            f"space.{name}: is never active, because trial.{parent} is {fixed[parent]!r}: "
            "drop the key, or change the condition."
        )


def order_by_conditions(space: Space) -> list[str]:
    """Return the keys in an order in which each follows the keys of its conditions.

    Raises:
        ConfigError: conditions run in a circle.
    """
    listed: list[str] = []
    waiting = list(space)
    while waiting:
        ready = [n for n in waiting if not any(p in waiting for p in space[n].when)]
        if not ready:
            circle = " and ".join(f"'{name}'" for name in waiting)
            raise ConfigError(f"space: the conditions of {circle} run in a circle: break it.")
        listed += ready
        waiting = [name for name in waiting if name not in ready]
    return listed


def list_configurations(space: Space) -> Iterator[dict[str, Scalar]]:
    """List all active configurations of a space, leaving out continuous branches."""
    yield from _grow(space, order_by_conditions(space), {})


def _grow(
    space: Space, names: Sequence[str], chosen: dict[str, Scalar]
) -> Iterator[dict[str, Scalar]]:
    if not names:
        yield active_parameters(space, chosen)
    elif not is_active(space, names[0], chosen):
        yield from _grow(space, names[1:], chosen)
    else:
        for value in list_values(space[names[0]]) or ():
            yield from _grow(space, names[1:], {**chosen, names[0]: value})


def is_in(parameter: ParameterConfig, value: Scalar) -> bool:
    """Check whether a value is one of a parameter's."""
    if parameter.choices is not None:
        return any(same_value(choice, value) for choice in parameter.choices)
    if isinstance(value, (bool, str)):
        return False
    low, high = _bounds(parameter)
    values = list_values(parameter)
    return low <= value <= high if values is None else value in values


def same_value(one: Any, other: Any) -> bool:
    """Compare two values as TOML does: true differs from 1, but 1 equals 1.0."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _several(wanted: Scalar | tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    return wanted if isinstance(wanted, tuple) else (wanted,)


def _bounds(parameter: ParameterConfig) -> tuple[float, float]:
    assert parameter.low is not None
    assert parameter.high is not None
    return float(parameter.low), float(parameter.high)


def _steps(parameter: ParameterConfig) -> int:
    low, high = _bounds(parameter)
    assert parameter.step is not None
    return math.floor((high - low) / parameter.step + 1e-9) + 1


def _nth(parameter: ParameterConfig, index: int) -> Scalar:
    assert parameter.low is not None
    assert parameter.step is not None
    value = parameter.low + index * parameter.step
    return value if isinstance(value, int) else float(f"{value:.12g}")


def _readable(number: float, span: float, log: bool) -> float:
    if log:
        return float(f"{number:.{DIGITS}g}")
    return round(float(number), DIGITS - 1 - math.floor(math.log10(span)))


def fixed_values(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a template by their dotted keys.

    Returns:
        Values that are no tables, by dotted key.
    """
    return {key: value for key, value in flatten_values(template) if value != {}}
