"""Build the ensemble of a run: select on ``sel``, calibrate on ``cal``, evaluate once on ``test``.

Each selection method proposes a mix of candidates; the candidates of all mixes predict ``cal`` and
``test``, so that the report can compare the methods, and one mix is kept as the ensemble.

Shapes: C candidates, M members (here: all candidates of any mix), R rows of a head, w components.
"""

import errno
import logging
import math
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict, cast

import numpy as np
import torch
from ase.data import chemical_symbols
from safetensors.numpy import save as save_arrays
from scipy.sparse import csr_array
from torch import Tensor

from hydragnn_hpo import __version__, log
from hydragnn_hpo.campaign import read_software_versions
from hydragnn_hpo.config import (
    DISK_FULL,
    Bounds,
    CardConfig,
    ModelConfig,
    TrialConfig,
    TrunkSpec,
    find_published,
    is_extensive,
)
from hydragnn_hpo.config.convs.spec import is_user_conv, package_of, version_of
from hydragnn_hpo.data import (
    Columns,
    UnresolvedTwins,
    close,
    expand_mean,
    find_twins_of_models,
    mark_far,
    open_store,
)
from hydragnn_hpo.ensemble.artefact import (
    LOCAL_MEMBER,
    Alike,
    ArtefactContent,
    Coordination,
    CreatedBy,
    HeadEntry,
    Manifest,
    MemberEntry,
    MemberNeeds,
    Provenance,
    describe_needs,
)
from hydragnn_hpo.ensemble.artefact_writer import write_artefact
from hydragnn_hpo.ensemble.baselines import CompositionModel
from hydragnn_hpo.ensemble.calibrate import (
    GRAPHS_TOGETHER,
    Calibration,
    Moments,
    clip_to_bounds,
    compute_moments,
    group_weights,
)
from hydragnn_hpo.ensemble.calibration_data import (
    MOST_VALUES,
    AtomsOfStructures,
    CalibrationData,
    HeadCalibrationData,
)
from hydragnn_hpo.ensemble.candidates import (
    BuildContext,
    CrossContext,
    Net,
    average_nets,
    compare_embeddings,
    find_curve_fits,
    list_leaderboard,
    list_nets,
    open_build_context,
    read_learning_curve,
    read_stored_predictions,
    read_truth,
)
from hydragnn_hpo.ensemble.class_probabilities import (
    calibrate_probabilities,
    class_std,
    fit_temperature,
    log_losses,
)
from hydragnn_hpo.ensemble.cross_fit import calibrate_folds
from hydragnn_hpo.ensemble.descriptors import (
    GRAPH,
    NODE,
    TrainingFeatures,
    TrunkBlock,
    sample_training_set,
)
from hydragnn_hpo.ensemble.engine import (
    EDGES_PER_BATCH,
    EagerEngine,
    Member,
    keep_heads,
    make_member,
    pieces,
    predict_in_halves,
)
from hydragnn_hpo.ensemble.inference import (
    as_array,
    describe_heads,
    neighbor_counts,
)
from hydragnn_hpo.ensemble.local_descriptors import LocalModels, describe_basis, predict_simply
from hydragnn_hpo.ensemble.member_selection import (
    MemberSelection,
    ScoredHead,
    Weights,
    compare_members,
    compute_errors,
    compute_size_curves,
    make_scored_heads,
    members_in_any,
    select_members,
    share_weights,
)
from hydragnn_hpo.ensemble.packed_trunk import keep_beside, pack_trunk
from hydragnn_hpo.ensemble.simpler_models import (
    JoinedModels,
    SimplerModels,
    fit_simpler_models,
    join_local_models,
)
from hydragnn_hpo.ensemble.uncertainty_scores import (
    HeadOnLabels,
    compute_curves,
    compute_figures,
    mae,
    norm_errors,
)
from hydragnn_hpo.ensemble.verdict import (
    FarValue,
    HeadEvidence,
    Published,
    RowFacts,
    SearchEvidence,
    collect_evidence,
    find_kinds,
    judge,
    judge_missing,
    make_data_curve,
)
from hydragnn_hpo.errors import HydraError, RunError, StorageError, answer_of
from hydragnn_hpo.file_records import (
    CandidateErrors,
    Curves,
    EnsembleMember,
    EnsembleSize,
    EnsembleTable,
    HeadDiversity,
    HeadScores,
    StoreStats,
    TargetStats,
    TestTwins,
    VerdictSentence,
)
from hydragnn_hpo.files import write_bytes, write_json
from hydragnn_hpo.layout import RunDir, derive_seed
from hydragnn_hpo.metrics_log import replace_nonfinite
from hydragnn_hpo.model import rename_weights, variance_key
from hydragnn_hpo.training import keep_freed_memory, make_sampler, open_graphs, read_checkpoint
from hydragnn_hpo.units import shown_unit

logger = logging.getLogger(__name__)

TEST_PREDICTIONS, TABLE = "test_predictions.safetensors", "ensemble.json"
"""Files of the report: values of every row of ``test``, and an ``EnsembleTable``."""

PACKAGES = ("torch", "torch-geometric", "numpy", "scipy", "safetensors", "ase", "vesin")
"""Packages whose version can change the last digits of a result; the manifest records them."""

