"""What the report shows of a build: its table, and values of every row of the test split."""

from collections.abc import Iterable, Mapping
from typing import cast

import numpy as np
from safetensors.numpy import save as save_arrays

from hydragnn_hpo.ensemble import ArtefactContent, Manifest
from hydragnn_hpo.ensemble.descriptors import GRAPH, NODE, TrainingFeatures
from hydragnn_hpo.ensemble.engine import Member
from hydragnn_hpo.ensemble.head_predictions import describe_heads
from hydragnn_hpo.ensemble.local_descriptors import describe_basis
from hydragnn_hpo.ensemble_build.candidates import (
    BuildContext,
    average_nets,
    list_leaderboard,
    read_truth,
)
from hydragnn_hpo.ensemble_build.evidence import collect_search_evidence
from hydragnn_hpo.ensemble_build.member_selection import (
    ScoredHead,
    compute_errors,
    compute_size_curves,
    make_scored_heads,
)
from hydragnn_hpo.ensemble_build.predicted import MemberPredictions, Predicted
from hydragnn_hpo.ensemble_build.tested import BuildStages
from hydragnn_hpo.ensemble_build.verdict import judge, judge_missing
from hydragnn_hpo.file_records import (
    CandidateErrors,
    EnsembleMember,
    EnsembleSize,
    EnsembleTable,
    HeadScores,
)
from hydragnn_hpo.files import write_bytes, write_json
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.uncertainty.calibrate import GRAPHS_TOGETHER

TEST_PREDICTIONS, TABLE = "test_predictions.safetensors", "ensemble.json"
"""Files of the report: values of every row of ``test``, and an ``EnsembleTable``."""


def make_table(build: BuildStages, manifest: Manifest) -> EnsembleTable:
    """Return the table of a build, of whose ensemble this is the manifest."""
    context = build.context
    choice = build.choice
    predicted = build.predicted
    heads = build.tested.heads
    twins = build.tested.twins
    missing = [judge_missing(name, splits) for name, splits in context.missing.items()]
    local = predicted.simpler.local
    described = {} if local is None else {"described_by": describe_basis(local.basis.trunk)}
    table = {
        "path": str(context.run.ensemble),
        "method": choice.kept,
        "why": choice.why,
        "folds": manifest.created_by.folds,
        "members": [
            cast("EnsembleMember", {**member.model_dump(), "weight": member.weight})
            for member in manifest.members
        ],
        "heads": cast("dict[str, HeadScores]", manifest.evaluation),
        "selection": choice.selection,
        "leaderboard": list_leaderboard(context.run),
        "diversity": build.diversity,
        "curves": {name: head.curves for name, head in heads.items()},
        "warnings": list_warnings(context, manifest),
        "candidates": _candidate_errors(context),
        "by_size": _size_curves(context, predicted),
        "test_twins": None if twins is None else twins.near,
        "local_descriptors": predicted.joined.judged,
        "verdict": missing
        + judge([head.evidence for head in heads.values()], collect_search_evidence(context)),
        **described,
    }
    return cast("EnsembleTable", table)


def gather_arrays(build: BuildStages, content: ArtefactContent) -> dict[str, np.ndarray]:
    """Return the values of all rows of the test split, by head and kind.

    Args:
        build: its stages.
        content: the ensemble file.

    Returns:
        Those of each head, see ``tested``; its distances to the training set, [R, 1]; ``index``,
        the positions of the split's graphs, [G]; and ``trust``, the bytes of a text.
    """
    assert content.features is not None
    context = build.context
    tested = build.tested
    of_heads = {key: a for head in tested.heads.values() for key, a in head.arrays.items()}
    weights = build.calibrated.weights["kept"]
    return {
        "index": context.rows_of("test"),
        **of_heads,
        **_distances_on_test(context, content.features, build.predicted.members),
        "trust": _trust_on_test(context, content.manifest, tested.predictions, weights),
    }


def write_report(run: RunDir, table: EnsembleTable, arrays: Mapping[str, np.ndarray]) -> None:
    """Write the table and the values of all rows where the report reads them.

    Args:
        run: the run directory.
        table: from ``make_table``.
        arrays: from ``gather_arrays``.
    """
    run.report.mkdir(exist_ok=True)
    write_bytes(run.report / TEST_PREDICTIONS, save_arrays(dict(arrays)))
    write_json(run.report / TABLE, {k: v for k, v in table.items() if k != "path"})


