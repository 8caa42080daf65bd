"""Plan a build: the files of a card, cut into pieces, and the work folder of what is done."""

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydragnn_hpo import __version__
from hydragnn_hpo.config import STORE_VERSION, CardConfig, FileConfig, load_config
from hydragnn_hpo.data.readers import reader_of
from hydragnn_hpo.data.readers.source import Reader, Source
from hydragnn_hpo.errors import ConfigError, DataError, StorageError
from hydragnn_hpo.files import PART, hash_file, storage, sweep, write_text

logger = logging.getLogger(__name__)

FEW = 2
"""A build that failed with fewer finished pieces leaves nothing: they are quickly made again."""

_LOCK = "lock"
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
"""Error numbers of file systems that know no locks."""


def work_path(out: Path) -> Path:
    """Return the work folder of a store."""
    return out.with_name(f".{out.name}.work")


def stop_path(work: Path) -> Path:
    """Return the file by which a rank tells the others that the build has failed."""
    return work / "stop"


@contextlib.contextmanager
def hold_work_folder(out: Path) -> Iterator[Path]:
    """Hold the work folder of a store; what a killed build left half-written is swept away.

    It is removed at the end: by ``remove_work_folder`` when the store is there, here when a build
    failed that has done too little to keep.

    Raises:
        StorageError: another process builds this store, or the disk failed.
    """
    work = work_path(out)
    descriptor = _lock(work, out)
    try:
        with storage(work):
            stop_path(work).unlink(missing_ok=True)
            sweep(work)
            for left in _list_leftovers(out):
                shutil.rmtree(left, ignore_errors=True)
        yield work
    except BaseException:
        if work.is_dir() and len(list(work.glob("piece-*.json"))) < FEW:
            remove_work_folder(work)
        raise
    finally:
        os.close(descriptor)


def remove_work_folder(work: Path) -> None:
    """Remove a work folder that is held; renamed first, so that no build finds half of it."""
    with contextlib.suppress(OSError):
        aside = tempfile.mkdtemp(prefix=f"{work.name}.", suffix=PART, dir=work.parent)
        os.rename(work, aside)
        shutil.rmtree(aside, ignore_errors=True)
    shutil.rmtree(work, ignore_errors=True)


def _list_leftovers(out: Path) -> Iterator[Path]:
    """Return the unfinished stores and the cast-off work folders of killed builds."""
    for name in (f".{out.name}", work_path(out).name):
        yield from out.parent.glob(f"{glob.escape(name)}.{'?' * 8}{PART}")


