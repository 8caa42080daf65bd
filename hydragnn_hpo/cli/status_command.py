"""``hydragnn-hpo status``: how a campaign stands."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hydragnn_hpo.cli.arguments import JsonOption, RunArgument

if TYPE_CHECKING:
    from hydragnn_hpo.cli.run_view import RunView

WATCH_SECONDS = 2.0
"""Time between two looks, if nothing else is asked for."""


MOST_LINES = 1000
"""Lines of a page that is not bound to a terminal."""

Watch = Annotated[bool, typer.Option("--watch", help="Look again and again until it has ended.")]
Interval = Annotated[
    float | None,
    typer.Option(
        min=0.1, max=86_400.0, help="Seconds between two looks of --watch; 2 if left out."
    ),
]


def status(
    run_dir: RunArgument,
    watch: Watch = False,
    interval: Interval = None,
    as_json: JsonOption = False,
) -> None:
    """Show how a campaign stands: trials, rungs, hosts, use of the slots, the best so far."""
    from hydragnn_hpo.cli.run_view import RunReader
    from hydragnn_hpo.layout import RunDir

    run = RunDir(Path(run_dir))
    if as_json:
        typer.echo(json.dumps(RunReader(run).read().to_plain()))
    elif watch:
        from hydragnn_hpo.cli.watch_run import watch_run

        watch_run(run, WATCH_SECONDS if interval is None else interval)
    else:
        _print(RunReader(run).read())


def _print(view: "RunView") -> None:
    from hydragnn_hpo.cli.batch_view import job_lines
    from hydragnn_hpo.cli.status_view import ASCII, UNICODE, Page, lay_out, losses_line
    from hydragnn_hpo.cli.tables import console
    from hydragnn_hpo.cli.words import duration

    found = view.snapshot.status
    left = f", about {duration(found.ends_in)} left" if found.ends_in is not None else ""
    typer.echo(f"{view.run.path}: {view.snapshot.course}{left}")
    out = console()
    page = Page(out.width, MOST_LINES, ASCII if out.options.ascii_only else UNICODE)
    for line in lay_out(view.snapshot, page)[1:]:
        out.print(line, highlight=False)
    if losses := losses_line(found):
        typer.echo(f"losses   {losses}")
    for job_line in job_lines(view.jobs):
        typer.echo(job_line)
