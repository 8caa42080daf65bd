"""Structures as graphs, one by one, with what is wrong in place of a bad one."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from ase import Atoms

from hydragnn_hpo.config.data import CardConfig, TargetConfig
from hydragnn_hpo.data.build.plan import Piece, source_of
from hydragnn_hpo.data.graph import Graph
from hydragnn_hpo.data.readers import reader_of
from hydragnn_hpo.data.readers.source import Source
from hydragnn_hpo.data.structure import Place, Rules, graph_of
from hydragnn_hpo.errors import DataError


def graphs_of_piece(card: CardConfig, piece: Piece) -> Iterator[tuple[Place, Graph | DataError]]:
    """Read, check and convert every structure of a piece.

    Raises:
        DataError: the file cannot be read on, or has changed since it was counted.
    """
    entry = card.files[piece.entry]
    source = source_of(card, piece.entry, piece.path)
    rules = Rules(
        cutoff=card.graphs.cutoff,
        min_distance=card.graphs.min_distance,
        targets=card.targets,
        group=card.split.group,
        published=None if entry.published else card.split.published,
        attributes=card.attributes,
        laplacian=card.graphs.laplacian,
    )
    number = piece.start
    items = reader_of(source, entry.reader).read(source, piece.start, piece.stop)
    for number, (name, found) in enumerate(items, start=piece.start + 1):
        place = Place(piece.path, number, piece.prefix + name)
        if isinstance(found, DataError):
            yield place, found
            continue
        place, graph = _graph(found, place, rules, source, card.id_key)
        if isinstance(graph, Graph) and entry.published:
            graph = replace(graph, published=entry.published)
        yield place, graph
    if piece.stop is not None and number != piece.stop:
        raise DataError(
            f"{piece.path}: ends after structure {number}, {piece.stop} were counted before; "
            "leave it alone while it is read and start again."
        )


def graphs_from_file(
    path: Path,
    cutoff: float,
    targets: Mapping[str, TargetConfig] | None = None,
    *,
    min_distance: float = 0.1,
    structure_column: str | None = None,
) -> Iterator[Graph]:
    """Give the graphs of any structure file, labelled or not.

    Args:
        path: file or folder, see ``data.readers``.
        cutoff: largest edge length in angstrom.
        targets: properties to look up; none for structures that are to be predicted.
        min_distance: atoms closer than this (angstrom) are at one place.
        structure_column: for tables, see ``CardConfig``.

    Raises:
        DataError: a structure cannot be used; the sentence names file and place.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file.")
    wanted = targets or {}
    keys = tuple(t.key or name for name, t in wanted.items() if t.level == "graph")
    source = Source(path, keys, structure_column)
    items = reader_of(source, None).read(source, 0, None)
    for number, (name, found) in enumerate(items, start=1):
        if isinstance(found, DataError):
            raise found
        yield graph_of(found, Place(path, number, name), Rules(cutoff, min_distance, wanted))


def _graph(
    atoms: Atoms, place: Place, rules: Rules, source: Source, id_key: str | None
) -> tuple[Place, Graph | DataError]:
    """Convert a structure, under the name that the card wants for it."""
    try:
        if id_key is not None:
            if id_key not in atoms.info:
                raise place.error(f"has no '{id_key}', the card's id_key", "add it to the file")
            place = replace(place, id=str(atoms.info[id_key]))
        return place, graph_of(_boxed(atoms, place, source), place, rules)
    except DataError as error:
        return place, error


def _boxed(atoms: Atoms, place: Place, source: Source) -> Atoms:
    """Put a structure without a lattice into the one that the card gives."""
    if source.cell is not None:
        if atoms.cell.any() and not np.allclose(atoms.cell[:], source.cell):
            raise place.error("has a lattice of its own", "drop cell from the card's [[files]]")
        atoms.cell, atoms.pbc = source.cell, True
    if source.pbc is not None:
        atoms.pbc = source.pbc
    return atoms
