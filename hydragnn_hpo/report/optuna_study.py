"""Campaigns as Optuna's studies: parameters, trials, and the storage of ``export``."""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydragnn_hpo.config import ParameterConfig, Scalar
from hydragnn_hpo.report.export_tables import EpochRow, TrialRow, TrialRun, goal_names, unit_of
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.sanitize import escape_controls, sanitize_values
from hydragnn_hpo.search import is_in, list_values, silence_optuna

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution

_MESSAGE = 2000
"""Most characters of a message that a trial keeps."""

_STATES = {
    "completed": "COMPLETE",
    "stopped": "PRUNED",
    "failed": "FAIL",
    "cancelled": "FAIL",
    "running": "RUNNING",
}


def make_distribution(parameter: ParameterConfig) -> "BaseDistribution":
    """Convert a parameter; a range with steps ends at its last step."""
    from optuna import distributions as kinds

    if parameter.choices is not None:
        return kinds.CategoricalDistribution(
            [sanitize_values(choice) for choice in parameter.choices]
        )
    low, high, step = parameter.low, parameter.high, parameter.step
    assert low is not None
    assert high is not None
    if step is not None:  # Optuna wants the last step, and exactly: 0.9, not 3 * 0.3
        high = float((list_values(parameter) or (high,))[-1])
    if parameter.integer and not isinstance(step, float):
        return kinds.IntDistribution(int(low), int(high), log=parameter.log, step=int(step or 1))
    return kinds.FloatDistribution(float(low), float(high), log=parameter.log, step=step)


def make_study(
    distributions: "Mapping[str, BaseDistribution]",
    configurations: Iterable[Mapping[str, Any]],
    values: Iterable[float],
) -> "Study":
    """Make a study of finished trials in memory.

    Args:
        distributions: of all parameters.
        configurations: parameters of each trial; some may be missing.
        values: what each trial scored.
    """
    import optuna

    trials = [
        optuna.trial.create_trial(
            params=dict(chosen),
            distributions={name: distributions[name] for name in chosen},
            value=float(value),
        )
        for chosen, value in zip(configurations, values, strict=True)
    ]
    study = optuna.create_study()
    study.add_trials(trials)
    return study


def write_storage(facts: Facts, runs: Iterable[TrialRun], path: Path) -> None:
    """Write a campaign as a study into a new storage: SQLite, or a journal if named ``.log``.

    A trial that stopped at a rung is PRUNED, one that failed or was cancelled is FAIL, one that
    waits for its first start is WAITING.

    Args:
        facts: of the campaign.
        runs: its trials.
        path: the file to make, on a local disk.
    """
    import optuna
    from optuna.storages.journal import JournalFileBackend

    names = goal_names(facts)
    with silence_optuna():
        storage: Any
        if path.suffix == ".log":
            storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
        else:
            storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
        study = optuna.create_study(
            storage=storage,
            study_name=facts.config.name,
            directions=["minimize"] * len(names),
        )
        study.set_metric_names([escape_controls(name) for name in names])
        about = {"run": str(facts.run.path), "units": dict(facts.units), "seed": facts.config.seed}
        for key, value in sanitize_values(about).items():
            study.set_user_attr(key, value)
        study.add_trials([_make_trial(facts, row, curve) for row, curve in runs])
        if path.suffix != ".log":
            storage.engine.dispose()


def _make_trial(facts: Facts, row: TrialRow, curve: Sequence[EpochRow]) -> Any:
    from optuna.trial import TrialState, create_trial

    space = {escape_controls(key): parameter for key, parameter in facts.config.space.items()}
    known = {key: value for key, value in row.values.items() if _fits(space, key, value)}
    state = _STATES.get(row.status, "RUNNING" if row.numbers["attempts"] else "WAITING")
    done = state in ("COMPLETE", "PRUNED", "FAIL")
    begun, ended = row.numbers["started"], row.numbers["ended"] if done else None
    if done and ended is None:
        ended = begun if begun is not None else facts.begin  # cancelled before it ever ran
    if state != "WAITING" and begun is None:
        begun = ended
    trial = create_trial(
        state=TrialState[state],
        values=list(row.scores) if state in ("COMPLETE", "PRUNED") and row.scores else None,
        params=known,
        distributions={key: make_distribution(space[key]) for key in known},
        user_attrs=_attributes(facts, row, [key for key in row.values if key not in known]),
        intermediate_values={
            epoch.epoch: epoch.numbers["objective"]
            for epoch in curve
            if "objective" in epoch.numbers
        },
    )
    trial.datetime_start, trial.datetime_complete = _local_time(begun), _local_time(ended)
    return trial


def _fits(space: Mapping[str, ParameterConfig], key: str, value: Scalar) -> bool:
    """Check whether a value is in the space; a person may add a trial with any."""
    if key not in space:
        return False
    choices = space[key].choices
    if choices is None:
        return is_in(space[key], value)
    return any(value == sanitize_values(choice) for choice in choices)


def _attributes(facts: Facts, row: TrialRow, outside: Sequence[str]) -> dict[str, Any]:
    """Collect what Optuna has no place for; quantities name their unit.

    Args:
        facts: of the campaign.
        row: the trial.
        outside: its searched values that are not in the space.
    """
    attributes: dict[str, Any] = {"trial": row.name, "status": row.status}
    attributes |= {key: text[-_MESSAGE:] for key, text in row.texts.items() if text is not None}
    attributes |= {f"params.{key}": row.values[key] for key in outside}
    for name, value in row.results.items():
        unit = unit_of(name, facts.units)
        attributes[f"{name} [{unit}]" if unit else name] = value
    return attributes


def _local_time(seconds: float | int | None) -> datetime.datetime | None:
    """Convert to local time without a zone, as Optuna's trials keep it."""
    return None if seconds is None else datetime.datetime.fromtimestamp(seconds)
