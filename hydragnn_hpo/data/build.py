"""From a card and its files to a graph store, and from any file to graphs."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn_hpo.config.data import SPLITS, CardConfig, FileConfig, TargetConfig
from hydragnn_hpo.config.loading import load
from hydragnn_hpo.data.columns import Columns, columns_of
from hydragnn_hpo.data.graph import Graph
from hydragnn_hpo.data.normalize import target_stats
from hydragnn_hpo.data.readers import reader_of
from hydragnn_hpo.data.readers.source import Source
from hydragnn_hpo.data.split import split_of
from hydragnn_hpo.data.statistics import size_stats
from hydragnn_hpo.data.store.index import sha256_of
from hydragnn_hpo.data.store.write import write_store
from hydragnn_hpo.data.structure import Place, Rules, graph_of
from hydragnn_hpo.errors import DataError, HydraError
from hydragnn_hpo.files import write_json

DATA_ROOT = "HYDRAGNN_HPO_DATA"
"""Names the folder of data files that are not beside their cards."""


def build_store(
    card_path: Path,
    out: Path,
    progress: Callable[[int], None] | None = None,
    files: Sequence[Path] | None = None,
) -> dict[str, Any]:
    """Read the files of a card, check everything, and write the store whole or not at all.

    Args:
        card_path: the card (TOML).
        out: the store to write, ``NAME.bp``; an older store there is replaced.
        progress: told after every structure how many are done.
        files: read these instead of the card's own files; no checksum is known for them.

    Returns:
        The statistics, which are also in ``stats.json``.

    Raises:
        ConfigError: the card is wrong.
        DataError: a file or a structure is wrong; the sentence names it.
        StorageError: the disk is full.
    """
    card = load(card_path, CardConfig)
    if files is not None:
        given = tuple(FileConfig(path=str(file.absolute())) for file in files)
        card = card.model_copy(update={"files": given})
    graphs = []
    for graph in _graphs_of_card(card, card_path):
        graphs.append(graph)
        if progress is not None:
            progress(len(graphs))
    columns, stats = _described(graphs, card)
    return write_store(out, [columns], stats, card)


def job_main(spec: Mapping[str, Any]) -> int:
    """Build a store as a job: the statistics, or the error's sentence, go to a file.

    Args:
        spec: ``card`` and ``out``, paths; ``answer``, the JSON file to write.

    Returns:
        0, also where the answer is ``{"error": sentence}``.
    """
    answer: dict[str, Any]
    try:
        answer = build_store(Path(spec["card"]), Path(spec["out"]))
    except HydraError as error:
        answer = {"error": str(error)}
    write_json(Path(spec["answer"]), answer)
    return 0


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
    rules = Rules(cutoff, min_distance, targets or {})
    yield from _graphs_of_file(path, rules, structure_column, None)


def find_file(name: str, card_path: Path, environ: Mapping[str, str] | None = None) -> Path:
    """Find a card's file: absolute, beside the card, or under ``HYDRAGNN_HPO_DATA``.

    Raises:
        DataError: it is nowhere.
    """
    root = (os.environ if environ is None else environ).get(DATA_ROOT)
    candidates = [card_path.parent / name, *([Path(root) / name] if root else [])]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    places = " or ".join(str(candidate.parent) for candidate in candidates)
    raise DataError(
        f"{card_path}: the file '{name}' is not in {places}; "
        f"set {DATA_ROOT} to the folder that holds it."
    )


def _graphs_of_card(card: CardConfig, card_path: Path) -> Iterator[Graph]:
    """Give the graphs of all files of a card, in order."""
    found = [(entry, find_file(entry.path, card_path)) for entry in card.files]
    for entry, path in found:
        _check_sum(entry, path)
    for entry, path in found:
        rules = Rules(
            cutoff=card.graphs.cutoff,
            min_distance=card.graphs.min_distance,
            targets=card.targets,
            group=card.split.group,
            published=None if entry.published else card.split.published,
        )
        for graph in _graphs_of_file(path, rules, card.structure_column, card.id_key):
            yield replace(graph, published=entry.published) if entry.published else graph


def _graphs_of_file(
    path: Path, rules: Rules, structure_column: str | None, id_key: str | None
) -> Iterator[Graph]:
    """Read, check and convert every structure of one file."""
    if not path.exists():
        raise DataError(f"{path}: no such file.")
    targets = rules.targets.items()
    keys = tuple(target.key or name for name, target in targets if target.level == "graph")
    read = reader_of(path)
    for number, (name, atoms) in enumerate(read(Source(path, keys, structure_column)), start=1):
        place = Place(path, number, name)
        if id_key is not None:
            if id_key not in atoms.info:
                raise place.error(f"has no '{id_key}', the card's id_key", "add it to the file")
            place = replace(place, id=str(atoms.info[id_key]))
        yield graph_of(atoms, place, rules)


def _check_sum(entry: FileConfig, path: Path) -> None:
    """Compare a file with the checksum of its card."""
    if entry.sha256 is None:
        return
    if not path.is_file():
        raise DataError(f"{path}: is a folder, a checksum needs a file; drop sha256 of the card.")
    try:
        found = sha256_of(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); get it again.") from error
    if found != entry.sha256:
        raise DataError(
            f"{path}: has SHA-256 {found[:12]}..., the card says {entry.sha256[:12]}...; "
            "get the file again, or correct the card if the new file is meant."
        )


def _described(graphs: Sequence[Graph], card: CardConfig) -> tuple[Columns, dict[str, Any]]:
    """Lay the graphs out, split them, and sum up what they hold."""
    columns = columns_of(graphs, card.targets)
    groups = [graph.group for graph in graphs]
    published = [graph.published for graph in graphs]
    split = split_of(groups, published, card.split, card.name)
    columns = replace(columns, split=split)
    counts = np.bincount(split, minlength=len(SPLITS))
    stats = {
        "name": card.name,
        "title": card.title,
        "splits": dict(zip(SPLITS, counts.tolist(), strict=True)),
        "test_seen": _test_seen(groups, columns),
        **size_stats(columns, card.graphs.cutoff),
        "targets": target_stats(columns, card.targets),
    }
    return columns, stats


def _test_seen(groups: Sequence[str], columns: Columns) -> int:
    """Count test structures whose group is also elsewhere; only a published split has any."""
    test = set(columns.indices_of("test").tolist())
    elsewhere = {group for row, group in enumerate(groups) if row not in test}
    return sum(groups[row] in elsewhere for row in test)
