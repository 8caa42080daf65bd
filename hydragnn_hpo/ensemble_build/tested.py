"""Fourth stage of a build: each head on the test split, whose labels are read here (Law 6).

Shapes: M members, R rows of a head, w components.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_array

from hydragnn_hpo.config import find_published, is_extensive
from hydragnn_hpo.data import expand_mean, mark_far
from hydragnn_hpo.ensemble.local_descriptors import describe_basis, predict_simply
from hydragnn_hpo.ensemble_build.calibrated import Calibrated
from hydragnn_hpo.ensemble_build.candidates import BuildContext
from hydragnn_hpo.ensemble_build.evidence import (
    TwinsOfTest,
    count_independent,
    find_data_curves,
    find_far_labels,
    find_test_twins,
)
from hydragnn_hpo.ensemble_build.member_selection import MemberSelection, list_kept
from hydragnn_hpo.ensemble_build.predicted import MemberPredictions, Predicted
from hydragnn_hpo.ensemble_build.simpler_models import SimplerModels
from hydragnn_hpo.ensemble_build.verdict_evidence import (
    DataCurve,
    FarValue,
    HeadEvidence,
    Published,
    RowFacts,
    collect_evidence,
    find_kinds,
)
from hydragnn_hpo.file_records import Curves, HeadDiversity, HeadScores, TargetStats
from hydragnn_hpo.metrics_log import replace_nonfinite
from hydragnn_hpo.uncertainty import (
    Calibration,
    Moments,
    calibrate_probabilities,
    class_std,
    clip_to_bounds,
    log_losses,
)
from hydragnn_hpo.uncertainty.uncertainty_scores import (
    HeadOnLabels,
    compute_curves,
    compute_figures,
    mae,
    norm_errors,
)
from hydragnn_hpo.units import shown_unit

_PREFIXED = ("rows", "mae", "rmse", "norm_error")
"""Figures that get the prefix ``test_`` in the table."""


@dataclass(frozen=True)
class TestedHead:
    """One head on the test split."""

    scores: HeadScores
    arrays: Mapping[str, np.ndarray]
    """Values of each row, see ``_head_arrays``."""
    curves: Curves
    evidence: HeadEvidence
    """What the verdict needs to know of it."""


@dataclass(frozen=True)
class Tested:
    """The fourth stage: an ensemble on the test split."""

    heads: Mapping[str, TestedHead]
    """By name."""
    predictions: MemberPredictions
    """Of the M + K members for the split."""
    twins: TwinsOfTest | None
    """Structures that no member can tell from test structures; None if they are not known."""


@dataclass(frozen=True)
class BuildStages:
    """All stages of a build, from which its files are made."""

    context: BuildContext
    """Data shared by all steps."""
    choice: MemberSelection
    """The selected members and their weights."""
    predicted: Predicted
    """What they predict, and regressions beside them."""
    calibrated: Calibrated
    """Calibrations of the kept mix, and weights by mix."""
    tested: Tested
    """Figures on the test split."""
    diversity: dict[str, HeadDiversity]
    """Of the members on ``sel``, by head."""


@dataclass(frozen=True)
class _DataFacts:
    """What is known of the data, for all heads."""

    far: Mapping[str, FarValue]
    curves: Mapping[str, DataCurve]
    twins: TwinsOfTest | None


def score_on_test(
    context: BuildContext, choice: MemberSelection, predicted: Predicted, calibrated: Calibrated
) -> Tested:
    """Score each head on the test split.

    Args:
        context: data shared by all steps of the build.
        choice: the selected members and their weights.
        predicted: what they predict.
        calibrated: calibrations and weights by mix.
    """
    twins = find_test_twins(context, list_kept(context, choice))
    data = _DataFacts(find_far_labels(context), find_data_curves(context), twins)
    predictions = predicted.all_on_test
    heads = {
        name: _test_head(context, name, (predictions, predicted), calibrated, data)
        for name in context.targets
    }
    return Tested(heads, predictions, twins)


def _test_head(
    context: BuildContext,
    name: str,
    of_members: tuple[MemberPredictions, Predicted],
    calibrated: Calibrated,
    data: _DataFacts,
) -> TestedHead:
    """Score a head.

    Args:
        context: data shared by all steps of the build.
        name: of the head.
        of_members: what the M + K members predict for the split, the best single candidate first;
            what they are compared with.
        calibrated: calibrations and weights by mix.
        data: what is known of all heads.
    """
    predictions, predicted = of_members
    simpler = predicted.simpler
    calibration = calibrated.heads[name]
    truth, mask = context.truth(name, "test")
    truth = truth[mask]
    bounds = context.bounds(name)
    single = clip_to_bounds(predictions.means[name][0][mask], bounds)
    single = _calibrate_mean(single, calibration, calibrated.temperatures.get(name))
    mixes = {
        mix: predictions.mix(name, weights[name], mask, bounds)
        for mix, weights in calibrated.weights.items()
    }
    node = context.is_node(name)
    stratum = context.strata.of_rows(context.graphs, context.rows_of("test"), node=node)
    elements = context.elements_of_row(name, "test")[np.flatnonzero(mask)]
    on_labels = _on_labels(truth, mixes["kept"], calibration, stratum[mask], elements)
    far = data.far.get(name) or _find_far_error(context, name, mask, on_labels)
    facts = _head_facts(context, name, predicted, data, far)
    rows = _describe_rows(context, name, mask, single, simpler)
    evidence = collect_evidence(facts, on_labels, calibration, rows)
    scores = _head_scores(on_labels, calibration, context.targets[name]) | {
        "single_mae": _error(context, name, single, truth),
        "elements_mae": replace_nonfinite(evidence.elements.mae),
        "descriptor_mae": replace_nonfinite(evidence.descriptor.mae),
        "test_mae_top_k": _error(context, name, mixes["top"].mean, truth),
        "test_mae_greedy": _error(context, name, mixes["greedy"].mean, truth),
    }
    return TestedHead(
        scores,
        _head_arrays(name, on_labels, calibration, mask),
        replace_nonfinite(compute_curves(on_labels, calibration)),
        evidence,
    )


def _head_facts(
    context: BuildContext,
    name: str,
    predicted: Predicted,
    data: _DataFacts,
    far: FarValue | None,
) -> HeadEvidence:
    """Return what is known of a head beside its figures.

    Args:
        context: data shared by all steps of the build.
        name: of the head.
        predicted: regressions that are members, or are compared with it.
        data: what is known of all heads.
        far: its farthest label or error, if that is far from all others.
    """
    target = context.targets[name]
    best = find_published(card.targets[name] for card in context.cards if name in card.targets)
    facts = HeadEvidence(
        name,
        shown_unit(target),
        is_node=context.is_node(name),
        has_derivatives=any(t.get("derived_from") == name for t in context.targets.values()),
        classes=tuple(target.get("classes") or ()),
        local=predicted.joined.judged.get(name),
        published=None if best is None else Published(best.mae, best.by),
        data=data.curves.get(name),
        far=far,
    )
    local = predicted.simpler.local
    if local is not None and name in local.heads:
        facts = replace(facts, described_by=describe_basis(local.find_trunk(name)))
    if data.twins is not None:
        facts = count_independent(context, facts, data.twins.same)
    return facts


def _find_far_error(
    context: BuildContext, name: str, mask: np.ndarray, predicted: HeadOnLabels
) -> FarValue | None:
    """Return the largest error of a head, where it is far from all others.

    Args:
        context: data shared by all steps of the build.
        name: name of the head.
        mask: its rows with a label on the test split.
        predicted: the head on these rows.
    """
    errors = np.abs(predicted.residual).mean(axis=1)
    if context.is_class(name) or not mark_far(errors).any():
        return None
    row = int(errors.argmax())
    graph = context.graph_of_row(name, "test")[mask]
    place = context.rows_of("test")[graph[row : row + 1]]
    median = float(np.median(errors))
    return FarValue(context.graphs.take(place).ids[0], float(errors[row]), median, is_error=True)


def _on_labels(
    truth: np.ndarray,
    mix: Moments,
    calibration: Calibration,
    stratum: np.ndarray,
    elements: csr_array,
) -> HeadOnLabels:
    """Return a head on its labels; probabilities of classes with the temperature.

    Args:
        truth: labels, [R, w].
        mix: weighted mean of the members and its spread.
        calibration: calibration of the head.
        stratum: stratum of each row, [R].
        elements: 1 for each element that a row contains, [R, 119].
    """
    mean = _calibrate_mean(mix.mean, calibration, calibration.temperature)
    factor = calibration.factor(elements, mix.mean)
    return HeadOnLabels(truth, mean, mix.spread, mix.noise, stratum, factor)


def _calibrate_mean(
    mean: np.ndarray, calibration: Calibration, temperature: float | None
) -> np.ndarray:
    """Return predictions, [R, w]; of a head that has a temperature, calibrated probabilities.

    Args:
        mean: predictions, [R, w].
        calibration: calibration of the head.
        temperature: used instead of that of the calibration.
    """
    if temperature is None:
        return mean
    return calibrate_probabilities(mean, replace(calibration, temperature=temperature))


def _error(context: BuildContext, name: str, mean: np.ndarray, truth: np.ndarray) -> float:
    """Return the MAE of a head, or the log-loss of a class in nats.

    Args:
        context: data shared by all steps of the build.
        name: name of the head.
        mean: predictions, [R, w].
        truth: labels, [R, w].
    """
    if context.is_class(name):
        return float(log_losses(mean, truth).mean())
    return mae(mean, truth)


def _describe_rows(
    context: BuildContext,
    name: str,
    mask: np.ndarray,
    single: np.ndarray,
    simpler: SimplerModels,
) -> RowFacts:
    """Describe the rows of a head on the test split: groups, kinds, and simpler predictions.

    The latter end at the bounds of the target, as those of the ensemble do.

    Args:
        context: data shared by all steps of the build.
        name: name of the head.
        mask: the rows that have a label, among all.
        single: predictions of the best candidate for those rows, [R, w].
        simpler: the predictions from the elements and from local descriptors.
    """
    target = context.targets[name]
    baseline = simpler.baselines.get(name)
    numbers, sizes, parts = [], [], []
    for piece in context.take(context.rows_of("test")):
        numbers.append(np.asarray(piece.numbers))
        sizes.append(piece.num_nodes())
        parts.append(predict_simply(name, target, piece, baseline, simpler.local))
    elements = np.concatenate(numbers)
    graph = context.graph_of_row(name, "test")[mask]
    own = elements[mask] if context.is_node(name) else None
    others = {"mean": np.broadcast_to(_center(target), single.shape)}
    if target["shape"] == "scalar" and not is_extensive(target):
        labels, known = context.truth(name, "cal")
        others["median"] = np.broadcast_to(np.median(labels[known], axis=0), single.shape)
    others |= {key: np.concatenate([part[key] for part in parts])[mask] for key in parts[0]}
    if len(context.candidates) > 1:
        others["single"] = single
    kinds = find_kinds(elements, np.concatenate(sizes), graph, own)
    return RowFacts(context.group_of_row(name, "test")[mask], kinds, others)


def _center(target: TargetStats) -> np.ndarray:
    """Return the mean of a target on the training split by component, in the unit, [w] or [1]."""
    return expand_mean(target["mean"], target["shape"], target.get("means"))


def _head_scores(
    predicted: HeadOnLabels, calibration: Calibration, target: TargetStats
) -> HeadScores:
    """Return the figures of a head under the names of the table, and its unit."""
    figures = compute_figures(predicted, calibration, _center(target))
    figures |= norm_errors(predicted, target["shape"])
    renamed = {f"test_{k}" if k in _PREFIXED else k: v for k, v in figures.items()}
    scores: HeadScores = replace_nonfinite({"unit": shown_unit(target), **renamed})
    return scores


def _head_arrays(
    name: str, predicted: HeadOnLabels, calibration: Calibration, mask: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the values of each row that the report's figures need.

    Args:
        name: name of the head.
        predicted: the head on the test split.
        calibration: calibration of the head.
        mask: these rows among all graphs or nodes of the split.

    Returns:
        By name, in the head's unit: ``truth`` and ``mean``, [R, w]; half the width of the 90 %
        interval, calibrated sigma, and sigma without calibration, [R, 1] each; ``rows``, the
        positions of the rows among all graphs or nodes of the split, [R].
    """
    sigma = predicted.sigma(calibration)
    half = calibration.half_width(sigma, 0.9, predicted.stratum)
    if calibration.temperature is not None:
        sigma, half = class_std(predicted.mean), np.zeros_like(half)
    return {
        f"{name}/truth": predicted.truth,
        f"{name}/mean": predicted.mean,
        f"{name}/half90": half,
        f"{name}/sigma": sigma,
        f"{name}/raw_sigma": predicted.raw,
        f"{name}/rows": np.flatnonzero(mask),
    }
