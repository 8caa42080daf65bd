"""Build a store with the ranks of an MPI program; every host writes its own part."""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from ase import parallel

from hydragnn_hpo.data.build_folder import (
    exceeds_limit,
    hold_work_folder,
    listing_path,
    remove_work_folder,
    stop_path,
)
from hydragnn_hpo.data.build_local import check_bad_limit, report_begin
from hydragnn_hpo.data.build_merge import (
    StoreLayout,
    WrittenPart,
    finish_store,
    merge_pieces,
    split_windows,
    write_host_part,
)
from hydragnn_hpo.data.build_plan import BuildPlan, make_plan
from hydragnn_hpo.data.convert_pieces import Record, finish_piece
from hydragnn_hpo.data.mpi_ranks import HostGroups, group_by_host
from hydragnn_hpo.data.store_parts import WINDOW, refuse_foreign_folder
from hydragnn_hpo.errors import ConfigError, HydraError, JobError
from hydragnn_hpo.files import whole_folder

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SAID_BY_LAUNCHERS = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
"""Environment variables with the number of ranks, from the mpiexec of MPICH and of Open MPI."""


def find_communicator(environ: Mapping[str, str]) -> Any:
    """Return the communicator of all ranks, or None for a process alone, which imports no MPI.

    Raises:
        ConfigError: there are ranks, but mpi4py cannot be imported.
    """
    told = any(environ.get(name, "1") not in ("", "1") for name in _SAID_BY_LAUNCHERS)
    if "mpi4py" not in sys.modules and not told:
        return None
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ConfigError(
            f"this is one of several MPI ranks, but mpi4py cannot be imported ({error}): "
            "pip install 'hydragnn-hpo[mpi]', or start it without mpiexec."
        ) from error
    return MPI.COMM_WORLD if MPI.COMM_WORLD.size > 1 else None


def build_with_ranks(
    comm: Any,
    card_path: Path,
    out: Path,
    *,
    progress: Callable[[int], None] | None = None,
    files: Sequence[Path] | None = None,
    window: int = WINDOW,
) -> dict[str, Any]:
    """Build the store that ``build_store`` builds; all ranks call it together.

    Arguments, results and errors are those of ``build_store``, on every rank; ``progress`` is told
    on rank 0, the sum when all pieces are finished.
    """
    hosts = group_by_host(comm)
    with _disable_ase_mpi(), ExitStack() as held, ExitStack() as placed:

        def begin() -> tuple[BuildPlan, Path]:
            refuse_foreign_folder(out)
            made = make_plan(card_path, files, window)
            work = held.enter_context(hold_work_folder(out))
            report_begin(progress, made, work)
            return made, work

        plan, work = run_at_root(comm, begin)
        layout = _make_layout(comm, hosts, plan, work, out)
        if comm.rank == 0 and progress is not None:
            progress(layout.total)
        folder = run_at_root(comm, lambda: placed.enter_context(whole_folder(out)))
        shares = run_everywhere(comm, lambda: _write_own_part(hosts, layout, folder, work, plan))

        def end() -> dict[str, Any]:
            stats = finish_store(folder, layout, [share for share in shares if share], plan.card)
            placed.close()
            listing_path(out).unlink(missing_ok=True)
            remove_work_folder(work)
            return stats

        return run_at_root(comm, end)


@contextlib.contextmanager
def _disable_ase_mpi() -> Iterator[None]:
    """Make each rank read by itself: ASE reads on rank 0 and broadcasts wherever it sees mpi4py."""
    before, parallel.world.comm = parallel.world.comm, parallel.DummyMPI()
    try:
        yield
    finally:
        parallel.world.comm = before


def run_at_root(comm: Any, act: Callable[[], T]) -> T:
    """Do something on rank 0 and give all ranks its result, or its error.

    Raises:
        HydraError: it failed on rank 0.
    """
    outcome = _catch_error(comm, act) if comm.rank == 0 else None
    result, error = comm.bcast(outcome)
    if error is not None:
        raise error
    given: T = result
    return given


def run_everywhere(comm: Any, act: Callable[[], T]) -> list[T]:
    """Do something on all ranks; rank 0 has all results, in order, the others none.

    Raises:
        HydraError: it failed somewhere; the error of the lowest rank, on all of them.
    """
    outcomes = comm.gather(_catch_error(comm, act))
    errors = [error for _, error in outcomes or [] if error is not None]
    error = comm.bcast(errors[0] if errors else None)
    if error is not None:
        raise error
    return [result for result, _ in outcomes or []]


def _catch_error(comm: Any, act: Callable[[], T]) -> tuple[T | None, HydraError | None]:
    """Return a result or an error: no rank may leave the others waiting for it."""
    try:
        return act(), None
    except HydraError as error:
        return None, error
    except Exception as error:  # a bug: shown where it happened, and all ranks end
        logger.exception("rank %d", comm.rank)
        return None, JobError(f"MPI rank {comm.rank} failed ({type(error).__name__}: {error}).")


def _make_layout(comm: Any, hosts: HostGroups, plan: BuildPlan, work: Path, out: Path) -> Any:
    """Convert all pieces and lay the store out; the first rank of each host has the layout."""
    found = run_everywhere(comm, lambda: _convert(comm, plan, work))
    made: list[StoreLayout] = []

    def lay_out() -> None:
        records = {number: record for own in found for number, record in own.items()}
        ordered = [records[number] for number in sorted(records)]
        check_bad_limit(plan, ordered, out)
        assert len(ordered) == len(plan.pieces), "a rank has left out a piece"
        made.append(merge_pieces(plan, ordered, work, out))

    run_at_root(comm, lay_out)
    return hosts.leaders.bcast(made[0] if made else None) if hosts.leaders else None


def _convert(comm: Any, plan: BuildPlan, work: Path) -> dict[int, Record]:
    """Finish every piece that is this rank's turn, unless another rank has failed."""
    records: dict[int, Record] = {}
    bad = 0
    try:
        for piece in plan.pieces[comm.rank :: comm.size]:
            if stop_path(work).exists():
                break
            records[piece.number], _ = finish_piece(plan, piece.number, work, lambda _: None)
            bad += len(records[piece.number].bad)
            if plan.total is not None and exceeds_limit(bad, plan.total, plan.card.max_bad):
                stop_path(work).touch()
    except BaseException:
        with contextlib.suppress(OSError):
            stop_path(work).touch()
        raise
    return records


def _write_own_part(
    hosts: HostGroups, layout: StoreLayout, folder: Path, work: Path, plan: BuildPlan
) -> WrittenPart | None:
    """Write this host's part, if this rank leads it and there is something left for it."""
    if not hosts.leaders:
        return None
    shares = split_windows(layout, hosts.total)
    if hosts.number >= len(shares):
        return None
    windows = shares[hosts.number]
    return write_host_part(folder, hosts.number, layout, windows, work=work, card=plan.card)
