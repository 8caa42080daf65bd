"""Predict files of structures: what is asked for, and the chunks it is predicted in.

The input is cut into chunks (``structure_batches``). A process predicts chunks and writes a part of
the output for each, whole or not at all (``predict_output``); a run that was killed skips the parts
that are there. At the end the parts are joined in order. Many ranks run the same loop over the same
chunks and claim those they are at (``multi_rank``), so the output is the same to the byte.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hydragnn_hpo.data import Prefetcher
from hydragnn_hpo.ensemble.inference import Ensemble, load_ensemble
from hydragnn_hpo.ensemble.predict_output import (
    OutputColumns,
    PartFolder,
    PartHeader,
    PredictedRows,
    PredictOutcome,
    Writer,
    make_rows,
)
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
"""Batches that are read while the nets are at one."""

POLL_SECONDS, MAX_POLL_SECONDS = 0.2, 2.0
"""Between two looks at chunks of other ranks: short at first, then longer."""

Begin = Callable[[PartFolder, dict[str, str]], None]
Report = Callable[[PartHeader, bool], None]
"""Called with each chunk that is done, and whether it was there before."""


@dataclass(frozen=True)
class PredictRequest:
    """One prediction, as a person asks for it."""

    files: tuple[str, ...]
    """Files, folders, databases and stores to read."""
    archive: str
    """The ensemble's file."""
    out: str = ""
    """The output; empty where it is no file."""
    levels: tuple[str, ...] = ("90",)
    """Intervals in percent."""
    members: bool = False
    """Whether each member has columns of its own."""
    keep: tuple[str, ...] = ()
    """Keys of the input to copy into the output."""
    structure_column: str | None = None
    """For tables: the column with a structure."""
    form: str = "extxyz"
    """Format of standard input."""
    trust: tuple[str, ...] = ()
    """Packages whose convs may run."""
    compiled: bool = False
    """Whether members run as machine code."""

    def to_json(self) -> dict[str, Any]:
        """Return what ``from_json`` takes; paths lead to the same files from any folder."""
        files = [str(Path(file).absolute()) for file in self.files]
        absolute = {key: str(Path(getattr(self, key)).absolute()) for key in ("archive", "out")}
        return {**asdict(self), "files": files, **absolute}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read what ``to_json`` returned."""
        lists = {key: tuple(content[key]) for key in ("files", "levels", "keep", "trust")}
        return cls(**{**content, **lists})

    @property
    def parts(self) -> PartFolder:
        """The folder of parts that are done."""
        return PartFolder(Path(self.out))

    @contextlib.contextmanager
    def open_input(
        self, device: str = "cpu"
    ) -> Iterator[tuple[Ensemble, OutputColumns, ChunkReader]]:
        """Load the ensemble and open the input.

        Args:
            device: where to predict, see ``engine.devices_of``.

        Returns:
            The ensemble, the columns of the output, and what reads the structures.

        Raises:
            HydraError: something that is asked for is not there.
        """
        model = load_ensemble(device, Path(self.archive), trust=self.trust, compiled=self.compiled)
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
        """Begin to write the output, or go on with it.

        Args:
            device: where to predict, see ``engine.devices_of``.
            begin: called when all is well, with the folder of parts and what decides the output.

        Raises:
            HydraError: something that is asked for is not there, or the output was begun by
                another request.
        """
        with self.open_input(device) as (model, columns, reader):
            parts = self.parts
            writer = make_writer(parts.out, columns)
            refuse_to_replace(reader.sources, parts.out)
            checksum = checksum_input(reader.sources)
            if checksum is None:
                parts.remove()  # what came through standard input does not come again
            begin(parts, self._plan(checksum or "standard input", columns))
            yield PredictPipeline(model, reader, writer, parts)

    def _plan(self, checksum: str, columns: OutputColumns) -> dict[str, str]:
        """Return what decides the bytes of the output, see ``PartFolder.begin``."""
        options = [Path(self.out).suffix, columns.levels, columns.members, columns.keep]
        options += [self.structure_column, self.form, *["compiled"] * self.compiled]
        return {
            "set of structures": checksum,
            "ensemble": columns.ensemble,
            "set of options": " ".join(map(str, options)),
        }


@dataclass(frozen=True)
class PredictPipeline:
    """From chunks of the input to parts of the output, and from all parts to the output."""

    model: Ensemble
    """Predicts."""
    reader: ChunkReader
    """Reads the structures."""
    writer: Writer
    """Writes them in the format of the output."""
    parts: PartFolder
    """Where parts are kept, begun."""

    @property
    def num_sources(self) -> int:
        """Number of sources that the input was divided into."""
        return len(self.reader.sources)

    def is_last(self, chunk: ChunkId) -> bool:
        """Check whether a chunk is known as the last of its source before it is read."""
        return self.reader.sources[chunk.source].whole

    def header(self, chunk: ChunkId) -> PartHeader | None:
        """Return what the part of a chunk says; None while there is no whole part."""
        return self.parts.header(chunk)

    def predict(self, chunk: ChunkId) -> PartHeader:
        """Predict a chunk and write its part; an empty one behind the end of the source."""
        rows, outcome, last = list[PredictedRows](), PredictOutcome(), False
        with Prefetcher(lambda batch: batch, self.reader.batches(chunk), BATCHES_AHEAD) as batches:
            for batch, last in batches:  # noqa: B007
                outcome.add_batch(batch)
                if batch.ids:
                    rows.append(predict_rows(self.model, batch, self.writer.layout))
        return self.parts.write(chunk, self.writer.part(rows), outcome, last=last)

    def join(self) -> PredictOutcome | None:
        """Write the output from the parts, and remove them; None while one is missing.

        Raises:
            DataError: a part is damaged, or no structure was there at all.
        """
        headers = self.parts.headers(self.num_sources)
        if headers is None:
            return None
        outcome = PredictOutcome()
        for header in headers.values():
            outcome.add(header.structures, header.failed, header.errors, header.kept)
        if not outcome.structures:
            self.parts.remove()
            raise _nothing_to_predict()

        def shares() -> Iterator[dict[str, bytes]]:
            return (self.parts.read(chunk) for chunk in headers)

        outcome.files = tuple(self.writer.join(shares, self.parts.out))
        outcome.lacking = self.writer.layout.lacking(outcome.kept)
        self.parts.remove()
        return outcome


def predict_chunks(
    pipeline: PredictPipeline,
    claims: "ChunkClaims | None" = None,
    *,
    report: Report = lambda header, before: None,
    pause: Callable[[float], None] = time.sleep,
) -> list[ChunkId]:
    """Predict every chunk that is not done: the loop of a process alone and of each of many ranks.

    Chunks are taken in order, so that a file is read once from its beginning. With claims, a chunk
    that another rank is at is left to it; when none is free this rank waits, and predicts what a
    lost rank leaves undone.

    Args:
        pipeline: predicts chunks.
        claims: of this rank, entered; None where no other rank is at work.
        report: called with each chunk once it is done.
        pause: waits for some seconds.

    Returns:
        Chunks that are given up: too many ranks were lost at them.
    """
    done: dict[ChunkId, bool] = {}  # and whether the source ends there
    wait = POLL_SECONDS
    while True:
        known, busy, given_up = len(done), False, list[ChunkId]()
        for chunk in _walk(pipeline, done):
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
        wait = POLL_SECONDS if len(done) > known else min(2 * wait, MAX_POLL_SECONDS)
        pause(wait)


def _walk(pipeline: PredictPipeline, done: Mapping[ChunkId, bool]) -> Iterator[ChunkId]:
    """Yield the chunks that are not done, each source up to the first chunk known as its last."""
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
    """Predict a chunk that no other rank is at; None where one is."""
    if claims is None:
        return pipeline.predict(chunk)
    if not claims.take(chunk.name):
        return None
    try:  # between the first look and the claim another rank may have finished it
        header = pipeline.header(chunk) or pipeline.predict(chunk)
    except (SystemExit, KeyboardInterrupt):  # asked to end: not the chunk's doing
        claims.drop(chunk.name)
        raise
    claims.drop(chunk.name)
    return header


def predict_rows(model: Ensemble, batch: Structures, columns: OutputColumns) -> PredictedRows:
    """Predict some structures, as far as an output has columns for it."""
    levels = [level for level in columns.levels if level != 90]
    prediction = model.predict(batch.columns, levels=levels, members=columns.members)
    return make_rows(batch, prediction)


def stream_rows(
    model: Ensemble, columns: OutputColumns, reader: ChunkReader, outcome: PredictOutcome
) -> Iterator[PredictedRows]:
    """Predict all of the input batch after batch, for an output that is no file.

    Args:
        model: predicts.
        columns: of the output.
        reader: reads the structures.
        outcome: counts them; what they lack is known at the end.

    Raises:
        DataError: no structure was there at all.
    """
    for batch in read_structures(reader):
        outcome.add_batch(batch)
        yield predict_rows(model, batch, columns)
    if not outcome.structures:
        raise _nothing_to_predict()
    outcome.lacking = columns.lacking(outcome.kept)


def _nothing_to_predict() -> DataError:
    return DataError("there is no structure to predict; give a file or folder with one.")


def make_writer(out: Path, columns: OutputColumns) -> Writer:
    """Return the writer of an output, chosen by its suffix.

    Raises:
        ConfigError: it is not known, or needs a package that is not installed.
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
        archive: its file.
        levels: intervals in percent, as they were typed.
        members: each member has columns of its own.
        keep: keys of the input to copy into the output.

    Raises:
        ConfigError: the ensemble has no interval of a level, or a key is the title of a column.
    """
    percents = _parse_levels(model, levels)
    columns = OutputColumns(
        model.manifest, percents, members, tuple(dict.fromkeys(keep)), hash_file(archive)
    )
    titles = {"id", "trust", "error", "numbers", "num_nodes", "atom", "element"}
    titles |= {title for name in model.manifest.heads for title in columns.titles(name)}
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
