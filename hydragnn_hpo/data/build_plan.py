"""Plan a build: cut the files of a card into pieces, and keep a work folder of finished ones."""

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

from pydantic import TypeAdapter

from hydragnn_hpo import __version__
from hydragnn_hpo.config import STORE_VERSION, CardConfig, load_config
from hydragnn_hpo.config.data_config import FileConfig
from hydragnn_hpo.config.trial_config import check_head_name
from hydragnn_hpo.data.readers import reader_of
from hydragnn_hpo.data.readers.source import OPTIONS, Reader, Source
from hydragnn_hpo.errors import ConfigError, DataError, StorageError
from hydragnn_hpo.files import (
    PART,
    hash_file,
    read_json,
    refuse_repeated,
    remove_partial_files,
    storage,
    write_json,
    write_text,
)

logger = logging.getLogger(__name__)

FEW = 2
"""A failed build with fewer finished pieces keeps no work folder: they are quick to redo."""

_LOCK = "lock"
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
"""Error numbers of file systems without locks."""


def work_path(out: Path) -> Path:
    """Return the work folder of a store."""
    return out.with_name(f".{out.name}.work")


def stop_path(work: Path) -> Path:
    """Return the file that a rank creates to stop the others because the build has failed."""
    return work / "stop"


@contextlib.contextmanager
def hold_work_folder(out: Path) -> Iterator[Path]:
    """Lock the work folder of a store, and remove partial files of killed builds.

    The caller removes the folder by ``remove_work_folder`` once the store is complete. Where the
    ``with`` block raises, the folder is kept for the next build, unless it has fewer than ``FEW``
    pieces.

    Raises:
        StorageError: another process builds this store, or the disk failed.
    """
    work = work_path(out)
    descriptor = _lock(work, out)
    try:
        with storage(work):
            os.ftruncate(descriptor, 0)
            holder = f"process {os.getpid()} on {socket.gethostname()}"
            os.pwrite(descriptor, holder.encode(), 0)
            stop_path(work).unlink(missing_ok=True)
            remove_partial_files(work)
            for leftover in _list_leftovers(out):
                shutil.rmtree(leftover, ignore_errors=True)
        yield work
    except BaseException:
        if work.is_dir() and len(list(work.glob("piece-*.json"))) < FEW:
            remove_work_folder(work)
        raise
    finally:
        os.close(descriptor)


def remove_work_folder(work: Path) -> None:
    """Remove a locked work folder, renamed first so that no other build sees it half removed."""
    with contextlib.suppress(OSError):
        aside = tempfile.mkdtemp(prefix=f"{work.name}.", suffix=PART, dir=work.parent)
        os.rename(work, aside)
        shutil.rmtree(aside, ignore_errors=True)
    shutil.rmtree(work, ignore_errors=True)


def _list_leftovers(out: Path) -> Iterator[Path]:
    """Yield the unfinished stores and the renamed work folders of killed builds."""
    for name in (f".{out.name}", work_path(out).name):
        yield from out.parent.glob(f"{glob.escape(name)}.{'?' * 8}{PART}")


