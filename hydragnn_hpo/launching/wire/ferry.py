"""Files for hosts that do not share them, through the agents' own lines, in pieces.

On a host every path of the controller lies below a root of its own: ``/run/t1/trial.toml`` becomes
``ROOT/run/t1/trial.toml``, so that relative paths between files hold. A message is::

    cargo  path (the controller's, absolute), data (base64), last, checksum (with the last piece);
           without data: a file that a job's folder does not hold any more

Both ends write a file whole or not at all, and take no path that leads out of their root.
"""

import base64
import contextlib
import functools
import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.files import PART, storage
from hydragnn_hpo.launching.job import Job
from hydragnn_hpo.launching.wire.package import TOP, digest, sources

PIECE = 1 << 18
"""Bytes of a file in one message."""

_AHEAD = 1 << 22
"""Bytes that may wait on a line before more is read from disk."""

_STAY = ("control", "lease")
"""Files of a job's folder that each side has of its own."""

Message = dict[str, Any]
Stamp = tuple[int, int, int]
"""Inode, size in bytes, time of the last change in ns."""


def inside(root: Path, path: str) -> Path:
    """Give the place of a controller's path below a root.

    Raises:
        StorageError: it leads out of the root, by its words or by a link on its way.
    """
    pure = PurePosixPath(path)
    if not pure.is_absolute() or ".." in pure.parts or "\0" in path:
        raise StorageError(f"a file named {path!r} was sent: it is not taken.")
    place = root.joinpath(*pure.parts[1:])
    if not place.parent.resolve().is_relative_to(root.resolve()):
        raise StorageError(f"a file named {path!r} was sent, which a link leads elsewhere.")
    return place


def files_below(top: Path) -> Iterator[Path]:
    """Give a file itself, or all whole files below a folder; links are not followed."""
    if top.is_file():
        yield top
    for folder, names, files in os.walk(top):
        names.sort()
        for name in sorted(files):
            path = Path(folder, name)
            unfinished = name.startswith(".") and name.endswith(PART)
            if not unfinished and path.is_file() and not path.is_symlink():
                yield path


def stamp_of(path: Path) -> Stamp:
    """Give what changes when a file is written anew."""
    known = path.stat()
    return known.st_ino, known.st_size, known.st_mtime_ns


class Departures:
    """What waits to be sent on one line, in order; files are read when their turn comes."""

    def __init__(self, send: Callable[[Message], None], unsent: Callable[[], int]) -> None:
        """Send by a function, as long as little is ``unsent`` (bytes)."""
        self._send, self._unsent = send, unsent
        self._queue: deque[Iterator[Message]] = deque()

    def __bool__(self) -> bool:
        """Say whether something waits."""
        return bool(self._queue)

    def file(self, path: Path) -> None:
        """Let a file of the controller's follow, as it is when its turn comes."""
        self._queue.append(_read(path))

    def snapshot(self, path: Path, name: str, job: str) -> None:
        """Let a file of a job follow, as it is now: it is opened at once.

        Args:
            path: of the file here.
            name: the controller's path of it.
            job: id of the job.
        """
        words = {"event": "cargo", "job": job, "path": name}
        self._queue.append(_pieces(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), words))

    def message(self, message: Message) -> None:
        """Let a message follow."""
        self._queue.append(iter((message,)))

    def pump(self) -> None:
        """Send what the line takes."""
        while self._queue and self._unsent() < _AHEAD:
            message = next(self._queue[0], None)
            if message is None:
                self._queue.popleft()
            else:
                self._send(message)

    def clear(self) -> None:
        """Forget all that waits."""
        self._queue.clear()


def _read(path: Path) -> Iterator[Message]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    yield from _pieces(descriptor, {"op": "cargo", "path": str(path)})


def _pieces(descriptor: int, words: Message) -> Iterator[Message]:
    checksum = hashlib.sha256()
    with os.fdopen(descriptor, "rb") as file:
        piece = file.read(PIECE)
        while True:
            after = file.read(PIECE)
            checksum.update(piece)
            found = words | {"data": base64.b64encode(piece).decode(), "last": not after}
            yield found if after else found | {"checksum": checksum.hexdigest()}
            if not after:
                return
            piece = after


