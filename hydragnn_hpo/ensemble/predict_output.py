"""What a prediction writes: the columns of all formats, and parts of the output that are done.

The columns of a head ``t`` are ``t``, ``t_std``, ``t_std_epistemic``, ``t_lo90`` and ``t_hi90``
(or of other levels); a vector has ``t_x``, ``t_y``, ``t_z`` and so on, but one ``t_std``. The value
of one member is ``t_TRIAL``. Names carry no unit, so that scripts do not break over it.

``OUT.parts/`` holds ``plan.json`` and a file for each chunk that is done. A killed run goes on from
there, and ranks that see the folder share the work: every chunk has one name, and whichever rank
writes its part writes the same bytes.

Shapes: G graphs, R rows of a head (G or N), w components.
"""

import contextlib
import json
import shutil
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import numpy as np

from hydragnn_hpo.data import Columns
from hydragnn_hpo.ensemble.artefact import Manifest
from hydragnn_hpo.ensemble.inference import HeadPrediction, Prediction
from hydragnn_hpo.ensemble.structure_batches import ChunkId, Structures
from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.files import read_json, storage, write_json, write_pieces


class OutputFormat(StrEnum):
    """Suffix of an output file, which decides its format; ``writers.WRITERS`` has the writers."""

    CSV = ".csv"
    PARQUET = ".parquet"
    EXTXYZ = ".extxyz"
    XYZ = ".xyz"
    JSON = ".json"
    JSON_LINES = ".jsonl"
    BP = ".bp"


EXTXYZ_SUFFIXES = (OutputFormat.EXTXYZ, OutputFormat.XYZ)
"""Two suffixes of one format."""

MAX_REASONS = 20
"""Reasons why structures failed that are shown; all of them stand in the output."""

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

    def each(self) -> Iterator[tuple[int, int | None, str, str | None]]:
        """Go through good and bad structures in order.

        Returns:
            Position, row of the prediction (None for a bad one), name, and why it is bad.
        """
        row = 0
        for place, name in enumerate(self.structures.ids):
            error = self.structures.errors.get(place)
            yield place, row if error is None else None, name, error
            row += error is None

    def good(self) -> list[int]:
        """Return the positions of the structures that were predicted, in order."""
        return [place for place, row, *_ in self.each() if row is not None]

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
        bounds = [f"_{end}{level}" for level in self.levels for end in ("lo", "hi")]
        ends = [bound + axis for bound in bounds for axis in axes]
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
        """Return the keys to copy that are not among those found."""
        return tuple(key for key in self.keep if key not in found)

    def provenance(self) -> dict[str, str]:
        """Return where the numbers come from."""
        manifest = self.manifest
        return {
            "ensemble_sha256": self.ensemble,
            "campaign": manifest.created_by.campaign,
            "package": manifest.package,
        }


def split_nodes(columns: Columns, values: np.ndarray) -> list[np.ndarray]:
    """Cut the rows of a node-level head into those of each structure."""
    return np.split(values, columns.node_offset[1:-1]) if columns.num_graphs else []


