"""``hydragnn-hpo dashboard``: the report of a run, kept up to date in a browser."""

import logging
import os
import socket
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from hydragnn_hpo.cli.arguments import RunArgument

PortOption = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")]
OpenOption = Annotated[bool, typer.Option("--open", help="Open it in a browser here.")]


def dashboard(run_dir: RunArgument, port: PortOption = 0, open_it: OpenOption = False) -> None:
    """Show the report of a run in a browser and keep it up to date, until Ctrl-C."""
    from hydragnn_hpo.layout import RunDir
    from hydragnn_hpo.log import configure
    from hydragnn_hpo.report import serve_dashboard

    configure()
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    with TemporaryDirectory(prefix="hydragnn-hpo-") as folder:
        redirect = Path(folder) / "open.html"
        links: list[str] = []

        def announce_link(link: str, taken: int) -> None:
            links.append(link)
            redirect.unlink(missing_ok=True)
            if len(links) > 1:
                typer.echo(f"opened; for another browser: {link}")
                return
            typer.echo(f"dashboard of {run_dir}: {link}")
            typer.echo(
                f"on another computer: ssh -L {taken}:127.0.0.1:{taken} {socket.gethostname()}, "
                "then the same link there; Ctrl-C ends it"
            )
            if open_it:
                write_redirect(redirect, link)
                typer.launch(redirect.as_uri())

        serve_dashboard(RunDir(Path(run_dir)), port, announce_link)
    typer.echo("stopped")
    sys.stdout.flush()
    os._exit(0)  # do not wait for a section in progress


def write_redirect(path: Path, link: str) -> None:
    """Write a page that redirects to a link; on a command line, others could read its key."""
    from hydragnn_hpo.files import write_text

    head = '<!doctype html><html lang="en"><title>hydragnn-hpo</title>'
    quiet = '<meta name="referrer" content="no-referrer">'
    write_text(path, f'{head}{quiet}<meta http-equiv="refresh" content="0;url={link}"></html>')
