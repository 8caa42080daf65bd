"""Configurations that a user chose: ``search.initial_points``, and trials added to a campaign."""

from collections.abc import Iterator

from hydragnn_hpo.campaign.setup import stores_of, trial_config
from hydragnn_hpo.config import CampaignConfig
from hydragnn_hpo.errors import ConfigError, unknown
from hydragnn_hpo.journal_events import SearchedValues
from hydragnn_hpo.search import (
    active_parameters,
    canonical_values,
    find_broken_constraint,
    is_in,
    read_constraints,
    snap_value,
)
from hydragnn_hpo.search.constraints import complete_configuration
from hydragnn_hpo.search.space import middle_value


class OutsideOfSpace(ConfigError):
    """The campaign's space does not hold a configuration, or not any more."""


def complete_initial_points(config: CampaignConfig) -> list[SearchedValues]:
    """Complete ``search.initial_points`` to active configurations, each once.

    Those outside of the space are left out: a space may be narrowed after the points were written.

    Raises:
        ConfigError: a key of a point is unknown or means nothing, or they make no valid trial; the
            message names the point by its position from 0.
    """
    completed: list[SearchedValues] = []
    for values in _complete_points(config):
        if not isinstance(values, OutsideOfSpace) and values not in completed:
            completed.append(values)
    return completed


def explain_skipped_points(config: CampaignConfig) -> list[str]:
    """Return why points of ``search.initial_points`` are left out, a sentence for each."""
    return [str(error) for error in _complete_points(config) if isinstance(error, OutsideOfSpace)]


def _complete_points(config: CampaignConfig) -> Iterator[SearchedValues | OutsideOfSpace]:
    """Yield each of ``search.initial_points`` completed, or why the space does not hold it."""
    rules = read_constraints(config.search.constraints, config.space, config.trial)
    middle = {key: middle_value(parameter) for key, parameter in config.space.items()}
    for number, point in enumerate(config.search.initial_points):
        try:
            _check_ranges(config, point)
            values = complete_configuration(config.space, rules, point, middle)
            if values is None:
                raise OutsideOfSpace("no values beside it meet search.constraints: change it.")
            check_values(config, {**values, **point})
        except ConfigError as error:
            named = type(error)(f"search.initial_points[{number}]: {error}")
            if not isinstance(named, OutsideOfSpace):
                raise named from None
            yield named
        else:
            yield {key: snap_value(config.space[key], value) for key, value in values.items()}


def check_values(config: CampaignConfig, values: SearchedValues) -> None:
    """Refuse searched values that the campaign's space does not hold.

    Raises:
        ConfigError: a key is unknown, inactive or missing, a value is outside of its range or
            breaks a constraint, or they make no valid trial.
    """
    _check_ranges(config, values)
    searched = config.space
    canonical_values(searched, dict(values))
    for name in values.keys() - active_parameters(searched, dict(values)).keys():
        raise ConfigError(f"{name} means nothing beside the other values: leave it out.")
    rules = read_constraints(config.search.constraints, searched, config.trial)
    if rule := find_broken_constraint(rules, values):
        raise ConfigError(f"the values break the constraint '{rule.text}': change one of them.")
    if config.command is None:
        entries = stores_of(config, [entry.card for entry in config.data])
        trial_config(config, "to add", values, entries)


def _check_ranges(config: CampaignConfig, values: SearchedValues) -> None:
    for name, value in values.items():
        if name not in config.space:
            raise ConfigError(unknown("searched key", name, config.space))
        if not is_in(config.space[name], value):
            raise OutsideOfSpace(
                f"{name} = {value!r} is outside of the campaign's space: {_range(config, name)}; "
                "choose another."
            )


def _range(config: CampaignConfig, name: str) -> str:
    parameter = config.space[name]
    if parameter.choices is not None:
        return f"choose from {', '.join(map(str, parameter.choices))}"
    step = f" in steps of {parameter.step:g}" if parameter.step is not None else ""
    return f"{parameter.low:g} to {parameter.high:g}{step}"
