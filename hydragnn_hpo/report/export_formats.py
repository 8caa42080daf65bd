"""The formats of ``export``: a campaign for other programs.

What is written is written whole or not at all, and never over anything. Databases are made in
memory or on a local disk first: they lock their files and write them in pieces, which file systems
of clusters do not like. Libraries of trackers see no setting of theirs and a temporary home while
they work: no server, no login, no telemetry, no file beside the export.
"""

import contextlib
import csv
import io
import json
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydragnn_hpo import __version__
from hydragnn_hpo.errors import ConfigError, RunError, unknown
from hydragnn_hpo.files import PART, storage, whole_file, whole_folder, write_bytes
from hydragnn_hpo.report.best_config import write_best_config
from hydragnn_hpo.report.export_tables import (
    EpochRow,
    TrialRow,
    TrialRun,
    TypedTable,
    tables_of,
    trial_runs,
    unit_of,
)
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.report.optuna_study import write_storage


@dataclass(frozen=True)
class ExportedFiles:
    """What an export has written."""

    files: tuple[Path, ...]
    """The folder, or the files, to go on with."""
    trials: int
    epochs: int
    open_with: str
    """The command, or the line of Python, that opens it."""
    note: str = ""
    """What one should know about it; empty if nothing."""

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {**vars(self), "files": [str(path) for path in self.files]}


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a table program takes for the beginning of a formula.

Source: OWASP, CSV Injection, https://owasp.org/www-community/attacks/CSV_Injection, 2026-11-22.
"""

_ARROW_TYPES = {"text": "string", "whole": "int64", "real": "float64", "truth": "bool_"}


def write_csv(facts: Facts, out: Path) -> ExportedFiles:
    """Write ``trials.csv`` and ``epochs.csv``; units stand in the titles.

    Numbers have all their digits; what is not known is an empty cell.
    """
    tables = tables_of(facts)
    with whole_folder(out) as folder:
        for name, table in tables.items():
            write_bytes(folder / f"{name}.csv", _encode_csv(table))
    return _exported_tables(tables, out, "csv")


def write_parquet(facts: Facts, out: Path) -> ExportedFiles:
    """Write ``trials.parquet`` and ``epochs.parquet``.

    Units stand in the titles, as in CSV, and in each field's metadata; the file's own metadata
    names the campaign.
    """
    with _needs("parquet", ", or take --to csv"):
        import pyarrow
        import pyarrow.parquet
    tables = tables_of(facts)
    about = {"campaign": facts.config.name, "program": f"hydragnn-hpo {__version__}"}
    metadata = {"hydragnn_hpo": json.dumps(about)}
    with whole_folder(out) as folder:
        for name, table in tables.items():
            fields, arrays = [], []
            for column in table:
                kind = getattr(pyarrow, _ARROW_TYPES[column.kind])()
                unit = {"unit": column.unit} if column.unit else None
                fields.append(pyarrow.field(column.title, kind, metadata=unit))
                arrays.append(pyarrow.array(column.values, kind))
            schema = pyarrow.schema(fields, metadata)
            with whole_file(folder / f"{name}.parquet") as file:
                pyarrow.parquet.write_table(pyarrow.table(arrays, schema=schema), file)
    return _exported_tables(tables, out, "parquet")


def _exported_tables(tables: Mapping[str, TypedTable], out: Path, kind: str) -> ExportedFiles:
    return ExportedFiles(
        files=tuple(out / f"{name}.{kind}" for name in tables),
        trials=len(tables["trials"][0].values),
        epochs=len(tables["epochs"][0].values),
        open_with=f"pandas.read_{kind}({str(out / f'trials.{kind}')!r})",
    )


def _encode_csv(table: TypedTable) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_csv_cell(column.title) for column in table])
    columns = [[_csv_cell(value) for value in column.values] for column in table]
    writer.writerows(zip(*columns, strict=True))
    return text.getvalue().encode()


def _csv_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value if value.startswith(_FORMULA) else value
    return repr(value)


def _exported_runs(
    runs: Sequence[TrialRun], file: Path, *, open_with: str, note: str = ""
) -> ExportedFiles:
    epochs = sum(len(curve) for _, curve in runs)
    return ExportedFiles((file,), len(runs), epochs, open_with, note)


def write_optuna(facts: Facts, out: Path) -> ExportedFiles:
    """Write an Optuna storage: SQLite, or a journal (``.log``), as optuna-dashboard opens both."""
    runs = trial_runs(facts)
    with _local_folder() as folder:
        path = folder / f"storage{out.suffix}"
        write_storage(facts, runs, path)
        _copy_whole(path, out)
    where = str(out) if out.suffix == ".log" else f"sqlite:///{out}"
    note = "Trials that stopped at a rung are PRUNED there."
    return _exported_runs(runs, out, open_with=f"optuna-dashboard {where}", note=note)


_BOARD_RESULTS = (
    "objective",
    "score.",
    "val_mae.",
    "parameters",
    "peak_bytes",
    "slot_seconds",
    "energy",
)
"""Numbers under ``result/`` in TensorBoard, by the beginning of their names."""


def write_tensorboard(facts: Facts, out: Path) -> ExportedFiles:
    """Write TensorBoard event files, one folder per trial.

    Epochs are steps, searched values hparams. Curves have the names that ``training.tensorboard``
    gives them; ``result/...`` is the trial's result. Units stand in the description of each curve.
    Values are 32-bit floats there.
    """
    with _needs("tensorboard"):
        from tensorboard.summary.writer.record_writer import RecordWriter
    make_writer: Any = RecordWriter
    runs = trial_runs(facts)
    names = folder_names([row.name for row, _ in runs])
    with whole_folder(out) as folder:
        for row, curve in runs:
            path = folder / names[row.name]
            begun = row.numbers["started"] or facts.begin or 0.0
            with storage(path):
                path.mkdir()
                with (path / f"events.out.tfevents.{int(begun)}.export").open("wb") as file:
                    writer = make_writer(file)
                    for event in _board_events(row, curve, facts.units, begun):
                        writer.write(event.SerializeToString())
    return _exported_runs(runs, out, open_with=f"tensorboard --logdir {out}")


def _board_events(
    row: TrialRow, curve: list[EpochRow], units: Mapping[str, str], begun: float
) -> Iterator[Any]:
    """Yield the events of one trial in order.

    Args:
        row: the trial.
        curve: its epochs.
        units: of the targets.
        begun: when it started, or the campaign.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb

    make_hparams: Any = hparams_pb
    ended = row.numbers["ended"] or (curve[-1].time if curve else begun)
    yield Event(wall_time=begun, file_version="brain.Event:2")
    start = make_hparams(row.values, trial_id=row.name, start_time_secs=begun)
    yield Event(wall_time=begun, summary=start)
    for epoch in curve:
        scalars = _board_scalars(epoch.numbers, units, "")
        yield Event(wall_time=epoch.time, step=epoch.epoch, summary=scalars)
    results = {
        name: value
        for name, value in row.results.items()
        if name.startswith(_BOARD_RESULTS) and name != "energy_share"
    }
    last = int(row.numbers["epochs"] or 0)
    yield Event(wall_time=ended, step=last, summary=_board_scalars(results, units, "result/"))
    if row.status not in ("running", "queued"):
        yield Event(wall_time=ended, summary=_board_end(row, ended))


