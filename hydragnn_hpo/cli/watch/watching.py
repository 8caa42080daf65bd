"""Look at a campaign again and again, until it has ended or somebody has seen enough."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

import typer

from hydragnn_hpo.cli.standing_view import headline, use_of_slots
from hydragnn_hpo.cli.watch.frame import Page, frame
from hydragnn_hpo.cli.watch.sight import Sight, Watcher
from hydragnn_hpo.cli.watch.signs import ASCII, UNICODE
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.text import shown

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

NAP = 0.05
"""Seconds after which a new size of the terminal is seen."""

MOST_LINES = 60
"""Of the last sight, which stays on the terminal."""

LOOKING_SHARE = 0.2
"""Most of the time that goes into looking; a very long journal is read in peace."""


def watch_run(run: RunDir, interval: float) -> None:
    """Show a campaign until it has ended; Ctrl-C ends the watching and nothing else.

    Args:
        run: its directory.
        interval: seconds between two looks.

    Raises:
        RunError: there is no campaign, its journal is damaged, or it was removed meanwhile.
    """
    from rich.console import Console

    console = Console()
    watcher = Watcher(run)
    full = sys.stdout.isatty() and not console.is_dumb_terminal
    with suppress(KeyboardInterrupt):
        if full:
            _fill(watcher, interval, console)
        else:
            _tell(watcher, interval)
    if (seen := watcher.seen) is not None:
        if full:
            console.print(Picture(seen, run.path.resolve().name), height=MOST_LINES)
        typer.echo(f"{run.path}: {seen.course}")


def _tell(watcher: Watcher, interval: float) -> None:
    """Print a line whenever something has changed."""
    said = None
    while True:
        began = time.monotonic()
        sight = watcher.look()
        line = headline(replace(sight.standing, ends_in=None))
        if line != said:
            typer.echo(shown(f"{line}; {use_of_slots(sight.standing)}"))
            sys.stdout.flush()
        if not sight.goes_on:
            return
        said = line
        time.sleep(_pause(interval, time.monotonic() - began))


def _fill(watcher: Watcher, interval: float, console: "Console") -> None:
    """Fill the terminal with the campaign; it is as it was afterwards."""
    from rich.live import Live

    sight = watcher.look()
    if not sight.goes_on:
        return
    picture = Picture(sight, watcher.run.path.resolve().name, interval)
    with _ends_cleanly(), Live(picture, console=console, screen=True, auto_refresh=False) as live:
        live.refresh()
        while picture.sight.goes_on:
            wait(live.refresh, picture, console, _pause(interval, picture.spent))
            began = time.monotonic()
            picture.sight = watcher.look()
            live.refresh()
            picture.spent = time.monotonic() - began


class Picture:
    """A campaign as large as the terminal is when it is drawn."""

    def __init__(self, sight: Sight, name: str, interval: float | None = None) -> None:
        """Take a sight of a run directory of that name, and when the next one follows."""
        self.sight, self.name, self.interval = sight, name, interval
        self.spent = 0.0
        """Seconds that the last look took."""
        self.drawn_for: tuple[int, int] | None = None
        """Columns and rows of the terminal when it was drawn last."""

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """Draw it."""
        self.drawn_for = options.size
        signs = ASCII if options.ascii_only else UNICODE
        page = Page(options.max_width, options.height or options.max_height, signs)
        note = ""
        if self.interval is not None:
            note = f"{time.strftime('%H:%M:%S')}, every {self.interval:g} s; Ctrl-C ends watching"
        yield from frame(self.sight, self.name, page, note)


def wait(redraw: Callable[[], None], picture: Picture, console: "Console", seconds: float) -> None:
    """Wait; a terminal that is not as large as when it was drawn on is drawn anew at once."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if console.size != picture.drawn_for:
            redraw()
        time.sleep(min(NAP, left))


def _pause(interval: float, spent: float) -> float:
    """Give the time until the next look; longer where looking takes long."""
    return max(interval - spent, spent * (1 / LOOKING_SHARE - 1), 0.0)


@contextmanager
def _ends_cleanly() -> Iterator[None]:
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
