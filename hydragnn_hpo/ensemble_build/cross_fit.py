"""Calibrate the heads of a cross-fitted ensemble on what its nets have not seen.

Shapes: C configurations, M nets, K folds, R rows of a head, w components.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hydragnn_hpo.ensemble_build.candidates import CrossContext, Net, flops_per_graph
from hydragnn_hpo.ensemble_build.member_selection import (
    Method,
    ScoredHead,
    Weights,
    make_scored_heads,
    weigh_candidates,
)
from hydragnn_hpo.ensemble_build.predicted import MemberPredictions, Predicted
from hydragnn_hpo.ensemble_build.simpler_models import JoinedModels, append_weight, weigh_last
from hydragnn_hpo.uncertainty import Calibration, clip_to_bounds, compute_moments, largest_per_graph
from hydragnn_hpo.uncertainty.class_probabilities import calibrate_classes
from hydragnn_hpo.uncertainty.cross_calibrate import (
    CrossDesign,
    OutOfFold,
    UnseenRows,
    calibrate_cross,
    measure_variances,
)
from hydragnn_hpo.uncertainty.error_factors import RowFeatures, predicted_size


def calibrate_folds(
    context: CrossContext, method: Method, predicted: Predicted
) -> dict[str, Calibration]:
    """Calibrate every head on all structures outside the test split.

    The weights of the configurations in a fold are those that the other folds give, so that
    neither a net nor a weight has seen what it is judged by.

    Args:
        context: data shared by all steps of the build.
        method: the method whose weights are kept.
        predicted: of the M nets of all configurations, for these structures and for those that no
            net has seen, the test split, whose labels are not read; regressions that are members
            are one more configuration.

    Returns:
        By head, for the spread of the nets that are kept.
    """
    nets = predicted.nets
    joined = predicted.joined
    weights = _weigh_configurations(context, method, joined)
    learned = _make_tables(context, nets, predicted.cal, joined.learned)
    unseen = _make_tables(context, nets, predicted.test, joined.unseen)
    return {
        name: _calibrate_head(context, name, nets, (learned, unseen), weights)
        for name in context.targets
    }


def _weigh_configurations(
    context: CrossContext, method: Method, joined: JoinedModels
) -> tuple[Weights, list[Weights]]:
    """Weight the configurations, with the regressions as the last one of the heads they join.

    Args:
        context: data shared by all steps of the build.
        method: the method whose weights are kept.
        joined: the regressions.

    Returns:
        The weights of the ensemble, and those for each fold, which the other folds give.
    """
    known = make_scored_heads(context)
    rounds = context.campaign.ensemble.rounds
    wide = joined.widen_heads(context, known)
    costs = [flops_per_graph(c.config.model, context.graphs.stats) for c in context.candidates]
    final = weigh_candidates(context, known, costs)[method]
    final |= {name: append_weight(final[name], share) for name, share in joined.weights.items()}
    by_fold = []
    for fold in range(context.folds):
        weights = weigh_candidates(context, _leave_out(context, known, fold), costs)[method]
        for name, head in _leave_out(context, wide, fold).items():
            weights[name] = append_weight(weights[name], weigh_last(head, weights[name], rounds))
        by_fold.append(weights)
    return final, by_fold


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
    of_splits: tuple[MemberPredictions, MemberPredictions],
    weights: tuple[Weights, Sequence[Weights]],
) -> Calibration:
    """Calibrate one head.

    Args:
        context: data shared by all steps of the build.
        name: of the head.
        nets: the M nets.
        of_splits: by configuration and fold, [C, K, R, w], for ``cal`` and for the test split.
        weights: of the configurations: those of the ensemble, and those for each fold.
    """
    learned, unseen = of_splits
    truth, mask = context.truth(name, "cal")
    fold = context.fold_of_row(name)[mask]
    noises = learned.noises.get(name)
    noise_table = None if noises is None else noises[:, :, mask]
    final = weights[0][name]
    shares = [each[name] for each in weights[1]]
    table = learned.means[name][:, :, mask]
    mean, variance, noise = _predict_unseen(table, noise_table, fold, shares)
    rows = context.rows_of("cal")
    node = context.is_node(name)
    stratum = context.strata.of_rows(context.graphs, rows, node=node)[mask]
    group = context.group_of_row(name, "cal")[mask]
    if context.is_class(name):
        spread = np.sqrt(variance[:, 0])
        return calibrate_classes(mean, truth[mask], group=group, largest=spread, stratum=stratum)
    mean = clip_to_bounds(mean, bounds := context.bounds(name))
    elements = context.elements_of_row(name, "cal")[np.flatnonzero(mask)]
    features = RowFeatures(elements, predicted_size(mean))
    singles = truth[mask] - clip_to_bounds(table[:, fold, np.arange(len(fold))], bounds)
    known = OutOfFold(truth[mask] - mean, variance, noise, group, stratum, features, singles)
    design = _design(context, name, _share_nets(context, nets, final), unseen)
    return calibrate_cross(known, design, context.scale(name))


def _share_nets(context: CrossContext, nets: Sequence[Net], weights: np.ndarray) -> np.ndarray:
    """Share the weights of configurations, [C], among their nets, [C, K]; 0: not kept.

    Regressions, which may be the last configuration, are all kept.
    """
    parts = np.array([net.share for net in nets])[:, None, None]
    shares = _by_configuration(context, nets, parts)[..., 0, 0]
    if len(weights) > len(shares):
        shares = _append_configuration(shares, np.full(1, 1.0 / context.folds))
    weighted: np.ndarray = shares * weights[:, None]
    return weighted


def _design(
    context: CrossContext, name: str, shares: np.ndarray, unseen: MemberPredictions
) -> CrossDesign:
    """Return how the nets go together.

    Args:
        context: data shared by all steps of the build.
        name: of the head.
        shares: weights of the nets, [C, K].
        unseen: by configuration and fold, [C, K, R, w], for the test split.
    """
    wanted = context.truth(name, "test")[1]  # where there are labels, not what they are
    table = unseen.means[name]
    noises = unseen.noises.get(name)
    nets = table.reshape(-1, *table.shape[2:])
    own = None if noises is None else noises.reshape(-1, *noises.shape[2:])
    moments = compute_moments(nets, shares.ravel(), own, bounds := context.bounds(name))
    graph = context.graph_of_row(name, "test")
    graphs = len(context.rows_of("test"))
    largest = largest_per_graph(moments.spread[:, 0], graph, graphs)
    design = CrossDesign(
        shares, measure_variances(table[:, :, wanted], shares), largest[np.isfinite(largest)]
    )
    elements = context.elements_of_row(name, "test")[np.flatnonzero(wanted)]
    means = np.tensordot(design.weights, table[:, :, wanted], 1)
    rows = UnseenRows(
        design.unbiased_variance(table[:, :, wanted]),
        moments.spread[wanted],
        moments.noise[wanted],
        context.group_of_row(name, "test")[wanted],
        RowFeatures(elements, predicted_size(moments.mean[wanted])),
        np.stack([predicted_size(clip_to_bounds(mean, bounds)) for mean in means]),
    )
    return replace(design, unseen=rows)


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
    variance = np.zeros((len(fold), 1))
    noise = np.zeros((len(fold), 1))
    for number, share in enumerate(shares):
        rows = fold == number
        unseen = None if noises is None else noises[:, number, rows]
        moments = compute_moments(table[:, number, rows], share, unseen)
        left = 1.0 - float(np.square(share).sum())
        mean[rows], noise[rows] = moments.mean, moments.noise
        if left > 1e-9:
            variance[rows] = np.square(moments.spread) / left
    return mean, variance, noise


def _make_tables(
    context: CrossContext,
    nets: Sequence[Net],
    predictions: MemberPredictions,
    joined: Mapping[str, np.ndarray],
) -> MemberPredictions:
    """Sort predictions and variances of a split by configuration and fold, [C, K, R, w].

    Args:
        context: data shared by all steps of the build.
        nets: the M nets.
        predictions: of the nets, [M, R, w].
        joined: of the regressions that are members, [K, R, w], or [R, w] of those that have not
            seen the rows: one more configuration, without a variance, by head.
    """

    def sort(name: str, values: np.ndarray, more: np.ndarray) -> np.ndarray:
        table = _by_configuration(context, nets, values)
        return _append_configuration(table, more) if name in joined else table

    silent = np.zeros(1)
    return MemberPredictions(
        {name: sort(name, v, joined.get(name, silent)) for name, v in predictions.means.items()},
        {name: sort(name, v, silent) for name, v in predictions.noises.items()},
    )


def _append_configuration(table: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Append a configuration to a table, [C, K, R, w]; its values have a shape that broadcasts."""
    return np.concatenate([table, np.broadcast_to(values, (1, *table.shape[1:]))])


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