def _board_end(row: TrialRow, ended: float) -> Any:
    """Return the end of a session; TensorBoard's own function for it needs TensorFlow."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import api_pb2, metadata
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    data: Any = HParamsPluginData()
    status = "STATUS_SUCCESS" if row.status in ("completed", "stopped") else "STATUS_FAILURE"
    data.session_end_info.status = api_pb2.Status.Value(status)
    data.session_end_info.end_time_secs = ended
    summary: Any = Summary()
    about = metadata.create_summary_metadata(data)
    tag = metadata.SESSION_END_INFO_TAG
    summary.value.add(tag=tag, metadata=about, tensor=metadata.NULL_TENSOR)
    return summary


def _board_scalars(numbers: Mapping[str, float], units: Mapping[str, str], before: str) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    summary: Any = Summary()
    for name, value in numbers.items():
        what, dot, which = name.partition(".")
        scalar = summary.value.add(tag=f"{before}{what}/{which}" if dot else f"{before}{what}")
        scalar.simple_value = value
        if unit := unit_of(name, units):
            scalar.metadata.summary_description = f"in {unit}"
    return summary


_MLFLOW_STATES = {
    "completed": "FINISHED",
    "stopped": "FINISHED",
    "failed": "FAILED",
    "queued": "SCHEDULED",
}
_MLFLOW_BATCH = 1000
"""Metrics that MLflow takes at once."""

_MLFLOW_TAG = 5000
"""Characters of a tag that it keeps."""

_MLFLOW_NAME = "_-. /"
"""What the name of a metric may hold beside letters and digits."""


def write_mlflow(facts: Facts, out: Path) -> ExportedFiles:
    """Write ``mlflow.db``: an experiment with one run per trial, as ``mlflow ui`` opens it.

    MLflow's own folders of files are in maintenance mode and refused by it since its version 3.
    """
    runs = trial_runs(facts)
    with (
        _local_folder() as folder,
        isolate_tracker(folder, {"MLFLOW_DISABLE_TELEMETRY": "true"}),
        _quiet_mlflow(),
    ):
        with _needs("mlflow"):
            from mlflow import MlflowClient
        uri = f"sqlite:///{folder / 'mlflow.db'}"
        client: Any = MlflowClient(tracking_uri=uri, registry_uri=uri)
        place = (out.absolute() / "artifacts").as_uri()
        experiment = client.create_experiment(facts.config.name, artifact_location=place)
        for row, curve in runs:
            _add_mlflow_run(client, experiment, facts, row, curve)
        with whole_folder(out) as target:
            _copy_whole(folder / "mlflow.db", target / "mlflow.db")
    file = out / "mlflow.db"
    return _exported_runs(runs, file, open_with=f"mlflow ui --backend-store-uri sqlite:///{file}")


def _add_mlflow_run(
    client: Any, experiment: str, facts: Facts, row: TrialRow, curve: list[EpochRow]
) -> None:
    from mlflow.entities import Metric, Param, RunTag

    begun, ended = row.numbers["started"], row.numbers["ended"]
    start = _milliseconds(begun if begun is not None else facts.begin)
    run = client.create_run(experiment, start_time=start, run_name=row.name)
    texts = {**row.texts, "trial": row.name, "status": row.status}
    texts |= {f"unit.{name}": unit_of(name, facts.units) for name in row.numbers}
    tags = [RunTag(_mlflow_name(key), text[-_MLFLOW_TAG:]) for key, text in texts.items() if text]
    params = [Param(_mlflow_name(key), str(value)) for key, value in row.values.items()]
    metrics = [
        Metric(_mlflow_name(name), value, _milliseconds(epoch.time), epoch.epoch)
        for epoch in curve
        for name, value in epoch.numbers.items()
    ]
    last, end = int(row.numbers["epochs"] or 0), _milliseconds(ended) or start
    metrics += [
        Metric(f"result/{_mlflow_name(name)}", value, end, last)
        for name, value in row.results.items()
    ]
    for first in range(0, len(metrics), _MLFLOW_BATCH):
        batch = metrics[first : first + _MLFLOW_BATCH]
        client.log_batch(run.info.run_id, batch, *((params, tags) if first == 0 else ()))
    if row.status != "running":
        client.set_terminated(run.info.run_id, _MLFLOW_STATES.get(row.status, "KILLED"), end)


def _milliseconds(seconds: float | int | None) -> int:
    return round(1000 * (seconds or 0.0))


def _mlflow_name(name: str) -> str:
    """Replace the characters that MLflow does not take."""
    plain = (c if (c.isascii() and c.isalnum()) or c in _MLFLOW_NAME else "_" for c in name)
    return "".join(plain)[:250]


@contextlib.contextmanager
def _quiet_mlflow() -> Iterator[None]:
    """Silence what MLflow logs of its tables, and what is deprecated in it."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


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
    runs = trial_runs(facts)
    ids = folder_names([row.name for row, _ in runs])
    with _local_folder() as folder:
        variables = _WANDB_VARIABLES | {"WANDB_DIR": str(folder)}
        with isolate_tracker(folder, variables):
            with _needs("wandb"):
                import wandb
            with whole_folder(out) as target:
                try:
                    for row, curve in runs:
                        _write_wandb_run(wandb, target, ids[row.name], facts, row, curve)
                finally:
                    wandb.teardown()
                (target / "wandb" / "latest-run").unlink(missing_ok=True)
    return _exported_runs(
        runs,
        out / "wandb",
        open_with=f"wandb sync {out / 'wandb'}/offline-run-*",
        note="Nothing was sent; 'wandb sync' sends it to the account you are logged in to.",
    )


