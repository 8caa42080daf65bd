"""``hydragnn-hpo report``: a run as one HTML page."""

import json
from pathlib import Path
from typing import Annotated

import typer

from hydragnn_hpo.cli.arguments import JsonOption


def report(
    run: Annotated[Path, typer.Argument(help="Run directory; the campaign may still be running.")],
    out: Annotated[
        Path | None,
        typer.Option(help="File to write, NAME.html; RUN/report/report.html if left out."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the report of a campaign: one HTML file that needs no network and no server."""
    from hydragnn_hpo import log
    from hydragnn_hpo.layout import RunDir
    from hydragnn_hpo.report import write_report

    log.configure(level=30)
    path = write_report(RunDir(run), out)
    typer.echo(json.dumps({"report": str(path)}) if as_json else f"wrote {path}")
