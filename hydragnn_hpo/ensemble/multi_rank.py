"""Who is at work on what: claims that end with those who made them.

Every rank renews the time stamp of a file of its own while it lives. A claim is a file that one
rank alone can create; once its owner is gone the next number of the same claim is free. Stamps
are compared with our own stamp, not with a clock. Nothing depends on claims but time: two ranks
on the same piece write the same bytes.
"""

import contextlib
import json
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, Self

import torch

from hydragnn_hpo import log
from hydragnn_hpo.ensemble.output_parts import ChunkId, PartFolder, PartHeader
from hydragnn_hpo.ensemble.predict_file import PredictOutcome, PredictPipeline, PredictRequest
from hydragnn_hpo.errors import HydraError, JobError, StorageError
from hydragnn_hpo.files import passes, read_json, storage, write_json
from hydragnn_hpo.launching.ranks.cores import THREADS
from hydragnn_hpo.launching.ranks.place import DEVICE

LEASE_SECONDS = 60.0
"""A rank of another host that has not shown for so long is gone."""

MOST_DEATHS = 3
"""So many ranks may end while they are at work on a piece; then nobody tries again."""

_RANK = "rank"

_BEATS = 6
"""Renewals per lease."""


class ChunkClaims:
    """One rank's view of a folder of claims; use it in a ``with``."""

    def __init__(self, folder: Path, *, lease_seconds: float = LEASE_SECONDS) -> None:
        """Take the folder; it is made if need be, its parent is not.

        Args:
            folder: that all ranks see.
            lease_seconds: how long others wait for a rank that does not show.
        """
        self._folder, self._lease = folder, lease_seconds
        self._token = secrets.token_hex(8)
        self._own = self._of(self._token)
        self._left = threading.Event()
        self._beating = threading.Thread(target=self._beat, daemon=True, name="claims")

    def __enter__(self) -> Self:
        """Show that we are here.

        Raises:
            StorageError: the folder cannot be written.
        """
        with storage(self._folder):
            self._folder.mkdir(exist_ok=True)
            self._own.write_text(json.dumps(identity(os.getpid())))
        self._beating.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave: what we had claimed and not dropped is free at once."""
        self._left.set()
        self._beating.join()
        with contextlib.suppress(OSError):
            self._own.unlink(missing_ok=True)

    def take(self, name: str) -> bool:
        """Claim something, unless somebody alive has it or it has ended too many.

        Raises:
            StorageError: the folder cannot be written.
        """
        for deaths in range(MOST_DEATHS):
            if self._create(self._claim(name, deaths)):
                return True
            if self._is_held(self._claim(name, deaths)):
                return False
        return False

    def drop(self, name: str) -> None:
        """Give something back that is done, or not there; its deaths are forgotten."""
        for deaths in reversed(range(MOST_DEATHS)):
            with contextlib.suppress(OSError):
                self._claim(name, deaths).unlink(missing_ok=True)

    def is_lost(self, name: str) -> bool:
        """Tell whether so many have ended at this that nobody tries again."""
        last = self._claim(name, MOST_DEATHS - 1)
        return last.exists() and not self._is_held(last)

    def others(self) -> int:
        """Count the other ranks that are here and alive."""
        return sum(self._is_alive(token) for token in self._tokens() if token != self._token)

    def forget_dead(self) -> None:
        """Begin a new life: what ranks of an earlier one have ended at may be tried again.

        For whoever starts ranks, or the first of them.
        """
        for path in list(self._folder.iterdir()):
            if path.stem != _RANK and not self._is_held(path):
                path.unlink(missing_ok=True)
        for token in self._tokens():
            if not self._is_alive(token):
                self._of(token).unlink(missing_ok=True)

    def _tokens(self) -> list[str]:
        return [path.suffix.removeprefix(".") for path in self._folder.glob(f"{_RANK}.*")]

    def _create(self, path: Path) -> bool:
        with storage(path):
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                return False
            with os.fdopen(descriptor, "w") as file:
                file.write(self._token)
        return True

    def _is_held(self, claim: Path) -> bool:
        """Tell whether a claim's owner lives; one that is being written counts as such."""
        try:
            token = claim.read_text()
            if not token:
                return self._is_recent(claim)
        except OSError:  # dropped this moment
            return True
        return self._is_alive(token)

    def _is_alive(self, token: str) -> bool:
        path = self._of(token)
        try:
            who: dict[str, Any] = json.loads(path.read_text() or "{}")
        except (OSError, ValueError):
            return False
        if who and who["place"] == _place():
            return identity(who["pid"]) == who
        return self._is_recent(path)

    def _is_recent(self, path: Path) -> bool:
        """Compare with our own stamp, which the same file server gives."""
        try:
            self._renew()
            return self._own.stat().st_mtime - path.stat().st_mtime < self._lease
        except OSError:
            return False

    def _beat(self) -> None:
        while not self._left.wait(self._lease / _BEATS):
            with contextlib.suppress(OSError):  # the next beat may find the folder again
                self._renew()

    def _renew(self) -> None:
        os.utime(self._own)

    def _of(self, token: str) -> Path:
        return self._folder / f"{_RANK}.{token}"

    def _claim(self, name: str, deaths: int) -> Path:
        return self._folder / f"{name}.{deaths}"