MOST_SEARCHED, MOST_TWINS = 50_000, 200
"""Maximum numbers of structures among which near twins are searched, and of pairs that are kept."""

_PREFIXED = ("rows", "mae", "rmse", "norm_error")
"""Figures that get the prefix ``test_`` in the table."""
_ROOT = Path(__file__).parents[2]
"""Folder that holds the package."""
_GIT_SECONDS = 10
"""Timeout of ``git describe``, in seconds."""

Mix = Literal["kept", "top", "greedy"]
"""Weighted mean of members: that of the ensemble, or of the nets alone by one of the methods."""
MemberPredictions = dict[str, np.ndarray]
"""Predictions, [M, R, w], by head; predicted variances, [M, R, 1], by ``variance_key(head)``."""


def build_ensemble(run: Path, device: str = "cpu", keep: int = 0) -> EnsembleTable:
    """Build ``RUN/ensemble.zip``, and write the data of the report's figures.

    The test split is predicted once, after everything is selected, and its labels are read after
    everything is calibrated (Law 6).

    Args:
        run: the run directory.
        device: torch device to predict on.
        keep: if above 0, used instead of ``ensemble.nets`` of the campaign.

    Raises:
        HydraError: no ensemble can be built from the run; one sentence says why.
    """
    context = open_build_context(RunDir(run), keep)
    choice = select_members(context)
    nets, members, tensors = _load_nets(context, choice)
    learned = predict_split(context, members, "cal", device)
    check_members(context, nets, learned)
    predictions = predict_split(context, members, "test", device)
    joined = join_local_models(context, choice, simpler := fit_simpler_models(context))
    calibrations, data = calibrate_heads(context, choice, nets, (learned, predictions), joined)
    mixed = joined.append_to(predictions)
    weights = weigh_mixes(choice, nets, joined)
    simpler = simpler._replace(temperatures=fit_temperatures(context, nets[0], learned))
    tested = evaluate_heads(context, mixed, weights, calibrations, simpler)
    diversity = compare_members(context, choice.best)
    manifest = make_manifest(context, choice, calibrations, tested, diversity)
    manifest = joined.add_to_manifest(manifest, _own_trunks(context))
    features = find_training_features(context, manifest, members)
    sizes = _size_curves(context, predictions, nets)
    twins = find_test_twins(context, manifest)
    table = _make_table(context, choice, manifest, diversity, tested.curves, sizes, twins)
    table |= {"local_descriptors": joined.judged, "verdict": _judge(context, tested, joined, twins)}
    if simpler.local is not None:
        table["described_by"] = describe_basis(simpler.local.basis.trunk)
    tested.arrays.update(_distances_on_test(context, features, members))
    tested.arrays["trust"] = _trust_on_test(context, manifest, mixed, weights["kept"])
    _write_report(context.run, table, tested.arrays)
    parts = _describe_nets(context, manifest)
    content = ArtefactContent(
        manifest=manifest,
        configs=parts,
        weights={name: tensors[name] for name in parts},
        cards={card.name: card for card in context.cards},
        calibration_data=data if data is not None and data.values <= MOST_VALUES else None,
        features=features,
        local=_find_kept(simpler, manifest),
        local_members=tuple(member.models for member in joined.members),
        trunks={
            name: pack_trunk(_place_of_trunk(context, name), manifest.trunk_spec(name))
            for name in manifest.trunks
        },
    )
    for name, packed in content.trunks.items():
        if name in manifest.own_trunks and not packed.has_weights:
            keep_beside(Path(_place_of_trunk(context, name)), context.run.path)
    write_artefact(context.run.ensemble, content)
    return table


def _own_trunks(context: BuildContext) -> dict[str, TrunkSpec]:
    """Return what is known of the foundation models of the user's, by name."""
    entries = context.campaign.trunks.items()
    return {name: entry.spec for name, entry in entries if entry.spec is not None}


def _place_of_trunk(context: BuildContext, name: str) -> str:
    """Return the name of a shipped foundation model, or the card of a user's."""
    own = context.campaign.trunks.get(name)
    return own.file if own else name


def _find_kept(simpler: SimplerModels, manifest: Manifest) -> LocalModels | None:
    """Return the regressions for comparison, unless they read a model that no member reads."""
    local = simpler.local
    return local if local and local.basis.trunk in ("", *manifest.trunks) else None


def _load_nets(
    context: BuildContext, choice: MemberSelection
) -> tuple[list[Net], list[Member], dict[str, dict[str, Tensor]]]:
    """Load the nets that predict: those of all mixes, or of all configurations on folds.

    Returns:
        The M nets, each as a member, and their weights by trial.
    """
    cross = isinstance(context, CrossContext)
    nets = list_nets(context, range(len(context.candidates)) if cross else choice.needed)
    tensors = {}
    for net in nets:
        trained = net.trained
        weights, _ = read_checkpoint(trained.folder.best)
        weights = rename_weights(weights, trained.config.model.conv)
        if context.missing:
            weights = keep_heads(weights, trained.config, context.targets)
        tensors[net.trial] = weights
    return nets, [make_candidate_member(context, n, tensors[n.trial]) for n in nets], tensors


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class BuildSpec(TypedDict):
    """Input of a job that builds an ensemble."""

    run: str
    """The run directory."""
    answer: str
    """JSON file to write: an ``EnsembleTable``, or an error, see ``errors.answer_of``."""
    device: NotRequired[str]
    """Torch device to predict on; if missing, ``HYDRAGNN_HPO_DEVICE``, or else the CPU."""


