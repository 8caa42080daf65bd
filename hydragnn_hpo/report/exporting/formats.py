"""The formats of ``export``: one file each, imported when it is asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydragnn_hpo.errors import ConfigError, RunError, unknown
from hydragnn_hpo.report.exporting import (
    best_config,
    csv_files,
    mlflow_runs,
    optuna_storage,
    parquet_files,
    tensorboard_logs,
    wandb_runs,
)
from hydragnn_hpo.report.exporting.written import Written
from hydragnn_hpo.report.facts import Facts


@dataclass(frozen=True)
class Format:
    """One way to write a campaign."""

    write: Callable[[Facts, Path], Written]
    suffixes: tuple[str, ...]
    """Of the file; none where a folder is written."""
    says: str


FORMATS: dict[str, Format] = {
    "parquet": Format(parquet_files.write, (), "trials and epochs as typed tables"),
    "csv": Format(csv_files.write, (), "trials and epochs as text"),
    "optuna": Format(optuna_storage.write, (".db", ".sqlite3", ".log"), "for optuna-dashboard"),
    "tensorboard": Format(tensorboard_logs.write, (), "event files, one folder per trial"),
    "mlflow": Format(mlflow_runs.write, (), "a tracking database, one run per trial"),
    "wandb": Format(wandb_runs.write, (), "offline runs, one per trial"),
    "best": Format(best_config.write, (".toml",), "the best trial's configuration"),
}
"""By the word behind ``--to``."""


def export(facts: Facts, to: str, out: Path, *, trial: str | None = None) -> Written:
    """Write a campaign in a format, whole or not at all; the campaign may be at work.

    Args:
        facts: what the run directory says.
        to: a key of ``FORMATS``.
        out: the file or folder to make; nothing may be there yet.
        trial: for ``best``: another trial than the best one.

    Raises:
        ConfigError: the format is unknown, its package is missing, or ``out`` does not fit it.
        RunError: there is nothing to write yet.
    """
    if to not in FORMATS:
        raise ConfigError(unknown("format", to, FORMATS))
    made = FORMATS[to]
    _check_place(out, made.suffixes, to)
    if not facts.trials:
        raise RunError(f"{facts.run.path}: no trial was proposed yet: there is nothing to export.")
    if trial is None:
        return made.write(facts, out)
    if to != "best":
        raise ConfigError("--trial goes with --to best: the other formats hold all trials.")
    return best_config.write(facts, out, trial=trial)


def _check_place(out: Path, suffixes: Sequence[str], to: str) -> None:
    if out.exists() or out.is_symlink():
        raise ConfigError(f"{out}: is there already; choose another name, or remove it.")
    if suffixes and out.suffix not in suffixes:
        wanted = " or ".join(f"NAME{suffix}" for suffix in suffixes)
        raise ConfigError(f"{out}: --to {to} writes one file: name it {wanted}.")
