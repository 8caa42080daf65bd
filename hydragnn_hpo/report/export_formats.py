"""The formats of ``export``: a campaign for other programs.

Each file is written atomically and never replaces another. Databases are first created in memory
or on a local disk: they lock their files and write them in pieces, which the file systems of
clusters handle badly. A tracker's library runs with a temporary home and without the user's
settings, so that it contacts no server and leaves no file outside the export.
"""

import contextlib
import csv
import datetime
import io
import json
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydragnn_hpo import __version__
from hydragnn_hpo.config import ParameterConfig, Scalar
from hydragnn_hpo.errors import ConfigError, RunError, unknown
from hydragnn_hpo.files import PART, storage, whole_file, whole_folder, write_bytes
from hydragnn_hpo.optional_packages import explain_missing
from hydragnn_hpo.report.best_config import write_best_config
from hydragnn_hpo.report.export_tables import (
    ExportedFiles,
    TrialRow,
    TypedTable,
    goal_names,
    tables_of,
    trial_rows,
    unit_of,
)
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.surrogate import make_distribution
from hydragnn_hpo.sanitize import escape_controls, sanitize_values
from hydragnn_hpo.search import is_in
from hydragnn_hpo.search.brains.optuna_brain import silence_optuna


def _describe(rows: Sequence[TrialRow], file: Path, command: str, note: str = "") -> ExportedFiles:
    epochs = sum(len(row.curve) for row in rows)
    return ExportedFiles((file,), len(rows), epochs, command, note)


# -- tables ----------------------------------------------------------------------------------

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters that a spreadsheet program takes for the beginning of a formula.

Source: OWASP, CSV Injection, https://owasp.org/www-community/attacks/CSV_Injection, 2026-11-22.
"""


def write_csv(facts: Facts, out: Path) -> ExportedFiles:
    """Write ``trials.csv`` and ``epochs.csv``, with units in the column titles.

    Numbers keep all their digits; an unknown value is an empty cell.
    """
    return _write_tables(facts, out, "csv", lambda path, table: write_bytes(path, _to_csv(table)))


def write_parquet(facts: Facts, out: Path) -> ExportedFiles:
    """Write ``trials.parquet`` and ``epochs.parquet``.

    Units are in the column titles, as in CSV, and in each field's metadata; the file's metadata
    names the campaign.
    """
    with explain_missing("--to parquet", ", or take --to csv"):
        import pyarrow
        import pyarrow.parquet
    about = {"campaign": facts.config.name, "program": f"hydragnn-hpo {__version__}"}
    metadata = {"hydragnn_hpo": json.dumps(about)}

    def write(path: Path, table: TypedTable) -> None:
        fields, arrays = [], []
        for column in table:
            kind = getattr(pyarrow, column.kind)()
            unit = {"unit": column.unit} if column.unit else None
            fields.append(pyarrow.field(column.title, kind, metadata=unit))
            arrays.append(pyarrow.array(column.values, kind))
        schema = pyarrow.schema(fields, metadata)
        with whole_file(path) as file:
            pyarrow.parquet.write_table(pyarrow.table(arrays, schema=schema), file)

    return _write_tables(facts, out, "parquet", write)


def _write_tables(
    facts: Facts, out: Path, kind: str, write: Callable[[Path, TypedTable], None]
) -> ExportedFiles:
    """Write both tables into a folder.

    Args:
        facts: content of the run directory.
        out: the folder to make.
        kind: suffix of the files, and of the ``pandas.read_*`` function that opens them.
        write: function that writes one table to a path.
    """
    tables = tables_of(facts)
    with whole_folder(out) as folder:
        for name, table in tables.items():
            write(folder / f"{name}.{kind}", table)
    return ExportedFiles(
        files=tuple(out / f"{name}.{kind}" for name in tables),
        trials=len(tables["trials"][0].values),
        epochs=len(tables["epochs"][0].values),
        open_with=f"pandas.read_{kind}({str(out / f'trials.{kind}')!r})",
    )


def _to_csv(table: TypedTable) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([format_csv_cell(column.title) for column in table])
    columns = [map(format_csv_cell, column.values) for column in table]
    writer.writerows(zip(*columns, strict=True))
    return text.getvalue().encode()


def format_csv_cell(value: Scalar | None) -> str:
    """Return a value as the cell of a CSV file that no spreadsheet program takes for a formula."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value if value.startswith(_FORMULA) else value
    return repr(value)