def job_main(spec: BuildSpec) -> int:
    """Build an ensemble as a job, and write its table or the error's message to a file.

    Returns:
        0, even if the file holds an error; ``DISK_FULL`` if it cannot be written.
    """
    log.configure()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    answer = Path(spec["answer"])
    run = Path(spec["run"])
    device = os.environ.get("HYDRAGNN_HPO_DEVICE", "cpu")
    content: Mapping[str, Any]
    try:
        content = build_ensemble(run, spec.get("device", device))
    except HydraError as error:
        content = answer_of(error)
    except OSError as error:  # libraries raise the system's own errors
        if error.errno not in _NO_ROOM:
            raise
        full = f"{run}: the ensemble cannot be written ({error.strerror}); make room, then "
        content = answer_of(StorageError(f"{full}run the same command again to go on."))
    try:
        write_json(answer, content)
    except StorageError:
        return DISK_FULL
    return 0


def make_candidate_member(context: BuildContext, net: Net, tensors: Mapping[str, Tensor]) -> Member:
    """Build a net from its weights, as a member with weight 1 in every head.

    Args:
        context: data shared by all steps of the build.
        net: the net.
        tensors: its weights and buffers by name.

    Raises:
        DataError: configuration, heads and weights do not fit.
    """
    where = str(net.trained.folder.best)
    alone = dict.fromkeys(context.targets, 1.0)
    return make_member(net.trained.config, tensors, context.targets, weights=alone, where=where)


@torch.no_grad()
def predict_split(
    context: BuildContext, members: Sequence[Member], split: str, device: str
) -> MemberPredictions:
    """Predict a split with each member separately.

    Args:
        context: data shared by all steps of the build.
        members: M members; moved to ``device``.
        split: name of the split.
        device: torch device to predict on.

    Returns:
        Predictions and variances in fp64, in the order of the members. If only some members predict
        a variance, that of the others is 0.
    """
    place = torch.device(device)
    if place.type == "cpu":
        keep_freed_memory()
    graphs = context.graphs
    indices = context.rows_of(split)
    for member in members:
        member.model.to(place)
    parts: list[dict[str, list[np.ndarray]]] = [{} for _ in members]
    engine = EagerEngine(members, place)
    for piece in pieces(graphs, indices, EDGES_PER_BATCH):
        for row, (_, heads) in enumerate(predict_in_halves(engine, graphs, piece, place)):
            for name, values in heads.items():
                parts[row].setdefault(name, []).append(as_array(values))
    whole = [{name: np.concatenate(some) for name, some in part.items()} for part in parts]
    predictions: MemberPredictions = {}
    for head in members[0].heads:
        predictions[head] = np.stack([one[head] for one in whole])
        key = variance_key(head)
        silent = np.zeros((predictions[head].shape[1], 1))
        if any(key in one for one in whole):
            predictions[key] = np.stack([one.get(key, silent) for one in whole])
    return predictions


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
        temperatures[name] = fit_temperature(predictions[name][0][rows], truth[rows], weight)
    return temperatures


def check_members(
    context: BuildContext, nets: Sequence[Net], predictions: MemberPredictions
) -> None:
    """Check that weights and stored predictions belong to the same epoch.

    Args:
        context: data shared by all steps of the build.
        nets: M nets.
        predictions: their predictions for ``cal``, in the same order.

    Raises:
        RunError: the weights of a net do not reproduce what is stored of ``cal``, or of its fold.
    """
    all_rows = context.rows_of("cal")
    for row, net in enumerate(nets):
        split, rows = context.unseen_by(net)
        stored = read_stored_predictions(net.trained, split, rows)
        kept = np.isin(all_rows, rows)
        for name in context.targets:
            before = stored[name]
            chosen = kept[context.graph_of_row(name, "cal")]
            gap = np.abs(predictions[name][row][chosen] - before).max(initial=0.0)
            # Devices round differently, in proportion to the size of the predictions.
            if not gap <= 1e-3 * context.scale(name) + 1e-5 * np.abs(before).max(initial=0.0):
                raise RunError(
                    f"{net.trained.folder.best}: does not repeat the predictions "
                    f"of '{name}' beside the trial's result (they differ by {gap:.3g} "
                    f"{context.targets[name]['unit']}): remove the trial's last attempt and run "
                    "the campaign again."
                )


