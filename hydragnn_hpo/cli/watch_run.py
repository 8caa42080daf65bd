"""``status --watch``: a campaign on a terminal until it has ended, or somebody has seen enough."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

import typer

from hydragnn_hpo.cli.run_view import RunReader
from hydragnn_hpo.cli.status_view import Picture, headline, use_of_slots
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.sanitize import escape_controls

if TYPE_CHECKING:
    from rich.console import Console

NAP = 0.05
"""Seconds after which a new size of the terminal is seen."""

MOST_LINES = 60
"""Of the last picture, which stays on the terminal."""

MOST_ROWS = 100
"""Running trials that a tall terminal may show."""

READING_SHARE = 0.2
"""Most of the time that goes into reading, however long the journal is."""


def watch_run(run: RunDir, interval: float) -> None:
    """Show a campaign until it has ended; Ctrl-C ends the watching and nothing else.

    Args:
        run: its directory.
        interval: seconds between two readings.

    Raises:
        RunError: there is no campaign, its journal is damaged, or it was removed meanwhile.
    """
    from rich.console import Console

    console = Console()
    reader = RunReader(run)
    full = sys.stdout.isatty() and not console.is_dumb_terminal
    with suppress(KeyboardInterrupt):
        if full:
            _fill_terminal(reader, interval, console)
        else:
            _print_changes(reader, interval)
    if (newest := reader.newest) is not None:
        if full:
            console.print(Picture(newest.snapshot), height=MOST_LINES)
        typer.echo(f"{run.path}: {newest.snapshot.course}")


def _print_changes(reader: RunReader, interval: float) -> None:
    """Print a line whenever something has changed."""
    said = None
    while True:
        began = time.monotonic()
        view = reader.read()
        status = view.snapshot.status
        line = headline(replace(status, ends_in=None))
        if line != said:
            typer.echo(escape_controls(f"{line}; {use_of_slots(status)}"))
            sys.stdout.flush()
        if not view.goes_on:
            return
        said = line
        time.sleep(_pause(interval, time.monotonic() - began))


def _fill_terminal(reader: RunReader, interval: float, console: "Console") -> None:
    """Fill the terminal with the campaign; it is as it was afterwards."""
    from rich.live import Live

    view = reader.read(rows=MOST_ROWS)
    if not view.goes_on:
        return
    picture, spent = Picture(view.snapshot, interval), 0.0
    with (
        _exit_on_signals(),
        Live(picture, console=console, screen=True, auto_refresh=False) as live,
    ):
        live.refresh()
        while view.goes_on:
            wait(live.refresh, picture, console, _pause(interval, spent))
            began = time.monotonic()
            view = reader.read(rows=MOST_ROWS)
            picture.snapshot = view.snapshot
            live.refresh()
            spent = time.monotonic() - began


def wait(redraw: Callable[[], None], picture: Picture, console: "Console", seconds: float) -> None:
    """Wait; redraw at once when the terminal has changed its size."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if console.size != picture.drawn_for:
            redraw()
        time.sleep(min(NAP, left))


def _pause(interval: float, spent: float) -> float:
    """Return the seconds until the next reading; more where reading takes long."""
    return max(interval - spent, spent * (1 / READING_SHARE - 1), 0.0)


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Leave by an exception when somebody ends this process, so that the terminal is given back."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    kinds = (signal.SIGTERM, signal.SIGHUP)
    before = {kind: signal.signal(kind, leave) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
