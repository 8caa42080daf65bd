"""Steps of a build: predict a split, calibrate on ``cal``, and evaluate once on ``test`` (Law 6).

Shapes: M members, R rows of a head, w components.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydragnn_hpo.config import ModelConfig
from hydragnn_hpo.data import Columns, GraphSet
from hydragnn_hpo.ensemble import target_rows
from hydragnn_hpo.ensemble.build_context import BuildContext
from hydragnn_hpo.ensemble.calibrate import Calibration, calibrate
from hydragnn_hpo.ensemble.candidates import Candidate, read_stored_predictions
from hydragnn_hpo.ensemble.coordination import measure_coordination
from hydragnn_hpo.ensemble.engine import (
    EDGES_PER_BATCH,
    Member,
    make_member,
    member_batches,
    pieces,
)
from hydragnn_hpo.ensemble.moments import Moments, compute_moments
from hydragnn_hpo.ensemble.strata import Strata, size_strata
from hydragnn_hpo.ensemble.uncertainty_figures import HeadOnLabels, compute_curves, compute_figures
from hydragnn_hpo.ensemble.uncertainty_scores import mae
from hydragnn_hpo.errors import RunError
from hydragnn_hpo.metrics_log import replace_nonfinite
from hydragnn_hpo.model import variance_key
from hydragnn_hpo.training import read_checkpoint

MemberPredictions = dict[str, np.ndarray]
"""By head the members' predictions, [M, R, w]; by ``variance_of(head)`` variances, [M, R, 1]."""

_PIECE = 1024
"""Training structures whose neighbours are counted together."""
_OF_THE_SPLIT = ("rows", "mae", "rmse")
"""Figures that tables call ``test_mae`` and so on."""


def read_best_weights(candidate: Candidate) -> dict[str, Tensor]:
    """Read a trial's best weights."""
    return read_checkpoint(candidate.folder.best)[0]


def make_candidate_member(
    context: BuildContext, candidate: int, tensors: Mapping[str, Tensor]
) -> Member:
    """Build a candidate's net around its weights, with weight 1 in every head."""
    chosen = context.candidates[candidate]
    where, alone = str(chosen.folder.best), dict.fromkeys(context.targets, 1.0)
    return make_member(chosen.config, tensors, context.targets, weights=alone, where=where)


@torch.no_grad()
def predict_split(
    context: BuildContext, by_candidate: Mapping[int, Member], split: str, device: str
) -> MemberPredictions:
    """Predict a split with each member alone, in fp64; a missing variance is 0."""
    place, members = torch.device(device), list(by_candidate.values())
    graphs, indices = context.graphs, context.graphs.indices_of(split)
    for member in members:
        member.model.to(place)
    parts: list[dict[str, list[np.ndarray]]] = [{} for _ in members]
    for piece in pieces(graphs, indices, EDGES_PER_BATCH):
        for row, (member, batch) in enumerate(member_batches(members, graphs, piece, place)):
            for name, values in member.model(batch).items():
                parts[row].setdefault(name, []).append(values.double().cpu().numpy())
    whole = [{name: np.concatenate(some) for name, some in part.items()} for part in parts]
    predictions: MemberPredictions = {}
    for head in members[0].heads:
        predictions[head] = np.stack([one[head] for one in whole])
        key, silent = variance_key(head), np.zeros((predictions[head].shape[1], 1))
        if any(key in one for one in whole):
            predictions[key] = np.stack([one.get(key, silent) for one in whole])
    return predictions


def mix_predictions(
    predictions: MemberPredictions, head: str, weights: np.ndarray, rows: np.ndarray
) -> Moments:
    """Mix the members' predictions of some rows of a head; those of weight 0 are left out.

    Args:
        predictions: see ``predict_split``.
        head: its name.
        weights: of the members, [M].
        rows: mask of the rows wanted, [R].
    """
    noise = predictions.get(variance_key(head))
    return compute_moments(
        predictions[head][:, rows], weights, None if noise is None else noise[:, rows]
    )


def check_members(
    context: BuildContext, members: Mapping[int, Member], predictions: MemberPredictions
) -> None:
    """Check that weights and stored predictions belong to the same epoch.

    Args:
        context: shared by the steps.
        members: by number of the candidate.
        predictions: theirs for ``cal``, in the same order.

    Raises:
        RunError: a member's weights do not repeat the stored predictions for ``cal``.
    """
    for row, candidate in enumerate(members):
        stored = read_stored_predictions(context.candidates[candidate], "cal", context.graphs)
        for name in context.targets:
            kept = stored[name]
            gap = np.abs(predictions[name][row] - kept).max(initial=0.0)
            # Another device rounds differently, the more the larger the numbers are.
            if not gap <= 1e-3 * context.scale(name) + 1e-5 * np.abs(kept).max(initial=0.0):
                raise RunError(
                    f"{context.candidates[candidate].folder.best}: does not repeat the predictions "
                    f"of '{name}' beside the trial's result (they differ by {gap:.3g} "
                    f"{context.targets[name]['unit']}): remove the trial's last attempt and run "
                    "the campaign again."
                )