def calibrate_heads(
    context: BuildContext,
    choice: MemberSelection,
    nets: Sequence[Net],
    of_splits: tuple[MemberPredictions, MemberPredictions],
    joined: JoinedModels,
) -> tuple[dict[str, Calibration], CalibrationData | None]:
    """Calibrate every head on structures that trained none of what predicts them.

    Args:
        context: data shared by all steps of the build.
        choice: the selected members and their weights.
        nets: the M members.
        of_splits: their predictions for ``cal`` and for ``test``, whose labels are not read.
        joined: regressions that are members, too.

    Returns:
        Calibrations by head; what pruning needs, None where members were trained on folds.
    """
    if isinstance(context, CrossContext):
        return calibrate_folds(context, choice.kept, nets, of_splits, joined), None
    shares = share_weights(choice, nets)[choice.kept]
    data = collect_calibration_data(context, of_splits[0], nets, shares)
    for name, values in joined.learned.items():
        data = data.with_member(name, LOCAL_MEMBER, values)
    calibrations = {
        name: data.calibrate_head(
            name,
            _by_trial(context, weights, joined.weights.get(name)),
            context.scale(name),
            context.bounds(name),
            is_class=context.is_class(name),
        )
        for name, weights in choice.best.items()
    }
    return calibrations, data


def collect_calibration_data(
    context: BuildContext,
    predictions: MemberPredictions,
    nets: Sequence[Net],
    weights: Mapping[str, np.ndarray],
) -> CalibrationData:
    """Collect the predictions for ``cal`` of the members with weight in the kept mix.

    Args:
        context: data shared by all steps of the build.
        predictions: predictions of the M members for ``cal``.
        nets: the M members.
        weights: shares of the members in the kept mix by head, [M].
    """
    indices = context.rows_of("cal")
    heads = {}
    by_element = context.strata.atoms == "element"
    numbers = np.concatenate([piece.numbers for piece in context.take(indices)])
    structure = np.repeat(np.arange(len(indices)), context.graphs.num_nodes()[indices])
    for name in context.targets:
        truth, mask = context.truth(name, "cal")
        rows = np.flatnonzero(weights[name]).tolist()
        chosen = {nets[row].trial: row for row in rows}
        noise = predictions.get(variance_key(name))
        heads[name] = HeadCalibrationData(
            truth=np.where(mask[:, None], truth, 0.0),
            mask=mask,
            graph=context.graph_of_row(name, "cal"),
            predictions={trial: predictions[name][row] for trial, row in chosen.items()},
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


class TestResult(NamedTuple):
    """All heads of an ensemble on the test split."""

    scores: dict[str, HeadScores]
    """By head."""
    arrays: dict[str, np.ndarray]
    """Those of ``_head_arrays``, and ``index``, the positions of the split's graphs, [G]."""
    curves: dict[str, Curves]
    """By head."""
    evidence: list[HeadEvidence]
    """What the verdict needs to know of each head."""
    simpler: SimplerModels
    """Predictions that the ensemble is compared with."""


def evaluate_heads(
    context: BuildContext,
    predictions: MemberPredictions,
    weights: Mapping[Mix, Weights],
    calibrations: Mapping[str, Calibration],
    simpler: SimplerModels,
) -> TestResult:
    """Score each head on the test split.

    Args:
        context: data shared by all steps of the build.
        predictions: predictions of the M members for ``test``; the best single candidate is first.
        weights: shares of the members by mix and head, [M].
        calibrations: calibrations of the kept mix, by head.
        simpler: predictions that the ensemble is compared with.
    """
    result = TestResult({}, {"index": context.rows_of("test")}, {}, [], simpler)
    for name, target in context.targets.items():
        (truth, mask) = context.truth(name, "test")
        node = context.is_node(name)
        truth, bounds = truth[mask], context.bounds(name)
        single = clip_to_bounds(predictions[name][0][mask], bounds)
        single = _calibrate_mean(single, calibrations[name], simpler.temperatures.get(name))
        mixes = {m: _mix(predictions, name, w[name], mask, bounds) for m, w in weights.items()}
        mix, calibration = mixes["kept"], calibrations[name]
        stratum = context.strata.of_rows(context.graphs, result.arrays["index"], node=node)
        elements = context.elements_of_row(name, "test")[np.flatnonzero(mask)]
        predicted = _on_labels(truth, mix, calibration, stratum[mask], elements)
        known = _begin_evidence(context, name, mask, predicted)
        if simpler.local is not None and name in simpler.local.heads:
            known = replace(known, described_by=describe_basis(simpler.local.find_trunk(name)))
        rows = _describe_rows(context, name, mask, single, result)
        result.evidence.append(known := collect_evidence(known, predicted, calibration, rows))
        result.scores[name] = _head_scores(predicted, calibration, target) | {
            "single_mae": _error(context, name, single, truth),
            "elements_mae": replace_nonfinite(known.elements.mae),
            "descriptor_mae": replace_nonfinite(known.descriptor.mae),
            "test_mae_top_k": _error(context, name, mixes["top"].mean, truth),
            "test_mae_greedy": _error(context, name, mixes["greedy"].mean, truth),
        }
        result.curves[name] = replace_nonfinite(compute_curves(predicted, calibration))
        result.arrays.update(_head_arrays(name, predicted, calibration, mask))
    return result


def _begin_evidence(
    context: BuildContext, name: str, mask: np.ndarray, predicted: HeadOnLabels
) -> HeadEvidence:
    """Return what is known of a head: what it is, who predicted it, an error far from all others.

    Args:
        context: data shared by all steps of the build.
        name: name of the head.
        mask: its rows with a label on the test split.
        predicted: the head on these rows.
    """
    target = context.targets[name]
    best = find_published(card.targets[name] for card in context.cards if name in card.targets)
    published = None if best is None else Published(best.mae, best.by)
    classes = tuple(target.get("classes") or ())
    node = context.is_node(name)
    known = HeadEvidence(name, shown_unit(target), node, published=published, classes=classes)
    errors = np.abs(predicted.residual).mean(axis=1)
    if classes or not mark_far(errors).any():
        return known
    row = int(errors.argmax())
    graph = context.graph_of_row(name, "test")[mask]
    place = context.rows_of("test")[graph[row : row + 1]]
    median = float(np.median(errors))
    far = FarValue(context.graphs.take(place).ids[0], float(errors[row]), median, is_error=True)
    return replace(known, far=far)


def find_far_labels(context: BuildContext) -> dict[str, FarValue]:
    """Find the labels of all splits that are far from all others.

    Args:
        context: data shared by all steps of the build.

    Returns:
        The farthest by head, if there is one; of atoms, vectors and tensors the largest size in a
        structure, of total energies the farthest per atom.
    """
    rows = np.flatnonzero(context.graphs.split >= 0)
    farthest = dict[str, FarValue]()
    names = [n for n, t in context.targets.items() if t["shape"] not in ("class", "spectrum")]
    labels: dict[str, list[np.ndarray]] = {name: [] for name in names}
    sizes = context.graphs.num_nodes()[rows]
    for columns in context.take(rows):
        for name, values in labels.items():
            values.append(_largest_labels(columns, name))
    for name, values in labels.items():
        value = np.concatenate(values)
        known = np.flatnonzero(np.isfinite(value))
        total = context.targets[name].get("energy") == "total"
        compared = value[known] / sizes[known] if total else value[known]
        if mark_far(compared).any():
            place = known[np.abs(compared - np.median(compared)).argmax()]
            name_of = context.graphs.take(rows[place : place + 1]).ids[0]
            median = float(np.median(value[known]))
            farthest[name] = FarValue(name_of, float(value[place]), median, is_error=False)
    return farthest


def _largest_labels(columns: Columns, name: str) -> np.ndarray:
    """Return each graph's label of a target, or the largest size of those of its atoms, [G].

    Args:
        columns: some graphs.
        name: name of the target.

    Returns:
        NaN for graphs without one.
    """
    values, mask = columns.targets[name], columns.masks[name]
    if columns.levels[name] == "graph":
        one = values[:, 0] if values.shape[1] == 1 else np.linalg.norm(values, axis=1)
        return np.where(mask, one, np.nan)
    sizes = np.where(mask, np.linalg.norm(values, axis=1), -1.0)
    largest = np.maximum.reduceat(sizes, columns.node_offset[:-1])
    return np.where(largest < 0, np.nan, largest)


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
    result: TestResult,
) -> RowFacts:
    """Describe the rows of a head on the test split: groups, kinds, and simpler predictions.

    The latter end at the bounds of the target, as those of the ensemble do.

    Args:
        context: data shared by all steps of the build.
        name: name of the head.
        mask: the rows that have a label, among all.
        single: predictions of the best candidate for those rows, [R, w].
        result: has the predictions from the elements and from local descriptors.
    """
    target = context.targets[name]
    baseline = result.simpler.baselines.get(name)
    numbers, sizes, parts = [], [], []
    for piece in context.take(context.rows_of("test")):
        numbers.append(np.asarray(piece.numbers))
        sizes.append(piece.num_nodes())
        parts.append(predict_simply(name, target, piece, baseline, result.simpler.local))
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


