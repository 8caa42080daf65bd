"""From the members' mean and spread to predictions: sigma, intervals, and reasons for no trust.

Shapes: G graphs, N nodes, R rows of a head (graphs or nodes), w its components.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from ase.data import atomic_numbers, chemical_symbols

from hydragnn_hpo.config import reads_positions
from hydragnn_hpo.data import Columns, contain_others
from hydragnn_hpo.ensemble.artefact import Coordination, HeadEntry, Manifest
from hydragnn_hpo.ensemble.neighbor_densities import edges_of
from hydragnn_hpo.ensemble.prediction import HeadPrediction, Prediction
from hydragnn_hpo.uncertainty import (
    Moments,
    Strata,
    calibrate_probabilities,
    class_sets,
    class_std,
    clip_to_bounds,
    largest_per_graph,
)

MemberValues = dict[str, list[np.ndarray]]
"""Predictions of each member for one head, by trial: a list with one [R, w] per batch."""


def describe_heads(
    manifest: Manifest,
    columns: Columns,
    parts: Mapping[str, Sequence[Moments]],
    *,
    levels: Sequence[int] = (),
    members: Mapping[str, MemberValues] | None = None,
    strata: Strata | None = None,
    unlabelled: bool = False,
) -> Prediction:
    """Turn moments into mean, sigma and intervals of heads, with the reasons to distrust them.

    Args:
        manifest: manifest of the ensemble, with the calibrations.
        columns: the structures.
        parts: moments of the batches in order, R rows in all, of the heads to describe.
        levels: interval levels besides 90, in percent.
        members: predictions of each member by head; None if not requested.
        strata: rule that assigns strata; None if all rows share their quantiles.
        unlabelled: True also predicts rows that ``find_unlabelled`` lets be missing.

    Returns:
        The prediction, without its structures.
    """
    heads = {}
    hidden = {}
    for name, some in parts.items():
        head = manifest.heads[name]
        fit = head.calibration
        node = head.level == "node"
        mean = _stack([part.mean for part in some], head.width)
        spread = _stack([part.spread for part in some], 1)
        values = members[name].items() if members else ()
        own = {trial: np.concatenate(each) for trial, each in values}
        hidden[name] = find_unlabelled(head, columns)
        for array in () if unlabelled else (mean, spread, *own.values()):
            array[hidden[name]] = np.nan
        stratum = None if strata is None else strata.names_of_rows(columns, node=node)
        if fit.temperature is not None:
            mean = calibrate_probabilities(mean, fit)
            std = class_std(mean)
            ends = {n: class_sets(mean, fit, n / 100, stratum) for n in (90, *levels)}
        else:
            noise = _stack([part.noise for part in some], 1)
            std = fit.sigma(spread, noise, fit.factor_of_rows(columns, mean, node=node))
            half = {n: fit.half_width(std, n / 100, stratum) for n in (90, *levels)}
            ends = {n: _interval(mean, wide, head) for n, wide in half.items()}
        bounds = {level: ends[level] for level in levels}
        heads[name] = HeadPrediction(mean, std, spread, *ends[90], bounds=bounds, members=own)
    return Prediction(heads, _compute_trust(manifest, columns, heads, hidden))


def _interval(mean: np.ndarray, half: np.ndarray, head: HeadEntry) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of intervals within the bounds of a head, [R, w] each.

    Args:
        mean: middle of the intervals, [R, w].
        half: half their width, [R, 1].
        head: manifest entry with the bounds.
    """
    low, high = (clip_to_bounds(end, head.bounds) for end in (mean - half, mean + half))
    return low, high


def _stack(parts: Sequence[np.ndarray], width: int) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros((0, width))


def find_unlabelled(head: HeadEntry, columns: Columns) -> np.ndarray:
    """Check which rows of a head have an element that has no label of it in training, [R].

    A row is an atom, or a structure that contains such an atom. Periodic structures have no
    prediction of a head that reads positions, which are not unique there.
    """
    hidden = np.zeros(len(columns.numbers) if head.level == "node" else columns.num_graphs, bool)
    if head.elements is not None:
        hidden = contain_others(columns, head.elements, node=head.level == "node")
    return hidden | columns.pbc.any(axis=1) if _reads_positions(head) else hidden


def _reads_positions(head: HeadEntry) -> bool:
    return reads_positions({"origin": head.origin})


