"""Third stage of a build: each head calibrated on structures that trained none of its members.

Shapes: C candidates, M nets, K regressions, R rows of a head, w components.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hydragnn_hpo.ensemble.artefact import LOCAL_MEMBER
from hydragnn_hpo.ensemble_build.candidates import BuildContext, CrossContext, Net
from hydragnn_hpo.ensemble_build.cross_fit import calibrate_folds
from hydragnn_hpo.ensemble_build.member_selection import MemberSelection, Weights, share_weights
from hydragnn_hpo.ensemble_build.predicted import MemberPredictions, Predicted
from hydragnn_hpo.ensemble_build.simpler_models import JoinedModels
from hydragnn_hpo.uncertainty import Calibration, CalibrationData
from hydragnn_hpo.uncertainty.calibrate import group_weights
from hydragnn_hpo.uncertainty.calibration_data import AtomsOfStructures, HeadCalibrationData
from hydragnn_hpo.uncertainty.class_probabilities import fit_temperature

Mix = Literal["kept", "top", "greedy"]
"""Weighted mean of members: that of the ensemble, or of the nets alone by one of the methods."""


@dataclass(frozen=True)
class Calibrated:
    """The third stage: calibrations, and the weights that they hold for."""

    heads: Mapping[str, Calibration]
    """Of the kept mix, by head."""
    data: CalibrationData | None
    """What pruning needs; None where members were trained on folds."""
    weights: Mapping[Mix, Weights]
    """Weights of the M nets, then of the K regressions, by mix and head, [M + K]."""
    temperatures: Mapping[str, float]
    """Those of the best trial alone, with which the ensemble is compared, by head of classes."""


def calibrate(context: BuildContext, choice: MemberSelection, predicted: Predicted) -> Calibrated:
    """Calibrate every head on structures that trained none of what predicts them.

    Args:
        context: data shared by all steps of the build.
        choice: the selected members and their weights.
        predicted: what they predict; labels of ``test`` are not read.
    """
    joined = predicted.joined
    data = None
    if isinstance(context, CrossContext):
        heads = calibrate_folds(context, choice.kept, predicted)
    else:
        shares = share_weights(choice, predicted.nets)[choice.kept]
        data = collect_calibration_data(context, predicted, shares)
        heads = {
            name: data.calibrate_head(
                name,
                _by_trial(context, weights, joined.weights.get(name)),
                context.scale(name),
                context.bounds(name),
                is_class=context.is_class(name),
            )
            for name, weights in choice.best.items()
        }
    return Calibrated(
        heads,
        data,
        weigh_mixes(choice, predicted.nets, joined),
        fit_temperatures(context, predicted.nets[0], predicted.cal),
    )


def collect_calibration_data(
    context: BuildContext, predicted: Predicted, weights: Mapping[str, np.ndarray]
) -> CalibrationData:
    """Collect the predictions for ``cal`` of the members with weight in the kept mix.

    Args:
        context: data shared by all steps of the build.
        predicted: predictions of the members.
        weights: shares of the M nets in the kept mix by head, [M].
    """
    indices = context.rows_of("cal")
    heads = {}
    by_element = context.strata.atoms == "element"
    numbers = np.concatenate([piece.numbers for piece in context.take(indices)])
    structure = np.repeat(np.arange(len(indices)), context.graphs.num_nodes()[indices])
    for name in context.targets:
        truth, mask = context.truth(name, "cal")
        rows = np.flatnonzero(weights[name]).tolist()
        chosen = {predicted.nets[row].trial: row for row in rows}
        noise = predicted.cal.noises.get(name)
        joined = predicted.joined.learned
        heads[name] = HeadCalibrationData(
            truth=np.where(mask[:, None], truth, 0.0),
            mask=mask,
            graph=context.graph_of_row(name, "cal"),
            predictions={
                **{trial: predicted.cal.means[name][row] for trial, row in chosen.items()},
                **({LOCAL_MEMBER: joined[name]} if name in joined else {}),
            },
            variances={} if noise is None else {trial: noise[row] for trial, row in chosen.items()},
            element=numbers if by_element and context.is_node(name) else None,
        )
    kind = context.strata.of_rows(context.graphs, indices, node=False)
    group = np.asarray(context.graphs.group[indices])
    atoms = AtomsOfStructures(numbers, structure)
    return CalibrationData(group, kind, heads, atoms)


def _by_trial(
    context: BuildContext, weights: np.ndarray, local: float | None = None
) -> dict[str, float]:
    """Return the weights of members by name; candidates without weight are left out.

    Args:
        context: data shared by all steps of the build.
        weights: weights of the candidates, [C], summing to 1.
        local: weight of a regression on local descriptors beside them; None without one.
    """
    pairs = zip(context.candidates, (1.0 - (local or 0.0)) * weights, strict=True)
    own = {} if local is None else {LOCAL_MEMBER: local}
    return own | {candidate.trial: float(weight) for candidate, weight in pairs if weight > 0}


def weigh_mixes(
    choice: MemberSelection, nets: Sequence[Net], joined: JoinedModels
) -> dict[Mix, Weights]:
    """Return the weights of nets and regressions in each mix, [M + K] by head.

    Args:
        choice: the candidates and their weights by both methods.
        nets: the M nets.
        joined: the K regressions, which are in the ensemble alone.

    Returns:
        By mix: weights of the nets, then of the regressions.
    """
    shares = share_weights(choice, nets)
    mixes: dict[Mix, Weights] = {"kept": joined.append_shares(shares[choice.kept], joined=True)}
    for method, weights in shares.items():
        mixes[method] = joined.append_shares(weights, joined=False)
    return mixes


def fit_temperatures(
    context: BuildContext, net: Net, predictions: MemberPredictions
) -> dict[str, float]:
    """Fit the temperatures of a net alone, as those of the ensemble, with which it is compared.

    Args:
        context: data shared by all steps of the build.
        net: the first of the M nets.
        predictions: predictions of the M nets for ``cal``.

    Returns:
        By head of classes, fitted on the structures of ``cal`` that the net has not seen.
    """
    temperatures = {}
    unseen = np.isin(context.rows_of("cal"), context.unseen_by(net)[1])
    for name in filter(context.is_class, context.targets):
        truth, labelled = context.truth(name, "cal")
        rows = labelled & unseen[context.graph_of_row(name, "cal")]
        weight, _ = group_weights(context.group_of_row(name, "cal")[rows])
        temperatures[name] = fit_temperature(predictions.means[name][0][rows], truth[rows], weight)
    return temperatures