# -- Optuna ----------------------------------------------------------------------------------

_MESSAGE = 2000
"""Maximum length in characters of a text of an Optuna trial; the end is kept."""

_OPTUNA_STATES = {
    "completed": "COMPLETE",
    "stopped": "PRUNED",
    "failed": "FAIL",
    "cancelled": "FAIL",
    "running": "RUNNING",
}


def write_optuna(facts: Facts, out: Path) -> ExportedFiles:
    """Write an Optuna storage for optuna-dashboard: SQLite, or a journal (``.log``).

    A trial that stopped at a rung is PRUNED, one that failed or was cancelled is FAIL, one that
    waits for its first start is WAITING.
    """
    with explain_missing("--to optuna"):
        import optuna
        from optuna.storages.journal import JournalFileBackend

    names = goal_names(facts)
    rows = trial_rows(facts)
    with _local_folder() as folder, silence_optuna():
        path = folder / f"storage{out.suffix}"
        saved = contextlib.ExitStack()
        store: Any
        if out.suffix == ".log":
            store = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
        else:
            store = optuna.storages.RDBStorage(f"sqlite:///{path}")
            saved.callback(store.engine.dispose)
        with saved:
            study = optuna.create_study(
                storage=store, study_name=facts.config.name, directions=["minimize"] * len(names)
            )
            study.set_metric_names([escape_controls(name) for name in names])
            about = {"run": str(facts.run.path), "units": dict(facts.units)}
            for key, value in sanitize_values({**about, "seed": facts.config.seed}).items():
                study.set_user_attr(key, value)
            study.add_trials([_optuna_trial(facts, row) for row in rows])
        _copy_whole(path, out)
    where = str(out) if out.suffix == ".log" else f"sqlite:///{out}"
    note = "Trials that stopped at a rung are PRUNED there."
    return _describe(rows, out, f"optuna-dashboard {where}", note)


def _optuna_trial(facts: Facts, row: TrialRow) -> Any:
    from optuna.trial import TrialState, create_trial

    space = {escape_controls(key): parameter for key, parameter in facts.config.space.items()}
    known = {k: v for k, v in row.values.items() if k in space and _is_choice_or_in(space[k], v)}
    state = _OPTUNA_STATES.get(row.status, "RUNNING" if row.numbers["attempts"] else "WAITING")
    done = state in ("COMPLETE", "PRUNED", "FAIL")
    begun = row.numbers["started"]
    ended = row.numbers["ended"] if done else None
    if done and ended is None:
        ended = begun if begun is not None else facts.begin  # cancelled before it ever ran
    if state != "WAITING" and begun is None:
        begun = ended
    attributes: dict[str, Scalar] = {"trial": row.name, "status": row.status}
    attributes |= {key: text[-_MESSAGE:] for key, text in row.texts.items() if text is not None}
    attributes |= {f"params.{key}": v for key, v in row.values.items() if key not in known}
    for name, value in row.results.items():
        unit = unit_of(name, facts.units)
        attributes[f"{name} [{unit}]" if unit else name] = value
    objectives = {epoch.epoch: epoch.numbers.get("objective") for epoch in row.curve}
    trial = create_trial(
        state=TrialState[state],
        values=list(row.scores) if state in ("COMPLETE", "PRUNED") and row.scores else None,
        params=known,
        distributions={key: make_distribution(space[key]) for key in known},
        user_attrs=attributes,
        intermediate_values={n: value for n, value in objectives.items() if value is not None},
    )
    trial.datetime_start = _local_time(begun)
    trial.datetime_complete = _local_time(ended)
    return trial


def _is_choice_or_in(parameter: ParameterConfig, value: Scalar) -> bool:
    """Check whether a value is in the space; that of a trial added by hand may not be."""
    if parameter.choices is None:
        return is_in(parameter, value)
    return any(value == sanitize_values(choice) for choice in parameter.choices)


def _local_time(seconds: float | None) -> datetime.datetime | None:
    """Convert seconds since the epoch to local time without a zone, as Optuna stores it."""
    return None if seconds is None else datetime.datetime.fromtimestamp(seconds)


