"""Build a store from a card on this host: worker processes, and the same as a job of a campaign."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from hydragnn_hpo import errors
from hydragnn_hpo.data.build_folder import (
    BadStructure,
    exceeds_limit,
    hold_work_folder,
    listing_path,
    refuse_bad_structures,
    remove_work_folder,
)
from hydragnn_hpo.data.build_merge import finish_store, merge_pieces, split_windows, write_host_part
from hydragnn_hpo.data.build_plan import BuildPlan, make_plan
from hydragnn_hpo.data.convert_pieces import Record, Tell, finish_piece, read_record
from hydragnn_hpo.data.store_parts import WINDOW, refuse_foreign_folder
from hydragnn_hpo.errors import HydraError, JobError, answer_of
from hydragnn_hpo.files import whole_folder, write_json

_SMALL = 2
"""So few pieces are converted sooner than workers have started."""

_COMMAND = [sys.executable, "-m", "hydragnn_hpo.data.build_worker"]


class BuildProgress:
    """A ``progress`` that also wants to know, once, what there is to do."""

    def begin(self, total: int | None, reused: int) -> None:
        """Be told before the first structure is looked at.

        Args:
            total: structures, where all files tell it.
            reused: structures that an earlier, broken build has finished.
        """

    def __call__(self, done: int) -> None:
        """Be told how many structures are done."""


def convert_all(
    plan: BuildPlan,
    work: Path,
    out: Path,
    *,
    processes: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Record]:
    """Finish all pieces of a build.

    Args:
        plan: of the build.
        work: its work folder.
        out: the store, for the list of bad structures if they are too many.
        processes: to convert with; by default one per core that this process may use, and this
            process alone for one or two pieces.
        progress: told how many structures are done.

    Raises:
        DataError: a file cannot be read on, or it is certain that too many structures are bad.
        StorageError: the disk is full.
        JobError: a worker was killed.
    """
    done = 0

    def tell(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done)

    report_begin(progress, plan, work)
    count = _count_processes(len(plan.pieces), processes)
    records: dict[int, Record] = {}
    for number, record in _finish_pieces(plan, work, count, tell):
        records[number] = record
        check_bad_limit(plan, [records[key] for key in sorted(records)], out)
    return [records[number] for number in range(len(plan.pieces))]


def report_begin(progress: Callable[[int], None] | None, plan: BuildPlan, work: Path) -> None:
    """Report to a ``BuildProgress`` what there is to do."""
    if isinstance(progress, BuildProgress):
        before = [read_record(piece, work) for piece in plan.pieces]
        progress.begin(plan.total, sum(record.read for record in before if record))


def check_bad_limit(plan: BuildPlan, records: Iterable[Record], out: Path) -> None:
    """Stop a build as soon as it is certain that too many structures are bad.

    Raises:
        DataError: it is certain.
    """
    bad: list[BadStructure] = [one for record in records for one in record.bad]
    if plan.total is not None and exceeds_limit(len(bad), plan.total, plan.card.max_bad):
        refuse_bad_structures(bad, plan.total, plan.card.max_bad, out)


def _count_processes(pieces: int, processes: int | None) -> int:
    """Return the number of processes; never more than there are pieces."""
    if processes is None:
        processes = 1 if pieces <= _SMALL else len(os.sched_getaffinity(0))
    return max(1, min(processes, pieces))


def _finish_pieces(
    plan: BuildPlan, work: Path, count: int, tell: Tell
) -> Iterator[tuple[int, Record]]:
    """Finish pieces, here or in workers, and give each one's record."""
    if count == 1:
        for piece in plan.pieces:
            yield piece.number, finish_piece(plan, piece.number, work, tell)[0]
        return
    with _Workers(plan, work, count) as workers:
        for number in workers.finished(tell):
            record = read_record(plan.pieces[number], work)
            assert record is not None, f"piece {number}: its worker has written no record"
            yield number, record


class _Workers:
    """Some child processes; use it in a ``with``."""

    def __init__(self, plan: BuildPlan, work: Path, count: int) -> None:
        self.plan = plan
        self._todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        # What is read whole takes longest, so it comes first.
        for piece in sorted(plan.pieces, key=lambda piece: piece.stop is not None):
            self._todo.put(piece.number)
        self._news: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        file = work / "plan.json"
        write_json(file, plan.to_json())
        self._command = [*_COMMAND, str(file.absolute())]
        self._count, self._children = count, list[subprocess.Popen[str]]()
        self._drivers: list[threading.Thread] = []

    def __enter__(self) -> Self:
        try:
            for _ in range(self._count):
                self._children.append(self._start())
        except BaseException:
            self.__exit__()
            raise
        for child in self._children:
            driver = threading.Thread(target=self._drive, args=(child,), daemon=True)
            driver.start()
            self._drivers.append(driver)
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.kill()
        for driver in self._drivers:
            driver.join()
        for child in self._children:
            with contextlib.suppress(BrokenPipeError), child:  # waits, and closes its pipes
                pass

    def finished(self, tell: Tell) -> Iterator[int]:
        """Return the numbers of pieces as they are finished."""
        left = len(self.plan.pieces)
        while left:
            news = self._news.get()
            if "told" in news:
                tell(news["told"])
            elif "done" in news:
                left -= 1
                yield news["done"]
            elif "failed" in news:
                raise getattr(errors, news["failed"])(news["sentence"])
            elif "bug" in news:
                raise RuntimeError(f"in a worker:\n{news['bug']}")
            else:
                raise self._lost(news["lost"], news["code"])

    def _start(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            process_group=0,
            # One thread each: they share the cores, and LAPACK's results must not depend on it.
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )

    def _drive(self, child: "subprocess.Popen[str]") -> None:
        """Hand pieces to one worker until there are no more, and pass on what it says."""
        assert child.stdin is not None
        assert child.stdout is not None
        with contextlib.suppress(queue.Empty):
            while True:
                number = self._todo.get_nowait()
                with contextlib.suppress(BrokenPipeError):
                    child.stdin.write(f"{number}\n")
                    child.stdin.flush()
                if not self._hear(child.stdout):
                    self._news.put({"lost": number, "code": child.wait()})
                    return

    def _hear(self, lines: Iterable[str]) -> bool:
        """Pass on what a worker says about a piece; False if it falls silent before the end."""
        for line in lines:
            news = json.loads(line)
            self._news.put(news)
            if "told" not in news:
                return True
        return False

    def _lost(self, number: int, code: int) -> JobError:
        piece = self.plan.pieces[number]
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
        progress: told after every structure how many are done; a ``Watch`` is told more.
        files: read these instead of the card's own files; no checksum is known for them.
        processes: to convert with, see ``convert_all``. The store does not depend on it.
        window: most graphs of a window.

    Returns:
        The statistics, which are also in ``stats.json``.

    Raises:
        HydraError: the card, a file or too many structures are wrong, or the disk is full.
    """
    refuse_foreign_folder(out)
    plan = make_plan(card_path, files, window)
    with hold_work_folder(out) as work:
        records = convert_all(plan, work, out, processes=processes, progress=progress)
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
