"""Predict pieces and put them together: what one process does, and what ranks share."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydragnn_hpo.data.prefetch import Prefetcher
from hydragnn_hpo.ensemble.inference.ensemble import Ensemble
from hydragnn_hpo.ensemble.inference.structures import Structures
from hydragnn_hpo.ensemble.output import Format, Layout, Rows, rows_of
from hydragnn_hpo.ensemble.streaming.parts import Header, Parts, Piece
from hydragnn_hpo.ensemble.streaming.reading import Reading
from hydragnn_hpo.errors import DataError

MOST_REASONS = 20
"""Reasons of a piece that are told; all of them stand in the output."""

AHEAD = 1
"""Batches that are read while the nets are at one."""


@dataclass(frozen=True)
class Outcome:
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


class Work:
    """The pieces of one prediction."""

    def __init__(
        self, model: Ensemble, reading: Reading, form: Format, layout: Layout, parts: Parts
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

    def header(self, piece: Piece) -> Header | None:
        """Say what became of a piece; None while it is not done."""
        return self._parts.header(piece)

    def finish(self, piece: Piece) -> Header:
        """Predict a piece and keep the result; an empty one where its lot ended before."""
        rows, errors, structures, failed, last = list[Rows](), list[str](), 0, 0, False
        kept: set[str] = set()
        with Prefetcher(lambda batch: batch, self._reading.batches(piece), AHEAD) as batches:
            for some, last in batches:  # noqa: B007
                structures, failed = structures + len(some.ids), failed + len(some.errors)
                errors += some.errors.values()
                kept.update(*some.kept)
                if some.ids:
                    rows.append(predicted(self._model, some, self._layout))
        return self._parts.write(
            piece,
            self._form.part(rows),
            structures=structures,
            errors=errors[:MOST_REASONS],
            failed=failed,
            kept=sorted(kept),
            last=last,
        )

    def do_all(self, tell: Callable[[Header, bool], None]) -> None:
        """Do in order what is not done yet.

        Args:
            tell: is called with each piece, and whether it was there before.
        """
        for lot in range(self.lots):
            header, number = None, 0
            while header is None or not header.last:
                piece = Piece(lot, number)
                before = self.header(piece)
                header = before or self.finish(piece)
                tell(header, before is not None)
                number += 1

    def join(self) -> Outcome | None:
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
        return Outcome(structures, failed, tuple(errors), tuple(files), lacking)


def predicted(model: Ensemble, some: Structures, layout: Layout) -> Rows:
    """Predict some structures, as far as an output wants it."""
    prediction = model.predict(
        some.columns, levels=[n for n in layout.levels if n != 90], members=layout.members
    )
    return rows_of(some, prediction)


def plan_of(
    identity: str, layout: Layout, *, suffix: str, others: Sequence[str] = ()
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