def add_data_curves(context: BuildContext, heads: Iterable[HeadEvidence]) -> list[HeadEvidence]:
    """Add the errors on ``sel`` of the fits of the learning curve, if the campaign has any."""
    fits = find_curve_fits(context.run)
    added = list[HeadEvidence]()
    if not fits:
        return list(heads)
    full = context.candidates[0].config.training.epochs
    graphs = open_graphs(fits[0].folder, fits[0].config)  # with the splits of the search
    context = BuildContext(context.run, context.campaign, context.cards, graphs, fits)
    sets = [make_sampler(fit.config, graphs).sets for fit in fits]
    stored = [read_stored_predictions(fit, "sel", context.rows_of("sel")) for fit in fits]
    for head in heads:
        truth, mask = context.truth(head.name, "sel")
        scored = ScoredHead(truth, truth, 1.0, mask, context.is_class(head.name))
        errors = [scored.errors(one[head.name])[mask] for one in stored]
        curve = make_data_curve(
            [(sum(map(len, rows)), error) for rows, error in zip(sets, errors, strict=True)],
            context.group_of_row(head.name, "sel")[mask],
            epochs=fits[0].config.training.epochs,
            full=full,
        )
        added.append(replace(head, data=curve))
    return added


def collect_search_evidence(context: BuildContext) -> SearchEvidence:
    """Collect what the verdict needs to know about the search and its best trial."""
    best = context.candidates[0]
    ranked = sorted(list_leaderboard(context.run), key=lambda row: row["trial"])
    return SearchEvidence(
        best=best.trial,
        objectives=[row["objective"] for row in ranked if row["objective"] is not None],
        curve=read_learning_curve(best.folder),
        candidates=len(context.candidates),
        embeddings=compare_embeddings(context.run),
        trunks=tuple(sorted({one.config.model.embedding for one in context.candidates})),
        own_trunks=_own_trunks(context),
    )


