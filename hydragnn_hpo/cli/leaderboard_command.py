"""``hydragnn-hpo leaderboard``: the best trials of a campaign."""

import json
from pathlib import Path
from typing import Annotated

import typer

from hydragnn_hpo.cli.arguments import JsonOption, RunArgument


def leaderboard(
    run_dir: RunArgument,
    top: Annotated[int, typer.Option(min=1, help="Number of trials to show.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Show the best trials of a campaign."""
    from hydragnn_hpo.campaign import read_leaderboard
    from hydragnn_hpo.cli.tables import console, leaderboard_table
    from hydragnn_hpo.layout import RunDir

    board = read_leaderboard(RunDir(Path(run_dir))).best(top)
    if as_json:
        typer.echo(json.dumps(board.to_plain()))
    else:
        console().print(leaderboard_table(board))