class Arrivals:
    """Files that come in, one after the other, on one line."""

    def __init__(self, root: Path, place: Callable[[str], Path]) -> None:
        """Put files where ``place`` says; unfinished ones lie in ``root``."""
        self._place, self._part = place, root / f".arriving-{os.getpid()}-{id(self)}{PART}"
        self._checksum = hashlib.sha256()
        self._fresh = True

    def take(self, message: Mapping[str, Any]) -> Path | None:
        """Take a piece, or remove what is gone; gives the path of a file that is whole now.

        Raises:
            StorageError: the path is not allowed, the disk is full, or a piece was damaged.
        """
        path = self._place(message["path"])
        if "data" not in message:
            path.unlink(missing_ok=True)
            return None
        content = base64.b64decode(message["data"])
        with storage(path), self._part.open("wb" if self._fresh else "ab") as file:
            file.write(content)
            self._checksum.update(content)
            if message["last"]:
                file.flush()
                os.fsync(file.fileno())
        self._fresh = bool(message["last"])
        return self._finish(path, message["checksum"]) if message["last"] else None

    def _finish(self, path: Path, checksum: str) -> Path:
        found, self._checksum = self._checksum.hexdigest(), hashlib.sha256()
        if found != checksum:
            self._part.unlink(missing_ok=True)
            raise StorageError(f"{path}: was damaged on its way; start the job again.")
        with storage(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.replace(self._part, path)
        return path

    def drop(self) -> None:
        """Forget a file that will not become whole."""
        self._part.unlink(missing_ok=True)
        self._checksum, self._fresh = hashlib.sha256(), True


class Hold:
    """The agent's end: what was brought for jobs, and what they changed."""

    def __init__(
        self,
        make_root: Callable[[], Path],
        send: Callable[[Message], None],
        unsent: Callable[[], int],
    ) -> None:
        """Keep files below a root, whose path is asked for when the first comes."""
        self._make_root = make_root
        self._departures = Departures(send, unsent)
        self._known: dict[Path, Stamp] = {}
        self.error: str | None = None
        """Why a job cannot have what it needs."""

    @functools.cached_property
    def root(self) -> Path:
        """Give the folder below which everything lies."""
        root = self._make_root()
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        return root

    @functools.cached_property
    def _arrivals(self) -> Arrivals:
        return Arrivals(self.root, lambda path: inside(self.root, path))

    def __bool__(self) -> bool:
        """Say whether something waits to be sent."""
        return bool(self._departures)

    def check(self) -> None:
        """Say once what went wrong with files that came.

        Raises:
            StorageError: a file could not be taken.
        """
        error, self.error = self.error, None
        if error:
            raise StorageError(error)

    def take(self, message: Mapping[str, Any]) -> None:
        """Take a piece of a file."""
        try:
            path = self._arrivals.take(message)
        except StorageError as error:
            self.error = str(error)
            self._arrivals.drop()
            return
        except OSError as error:
            self.error = f"no folder for files of jobs can be made here ({error.strerror})."
            return
        if path is not None:
            self._known[path] = stamp_of(path)

    def localize(self, order: Message) -> Message:
        """Give an order with the paths of this host in place of the controller's.

        What goes wrong is kept for ``check``.
        """
        tops = order.get("carried")
        if tops is None:
            return order

        def here(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: here(item) for key, item in value.items()}
            if isinstance(value, list):
                return [here(item) for item in value]
            if isinstance(value, str) and _is_below(value, tops):
                return str(inside(self.root, value))
            return value

        try:
            places = {key: here(order[key]) for key in ("spec", "log", "watch", "control")}
            Path(places["log"]).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except (OSError, StorageError) as error:
            self.error = str(error)
            return order
        return order | places

    def offer(self, order: Mapping[str, Any]) -> None:
        """Let follow what a job changed in its folder since it was brought, or offered last."""
        if not order.get("carried"):
            return
        top = inside(self.root, order["carried"][0])
        there = [path for path in files_below(top) if path.name not in _STAY]
        for path in sorted(there, key=lambda path: path.stat().st_mtime_ns):
            with contextlib.suppress(FileNotFoundError):  # replaced by the next checkpoint
                if self._known.get(path) != (stamp := stamp_of(path)):
                    self._departures.snapshot(path, self._name(path), order["job"])
                    self._known[path] = stamp
        for path in [path for path in self._known if path.is_relative_to(top)]:
            if not path.exists():
                del self._known[path]
                gone = {"event": "cargo", "job": order["job"], "path": self._name(path)}
                self._departures.message(gone)

    def follow(self, message: Message) -> None:
        """Tell something once all is sent that was offered before."""
        self._departures.message(message)

    def pump(self) -> None:
        """Send what the line takes."""
        self._departures.pump()

    def begin_anew(self) -> None:
        """Forget what was sent: the line was cut, and nobody knows how much of it arrived."""
        self._departures.clear()
        if "_arrivals" in self.__dict__:  # else nothing ever came
            self._arrivals.drop()
        self._known.clear()

    def _name(self, path: Path) -> str:
        return "/" + str(path.relative_to(self.root))


def _is_below(path: str, tops: Sequence[str]) -> bool:
    return any(path == top or path.startswith(f"{top}/") for top in tops)


class Ferry:
    """The controller's end: brings jobs what they need, and puts away what they send back."""

    def __init__(self, run_dir: Path, send: Callable[[str, Message], None]) -> None:
        """Send to hosts by their name; whatever comes back belongs below ``run_dir``."""
        self._run_dir, self._send = run_dir.resolve(), send
        self._departures: dict[str, Departures] = {}
        self._arrivals: dict[str, Arrivals] = {}
        self._brought: dict[str, dict[str, Stamp]] = {}

    def meet(self, host: str, unsent: Callable[[], int]) -> None:
        """Begin with the agent of a host, which has nothing yet, or lost its line."""
        self._departures[host] = Departures(lambda message: self._send(host, message), unsent)
        if old := self._arrivals.pop(host, None):
            old.drop()
        self._arrivals[host] = Arrivals(self._run_dir, self._place)
        self._brought[host] = {}

    def order(self, host: str, order: Message, job: Job) -> Message:
        """Give the order for a host on which a job finds its files, which are sent before it."""
        if job.folder is None:
            return order
        found = order | {"carried": self.load(host, job.folder, job.needs)}
        for key in ("log", "watch", "control"):
            found[key] = str(Path(order[key]).resolve()) if order[key] else None
        if all(place["rank"] for place in order["ranks"]):  # rank 0's host has the log itself
            found["log"] += f".{host}"
        return found

    def bring_code(self, host: str) -> None:
        """Let this package follow, and have the host's ranks use it."""
        for path in sources():
            self._departures[host].file(path)
        self._departures[host].message({"op": "code", "root": str(TOP.parent), "code": digest()})

    def load(self, host: str, folder: Path, needs: Sequence[Path]) -> list[str]:
        """Let everything follow that a job reads; what the host has already stays here.

        Returns:
            The paths that go along, the job's folder first.
        """
        tops = [folder.resolve(), *(need.resolve() for need in needs)]
        for place, top in enumerate(tops):
            for path in files_below(top):
                if place == 0 and path.name in _STAY:
                    continue
                stamp, name = stamp_of(path), str(path)
                if self._brought[host].get(name) != stamp:
                    self._departures[host].file(path)
                    self._brought[host][name] = stamp
        return [str(top) for top in tops]

    def send(self, host: str, message: Message) -> None:
        """Tell a host something, behind all that waits for it."""
        self._departures[host].message(message)
        self._departures[host].pump()

    def pump(self) -> None:
        """Send what the lines take; a slow host keeps nobody waiting."""
        for departures in self._departures.values():
            departures.pump()

    def take(self, host: str, message: Mapping[str, Any]) -> None:
        """Put away a piece of a file of a job's folder.

        Raises:
            StorageError: the path is not allowed, the disk is full, or a piece was damaged.
        """
        path = self._arrivals[host].take(message)
        if path is not None:
            self._brought[host][str(path)] = stamp_of(path)

    def _place(self, path: str) -> Path:
        if not PurePosixPath(path).is_relative_to(self._run_dir):
            raise StorageError(f"a host sent {path!r}, which is not below {self._run_dir}.")
        place = inside(Path("/"), path)
        if not place.parent.resolve().is_relative_to(self._run_dir):
            raise StorageError(f"a host sent {path!r}, which a link leads elsewhere.")
        return place
