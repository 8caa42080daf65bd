"""Commands that show the results of a campaign or export them.

``leaderboard``, ``report``, ``dashboard``, ``importance``, ``compare`` and ``export``.
"""

import json
import logging
import os
import socket
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydragnn_hpo import log
from hydragnn_hpo.cli.arguments import JsonOption, RunArgument
from hydragnn_hpo.cli.tables import console, leaderboard_table, make_table
from hydragnn_hpo.errors import ConfigError, unknown
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.log import configure
from hydragnn_hpo.sanitize import escape_controls

if TYPE_CHECKING:
    from hydragnn_hpo.report.compare import RunTable
    from hydragnn_hpo.report.importance import Importance
    from hydragnn_hpo.report.page_blocks import Cell

PortOption = Annotated[
    int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")
]

IMPORTANCE_TARGETS = ("mae", "cost", "memory", "failure")

EXPORT_FORMATS = (
    "parquet, csv, optuna, tensorboard, mlflow, wandb, or best: the best trial's configuration"
)


def leaderboard(
    run_dir: RunArgument,
    top: Annotated[int, typer.Option(min=1, help="Number of trials to show.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Show the best trials of a campaign."""
    from hydragnn_hpo.campaign import read_leaderboard

    board = read_leaderboard(RunDir(Path(run_dir))).best(top)
    if as_json:
        typer.echo(json.dumps(board.to_plain()))
    else:
        console().print(leaderboard_table(board))


def report(
    run: Annotated[Path, typer.Argument(help="Run directory; the campaign may still be running.")],
    out: Annotated[
        Path | None,
        typer.Option(help="File to write, NAME.html; RUN/report/report.html if left out."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the report of a campaign: one HTML file that needs no network and no server."""
    from hydragnn_hpo.report import write_report

    log.configure(level=30)
    path = write_report(RunDir(run), out)
    typer.echo(json.dumps({"report": str(path)}) if as_json else f"wrote {path}")


def dashboard(run_dir: RunArgument, port: PortOption = 0) -> None:
    """Show the report of a run in a browser and keep it up to date, until Ctrl-C."""
    from hydragnn_hpo.report import serve_dashboard

    configure()
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    links = count()

    def announce_link(link: str, taken: int) -> None:
        if next(links):
            typer.echo(f"opened; for another browser: {link}")
            return
        typer.echo(f"dashboard of {run_dir}: {link}")
        typer.echo(
            f"on another computer: ssh -L {taken}:127.0.0.1:{taken} {socket.gethostname()}, "
            "then the same link there; Ctrl-C ends it"
        )

    serve_dashboard(RunDir(Path(run_dir)), port, announce_link)
    typer.echo("stopped")
    sys.stdout.flush()
    os._exit(0)  # exit at once: do not wait for a section that is being made


def importance(
    run_dir: RunArgument,
    target: Annotated[
        str | None, typer.Option(help="mae, cost, memory or failure; all of them if left out.")
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="Explain the MAE of this head instead of the objective.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show which searched parameters decide accuracy, cost, memory and failures."""
    from hydragnn_hpo.report import read_facts
    from hydragnn_hpo.report.importance import METHODS, analyse_importance
    from hydragnn_hpo.report.observations import choose_targets, observe_trials

    keys = _choose_importance_targets(target, head)
    facts = read_facts(RunDir(run_dir))
    rows = observe_trials(facts)
    chosen = choose_targets(rows, facts.config.search.objective, keys)
    analyses = [analyse_importance(facts.config, rows, each) for each in chosen]
    if as_json:
        targets = [_importance_entry(each) for each in analyses]
        about = {"runs": [str(run_dir)], "methods": METHODS}
        typer.echo(json.dumps({**about, "targets": targets}))
        return
    for each in analyses:
        _print_importance(each)
    typer.echo(METHODS)


def _importance_entry(analysis: "Importance") -> dict[str, object]:
    import msgspec

    return {
        "target": analysis.target.key,
        "label": analysis.target.label,
        "logarithm": analysis.target.log,
        "trials": analysis.trials,
        "out_of_bag_r2": analysis.skill,
        "trusted": analysis.doubt is None,
        "doubt": analysis.doubt,
        "parameters": msgspec.to_builtins(analysis.effects),
    }


def _choose_importance_targets(target: str | None, head: str | None) -> tuple[str, ...]:
    """Check the options before any file is read, and return the keys of the targets.

    Raises:
        ConfigError: a target is unknown, or ``--head`` is set for a target other than ``mae``.
    """
    if target is not None and target not in IMPORTANCE_TARGETS:
        raise ConfigError(f"--target: {unknown('target', target, IMPORTANCE_TARGETS)}")
    if head is not None and target not in (None, "mae"):
        raise ConfigError(f"--head goes with --target mae, not with '{target}': drop one of them.")
    if head is not None:
        return (f"mae.{head}",)
    return IMPORTANCE_TARGETS if target is None else (target,)


def _print_importance(analysis: "Importance") -> None:
    """Print the target, whether its importances can be trusted, and the parameters' effects."""
    skill = "" if analysis.skill is None else f", out-of-bag R2 {analysis.skill:.2f}"
    typer.echo(f"{analysis.target.label}, {analysis.trials:,} trials{skill}")
    if analysis.doubt:
        typer.echo(f"NOT TO BE TRUSTED: {analysis.doubt}")
    unit = f" ({analysis.target.unit})" if analysis.target.unit else ""
    style = "dim" if analysis.doubt else ""
    table = make_table(drop=("PED-ANOVA", "fANOVA", f"mean |SHAP|{unit}"), style=style)
    table.add_texts("parameter")
    table.add_numbers(f"mean |SHAP|{unit}", "SHAP", "fANOVA", "PED-ANOVA")
    table.add_texts("lowest at")
    for name, effect in analysis.effects.items():
        shares = (effect.shap_share, effect.fanova, effect.ped_anova)
        cells = ("-" if share is None else f"{100.0 * share:.0f} %" for share in shares)
        table.add_row(name, f"{effect.shap:.4f}", *cells, effect.least_at, style=style)
    if analysis.effects:
        console().print(table)
    typer.echo("")


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, two or more.")],
    reach: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HEAD=MAE",
            help="Show what it cost to reach this MAE, or objective=VALUE; repeatable.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare campaigns: search spaces, winners, and what it cost to reach an error."""
    import msgspec

    from hydragnn_hpo.report.compare import compare_runs, read_campaigns, tabulate_comparison

    levels = [_parse_reach(text) for text in reach or ()]
    comparison = compare_runs(read_campaigns(runs), levels)
    if as_json:
        plain = {
            "runs": [run.summary for run in comparison.runs],
            "warnings": comparison.warnings,
            "same_data": comparison.same_data,
            "reached": comparison.reached,
        }
        typer.echo(json.dumps(msgspec.to_builtins(plain)))
        return
    labels = [run.summary.label for run in comparison.runs]
    for heading, blocks in tabulate_comparison(comparison).items():
        typer.echo(heading)
        for block in blocks:
            _print_block(block, labels)
        typer.echo("")


def _parse_reach(text: str) -> tuple[str, float]:
    name, equals, value = text.rpartition("=")
    try:
        level = float(value)
    except ValueError:
        level = float("nan")
    if not equals or not name or level != level:
        raise ConfigError(f"--reach {text!r}: write HEAD=MAE, as --reach energy=0.02.")
    return name, level


def _print_block(block: "str | RunTable", labels: Sequence[str]) -> None:
    """Print a sentence, or a table with a right-aligned column for each run."""
    if isinstance(block, str):
        typer.echo(escape_controls(block))
        return
    table = make_table(drop=labels[:0:-1])
    table.add_texts(block.title)
    table.add_numbers(*labels)
    for name, cells in block.rows.items():
        table.add_row(*map(escape_controls, (name, *map(_format_cell, cells))))
    console().print(table)


def _format_cell(cell: "Cell") -> str:
    if cell is None or isinstance(cell, str):
        return cell or "-"
    if isinstance(cell, float):
        return f"{cell:,.4g}" if abs(cell) < 1000.0 else f"{cell:,.0f}"
    return f"{cell:,}"


def export(
    run_dir: RunArgument,
    to: Annotated[str, typer.Option(metavar="FORMAT", help=f"{EXPORT_FORMATS}.")],
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
    from hydragnn_hpo.report import export as export_run
    from hydragnn_hpo.report import read_facts

    exported = export_run(read_facts(RunDir(run_dir)), to, out, trial=trial)
    if as_json:
        plain = {"run": str(run_dir), "format": to, **vars(exported)}
        typer.echo(json.dumps(plain, default=str))
        return
    counts = f" ({exported.trials:,} trials, {exported.epochs:,} epochs)" if exported.epochs else ""
    typer.echo(f"wrote {', '.join(map(str, exported.files))}{counts}")
    typer.echo(f"open with: {exported.open_with}")
    if exported.note:
        typer.echo(exported.note)