class TwinsOfTest(NamedTuple):
    """Structures that no member can tell from test structures."""

    near: list[TestTwins]
    """Near twins with other labels, the worst first, at most ``MOST_TWINS``."""
    same: list[np.ndarray]
    """Rows of each set of twins with a test structure."""


def _judge(
    context: BuildContext, tested: TestResult, joined: JoinedModels, twins: TwinsOfTest | None
) -> list[VerdictSentence]:
    """Return the verdict on the heads and on the search.

    Args:
        context: data shared by all steps of the build.
        tested: the heads on the test split.
        joined: regressions on local descriptors that are members.
        twins: twins of test structures; None if they are not known.
    """
    far = find_far_labels(context)
    heads = [
        replace(head, local=joined.judged.get(head.name), far=far.get(head.name, head.far))
        for head in tested.evidence
    ]
    if twins is not None:
        heads = [count_independent(context, head, twins.same) for head in heads]
    missing = [judge_missing(name, splits) for name, splits in context.missing.items()]
    return missing + judge(add_data_curves(context, heads), collect_search_evidence(context))


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
            parts[name] = [_mix(predictions, name, shares, np.arange(a, b), context.bounds(name))]
        trust += describe_heads(manifest, columns, parts).trust
    return np.frombuffer("\n".join(trust).encode(), dtype=np.uint8)


def find_training_features(
    context: BuildContext, manifest: Manifest, members: Iterable[Member]
) -> TrainingFeatures:
    """Sample the training split in the features of a foundation model, or of a member.

    A foundation model that the ensemble carries tells foreign structures better than a net that
    knows its training data alone (decision 0053); else it is the member with the largest weight.

    Args:
        context: data shared by all steps of the build.
        manifest: manifest of the ensemble.
        members: members of the ensemble, and perhaps others.
    """
    heaviest = max(manifest.members, key=lambda member: (member.weight, -member.objective)).trial
    own = next(member for member in members if member.trial == heaviest)
    trunks = [TrunkBlock(name, manifest.trunk_spec(name).width) for name in manifest.trunks]
    source = trunks[0] if trunks else own
    levels = (GRAPH, NODE) if any(map(context.is_node, context.targets)) else (GRAPH,)
    seed = derive_seed(context.campaign.seed, heaviest, "features")
    return sample_training_set(source, context.graphs, levels, seed=seed)


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


def find_test_twins(context: BuildContext, manifest: Manifest) -> TwinsOfTest | None:
    """Find the structures that no member can tell from test structures.

    Args:
        context: data shared by all steps of the build.
        manifest: manifest of the ensemble.

    Returns:
        The twins; None if the stores hold more than ``MOST_SEARCHED`` graphs or cannot be searched.
    """
    if context.graphs.num_graphs > MOST_SEARCHED:
        return None
    trials = {member.trial for member in manifest.members}
    models = [
        net.config.model for one in context.candidates for net in one.nets if net.trial in trials
    ]
    read = set.intersection(*(set(model.attributes) for model in models))
    place = {int(row): k for k, row in enumerate(context.rows_of("test"))}
    listed = list[TestTwins]()
    same = list[np.ndarray]()
    first = 0
    best = context.candidates[0]
    for entry in best.config.data:
        store = best.folder.path / entry.store
        try:
            twins_of_store = find_twins_of_models(store, read)
        except HydraError as error:  # an ensemble does not need them
            logger.warning("near twins are not searched: %s", error)
            return None
        sets = [rows + first for rows in twins_of_store.same]
        same += [rows for rows in sets if not place.keys().isdisjoint(rows.tolist())]
        for twins in twins_of_store.near:
            target = entry.prefix + twins["target"]
            rows = [first + row for row in twins["rows"]]
            if target in context.targets and not place.keys().isdisjoint(rows):
                listed.append(_place_in_test(twins, target, [place.get(row) for row in rows]))
        graphs = open_store(store, access="windows")
        first += graphs.num_graphs
        close(graphs)
    listed.sort(key=lambda twins: -twins["difference"] / max(twins["allowed"], 1e-300))
    return TwinsOfTest(listed[:MOST_TWINS], same)


def count_independent(
    context: BuildContext, head: HeadEvidence, same: Sequence[np.ndarray]
) -> HeadEvidence:
    """Complete what is known of a head by its test structures that have twins.

    Args:
        context: data shared by all steps of the build.
        head: what is known already.
        same: rows of each set of twins with a test structure.
    """
    _, mask = context.truth(head.name, "test")
    rows = context.rows_of("test")[np.unique(context.graph_of_row(head.name, "test")[mask])]
    tested = set(rows.tolist())
    test = set(context.rows_of("test").tolist())
    joint = {int(group): int(group) for group in context.graphs.group[rows]}
    remembered = 0
    for twins in same:
        here = [row for row in twins.tolist() if row in tested]
        remembered += len(here) * any(row not in test for row in twins.tolist())
        groups = {joint[int(group)] for group in context.graphs.group[here]}
        joint = {group: min(groups) if of in groups else of for group, of in joint.items()}
    groups_left = len(set(joint.values()))
    return replace(head, groups=groups_left, structures=len(rows), remembered=remembered)


