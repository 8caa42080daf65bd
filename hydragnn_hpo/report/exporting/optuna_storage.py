"""An Optuna storage: SQLite (``.db``) or a journal (``.log``), as optuna-dashboard opens both.

A trial that stopped at a rung is PRUNED, one that failed or was cancelled is FAIL, one that waits
for its first start is WAITING. Optuna commits each trial by itself, some 20 ms of work; their rows
are therefore written together, through its own table definitions.
"""

import datetime
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydragnn_hpo.config.search import ParameterConfig, Scalar
from hydragnn_hpo.report.exporting.rows import (
    EpochRow,
    TrialRow,
    curves,
    goal_names,
    trial_rows,
    unit_of,
)
from hydragnn_hpo.report.exporting.written import Written, bring, elsewhere
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.search.quiet_optuna import quiet_optuna
from hydragnn_hpo.search.space import is_in
from hydragnn_hpo.text import printable, shown

_MESSAGE = 2000
"""Most characters of a message that a trial keeps."""

_STATES = {
    "completed": "COMPLETE",
    "stopped": "PRUNED",
    "failed": "FAIL",
    "cancelled": "FAIL",
    "running": "RUNNING",
}


def write(facts: Facts, out: Path) -> Written:
    """Write a study with the campaign's name."""
    import optuna

    rows, told = trial_rows(facts), curves(facts)
    with elsewhere() as folder, quiet_optuna():
        path = folder / f"storage{out.suffix}"
        storage = _open(optuna, path)
        study = optuna.create_study(
            storage=storage,
            study_name=facts.config.name,
            directions=["minimize"] * len(goal_names(facts)),
        )
        study.set_metric_names([shown(name) for name in goal_names(facts)])
        for key, value in _about(facts).items():
            study.set_user_attr(key, value)
        trials = [_trial(optuna, facts, row, told.get(row.name, [])) for row in rows]
        if path.suffix == ".log":
            study.add_trials(trials)
        else:
            _insert(storage, study._study_id, trials)
            storage.engine.dispose()
        bring(path, out)
    url = str(out) if out.suffix == ".log" else f"sqlite:///{out}"
    return Written(
        files=(out,),
        trials=len(rows),
        epochs=sum(map(len, told.values())),
        open_with=f"optuna-dashboard {url}",
        note="Trials that stopped at a rung are PRUNED there.",
    )


def _open(optuna: Any, path: Path) -> Any:
    if path.suffix == ".log":
        from optuna.storages.journal import JournalFileBackend

        return optuna.storages.JournalStorage(JournalFileBackend(str(path)))
    return optuna.storages.RDBStorage(f"sqlite:///{path}")


def _about(facts: Facts) -> dict[str, Any]:
    about = {"run": str(facts.run.path), "units": dict(facts.units), "seed": facts.config.seed}
    return dict(printable(about))


def distribution(optuna: Any, parameter: ParameterConfig) -> Any:
    """Give Optuna's word for a parameter.

    Args:
        optuna: the package.
        parameter: of the searched space.
    """
    kinds = optuna.distributions
    if parameter.choices is not None:
        return kinds.CategoricalDistribution([printable(choice) for choice in parameter.choices])
    low, high, step = parameter.low, parameter.high, parameter.step
    assert low is not None
    assert high is not None
    if step is not None:
        high = low + step * math.floor((high - low) / step + 1e-9)
    if parameter.integer and not isinstance(step, float):
        return kinds.IntDistribution(low, high, log=parameter.log, step=step or 1)
    return kinds.FloatDistribution(float(low), float(high), log=parameter.log, step=step)


def _trial(optuna: Any, facts: Facts, row: TrialRow, curve: Sequence[EpochRow]) -> Any:
    space = {shown(key): parameter for key, parameter in facts.config.space.items()}
    known = {key: value for key, value in row.values.items() if _fits(space, key, value)}
    state = _STATES.get(row.status, "RUNNING" if row.numbers["attempts"] else "WAITING")
    begun, ended = row.numbers["started"], row.numbers["ended"]
    if state in ("COMPLETE", "PRUNED", "FAIL") and ended is None:
        ended = begun if begun is not None else facts.begin  # cancelled before it ever ran
    if state not in ("COMPLETE", "PRUNED", "FAIL"):
        ended = None
    if state != "WAITING" and begun is None:
        begun = ended
    has_values = state in ("COMPLETE", "PRUNED") and row.scores
    trial = optuna.trial.create_trial(
        state=getattr(optuna.trial.TrialState, state),
        values=list(row.scores) if has_values else None,
        params=known,
        distributions={key: distribution(optuna, space[key]) for key in known},
        user_attrs=_attributes(facts, row, [key for key in row.values if key not in known]),
        intermediate_values={r.epoch: r.numbers["objective"] for r in curve if _has(r)},
    )
    trial.datetime_start, trial.datetime_complete = _moment(begun), _moment(ended)
    return trial


