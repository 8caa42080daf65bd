"""``hydragnn-hpo ensemble build``: from a run's trials to one file."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hydragnn_hpo.cli.arguments import DryRunOption, JsonOption, RunArgument

if TYPE_CHECKING:
    from rich.table import Table

    from hydragnn_hpo.campaign import State
    from hydragnn_hpo.layout import RunDir

ReseedOption = Annotated[
    int,
    typer.Option(
        "--reseed",
        min=0,
        help="First train so many of the best trials once more, with new seeds.",
    ),
]

WAYS = {"top": "the K best on val", "greedy": "greedy on sel", "single": "best single on val"}


def build(
    run_dir: RunArgument,
    reseed: ReseedOption = 0,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Select, calibrate and evaluate an ensemble from a run's trials, and pack it.

    With --reseed the run's campaign goes on as an ordinary one: killed, the same command resumes.
    """
    from hydragnn_hpo.campaign import read_state
    from hydragnn_hpo.layout import RunDir

    run = RunDir(run_dir)
    state = read_state(run)
    if dry_run:
        typer.echo(_intent(run, state, reseed))
        return
    table = _reseeded(run.path, reseed, as_json) if reseed else _built(run)
    if as_json:
        typer.echo(json.dumps(table))
        return
    _print(table)


def _intent(run: "RunDir", state: "State", reseed: int) -> str:
    """Say what would be done."""
    from hydragnn_hpo.campaign import choose_replicates

    first = ""
    if again := choose_replicates(state, reseed):
        first = f"would train {', '.join(t.name for t in again)} with new seeds, then "
    names = ", ".join(trial.name for trial in state.ranked()) or "none"
    return f"{first}would write {run.ensemble} from the best of: {names}"


def _built(run: "RunDir") -> dict[str, Any]:
    """Build here, from what is there."""
    from hydragnn_hpo.ensemble import build_ensemble
    from hydragnn_hpo.report import draw_parity

    table = build_ensemble(run.path)
    draw_parity(run.path, run.report / "parity.png")
    return table


def _reseeded(run: Path, count: int, quiet: bool) -> dict[str, Any]:
    """Let the run's campaign train its best again, and build the ensemble at its end."""
    from hydragnn_hpo import log
    from hydragnn_hpo.campaign import open_run
    from hydragnn_hpo.cli.run_command import alone, fitting_cards
    from hydragnn_hpo.config import CampaignConfig, load_config
    from hydragnn_hpo.errors import ConfigError
    from hydragnn_hpo.layout import RunDir

    log.configure(level=30)
    source = RunDir(run).campaign
    config = load_config(source, CampaignConfig)
    if config.command is not None:
        raise ConfigError(f"{run}: its trials run a command: there is no ensemble to build.")
    cards = fitting_cards(config, source)
    result = alone(config, open_run(config, run), cards, quiet=quiet, reseed=count)
    table: dict[str, Any] = result["ensemble"]
    return table


def _print(table: dict[str, Any]) -> None:
    from hydragnn_hpo.cli.tables import console, ensemble_table

    out = console()
    out.print(selection_table(table))
    out.print(diversity_table(table))
    out.print(ensemble_table(table["heads"]))
    for warning in table["warnings"]:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(
        f"{table['path']}: {len(table['members'])} members, {WAYS[table['method']]}: {table['why']}"
    )


def selection_table(table: dict[str, Any]) -> "Table":
    """Lay out how each way of choosing does on ``sel``, and which is kept."""
    from rich.table import Table

    heads = {name: head["unit"] for name, head in table["heads"].items()}
    out = Table(title="Selection (on sel; the test split has no say)", title_justify="left")
    out.add_column("members chosen")
    for column in ("members", "MFLOP/graph", "loss", *(f"{n} \\[{u}]" for n, u in heads.items())):
        out.add_column(column.replace("_", " "), justify="right")
    for way, said in table["selection"].items():
        kept = way == table["method"]
        out.add_row(
            WAYS[way] + (" (kept)" if kept else ""),
            str(len(said["members"])),
            f"{said['flops_per_graph'] / 1e6:.3g}",
            f"{said['sel_loss']:.4f}",
            *(f"{said['sel_mae'][name]:.4f}" for name in heads),
            style="bold" if kept else None,
        )
    return out


def diversity_table(table: dict[str, Any]) -> "Table":
    """Lay out how alike members err on ``sel``, and what their mix gains by it."""
    from rich.table import Table

    out = Table(title="Diversity of the members (on sel)", title_justify="left")
    out.add_column("head")
    columns = ("members", "correlation of errors", "member RMSE", "RMSE of the mix", "gained")
    for column in columns:
        out.add_column(column, justify="right")
    for name, seen in table["diversity"].items():
        alike = seen["mean_correlation"]
        gain = seen["ambiguity"] / seen["mean_member_mse"] if seen["mean_member_mse"] else 0.0
        out.add_row(
            name.replace("_", " "),
            str(len(seen["members"])),
            "-" if alike is None else f"{alike:.2f}",
            f"{math.sqrt(seen['mean_member_mse']):.4f}",
            f"{math.sqrt(seen['mse']):.4f}",
            f"{100 * gain:.0f} %",
        )
    return out