def _place_in_test(twins: UnresolvedTwins, target: str, places: Sequence[int | None]) -> TestTwins:
    """Return a pair of which at least one structure is in the test split, that one first.

    Args:
        twins: the pair.
        target: name of the target in the ensemble.
        places: position of each structure in the test split; None outside of it.
    """
    ids = twins["ids"] if places[0] is not None else twins["ids"][::-1]
    return {
        "target": target,
        "test": next(place for place in places if place is not None),
        "ids": ids,
        "formula": twins["formula"],
        "distance": twins["distance"],
        "difference": twins["difference"],
        "allowed": twins["allowed"],
        "unit": twins["unit"],
        "told_apart_by": twins["told_apart_by"],
    }


def _mix(
    predictions: MemberPredictions,
    head: str,
    weights: np.ndarray,
    rows: np.ndarray,
    bounds: Bounds | None,
) -> Moments:
    """Mix the members' predictions of some rows of a head; members of weight 0 are left out.

    Args:
        predictions: predictions of the M members.
        head: name of the head.
        weights: weights of the members, [M].
        rows: the rows wanted, as a mask [R] or as positions.
        bounds: of the mean, in the unit.
    """
    noise = predictions.get(variance_key(head))
    return compute_moments(
        predictions[head][:, rows], weights, None if noise is None else noise[:, rows], bounds
    )


def make_manifest(
    context: BuildContext,
    choice: MemberSelection,
    calibrations: Mapping[str, Calibration],
    tested: TestResult,
    diversity: Mapping[str, HeadDiversity],
) -> Manifest:
    """Return the manifest of an ensemble.

    Args:
        context: data shared by all steps of the build.
        choice: the selected members and their weights.
        calibrations: calibrations of the kept mix, by head.
        tested: scores on the test split and baselines, by head.
        diversity: diversity of the members on ``sel``, by head.
    """
    members = np.flatnonzero(members_in_any(list(choice.best.values()))).tolist()
    models = [context.candidates[c].config.model for c in members]
    train = context.rows_of("train")
    sizes = context.graphs.num_nodes()[train]
    # Counting within the shortest cutoff stays possible after any member is pruned.
    shortest = min(model.cutoff for model in models)
    return Manifest(
        package=__version__,
        created_by=_describe_origin(context, choice),
        data=describe_data(context.cards, context.graphs.stats),
        elements=tuple(sorted(int(z) for z in context.graphs.stats["elements"])),
        members=tuple(_member(choice, net) for net in list_nets(context, members) if net.share),
        heads={
            name: _head(context, name, calibrations[name], tested.simpler.baselines.get(name))
            for name in context.targets
        },
        evaluation={name: {**scores} for name, scores in tested.scores.items()},
        diversity={name: _alike(of_head) for name, of_head in diversity.items()},
        software=read_software_versions(PACKAGES),
        commit=read_commit(),
        licence=context.campaign.ensemble.licence,
        strata=context.strata,
        coordination=measure_coordination(context.take(train), shortest),
        sizes=(int(sizes.min()), int(sizes.max())),
        **_needs(context, models),
    )


def _describe_origin(context: BuildContext, choice: MemberSelection) -> CreatedBy:
    return CreatedBy(
        campaign=context.campaign.name,
        seed=context.campaign.seed,
        method=choice.kept,
        folds=context.folds if isinstance(context, CrossContext) else None,
    )


def _needs(context: BuildContext, models: Sequence[ModelConfig]) -> MemberNeeds:
    attributes = {name: a for card in context.cards for name, a in card.attributes.items()}
    own = sorted({model.conv for model in models if is_user_conv(model.conv)})
    packages = {package_of(name): version_of(name) for name in own}
    sums = [target.get("sum") for target in context.targets.values()]
    return describe_needs(models, sums, attributes=attributes, packages=packages)


def _member(choice: MemberSelection, net: Net) -> MemberEntry:
    shares = {head: net.share * float(w[net.candidate]) for head, w in choice.best.items()}
    return MemberEntry(
        trial=net.trial,
        weights={head: share for head, share in shares.items() if share > 0},
        objective=net.trained.objective,
        val_mae=net.trained.val_mae,
    )


def _head(
    context: BuildContext, name: str, calibration: Calibration, baseline: CompositionModel | None
) -> HeadEntry:
    target = context.targets[name]
    described = {key: value for key, value in target.items() if key in HeadEntry.model_fields}
    return HeadEntry.model_validate(
        described
        | {
            "lowest": target.get("min"),
            "highest": target.get("max"),
            "calibration": calibration,
            "baseline": None if baseline is None else baseline.as_entry(),
            "elements": context.labelled_elements[name],
        }
    )