# -- TensorBoard -----------------------------------------------------------------------------


def write_tensorboard(facts: Facts, out: Path) -> ExportedFiles:
    """Write TensorBoard event files, one folder per trial.

    Epochs are steps, and searched values are hparams. Curves are named as ``training.tensorboard``
    names them; ``result/...`` is the trial's result. The description of a curve states its unit.
    TensorBoard stores values as 32-bit floats.
    """
    with explain_missing("--to tensorboard"):
        from tensorboard.summary.writer.record_writer import RecordWriter
    make_writer: Any = RecordWriter
    rows = trial_rows(facts)
    names = folder_names(row.name for row in rows)
    with whole_folder(out) as folder:
        for row in rows:
            begun = row.numbers["started"] or facts.begin or 0.0
            path = folder / names[row.name] / f"events.out.tfevents.{int(begun)}.export"
            with storage(path):
                path.parent.mkdir()
                with path.open("wb") as file:
                    writer = make_writer(file)
                    for event in _board_events(row, facts.units, begun):
                        writer.write(event.SerializeToString())
    return _describe(rows, out, f"tensorboard --logdir {out}")


def _board_events(row: TrialRow, units: Mapping[str, str], begun: float) -> Iterator[Any]:
    """Yield the events of one trial in order.

    Args:
        row: the trial.
        units: unit by target.
        begun: start of the trial, or else of the campaign, in seconds since the epoch.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    make_hparams: Any = hparams_pb
    ended = row.numbers["ended"] or (row.curve[-1].time if row.curve else begun)
    yield Event(wall_time=begun, file_version="brain.Event:2")
    start = make_hparams(row.values, trial_id=row.name, start_time_secs=begun)
    yield Event(wall_time=begun, summary=start)
    for epoch in row.curve:
        scalars = _board_scalars(epoch.numbers, units, "")
        yield Event(wall_time=epoch.time, step=epoch.epoch, summary=scalars)
    scalars = _board_scalars(row.results, units, "result/")
    yield Event(wall_time=ended, step=int(row.numbers["epochs"] or 0), summary=scalars)


def _board_scalars(numbers: Mapping[str, float], units: Mapping[str, str], before: str) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    summary: Any = Summary()
    for name, value in numbers.items():
        scalar = summary.value.add(tag=before + name.replace(".", "/", 1), simple_value=value)
        if unit := unit_of(name, units):
            scalar.metadata.summary_description = f"in {unit}"
    return summary


# -- MLflow and Weights & Biases -------------------------------------------------------------

_MLFLOW_STATES = {
    "completed": "FINISHED",
    "stopped": "FINISHED",
    "failed": "FAILED",
    "queued": "SCHEDULED",
}
_MLFLOW_BATCH = 1000
"""Maximum number of metrics in one call of MLflow."""

_MLFLOW_TAG = 5000
"""Maximum length of an MLflow tag in characters."""

_MLFLOW_NAME = "_-. /"
"""Characters that MLflow allows in a name, besides letters and digits."""


def write_mlflow(facts: Facts, out: Path) -> ExportedFiles:
    """Write ``mlflow.db``: an experiment with one run per trial, for ``mlflow ui``.

    MLflow's file store is in maintenance mode, and MLflow refuses it since version 3.
    """
    rows = trial_rows(facts)
    with _local_folder() as folder, isolate_tracker(folder, {"MLFLOW_DISABLE_TELEMETRY": "true"}):
        with explain_missing("--to mlflow"):
            from mlflow import MlflowClient
        uri = f"sqlite:///{folder / 'mlflow.db'}"
        client: Any = MlflowClient(tracking_uri=uri, registry_uri=uri)
        place = (out.absolute() / "artifacts").as_uri()
        experiment = client.create_experiment(facts.config.name, artifact_location=place)
        for row in rows:
            _add_mlflow_run(client, experiment, facts, row)
        with whole_folder(out) as target:
            _copy_whole(folder / "mlflow.db", target / "mlflow.db")
    file = out / "mlflow.db"
    return _describe(rows, file, f"mlflow ui --backend-store-uri sqlite:///{file}")


def _add_mlflow_run(client: Any, experiment: str, facts: Facts, row: TrialRow) -> None:
    """Add a trial to an experiment.

    Args:
        client: client of MLflow.
        experiment: identifier of the experiment.
        facts: content of the run directory.
        row: the trial.
    """
    from mlflow.entities import Metric, Param, RunTag

    begun, ended = row.numbers["started"], row.numbers["ended"]
    start = round(1000 * ((begun if begun is not None else facts.begin) or 0.0))
    end = round(1000 * ended) if ended else start
    run = client.create_run(experiment, start_time=start, run_name=row.name)
    texts = {**row.texts, "trial": row.name, "status": row.status}
    texts |= {f"unit.{name}": unit_of(name, facts.units) for name in row.numbers}
    tags = [RunTag(_mlflow_name(key), text[-_MLFLOW_TAG:]) for key, text in texts.items() if text]
    params = [Param(_mlflow_name(key), str(value)) for key, value in row.values.items()]
    metrics = [
        Metric(_mlflow_name(name), value, round(1000 * epoch.time), epoch.epoch)
        for epoch in row.curve
        for name, value in epoch.numbers.items()
    ]
    last = int(row.numbers["epochs"] or 0)
    metrics += [
        Metric(f"result/{_mlflow_name(name)}", value, end, last)
        for name, value in row.results.items()
    ]
    client.log_batch(run.info.run_id, params=params, tags=tags)
    for first in range(0, len(metrics), _MLFLOW_BATCH):
        client.log_batch(run.info.run_id, metrics[first : first + _MLFLOW_BATCH])
    if row.status != "running":
        client.set_terminated(run.info.run_id, _MLFLOW_STATES.get(row.status, "KILLED"), end)


def _mlflow_name(name: str) -> str:
    """Replace characters that MLflow does not allow; keep at most 250 characters."""
    plain = (c if (c.isascii() and c.isalnum()) or c in _MLFLOW_NAME else "_" for c in name)
    return "".join(plain)[:250]


_WANDB_VARIABLES = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_DISABLE_GIT": "true",
    "WANDB_DISABLE_CODE": "true",
}


def write_wandb(facts: Facts, out: Path) -> ExportedFiles:
    """Write ``wandb/offline-run-*``, one run per trial, for ``wandb sync``."""
    rows = trial_rows(facts)
    ids = folder_names(row.name for row in rows)
    with (
        _local_folder() as folder,
        isolate_tracker(folder, _WANDB_VARIABLES | {"WANDB_DIR": str(folder)}),
    ):
        with explain_missing("--to wandb"):
            import wandb
        with whole_folder(out) as target:
            try:
                for row in rows:
                    _write_wandb_run(facts, row, target, ids[row.name])
            finally:
                wandb.teardown()
            (target / "wandb" / "latest-run").unlink(missing_ok=True)
    note = "Nothing was sent; 'wandb sync' sends it to the account you are logged in to."
    return _describe(rows, out / "wandb", f"wandb sync {out / 'wandb'}/offline-run-*", note)


def _write_wandb_run(facts: Facts, row: TrialRow, target: Path, name: str) -> None:
    """Write one offline run.

    Args:
        facts: content of the run directory.
        row: the trial.
        target: the folder of all runs.
        name: identifier of the run.
    """
    import wandb

    quiet = wandb.Settings(x_disable_stats=True, x_disable_meta=True, x_save_requirements=False)
    run: Any = wandb.init(
        project=facts.config.name,
        group=facts.config.name,
        name=row.name,
        id=name,
        mode="offline",
        dir=str(target),
        config=dict(row.values),
        tags=[row.status],
        reinit="create_new",
        settings=quiet,
    )
    for epoch in row.curve:
        run.log({**epoch.numbers, "time": epoch.time}, step=epoch.epoch)
    units = {f"unit.{key}": unit_of(key, facts.units) for key in row.numbers}
    texts = {key: text for key, text in {**units, **row.texts}.items() if text}
    numbers = {f"result.{key}": v for key, v in row.numbers.items() if v is not None}
    run.summary.update({**numbers, **texts, "status": row.status})
    run.finish(exit_code=1 if row.status == "failed" else 0)


_TRACKER_VARIABLES = ("WANDB_", "MLFLOW_", "DATABRICKS_", "_MLFLOW")
"""Prefixes of environment variables that could send an export to a server."""

_XDG_HOMES = (f"XDG_{kind}_HOME" for kind in ("CACHE", "CONFIG", "DATA", "STATE"))
_HOMES = ("HOME", "TMPDIR", *_XDG_HOMES)
"""Variables that name the directories of a tracker's caches, settings, logs and keys."""


