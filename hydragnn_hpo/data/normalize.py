"""Fit centre, spread and element baseline of every target on the training split only.

Shapes: G graphs, N nodes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hydragnn_hpo.config import COMPUTED, MAX_ELEMENT, TargetConfig, TargetKind, is_extensive
from hydragnn_hpo.config.data_config import class_entropy, weigh_sum
from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.file_records import AtomMean, AttributeStats, ElementBaseline, TargetStats

RIDGE = 0.1
"""Ridge penalty: it weighs as much as this number of structures (or atoms) of the pure element, and
pulls the coefficients of elements that are rare in train towards 0."""

REFITS = 10
"""Fits of an extensive target, each of what the one before leaves. What the data determine is then
free of the penalty; what they do not, as where all have one composition, stays as it was."""

SMALLEST = 1e-3
"""Smallest standard deviation after the fit, as a share of that before it."""

Array = NDArray[np.float64]


def fit_element_baseline(
    columns: Columns, name: str, target: TargetConfig, mean: float
) -> ElementBaseline | None:
    """Fit a target by one coefficient per element, by ridge regression on train.

    ``target - mean`` is regressed on the composition (fractions of elements) for graphs, on the
    node's own element for nodes. An extensive target is regressed on the counts of elements, as a
    difference from its mean per atom, and has no constant: a supercell must have a multiple.

    Args:
        columns: graphs of all splits; positions and edges may be missing.
        name: name of the target.
        target: its level, shape and kind of energy.
        mean: mean of its values on train, in its unit.

    Returns:
        Coefficient by atomic number, constant, and standard deviation of the residuals, in the
        target's unit; None for vectors, tensors and spectra.
    """
    if target.width != 1:
        return None
    if target.energy == "total" or target.extensive:
        return _fit_sums(columns, name)
    fit = _fit_nodes if target.level == "node" else _fit_graphs
    numbers, before, after = fit(columns, name, target, mean)
    spread = max(float(np.std(after)), SMALLEST * float(np.std(before)))
    constant = mean + float(np.mean(after))
    return {"by_number": [float(value) for value in numbers], "mean": constant, "std": spread}


def _fit_nodes(
    columns: Columns, name: str, target: TargetConfig, mean: float
) -> tuple[Array, Array, Array]:
    """Fit a node target; see ``_fit_graphs`` for what is returned."""
    in_train = np.repeat(columns.split == 0, columns.num_nodes())
    rows = in_train & columns.masks[name]
    values = columns.targets[name][rows, 0] - mean
    kinds = columns.numbers[rows]
    sums = np.bincount(kinds, weights=values, minlength=MAX_ELEMENT + 1)
    numbers = sums / (np.bincount(kinds, minlength=MAX_ELEMENT + 1) + RIDGE)
    return numbers, values, values - numbers[kinds]


def _fit_graphs(
    columns: Columns, name: str, target: TargetConfig, mean: float
) -> tuple[Array, Array, Array]:
    """Fit a graph target; fractions sum to 1 and need no centring.

    Returns:
        Coefficient by atomic number, [119], and the known values of the train split minus their
        mean, before and after the fit is subtracted, [known graphs].
    """
    rows = (columns.split == 0) & columns.masks[name]
    graph, element, weight = _composition(columns, rows, fractions=True)
    values = columns.targets[name][rows, 0] - mean
    moment = _sums(element, weight * values[graph], MAX_ELEMENT + 1)
    numbers = _solve(_gram(graph, element, weight) + RIDGE * np.eye(len(moment)), moment)
    explained = _sums(graph, weight * numbers[element], len(values))
    return numbers, values, values - explained


def _fit_sums(columns: Columns, name: str) -> ElementBaseline:
    """Fit an extensive target; see ``fit_element_baseline``."""
    rows = (columns.split == 0) & columns.masks[name]
    graph, element, counts = _composition(columns, rows, fractions=False)
    values = columns.targets[name][rows, 0]
    own = fit_atom_mean(values, columns.num_nodes()[rows])
    size = MAX_ELEMENT + 1
    gram = _gram(graph, element, counts)
    numbers = own["mean"] * (np.diag(gram) > 0)
    moment = _sums(element, counts * values[graph], size) - (gram * numbers).sum(axis=1)
    for _ in range(REFITS):
        change = _solve(gram + RIDGE * np.eye(size), moment)
        numbers, moment = numbers + change, moment - (gram * change).sum(axis=1)
    left = values - _sums(graph, counts * numbers[element], len(values))
    spread = max(_root_mean_square(left), SMALLEST * own["std"])
    return {"by_number": [float(value) for value in numbers], "mean": 0.0, "std": spread}


def fit_atom_mean(values: Array, atoms: NDArray[np.int64]) -> AtomMean:
    """Fit an extensive target by the same number for every atom.

    Args:
        values: values of structures, [G].
        atoms: their numbers of atoms, [G].
    """
    mean = float(values.sum() / atoms.sum())
    spread = _root_mean_square(values - mean * atoms)
    scale = float(np.abs(values).max())
    small = spread <= 1e-12 * max(1.0, scale)
    return {"mean": mean, "std": 1.0 if small else spread, "atoms": int(atoms.sum())}


def _root_mean_square(values: Array) -> float:
    return float(np.sqrt(np.square(values).mean()))


def _composition(
    columns: Columns, rows: NDArray[np.bool_], *, fractions: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
    """Return the composition of the chosen graphs as a sparse table, sorted by graph.

    A dense table over all elements would take a kilobyte per graph.

    Returns:
        For each non-zero entry: position of the graph among the chosen rows, atomic number, and
        number or fraction of atoms, all [entries].
    """
    nodes = columns.num_nodes()
    chosen = np.repeat(rows, nodes)
    graph = np.repeat(np.arange(int(rows.sum())), nodes[rows])
    key = graph * (MAX_ELEMENT + 1) + columns.numbers[chosen]
    keys, counts = np.unique(key, return_counts=True)
    graph, element = keys // (MAX_ELEMENT + 1), keys % (MAX_ELEMENT + 1)
    weight = counts / nodes[rows][graph] if fractions else counts.astype(np.float64)
    return graph, element, weight


def _gram(graph: NDArray[np.int64], element: NDArray[np.int64], weight: Array) -> Array:
    """Return the sums over graphs of the products of the weights of two elements, [119, 119].

    BLAS is not used: its sums depend on the number of threads, and a store's checksum would too.
    """
    size = MAX_ELEMENT + 1
    sums = _sums(element * (size + 1), weight * weight, size * size)
    # Entries of one graph are adjacent: step k pairs each entry with the k-th one after it.
    for step in range(1, size):
        pairs = np.flatnonzero(graph[step:] == graph[:-step])
        if not len(pairs):
            break
        first, second = element[pairs], element[pairs + step]
        products = weight[pairs] * weight[pairs + step]
        for place in (first * size + second, second * size + first):
            sums += _sums(place, products, size * size)
    return sums.reshape(size, size)


def _sums(place: NDArray[np.int64], weights: Array, size: int) -> Array:
    """Add up the weights of each place, [size]."""
    return np.bincount(place, weights=weights, minlength=size).astype(np.float64)


def _solve(matrix: Array, right: Array) -> Array:
    """Solve a symmetric, positive definite system by elimination; LAPACK is avoided as in _gram."""
    work = np.column_stack((matrix, right))
    for row in range(len(work)):
        below = work[row + 1 :, row] / work[row, row]
        work[row + 1 :] -= below[:, None] * work[row]
    result = np.zeros(len(work))
    for row in reversed(range(len(work))):
        known = (work[row, row + 1 : -1] * result[row + 1 :]).sum()
        result[row] = (work[row, -1] - known) / work[row, row]
    return result


def fit_target_stats(
    columns: Columns, targets: Mapping[str, TargetConfig]
) -> dict[str, TargetStats]:
    """Describe every target by its values in the train split, in the units of this package.

    A scalar has its mean and standard deviation. A vector or stress has mean 0 and, as ``std``,
    the root mean square of its components: a shift, or a factor per component, would not rotate
    with the structure. Other tensors have the mean of their diagonal, times the unit tensor, and
    the root mean square of the rest. A spectrum has a mean of each value, and one ``std`` about
    these means. A constant target has ``std`` 1, so that division by it is safe. Classes have their
    frequencies, and as ``std`` and ``mad`` the log-loss in nats of always predicting these.

    Args:
        columns: graphs of all splits; positions and edges may be missing.
        targets: their configs by name.

    Returns:
        By target its fields of the card and the statistics of its values. ``mad``, the mean
        absolute deviation from the mean, is the error of predicting the mean.

    Raises:
        DataError: a target has no value in the training split.
    """
    return {name: _describe(columns, name, target) for name, target in targets.items()}


_OF_VALUES = ("mean", "means", "atom_mean", "std", "min", "max", "count", "mad", "elements")
"""Statistics of a target that follow from its values."""


def refit_target_stats(columns: Columns, name: str, stats: TargetStats) -> TargetStats:
    """Describe a target that has statistics by its values in another train split.

    Args:
        columns: graphs of all splits; positions and edges may be missing.
        name: name of the target.
        stats: its present statistics, of which those that do not depend on values are kept.

    Raises:
        DataError: the target has no value in the training split.
    """
    kind: Any = {key: stats.get(key) for key in COMPUTED}
    # without checks: values in a store have the units of this package, not that of their kind
    target = TargetConfig.model_construct(None, **kind, unit="1")
    fitted = fit_target_stats(columns, {name: target})[name]
    of_values = {key: value for key, value in fitted.items() if key in _OF_VALUES}
    return cast("TargetStats", {**stats, **of_values})


def fit_attribute_stats(columns: Columns) -> dict[str, AttributeStats]:
    """Compute mean, spread and smallest value of each attribute on the train split.

    Returns:
        Mean, standard deviation (1 for a constant) and smallest value by attribute, in the units of
        this package; of all graphs where there is no train split.
    """
    train = columns.split == 0
    stats: dict[str, AttributeStats] = {}
    for name, values in columns.attributes.items():
        used = values[train] if train.any() else values
        stats[name] = {
            "mean": float(used.mean()),
            "std": float(used.std()) or 1.0,
            "min": float(used.min()),
        }
    return stats


def _describe(columns: Columns, name: str, target: TargetConfig) -> TargetStats:
    train = columns.split == 0
    chosen = train if target.level == "graph" else np.repeat(train, columns.num_nodes())
    values = columns.targets[name][chosen & columns.masks[name]]
    if not len(values):
        raise DataError(
            f"target '{name}' has no value in the training split: drop it from the card, or "
            "add structures that have it."
        )
    mean = _mean_of(values, target)
    means = _means_of(values, target)
    away = values - expand_mean(mean, target.shape, means)
    spread = float(np.sqrt(np.square(away).mean()))
    described = _describe_kind(target)
    stats: TargetStats = {
        **described,
        "mean": mean,
        "std": spread if spread > 1e-12 * max(1.0, abs(mean)) else 1.0,
        "min": float(values.min()),
        "max": float(values.max()),
        "count": len(values),
        "mad": float(np.abs(away).mean()),
        "elements": fit_element_baseline(columns, name, target, mean),
    }
    if is_extensive(stats):
        rows = train & columns.masks[name]
        stats["atom_mean"] = fit_atom_mean(values[:, 0], columns.num_nodes()[rows])
    if means is not None:
        stats["means"] = means
    if means is not None and target.shape == "class":
        stats["std"] = stats["mad"] = class_entropy(means) or 1.0
    if target.total is not None:
        stats["sum_miss"] = _measure_sum_miss(columns, name, target.total)
    return stats


def _describe_kind(target: TargetConfig) -> TargetStats:
    """Return the fields of a target's kind that are set, and four that stores hold in any case."""
    always = ("shape", "energy", "derived_from", "description")
    usual = {key: field.default for key, field in TargetKind.model_fields.items()}
    known = target.in_store()
    kept = {k: v for k, v in known.items() if k in always or v != usual.get(k)}
    if target.classes is not None:
        kept["classes"] = list(target.classes)
    return cast("TargetStats", kept)