def _candidate_errors(context: BuildContext) -> list[CandidateErrors]:
    """Compute the error of each candidate alone on ``sel``."""
    heads = make_scored_heads(context)
    return [
        {"trial": candidate.trial, "sel_mae": compute_errors(heads, [position])}
        for position, candidate in enumerate(context.candidates)
    ]


def _size_curves(context: BuildContext, predicted: Predicted) -> dict[str, list[EnsembleSize]]:
    """Compute the errors of each ensemble size on ``sel`` and ``test``, by method.

    No other nets than the M members predict ``test`` (Law 6).
    """
    nets = predicted.nets
    candidates = list(dict.fromkeys(net.candidate for net in nets))
    test = {}
    for name in context.targets:
        truth, mask = context.truth(name, "test")
        group = context.group_of_row(name, "test")[mask]
        means = average_nets(predicted.test.means[name], nets)
        is_class = context.is_class(name)
        test[name] = ScoredHead(means[:, mask], truth[mask], 1.0, group, is_class)
    objectives = [candidate.objective for candidate in context.candidates]
    trials = [candidate.trial for candidate in context.candidates]
    heads = make_scored_heads(context)
    return compute_size_curves(heads, objectives, trials, (candidates, test))


def list_warnings(context: BuildContext, manifest: Manifest) -> list[str]:
    """Return a sentence for each reason to doubt an ensemble, with what to do about it."""
    warnings = []
    best = context.candidates[0].trial
    if context.candidates[0].status != "completed":
        warnings.append(
            f"no trial reached the full budget, the best, {best}, was stopped at a rung; run the "
            "campaign to its end."
        )
    warnings += manifest.unguaranteed((90,))
    for name in manifest.heads:
        _, labelled = read_truth(context.graphs, name, context.rows_of("test"))
        left_out = int(labelled.sum() - context.truth(name, "test")[1].sum())
        if left_out:
            warnings.append(
                f"head '{name}' leaves out {left_out} of {int(labelled.sum())} labels of the test "
                "split, whose elements have no label in train: label structures with them."
            )
    return warnings


def _trust_on_test(
    context: BuildContext,
    manifest: Manifest,
    predictions: MemberPredictions,
    weights: Mapping[str, np.ndarray],
) -> np.ndarray:
    """Return for each structure of the test split ``ok``, or the reasons not to trust it.

    They are the bytes of a text, a line for each.

    Args:
        context: data shared by all steps of the build.
        manifest: manifest of the ensemble.
        predictions: predictions of the M members for ``test``.
        weights: shares of the members in the kept mix by head, [M].
    """
    indices = context.rows_of("test")
    trust = list[str]()
    ends = np.concatenate(([0], np.cumsum(context.graphs.num_nodes()[indices])))
    for first in range(0, len(indices), GRAPHS_TOGETHER):
        columns = context.graphs.take(indices[first : first + GRAPHS_TOGETHER])
        last = first + columns.num_graphs
        parts = {}
        for name, shares in weights.items():
            a, b = (ends[first], ends[last]) if context.is_node(name) else (first, last)
            parts[name] = [predictions.mix(name, shares, np.arange(a, b), context.bounds(name))]
        trust += describe_heads(manifest, columns, parts).trust
    return np.frombuffer("\n".join(trust).encode(), dtype=np.uint8)


def _distances_on_test(
    context: BuildContext, features: TrainingFeatures, members: Iterable[Member]
) -> dict[str, np.ndarray]:
    """Return the distance of each row of the test split to the training set, as arrays by name.

    Args:
        context: data shared by all steps of the build.
        features: sample of the training set.
        members: members of the ensemble, and perhaps others.
    """
    of_level = features.distances(members, context.graphs, context.rows_of("test"))
    arrays = {}
    for name in context.targets:
        _, mask = context.truth(name, "test")
        distance = of_level[NODE if context.is_node(name) else GRAPH]
        arrays[f"{name}/distance"] = distance[mask][:, None]
    return arrays