@contextlib.contextmanager
def isolate_tracker(folder: Path, settings: Mapping[str, str]) -> Iterator[None]:
    """Hide the user's settings and home from a tracker's library, and silence it.

    Args:
        folder: temporary home of the library.
        settings: environment variables to set for the library.
    """
    before = dict(os.environ)
    logged = logging.root.manager.disable
    for name in [name for name in os.environ if name.startswith(_TRACKER_VARIABLES)]:
        del os.environ[name]
    os.environ.update({name: str(folder) for name in _HOMES})
    os.environ.update({"DO_NOT_TRACK": "true", **settings})
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logged)
        os.environ.clear()
        os.environ.update(before)


# -- all formats -----------------------------------------------------------------------------


FORMATS: dict[str, Callable[[Facts, Path], ExportedFiles]] = {
    "parquet": write_parquet,
    "csv": write_csv,
    "optuna": write_optuna,
    "tensorboard": write_tensorboard,
    "mlflow": write_mlflow,
    "wandb": write_wandb,
    "best": write_best_config,
}
"""Function that writes each format, by the value of ``--to``."""

SUFFIXES = {"optuna": (".db", ".sqlite3", ".log"), "best": (".toml",)}
"""Suffixes of formats that write one file; the others write a folder."""


def export(facts: Facts, to: str, out: Path, *, trial: str | None = None) -> ExportedFiles:
    """Write a campaign in a format, completely or not at all; the campaign may be running.

    Args:
        facts: content of the run directory.
        to: a key of ``FORMATS``.
        out: file or folder to create; must not exist yet.
        trial: name of the trial, for ``best`` only; None means the best one.

    Raises:
        ConfigError: the format is unknown, its package is missing, or ``out`` does not fit it.
        RunError: there is nothing to write yet.
    """
    if to not in FORMATS:
        raise ConfigError(unknown("format", to, FORMATS))
    if out.exists() or out.is_symlink():
        raise ConfigError(f"{out}: is there already; choose another name, or remove it.")
    if to in SUFFIXES and out.suffix not in SUFFIXES[to]:
        wanted = " or ".join(f"NAME{suffix}" for suffix in SUFFIXES[to])
        raise ConfigError(f"{out}: --to {to} writes one file: name it {wanted}.")
    if not facts.trials:
        raise RunError(f"{facts.run.path}: no trial was proposed yet: wait for the first.")
    if trial is None:
        return FORMATS[to](facts, out)
    if to != "best":
        raise ConfigError(
            "--trial goes with --to best: drop it, the other formats hold all trials."
        )
    return write_best_config(facts, out, trial)


