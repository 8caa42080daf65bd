"""``hydragnn-hpo export``: a campaign for other programs."""

import json
from pathlib import Path
from typing import Annotated

import typer

from hydragnn_hpo.cli.arguments import JsonOption, RunArgument

WAYS = "parquet, csv, optuna, tensorboard, mlflow, wandb, or best: the best trial's configuration"


def export(
    run_dir: RunArgument,
    to: Annotated[str, typer.Option(metavar="FORMAT", help=f"{WAYS}.")],
    out: Annotated[
        Path,
        typer.Option(
            help="Where to write: NAME.db or NAME.log (optuna), NAME.toml (best), else a folder."
        ),
    ],
    trial: Annotated[
        str | None, typer.Option(metavar="TRIAL", help="With --to best: export this trial instead.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the trials and epochs of a campaign, running or not, for other programs.

    For the ensemble as a program that needs only torch, see hydragnn-hpo ensemble export.
    """
    from hydragnn_hpo.layout import RunDir
    from hydragnn_hpo.report import export as export_run
    from hydragnn_hpo.report import read_facts

    exported = export_run(read_facts(RunDir(run_dir)), to, out, trial=trial)
    if as_json:
        typer.echo(json.dumps({"run": str(run_dir), "format": to, **exported.to_plain()}))
        return
    counts = f" ({exported.trials:,} trials, {exported.epochs:,} epochs)" if exported.epochs else ""
    typer.echo(f"wrote {', '.join(map(str, exported.files))}{counts}")
    typer.echo(f"open with: {exported.open_with}")
    if exported.note:
        typer.echo(exported.note)
