"""Whether what a person asks makes sense for the campaign as it stands."""

from collections.abc import Mapping
from typing import Any

from hydragnn_hpo.campaign.requests import Request
from hydragnn_hpo.campaign.setup import stores_of, trial_config
from hydragnn_hpo.campaign.state import State, Trial
from hydragnn_hpo.config.campaign import CampaignConfig
from hydragnn_hpo.errors import ConfigError, RunError, unknown
from hydragnn_hpo.search import space
from hydragnn_hpo.search.constraints import broken, read_constraints


def check_wish(request: Request, config: CampaignConfig, state: State) -> None:
    """Refuse a wish that cannot come true.

    Args:
        request: the wish.
        config: the campaign.
        state: how it stands.

    Raises:
        RunError: the campaign is finished, or the trial cannot be retried or cancelled.
        ConfigError: there is no such trial, or values do not fit the campaign's space.
    """
    if state.finished:
        raise RunError(
            f"campaign '{config.name}' is finished: nothing is left to {_verb(request)}; start "
            "another one, with search.warm_start to use its results."
        )
    if request.trial is not None:
        _check_trial(request.trial, request.request, state)
    if request.request == "stop" and state.ending:
        raise RunError(f"campaign '{config.name}' was asked to stop before.")
    if request.request == "add-trials" and state.ending:
        raise RunError(f"campaign '{config.name}' was asked to stop: no trials can be added.")
    for values in request.values:
        check_values(config, values)


def _verb(request: Request) -> str:
    return "add to" if request.request == "add-trials" else request.request


def _check_trial(name: str, verb: str, state: State) -> None:
    trial = state.trials.get(name)
    if trial is None:
        if not state.trials:
            raise ConfigError(f"there is no trial '{name}': none was proposed yet.")
        first, last = min(state.trials), max(state.trials)
        raise ConfigError(
            f"there is no trial '{name}': name one of the {len(state.trials)} from {first} to "
            f"{last}."
        )
    if verb == "cancel" and trial.status not in ("queued", "running"):
        raise RunError(f"{name} has ended already ({trial.reason or trial.status}).")
    if verb == "retry":
        _check_retry(trial)


def _check_retry(trial: Trial) -> None:
    if trial.reason == "bad_config":
        raise RunError(f"{trial.name} cannot run with its values ({trial.message}).")
    if trial.status not in ("failed", "cancelled"):
        kept = "it keeps its result" if trial.rests else "let it end first"
        raise RunError(
            f"{trial.name} is {trial.status}: only a failed or cancelled trial is retried; {kept}."
        )


def check_values(config: CampaignConfig, values: Mapping[str, Any]) -> None:
    """Refuse searched values that the campaign's space does not hold.

    Raises:
        ConfigError: a key is unknown, inactive or missing, a value is outside of its range or
            breaks a constraint, or they make no valid trial.
    """
    searched = config.space
    for name, value in values.items():
        if name not in searched:
            raise ConfigError(unknown("searched key", name, searched))
        if not space.is_in(searched[name], value):
            raise ConfigError(
                f"{name} = {value!r} is outside of the campaign's space: {_range(config, name)}."
            )
    space.canonical(searched, dict(values))
    for name in values.keys() - space.active(searched, dict(values)).keys():
        raise ConfigError(f"{name} means nothing beside the other values: leave it out.")
    rules = read_constraints(config.search.constraints, searched, config.trial)
    if rule := broken(rules, values):
        raise ConfigError(f"values {dict(values)} break the constraint '{rule.text}'.")
    if config.command is None:
        entries = stores_of(config, [entry.card for entry in config.data])
        trial_config(config, "to add", values, entries)


def _range(config: CampaignConfig, name: str) -> str:
    parameter = config.space[name]
    if parameter.choices is not None:
        return f"choose from {', '.join(map(str, parameter.choices))}"
    step = f" in steps of {parameter.step:g}" if parameter.step is not None else ""
    return f"{parameter.low:g} to {parameter.high:g}{step}"