class Writer(ABC):
    """Writes a chunk's share of each file, and joins the shares of all chunks.

    ``part`` may run anywhere and any time; the bytes depend on the rows alone.
    """

    def __init__(self, layout: OutputColumns) -> None:
        """Keep the columns."""
        self.layout = layout

    @abstractmethod
    def part(self, some: Sequence[PredictedRows]) -> dict[str, bytes]:
        """Return the shares of some structures, by what is put behind the name of the output."""

    def whole(self, shares: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the main file, given its shares in order."""
        yield from shares

    def join(self, shares: Callable[[], Iterator[dict[str, bytes]]], out: Path) -> list[Path]:
        """Write each file whole or not at all, and return their paths, the main one first.

        Args:
            shares: reads the shares of all chunks in order, as often as it is called.
            out: path of the main file.
        """
        write_pieces(out, self.whole(share[""] for share in shares()))
        return [out]


@dataclass
class PredictOutcome:
    """How much was predicted, and what went wrong."""

    structures: int = 0
    """Structures of the input, also those that could not be predicted."""
    failed: int = 0
    """Structures that could not be predicted."""
    errors: list[str] = field(default_factory=list)
    """The first reasons why."""
    kept: set[str] = field(default_factory=set)
    """Keys to copy that some structure had."""
    files: tuple[Path, ...] = ()
    """The files of the output, the main one first."""
    lacking: tuple[str, ...] = ()
    """Keys to copy that no structure had."""

    def add(self, structures: int, failed: int, errors: Iterable[str], kept: Iterable[str]) -> None:
        """Count more structures.

        Args:
            structures: how many.
            failed: how many of them could not be predicted.
            errors: reasons why.
            kept: keys to copy that some of them had.
        """
        self.structures += structures
        self.failed += failed
        self.errors = [*self.errors, *errors][:MAX_REASONS]
        self.kept.update(kept)

    def add_batch(self, batch: Structures) -> None:
        """Count a batch of structures."""
        self.add(len(batch.ids), len(batch.errors), batch.errors.values(), set().union(*batch.kept))


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
        self.plan = self.folder / "plan.json"

    def begin(self, plan: Mapping[str, str]) -> None:
        """Make the folder, or go on with it if it was made for the same plan.

        Args:
            plan: what decides the output, by what a person would call it.

        Raises:
            ConfigError: it was begun for other structures, another ensemble or other options, or
                does not say for what.
        """
        if not self.plan.exists():
            if self.done():
                raise self._unknown_plan()
            with storage(self.folder):
                self.folder.mkdir(exist_ok=True)
            write_json(self.plan, dict(plan))  # ranks that come together write the same
        self.check_plan(plan)

    def check_plan(self, plan: Mapping[str, str]) -> None:
        """Check that the folder was made for a plan.

        Raises:
            ConfigError: it was begun for other structures, another ensemble, other options.
            StorageError: it is gone.
        """
        known = read_json(self.plan)
        if not isinstance(known, dict):
            raise self._unknown_plan()
        differs = [name for name in {**known, **plan} if known.get(name) != plan.get(name)]
        if differs:
            raise ConfigError(
                f"{self.folder}: was begun with another {differs[0]} than this command has; "
                "remove it to start over, or repeat the command it was begun with."
            )

    def _unknown_plan(self) -> ConfigError:
        return ConfigError(
            f"{self.folder}: does not say what its pieces are of; remove it to start over."
        )

    def write(
        self, chunk: ChunkId, sections: Mapping[str, bytes], outcome: PredictOutcome, *, last: bool
    ) -> PartHeader:
        """Write a part whole, durably.

        Args:
            chunk: what it is of.
            sections: its share of each file of the output.
            outcome: of the chunk's structures.
            last: no structure of the source comes after.
        """
        checksum = 0
        for content in sections.values():
            checksum = zlib.crc32(content, checksum)
        header = PartHeader(
            structures=outcome.structures,
            failed=outcome.failed,
            last=last,
            sections={name: len(content) for name, content in sections.items()},
            crc32=checksum,
            errors=outcome.errors,
            kept=sorted(outcome.kept),
        )
        line = json.dumps(asdict(header)).encode() + b"\n"
        write_pieces(self._path(chunk), (line, *sections.values()))
        return header

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

    def headers(self, num_sources: int) -> dict[ChunkId, PartHeader] | None:
        """Return the headers of all chunks in order, or None while the part of one is missing."""
        headers: dict[ChunkId, PartHeader] = {}
        for source in range(num_sources):
            number, last = 0, False
            while not last:
                chunk = ChunkId(source, number)
                header = self.header(chunk)
                if header is None:
                    return None
                headers[chunk] = header
                number, last = number + 1, header.last
        return headers

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
        return [ChunkId.parse(path.stem) for path in self.folder.glob("[0-9]*.part")]

    def remove(self) -> None:
        """Remove the folder: the output is whole. For other ranks it vanishes in one moment."""
        gone = self.folder.with_name(f".{self.folder.name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def leave(self) -> None:
        """Leave what is done for the next run; a folder without any is removed."""
        if not self.done():
            self.remove()

    def _path(self, chunk: ChunkId) -> Path:
        return self.folder / f"{chunk.source:06d}-{chunk.number:08d}.part"
