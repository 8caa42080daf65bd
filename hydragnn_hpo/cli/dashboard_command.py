"""``hydragnn-hpo dashboard``: the report of a run, kept up to date in a browser."""

import logging
import os
import socket
import sys
from itertools import count
from pathlib import Path
from typing import Annotated

import typer

from hydragnn_hpo.cli.arguments import RunArgument

PortOption = Annotated[
    int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")
]


def dashboard(run_dir: RunArgument, port: PortOption = 0) -> None:
    """Show the report of a run in a browser and keep it up to date, until Ctrl-C."""
    from hydragnn_hpo.layout import RunDir
    from hydragnn_hpo.log import configure
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
    os._exit(0)  # do not wait for a section in progress
