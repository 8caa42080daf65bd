"""Build the ensemble of a run, with its error against the number of its members.

Shapes: C candidates, M members, R rows of a head, w its components.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save as save_arrays
from torch import Tensor

from hydragnn_hpo import log
from hydragnn_hpo.ensemble.artefact import ArtefactContent, write_artefact
from hydragnn_hpo.ensemble.build_context import BuildContext, open_build_context
from hydragnn_hpo.ensemble.build_steps import (
    MemberPredictions,
    calibrate_heads,
    check_members,
    evaluate_heads,
    make_candidate_member,
    predict_split,
    read_best_weights,
)
from hydragnn_hpo.ensemble.calibrate import Calibration
from hydragnn_hpo.ensemble.calibration_data import CalibrationData
from hydragnn_hpo.ensemble.candidates import list_leaderboard
from hydragnn_hpo.ensemble.manifest import Manifest
from hydragnn_hpo.ensemble.metadata import collect_calibration_data, make_manifest
from hydragnn_hpo.ensemble.select import (
    MemberSelection,
    ScoredHead,
    compare_members,
    greedy_order,
    make_scored_heads,
    select_members,
)
from hydragnn_hpo.ensemble.uncertainty_scores import mae
from hydragnn_hpo.errors import HydraError, answer_of
from hydragnn_hpo.files import write_bytes, write_json
from hydragnn_hpo.layout import RunDir

MOST = 24
"""Largest ensemble that is tried: errors hardly move any more."""

Known = tuple[Sequence[int], Mapping[str, ScoredHead]]
"""The candidates that predicted another split, and its heads: predictions [M, R, w] of those."""


def compute_size_curves(
    heads: Mapping[str, ScoredHead], objectives: Sequence[float], test: Known
) -> dict[str, list[dict[str, Any]]]:
    """Return the errors of means of 1, 2, 3 and more candidates; nothing is chosen by them.

    Args:
        heads: on ``sel``, of all candidates, [C, R, w].
        objectives: of the candidates, [C].
        test: what some of the candidates predicted on ``test``; no other is run there (Law 6).

    Returns:
        By method (``top``: the K of lowest objective; ``greedy``: the first K that greedy selection
        draws on ``sel``), for K = 1, 2 and so on: ``members``; ``added``, the candidate that came
        in; ``sel_mae`` by head; ``test_mae`` by head, None where one of them did not predict
        ``test``.
    """
    most = min(len(objectives), MOST)
    orders = {
        "top": np.argsort(np.asarray(objectives, np.float64), kind="stable")[:most].tolist(),
        "greedy": greedy_order(list(heads.values()), most),
    }
    return {
        method: [_size(heads, order[: k + 1], test) for k in range(len(order))]
        for method, order in orders.items()
    }


def errors_alone(heads: Mapping[str, ScoredHead], candidate: int) -> dict[str, float]:
    """Return the error of one candidate by head."""
    return {name: mae(head.predictions[candidate], head.truth) for name, head in heads.items()}


def _size(heads: Mapping[str, ScoredHead], members: Sequence[int], test: Known) -> dict[str, Any]:
    place = {candidate: row for row, candidate in enumerate(test[0])}
    is_known = all(candidate in place for candidate in members)
    return {
        "members": len(members),
        "added": members[-1],
        "sel_mae": _errors(heads, members),
        "test_mae": _errors(test[1], [place[c] for c in members]) if is_known else None,
    }


def _errors(heads: Mapping[str, ScoredHead], rows: Sequence[int]) -> dict[str, float]:
    taken = list(rows)
    return {
        name: mae(head.predictions[taken].mean(axis=0), head.truth) for name, head in heads.items()
    }


TEST_PREDICTIONS, TABLE = "test_predictions.safetensors", "ensemble.json"


def build_ensemble(run: Path, device: str = "cpu") -> dict[str, Any]:
    """Build ``RUN/ensemble.zip``, and what the report draws; looks at the test split once.

    Args:
        run: the run directory.
        device: where members predict the test split.

    Returns:
        ``path method why members heads selection diversity curves warnings candidates by_size
        leaderboard``; each head has ``unit test_mae single_mae mean_baseline_mae ratio_to_mean
        coverage90 test_mae_top_k test_mae_greedy`` and more.

    Raises:
        HydraError: the run cannot give an ensemble; one sentence says why.
    """
    context = open_build_context(RunDir(run))
    choice = select_members(context)
    tensors = {c: read_best_weights(context.candidates[c]) for c in choice.needed}
    members = {c: make_candidate_member(context, c, tensors[c]) for c in tensors}
    shares = choice.shares(list(members))
    mix = shares[choice.kept]
    predictions = predict_split(context, members, "cal", device)
    check_members(context, members, predictions)
    calibrations = calibrate_heads(context, predictions, mix)
    calibration_data = collect_calibration_data(context, predictions, list(members), mix)
    predictions = predict_split(context, members, "test", device)
    heads, arrays, curves = evaluate_heads(context, predictions, shares, calibrations, choice.kept)
    diversity = compare_members(context, choice.best)
    manifest = make_manifest(context, choice, calibrations, heads, diversity)
    table = _table(context, choice, manifest) | {"diversity": diversity, "curves": curves}
    table["warnings"] = _warnings(context, calibrations)
    table |= _size_curves(context, predictions, list(members))
    _write_report(context.run, table, arrays)
    weights = {context.candidates[c].trial: tensors[c] for c in tensors}
    _write_ensemble(context, manifest, weights, calibration_data)
    return table


def job_main(spec: Mapping[str, Any]) -> int:
    """Build an ensemble as a job: the table, or the error's sentence, goes to a file.

    Args:
        spec: ``run``, the run directory; ``answer``, the JSON file to write; ``device``,
            else ``HYDRAGNN_HPO_DEVICE``, else the processor.

    Returns:
        0, also where the answer is ``{"error": sentence}``.
    """
    log.configure()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    answer: dict[str, Any]
    try:
        device = os.environ.get("HYDRAGNN_HPO_DEVICE", "cpu")
        answer = build_ensemble(Path(spec["run"]), spec.get("device", device))
    except HydraError as error:
        answer = answer_of(error)
    write_json(Path(spec["answer"]), answer)
    return 0


def _table(context: BuildContext, choice: MemberSelection, manifest: Manifest) -> dict[str, Any]:
    return {
        "path": str(context.run.ensemble),
        "method": choice.kept,
        "why": choice.why,
        "members": [{**m.model_dump(mode="json"), "weight": m.weight} for m in manifest.members],
        "heads": manifest.evaluation,
        "selection": choice.selection,
        "leaderboard": list_leaderboard(context.run),
    }


def _size_curves(
    context: BuildContext, predictions: MemberPredictions, known: list[int]
) -> dict[str, Any]:
    """Return the errors of each candidate and of each ensemble size on ``sel`` and ``test``.

    Args:
        context: what the steps share.
        predictions: of some candidates for ``test``; no other model is run there (Law 6).
        known: those candidates.
    """
    heads, test = make_scored_heads(context), {}
    for name in context.targets:
        truth, mask = context.truth(name, "test")
        test[name] = ScoredHead(predictions[name][:, mask], truth[mask], 1.0)
    sizes = compute_size_curves(heads, [c.objective for c in context.candidates], (known, test))
    for size in (size for sizes_of in sizes.values() for size in sizes_of):
        size["added"] = context.candidates[size["added"]].trial
    each = [
        {"trial": one.trial, "sel_mae": errors_alone(heads, c)}
        for c, one in enumerate(context.candidates)
    ]
    return {"candidates": each, "by_size": sizes}


def _write_ensemble(
    context: BuildContext,
    manifest: Manifest,
    tensors: Mapping[str, Mapping[str, Tensor]],
    calibration_data: CalibrationData | None,
) -> None:
    names = {member.trial for member in manifest.members}
    configs = {one.trial: one.config for one in context.candidates if one.trial in names}
    weights = {name: dict(tensors[name]) for name in configs}
    cards = {card.name: card for card in context.cards}
    write_artefact(
        context.run.ensemble, ArtefactContent(manifest, configs, weights, cards, calibration_data)
    )


def _write_report(run: RunDir, table: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    run.report.mkdir(exist_ok=True)
    write_bytes(run.report / TEST_PREDICTIONS, save_arrays(arrays))
    write_json(run.report / TABLE, {k: v for k, v in table.items() if k != "path"})


def _warnings(context: BuildContext, calibrations: Mapping[str, Calibration]) -> list[str]:
    found = []
    if len(context.candidates) == 1:
        found.append(
            "one trial is all there is: its ensemble has no spread, so every prediction of a "
            "head has the same sigma; run more trials to the full budget."
        )
    if context.candidates[0].status != "completed":
        found.append("no trial reached the full budget: members were stopped at a rung.")
    for name, calibration in calibrations.items():
        if not calibration.guaranteed(0.9):
            found.append(
                f"head '{name}' was calibrated on {calibration.groups} groups, too few for a "
                "guaranteed 90 % interval (it takes 9): raise the share of cal."
            )
    return found
