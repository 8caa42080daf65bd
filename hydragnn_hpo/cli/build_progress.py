"""Progress of ``dataset build``: a bar on a terminal, lines elsewhere, messages of rank 0 only."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import typer

from hydragnn_hpo.cli.progress import ProgressDisplay
from hydragnn_hpo.data.build_plan import work_path
from hydragnn_hpo.data.store_builder import BuildProgress, build_store, build_with_ranks
from hydragnn_hpo.errors import ConfigError, HydraError
from hydragnn_hpo.file_records import StoreStats

T = TypeVar("T")

CONVERTING = "converting structures"


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
    """Shows the progress of a build; use it in a ``with``."""

    def __init__(self, quiet: bool) -> None:
        self._display = ProgressDisplay(CONVERTING, quiet=quiet)

    def __enter__(self) -> Self:
        self._display.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._display.__exit__(*error)

    def begin(self, total: int | None, reused: int) -> None:
        self._display.begin(CONVERTING, total)
        if reused:
            of = "" if total is None else f" of {total}"
            self._display.print(f"resuming an earlier build: {reused}{of} structures are there")

    def __call__(self, done: int) -> None:
        self._display.show(done)
