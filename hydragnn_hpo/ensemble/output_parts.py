"""Pieces that are predicted already, kept beside the output until it is whole.

``OUT.parts/`` holds ``plan.json`` and a file for each piece that is done. A killed run goes on
from there, and ranks that share the folder share the work: every piece has one name, and whoever
writes it writes the same bytes.
"""

import contextlib
import json
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.files import read_json, storage, write_json, write_pieces

_PLAN = "plan.json"
_SUFFIX = ".part"


class ChunkId(NamedTuple):
    """Some structures of the input, see ``streaming.lots``."""

    lot: int
    """Which lot of the input, from 0."""
    number: int
    """Which piece of the lot, from 0."""


@dataclass(frozen=True)
class PartHeader:
    """What the first line of a part says."""

    structures: int
    """Structures of the piece, also those that could not be predicted."""
    failed: int
    """Structures that could not be predicted."""
    last: bool
    """No structure of the lot comes after this piece."""
    sections: dict[str, int]
    """Bytes of each file's share, by what is put behind the name of the output."""
    crc32: int
    """Checksum of all shares, end to end."""
    errors: Sequence[str] = ()
    """Some of the reasons why structures could not be predicted."""
    kept: Sequence[str] = ()
    """Keys to take along that some structure had."""


class PartFolder:
    """The folder ``OUT.parts``."""

    def __init__(self, out: Path) -> None:
        """Take the path of the output; nothing is made yet."""
        self.out = out
        self.folder = out.with_name(out.name + ".parts")

    def begin(self, plan: Mapping[str, str]) -> None:
        """Make the folder, or go on with it if it was made for the same plan.

        Args:
            plan: what decides the output, by what a person would call it.

        Raises:
            ConfigError: it was begun for other structures, another ensemble, other options, or
                nobody knows for what.
        """
        path = self.folder / _PLAN
        if not path.exists():
            if self.done():
                raise self._unknown()
            with storage(self.folder):
                self.folder.mkdir(exist_ok=True)
            write_json(path, dict(plan))  # ranks that come together write the same
        self.agree(plan)

    def agree(self, plan: Mapping[str, str]) -> None:
        """See that the folder was made for a plan.

        Raises:
            ConfigError: it was begun for other structures, another ensemble, other options.
            StorageError: it is gone.
        """
        known = read_json(self.folder / _PLAN)
        if not isinstance(known, dict):
            raise self._unknown()
        differs = [name for name in {**known, **plan} if known.get(name) != plan.get(name)]
        if differs:
            raise ConfigError(
                f"{self.folder}: was begun with another {differs[0]} than this command has; "
                "remove it to begin anew, or repeat the command it was begun with."
            )

    def _unknown(self) -> ConfigError:
        """Refuse pieces of which nobody knows what they are of."""
        return ConfigError(
            f"{self.folder}: does not say what its pieces are of; remove it to begin anew."
        )

    def header(self, piece: ChunkId) -> PartHeader | None:
        """Say what a part holds; None where it is not there, or not whole."""
        try:
            with self._path(piece).open("rb") as file:
                line = file.readline()
                header = PartHeader(**json.loads(line))
                size = file.seek(0, 2) - len(line)
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return header if size == sum(header.sections.values()) else None

    def write(
        self,
        piece: ChunkId,
        sections: Mapping[str, bytes],
        *,
        structures: int,
        errors: Sequence[str] = (),
        failed: int = 0,
        kept: Sequence[str] = (),
        last: bool,
    ) -> PartHeader:
        """Write a part whole, durably.

        Args:
            piece: what it is of.
            sections: its share of each file of the output.
            structures: structures of the piece.
            errors: some reasons why structures could not be predicted.
            failed: structures that could not be predicted.
            kept: keys to take along that some structure had.
            last: no structure of the lot comes after.
        """
        checksum = 0
        for content in sections.values():
            checksum = zlib.crc32(content, checksum)
        sizes = {name: len(content) for name, content in sections.items()}
        header = PartHeader(structures, failed, last, sizes, checksum, list(errors), list(kept))
        line = json.dumps(asdict(header)).encode() + b"\n"
        write_pieces(self._path(piece), (line, *sections.values()))
        return header

    def whole(self, lots: int) -> list[ChunkId] | None:
        """Give all pieces in order, or None while one is missing.

        Args:
            lots: lots of the input.
        """
        found = []
        for lot in range(lots):
            header, number = None, 0
            while header is None or not header.last:
                header = self.header(ChunkId(lot, number))
                if header is None:
                    return None
                found.append(ChunkId(lot, number))
                number += 1
        return found

    def read(self, piece: ChunkId) -> dict[str, bytes]:
        """Give the shares of a part.

        Raises:
            DataError: it is missing or damaged.
        """
        path = self._path(piece)
        try:
            line, _, body = path.read_bytes().partition(b"\n")
            header = PartHeader(**json.loads(line))
        except (OSError, ValueError, TypeError):
            header, body = None, b""
        if header is None or zlib.crc32(body) != header.crc32:
            raise DataError(f"{path}: is damaged; remove it and repeat the command.")
        sections, first = {}, 0
        for name, size in header.sections.items():
            sections[name] = body[first : first + size]
            first += size
        return sections

    def done(self) -> list[ChunkId]:
        """Name the pieces that are there, in any order."""
        found = (path.stem.split("-") for path in self.folder.glob(f"[0-9]*{_SUFFIX}"))
        return [ChunkId(int(lot), int(number)) for lot, number in found]

    def remove(self) -> None:
        """Remove the folder: the output is whole. For other ranks it vanishes in one moment."""
        gone = self.folder.with_name(f".{self.folder.name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def leave(self) -> None:
        """Leave what is done for the next run; a folder without any is removed."""
        if not any(self.folder.glob(f"*{_SUFFIX}")):
            self.remove()

    def _path(self, piece: ChunkId) -> Path:
        return self.folder / f"{piece.lot:06d}-{piece.number:08d}{_SUFFIX}"
