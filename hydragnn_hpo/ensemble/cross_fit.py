"""Calibrate the heads of a cross-fitted ensemble on what its nets have not seen.

Shapes: C configurations, M nets, K folds, R rows of a head, w components.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from hydragnn_hpo.ensemble.calibrate import (
    Calibration,
    clip_to_bounds,
    compute_moments,
    largest_per_graph,
)
from hydragnn_hpo.ensemble.candidates import CrossContext, Net, flops_per_graph
from hydragnn_hpo.ensemble.class_probabilities import calibrate_classes
from hydragnn_hpo.ensemble.cross_calibrate import (
    CrossDesign,
    OutOfFold,
    calibrate_cross,
    measure_variances,
)
from hydragnn_hpo.ensemble.member_selection import (
    Method,
    ScoredHead,
    Weights,
    make_scored_heads,
    weigh_candidates,
)
from hydragnn_hpo.model import variance_key


def calibrate_folds(
    context: CrossContext,
    method: Method,
    nets: Sequence[Net],
    predictions: Mapping[str, np.ndarray],
    unseen: Mapping[str, np.ndarray],
) -> dict[str, Calibration]:
    """Calibrate every head on all structures outside the test split.

    The weights of the configurations in a fold are those that the other folds give, so that
    neither a net nor a weight has seen what it is judged by.

    Args:
        context: data shared by all steps of the build.
        method: the method whose weights are kept.
        nets: the M nets of all configurations.
        predictions: their predictions for these structures, [M, R, w], by head, and variances,
            [M, R, 1], by ``variance_key(head)``.
        unseen: their predictions for structures that no net has seen, the test split, by head;
            labels are not read.

    Returns:
        By head, for the spread of the nets that are kept.
    """
    known = make_scored_heads(context)
    costs = [flops_per_graph(c.config.model, context.graphs.stats) for c in context.candidates]
    final = weigh_candidates(context, known, costs)[method]
    by_fold = [
        weigh_candidates(context, _leave_out(context, known, fold), costs)[method]
        for fold in range(context.folds)
    ]
    return {
        name: _calibrate_head(context, name, nets, (predictions, unseen), (final, by_fold))
        for name in context.targets
    }


def _leave_out(
    context: CrossContext, known: Mapping[str, ScoredHead], fold: int
) -> dict[str, ScoredHead]:
    """Return the labelled rows of heads that are not in a fold."""
    kept = {}
    for name, head in known.items():
        _, mask = context.truth(name, "cal")
        rows = np.flatnonzero(context.fold_of_row(name)[mask] != fold)
        kept[name] = head.take(rows, slice(None)) if len(rows) else head
    return kept


def _calibrate_head(
    context: CrossContext,
    name: str,
    nets: Sequence[Net],
    of_splits: tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]],
    weights: tuple[Weights, Sequence[Weights]],
) -> Calibration:
    """Calibrate one head.

    Args:
        context: data shared by all steps of the build.
        name: of the head.
        nets: the M nets.
        of_splits: ``predictions`` and ``unseen`` as in ``calibrate_folds``.
        weights: of the configurations: those of the ensemble, and those for each fold.
    """
    predictions, unseen = of_splits
    truth, mask = context.truth(name, "cal")
    fold = context.fold_of_row(name)[mask]
    table = _by_configuration(context, nets, predictions[name][:, mask])
    noises = predictions.get(variance_key(name))
    noise_table = None if noises is None else _by_configuration(context, nets, noises[:, mask])
    final, shares = weights[0][name], [each[name] for each in weights[1]]
    mean, variance, noise = _predict_unseen(table, noise_table, fold, shares)
    rows, node = context.rows_of("cal"), context.is_node(name)
    stratum = context.strata.of_rows(context.graphs, rows, node=node)[mask]
    group = context.group_of_row(name, "cal")[mask]
    if context.is_class(name):
        spread = np.sqrt(variance[:, 0])
        return calibrate_classes(mean, truth[mask], group=group, largest=spread, stratum=stratum)
    residual = truth[mask] - clip_to_bounds(mean, context.bounds(name))
    known = OutOfFold(residual, variance, noise, group, stratum)
    design = _design(context, name, final, nets, unseen[name])
    return calibrate_cross(known, design, context.scale(name))


def _design(
    context: CrossContext, name: str, weights: np.ndarray, nets: Sequence[Net], unseen: np.ndarray
) -> CrossDesign:
    """Return how the nets go together.

    Args:
        context: data shared by all steps of the build.
        name: of the head.
        weights: of the configurations, [C].
        nets: the M nets; those with a share are kept.
        unseen: predictions for the test split, which no net has seen, [M, R, w].
    """
    wanted = context.truth(name, "test")[1]  # where there are labels, not what they are
    kept = np.array([net.share * weights[net.candidate] for net in nets])
    shares = _by_configuration(context, nets, kept[:, None, None])[..., 0, 0]
    variances = measure_variances(_by_configuration(context, nets, unseen[:, wanted]), shares)
    spread = compute_moments(unseen, kept).spread[:, 0]
    graph, graphs = context.graph_of_row(name, "test"), len(context.rows_of("test"))
    largest = largest_per_graph(spread, graph, graphs)
    return CrossDesign(shares, variances, largest[np.isfinite(largest)])


def _predict_unseen(
    table: np.ndarray, noises: np.ndarray | None, fold: np.ndarray, shares: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mix, for each row, the nets that have not seen it.

    Args:
        table: predictions, [C, K, R, w].
        noises: variances that nets predict, [C, K, R, 1]; None if none does.
        fold: fold of each row, [R].
        shares: weights of the configurations in each fold, [C] each.

    Returns:
        Mean, [R, w]; unbiased variance of one net, 0 with a single one, and mean of the predicted
        variances, [R, 1] each.
    """
    mean = np.empty(table.shape[2:])
    variance, noise = np.zeros((len(fold), 1)), np.zeros((len(fold), 1))
    for number, share in enumerate(shares):
        rows = fold == number
        unseen = None if noises is None else noises[:, number, rows]
        moments = compute_moments(table[:, number, rows], share, unseen)
        left = 1.0 - float(np.square(share).sum())
        mean[rows], noise[rows] = moments.mean, moments.noise
        if left > 1e-9:
            variance[rows] = np.square(moments.spread) / left
    return mean, variance, noise


def _by_configuration(
    context: CrossContext, nets: Sequence[Net], predictions: np.ndarray
) -> np.ndarray:
    """Sort the predictions of all nets, [M, R, w], by configuration and fold, [C, K, R, w]."""
    shape = (len(context.candidates), context.folds, *predictions.shape[1:])
    table = np.empty(shape)
    for row, net in enumerate(nets):
        assert net.fold is not None
        table[net.candidate, net.fold] = predictions[row]
    return table