def _mean_of(values: Array, target: TargetConfig) -> float:
    """Return the mean of all values, or of a tensor's diagonal; 0 for vectors and stress."""
    if target.shape == "vector" or target.derived_from is not None:
        return 0.0
    return float((values[:, ::4] if target.shape == "tensor" else values).mean())


def _means_of(values: Array, target: TargetConfig) -> list[float] | None:
    """Return the mean of each value of a spectrum, or frequency of each class; None for others."""
    if target.shape not in ("spectrum", "class"):
        return None
    return [float(mean) for mean in values.mean(axis=0)]


def expand_mean(mean: float, shape: str, means: Sequence[float] | None = None) -> Array:
    """Return a target's mean by component, [1 or w]: of a tensor times the unit tensor.

    Args:
        mean: ``mean`` of its statistics.
        shape: its shape.
        means: ``means`` of its statistics, of spectra and classes.
    """
    if means is not None:
        return np.array(means)
    return mean * np.eye(3).reshape(-1) if shape == "tensor" else np.array([mean])


def _measure_sum_miss(columns: Columns, name: str, total: float | str) -> float:
    """Return the most by which the labels of a graph miss their sum; 0 where none has all labels.

    Args:
        columns: graphs of all splits.
        name: name of the target, a scalar or tensor of nodes.
        total: the sum, a number or the name of an attribute.
    """
    size = columns.num_graphs
    nodes = columns.num_nodes()
    graph = np.repeat(np.arange(size), nodes)
    whole = _sums(graph, columns.masks[name].astype(np.float64), size) == nodes
    wanted = columns.attributes[total] if isinstance(total, str) else total
    values = columns.targets[name].T
    weights = weigh_sum(len(values))
    misses = [
        np.abs(_sums(graph, part, size) - weight * wanted)[whole].max(initial=0.0)
        for part, weight in zip(values, weights, strict=True)
    ]
    return float(max(misses))
