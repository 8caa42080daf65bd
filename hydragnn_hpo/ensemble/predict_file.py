"""From what a person asks for to the columns of an output."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from hydragnn_hpo.data.prefetch import Ahead
from hydragnn_hpo.data.store.index import sha256_of
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.input_chunks import (
    StructureFiles,
    checksum_input,
    list_input_sources,
    refuse_to_replace,
)
from hydragnn_hpo.ensemble.multi_device import load_on
from hydragnn_hpo.ensemble.output_columns import OutputColumns, PredictedRows, drop_edges
from hydragnn_hpo.ensemble.output_parts import ChunkId, PartFolder, PartHeader
from hydragnn_hpo.ensemble.structure_batches import ChunkReader, Structures
from hydragnn_hpo.ensemble.writers import Writer, make_writer
from hydragnn_hpo.errors import ConfigError, DataError


def select_columns(
    model: Ensemble,
    archive: Path,
    *,
    levels: Sequence[str] = ("90",),
    members: bool = False,
    keep: Sequence[str] = (),
) -> OutputColumns:
    """Say which columns an output has.

    Args:
        model: what predicts.
        archive: its file.
        levels: intervals in percent, as they were typed.
        members: each member has columns of its own.
        keep: keys of the input that are taken along.

    Raises:
        ConfigError: the ensemble has no interval of a level, or a key is the title of a column.
    """
    percents = _percents(model, levels)
    kept = tuple(dict.fromkeys(keep))
    layout = OutputColumns(model.manifest, percents, members, kept, sha256_of(archive))
    heads = model.manifest.heads
    titles = {"id", "trust", "error", "numbers", "num_nodes", "atom", "element"}
    titles |= {title for name in heads for title in layout.titles(name)}
    if taken := [key for key in layout.keep if key in titles]:
        raise ConfigError(
            f"--keep {taken[0]}: the output has a column of this name; rename the key in the input."
        )
    return layout


def _percents(model: Ensemble, levels: Sequence[str]) -> tuple[int, ...]:
    known = [str(level) for level in model.levels_known()]
    unknown = [level for level in levels if level not in known]
    if unknown or not levels:
        raise ConfigError(
            f"--levels {','.join(unknown)}: the ensemble has intervals of {', '.join(known)} "
            "percent; choose among these."
        )
    return tuple(sorted({int(level) for level in levels}))


MOST_REASONS = 20
"""Reasons of a piece that are told; all of them stand in the output."""

AHEAD = 1
"""Batches that are read while the nets are at one."""


@dataclass(frozen=True)
class PredictOutcome:
    """How a prediction ended."""

    structures: int
    """Structures there are, also those that could not be predicted."""
    failed: int
    """Structures that could not be predicted."""
    errors: tuple[str, ...]
    """The first reasons why."""
    files: tuple[Path, ...]
    """What was written, the main file first."""
    lacking: tuple[str, ...] = ()
    """Keys to take along that no structure had."""


class PredictPipeline:
    """The pieces of one prediction."""

    def __init__(
        self,
        model: Ensemble,
        reading: ChunkReader,
        form: Writer,
        layout: OutputColumns,
        parts: PartFolder,
    ) -> None:
        """Take all that is needed.

        Args:
            model: predicts.
            reading: gives the structures.
            form: writes them.
            layout: what is asked for.
            parts: where pieces that are done are kept, begun.
        """
        self._model, self._reading, self._form, self._parts = model, reading, form, parts
        self._layout = layout

    @property
    def lots(self) -> int:
        """How many lots there are."""
        return len(self._reading.lots)

    def count(self) -> int | None:
        """Count the structures where that is cheap."""
        return self._reading.count()

    def header(self, piece: ChunkId) -> PartHeader | None:
        """Say what became of a piece; None while it is not done."""
        return self._parts.header(piece)

    def finish(self, piece: ChunkId) -> PartHeader:
        """Predict a piece and keep the result; an empty one where its lot ended before."""
        rows, errors, structures, failed, last = list[PredictedRows](), list[str](), 0, 0, False
        kept: set[str] = set()
        with Ahead(lambda batch: batch, self._reading.batches(piece), AHEAD) as batches:
            for some, last in batches:  # noqa: B007
                structures, failed = structures + len(some.ids), failed + len(some.errors)
                errors += some.errors.values()
                kept.update(*some.kept)
                if some.ids:
                    rows.append(predict_rows(self._model, some, self._layout))
        return self._parts.write(
            piece,
            self._form.part(rows),
            structures=structures,
            errors=errors[:MOST_REASONS],
            failed=failed,
            kept=sorted(kept),
            last=last,
        )

    def do_all(self, tell: Callable[[PartHeader, bool], None]) -> None:
        """Do in order what is not done yet.

        Args:
            tell: is called with each piece, and whether it was there before.
        """
        for lot in range(self.lots):
            header, number = None, 0
            while header is None or not header.last:
                piece = ChunkId(lot, number)
                before = self.header(piece)
                header = before or self.finish(piece)
                tell(header, before is not None)
                number += 1

    def join(self) -> PredictOutcome | None:
        """Write the output from the pieces, and remove them; None while one is missing.

        Raises:
            DataError: a piece is damaged, or no structure was there at all.
        """
        pieces = self._parts.whole(self.lots)
        if pieces is None:
            return None
        found = [header for piece in pieces if (header := self._parts.header(piece))]
        structures = sum(header.structures for header in found)
        if not structures:
            self._parts.remove()
            raise DataError("there is no structure to predict; give a file or folder with one.")

        def shares() -> Iterator[dict[str, bytes]]:
            return (self._parts.read(piece) for piece in pieces)

        files = self._form.join(shares, self._parts.out)
        self._parts.remove()
        errors = [error for header in found for error in header.errors][:MOST_REASONS]
        failed = sum(header.failed for header in found)
        lacking = self._layout.lacking({key for header in found for key in header.kept})
        return PredictOutcome(structures, failed, tuple(errors), tuple(files), lacking)


def predict_rows(model: Ensemble, some: Structures, layout: OutputColumns) -> PredictedRows:
    """Predict some structures, as far as an output wants it."""
    prediction = model.predict(
        some.columns, levels=[n for n in layout.levels if n != 90], members=layout.members
    )
    return drop_edges(some, prediction)


def describe_output(
    identity: str, layout: OutputColumns, *, suffix: str, others: Sequence[str] = ()
) -> dict[str, str]:
    """Say what decides an output, see ``Parts.begin``.

    Args:
        identity: of the input, see ``lots.identity``.
        layout: of the output.
        suffix: of the output.
        others: settings of the command that change what is read or predicted.
    """
    asked = [suffix, layout.levels, layout.members, layout.keep, *others]
    return {
        "set of structures": identity,
        "ensemble": layout.ensemble,
        "set of options": " ".join(str(value) for value in asked),
    }


Begin = Callable[[PartFolder, dict[str, str]], None]
_LISTS = ("files", "levels", "keep", "trust")


@dataclass(frozen=True)
class PredictRequest:
    """One prediction."""

    files: tuple[str, ...]
    """Input, as lots are cut from it."""
    archive: str
    """The ensemble's file."""
    out: str = ""
    """The output; empty where it is no file."""
    levels: tuple[str, ...] = ("90",)
    """Intervals in percent."""
    members: bool = False
    """Whether each member has columns of its own."""
    keep: tuple[str, ...] = ()
    """Keys of the input to take along."""
    structure_column: str | None = None
    """For tables: the column with a structure."""
    form: str = "extxyz"
    """Format of standard input."""
    trust: tuple[str, ...] = ()
    """Packages whose convs may run."""
    compiled: bool = False
    """Whether members run as machine code."""

    def as_json(self) -> dict[str, Any]:
        """Give what ``from_json`` takes; paths lead to the same files from any folder."""
        files = [str(Path(file).absolute()) for file in self.files]
        absolute = {key: str(Path(getattr(self, key)).absolute()) for key in ("archive", "out")}
        return {**asdict(self), "files": files, **absolute}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read what ``as_json`` gave."""
        return cls(**{**content, **{key: tuple(content[key]) for key in _LISTS}})

    @property
    def parts(self) -> PartFolder:
        """Give the folder of what is done."""
        return PartFolder(Path(self.out))

    @contextlib.contextmanager
    def prepared(
        self, device: str = "cpu"
    ) -> Iterator[tuple[Ensemble, OutputColumns, ChunkReader]]:
        """Give what predicts, which columns an output has, and what reads the structures.

        Args:
            device: where to predict, see ``sharing.devices.devices_of``.

        Raises:
            HydraError: something that is asked for is not there.
        """
        model = load_on(device, Path(self.archive), trust=self.trust, compiled=self.compiled)
        layout = select_columns(
            model, Path(self.archive), levels=self.levels, members=self.members, keep=self.keep
        )
        lots = list_input_sources([Path(file) for file in self.files])
        files = StructureFiles(self.structure_column, self.form)
        with ChunkReader(lots, model.rules, files, layout.keep) as reading:
            yield model, layout, reading

    @contextlib.contextmanager
    def opened(
        self, device: str = "cpu", *, begin: Begin = PartFolder.begin
    ) -> Iterator[PredictPipeline]:
        """Begin to write the output, or go on with it.

        Args:
            device: where to predict, see ``sharing.devices.devices_of``.
            begin: called when all is well, with the folder of parts and what decides the output.

        Raises:
            HydraError: something that is asked for is not there, or was begun otherwise.
        """
        with self.prepared(device) as (model, layout, reading):
            out, parts = Path(self.out), self.parts
            form = make_writer(out, layout)
            refuse_to_replace(reading.lots, out)
            if (known := checksum_input(reading.lots)) is None:
                parts.remove()  # what came through standard input does not come again
            others = [str(self.structure_column), self.form, *["compiled"] * self.compiled]
            suffix = out.suffix
            begin(
                parts,
                describe_output(known or "standard input", layout, suffix=suffix, others=others),
            )
            yield PredictPipeline(model, reading, form, layout, parts)
