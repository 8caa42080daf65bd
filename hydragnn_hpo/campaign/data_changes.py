"""Notice data files and stores that changed since the runs of a campaign before this one.

Beside each store stands ``NAME.bp.seen.json``: sizes and modification times of the files that it
was built from, and of its own, and the checksums of those that describe it. They are compared
whenever a campaign goes on. The checksums of its columns are compared in the background meanwhile,
since every byte must be read for that.
"""

import hashlib
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydragnn_hpo.config import CardConfig
from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.files import hash_file, read_json, write_json

logger = logging.getLogger(__name__)

READING_SHARE = 0.1
"""Largest share of the time for which stores are read in the background."""

CHUNK_BYTES = 1 << 23
"""Bytes that are read and hashed in one piece."""

MOST_FILES = 10_000
"""Files of one card that are compared: a folder may hold millions."""

DESCRIPTION = ("index.json", "stats.json", "windows.npy")
"""Files of a store that say what its columns are; all are small."""

_CURE = "restore it from a copy, or start the campaign again in another directory, with --run."

Stamps = dict[str, list[int]]
"""Size in bytes and modification time in nanoseconds, by the path of a file."""


def stamp_sources(card_path: Path, card: CardConfig) -> Stamps:
    """Return the stamps of the data files of a card; files that cannot be read are left out."""
    root = os.environ.get("HYDRAGNN_HPO_DATA")
    stamps: Stamps = {}
    for entry in card.files:
        places = [card_path.parent / entry.path, *([Path(root) / entry.path] if root else [])]
        source = next((place for place in places if place.exists()), None)
        if source is not None:
            stamps |= _stamp(_list_files(source.absolute()), MOST_FILES - len(stamps))
    return stamps


def stamp_store(store: Path) -> Stamps:
    """Return the stamps of the files of a store, by their path within it."""
    return _stamp(_list_files(store), MOST_FILES, store)


def _list_files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for folder, _, names in os.walk(path):
        yield from (Path(folder, name) for name in names)


def _stamp(files: Iterable[Path], most: int, within: Path = Path("/")) -> Stamps:
    stamps: Stamps = {}
    for file in files:
        if len(stamps) >= most:
            break
        try:
            stat = file.stat()
        except OSError:
            continue
        name = str(file if within == Path("/") else file.relative_to(within))
        stamps[name] = [stat.st_size, stat.st_mtime_ns]
    return stamps


def seen_file(store: Path) -> Path:
    """Return the file with the stamps of a store and of its data files."""
    return store.with_name(f"{store.name}.seen.json")


def note_seen(store: Path, sources: Stamps) -> None:
    """Write down what a store was built from, its own files, and what describes it.

    Raises:
        StorageError: the file cannot be written.
    """
    description = {name: hash_file(store / name) for name in DESCRIPTION}
    seen = {"sources": sources, "store": stamp_store(store), "description": description}
    write_json(seen_file(store), seen)


def find_changes(store: Path, sources: Stamps) -> list[str]:
    """Compare data files and store with what was seen when the store was built.

    Args:
        store: the store of a campaign that goes on.
        sources: stamps of the card's data files now.

    Returns:
        A sentence for the data files and one for the store; none where nothing has changed, or
        where nothing was noted by the version that built the store.
    """
    try:
        seen: Any = read_json(seen_file(store))
        then_sources = dict(seen["sources"])
        then_store = dict(seen["store"])
    except (StorageError, KeyError, TypeError, ValueError):
        return []
    sentences = []
    if changed := _compare(_follow_card(then_sources, sources), sources):
        sentences.append(
            f"{_name(changed)} changed since {store} was built: the campaign goes on with the "
            "graphs in that store; to use the changed data, start one with another --run."
        )
    if changed := _compare(then_store, stamp_store(store)):
        sentences.append(
            f"{store}: {_name(changed)} changed since it was built: its checksums are compared "
            "while the campaign runs."
        )
    return sentences


def _follow_card(then: Stamps, now: Stamps) -> Stamps:
    """Return noted stamps by the paths that files have now, if card and data lie elsewhere."""
    if not then or not now or then.keys() & now.keys():
        return then
    before, after = (os.path.commonpath(map(os.path.dirname, stamps)) for stamps in (then, now))
    moved = {os.path.join(after, os.path.relpath(name, before)): name for name in then}
    return {new if new in now else name: then[name] for new, name in moved.items()}