_MEMORY = Path("/dev/shm")
_ROOM = 2 << 30
"""Bytes that must be free in ``_MEMORY``: ten times what 2,000 trials take."""


@contextlib.contextmanager
def _local_folder() -> Iterator[Path]:
    """Make a temporary folder in memory, or on a local disk."""
    roomy = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _ROOM
    where = _MEMORY if roomy else None
    with tempfile.TemporaryDirectory(prefix="export-", suffix=PART, dir=where) as name:
        yield Path(name)


def _copy_whole(source: Path, out: Path) -> None:
    """Copy a finished file to its destination, completely or not at all.

    Raises:
        StorageError: there is no room, or the folder is not writable.
    """
    with storage(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as file, whole_file(out) as target:
        shutil.copyfileobj(file, target)


def folder_names(names: Iterable[str]) -> dict[str, str]:
    """Derive distinct folder names, without path separators, from names of trials.

    Returns:
        Folder name by trial: at most 100 ASCII characters, and a number if needed.

    >>> folder_names(["t0001", "../t", ".._t"])
    {'t0001': 't0001', '../t': '_._t', '.._t': '_._t-2'}
    """
    by_trial: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name)
        plain = (("_" + plain[1:]) if plain.startswith(".") else plain)[:100] or "_"
        unique = plain
        number = 2
        while unique in taken:
            unique, number = f"{plain}-{number}", number + 1
        taken.add(unique)
        by_trial[name] = unique
    return by_trial
