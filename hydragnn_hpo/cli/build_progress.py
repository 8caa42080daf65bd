"""Progress of ``dataset build``: a bar on a terminal, lines elsewhere, messages of rank 0 only."""

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import typer

from hydragnn_hpo.data import (
    BuildProgress,
    build_store,
    build_with_ranks,
    work_path,
)
from hydragnn_hpo.errors import ConfigError, HydraError
from hydragnn_hpo.file_records import StoreStats

T = TypeVar("T")

LINE_SECONDS = 10.0
"""Time between two lines where there is no terminal."""


@contextlib.contextmanager
def report_once(comm: Any) -> Iterator[None]:
    """Report an error of all ranks on rank 0 alone.

    The others leave with code 0: with another one mpi4py would abort them all, perhaps before
    rank 0 has printed it.
    """
    try:
        yield
    except HydraError as error:
        if comm is None or comm.rank == 0:
            raise
        raise typer.Exit from error


def build(
    comm: Any, card: Path, out: Path, *, files: Sequence[Path] | None, processes: int | None
) -> StoreStats:
    """Build a store and show its progress.

    Args:
        comm: MPI communicator of all ranks; None for a build in this process.
        card: the card, a TOML file.
        out: the store to write, NAME.bp.
        files: data files to read instead of the card's own; None for those of the card.
        processes: local processes, at least 1; None for one per core. Not with ``comm``.

    Returns:
        The content of the store's ``stats.json``.

    Raises:
        ConfigError: ``processes`` is set for ranks, or not positive.
    """
    if processes is not None and (comm is not None or processes < 1):
        raise ConfigError(
            f"--processes {processes}: give a positive number, or leave it out under mpiexec."
        )
    try:
        with _Screen(quiet=comm is not None and comm.rank > 0) as screen:
            if comm is not None:
                return build_with_ranks(comm, card, out, progress=screen, files=files)
            return build_store(card, out, progress=screen, files=files, processes=processes)
    except (HydraError, KeyboardInterrupt) as error:
        if work_path(out).is_dir() and (comm is None or comm.rank == 0):
            typer.echo(
                f"finished parts stay in {work_path(out)}: run the same command to resume", err=True
            )
        if isinstance(error, KeyboardInterrupt):
            raise typer.Exit(130) from error
        raise


class _Screen(BuildProgress):
    """A bar on a terminal, lines elsewhere, on stderr; use it in a ``with``."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self.quiet = quiet
        self.total: int | None = None
        console = Console(stderr=True)
        lively = console.is_terminal and not quiet
        self.bar = Progress(console=console, transient=True) if lively else None
        self.task = self.bar.add_task("converting structures", total=None) if self.bar else None
        self._shown = time.monotonic()

    def __enter__(self) -> Self:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def begin(self, total: int | None, reused: int) -> None:
        self.total = total
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, total=total)
        if reused:
            self._print(f"resuming an earlier build: {reused}{self._total()} are there")

    def __call__(self, done: int) -> None:
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=done)
        elif time.monotonic() - self._shown >= LINE_SECONDS:
            self._shown = time.monotonic()
            self._print(f"{done}{self._total()} converted")

    def _total(self) -> str:
        return " structures" if self.total is None else f" of {self.total} structures"

    def _print(self, sentence: str) -> None:
        if self.bar is not None:
            self.bar.console.print(sentence)
        elif not self.quiet:
            print(sentence, file=sys.stderr, flush=True)
