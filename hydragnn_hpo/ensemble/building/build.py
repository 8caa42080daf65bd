"""From the trials of a run to one ensemble: select, calibrate, evaluate once, write.

Shapes: C candidates, M members, R rows of a head, w components.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save as save_arrays
from torch import Tensor

from hydragnn_hpo import log
from hydragnn_hpo.ensemble.artefact import ArtefactContent, write_artefact
from hydragnn_hpo.ensemble.building.bench import Bench, open_bench
from hydragnn_hpo.ensemble.building.calibration import calibrate_heads
from hydragnn_hpo.ensemble.building.candidates import standing
from hydragnn_hpo.ensemble.building.choose import (
    Choice,
    choose,
    compare_members,
    scored_heads,
)
from hydragnn_hpo.ensemble.building.evaluation import evaluate_heads
from hydragnn_hpo.ensemble.building.members import (
    Said,
    check_members,
    member_of,
    said_by,
    weights_of,
)
from hydragnn_hpo.ensemble.building.select import ScoredHead
from hydragnn_hpo.ensemble.building.sizes import alone, by_size
from hydragnn_hpo.ensemble.calibration_data import CalibrationData
from hydragnn_hpo.ensemble.manifest import Manifest
from hydragnn_hpo.ensemble.metadata import collect_calibration_data, make_manifest
from hydragnn_hpo.ensemble.uncertainty.calibrate import Calibration
from hydragnn_hpo.errors import HydraError, answer_of
from hydragnn_hpo.files import write_bytes, write_json
from hydragnn_hpo.layout import RunDir

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
    bench = open_bench(RunDir(run))
    choice = choose(bench)
    tensors = {c: weights_of(bench.candidates[c]) for c in choice.needed}
    members = {c: member_of(bench, c, tensors[c]) for c in tensors}
    shares = choice.shares(list(members))
    said = said_by(bench, members, "cal", device)
    check_members(bench, members, said)
    calibrations = calibrate_heads(bench, said, shares[choice.kept])
    evidence = collect_calibration_data(bench, said, list(members), shares[choice.kept])
    said = said_by(bench, members, "test", device)
    heads, arrays, curves = evaluate_heads(bench, said, shares, calibrations, choice.kept)
    seen = compare_members(bench, choice.best)
    manifest = make_manifest(bench, choice, calibrations, heads, seen)
    table = _table(bench, choice, manifest) | {"diversity": seen, "curves": curves}
    table |= {"warnings": _warnings(bench, calibrations), **_sizes(bench, said, list(members))}
    _write_report(bench.run, table, arrays)
    _pack(bench, manifest, {bench.candidates[c].trial: tensors[c] for c in tensors}, evidence)
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


def _table(bench: Bench, choice: Choice, manifest: Manifest) -> dict[str, Any]:
    return {
        "path": str(bench.run.ensemble),
        "method": choice.kept,
        "why": choice.why,
        "members": [{**m.model_dump(mode="json"), "weight": m.weight} for m in manifest.members],
        "heads": manifest.evaluation,
        "selection": choice.selection,
        "leaderboard": standing(bench.run),
    }


def _sizes(bench: Bench, said: Said, known: list[int]) -> dict[str, Any]:
    """Say how each candidate and each size of ensemble does on ``sel``, and on ``test``.

    Args:
        bench: what the steps share.
        said: what some candidates said about ``test``; nobody else is asked (Law 6).
        known: those candidates.
    """
    heads, test = scored_heads(bench), {}
    for name in bench.targets:
        truth, mask = bench.truth(name, "test")
        test[name] = ScoredHead(said[name][:, mask], truth[mask], 1.0)
    sizes = by_size(heads, [c.objective for c in bench.candidates], (known, test))
    for size in (size for sizes_of in sizes.values() for size in sizes_of):
        size["added"] = bench.candidates[size["added"]].trial
    each = [
        {"trial": one.trial, "sel_mae": alone(heads, c)} for c, one in enumerate(bench.candidates)
    ]
    return {"candidates": each, "by_size": sizes}


def _pack(
    bench: Bench,
    manifest: Manifest,
    tensors: Mapping[str, Mapping[str, Tensor]],
    evidence: CalibrationData | None,
) -> None:
    names = {member.trial for member in manifest.members}
    configs = {one.trial: one.config for one in bench.candidates if one.trial in names}
    weights = {name: dict(tensors[name]) for name in configs}
    cards = {card.name: card for card in bench.cards}
    write_artefact(bench.run.ensemble, ArtefactContent(manifest, configs, weights, cards, evidence))


def _write_report(run: RunDir, table: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    run.report.mkdir(exist_ok=True)
    write_bytes(run.report / TEST_PREDICTIONS, save_arrays(arrays))
    write_json(run.report / TABLE, {k: v for k, v in table.items() if k != "path"})


def _warnings(bench: Bench, calibrations: Mapping[str, Calibration]) -> list[str]:
    found = []
    if len(bench.candidates) == 1:
        found.append(
            "one trial is all there is: its ensemble has no spread, so every prediction of a "
            "head has the same sigma; run more trials to the full budget."
        )
    if bench.candidates[0].status != "completed":
        found.append("no trial reached the full budget: members were stopped at a rung.")
    for name, calibration in calibrations.items():
        if not calibration.guaranteed(0.9):
            found.append(
                f"head '{name}' was calibrated on {calibration.groups} groups, too few for a "
                "guaranteed 90 % interval (it takes 9): raise the share of cal."
            )
    return found