def _compute_trust(
    manifest: Manifest,
    here: Columns,
    heads: Mapping[str, HeadPrediction],
    hidden: Mapping[str, np.ndarray],
) -> tuple[str, ...]:
    """Find reasons to distrust the predictions of each structure.

    Reasons are a head that periodic structures do not have, an element or a number of neighbours
    absent from the training data, less than half or more than twice the number of atoms of any
    training structure where a sum over them is predicted, an element without a label of a head, a
    prediction that is not finite, and a spread above that of 99 % of the calibration structures.

    Args:
        manifest: calibration of the heads, elements and coordination of the training data.
        here: the structures.
        heads: predictions for these structures, by head.
        hidden: masks of the rows that ``find_unlabelled`` finds, by head.

    Returns:
        For each structure ``ok``, or the reasons joined by semicolons, [G].
    """
    reasons: list[list[str]] = [[] for _ in range(here.num_graphs)]
    graph_of_node = np.repeat(np.arange(here.num_graphs), here.num_nodes())
    unseen = ~np.isin(here.numbers, manifest.elements)
    for row, number in _pairs(graph_of_node[unseen], here.numbers[unseen]):
        reasons[row].append(f"unseen element {chemical_symbols[number]}")
    if manifest.coordination is not None:
        outside = outside_coordination(manifest.coordination, here)
        for row, number in _pairs(graph_of_node[outside], here.numbers[outside]):
            reasons[row].append(f"unseen coordination of {chemical_symbols[number]}")
    for row, reason in _find_unseen_sizes(manifest, heads, here.num_nodes()):
        reasons[row].append(reason)
    for name, head in heads.items():
        entry = manifest.heads[name]
        for row in np.flatnonzero(here.pbc.any(axis=1) & _reads_positions(entry)).tolist():
            reasons[row].append(f"no {name} of periodic structures")
        lacking = _lack_labels(manifest, entry, here.numbers)
        for row, number in _pairs(graph_of_node[lacking], here.numbers[lacking]):
            reasons[row].append(f"no label of {name} for {chemical_symbols[number]}")
        graph = graph_of_node if entry.level == "node" else np.arange(here.num_graphs)
        for row, reason in _reasons_of_head(name, entry, head, graph, hidden[name]):
            reasons[row].append(reason)
    return tuple("; ".join(reason) or "ok" for reason in reasons)


def _lack_labels(manifest: Manifest, entry: HeadEntry, numbers: np.ndarray) -> np.ndarray:
    """Check which atoms are of an element of the training data that has no label of a head, [N]."""
    if entry.elements is None:
        return np.zeros(len(numbers), dtype=bool)
    lacking: np.ndarray = np.isin(numbers, manifest.elements) & ~np.isin(numbers, entry.elements)
    return lacking


def _find_unseen_sizes(
    manifest: Manifest, heads: Iterable[str], atoms: np.ndarray
) -> Iterator[tuple[int, str]]:
    """Yield each structure that is much smaller or larger than those of training, and the reason.

    Args:
        manifest: numbers of atoms in training; files of earlier versions have none.
        heads: predicted heads; the number of atoms matters for sums over them alone.
        atoms: number of atoms of each structure, [G].
    """
    if manifest.sizes is None or not any(manifest.heads[name].is_sum for name in heads):
        return
    fewest, most = manifest.sizes
    for row in np.flatnonzero((2 * atoms < fewest) | (atoms > 2 * most)).tolist():
        yield row, f"unseen size ({atoms[row]} atoms, not {fewest} to {most})"


def _reasons_of_head(
    name: str, entry: HeadEntry, head: HeadPrediction, graph: np.ndarray, hidden: np.ndarray
) -> Iterator[tuple[int, str]]:
    """Yield each structure whose prediction of one head is to be distrusted, and the reason.

    Args:
        name: name of the head.
        entry: manifest entry of the head.
        head: prediction of the head, R rows.
        graph: position of each row's structure, [R].
        hidden: mask of the rows whose elements have no label, [R]; they have their own reason.
    """
    broken = ~np.isfinite(head.mean).all(axis=1) & ~hidden
    for row in np.unique(graph[broken]).tolist():
        yield row, f"{name} is not finite"
    limit = entry.calibration.spread99 * (1 + 1e-9)  # tolerates rounding
    spread = np.where(hidden, 0.0, head.std_epistemic[:, 0])
    count = int(graph.max(initial=-1)) + 1
    largest = largest_per_graph(spread, graph, count)
    for row in np.flatnonzero(largest > limit).tolist():
        yield row, f"large spread of {name}"


def outside_coordination(known: Coordination, columns: Columns) -> np.ndarray:
    """Check which atoms have a number of neighbours outside their element's training range, [N].

    Atoms of an element absent from the training data are False: ``_compute_trust`` reports them as
    unseen elements.

    Args:
        known: numbers of neighbours in the training data.
        columns: graphs with all edges up to the cutoff of ``known``.
    """
    lowest = np.zeros(128, np.int64)
    highest = np.full(128, np.iinfo(np.int64).max)
    for symbol, (low, high) in known.ranges.items():
        lowest[atomic_numbers[symbol]], highest[atomic_numbers[symbol]] = low, high
    counts = neighbor_counts(columns, known.cutoff)
    out: np.ndarray = (counts < lowest[columns.numbers]) | (counts > highest[columns.numbers])
    return out


def neighbor_counts(columns: Columns, cutoff: float) -> np.ndarray:
    """Count the neighbours of each atom within a cutoff in angstrom, images included, [N]."""
    _, receiver, vectors = edges_of(columns)
    near = np.einsum("ex,ex->e", vectors, vectors) <= cutoff**2
    counts: np.ndarray = np.bincount(receiver[near], minlength=len(columns.numbers))
    return counts


def _pairs(graph: np.ndarray, number: np.ndarray) -> list[list[int]]:
    """Return the distinct pairs of graph and atomic number of some atoms, [n] each, sorted."""
    pairs: list[list[int]] = np.unique(np.stack((graph, number), axis=1), axis=0).tolist()
    return pairs