def calibrate_heads(
    context: BuildContext, predictions: MemberPredictions, weights: Mapping[str, np.ndarray]
) -> dict[str, Calibration]:
    """Fit each head's map from spread to sigma, and its intervals.

    Args:
        context: shared by the steps.
        predictions: of the members for ``cal``, with the very weights that will be written.
        weights: by head the members' shares, [M].
    """
    indices, strata, out = context.graphs.indices_of("cal"), make_strata(context), {}
    for name in context.targets:
        truth, mask = context.truth(name, "cal")
        node = target_rows.is_node(context.graphs, name)
        graph = target_rows.graph_of_row(context.graphs, node=node, indices=indices)
        moments = mix_predictions(predictions, name, weights[name], np.ones(len(truth), dtype=bool))
        out[name] = calibrate(
            (truth - moments.mean)[mask],
            moments.spread[mask],
            group=context.graphs.group[indices][graph][mask],
            largest=target_rows.largest_per_graph(moments.spread[:, 0], graph, len(indices)),
            scale=context.scale(name),
            noise=moments.noise[mask],
            stratum=target_rows.stratum_of_row(context.graphs, strata, node=node, indices=indices)[
                mask
            ],
        )
    return out


def make_strata(context: BuildContext) -> Strata:
    """Return the strata that may have intervals of their own; targets are not used."""
    by = context.campaign.ensemble.intervals
    if by == "size":
        return size_strata(context.graphs.num_nodes()[context.graphs.indices_of("cal")])
    return Strata(by)


def trust_metadata(context: BuildContext, models: Sequence[ModelConfig]) -> dict[str, Any]:
    """Return the manifest entries about strata and about coordination in training.

    Neighbours are counted within the shortest cutoff of the members, so that any of them can
    do without the others.
    """
    cutoff = min(model.cutoff for model in models)
    found = measure_coordination(_training_pieces(context.graphs), cutoff)
    return {"strata": make_strata(context), "coordination": found}


def _training_pieces(graphs: GraphSet) -> Iterator[Columns]:
    indices = graphs.indices_of("train")
    for first in range(0, len(indices), _PIECE):
        yield graphs.take(indices[first : first + _PIECE])


def evaluate_heads(
    context: BuildContext,
    predictions: MemberPredictions,
    weights: Mapping[str, Mapping[str, np.ndarray]],
    calibrations: Mapping[str, Calibration],
    kept: str,
) -> tuple[dict[str, dict[str, Any]], dict[str, np.ndarray], dict[str, Any]]:
    """Score each head on the test split.

    Args:
        context: shared by the steps.
        predictions: of the members for ``test``, the best single first.
        weights: by method and head the members' shares, [M].
        calibrations: by head.
        kept: the method whose mix is the ensemble.

    Returns:
        The table by head; the arrays of the figure; and the curves by head: what intervals promise
        against what they hold, errors against sigma, see
        ``compute_curves``.
    """
    indices = context.graphs.indices_of("test")
    table, curves, arrays = {}, {}, {"index": indices}
    for name, target in context.targets.items():
        truth, mask = context.truth(name, "test")
        truth = truth[mask]
        mixes = {m: mix_predictions(predictions, name, w[name], mask) for m, w in weights.items()}
        found = _mix_split(context, name, truth, mixes[kept], mask)
        table[name] = _head_table(found, calibrations[name], target) | {
            "single_mae": mae(predictions[name][0][mask], truth),
            "test_mae_top_k": mae(mixes["top"].mean, truth),
            "test_mae_greedy": mae(mixes["greedy"].mean, truth),
        }
        curves[name] = replace_nonfinite(compute_curves(found, calibrations[name]))
        arrays |= {
            f"{name}/{part}": a for part, a in _head_arrays(found, calibrations[name]).items()
        }
    return table, arrays, curves


def _head_arrays(found: HeadOnLabels, calibration: Calibration) -> dict[str, np.ndarray]:
    """Return the values of every row that figures need: sigma as predicted, and calibrated."""
    sigma = found.sigma(calibration)
    half = calibration.half_width(sigma, 0.9, found.stratum)
    every = {"truth": found.truth, "mean": found.mean, "half90": half}
    return every | {"sigma": sigma, "raw_sigma": found.raw}


def _mix_split(
    context: BuildContext, name: str, truth: np.ndarray, mix: Moments, mask: np.ndarray
) -> HeadOnLabels:
    node, indices = target_rows.is_node(context.graphs, name), context.graphs.indices_of("test")
    stratum = target_rows.stratum_of_row(
        context.graphs, make_strata(context), node=node, indices=indices
    )
    return HeadOnLabels(truth, mix.mean, mix.spread, mix.noise, stratum[mask])


def _head_table(
    found: HeadOnLabels, calibration: Calibration, target: Mapping[str, Any]
) -> dict[str, Any]:
    """Return one head's figures under their names in tables and artefacts; None without a value."""
    figures = {
        f"test_{name}" if name in _OF_THE_SPLIT else name: value
        for name, value in compute_figures(found, calibration).items()
    }
    baseline = mae(float(target["mean"]), found.truth)
    plain: dict[str, Any] = replace_nonfinite(
        {
            "unit": target["unit"],
            **figures,
            "mean_baseline_mae": baseline,
            "ratio_to_mean": figures["test_mae"] / baseline if baseline else 0.0,
        }
    )
    return plain