def _fits(space: Mapping[str, ParameterConfig], key: str, value: Scalar) -> bool:
    """Say whether a value is one that its distribution knows; a person may have chosen others."""
    if key not in space:
        return False
    choices = space[key].choices
    if choices is None:
        return is_in(space[key], value)
    return any(value == printable(choice) for choice in choices)


def _has(row: EpochRow) -> bool:
    return "objective" in row.numbers


def _attributes(facts: Facts, row: TrialRow, outside: Sequence[str]) -> dict[str, Any]:
    """Give what Optuna has no place for; quantities name their unit."""
    found: dict[str, Any] = {"trial": row.name, "status": row.status}
    found |= {key: text[-_MESSAGE:] for key, text in row.texts.items() if text is not None}
    found |= {f"params.{key}": row.values[key] for key in outside}
    for name, value in row.numbers.items():
        if value is not None and name not in ("started", "ended"):
            unit = unit_of(name, facts.units)
            found[f"{name} [{unit}]" if unit else name] = value
    return found


def _moment(seconds: float | int | None) -> datetime.datetime | None:
    """Give local time without a zone, as Optuna keeps it."""
    return None if seconds is None else datetime.datetime.fromtimestamp(seconds)


def _insert(storage: Any, study: int, trials: Sequence[Any]) -> None:
    """Write trials into a storage that is ours alone, all in one transaction."""
    from optuna.storages._rdb import models
    from sqlalchemy import insert
    from sqlalchemy.orm import Session

    with Session(storage.engine) as session, session.begin():
        numbered = list(enumerate(trials, start=1))
        for model, rows in _rows(models, study, numbered).items():
            if rows:
                session.execute(insert(model.__table__), rows)


def _rows(models: Any, study: int, trials: Sequence[tuple[int, Any]]) -> dict[Any, list[Any]]:
    """Give what stands in each table."""
    return {
        models.TrialModel: [
            {
                "trial_id": at,
                "number": at - 1,
                "study_id": study,
                "state": trial.state,
                **_moments(models, trial),
            }
            for at, trial in trials
        ],
        models.TrialParamModel: [row for at, trial in trials for row in _params(at, trial)],
        models.TrialValueModel: [
            {"trial_id": at, "objective": k, "value": v, "value_type": "FINITE"}
            for at, trial in trials
            for k, v in enumerate(trial.values or ())
        ],
        models.TrialIntermediateValueModel: [
            {
                "trial_id": at,
                "step": step,
                "intermediate_value": value,
                "intermediate_value_type": "FINITE",
            }
            for at, trial in trials
            for step, value in trial.intermediate_values.items()
        ],
        models.TrialUserAttributeModel: [
            {"trial_id": at, "key": key, "value_json": json.dumps(value)}
            for at, trial in trials
            for key, value in trial.user_attrs.items()
        ],
    }


def _moments(models: Any, trial: Any) -> dict[str, datetime.datetime | None]:
    """Give begin and end as Optuna's table holds them: UTC, or local time in older releases."""
    from sqlalchemy import inspect

    mapper, columns = inspect(models.TrialModel), models.TrialModel.__table__.c
    row, names = models.TrialModel(), ("datetime_start", "datetime_complete")
    for name in names:
        setattr(row, name, getattr(trial, name))
    return {name: getattr(row, mapper.get_property_by_column(columns[name]).key) for name in names}


def _params(at: int, trial: Any) -> Iterator[dict[str, Any]]:
    from optuna.distributions import distribution_to_json

    for key, value in trial.params.items():
        kind = trial.distributions[key]
        yield {
            "trial_id": at,
            "param_name": key,
            "param_value": kind.to_internal_repr(value),
            "distribution_json": distribution_to_json(kind),
        }