def identity(pid: int) -> dict[str, Any]:
    """Say which process of which host a number means; nothing of one that is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return {}
    if stat[0] in b"ZX":
        return {}
    return {"pid": pid, "born": int(stat[19]), "place": _place()}


def _place() -> str:
    """Name this host and its table of processes: containers may have tables of their own."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}/{boot}/{os.readlink('/proc/self/ns/pid')}"


LOOK_SECONDS = 0.2
MOST_LOOK_SECONDS = 2.0
"""Between two looks at pieces that others are at: short at first, then longer."""


class Work(Protocol):
    """What is shared: pieces of lots, see ``streaming.lots``."""

    @property
    def lots(self) -> int:
        """How many lots there are."""

    def header(self, piece: ChunkId) -> PartHeader | None:
        """Say what became of a piece; None while it is not done."""

    def finish(self, piece: ChunkId) -> PartHeader:
        """Predict a piece and keep the result; one behind its lot's end is empty and the last."""


class Share:
    """Goes through the pieces in their order, so that a file is read once from its beginning."""

    def __init__(self, work: Work, claims: ChunkClaims) -> None:
        """Begin with nothing known.

        Args:
            work: what is to be done.
            claims: ours, entered.
        """
        self._work, self._claims = work, claims
        self._done: set[ChunkId] = set()
        self._ends: dict[int, int] = {}

    def do_all(self, pause: Callable[[float], None] = time.sleep) -> list[ChunkId]:
        """Do what is to be done, wait for the others, and do what they leave undone.

        Returns:
            Pieces at which too many ranks have ended, so that nobody tries again.
        """
        wait = LOOK_SECONDS
        while True:
            before = len(self._done)
            waits, lost = self._go_through()
            if not waits:
                return lost
            wait = LOOK_SECONDS if len(self._done) > before else min(2 * wait, MOST_LOOK_SECONDS)
            pause(wait)

    def _go_through(self) -> tuple[bool, list[ChunkId]]:
        """Do every piece that is free; tell whether others are at work, and what is lost."""
        waits, lost = False, list[ChunkId]()
        for lot in range(self._work.lots):
            number = 0
            while number < self._ends.get(lot, number + 1):
                piece = ChunkId(lot, number)
                if not self._is_done(piece):
                    gone = self._claims.is_lost(name_of(piece))
                    lost += [piece] * gone
                    waits = waits or not gone
                number += 1
        return waits, lost

    def _is_done(self, piece: ChunkId) -> bool:
        """Tell whether a piece is done; if it is free, do it."""
        if piece in self._done:
            return True
        header, name = self._work.header(piece), name_of(piece)
        if header is None and self._claims.take(name):
            try:
                header = self._work.header(piece) or self._work.finish(piece)
            except (SystemExit, KeyboardInterrupt):  # asked to end: not the piece's doing
                self._claims.drop(name)
                raise
            self._claims.drop(name)
        if header is None:
            return False
        self._done.add(piece)
        if header.last:
            end = piece.number + 1
            self._ends[piece.lot] = min(end, self._ends.get(piece.lot, end))
        return True


def name_of(piece: ChunkId) -> str:
    """Name the claim of a piece."""
    return f"{piece.lot}-{piece.number}"


logger = logging.getLogger(__name__)

_FAILED = "failed.json"

AWAY_SECONDS = 20.0
"""Before a rank whose file server is away ends: its slot gets few others."""


