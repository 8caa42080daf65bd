"""The structures of the test split: their names and atoms, and the errors of their predictions."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from ase.data import chemical_symbols, colors, covalent_radii

from hydragnn_hpo.config import CampaignConfig
from hydragnn_hpo.data import Columns, Compositions, GraphSet, close, open_store, unite
from hydragnn_hpo.errors import HydraError, RunError
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.charts import PlotlyValue
from hydragnn_hpo.report.structure_errors import LabelledHead, StructureErrors
from hydragnn_hpo.report.test_predictions import load_predictions
from hydragnn_hpo.units import shown_unit

logger = logging.getLogger(__name__)

MOST_STRUCTURES = 200_000
"""Maximum number of test structures that a report reads."""

MOST_ATOMS, MOST_SHOWN = 40_000, 1500
"""Maximum numbers of atoms and of structures whose positions a page holds: half a megabyte."""

_TOGETHER = 512
"""Number of structures that are read at once."""


def read_structure_errors(run: RunDir, config: CampaignConfig) -> StructureErrors | None:
    """Join the predictions on the test split with the structures in the stores of a run.

    Returns:
        None if there is no ensemble, or its structures are not there or too many.
    """
    try:
        arrays = load_predictions(run)
    except RunError:
        return None
    index = arrays.get("index")
    if index is None or not 0 < len(index) <= MOST_STRUCTURES:
        return None
    graphs = _open_graphs(run, config)
    if graphs is None:
        return None
    try:
        return _join(graphs, index, arrays)
    except (HydraError, OSError, KeyError, IndexError, ValueError) as error:
        logger.warning("the structures of the test split are left out: %s", error)
        return None
    finally:
        close(graphs)


def _open_graphs(run: RunDir, config: CampaignConfig) -> GraphSet | None:
    """Open the stores of a run for a few reads; None if they are not there."""
    names = [Path(entry.card).stem for entry in config.data]
    if not names or not all((run.store(name) / "index.json").exists() for name in names):
        return None
    try:
        sets = [open_store(run.store(name), access="windows") for name in names]
        return unite(sets, config.data, config.shared)
    except (HydraError, OSError, KeyError) as error:
        logger.warning("the structures of the test split are left out: %s", error)
        return None


def _join(graphs: GraphSet, index: np.ndarray, arrays: Mapping[str, np.ndarray]) -> StructureErrors:
    """Find structure and atom of each predicted row.

    Args:
        graphs: all graphs of the run.
        index: positions of the test graphs, [G].
        arrays: predictions, see ``load_predictions``.
    """
    names = [name for name in graphs.stats["targets"] if f"{name}/truth" in arrays]
    known = []
    masks = {name: list[np.ndarray]() for name in names}
    for first in range(0, len(index), _TOGETHER):
        columns = graphs.take(index[first : first + _TOGETHER])
        known.append(Compositions.of(columns))
        for name in names:
            masks[name].append(columns.masks[name])
    compositions = Compositions.join(known)
    heads = {}
    for name in names:
        is_node = graphs.levels[name] == "node"
        # reports of earlier versions hold all labels, and not their rows
        rows = arrays.get(f"{name}/rows", np.flatnonzero(np.concatenate(masks[name])))
        graph = compositions.graph_of_atom[rows] if is_node else rows
        truth, mean, half = (arrays[f"{name}/{part}"] for part in ("truth", "mean", "half90"))
        distance = arrays.get(f"{name}/distance")
        if len(truth) != len(rows):
            raise ValueError(f"'{name}' has {len(rows)} labels, and {len(truth)} in the report")
        heads[name] = LabelledHead(
            unit=shown_unit(graphs.stats["targets"][name]),
            is_node=is_node,
            truth=truth,
            mean=mean,
            half=half,
            graph=graph,
            atom=rows - compositions.starts[graph] if is_node else np.zeros_like(rows),
            distance=None if distance is None else distance.ravel(),
        )
    text = arrays.get("trust", np.zeros(0, dtype=np.uint8)).tobytes().decode()
    trust = text.split("\n") if text else []
    return StructureErrors(compositions, "test", heads, trust if len(trust) == len(index) else ())


# -- structures for the viewer -------------------------------------------------------------


def choose_shown(errors: StructureErrors) -> list[int]:
    """Choose the structures whose positions go into the page: the worst of each head first."""
    total = len(errors.structures.names)
    worst = np.zeros(total)
    for head in errors.heads.values():
        rank = np.empty(len(head.error))
        rank[np.argsort(head.error, kind="stable")] = np.linspace(0.0, 1.0, len(head.error))
        np.maximum.at(worst, head.graph, rank)
    order = np.argsort(-worst, kind="stable")[:MOST_SHOWN]
    atoms = np.cumsum(errors.structures.sizes[order])
    chosen: list[int] = order[: int(np.searchsorted(atoms, MOST_ATOMS, side="right"))].tolist()
    return chosen


def read_columns(run: RunDir, config: CampaignConfig, chosen: Iterable[int]) -> Columns | None:
    """Read some structures of the test split with their positions.

    Args:
        run: the run directory.
        config: its campaign.
        chosen: positions within the test split.
    """
    graphs = _open_graphs(run, config)
    if graphs is None:
        return None
    try:
        index = load_predictions(run)["index"]
        return graphs.take(index[np.fromiter(chosen, dtype=np.int64)])
    finally:
        close(graphs)


def pack_structures(columns: Columns) -> dict[str, PlotlyValue]:
    """Return structures as compact data for ``structure_viewer.js``.

    Returns:
        Atomic ``numbers``, [N]; ``sizes``, [G]; ``positions``, [3 N], from the middle of each
        structure, as whole numbers of its ``steps``, [G], in angstrom; ``cells``: origin and three
        vectors of periodic structures, [12], else null; and ``elements``: symbol, colour and
        covalent radius in angstrom, by atomic number.
    """
    positions = []
    steps = []
    cells = list[PlotlyValue]()
    for graph in range(columns.num_graphs):
        a, b = columns.node_offset[graph : graph + 2]
        here = columns.positions[a:b]
        middle = (here.min(axis=0) + here.max(axis=0)) / 2
        step = max(float(np.abs(here - middle).max()) / 32_000, 1e-4)
        positions.append(np.rint((here - middle) / step).astype(np.int16))
        steps.append(step)
        box = np.vstack([-middle, columns.cell[graph]]).ravel().round(4)
        cells.append(box.tolist() if columns.pbc[graph].any() else None)
    elements: dict[str, PlotlyValue] = {}
    for number in np.unique(columns.numbers).tolist():
        red, green, blue = (int(round(255 * part)) for part in colors.jmol_colors[number])
        colour = f"#{red:02x}{green:02x}{blue:02x}"
        elements[str(number)] = [
            chemical_symbols[number],
            colour,
            round(float(covalent_radii[number]), 2),
        ]
    return {
        "numbers": columns.numbers.astype(np.int64),
        "sizes": columns.num_nodes(),
        "positions": np.concatenate(positions).ravel(),
        "steps": np.array(steps),
        "cells": cells,
        "elements": elements,
    }