def _lock(work: Path, out: Path) -> int:
    """Create the folder and lock it; the lock of a dead process is free.

    Returns:
        Descriptor of the lock file; closing it releases the lock.
    """
    while True:
        with storage(work):
            work.mkdir(parents=True, exist_ok=True)
            try:
                descriptor = os.open(work / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:  # the last holder of the lock has just removed the folder
                continue
        try:
            _take_lock(descriptor, out)
            # The last holder may have removed the folder after the file was opened here, and a
            # lock on a removed file does not exclude other builds.
            if _is_same_file(work / _LOCK, descriptor):
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
    """Check whether the locked file is still the one at this path."""
    try:
        return os.path.samestat(lock.stat(), os.fstat(descriptor))
    except OSError:
        return False


QUARANTINE = "quarantine.jsonl"
"""File in a store that lists its bad structures; absent if there are none."""


@dataclass(frozen=True)
class BadStructure:
    """A structure that cannot be used: one line of ``quarantine.jsonl``."""

    file: str
    """Path of the file or folder with the structure."""
    number: int
    """Position of the structure in that file, counted from 0."""
    id: str
    """Name of the structure."""
    reason: str
    """A sentence that names file, structure, problem and cure."""


def write_quarantine(path: Path, bad: Sequence[BadStructure]) -> None:
    """Write one line of JSON per bad structure."""
    write_text(path, "".join(json.dumps(asdict(one)) + "\n" for one in bad))


def listing_path(out: Path) -> Path:
    """Return the file, next to the store, that lists the bad structures of a refused build."""
    return out.with_name(f"{out.name}.{QUARANTINE}")


def exceeds_limit(bad: int, total: int, max_bad: float) -> bool:
    """Check whether too many structures are bad.

    Args:
        bad: number of bad structures.
        total: number of structures, bad ones included.
        max_bad: largest share that may be bad, see ``CardConfig.max_bad``.
    """
    return bad > max_bad * total


def check_bad_structures(
    bad: Sequence[BadStructure], total: int, max_bad: float, out: Path
) -> None:
    """Refuse a build with too many bad structures; several of them are listed in a file.

    Args:
        bad: bad structures that are known so far, in the order of the files.
        total: number of structures of the data set, bad ones included.
        max_bad: largest share that may be bad, see ``CardConfig.max_bad``.
        out: store that is built; the list goes to ``listing_path(out)``.

    Raises:
        DataError: the share of bad structures exceeds the limit.
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
"""Environment variable with the folder of data files that are not next to their cards."""

_DECIDES = {"targets", "attributes", "graphs", "structure_column", "id_key"}
"""Fields of a card that decide how a structure is converted, besides its files and groups."""


@dataclass(frozen=True)
class Piece:
    """A run of structures of one file."""

    number: int
    """Its position in the build, counted from 0."""
    entry: int
    """Position of its file in the card's ``files``, counted from 0."""
    path: Path
    """The file or folder."""
    start: int
    """First structure, counted from 0."""
    stop: int | None
    """One after the last structure; None means the end of the file."""
    prefix: str
    """Prefix of the names of its structures; empty unless files share names."""
    stamp: str
    """Checksum of all inputs of its graphs: pieces of equal stamps give equal graphs."""


@dataclass(frozen=True)
class BuildPlan:
    """All pieces of a build."""

    card: CardConfig
    """The card, with the files that are read."""
    pieces: tuple[Piece, ...]
    """Pieces of all files, in order."""
    window: int
    """Largest number of graphs of a window."""
    total: int | None
    """Number of structures; None where a file must be read to count them."""


_PLAN_JSON = TypeAdapter(BuildPlan)


def write_plan(file: Path, plan: BuildPlan) -> None:
    """Write a plan as JSON for worker processes."""
    write_json(file, _PLAN_JSON.dump_python(plan, mode="json"))


def read_plan(file: Path) -> BuildPlan:
    """Read a plan that ``write_plan`` has written.

    Raises:
        StorageError: the file is missing or unreadable.
    """
    return _PLAN_JSON.validate_python(read_json(file))


def make_plan(card_path: Path, files: Sequence[Path] | None, window: int) -> BuildPlan:
    """Find and check the files of a card, and cut them into pieces.

    Args:
        card_path: path of the card (TOML).
        files: files to read instead of the card's own, without a check of their checksums; None
            reads the card's.
        window: largest number of graphs of a window, and of structures of a piece. A file that
            must be read to count its structures is one piece.

    Raises:
        ConfigError: the card is wrong.
        DataError: a file is missing, or does not have the checksum of the card.
    """
    card = _load_card(card_path)
    if files is not None:
        options = _find_common_options(card)
        entries = [options.model_copy(update={"path": str(file.absolute())}) for file in files]
        card = card.model_copy(update={"files": tuple(entries)})
    paths = [find_file(entry.path, card_path) for entry in card.files]
    refuse_repeated(paths)
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
        digest = _digest_inputs(card, number, source, reader, prefix, window)
        for start, stop in _cut_file(count, window):
            stamp = _digest([digest, start, stop])
            pieces.append(Piece(len(pieces), number, path, start, stop, prefix, stamp))
    return BuildPlan(card, tuple(pieces), window, total)


def _load_card(path: Path) -> CardConfig:
    """Read a card whose targets have names that a model can have."""
    card = load_config(path, CardConfig)
    for name in card.targets:
        try:
            check_head_name(name)
        except ValueError as error:
            raise ConfigError(f"{path}: {error}") from error
    return card


def make_source(card: CardConfig, entry: int, path: Path) -> Source:
    """Return the input of the reader of one of a card's files.

    Args:
        card: the card.
        entry: position of the file in the card's ``files``, counted from 0.
        path: path at which the file was found.
    """
    file = card.files[entry]
    targets = [(name, t) for name, t in card.targets.items() if t.level == "graph"]
    keys = tuple(key for name, t in targets for key in t.columns or (t.key or name,))
    return Source(
        path,
        keys,
        card.structure_column,
        cell=file.cell,
        pbc=file.pbc,
        format=file.format,
        columns=file.columns,
        length=file.length,
        one_part=file.one_part,
    )


def find_files(card_path: Path) -> list[Path]:
    """Find all files of a card; see ``find_file``.

    Raises:
        DataError: a file is missing.
    """
    card = load_config(card_path, CardConfig)
    return [find_file(entry.path, card_path) for entry in card.files]


def find_file(name: str, card_path: Path, environ: Mapping[str, str] | None = None) -> Path:
    """Find a file of a card: at its absolute path, next to the card, or under the data root.

    Args:
        name: path of the file as the card has it.
        card_path: path of the card.
        environ: variables with the data root, ``HYDRAGNN_HPO_DATA``; None means ``os.environ``.

    Raises:
        DataError: the file is in none of these places, or is a device or a pipe.
    """
    root = (os.environ if environ is None else environ).get(DATA_ROOT)
    candidates = [card_path.parent / name, *([Path(root) / name] if root else [])]
    for candidate in candidates:
        if candidate.is_file() or candidate.is_dir():
            return candidate
        if candidate.exists():
            raise DataError(f"{candidate}: is a device or a pipe; give a file or a folder.")
    places = " or ".join(str(candidate.parent) for candidate in candidates)
    raise DataError(
        f"{card_path}: the file '{name}' is not in {places}; "
        f"set {DATA_ROOT} to the folder that holds it."
    )


def _cut_file(count: int | None, window: int) -> Iterator[tuple[int, int | None]]:
    """Cut a file into runs of structures: first, and one after the last.

    A file with an unknown number of structures is one run, and so is one without structures, which
    its reader may refuse.
    """
    if not count:
        yield 0, None
        return
    for start in range(0, count, window):
        yield start, min(start + window, count)


def _name_prefix(card: CardConfig, number: int, paths: Sequence[Path]) -> str:
    """Return a prefix that keeps names of structures unique where files share a name.

    Readers name structures after their file. Folders get a prefix, too, because files in different
    folders may share names.
    """
    path = paths[number]
    twins = sum(other.name == path.name for other in paths) > 1
    if card.id_key is not None or len(paths) == 1 or not (twins or path.is_dir()):
        return ""
    return f"{card.files[number].path}:"


def _find_common_options(card: CardConfig) -> FileConfig:
    """Return the reader options of a card's files where all have the same, else the defaults."""
    own = {"path": "", "sha256": None, "published": None}
    options = [entry.model_copy(update=own) for entry in card.files]
    return options[0] if all(one == options[0] for one in options) else FileConfig(path="")


def _check_reader_options(entry: FileConfig, reader: Reader, path: Path) -> None:
    """Refuse an option in the card that the reader of the file does not have.

    Raises:
        ConfigError: the card has such an option.
    """
    for key in OPTIONS:
        if getattr(entry, key) and key not in reader.takes:
            raise ConfigError(
                f"{path}: the reader of this file does not heed '{key}': drop it from [[files]], "
                "or choose another reader."
            )


def _digest_inputs(
    card: CardConfig, number: int, source: Source, reader: Reader, prefix: str, window: int
) -> str:
    """Return a digest of all inputs of the graphs of a file."""
    entry = card.files[number]
    path = source.path
    content = [entry.sha256 or list(_stat_files(path))]
    content += [list(_stat_files(file)) for file in reader.list_other_files(source)]
    split = [card.split.group, card.split.published]
    settings = card.model_dump(mode="json", include=_DECIDES)
    options = [STORE_VERSION, __version__, window, prefix, entry.model_dump(mode="json")]
    return _digest([options, str(path.absolute()), content, split, settings])


def _stat_files(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield path, size (bytes) and modification time (ns) of a file or of each file of a folder."""
    try:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            stat = file.stat()
            if not file.is_dir():
                yield str(file.relative_to(path)), stat.st_size, stat.st_mtime_ns
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be read ({error.strerror}); correct its permissions."
        ) from error


def _digest(content: Iterable[Any]) -> str:
    return hashlib.sha256(json.dumps(list(content), sort_keys=True).encode()).hexdigest()


def _verify_checksum(entry: FileConfig, path: Path) -> None:
    """Compare a file with the checksum of its card."""
    if entry.sha256 is None:
        return
    if not path.is_file():
        raise DataError(f"{path}: is a folder, a checksum needs a file; drop sha256 of the card.")
    try:
        checksum = hash_file(path)
    except StorageError as error:
        raise DataError(f"{str(error)[:-1]}; get it again.") from error
    if checksum != entry.sha256:
        raise DataError(
            f"{path}: has SHA-256 {checksum[:12]}..., the card says {entry.sha256[:12]}...; "
            "get the file again, or correct the card if the new file is meant."
        )
