"""Build a store from a card, with worker processes of this host or with the ranks of MPI."""

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from ase import parallel

from hydragnn_hpo import errors
from hydragnn_hpo.data.build_merge import (
    StoreLayout,
    WrittenPart,
    finish_store,
    merge_pieces,
    split_windows,
    write_host_part,
)
from hydragnn_hpo.data.build_plan import (
    BuildPlan,
    check_bad_structures,
    exceeds_limit,
    hold_work_folder,
    listing_path,
    make_plan,
    remove_work_folder,
    stop_path,
    write_plan,
)
from hydragnn_hpo.data.convert_pieces import (
    PieceDone,
    PieceFailed,
    PieceProgress,
    Progress,
    Record,
    WorkerBug,
    WorkerMessage,
    finish_piece,
    parse_message,
    read_record,
)
from hydragnn_hpo.data.mpi_ranks import HostGroups, group_by_host, run_at_root, run_or_fail_together
from hydragnn_hpo.data.store_parts import WINDOW, refuse_foreign_folder
from hydragnn_hpo.errors import ConfigError, HydraError, JobError, answer_of
from hydragnn_hpo.file_records import StoreStats
from hydragnn_hpo.files import whole_folder, write_json

_SMALL = 2
"""Builds of up to this many pieces use no workers, which would take longer to start."""

_COMMAND = [sys.executable, "-m", "hydragnn_hpo.data.convert_pieces"]

_RANK_COUNTS = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
"""Environment variables with the number of ranks, from the mpiexec of MPICH and of Open MPI."""


class BuildProgress:
    """A callback for ``progress`` that also receives the number of structures of the build."""

    def begin(self, total: int | None, reused: int) -> None:
        """Receive the size of the build, once, before the first structure is converted.

        Args:
            total: number of structures; None where a file must be read to count them.
            reused: number of structures that an earlier, interrupted build has finished.
        """

    def __call__(self, done: int) -> None:
        """Receive the number of structures that are finished, reused ones included."""


def _convert_all(
    plan: BuildPlan,
    work: Path,
    out: Path,
    *,
    processes: int | None,
    progress: Callable[[int], None] | None,
) -> list[Record]:
    """Finish all pieces of a build, and return their records in order.

    Args:
        plan: plan of the build.
        work: its work folder.
        out: the store, for the list of bad structures if they are too many.
        processes: worker processes; None means one per core that this process may use, and none
            for up to ``_SMALL`` pieces.
        progress: called with the number of structures that are finished.

    Raises:
        DataError: a file cannot be read further, or too many structures are bad.
        StorageError: the disk is full.
        JobError: a worker was killed.
    """
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done)

    if processes is None:
        processes = 1 if len(plan.pieces) <= _SMALL else len(os.sched_getaffinity(0))
    records: dict[int, Record] = {}
    with contextlib.closing(_finish_pieces(plan, work, processes, count)) as finished:
        for number, record in finished:
            records[number] = record
            _check_bad_so_far(plan, records, out)
    return [records[piece.number] for piece in plan.pieces]


def _begin(
    held: ExitStack,
    card_path: Path,
    out: Path,
    files: Sequence[Path] | None,
    window: int,
    progress: Callable[[int], None] | None,
) -> tuple[BuildPlan, Path]:
    """Plan a build, lock its work folder, and report its size to a ``BuildProgress``.

    Args:
        held: releases the work folder when it is closed.
        card_path: path of the card.
        out: the store.
        files: files to read instead of the card's own; None reads the card's.
        window: most graphs of a window.
        progress: progress of the build.

    Returns:
        The plan, and the work folder.
    """
    refuse_foreign_folder(out)
    plan = make_plan(card_path, files, window)
    work = held.enter_context(hold_work_folder(out))
    if isinstance(progress, BuildProgress):
        records = [read_record(piece, work) for piece in plan.pieces]
        progress.begin(plan.total, sum(record.read for record in records if record))
    return plan, work


def _check_bad_so_far(plan: BuildPlan, records: Mapping[int, Record], out: Path) -> None:
    """Stop a build as soon as the bad structures known so far exceed the limit.

    Args:
        plan: plan of the build.
        records: outcomes of the finished pieces by number.
        out: the store, for the list of bad structures.

    Raises:
        DataError: too many structures are bad.
    """
    if plan.total is not None:
        bad = [one for number in sorted(records) for one in records[number].bad]
        check_bad_structures(bad, plan.total, plan.card.max_bad, out)


