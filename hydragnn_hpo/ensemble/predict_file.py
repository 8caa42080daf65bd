"""Predict files of structures chunk by chunk: requests, and the loop that every rank runs.

The input is cut into chunks (``structure_batches``). A process predicts chunks and writes each one
to a part of the output, whole or not at all (``predict_output``); a run restarted after a kill
skips the parts that exist. At the end the parts are joined in order. Several ranks run the same
loop over the same chunks, and each claims the chunk that it predicts (``multi_rank``); the output
is the same to the byte for any number of ranks.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hydragnn_hpo.data import Prefetcher
from hydragnn_hpo.ensemble.inference import Ensemble, load_ensemble
from hydragnn_hpo.ensemble.predict_output import (
    OutputColumns,
    PartFolder,
    PartHeader,
    PredictedRows,
    PredictOutcome,
    Share,
    Writer,
    make_rows,
)
from hydragnn_hpo.ensemble.prediction import STRUCTURE_INDEX
from hydragnn_hpo.ensemble.structure_batches import (
    ChunkId,
    ChunkReader,
    StructureFiles,
    Structures,
    checksum_input,
    list_input_sources,
    read_structures,
    refuse_to_replace,
)
from hydragnn_hpo.ensemble.writers import WRITERS
from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.files import hash_file

if TYPE_CHECKING:
    from hydragnn_hpo.ensemble.multi_rank import ChunkClaims

BATCHES_AHEAD = 1
"""Batches read ahead while the nets predict one."""

POLL_SECONDS, MAX_POLL_SECONDS = 0.2, 2.0
"""Shortest and longest time between two polls of the chunks of other ranks."""

Begin = Callable[[PartFolder, dict[str, str]], None]
"""Called with the folder of parts and the plan, before anything is predicted."""
Report = Callable[[PartHeader, bool], None]
"""Called with the header of each part, and whether the part existed before this run."""
ReportBatch = Callable[[int], None]
"""Called with the number of structures of each batch of a chunk, once they are predicted."""


@dataclass(frozen=True)
class PredictRequest:
    """The options of one prediction."""

    files: tuple[str, ...]
    """Files, folders, databases and stores to read."""
    archive: str
    """Path of the ``ensemble.zip``."""
    out: str = ""
    """The file to write; empty for standard output."""
    levels: tuple[str, ...] = ("90",)
    """Interval levels in percent, as typed by the user."""
    members: bool = False
    """True also writes the columns of each member."""
    keep: tuple[str, ...] = ()
    """Keys of the input to copy into the output."""
    structure_column: str | None = None
    """Column of a CSV file with a structure's text or file name."""
    form: str = "extxyz"
    """Format of standard input: a file suffix or ASE's name of the format."""
    trust: tuple[str, ...] = ()
    """Packages whose convs may be imported, which runs their code."""

    @property
    def parts(self) -> PartFolder:
        """The folder of the parts of the output."""
        return PartFolder(Path(self.out))

    @contextlib.contextmanager
    def open_input(
        self, device: str = "cpu"
    ) -> Iterator[tuple[Ensemble, OutputColumns, ChunkReader]]:
        """Load the ensemble and open the input.

        Args:
            device: device to predict on, see ``engine.devices_of``.

        Yields:
            The ensemble, the columns of the output, and the reader of the structures.

        Raises:
            HydraError: the ensemble, a file, a level or a device does not exist.
        """
        model = load_ensemble(device, Path(self.archive), trust=self.trust)
        columns = select_columns(
            model, Path(self.archive), levels=self.levels, members=self.members, keep=self.keep
        )
        sources = list_input_sources([Path(file) for file in self.files])
        files = StructureFiles(self.structure_column, self.form)
        with ChunkReader(sources, model.rules, files, columns.keep) as reader:
            yield model, columns, reader

    @contextlib.contextmanager
    def open_output(
        self, device: str = "cpu", *, begin: Begin = PartFolder.begin
    ) -> Iterator["PredictPipeline"]:
        """Open the output to write its parts, new or continued from an earlier run.

        Args:
            device: device to predict on, see ``engine.devices_of``.
            begin: makes or checks the folder of parts; called after all other checks.

        Raises:
            HydraError: the ensemble, a file, a level or a device does not exist, or the output
                was begun by another request.
        """
        with self.open_input(device) as (model, columns, reader):
            parts = self.parts
            writer = make_writer(parts.out, columns)
            refuse_to_replace(reader.sources, Path(self.archive), parts.out)
            checksum = checksum_input(reader.sources)
            if checksum is None:
                parts.remove()  # made from standard input, which cannot be read again
            begin(parts, self._plan(checksum or "standard input", columns))
            yield PredictPipeline(model, reader, writer, parts)

    def _plan(self, checksum: str, columns: OutputColumns) -> dict[str, str]:
        """Return everything that determines the bytes of the output, see ``PartFolder.begin``."""
        options = [Path(self.out).suffix, columns.levels, columns.members, columns.keep]
        options += [self.structure_column, self.form]
        return {
            "set of structures": checksum,
            "ensemble": columns.ensemble,
            "set of options": " ".join(map(str, options)),
        }