def _lock(work: Path, out: Path) -> int:
    """Make the folder and lock it; the lock of a dead process is free."""
    while True:
        with storage(work):
            work.mkdir(parents=True, exist_ok=True)
            try:
                descriptor = os.open(work / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:  # its last holder has just removed the folder
                continue
        try:
            _take_lock(descriptor, out)
            if _is_same_file(work / _LOCK, descriptor):
                with storage(work):
                    os.ftruncate(descriptor, 0)
                    holder = f"process {os.getpid()} on {socket.gethostname()}"
                    os.pwrite(descriptor, holder.encode(), 0)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _take_lock(descriptor: int, out: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
        raise StorageError(
            f"{out}: is being built by {holder}; wait for it, or choose another place."
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        logger.warning("%s: no locks here; start no second build of this store.", out.parent)


def _is_same_file(lock: Path, descriptor: int) -> bool:
    """Check whether the locked file is still the one that others will find."""
    try:
        return os.path.samestat(lock.stat(), os.fstat(descriptor))
    except OSError:
        return False


QUARANTINE = "quarantine.jsonl"
"""The file in a store that names them; not there if there are none."""


@dataclass(frozen=True)
class BadStructure:
    """A structure that cannot be used."""

    file: str
    number: int
    """Counted from 1."""
    id: str
    reason: str
    """A sentence that names file and structure."""


def write_quarantine(path: Path, bad: Sequence[BadStructure]) -> None:
    """Write one JSON object per bad structure."""
    write_text(path, "".join(json.dumps(asdict(one)) + "\n" for one in bad))


def listing_path(out: Path) -> Path:
    """Return where the bad structures of a refused build are listed, beside the store."""
    return out.with_name(f"{out.name}.{QUARANTINE}")


def exceeds_limit(bad: int, total: int, max_bad: float) -> bool:
    """Check whether the share of bad structures is beyond the card's limit."""
    return bad > max_bad * total


def check_bad_structures(
    bad: Sequence[BadStructure], total: int, max_bad: float, out: Path
) -> None:
    """End a build that has too many bad structures; several of them are listed in a file.

    Args:
        bad: all that are known, in order.
        total: structures of the data set, bad ones included.
        max_bad: the card's limit.
        out: the store that is built.

    Raises:
        DataError: their share is beyond the limit.
    """
    if not exceeds_limit(len(bad), total, max_bad):
        return
    if len(bad) == 1:
        raise DataError(bad[0].reason)
    listing = listing_path(out)
    write_quarantine(listing, bad)
    raise DataError(
        f"{bad[0].reason.rstrip('.')} (and {len(bad) - 1} more bad ones of {total}; "
        f"the limit max_bad is {max_bad:g}: see {listing})."
    )


DATA_ROOT = "HYDRAGNN_HPO_DATA"
"""Names the folder of data files that are not beside their cards."""

_DECIDES = {"targets", "attributes", "graphs", "structure_column", "id_key"}
"""What of a card decides how a structure is converted, besides its files and groups."""


@dataclass(frozen=True)
class Piece:
    """A run of structures of one file."""

    number: int
    """Its place in the build, counted from 0."""
    entry: int
    """Its file's place in the card."""
    path: Path
    """The file or folder."""
    start: int
    """First structure, counted from 0."""
    stop: int | None
    """One after the last structure; None: to the end of the file."""
    prefix: str
    """Put before the names of structures, where two files would give the same ones."""
    stamp: str
    """What the outcome depends on, as a checksum: equal stamps, equal outcomes."""


@dataclass(frozen=True)
class BuildPlan:
    """All pieces of a build."""

    card: CardConfig
    pieces: tuple[Piece, ...]
    window: int
    """Most graphs of a window."""
    total: int | None
    """Number of structures, where all files tell it before they are read."""

    def to_json(self) -> dict[str, Any]:
        """Return what ``parse_plan`` takes."""
        pieces = [{**vars(piece), "path": str(piece.path)} for piece in self.pieces]
        card = self.card.model_dump(mode="json")
        return {"card": card, "pieces": pieces, "window": self.window, "total": self.total}


def parse_plan(content: Mapping[str, Any]) -> BuildPlan:
    """Read what ``BuildPlan.to_json`` returned."""
    pieces = [Piece(**{**piece, "path": Path(piece["path"])}) for piece in content["pieces"]]
    card = CardConfig.model_validate(content["card"])
    return BuildPlan(card, tuple(pieces), int(content["window"]), content["total"])


def make_plan(card_path: Path, files: Sequence[Path] | None, window: int) -> BuildPlan:
    """Find and check the files of a card and cut them into pieces.

    Args:
        card_path: the card (TOML).
        files: read these instead of the card's own files; no checksum is known for them.
        window: most graphs of a window; a piece has as many structures.

    Raises:
        ConfigError: the card is wrong.
        DataError: a file is missing, or not the one that the card means.
    """
    card = load_config(card_path, CardConfig)
    if files is not None:
        how = _find_common_source(card)
        given = tuple(how.model_copy(update={"path": str(file.absolute())}) for file in files)
        card = card.model_copy(update={"files": given})
    paths = [find_file(entry.path, card_path) for entry in card.files]
    for entry, path in zip(card.files, paths, strict=True):
        _verify_checksum(entry, path)
    pieces: list[Piece] = []
    total: int | None = 0
    for number, path in enumerate(paths):
        source = make_source(card, number, path)
        reader = reader_of(source, card.files[number].reader)
        _check_reader_options(card.files[number], reader, path)
        count = reader.count(source)
        total = None if total is None or count is None else total + count
        prefix = _name_prefix(card, number, paths)
        decided = _digest_decisions(card, number, source, reader, prefix, window)
        for start, stop in _cut_file(count, window):
            stamp = _digest([decided, start, stop])
            pieces.append(Piece(len(pieces), number, path, start, stop, prefix, stamp))
    return BuildPlan(card, tuple(pieces), window, total)


def make_source(card: CardConfig, entry: int, path: Path) -> Source:
    """Return what a reader may know of a card's file."""
    file = card.files[entry]
    targets = card.targets.items()
    keys = tuple(target.key or name for name, target in targets if target.level == "graph")
    return Source(
        path,
        keys,
        card.structure_column,
        cell=file.cell,
        pbc=file.pbc,
        format=file.format,
        columns=file.columns,
    )


def find_files(card_path: Path) -> list[Path]:
    """Find all files of a card.

    Raises:
        DataError: one is nowhere.
    """
    card = load_config(card_path, CardConfig)
    return [find_file(entry.path, card_path) for entry in card.files]


def find_file(name: str, card_path: Path, environ: Mapping[str, str] | None = None) -> Path:
    """Find a card's file: absolute, beside the card, or under ``HYDRAGNN_HPO_DATA``.

    Raises:
        DataError: it is nowhere.
    """
    root = (os.environ if environ is None else environ).get(DATA_ROOT)
    candidates = [card_path.parent / name, *([Path(root) / name] if root else [])]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    places = " or ".join(str(candidate.parent) for candidate in candidates)
    raise DataError(
        f"{card_path}: the file '{name}' is not in {places}; "
        f"set {DATA_ROOT} to the folder that holds it."
    )


def _cut_file(count: int | None, window: int) -> Iterator[tuple[int, int | None]]:
    """Cut a file; one whose length is not known, or that says it is empty, is read whole."""
    if not count:
        yield 0, None
        return
    for start in range(0, count, window):
        yield start, min(start + window, count)


def _name_prefix(card: CardConfig, number: int, paths: Sequence[Path]) -> str:
    """Return a prefix for structures if files share a name: readers name them after their file."""
    path = paths[number]
    twins = sum(other.name == path.name for other in paths) > 1
    if card.id_key is not None or len(paths) == 1 or not (twins or path.is_dir()):
        return ""
    return f"{card.files[number].path}:"


def _find_common_source(card: CardConfig) -> FileConfig:
    """Return how a card's files are read, where that is the same for all; else nothing is said."""
    own = {"path": "", "sha256": None, "published": None}
    found = [entry.model_copy(update=own) for entry in card.files]
    return found[0] if all(how == found[0] for how in found) else FileConfig(path="")


def _check_reader_options(entry: FileConfig, reader: Reader, path: Path) -> None:
    """Refuse what a card says to a reader that does not listen.

    Raises:
        ConfigError: it says so.
    """
    for key in ("columns", "format"):
        if getattr(entry, key) and key not in reader.takes:
            raise ConfigError(
                f"{path}: the reader of this file does not heed '{key}': drop it from [[files]], "
                "or choose another reader."
            )


def _digest_decisions(
    card: CardConfig, number: int, source: Source, reader: Reader, prefix: str, window: int
) -> str:
    """Return a digest of all that the outcome of a file's pieces depends on."""
    entry, path = card.files[number], source.path
    content = [entry.sha256 or list(_stat_files(path))]
    content += [list(_stat_files(file)) for file in reader.beside(source)]
    split = [card.split.group, card.split.published]
    settings = card.model_dump(mode="json", include=_DECIDES)
    how = [STORE_VERSION, __version__, window, prefix, entry.model_dump(mode="json")]
    return _digest([how, str(path.absolute()), content, split, settings])


def _stat_files(path: Path) -> Iterator[tuple[str, int, int]]:
    """Return name, size and time of change of a file, or of all files of a folder."""
    try:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            found = file.stat()
            if not file.is_dir():
                yield str(file.relative_to(path)), found.st_size, found.st_mtime_ns
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({error.strerror}).") from error


def _digest(content: Iterable[Any]) -> str:
    return hashlib.sha256(json.dumps(list(content), sort_keys=True).encode()).hexdigest()


def _verify_checksum(entry: FileConfig, path: Path) -> None:
    """Compare a file with the checksum of its card."""
    if entry.sha256 is None:
        return
    if not path.is_file():
        raise DataError(f"{path}: is a folder, a checksum needs a file; drop sha256 of the card.")
    try:
        found = hash_file(path)
    except StorageError as error:
        raise DataError(f"{str(error)[:-1]}; get it again.") from error
    if found != entry.sha256:
        raise DataError(
            f"{path}: has SHA-256 {found[:12]}..., the card says {entry.sha256[:12]}...; "
            "get the file again, or correct the card if the new file is meant."
        )