def _finish_pieces(
    plan: BuildPlan, work: Path, processes: int, progress: Progress
) -> Generator[tuple[int, Record]]:
    """Finish pieces, here or in workers, and yield the number and record of each.

    Args:
        plan: plan of the build.
        work: its work folder.
        processes: worker processes; 1 converts in this process.
        progress: called with the number of structures that were read since the last call.
    """
    processes = max(1, min(processes, len(plan.pieces)))
    if processes == 1:
        for piece in plan.pieces:
            yield piece.number, finish_piece(plan, piece.number, work, progress)
        return
    file = work / "plan.json"
    write_plan(file, plan)
    numbers: queue.SimpleQueue[int] = queue.SimpleQueue()
    messages: queue.SimpleQueue[WorkerMessage | WorkerLost] = queue.SimpleQueue()
    # Files that are one piece take longest, so they come first.
    for piece in sorted(plan.pieces, key=lambda piece: piece.stop is not None):
        numbers.put(piece.number)
    with ExitStack() as stack:
        for _ in range(processes):
            stack.enter_context(_start_worker(file, numbers, messages))
        left = len(plan.pieces)
        while left:
            message = messages.get()
            if not isinstance(message, PieceProgress | PieceDone):
                raise _worker_error(plan, message)
            progress(message.structures)
            if isinstance(message, PieceDone):
                left -= 1
                record = read_record(plan.pieces[message.piece], work)
                assert record is not None, f"piece {message.piece}: there is no record of it"
                yield message.piece, record


@dataclass(frozen=True)
class WorkerLost:
    """A worker has ended without finishing its piece."""

    piece: int
    """Number of the piece."""
    code: int
    """Exit code of the process; -N where signal N has killed it."""


