"""Progress of long work on stderr: a bar on a terminal, lines elsewhere."""

import sys
import time
from typing import Self

LINE_SECONDS = 10.0
"""Shortest time between two lines where there is no terminal."""


class ProgressDisplay:
    """How much of something is done; use it as a context manager."""

    def __init__(self, what: str, *, total: int | None = None, quiet: bool = False) -> None:
        """Choose between a bar and lines.

        Args:
            what: what is being done, such as ``converting structures``.
            total: how many there are; None if unknown.
            quiet: show nothing.
        """
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )  # fmt: skip

        # Not rich's own guess: Jupyter sets FORCE_COLOR for what a cell starts, into a pipe.
        console = Console(stderr=True, force_terminal=sys.stderr.isatty())
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TimeRemainingColumn(), TextColumn("{task.fields[note]}"),
        )  # fmt: skip
        lively = console.is_terminal and not quiet
        self.bar = Progress(*columns, console=console, transient=True) if lively else None
        self.task = self.bar.add_task(what, total=total, note="") if self.bar else None
        self.what, self.total, self.quiet = what, total, quiet
        self._last_line = time.monotonic()

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def begin(self, what: str, total: int | None) -> None:
        """Go on to other work, or to the same work whose amount is now known."""
        self.what, self.total = what, total
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, description=what, total=total, completed=0)

    def show_work(self, what: str, done: int, total: int) -> None:
        """Show how much is done of some work, whose amount may grow.

        Args:
            what: what is being done; other work than before begins at zero.
            done: how many.
            total: how many there are so far.
        """
        if what != self.what:
            self.begin(what, total)
        self.total = total
        self.show(done)

    def show(self, done: int, note: str = "") -> None:
        """Show how much is done; where there is no terminal, now and then.

        Args:
            done: how many, of ``total``.
            note: what else to say, such as a rate.
        """
        now = time.monotonic()
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=done, total=self.total, note=note)
        elif now - self._last_line >= LINE_SECONDS:
            self._last_line = now
            of = "" if self.total is None else f" of {self.total}"
            self.print(f"{self.what}: {done}{of}{', ' * bool(note)}{note}")

    def print(self, sentence: str) -> None:
        """Print a line, above the bar if there is one."""
        if self.bar is not None:
            self.bar.console.print(sentence, highlight=False, markup=False)
        elif not self.quiet:
            print(sentence, file=sys.stderr, flush=True)
