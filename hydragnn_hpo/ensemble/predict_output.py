"""Columns of an output, the same in all formats, and the parts of it that are done."""

import contextlib
import json
import shutil
import zlib
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from hydragnn_hpo.data import Columns
from hydragnn_hpo.ensemble.inference import HeadPrediction, Prediction
from hydragnn_hpo.ensemble.manifest import Manifest
from hydragnn_hpo.ensemble.structure_batches import ChunkId, Structures
from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.files import read_json, storage, write_json, write_pieces

AXES = {
    "scalar": ("",),
    "vector": ("_x", "_y", "_z"),
    "tensor": tuple(f"_{a}{b}" for a in "xyz" for b in "xyz"),
}
"""What is put behind the names of components, by the shape of a head."""


@dataclass(frozen=True, eq=False)
class PredictedRows:
    """Some structures and their predictions, without edges."""

    structures: Structures
    """Good ones and bad ones."""
    prediction: Prediction
    """For the good ones."""

    def good(self) -> list[int]:
        """Return the positions of the structures that were predicted, in order."""
        errors = self.structures.errors
        return [place for place in range(len(self.structures.ids)) if place not in errors]

    @property
    def num_nodes(self) -> np.ndarray:
        """Number of atoms of each good structure, [G]."""
        return self.structures.columns.num_nodes()


def make_rows(structures: Structures, prediction: Prediction) -> PredictedRows:
    """Return both together, without the edges, which take most of the memory."""
    columns = structures.columns
    light = replace(
        columns,
        edges=columns.edges[:0],
        edge_shift=columns.edge_shift[:0],
        edge_offset=np.zeros_like(columns.edge_offset),
        edge_translation=None,
        laplacian=None,
    )
    return PredictedRows(replace(structures, columns=light), prediction)


@dataclass(frozen=True)
class OutputColumns:
    """Which columns there are."""

    manifest: Manifest
    """Heads, units, provenance."""
    levels: tuple[int, ...] = (90,)
    """Intervals, in percent."""
    members: bool = False
    """Whether each member has columns of its own."""
    keep: tuple[str, ...] = ()
    """Keys of the input that are copied."""
    ensemble: str = ""
    """Checksum of the ensemble's file."""

    def names(self, level: str) -> list[str]:
        """Return the heads of a level: ``graph`` or ``node``."""
        return [name for name, head in self.manifest.heads.items() if head.level == level]

    def titles(self, name: str) -> list[str]:
        """Return the titles of a head's columns."""
        axes = AXES[self.manifest.heads[name].shape]
        ends = [f"_{end}{level}{axis}" for level, end, axis in self._ends(axes)]
        own = [f"_{trial}{axis}" for trial in self.trials(name) for axis in axes]
        return [name + tail for tail in (*axes, "_std", "_std_epistemic", *ends, *own)]

    def values(self, name: str, head: HeadPrediction) -> np.ndarray:
        """Return a head's columns side by side, in the order of their titles, [R, columns]."""
        bounds = {**head.bounds, 90: (head.lo90, head.hi90)}
        ends = [array for level in self.levels for array in bounds[level]]
        own = [head.members[trial] for trial in self.trials(name)]
        parts = [head.mean, head.std, head.std_epistemic, *ends, *own]
        return np.hstack(parts) if len(head.mean) else np.zeros((0, len(self.titles(name))))

    def trials(self, name: str) -> list[str]:
        """Return the members that have columns of their own for a head, by name."""
        if not self.members:
            return []
        return sorted(m.trial for m in self.manifest.members if name in m.weights)

    def lacking(self, found: Container[str]) -> tuple[str, ...]:
        """Return the keys to copy that no structure had.

        Args:
            found: those that some structure had.
        """
        return tuple(key for key in self.keep if key not in found)

    def provenance(self) -> dict[str, str]:
        """Return where the numbers come from."""
        manifest = self.manifest
        return {
            "ensemble_sha256": self.ensemble,
            "campaign": manifest.created_by.campaign,
            "package": manifest.package,
        }

    def _ends(self, axes: tuple[str, ...]) -> Iterator[tuple[int, str, str]]:
        for level in self.levels:
            for end in ("lo", "hi"):
                yield from ((level, end, axis) for axis in axes)


def split_nodes(columns: Columns, values: np.ndarray) -> list[np.ndarray]:
    """Cut the rows of a node-level head into those of each structure."""
    return np.split(values, columns.node_offset[1:-1]) if columns.num_graphs else []


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