@dataclass(frozen=True)
class PredictPipeline:
    """Predicts chunks of the input into parts of the output, and joins all parts."""

    model: Ensemble
    """The ensemble that predicts."""
    reader: ChunkReader
    """Reads the structures."""
    writer: Writer
    """Renders predictions in the format of the output."""
    parts: PartFolder
    """Holds the parts; its folder exists, with the plan of this request."""
    report_batch: ReportBatch = lambda structures: None
    """Called after each batch of a chunk, long before the chunk is done."""

    @property
    def num_sources(self) -> int:
        """Number of sources of the input."""
        return len(self.reader.sources)

    def is_last(self, chunk: ChunkId) -> bool:
        """Check whether a chunk is known to be the last of its source before it is read."""
        return self.reader.sources[chunk.source].whole

    def header(self, chunk: ChunkId) -> PartHeader | None:
        """Return the header of a chunk's part; None while there is no complete part."""
        return self.parts.header(chunk)

    def predict(self, chunk: ChunkId) -> PartHeader:
        """Predict a chunk and write its part, empty if the source ends before the chunk."""
        rows = list[PredictedRows]()
        outcome = PredictOutcome()
        last = False
        with Prefetcher(lambda batch: batch, self.reader.batches(chunk), BATCHES_AHEAD) as batches:
            for batch, last in batches:  # noqa: B007
                outcome.add_batch(batch)
                if batch.ids:
                    rows.append(predict_rows(self.model, batch, self.writer.layout))
                self.report_batch(len(batch.ids))
        return self.parts.write(chunk, self.writer.part(rows), outcome, last=last)

    def join(self) -> PredictOutcome | None:
        """Write the output from the parts, and remove them.

        Returns:
            The outcome summed over all parts; None while a part is missing.

        Raises:
            DataError: a part is damaged, or the input holds no structure.
        """
        headers = self.parts.headers(self.num_sources)
        if headers is None:
            return None
        outcome = PredictOutcome()
        for header in headers.values():
            outcome.add(header.structures, header.failed, header.errors, header.kept)
            outcome.incomplete += header.incomplete
        if not outcome.structures:
            self.parts.remove()
            raise _nothing_to_predict()

        def shares() -> Iterator[Share]:
            return (self.parts.read(chunk) for chunk in headers)

        outcome.files = tuple(self.writer.join(shares, self.parts.out))
        outcome.lacking = self.writer.layout.lacking(outcome.kept)
        outcome.constants = self.model.constants
        outcome.unguaranteed = self.writer.layout.unguaranteed()
        self.parts.remove()
        return outcome


def predict_chunks(
    pipeline: PredictPipeline,
    claims: "ChunkClaims | None" = None,
    *,
    report: Report = lambda header, before: None,
    pause: Callable[[float], None] = time.sleep,
) -> list[ChunkId]:
    """Predict every unfinished chunk; a single process and each of several ranks run this loop.

    Chunks are taken in order, so that each file is read once from its beginning. With claims, this
    rank skips chunks that another rank has claimed; when no chunk is free it waits, and takes over
    the chunks of ranks that are lost.

    Args:
        pipeline: predicts chunks.
        claims: claims of this rank, inside their ``with``; None if there is no other rank.
        report: called with each part once it is written or found.
        pause: sleeps for the given number of seconds.

    Returns:
        Chunks that are given up, because too many ranks were lost while they predicted them.
    """
    done: dict[ChunkId, bool] = {}  # whether the chunk is the last of its source
    wait = POLL_SECONDS
    while True:
        before_round = len(done)
        busy = False
        given_up = list[ChunkId]()
        for chunk in _unfinished_chunks(pipeline, done):
            before = pipeline.header(chunk)
            header = before or _predict_claimed(pipeline, claims, chunk)
            if header is not None:
                done[chunk] = header.last
                report(header, before is not None)
            elif claims is not None and claims.is_given_up(chunk.name):
                given_up.append(chunk)
            else:
                busy = True
        if not busy:
            return given_up
        wait = POLL_SECONDS if len(done) > before_round else min(2 * wait, MAX_POLL_SECONDS)
        pause(wait)


