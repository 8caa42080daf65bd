"""Parts of an output, kept beside it until it is whole.

``OUT.parts/`` holds ``plan.json`` and a file for each chunk that is done. A killed run goes on from
there, and ranks that see the folder share the work: every chunk has one name, and whichever rank
writes its part writes the same bytes.
"""

import contextlib
import json
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hydragnn_hpo.ensemble.input_chunks import ChunkId
from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.files import read_json, storage, write_json, write_pieces

_PLAN = "plan.json"
_SUFFIX = ".part"


@dataclass(frozen=True)
class PartHeader:
    """What the first line of a part says."""

    structures: int
    """Structures of the chunk, also those that could not be predicted."""
    failed: int
    """Structures that could not be predicted."""
    last: bool
    """No structure of the source comes after this chunk."""
    sections: dict[str, int]
    """Bytes of each file's share, by what is put behind the name of the output."""
    crc32: int
    """Checksum of all shares, end to end."""
    errors: Sequence[str] = ()
    """Some of the reasons why structures could not be predicted."""
    kept: Sequence[str] = ()
    """Keys to copy that some structure had."""


class PartFolder:
    """The folder ``OUT.parts``."""

    def __init__(self, out: Path) -> None:
        """Remember the path of the output; nothing is made yet."""
        self.out = out
        self.folder = out.with_name(out.name + ".parts")

    def begin(self, plan: Mapping[str, str]) -> None:
        """Make the folder, or go on with it if it was made for the same plan.

        Args:
            plan: what decides the output, by what a person would call it.

        Raises:
            ConfigError: it was begun for other structures, another ensemble or other options, or
                does not say for what.
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
        """Check that the folder was made for a plan.

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
        return ConfigError(
            f"{self.folder}: does not say what its pieces are of; remove it to begin anew."
        )

    def header(self, chunk: ChunkId) -> PartHeader | None:
        """Return the header of a part; None where it is not there, or not whole."""
        try:
            with self._path(chunk).open("rb") as file:
                line = file.readline()
                header = PartHeader(**json.loads(line))
                size = file.seek(0, 2) - len(line)
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return header if size == sum(header.sections.values()) else None

    def write(
        self,
        chunk: ChunkId,
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
            chunk: what it is of.
            sections: its share of each file of the output.
            structures: structures of the chunk.
            errors: some reasons why structures could not be predicted.
            failed: structures that could not be predicted.
            kept: keys to copy that some structure had.
            last: no structure of the source comes after.
        """
        checksum = 0
        for content in sections.values():
            checksum = zlib.crc32(content, checksum)
        sizes = {name: len(content) for name, content in sections.items()}
        header = PartHeader(structures, failed, last, sizes, checksum, list(errors), list(kept))
        line = json.dumps(asdict(header)).encode() + b"\n"
        write_pieces(self._path(chunk), (line, *sections.values()))
        return header

    def whole(self, num_sources: int) -> list[ChunkId] | None:
        """Return all chunks in order, or None while the part of one is missing."""
        chunks = []
        for source in range(num_sources):
            header, number = None, 0
            while header is None or not header.last:
                header = self.header(ChunkId(source, number))
                if header is None:
                    return None
                chunks.append(ChunkId(source, number))
                number += 1
        return chunks

    def read(self, chunk: ChunkId) -> dict[str, bytes]:
        """Read the shares of a part.

        Raises:
            DataError: it is missing or damaged.
        """
        path = self._path(chunk)
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
        """Return the chunks whose parts are there, in any order."""
        return [ChunkId.parse(path.stem) for path in self.folder.glob(f"[0-9]*{_SUFFIX}")]

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

    def _path(self, chunk: ChunkId) -> Path:
        return self.folder / f"{chunk.source:06d}-{chunk.number:08d}{_SUFFIX}"
