"""The output of a prediction: the columns of all formats, and the parts that are done.

The titles of columns are those of ``prediction.head_titles``.

``OUT.parts/`` holds ``plan.json`` and a file, the *part*, for each chunk that is done. The next run
goes on from there after a kill, and ranks that see the folder share the work: a chunk always has
the same name, and its part the same bytes, whichever rank writes it.

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
from hydragnn_hpo.data.columns import without_edges
from hydragnn_hpo.ensemble.artefact import Manifest
from hydragnn_hpo.ensemble.prediction import (
    HeadPrediction,
    Prediction,
    head_titles,
    name_most_probable,
)
from hydragnn_hpo.ensemble.structure_batches import ChunkId, Structures
from hydragnn_hpo.errors import ConfigError, DataError, RunError, StorageError
from hydragnn_hpo.files import read_json, storage, write_json, write_pieces
from hydragnn_hpo.leases import FAILED, FINISHED, ControllerLease, find_controller


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
"""Most reasons why structures failed that are shown; the output holds all of them."""

Share = dict[str, bytes]
"""What one chunk contributes to each file of the output, by the suffix of the file's name; the main
file has the suffix ``""``."""


@dataclass(frozen=True, eq=False)
class PredictedRows:
    """Some structures and their predictions, without edges."""

    structures: Structures
    """G good ones, which could be predicted, and bad ones."""
    prediction: Prediction
    """Of the good ones, in their order."""

    def each(self) -> Iterator[tuple[int, int | None, str, str | None]]:
        """Iterate over good and bad structures in order.

        Yields:
            Position among all; position among the good ones (None for a bad one); name; and why it
            is bad (None for a good one).
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
    """Pair structures with their prediction, and drop the edges, which take most of the memory."""
    light = replace(without_edges(structures.columns), laplacian=None)
    return PredictedRows(replace(structures, columns=light), prediction)


@dataclass(frozen=True)
class OutputColumns:
    """The columns of an output."""

    manifest: Manifest
    """Heads, units, provenance."""
    levels: tuple[int, ...] = (90,)
    """Intervals, in percent, rising."""
    members: bool = False
    """True for columns of each member, too."""
    keep: tuple[str, ...] = ()
    """Keys of the input that are copied."""
    ensemble: str = ""
    """Checksum of the ensemble's file; empty where that is not written."""

    def names(self, level: str) -> list[str]:
        """Return the heads of a level: ``graph`` or ``node``."""
        return [name for name, head in self.manifest.heads.items() if head.level == level]

    def titles(self, name: str) -> list[str]:
        """Return the titles of all columns of a head."""
        return head_titles(name, self.manifest.heads[name], self.levels, self.trials(name))

    def all_titles(self, name: str) -> list[str]:
        """Return the titles of a head in a table: first, with the head's name, that of a class."""
        classes = self.manifest.heads[name].classes
        return [*([] if classes is None else [name]), *self.titles(name)]

    def name_classes(self, name: str, head: HeadPrediction) -> list[str | None] | None:
        """Return the most probable class of each row, None where it is missing.

        Returns:
            None for a head that predicts no classes.
        """
        classes = self.manifest.heads[name].classes
        if classes is None:
            return None
        return [one or None for one in name_most_probable(head, classes)]

    def values(self, name: str, head: HeadPrediction) -> np.ndarray:
        """Return all columns of a head, in the order of ``titles``, [R, columns]."""
        if not len(head.mean):
            return np.zeros((0, len(self.titles(name))))
        return head.columns(self.levels, self.trials(name))

    def trials(self, name: str) -> list[str]:
        """Return the members that have columns of their own for a head, by name."""
        if not self.members:
            return []
        return sorted(self.manifest.shares(name))

    def unguaranteed(self) -> tuple[str, ...]:
        """List the heads that had too few groups for the intervals of some level but 90 %.

        Returns:
            A sentence for each; the build of the ensemble has named those of 90 %.
        """
        return tuple(self.manifest.unguaranteed(level for level in self.levels if level != 90))

    def lacking(self, present: Container[str]) -> tuple[str, ...]:
        """Find the keys to copy that no structure had.

        Args:
            present: keys that some structure had.

        Returns:
            The others of ``keep``, in its order.
        """
        return tuple(key for key in self.keep if key not in present)

    def describe(self) -> dict[str, dict[str, str]]:
        """Return the units, and where the numbers come from.

        Returns:
            ``units`` by head; ``provenance``: the ensemble's checksum, its campaign, and the
            version of hydragnn-hpo that wrote it.
        """
        manifest = self.manifest
        provenance = {
            "ensemble_sha256": self.ensemble,
            "campaign": manifest.created_by.campaign,
            "package": manifest.package,
        }
        return {"units": manifest.units(), "provenance": provenance}