def _write_wandb_run(
    wandb: Any, target: Path, name: str, facts: Facts, row: TrialRow, curve: list[EpochRow]
) -> None:
    quiet = wandb.Settings(x_disable_stats=True, x_disable_meta=True, x_save_requirements=False)
    run = wandb.init(
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
    for epoch in curve:
        run.log({**epoch.numbers, "time": epoch.time}, step=epoch.epoch)
    units = {key: unit_of(key, facts.units) for key in row.numbers}
    summary: dict[str, Any] = {
        f"result.{key}": value for key, value in row.numbers.items() if value is not None
    }
    summary |= {f"unit.{key}": unit for key, unit in units.items() if unit}
    summary |= {key: text for key, text in row.texts.items() if text}
    run.summary.update({**summary, "status": row.status})
    run.finish(exit_code=1 if row.status == "failed" else 0)


@dataclass(frozen=True)
class ExportFormat:
    """One way to write a campaign."""

    write: Callable[[Facts, Path], ExportedFiles]
    suffixes: tuple[str, ...] = ()
    """Of the file; none where a folder is written."""


def write_best(facts: Facts, out: Path, trial: str | None = None) -> ExportedFiles:
    """Write the configuration of the best trial, or of another one.

    Args:
        facts: of the campaign.
        out: the file.
        trial: its name; the best one if None.

    Raises:
        RunError: no trial has a result yet, or the named one is unknown.
    """
    open_with, note = write_best_config(facts, out, trial=trial)
    return ExportedFiles((out,), trials=1, epochs=0, open_with=open_with, note=note)


FORMATS: dict[str, ExportFormat] = {
    "parquet": ExportFormat(write_parquet),
    "csv": ExportFormat(write_csv),
    "optuna": ExportFormat(write_optuna, (".db", ".sqlite3", ".log")),
    "tensorboard": ExportFormat(write_tensorboard),
    "mlflow": ExportFormat(write_mlflow),
    "wandb": ExportFormat(write_wandb),
    "best": ExportFormat(write_best, (".toml",)),
}
"""By the word behind ``--to``."""


def export(facts: Facts, to: str, out: Path, *, trial: str | None = None) -> ExportedFiles:
    """Write a campaign in a format, whole or not at all; the campaign may be running.

    Args:
        facts: of the run directory.
        to: a key of ``FORMATS``.
        out: the file or folder to make; nothing may be there yet.
        trial: for ``best``: another trial than the best one.

    Raises:
        ConfigError: the format is unknown, its package is missing, or ``out`` does not fit it.
        RunError: there is nothing to write yet.
    """
    if to not in FORMATS:
        raise ConfigError(unknown("format", to, FORMATS))
    if out.exists() or out.is_symlink():
        raise ConfigError(f"{out}: is there already; choose another name, or remove it.")
    suffixes = FORMATS[to].suffixes
    if suffixes and out.suffix not in suffixes:
        wanted = " or ".join(f"NAME{suffix}" for suffix in suffixes)
        raise ConfigError(f"{out}: --to {to} writes one file: name it {wanted}.")
    if not facts.trials:
        raise RunError(f"{facts.run.path}: no trial was proposed yet: there is nothing to export.")
    if trial is None:
        return FORMATS[to].write(facts, out)
    if to != "best":
        raise ConfigError("--trial goes with --to best: the other formats hold all trials.")
    return write_best(facts, out, trial)


_CHUNK = 1 << 20
_MEMORY = Path("/dev/shm")
_ROOM = 2 << 30
"""Bytes that must be free there; ten times what 2,000 trials take."""


@contextlib.contextmanager
def _local_folder() -> Iterator[Path]:
    """Make a temporary folder in memory, or on a local disk."""
    roomy = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _ROOM
    where = _MEMORY if roomy else None
    with tempfile.TemporaryDirectory(prefix="export-", suffix=PART, dir=where) as name:
        yield Path(name)


def _copy_whole(source: Path, out: Path) -> None:
    """Copy a finished file to where it belongs, whole or not at all.

    Raises:
        StorageError: there is no room, or the folder is not writable.
    """
    with storage(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as file, whole_file(out) as target:
        shutil.copyfileobj(file, target, _CHUNK)


def folder_names(names: Iterable[str]) -> dict[str, str]:
    """Return for each trial a name that is safe as a folder's: no way out, no two alike.

    >>> folder_names(["t0001", "../t", ".._t"])
    {'t0001': 't0001', '../t': '_._t', '.._t': '_._t-2'}
    """
    by_trial: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name)
        plain = (("_" + plain[1:]) if plain.startswith(".") else plain)[:100] or "_"
        unique, number = plain, 2
        while unique in taken:
            unique, number = f"{plain}-{number}", number + 1
        taken.add(unique)
        by_trial[name] = unique
    return by_trial


@contextlib.contextmanager
def _needs(to: str, instead: str = "") -> Iterator[None]:
    """Turn a failed import into a sentence that names the extra to install.

    Raises:
        ConfigError: the package is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"--to {to} needs a package that is not installed: "
            f"pip install 'hydragnn-hpo[{to}]'{instead}."
        ) from error


_TRACKER_VARIABLES = ("WANDB_", "MLFLOW_", "DATABRICKS_", "_MLFLOW")
"""Beginnings of the names of variables that would send an export elsewhere."""

_HOMES = (
    "HOME",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
    "TMPDIR",
)
"""Where trackers would keep caches, settings, logs and keys."""


@contextlib.contextmanager
def isolate_tracker(folder: Path, settings: Mapping[str, str]) -> Iterator[None]:
    """Hide the user's settings and home from a tracker's library.

    Args:
        folder: the library's home meanwhile.
        settings: environment variables for it.
    """
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith(_TRACKER_VARIABLES)]:
        del os.environ[name]
    os.environ.update({name: str(folder) for name in _HOMES})
    os.environ.update({"DO_NOT_TRACK": "true", **settings})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