def _alike(diversity: HeadDiversity) -> Alike:
    return Alike(
        correlation=diversity["mean_correlation"],
        member_rmse=math.sqrt(diversity["mean_member_mse"]),
        rmse=math.sqrt(diversity["mse"]),
    )


def measure_coordination(pieces_of_split: Iterable[Columns], cutoff: float) -> Coordination:
    """Find the fewest and most neighbours that atoms of each element have in a training split.

    Args:
        pieces_of_split: graphs of the split in pieces, with all edges up to the cutoff.
        cutoff: neighbours are within this distance, in angstrom.
    """
    lowest = np.full(128, np.iinfo(np.int64).max)
    highest = np.full(128, -1)
    for columns in pieces_of_split:
        counts = neighbor_counts(columns, cutoff)
        np.minimum.at(lowest, columns.numbers, counts)
        np.maximum.at(highest, columns.numbers, counts)
    elements = np.flatnonzero(highest >= 0).tolist()
    return Coordination(
        cutoff, {chemical_symbols[z]: (int(lowest[z]), int(highest[z])) for z in elements}
    )


def describe_data(cards: Sequence[CardConfig], stats: StoreStats) -> Provenance:
    """Return the provenance of the data from its cards and the store's ``stats.json``."""
    fields = ("name", "title", "origin", "licence", "cite")
    texts = {
        key: "; ".join(dict.fromkeys(filter(None, (getattr(card, key) for card in cards))))
        for key in fields
    }
    nodes = stats.get("nodes") or {}
    atoms = (int(nodes["min"]), int(nodes["max"])) if {"min", "max"} <= set(nodes) else None
    return Provenance(
        **texts,
        checksum=str(stats["checksum"]),
        files={Path(f.path).name: f.sha256 or "" for card in cards for f in card.files},
        cards=tuple(dict.fromkeys(card.name for card in cards)),
        splits={name: int(count) for name, count in (stats.get("splits") or {}).items()},
        atoms=atoms,
    )


def read_commit() -> str:
    """Return the commit of this checkout, with ``-dirty`` if files changed; empty if it is none."""
    if not (_ROOT / ".git").exists():
        return ""
    argv = [
        "git",
        "-C",
        str(_ROOT),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--exclude=*",
    ]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _make_table(
    context: BuildContext,
    choice: MemberSelection,
    manifest: Manifest,
    diversity: dict[str, HeadDiversity],
    curves: dict[str, Curves],
    by_size: dict[str, list[EnsembleSize]],
    twins: TwinsOfTest | None,
) -> EnsembleTable:
    """Return the table of a build.

    Args:
        context: data shared by all steps of the build.
        choice: the selected members and their weights.
        manifest: manifest of the ensemble.
        diversity: diversity of the members on ``sel``, by head.
        curves: curves on ``test``, by head.
        by_size: errors of ensembles of each size, by method.
        twins: twins of test structures; None if they are not known.
    """
    return {
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
        "diversity": diversity,
        "curves": curves,
        "warnings": list_warnings(context, manifest),
        "candidates": _candidate_errors(context),
        "by_size": by_size,
        "test_twins": None if twins is None else twins.near,
    }


def _candidate_errors(context: BuildContext) -> list[CandidateErrors]:
    """Compute the error of each candidate alone on ``sel``."""
    heads = make_scored_heads(context)
    return [
        {"trial": candidate.trial, "sel_mae": compute_errors(heads, [position])}
        for position, candidate in enumerate(context.candidates)
    ]


def _size_curves(
    context: BuildContext, predictions: MemberPredictions, nets: Sequence[Net]
) -> dict[str, list[EnsembleSize]]:
    """Compute the errors of each ensemble size on ``sel`` and ``test``.

    Args:
        context: data shared by all steps of the build.
        predictions: predictions of the M members for ``test``; no other model predicts it (Law 6).
        nets: the M members.
    """
    candidates = list(dict.fromkeys(net.candidate for net in nets))
    test = {}
    for name in context.targets:
        truth, mask = context.truth(name, "test")
        group = context.group_of_row(name, "test")[mask]
        means = average_nets(predictions[name], nets)
        is_class = context.is_class(name)
        test[name] = ScoredHead(means[:, mask], truth[mask], 1.0, group, is_class)
    objectives = [candidate.objective for candidate in context.candidates]
    trials = [candidate.trial for candidate in context.candidates]
    heads = make_scored_heads(context)
    return compute_size_curves(heads, objectives, trials, (candidates, test))


def _write_report(run: RunDir, table: EnsembleTable, arrays: dict[str, np.ndarray]) -> None:
    run.report.mkdir(exist_ok=True)
    write_bytes(run.report / TEST_PREDICTIONS, save_arrays(arrays))
    write_json(run.report / TABLE, {k: v for k, v in table.items() if k != "path"})


def _describe_nets(context: BuildContext, manifest: Manifest) -> dict[str, TrialConfig]:
    """Return the configurations of the members, by trial."""
    names = {member.trial for member in manifest.members}
    every = [net for candidate in context.candidates for net in candidate.nets]
    return {net.trial: net.config for net in every if net.trial in names}


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