def rank_main(spec: Mapping[str, Any]) -> int:
    """Do a rank's share; the entry point of backends.

    Args:
        spec: an ``Order`` as JSON.

    Returns:
        0 once nothing is left to do; 1 after an error, whose sentence is kept for ``failure_of``,
        but for one of a file server that is away: that is one of this host and moment.
    """
    log.configure(rank=int(os.environ.get("RANK", "0")))
    order = PredictRequest.from_json(spec)
    settle_rank()
    try:
        with order.opened(device_here()) as work, ChunkClaims(claims_of(order)) as claims:
            Share(work, claims).do_all()
    except HydraError as error:
        if passes(error):
            logger.error("%s", error)
            time.sleep(AWAY_SECONDS)
            return 1
        with contextlib.suppress(HydraError):
            write_json(order.parts.folder / _FAILED, {"error": str(error)})
        return 1
    return 0


def settle_rank() -> None:
    """Use the threads that are ours, and leave in order when asked to end."""
    torch.set_num_threads(int(os.environ.get(THREADS, "1")))
    signal.signal(signal.SIGTERM, _leave)


def device_here() -> str:
    """Give the device of this rank's slot."""
    return os.environ.get(DEVICE, "cpu")


def claims_of(order: PredictRequest) -> Path:
    """Give the folder in which ranks say what they are at."""
    return order.parts.folder / "claims"


def failure_of(order: PredictRequest) -> JobError | None:
    """Give the error of a rank, if one has left any."""
    path = order.parts.folder / _FAILED
    return JobError(str(read_json(path)["error"])) if path.exists() else None


def forget_failure(order: PredictRequest) -> None:
    """Begin a new life: what had failed may be mended."""
    (order.parts.folder / _FAILED).unlink(missing_ok=True)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


BEGIN_SECONDS = 300.0
"""How long ranks wait for the first of them, which makes the folder."""

_JOIN = "join"


class Late(Exception):
    """All was done before this rank began."""


def predict_together(order: PredictRequest, rank: int) -> PredictOutcome | None:
    """Be one of several ranks; whoever sees first that all is done joins the parts.

    Rank 0 alone makes the folder, so that one that comes late does not begin anew.

    Args:
        order: the same on all ranks.
        rank: our number.

    Returns:
        How it ended, on the rank that joined.

    Raises:
        HydraError: it cannot be done; on all ranks that see it.
    """
    settle_rank()
    folder, out = order.parts.folder, Path(order.out)
    born = _birth()

    def begin(parts: PartFolder, plan: dict[str, str]) -> None:
        if rank == 0:
            parts.begin(plan)
        else:
            _await(folder, out, born)
            parts.agree(plan)

    try:
        with (
            order.opened(device_here(), begin=begin) as work,
            ChunkClaims(claims_of(order)) as claims,
        ):
            if rank == 0:
                claims.forget_dead()
            if lost := Share(work, claims).do_all():
                raise lost_pieces(order, lost)
            return _join(folder, work, claims)
    except Late:
        return None
    except StorageError:
        if folder.exists() or not _is_younger(out, born):
            raise
        return None  # the others were done while we began


def lost_pieces(order: PredictRequest, lost: list[ChunkId]) -> JobError:
    """Say which structures end whoever predicts them."""
    piece = lost[0]
    return JobError(
        f"{order.out}: {len(lost)} pieces were not predicted, since several ranks ended while they "
        f"were at them, the first at piece {piece.number + 1} of input {piece.lot + 1}: give ranks "
        "more memory or take these structures out, and repeat the command; what is done is kept."
    )


def _join(folder: Path, work: PredictPipeline, claims: ChunkClaims) -> PredictOutcome | None:
    """Join the parts, or wait until another rank has."""
    while True:
        try:
            if claims.take(_JOIN):
                return work.join()
        except StorageError:
            if folder.exists():
                raise
        if not folder.exists():
            return None
        if claims.is_lost(_JOIN):
            raise JobError(
                f"{folder}: several ranks ended while they joined it; repeat the command."
            )
        time.sleep(LOOK_SECONDS)


def _await(folder: Path, out: Path, born: float) -> None:
    """Wait for the folder.

    Raises:
        Late: it has been there and is gone: the output is younger than this process.
        JobError: nobody makes it.
    """
    deadline = time.monotonic() + BEGIN_SECONDS
    while not (folder / "plan.json").exists():
        if _is_younger(out, born):
            raise Late
        if time.monotonic() > deadline:
            raise JobError(f"{folder}: rank 0 has not begun within {BEGIN_SECONDS:.0f} s.")
        time.sleep(LOOK_SECONDS)


def _is_younger(path: Path, born: float) -> bool:
    return path.exists() and path.stat().st_mtime > born


def _birth() -> float:
    """Give when this process was started, in seconds since the epoch: imports may take long."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    since_boot = ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