def split_nodes(columns: Columns, values: np.ndarray) -> list[np.ndarray]:
    """Split the rows of a node-level head, [N, ...], into those of each structure; G arrays."""
    return np.split(values, columns.node_offset[1:-1]) if columns.num_graphs else []


class Writer(ABC):
    """Renders the share of each chunk, and joins the shares of all chunks to the output.

    ``part`` may run on any rank at any time: the bytes depend on the rows alone.
    """

    def __init__(self, layout: OutputColumns) -> None:
        """Remember the columns."""
        self.layout = layout

    @abstractmethod
    def part(self, some: Sequence[PredictedRows]) -> Share:
        """Render the share of some structures."""

    def whole(self, shares: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the content of the main file, given the shares of it in order."""
        yield from shares

    def join(self, shares: Callable[[], Iterator[Share]], out: Path) -> list[Path]:
        """Write each file whole or not at all.

        Args:
            shares: reads the shares of all chunks in order; may be called several times.
            out: path of the main file.

        Returns:
            Paths of the files, the main one first.
        """
        write_pieces(out, self.whole(share[""] for share in shares()))
        return [out]


@dataclass
class PredictOutcome:
    """How many structures were predicted, and what went wrong."""

    structures: int = 0
    """Structures of the input, also those that could not be predicted."""
    failed: int = 0
    """Structures that could not be predicted."""
    errors: list[str] = field(default_factory=list)
    """The first reasons why, at most ``MAX_REASONS``."""
    kept: set[str] = field(default_factory=set)
    """Keys to copy that some structure had."""
    files: tuple[Path, ...] = ()
    """The files of the output, the main one first."""
    lacking: tuple[str, ...] = ()
    """Keys to copy that no structure had."""
    unguaranteed: tuple[str, ...] = ()
    """A sentence for each head with too few groups for the intervals that are written."""
    incomplete: list[str] = field(default_factory=list)
    """A sentence for each file that could be read only in part."""
    constants: dict[str, float] = field(default_factory=dict)
    """Constants in sums over atoms, by head, see ``find_constants``."""

    def add(self, structures: int, failed: int, errors: Iterable[str], kept: Iterable[str]) -> None:
        """Count more structures.

        Args:
            structures: number of structures.
            failed: number of those that could not be predicted.
            errors: reasons why; the first are enough.
            kept: keys to copy that some of them had.
        """
        self.structures += structures
        self.failed += failed
        self.errors = [*self.errors, *errors][:MAX_REASONS]
        self.kept.update(kept)

    def add_batch(self, batch: Structures) -> None:
        """Count a batch of structures."""
        self.add(len(batch.ids), len(batch.errors), batch.errors.values(), set().union(*batch.kept))
        self.incomplete += batch.incomplete


@dataclass(frozen=True)
class PartHeader:
    """The first line of a part, as JSON; the shares follow it."""

    structures: int
    """Structures of the chunk, also those that could not be predicted."""
    failed: int
    """Structures that could not be predicted."""
    last: bool
    """True if the source ends with this chunk."""
    sections: dict[str, int]
    """Bytes of the share of each file, by the suffix of the file's name, see ``Share``."""
    crc32: int
    """Checksum of all sections, end to end."""
    errors: Sequence[str] = ()
    """The first reasons why structures could not be predicted."""
    kept: Sequence[str] = ()
    """Keys to copy that some structure had."""
    incomplete: Sequence[str] = ()
    """A sentence for each file that could be read only in part."""


class PartFolder:
    """The folder ``OUT.parts``, which holds the parts of an output until they are joined."""

    def __init__(self, out: Path) -> None:
        """Remember the path of the output; the folder is not made yet."""
        self.out = out
        self.folder = out.parent / f"{out.name}.parts"
        self.plan = self.folder / "plan.json"
        self.launch = self.folder / "launch"

    def begin(self, plan: Mapping[str, str]) -> None:
        """Make the folder, or go on with it if it was made for the same plan.

        Args:
            plan: all that decides the bytes of the output, by the words that an error uses for it.

        Raises:
            ConfigError: it was made for other structures, another ensemble or other options, or
                holds no plan.
            StorageError: it cannot be written.
        """
        if not self.plan.exists():
            if self.done():
                raise self._unknown_plan()
            with storage(self.folder):
                self.folder.mkdir(exist_ok=True)
            try:
                write_json(self.plan, dict(plan))  # ranks that come together write the same
            except StorageError:  # a full disk leaves no empty folder
                self.leave()
                raise
        self.check_plan(plan)

    def check_plan(self, plan: Mapping[str, str]) -> None:
        """Check that the folder was made for a plan.

        Raises:
            ConfigError: it was made for other structures, another ensemble or other options.
            StorageError: it does not exist any more.
        """
        written = read_json(self.plan)
        if not isinstance(written, dict):
            raise self._unknown_plan()
        differs = [name for name in {**written, **plan} if written.get(name) != plan.get(name)]
        if differs:
            raise ConfigError(
                f"{self.folder}: was begun with another {differs[0]} than this command has; "
                "remove it to start over, or repeat the command it was begun with."
            )

    def _unknown_plan(self) -> ConfigError:
        return ConfigError(
            f"{self.folder}: does not say what its pieces are of; remove it to start over."
        )

    @contextlib.contextmanager
    def hold(self) -> Iterator[ControllerLease]:
        """Hold the folder, which exists, as the process that joins its parts.

        Yields:
            The lease, which the process renews.

        Raises:
            RunError: another process writes this output.
        """
        self.refuse_second_writer()
        with storage(self.launch):
            self.launch.mkdir(mode=0o700, exist_ok=True)
        lease = ControllerLease(self.launch)
        reason = FAILED
        try:
            yield lease
            reason = FINISHED
        finally:
            if self.launch.exists():  # gone once the parts are joined
                lease.release(reason)

    def refuse_second_writer(self) -> None:
        """Refuse an output that another process writes.

        Raises:
            RunError: another process holds the folder.
        """
        if holder := find_controller(self.launch):
            raise RunError(
                f"{self.out}: is being written by {holder}; wait for it, or choose another name."
            )

    def write(
        self, chunk: ChunkId, share: Share, outcome: PredictOutcome, *, last: bool
    ) -> PartHeader:
        """Write a part, whole or not at all.

        Args:
            chunk: of the part.
            share: what the chunk contributes to each file.
            outcome: of the chunk's structures.
            last: True if the source ends with this chunk.
        """
        checksum = 0
        for content in share.values():
            checksum = zlib.crc32(content, checksum)
        header = PartHeader(
            structures=outcome.structures,
            failed=outcome.failed,
            last=last,
            sections={name: len(content) for name, content in share.items()},
            crc32=checksum,
            errors=outcome.errors,
            kept=sorted(outcome.kept),
            incomplete=outcome.incomplete,
        )
        line = json.dumps(asdict(header)).encode() + b"\n"
        write_pieces(self._path(chunk), (line, *share.values()))
        return header

    def header(self, chunk: ChunkId) -> PartHeader | None:
        """Return the header of a part; None where there is none, or it is not whole."""
        try:
            with self._path(chunk).open("rb") as file:
                line = file.readline()
                header = PartHeader(**json.loads(line))
                size = file.seek(0, 2) - len(line)
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return header if size == sum(header.sections.values()) else None

    def headers(self, num_sources: int) -> dict[ChunkId, PartHeader] | None:
        """Read the headers of all parts.

        Args:
            num_sources: number of sources of the input.

        Returns:
            Headers by chunk, in order; None while the part of one chunk is missing.
        """
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

    def read(self, chunk: ChunkId) -> Share:
        """Read the share that a part holds.

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
        share = {}
        first = 0
        for name, size in header.sections.items():
            share[name] = body[first : first + size]
            first += size
        return share

    def done(self) -> list[ChunkId]:
        """Return the chunks that have a part, in any order."""
        return [ChunkId.parse(path.stem) for path in self.folder.glob("[0-9]*.part")]

    def remove(self) -> None:
        """Remove the folder once the output is whole; other ranks see all of it or none."""
        gone = self.folder.with_name(f".{self.folder.name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def leave(self) -> None:
        """Leave the parts for the next run; a folder without any is removed."""
        if not self.done():
            self.remove()

    def _path(self, chunk: ChunkId) -> Path:
        return self.folder / f"{chunk.source:06d}-{chunk.number:08d}.part"
