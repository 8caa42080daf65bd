"""Weights & Biases: one offline run per trial, for ``wandb sync`` by whoever has an account."""

from pathlib import Path
from typing import Any

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.files import whole_folder
from hydragnn_hpo.report.exporting.outside import at_home
from hydragnn_hpo.report.exporting.rows import EpochRow, TrialRow, curves, trial_rows, unit_of
from hydragnn_hpo.report.exporting.written import Written, elsewhere, folder_names
from hydragnn_hpo.report.facts import Facts

_SETTINGS = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_DISABLE_GIT": "true",
    "WANDB_DISABLE_CODE": "true",
}


def write(facts: Facts, out: Path) -> Written:
    """Write a folder with ``wandb/offline-run-*``.

    Raises:
        ConfigError: wandb is not installed.
    """
    rows, told = trial_rows(facts), curves(facts)
    ids = folder_names([row.name for row in rows])
    with elsewhere() as folder, at_home(folder, _SETTINGS | {"WANDB_DIR": str(folder)}):
        try:
            import wandb
        except ImportError as error:
            raise ConfigError(
                "--to wandb needs a package that is not installed: "
                "pip install 'hydragnn-hpo[wandb]'."
            ) from error
        with whole_folder(out) as target:
            try:
                for row in rows:
                    _run(wandb, target, ids[row.name], facts, row, told.get(row.name, []))
            finally:
                wandb.teardown()
            (target / "wandb" / "latest-run").unlink(missing_ok=True)
    return Written(
        files=(out / "wandb",),
        trials=len(rows),
        epochs=sum(map(len, told.values())),
        open_with=f"wandb sync {out / 'wandb'}/offline-run-*",
        note="Nothing was sent; 'wandb sync' sends it to the account you are logged in to.",
    )


def _run(
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
    found: dict[str, Any] = {
        f"result.{key}": value for key, value in row.numbers.items() if value is not None
    }
    found |= {f"unit.{key}": unit for key, unit in units.items() if unit}
    found |= {key: text for key, text in row.texts.items() if text}
    run.summary.update({**found, "status": row.status})
    run.finish(exit_code=1 if row.status == "failed" else 0)