def _unfinished_chunks(
    pipeline: PredictPipeline, done: Mapping[ChunkId, bool]
) -> Iterator[ChunkId]:
    """Yield the unfinished chunks of each source, up to the source's last chunk.

    If no chunk of a source is known to be the last, its chunks go on without end.

    Args:
        pipeline: has the sources.
        done: finished chunks, with whether each is the last of its source; the caller adds to it
            between two chunks, so that the loop over a source can end.
    """
    for source in range(pipeline.num_sources):
        number, last = 0, False
        while not last:
            chunk = ChunkId(source, number)
            if chunk not in done:
                yield chunk
            last = pipeline.is_last(chunk) or done.get(chunk, False)
            number += 1


def _predict_claimed(
    pipeline: PredictPipeline, claims: "ChunkClaims | None", chunk: ChunkId
) -> PartHeader | None:
    """Predict a chunk; None where another rank has claimed it."""
    if claims is None:
        return pipeline.predict(chunk)
    if not claims.take(chunk.name):
        return None
    try:
        # another rank may have finished the chunk after this rank's first look for its part
        header = pipeline.header(chunk) or pipeline.predict(chunk)
    except (SystemExit, KeyboardInterrupt):  # a planned end: the chunk did not kill this rank
        claims.drop(chunk.name)
        raise
    claims.drop(chunk.name)
    return header


def predict_rows(model: Ensemble, batch: Structures, columns: OutputColumns) -> PredictedRows:
    """Predict a batch with the interval levels and members that the output needs.

    Args:
        model: the ensemble that predicts.
        batch: G structures that can be predicted, and possibly bad ones.
        columns: columns of the output.
    """
    levels = [level for level in columns.levels if level != 90]
    prediction = model.predict(batch.columns, levels=levels, members=columns.members)
    return make_rows(batch, prediction)


def stream_rows(
    model: Ensemble, columns: OutputColumns, reader: ChunkReader, outcome: PredictOutcome
) -> Iterator[PredictedRows]:
    """Predict the whole input batch by batch, for standard output or a table.

    Args:
        model: the ensemble that predicts.
        columns: columns of the output.
        reader: reads the structures.
        outcome: counts of structures; updated, and complete once all rows are yielded.

    Raises:
        DataError: the input holds no structure.
    """
    outcome.unguaranteed = columns.unguaranteed()
    for batch in read_structures(reader):
        outcome.add_batch(batch)
        yield predict_rows(model, batch, columns)
    if not outcome.structures:
        raise _nothing_to_predict()
    outcome.lacking = columns.lacking(outcome.kept)
    outcome.constants = model.constants


def _nothing_to_predict() -> DataError:
    return DataError("there is no structure to predict; give a file or folder with one.")


def make_writer(out: Path, columns: OutputColumns) -> Writer:
    """Return the writer of an output, chosen by its suffix.

    Raises:
        ConfigError: the suffix is unknown, or its writer needs a package that is not installed.
    """
    if out.suffix not in WRITERS:
        raise ConfigError(f"{out}: cannot tell the format; end it in {', '.join(WRITERS)}.")
    return WRITERS[out.suffix](columns)


def select_columns(
    model: Ensemble,
    archive: Path,
    *,
    levels: Sequence[str] = ("90",),
    members: bool = False,
    keep: Sequence[str] = (),
) -> OutputColumns:
    """Return the columns of an output.

    Args:
        model: the ensemble.
        archive: the ensemble's file, for its checksum.
        levels: interval levels in percent, as typed by the user.
        members: True also writes the columns of each member.
        keep: keys of the input to copy into the output.

    Raises:
        ConfigError: the ensemble has no interval of a level, or a key is the title of a column.
    """
    percents = _parse_levels(model, levels)
    columns = OutputColumns(
        model.manifest, percents, members, tuple(dict.fromkeys(keep)), hash_file(archive)
    )
    titles = {"id", "trust", "error", "numbers", "num_nodes", "atom", "element", STRUCTURE_INDEX}
    titles |= {title for name in model.manifest.heads for title in columns.all_titles(name)}
    titles |= {f"{name}_class" for name, head in model.manifest.heads.items() if head.classes}
    if taken := [key for key in columns.keep if key in titles]:
        raise ConfigError(
            f"--keep {taken[0]}: the output has a column of this name; rename the key in the input."
        )
    return columns


def _parse_levels(model: Ensemble, levels: Sequence[str]) -> tuple[int, ...]:
    known = [str(level) for level in model.levels_known()]
    unknown = [level for level in levels if level not in known]
    if unknown or not levels:
        raise ConfigError(
            f"--levels {','.join(unknown)}: the ensemble has intervals of {', '.join(known)} "
            "percent; choose among these."
        )
    return tuple(sorted({int(level) for level in levels}))
