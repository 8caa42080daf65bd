"""Build a store from a card: with worker processes of this host, or with the ranks of MPI."""

import contextlib
import json
import logging
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

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
)
from hydragnn_hpo.data.convert_pieces import Progress, Record, finish_piece, read_record
from hydragnn_hpo.data.mpi_ranks import HostGroups, group_by_host
from hydragnn_hpo.data.store_parts import WINDOW, refuse_foreign_folder
from hydragnn_hpo.errors import ConfigError, HydraError, JobError, answer_of
from hydragnn_hpo.files import whole_folder, write_json

_SMALL = 2
"""So few pieces are converted sooner than workers have started."""

_COMMAND = [sys.executable, "-m", "hydragnn_hpo.data.convert_pieces"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_RANK_COUNTS = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
"""Environment variables with the number of ranks, from the mpiexec of MPICH and of Open MPI."""


class BuildProgress:
    """A ``progress`` that is also called once before the first structure."""

    def begin(self, total: int | None, reused: int) -> None:
        """Take note of what there is to do.

        Args:
            total: structures, where all files tell it.
            reused: structures that an earlier, broken build has finished.
        """

    def __call__(self, done: int) -> None:
        """Take note of the number of structures that are done."""


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
        plan: of the build.
        work: its work folder.
        out: the store, for the list of bad structures if they are too many.
        processes: to convert with; by default one per core that this process may use, and this
            process alone for one or two pieces.
        progress: called with the number of structures that are done.

    Raises:
        DataError: a file cannot be read on, or it is certain that too many structures are bad.
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
    """Plan a build and hold its work folder; report to a ``BuildProgress`` what there is to do.

    Args:
        held: holds the work folder until the build has ended.
        card_path: the card.
        out: the store.
        files: read these instead of the card's own files.
        window: most graphs of a window.
        progress: of the build.

    Returns:
        The plan, and the work folder.
    """
    refuse_foreign_folder(out)
    plan = make_plan(card_path, files, window)
    work = held.enter_context(hold_work_folder(out))
    if isinstance(progress, BuildProgress):
        before = [read_record(piece, work) for piece in plan.pieces]
        progress.begin(plan.total, sum(record.read for record in before if record))
    return plan, work


def _check_bad_so_far(plan: BuildPlan, records: Mapping[int, Record], out: Path) -> None:
    """Stop a build as soon as it is certain that too many structures are bad.

    Raises:
        DataError: it is certain.
    """
    if plan.total is not None:
        bad = [one for number in sorted(records) for one in records[number].bad]
        check_bad_structures(bad, plan.total, plan.card.max_bad, out)


def _finish_pieces(
    plan: BuildPlan, work: Path, processes: int, progress: Progress
) -> Generator[tuple[int, Record]]:
    """Finish pieces, here or in workers, and yield each one's number and record.

    Args:
        plan: of the build.
        work: its work folder.
        processes: to convert with; 1 converts in this one.
        progress: called with the number of structures that were read since the last call.
    """
    processes = max(1, min(processes, len(plan.pieces)))
    if processes == 1:
        for piece in plan.pieces:
            yield piece.number, finish_piece(plan, piece.number, work, progress)
        return
    file = work / "plan.json"
    write_json(file, plan.to_json())
    numbers: queue.SimpleQueue[int] = queue.SimpleQueue()
    messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    # What is read whole takes longest, so it comes first.
    for piece in sorted(plan.pieces, key=lambda piece: piece.stop is not None):
        numbers.put(piece.number)
    with ExitStack() as stack:
        for _ in range(processes):
            stack.enter_context(_start_worker(file, numbers, messages))
        left = len(plan.pieces)
        while left:
            message = messages.get()
            if "progress" in message:
                progress(message["progress"])
            if "done" in message:
                left -= 1
                record = read_record(plan.pieces[message["done"]], work)
                assert record is not None, f"piece {message['done']}: there is no record of it"
                yield message["done"], record
            elif "progress" not in message:
                raise _worker_error(plan, message)


@contextlib.contextmanager
def _start_worker(
    file: Path,
    numbers: "queue.SimpleQueue[int]",
    messages: "queue.SimpleQueue[dict[str, Any]]",
) -> Iterator[None]:
    """Run a worker process and a thread that hands it pieces; at the end both are gone.

    Args:
        file: the plan in the work folder.
        numbers: of the pieces that are left.
        messages: gets what the worker sends, see ``convert_pieces.main``.
    """
    child = subprocess.Popen(
        [*_COMMAND, str(file.absolute())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        process_group=0,
        # One thread each: they share the cores, and LAPACK's results must not depend on it.
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
    messages: "queue.SimpleQueue[dict[str, Any]]",
) -> None:
    """Hand pieces to one worker until there are no more or it ends, and pass its messages on.

    Args:
        child: the worker.
        numbers: of the pieces that are left.
        messages: gets its messages; ``lost`` (a piece) and ``code`` (of the process) if it ends.
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
                message = json.loads(line)
                messages.put(message)
                if set(message) != {"progress"}:
                    break
            else:
                messages.put({"lost": number, "code": child.wait()})
                return


def _worker_error(plan: BuildPlan, message: Mapping[str, Any]) -> Exception:
    """Return the error that a message of a worker tells of."""
    if "failed" in message:
        error: HydraError = getattr(errors, message["failed"])(message["sentence"])
        return error
    if "bug" in message:
        return RuntimeError(f"in a worker:\n{message['bug']}")
    piece, code = plan.pieces[message["lost"]], message["code"]
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return JobError(
        f"{piece.path}: the process that converted structures from {piece.start + 1} on {how}; "
        "if memory ran out take fewer processes, and start again: finished pieces are kept."
    )


def build_store(
    card_path: Path,
    out: Path,
    *,
    progress: Callable[[int], None] | None = None,
    files: Sequence[Path] | None = None,
    processes: int | None = None,
    window: int = WINDOW,
) -> dict[str, Any]:
    """Read the files of a card, check everything, and write the store whole or not at all.

    A broken build is gone on with. Bad structures are set aside, up to the card's limit.

    Args:
        card_path: the card (TOML).
        out: the store to write, ``NAME.bp``; an older store there is replaced.
        progress: called with the number of structures that are done, see ``BuildProgress``.
        files: read these instead of the card's own files; no checksum is known for them.
        processes: to convert with, one per core if left out; the store does not depend on it.
        window: most graphs of a window.

    Returns:
        The statistics, which are also in ``stats.json``.

    Raises:
        HydraError: the card, a file or too many structures are wrong, or the disk is full.
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


def job_main(spec: Mapping[str, Any]) -> int:
    """Build a store as a job: the statistics, or the error's sentence, go to a file.

    Args:
        spec: ``card`` and ``out``, paths; ``answer``, the JSON file to write; ``processes`` to
            convert with, 1 if left out: a rank has one core.

    Returns:
        0, also where the answer is ``{"error": sentence}``.
    """
    answer: dict[str, Any]
    try:
        processes = int(spec.get("processes", 1))
        answer = build_store(Path(spec["card"]), Path(spec["out"]), processes=processes)
    except HydraError as error:
        answer = answer_of(error)
    write_json(Path(spec["answer"]), answer)
    return 0


def find_communicator(environ: Mapping[str, str]) -> Any:
    """Return the communicator of all ranks, or None for a process alone, which imports no MPI.

    Raises:
        ConfigError: there are ranks, but mpi4py cannot be imported.
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
) -> dict[str, Any]:
    """Build the store that ``build_store`` builds; all ranks call it together.

    Args:
        comm: of mpi4py.
        card_path: the card (TOML).
        out: the store to write.
        progress: called on rank 0, with the sum when all pieces are finished.
        files: read these instead of the card's own files.
        window: most graphs of a window.

    Returns:
        The statistics, on every rank; errors are those of ``build_store``.
    """
    hosts = group_by_host(comm)
    with _disable_ase_mpi(), ExitStack() as held, ExitStack() as placed:
        begin = partial(_begin, held, card_path, out, files, window, progress)
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
    """Do something on rank 0; return its result, or raise its error, on all ranks.

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
        _check_bad_so_far(plan, records, out)
        assert len(records) == len(plan.pieces), "a rank has left out a piece"
        ordered = [records[piece.number] for piece in plan.pieces]
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
    """Write this host's part, if this rank leads it and there is something left for it."""
    if not hosts.leaders:
        return None
    shares = split_windows(layout, hosts.total)
    if hosts.number >= len(shares):
        return None
    windows = shares[hosts.number]
    return write_host_part(folder, hosts.number, layout, windows, work=work, card=plan.card)
