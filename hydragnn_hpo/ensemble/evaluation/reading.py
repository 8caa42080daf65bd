"""Labelled structures, some at a time: from files of any format, or from a split of a store.

Shapes: G graphs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.store.staging import open_store
from hydragnn_hpo.data.structure import Rules
from hydragnn_hpo.ensemble.input_chunks import StructureFiles, list_input_sources
from hydragnn_hpo.ensemble.structure_batches import ChunkReader, read_structures
from hydragnn_hpo.errors import DataError

TOGETHER = 512
"""Structures that are held as graphs at once."""


@dataclass(frozen=True)
class Labelled:
    """Some structures that could be read, with their labels."""

    columns: Columns
    """Graphs with targets by head."""
    errors: tuple[str, ...] = ()
    """Why others among them could not be read, a sentence each."""


def read_labelled(
    paths: Sequence[Path], rules: Rules, structure_column: str | None = None
) -> Iterator[Labelled]:
    """Read files; a bad structure does not stop the others.

    Args:
        paths: anything the readers know; of a folder all its files; ``-`` is standard input.
        rules: how structures become graphs, and their labels.
        structure_column: for CSV files, the column with a structure's text or file name.

    Raises:
        DataError: a path does not exist.
        ConfigError: a table needs a structure column.
    """
    with ChunkReader(list_input_sources(paths), rules, StructureFiles(structure_column)) as reading:
        for some in read_structures(reading):
            yield Labelled(some.columns, tuple(some.errors.values()))


def read_split(path: Path, split: str, cutoff: float) -> Iterator[Labelled]:
    """Read a split of a store.

    Raises:
        DataError: it is no store, has no such split, or its edges are too short.
    """
    graphs = open_store(path)
    found = float(graphs.stats["cutoff"])
    if found < cutoff:
        raise DataError(
            f"{path}: holds edges up to {found:g} angstrom, the ensemble needs {cutoff:g}: build "
            "it with that cutoff."
        )
    indices = graphs.indices_of(split)
    if not len(indices):
        raise DataError(f"{path}: has no structure in the split '{split}'; choose another.")
    for first in range(0, len(indices), TOGETHER):
        yield Labelled(graphs.take(indices[first : first + TOGETHER]))
