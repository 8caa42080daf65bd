"""Plan a build: the files of a card, cut into pieces that are converted one by one."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydragnn_hpo import __version__
from hydragnn_hpo.config import CardConfig, FileConfig, load_config
from hydragnn_hpo.data.readers import reader_of
from hydragnn_hpo.data.readers.source import Reader, Source
from hydragnn_hpo.data.store_index import VERSION
from hydragnn_hpo.errors import ConfigError, DataError, StorageError
from hydragnn_hpo.files import hash_file

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
    """Read what ``Plan.to_json`` has written."""
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
    """Cut a file; one whose length nobody knows, or that says it is empty, is read whole."""
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
    how = [VERSION, __version__, window, prefix, entry.model_dump(mode="json")]
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