def _compare(then: Mapping[str, Sequence[int]], now: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """Describe how each file changed; files that are new are left out."""
    changed = {}
    for name, before in then.items():
        after = now.get(name)
        if after is None:
            named = os.path.isabs(name) and os.path.exists(name)
            changed[name] = "is no longer in the card" if named else "is gone"
        elif after[0] != before[0]:
            changed[name] = f"had {before[0]} bytes, has {after[0]}"
        elif list(after) != list(before):
            changed[name] = "was written to"
    return changed


def _name(changed: Mapping[str, str]) -> str:
    (name, what), *others = changed.items()
    more = f" and {len(others)} more files" if others else ""
    return f"{name} ({what}){more}"


class StoreVerifier:
    """Reads stores in a thread of its own and compares their checksums, slowly."""

    def __init__(self, stores: Sequence[Path], share: float = READING_SHARE) -> None:
        """Start reading.

        Args:
            stores: the stores.
            share: largest share of the time for which they are read.
        """
        self.damage: str | None = None
        """A sentence on the first file that differs; None while none is found."""
        self._share = share
        self._ended = threading.Event()
        self._files = [(store, *file) for store in stores for file in _described_files(store)]
        self.read_bytes = 0
        """Bytes that were compared so far."""
        self._thread = threading.Thread(target=self._verify, name="store-verifier", daemon=True)
        self._thread.start()

    def finish(self, seconds: float) -> str | None:
        """Read the rest as fast as possible, at most for some time.

        Returns:
            A sentence on what could not be compared in that time; None if all was.
        """
        self._share = 1.0
        self._thread.join(seconds)
        if not self._thread.is_alive():
            return None
        self.close()
        total = sum(size for *_, size, _ in self._files)
        stores = {store for store, *_ in self._files}
        commands = ", ".join(f"'hydragnn-hpo dataset check {store}'" for store in sorted(stores))
        return (
            f"only {self.read_bytes / 1e9:.3g} of {total / 1e9:.3g} GB of the stores were compared "
            f"with their checksums; compare all with {commands}."
        )

    def close(self) -> None:
        """Stop reading."""
        self._ended.set()

    def _verify(self) -> None:
        for _, file, _, checksum in self._files:
            try:
                actual = self._hash(file)
            except OSError as error:  # trials report files that are away
                logger.info("%s: cannot be read (%s)", file, error.strerror)
                return
            if actual is None:
                return
            if actual != checksum:
                self.damage = f"{file}: was altered (its SHA-256 differs); {_CURE}"
                return

    def _hash(self, file: Path) -> str | None:
        """Return the SHA-256 of a file; None if this was closed meanwhile."""
        digest = hashlib.sha256()
        with file.open("rb") as stream:
            while True:
                began = time.monotonic()
                chunk = stream.read(CHUNK_BYTES)
                if not chunk:
                    return digest.hexdigest()
                digest.update(chunk)
                self.read_bytes += len(chunk)
                if not self._rest(time.monotonic() - began):
                    return None

    def _rest(self, spent: float) -> bool:
        """Wait as long as the share demands, or until it is raised; return False if closed."""
        end = time.monotonic() + spent * (1.0 / self._share - 1.0)
        while (left := end - time.monotonic()) > 0.0 and self._share < 1.0:
            if self._ended.wait(min(left, 0.2)):
                return False
        return not self._ended.is_set()


def check_description(store: Path) -> None:
    """Check what a store says about itself, and its files' sizes, against when it was built.

    Args:
        store: a store for which ``note_seen`` wrote a file.

    Raises:
        StorageError: a file is missing, cut off or altered.
    """
    seen: Any = read_json(seen_file(store))
    for name, (size, _) in seen["store"].items():
        file = store / name
        if not file.is_file():
            raise StorageError(f"{file}: is gone from its store; {_CURE}")
        if (actual := file.stat().st_size) != size:
            raise StorageError(f"{file}: has {actual} bytes instead of {size}; {_CURE}")
    for name, checksum in seen["description"].items():
        if hash_file(store / name) != checksum:
            raise StorageError(f"{store / name}: was altered; {_CURE}")


def _described_files(store: Path) -> Iterator[tuple[Path, int, str]]:
    """Yield path, size and SHA-256 of the files that the index of a store describes."""
    index: Any = read_json(store / "index.json")
    for part in index["parts"]:
        for entry in part["files"]:
            yield store / part["name"] / entry["path"], entry["bytes"], entry["sha256"]
