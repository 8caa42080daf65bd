"""MLflow: one experiment, one run per trial, in a SQLite file that ``mlflow ui`` opens.

MLflow's own folders of files are in maintenance mode and refused by it since its version 3.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.files import whole_folder
from hydragnn_hpo.report.exporting.outside import at_home
from hydragnn_hpo.report.exporting.rows import EpochRow, TrialRow, curves, trial_rows, unit_of
from hydragnn_hpo.report.exporting.written import Written, bring, elsewhere
from hydragnn_hpo.report.facts import Facts

_STATES = {
    "completed": "FINISHED",
    "stopped": "FINISHED",
    "failed": "FAILED",
    "queued": "SCHEDULED",
}
_BATCH = 1000
"""Metrics that MLflow takes at once."""

_LONGEST = 5000
"""Characters of a tag that it keeps."""

_NAMES = "_-. /"
"""What the name of a metric may hold beside letters and digits."""


def write(facts: Facts, out: Path) -> Written:
    """Write a folder with ``mlflow.db``.

    Raises:
        ConfigError: MLflow is not installed.
    """
    rows, told = trial_rows(facts), curves(facts)
    with elsewhere() as folder, at_home(folder, {"MLFLOW_DISABLE_TELEMETRY": "true"}), _quiet():
        try:
            from mlflow import MlflowClient
        except ImportError as error:
            raise ConfigError(
                "--to mlflow needs a package that is not installed: "
                "pip install 'hydragnn-hpo[mlflow]'."
            ) from error
        made = folder / "mlflow.db"
        client: Any = MlflowClient(
            tracking_uri=f"sqlite:///{made}", registry_uri=f"sqlite:///{made}"
        )
        place = (out.absolute() / "artifacts").as_uri()
        experiment = client.create_experiment(facts.config.name, artifact_location=place)
        for row in rows:
            _run(client, experiment, facts, row, told.get(row.name, []))
        client._tracking_client.store._dispose_engine()
        with whole_folder(out) as target:
            bring(made, target / "mlflow.db")
    return Written(
        files=(out / "mlflow.db",),
        trials=len(rows),
        epochs=sum(map(len, told.values())),
        open_with=f"mlflow ui --backend-store-uri sqlite:///{out / 'mlflow.db'}",
    )


def _run(client: Any, experiment: str, facts: Facts, row: TrialRow, curve: list[EpochRow]) -> None:
    from mlflow.entities import Metric, Param, RunTag

    begun, ended = row.numbers["started"], row.numbers["ended"]
    start = _milliseconds(begun if begun is not None else facts.begin)
    run = client.create_run(experiment, start_time=start, run_name=row.name)
    known = {**row.texts, "trial": row.name, "status": row.status}
    known |= {f"unit.{name}": unit_of(name, facts.units) for name in row.numbers}
    tags = [RunTag(_named(key), text[-_LONGEST:]) for key, text in known.items() if text]
    params = [Param(_named(key), str(value)) for key, value in row.values.items()]
    metrics = [
        Metric(_named(name), value, _milliseconds(epoch.time), epoch.epoch)
        for epoch in curve
        for name, value in epoch.numbers.items()
    ]
    last, end = int(row.numbers["epochs"] or 0), _milliseconds(ended) or start
    metrics += [
        Metric(f"result/{_named(name)}", value, end, last)
        for name, value in row.numbers.items()
        if value is not None and name not in ("started", "ended")
    ]
    for first in range(0, len(metrics), _BATCH):
        some = metrics[first : first + _BATCH]
        client.log_batch(run.info.run_id, some, *((params, tags) if first == 0 else ()))
    if row.status != "running":
        state = _STATES.get(row.status, "KILLED")
        client.set_terminated(run.info.run_id, state, end)


def _milliseconds(seconds: float | int | None) -> int:
    return round(1000 * (seconds or 0.0))


def _named(name: str) -> str:
    """Give a name that MLflow takes."""
    return "".join(c if (c.isascii() and c.isalnum()) or c in _NAMES else "_" for c in name)[:250]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep MLflow from telling how it makes its tables, and of what is deprecated in it."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