@contextlib.contextmanager
def _start_worker(
    file: Path,
    numbers: "queue.SimpleQueue[int]",
    messages: "queue.SimpleQueue[WorkerMessage | WorkerLost]",
) -> Iterator[None]:
    """Run a worker process and the thread that sends it pieces; on exit, end both.

    Args:
        file: file of the plan in the work folder.
        numbers: numbers of the pieces that no worker has yet.
        messages: receives the messages of the worker.
    """
    child = subprocess.Popen(
        [*_COMMAND, str(file.absolute())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        process_group=0,
        # One thread each: workers share the cores, and LAPACK results depend on thread counts.
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    driver = threading.Thread(target=_drive_worker, args=(child, numbers, messages), daemon=True)
    driver.start()
    try:
        yield
    finally:
        child.kill()
        driver.join()
        with contextlib.suppress(BrokenPipeError), child:  # waits, and closes its pipes
            pass


def _drive_worker(
    child: "subprocess.Popen[str]",
    numbers: "queue.SimpleQueue[int]",
    messages: "queue.SimpleQueue[WorkerMessage | WorkerLost]",
) -> None:
    """Send pieces to one worker until none is left or it ends, and forward its messages.

    Args:
        child: the worker.
        numbers: numbers of the pieces that no worker has yet.
        messages: receives its messages, and ``WorkerLost`` if it ends within a piece.
    """
    assert child.stdin is not None
    assert child.stdout is not None
    with contextlib.suppress(queue.Empty):
        while True:
            number = numbers.get_nowait()
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(f"{number}\n")
                child.stdin.flush()
            for line in child.stdout:
                message = parse_message(line)
                messages.put(message)
                if not isinstance(message, PieceProgress):
                    break
            else:
                messages.put(WorkerLost(number, child.wait()))
                return


def _worker_error(plan: BuildPlan, message: PieceFailed | WorkerBug | WorkerLost) -> Exception:
    """Return the error that a worker has reported, or has ended with."""
    if isinstance(message, PieceFailed):
        error: HydraError = getattr(errors, message.error)(message.sentence)
        return error
    if isinstance(message, WorkerBug):
        return RuntimeError(f"in a worker:\n{message.traceback}")
    piece = plan.pieces[message.piece]
    code = message.code
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return JobError(
        f"{piece.path}: the process that converted structures from {piece.start} on {how}; "
        "if memory ran out, take fewer processes, and start again: finished pieces are kept."
    )


def build_store(
    card_path: Path,
    out: Path,
    *,
    progress: Callable[[int], None] | None = None,
    files: Sequence[Path] | None = None,
    processes: int | None = None,
    window: int = WINDOW,
) -> StoreStats:
    """Build the store of a card, whole or not at all; an interrupted build is continued.

    Args:
        card_path: path of the card (TOML).
        out: store to write, ``NAME.bp``; an older store there is replaced.
        progress: called with the number of structures that are finished, see ``BuildProgress``.
        files: files to read instead of the card's own, without a checksum; None reads the card's.
        processes: worker processes; None means one per core. The store is the same for any number.
        window: most graphs of a window.

    Returns:
        The statistics of the store, the content of ``stats.json``.

    Raises:
        ConfigError: the card is wrong.
        DataError: a file is missing, damaged or altered, or too many structures are bad.
        JobError: a worker process was killed.
        StorageError: the disk is full, another build of this store runs, or ``out`` is no store.
    """
    with ExitStack() as held:
        plan, work = _begin(held, card_path, out, files, window, progress)
        records = _convert_all(plan, work, out, processes=processes, progress=progress)
        layout = merge_pieces(plan, records, work, out)
        with whole_folder(out) as folder:
            (windows,) = split_windows(layout, 1)
            share = write_host_part(folder, 0, layout, windows, work=work, card=plan.card)
            stats = finish_store(folder, layout, [share], plan.card)
        listing_path(out).unlink(missing_ok=True)
        remove_work_folder(work)
    return stats


class BuildJob(TypedDict):
    """Input of a job that builds a store."""

    card: str
    """Path of the card."""
    out: str
    """Store to write."""
    answer: str
    """JSON file to write: the statistics, or ``{"error": sentence}``."""
    processes: NotRequired[int]
    """Worker processes; 1 if left out, as a rank has one core."""


def job_main(spec: BuildJob) -> int:
    """Build a store as a job, and write the statistics, or the text of the error, to a file.

    Returns:
        0, even where the build has failed.
    """
    answer: StoreStats | dict[str, Any]
    try:
        processes = int(spec.get("processes", 1))
        answer = build_store(Path(spec["card"]), Path(spec["out"]), processes=processes)
    except HydraError as error:
        answer = answer_of(error)
    write_json(Path(spec["answer"]), answer)
    return 0


def find_communicator(environ: Mapping[str, str]) -> Any:
    """Return the communicator of all MPI ranks; None, without importing MPI, for one process.

    Raises:
        ConfigError: there are several ranks, but mpi4py cannot be imported.
    """
    several = any(environ.get(name, "1") not in ("", "1") for name in _RANK_COUNTS)
    if "mpi4py" not in sys.modules and not several:
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
) -> StoreStats:
    """Build the store of ``build_store``; collective, and all ranks raise its errors.

    Args:
        comm: communicator of mpi4py.
        card_path: path of the card (TOML).
        out: store to write.
        progress: called on rank 0, once, with the number of structures when all are finished.
        files: files to read instead of the card's own; None reads the card's.
        window: most graphs of a window.

    Returns:
        The statistics of the store, on every rank.
    """
    hosts = group_by_host(comm)
    with _disable_ase_mpi(), ExitStack() as held, ExitStack() as placed:
        begin = partial(_begin, held, card_path, out, files, window, progress)
        plan, work = run_at_root(comm, begin)
        layout = _make_layout(comm, hosts, plan, work, out)
        if comm.rank == 0 and progress is not None:
            progress(layout.total)
        folder = run_at_root(comm, lambda: placed.enter_context(whole_folder(out)))
        share = run_or_fail_together(
            comm, lambda: _write_own_part(hosts, layout, folder, work, plan)
        )
        shares = comm.gather(share) or []

        def finish() -> StoreStats:
            stats = finish_store(folder, layout, [share for share in shares if share], plan.card)
            placed.close()
            listing_path(out).unlink(missing_ok=True)
            remove_work_folder(work)
            return stats

        return run_at_root(comm, finish)


@contextlib.contextmanager
def _disable_ase_mpi() -> Iterator[None]:
    """Make each rank read its own files: where mpi4py is loaded, ASE reads on rank 0 for all."""
    before, parallel.world.comm = parallel.world.comm, parallel.DummyMPI()
    try:
        yield
    finally:
        parallel.world.comm = before


def _make_layout(comm: Any, hosts: HostGroups, plan: BuildPlan, work: Path, out: Path) -> Any:
    """Convert all pieces, and lay the store out on rank 0.

    Returns:
        The layout on the leading rank of each host, None on the others.
    """
    converted = comm.gather(run_or_fail_together(comm, lambda: _convert(comm, plan, work))) or []
    layouts: list[StoreLayout] = []

    def lay_out() -> None:
        records = {number: record for own in converted for number, record in own.items()}
        _check_bad_so_far(plan, records, out)
        assert len(records) == len(plan.pieces), "a rank has left out a piece"
        ordered = [records[piece.number] for piece in plan.pieces]
        layouts.append(merge_pieces(plan, ordered, work, out))

    # ``lay_out`` returns nothing, because only the leaders need the layout, which is large.
    run_at_root(comm, lay_out)
    return hosts.leaders.bcast(layouts[0] if layouts else None) if hosts.leaders else None


def _convert(comm: Any, plan: BuildPlan, work: Path) -> dict[int, Record]:
    """Finish the pieces of this rank, unless another rank fails; return records by number."""
    records: dict[int, Record] = {}
    bad = 0
    try:
        for piece in plan.pieces[comm.rank :: comm.size]:
            if stop_path(work).exists():
                break
            records[piece.number] = finish_piece(plan, piece.number, work, lambda _: None)
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
    """Write this host's part if this rank leads the host; None where there is none to write."""
    if not hosts.leaders:
        return None
    shares = split_windows(layout, hosts.total)
    if hosts.number >= len(shares):
        return None
    windows = shares[hosts.number]
    return write_host_part(folder, hosts.number, layout, windows, work=work, card=plan.card)
