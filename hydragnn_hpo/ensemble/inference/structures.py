"""Structures to be predicted, good ones and bad ones; ``streaming`` reads them from files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ase import Atoms

from hydragnn_hpo.config.data import AttributeConfig, GraphConfig
from hydragnn_hpo.data.columns import Columns, columns_of
from hydragnn_hpo.data.graph import Graph
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
    kept: tuple[dict[str, Any], ...] = ()
    """What else of each was asked for, by key, in the order of ``ids``; or nothing at all."""


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


def columns_of_atoms(structures: Sequence[Atoms], rules: Rules) -> Columns:
    """Turn structures into columns, a row each.

    Raises:
        DataError: one of them cannot become a graph.
    """
    graphs = [
        graph_of_atoms(atoms, number, rules) for number, atoms in enumerate(structures, start=1)
    ]
    return columns_of(graphs, {}, {"cutoff": rules.cutoff}, attributes=rules.attributes)


def graph_of_atoms(atoms: Atoms, number: int, rules: Rules) -> Graph:
    """Give a structure's graph; its formula, slower than the graph, is for an error alone.

    Raises:
        DataError: it cannot become a graph.
    """
    try:
        return graph_of(atoms, Place(Path("atoms"), number, str(number)), rules)
    except DataError:
        formula = atoms.symbols.formula.format("hill")
        return graph_of(atoms, Place(Path("atoms"), number, formula), rules)
