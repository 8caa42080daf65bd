"""Structures to be predicted: from ``ase.Atoms`` or from files, good ones and bad ones."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ase import Atoms

from hydragnn_hpo.config.data import AttributeConfig, GraphConfig
from hydragnn_hpo.data.columns import Columns, columns_of
from hydragnn_hpo.data.graph import Graph
from hydragnn_hpo.data.readers import reader_of
from hydragnn_hpo.data.readers.folder import TABLE
from hydragnn_hpo.data.readers.source import Source
from hydragnn_hpo.data.structure import Place, Rules, graph_of
from hydragnn_hpo.errors import DataError


@dataclass(frozen=True)
class Structures:
    """What was read from files."""

    columns: Columns
    """Graphs of the structures that can be predicted, in order."""
    ids: tuple[str, ...]
    """Names of all structures, also of those that cannot, in order."""
    errors: dict[int, str]
    """By position in ``ids``: why a structure cannot be predicted, one sentence."""


def rules_for(
    cutoff: float, attributes: Mapping[str, AttributeConfig] | None = None, laplacian: int = 0
) -> Rules:
    """Say how structures become graphs for prediction.

    Args:
        cutoff: longest edge of the graphs, in angstrom.
        attributes: known properties that members are told, by name.
        laplacian: Laplacian encodings that members read.
    """
    return Rules(
        cutoff=cutoff,
        min_distance=GraphConfig().min_distance,
        targets={},
        attributes=attributes or {},
        laplacian=laplacian,
    )


def columns_of_atoms(atoms: Atoms, rules: Rules) -> Columns:
    """Turn one structure into columns with a single row.

    Raises:
        DataError: the structure cannot become a graph.
    """
    place = Place(Path("atoms"), 1, atoms.symbols.formula.format("hill"))
    return _columns([graph_of(atoms, place, rules)], rules)


def read_structures(
    paths: Sequence[Path], rules: Rules, structure_column: str | None = None
) -> Structures:
    """Read every structure of some files; a bad one does not stop the others.

    Where a file cannot be read on, its next structure is the last one and has the error.

    Args:
        paths: anything the readers know; of a folder all its files.
        rules: how they become graphs, see ``rules_for``.
        structure_column: for CSV files, the column with a structure's text or file name.

    Raises:
        DataError: a path does not exist.
        ConfigError: a table needs a structure column.
    """
    graphs: list[Graph] = []
    ids: list[str] = []
    errors: dict[int, str] = {}
    for path in _files(paths):
        for name, found in _graphs(path, structure_column, rules):
            if isinstance(found, DataError):
                errors[len(ids)] = str(found)
            else:
                graphs.append(found)
            ids.append(name)
    return Structures(_columns(graphs, rules), tuple(ids), errors)


def _columns(graphs: Sequence[Graph], rules: Rules) -> Columns:
    return columns_of(graphs, {}, {"cutoff": rules.cutoff}, attributes=rules.attributes)


def _graphs(
    path: Path, column: str | None, rules: Rules
) -> Iterator[tuple[str, Graph | DataError]]:
    """Give each structure's name (its own, if it has one), and its graph or why there is none."""
    number = 1
    try:
        source = Source(path, structure_column=column)
        for name, found in reader_of(source, None).read(source, 0, None):
            if isinstance(found, DataError):
                yield name, found
            else:
                own = found.info.get("name")
                shown = own if isinstance(own, str) else name
                yield shown, _graph(found, Place(path, number, shown), rules)
            number += 1
    except DataError as error:
        yield f"{path.name}:{number}", error


def _graph(atoms: Atoms, place: Place, rules: Rules) -> Graph | DataError:
    try:
        return graph_of(atoms, place, rules)
    except DataError as error:
        return error


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.exists():
            raise DataError(f"{path}: no such file.")
        if path.is_dir():
            entries = sorted(entry for entry in path.iterdir() if entry.is_file())
            yield from (e for e in entries if e.name != TABLE and not e.name.startswith("."))
        else:
            yield path
