"""``hydragnn-hpo ensemble``: build an ensemble of a run, and look at one."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hydragnn_hpo.cli.arguments import DryRunOption, JsonOption, RunArgument

app = typer.Typer(no_args_is_help=True)


@app.command()
def build(run_dir: RunArgument, dry_run: DryRunOption = False, as_json: JsonOption = False) -> None:
    """Select, calibrate and evaluate an ensemble from a run's trials, and pack it."""
    from hydragnn_hpo.campaign.leaderboard import read_state
    from hydragnn_hpo.layout import RunDir

    run = RunDir(run_dir)
    state = read_state(run)
    if dry_run:
        names = ", ".join(trial.name for trial in state.ranked()) or "none"
        typer.echo(f"would write {run.ensemble} from the best of: {names}")
        return
    from hydragnn_hpo.cli.tables import console, ensemble_table
    from hydragnn_hpo.ensemble.build import build_ensemble
    from hydragnn_hpo.report.figures import draw_parity

    table = build_ensemble(run.path)
    draw_parity(run.path, run.report / "parity.png")
    if as_json:
        typer.echo(json.dumps(table))
        return
    console().print(ensemble_table(table["heads"]))
    for warning in table["warnings"]:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(f"{table['path']}: {len(table['members'])} members, chosen by {table['method']}")


@app.command()
def info(
    path: Annotated[Path, typer.Argument(help="An ensemble.zip, or a run directory.")],
    as_json: JsonOption = False,
) -> None:
    """Show what an ensemble predicts, from what data, and who its members are."""
    from hydragnn_hpo.ensemble.artefact import read
    from hydragnn_hpo.layout import RunDir

    content = read(RunDir(path).ensemble if path.is_dir() else path)
    plain = content.manifest.model_dump(mode="json")
    if as_json:
        typer.echo(json.dumps(plain))
        return
    _print(plain)


def _print(plain: dict[str, Any]) -> None:
    from rich.table import Table

    from hydragnn_hpo.cli.tables import console

    out = console()
    made, data = plain["created_by"], plain["data"]
    out.print(
        f"campaign {made['campaign']} (seed {made['seed']}, {made['method']}), "
        f"data {data['name']}{': ' if data['title'] else ''}{data['title']}"
    )
    out.print(f"{len(plain['elements'])} elements, edges up to {plain['cutoff']:g} angstrom")
    heads = Table(title="Heads", title_justify="left")
    for column in ("head", "level", "unit", "sigma^2 = a s^2 + b", "description"):
        heads.add_column(column)
    for name, head in plain["heads"].items():
        fit = f"a = {head['calibration']['a']:.3g}, b = {head['calibration']['b']:.3g}"
        heads.add_row(name, head["level"], head["unit"], fit, head["description"])
    out.print(heads)
    members = Table(title="Members", title_justify="left")
    for column in ("trial", "weight", "val objective"):
        members.add_column(column)
    for member in plain["members"]:
        members.add_row(member["trial"], f"{member['weight']:.3f}", f"{member['objective']:.4f}")
    out.print(members)
