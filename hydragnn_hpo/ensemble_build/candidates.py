"""Read a finished run for an ensemble: trials that may become members, their graphs and labels.

Shapes: C candidates, R rows of a head (graphs, or nodes of a node-level head), w components.
"""

import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file
from scipy.sparse import csr_array, vstack

from hydragnn_hpo.campaign import CURVE_SHARES, read_state
from hydragnn_hpo.config import (
    Bounds,
    CampaignConfig,
    CardConfig,
    ModelConfig,
    TrialConfig,
    angle_cutoff,
    forward_flops,
    load_config,
)
from hydragnn_hpo.data import Columns, GraphSet, contain_others
from hydragnn_hpo.data.folds import NONE, deal_folds
from hydragnn_hpo.errors import ConfigError, RunError
from hydragnn_hpo.file_records import RankedTrial, StoreStats, TargetStats
from hydragnn_hpo.files import read_json
from hydragnn_hpo.layout import RunDir, TrialDir
from hydragnn_hpo.metrics_log import read_records, replace_nonfinite
from hydragnn_hpo.placement.price import mean_neighbors, mean_triplets
from hydragnn_hpo.training.trial import open_graphs
from hydragnn_hpo.uncertainty import Strata
from hydragnn_hpo.uncertainty.calibrate import (
    GRAPHS_TOGETHER,
    choose_strata,
    elements_of_rows,
    graph_of_row,
    size_strata,
    take_pieces,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Candidate:
    """A trial with the result of its current attempt, which may become a member.

    In a cross-fitted ensemble a candidate is a configuration; its nets are its fits on folds.
    """

    folder: TrialDir
    """Directory of the trial."""
    config: TrialConfig
    """Configuration of the trial."""
    status: str
    """``completed``, ``stopped`` at a rung, or why it failed."""
    objective: float
    """Validation objective, in standard deviations; infinite for a failed trial."""
    epochs: int | None
    """Epochs of training; None if they are not known."""
    val_mae: dict[str, float]
    """Validation MAE by head, in the head's unit; empty for a failed trial."""
    predictions: Path
    """File with its predictions on val, sel and cal; a failed trial has none."""
    fits: tuple["Candidate", ...] = ()
    """Trainings of its configuration on all folds but one, by fold; empty without folds."""

    @property
    def trial(self) -> str:
        """Name of the trial."""
        return self.folder.path.name

    @property
    def rank(self) -> tuple[float, str]:
        """The sort key of trials, best first.

        Returns:
            The objective and the name.
        """
        return self.objective, self.trial

    @property
    def nets(self) -> tuple["Candidate", ...]:
        """The trainings that predict.

        Returns:
            Its fits, best objective first, or itself.
        """
        return tuple(sorted(self.fits, key=lambda fit: fit.rank)) or (self,)

    def has_reached(self, status: str) -> bool:
        """Check whether the trial ended in a way and has an objective."""
        return self.status == status and math.isfinite(self.objective)


def _read_results(run: RunDir) -> dict[str, Candidate]:
    """Read the results of all trials, best objective first, those without one last.

    Only the result of the latest attempt counts; a trial that is still training has none.

    Returns:
        By name of the trial.
    """
    results = []
    for path in (run.path / "trials").glob("*/trial.toml"):
        folder = TrialDir(path.parent)
        attempts = folder.attempts()
        if not attempts:
            continue
        attempt = folder.attempt(attempts[-1])
        if (attempt / "result.json").exists():
            content = read_json(attempt / "result.json")
            objective = content.get("objective")
            result = Candidate(
                folder=folder,
                config=load_config(path, TrialConfig),
                status=content["status"],
                objective=math.inf if objective is None else float(objective),
                epochs=content.get("epochs"),
                val_mae=content.get("val_mae") or {},
                predictions=attempt / "predictions.safetensors",
            )
            results.append(result)
    return {result.trial: result for result in sorted(results, key=lambda result: result.rank)}


def _read_searched(run: RunDir) -> list[Candidate]:
    """Read the results of all trials that are ranked, see ``_read_results``."""
    state = read_state(run)
    others = {*state.curve.values(), *state.folds.values()}
    return [result for name, result in _read_results(run).items() if name not in others]


def find_curve_fits(run: RunDir) -> list[Candidate]:
    """Return the fits of the learning curve, the smallest share of the data first.

    Returns:
        All of them; none where one has no result, or was not to be made.
    """
    curve = read_state(run).curve
    results = _read_results(run)
    fits = [results[name] for _, name in sorted(curve.items()) if name in results]
    done = [fit for fit in fits if math.isfinite(fit.objective)]
    return done if len(done) == len(CURVE_SHARES) else []


def list_leaderboard(run: RunDir) -> list[RankedTrial]:
    """List every trial with a result, best validation objective first.

    Fits of the learning curve and on folds are left out: they have other data or epochs.
    """
    return [
        {
            "trial": result.trial,
            "conv": result.config.model.conv,
            "status": result.status,
            "objective": replace_nonfinite(result.objective),
            "epochs": result.epochs,
        }
        for result in _read_searched(run)
    ]


def read_learning_curve(trial: TrialDir) -> list[float]:
    """Return the validation objective of a trial after each epoch that has one."""
    curve = dict[int, float]()
    for number in trial.attempts():
        for record in read_records(trial.attempt(number) / "metrics.jsonl"):
            if record["record"] == "epoch" and record.get("objective") is not None:
                curve[record["epoch"]] = float(record["objective"])
    return [curve[epoch] for epoch in sorted(curve)]


def compare_embeddings(run: RunDir) -> dict[str, float]:
    """Return the best validation objective of the trials with each embedding, at equal epochs.

    Returns:
        By ``model.embedding``; empty where only one was tried. The epochs are the most that some
        trial of each has.
    """
    trials = [one for one in _read_searched(run) if math.isfinite(one.objective)]
    most = dict[str, int]()
    for one in trials:
        name = one.config.model.embedding
        most[name] = max(most.get(name, 0), one.epochs or 0)
    if len(most) < 2 or not min(most.values()):
        return {}
    epochs = min(most.values())
    best = dict.fromkeys(most, math.inf)
    for one in trials:
        if (one.epochs or 0) >= epochs:
            lowest = min(read_learning_curve(one.folder)[:epochs], default=one.objective)
            name = one.config.model.embedding
            best[name] = min(best[name], lowest)
    return best


def find_candidates(run: RunDir) -> list[Candidate]:
    """Return the trials to choose members from, best validation objective first.

    These are the trials trained to the full budget or, if there are none, those stopped at a
    rung.

    Raises:
        RunError: no trial completed or was stopped at a rung, or their heads differ.
    """
    results = _read_searched(run)
    for status in ("completed", "stopped"):
        candidates = [result for result in results if result.has_reached(status)]
        if candidates:
            _check_heads(run, candidates)
            return candidates
    raise RunError(
        f"{run.path}: no trial has completed or reached a rung, so there is nothing to build an "
        "ensemble from: let the campaign run on."
    )


def find_configurations(run: RunDir) -> list[Candidate]:
    """Return the configurations that were trained on every fold, best out-of-fold objective first.

    The objective and errors of one are the means over its folds.

    Returns:
        Empty where there is none, as after a campaign that was ended early.
    """
    state = read_state(run)
    results = _read_results(run)
    configurations = []
    for parent in dict.fromkeys(parent for parent, _ in state.folds):
        names = [name for (of, _), name in sorted(state.folds.items()) if of == parent]
        ended = [results[name] for name in names if name in results]
        fits = [fit for fit in ended if fit.has_reached("completed")]
        if parent not in results or not fits or len(fits) < fits[0].config.training.folds:
            continue
        mae = {
            name: float(np.mean([fit.val_mae[name] for fit in fits])) for name in fits[0].val_mae
        }
        objective = float(np.mean([fit.objective for fit in fits]))
        configurations.append(
            replace(results[parent], fits=tuple(fits), val_mae=mae, objective=objective)
        )
    return sorted(configurations, key=lambda one: one.rank)


def _check_heads(run: RunDir, candidates: list[Candidate]) -> None:
    first = set(candidates[0].config.heads)
    for other in candidates[1:]:
        if set(other.config.heads) != first:
            raise RunError(
                f"{run.path}: trials {candidates[0].trial} and {other.trial} predict different "
                "heads and cannot share an ensemble: give all trials the same heads."
            )


def read_stored_predictions(
    candidate: Candidate, split: str, rows: np.ndarray
) -> dict[str, np.ndarray]:
    """Read the predictions that a trial stored when it ended.

    Args:
        candidate: the trial.
        split: ``val``, ``sel`` or ``cal``.
        rows: positions in the store of the graphs that it must be about, [G].

    Returns:
        Predictions by head, [R, w] in fp64, in the head's unit.

    Raises:
        RunError: the file is missing or damaged, or holds predictions for other structures.
    """
    path = candidate.predictions
    try:
        arrays = load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: cannot be read ({error}); run the campaign again.") from error
    index = arrays.get(f"{split}/index")
    if index is None or not np.array_equal(index, rows):
        raise RunError(
            f"{path}: is about other structures than the store's split '{split}'; "
            "the store was changed after the trial: start a new run directory."
        )
    return {
        name: np.asarray(arrays[f"{split}/{name}"], np.float64) for name in candidate.config.heads
    }


def read_truth(
    graphs: GraphSet, target: str, indices: np.ndarray, elements: Sequence[int] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Read a target of some graphs of a store, ``GRAPHS_TOGETHER`` graphs at a time.

    Args:
        graphs: the store.
        target: name of the target.
        indices: positions of the graphs in the store, [G].
        elements: rows with others are masked; None for all elements.

    Returns:
        The values, [R, w] in fp64, in the target's unit; and a mask of the rows with a label, [R].
    """
    values, masks = [], []
    for columns in take_pieces(graphs, indices):
        values.append(columns.targets[target])
        mask = columns.masks[target]
        node = columns.levels[target] == "node"
        if elements is not None:
            mask = mask & ~contain_others(columns, elements, node=node)
        masks.append(mask)
    return np.concatenate(values), np.concatenate(masks)


@dataclass(frozen=True)
class BuildContext:
    """Data shared by all steps of a build."""

    run: RunDir
    """The run directory; the ensemble and its report are written there."""
    campaign: CampaignConfig
    """Configuration of the campaign."""
    cards: tuple[CardConfig, ...]
    """Cards of the data that the candidates were trained on."""
    graphs: GraphSet
    """Graphs, labels, splits and groups of that data."""
    candidates: list[Candidate]
    """The C trials to choose members from, best validation objective first."""
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Heads that the ensemble leaves out, and the splits without labels of them."""

    @property
    def targets(self) -> dict[str, TargetStats]:
        """Statistics of the heads' targets on the training split.

        Returns:
            Statistics by head.
        """
        return {n: self.graphs.stats["targets"][n] for n in self.candidates[0].config.heads}

    def scale(self, name: str) -> float:
        """Return the divisor of a head's MAE in the objective of a trial.

        It is the target's standard deviation on the training split, in the unit; 1 for a constant.
        """
        return float(self.targets[name]["std"]) or 1.0

    def bounds(self, name: str) -> Bounds | None:
        """Return smallest and largest possible value of a head, in the unit; None without any."""
        ends = self.targets[name].get("bounds")
        return None if ends is None else (ends[0], ends[1])

    def stored(self, split: str) -> dict[str, np.ndarray]:
        """Read the stored predictions of all candidates for ``val``, ``sel`` or ``cal``.

        Returns:
            By head, [C, R, w] in fp64, in the head's unit.

        Raises:
            RunError: a file is missing or damaged, or holds predictions for other structures.
        """
        each = [read_stored_predictions(c, split, self.rows_of(split)) for c in self.candidates]
        return {name: np.stack([one[name] for one in each]) for name in self.targets}

    @property
    def judged(self) -> tuple[str, ...]:
        """The splits on which members are weighted.

        Returns:
            Their names.
        """
        return ("val", "sel")

    def rows_of(self, split: str) -> np.ndarray:
        """Return the positions of a split's graphs in the store, ascending, [G]."""
        rows: np.ndarray = self.graphs.indices_of(split)
        return rows

    def elements_of_row(self, name: str, split: str) -> csr_array:
        """Return 1 for each element that a row of a head contains, by atomic number, [R, 119]."""
        node = self.is_node(name)
        pieces = self.take(self.rows_of(split))
        return csr_array(vstack([elements_of_rows(piece, node=node) for piece in pieces]))

    def take(self, rows: np.ndarray) -> Iterator[Columns]:
        """Yield some graphs of the store in pieces.

        Args:
            rows: positions of the graphs in the store, [G].
        """
        for first in range(0, len(rows), GRAPHS_TOGETHER):
            yield self.graphs.take(rows[first : first + GRAPHS_TOGETHER])

    @property
    def learned_rows(self) -> np.ndarray:
        """Positions in the store of the graphs that some net was trained on, ascending, [G]."""
        return self.rows_of("train")

    def unseen_by(self, net: "Net") -> tuple[str, np.ndarray]:
        """Return the graphs to check a net on.

        Returns:
            The name under which it stored its predictions, and positions in the store, [G].
        """
        return "cal", self.rows_of("cal")

    @cached_property
    def labelled_elements(self) -> dict[str, tuple[int, ...]]:
        """The elements with a label in training: of labelled atoms, or in labelled structures.

        Returns:
            Atomic numbers by head, ascending. Derivatives have those of their energy, too.
        """
        seen = {name: np.zeros(128, dtype=bool) for name in self.targets}
        for columns in self.take(self.learned_rows):
            for name, elements in seen.items():
                mask = columns.masks[name]
                atoms = mask if self.is_node(name) else np.repeat(mask, columns.num_nodes())
                elements[columns.numbers[atoms]] = True
        for name, target in self.targets.items():
            if (energy := target.get("derived_from")) in seen:
                seen[name] |= seen[str(energy)]
        return {name: tuple(np.flatnonzero(some).tolist()) for name, some in seen.items()}

    def truth(self, name: str, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Read a target on a split.

        Returns:
            The values, [R, w] in the target's unit, and a mask, [R], of the rows with a label that
            the ensemble predicts: those whose elements have a label in training.

        """
        elements = self.labelled_elements[name]
        return read_truth(self.graphs, name, self.rows_of(split), elements)

    def is_node(self, name: str) -> bool:
        """Check whether a target has one value per node."""
        return bool(self.targets[name]["level"] == "node")

    def is_class(self, name: str) -> bool:
        """Check whether a target is one of several classes."""
        return bool(self.targets[name]["shape"] == "class")

    def graph_of_row(self, name: str, split: str) -> np.ndarray:
        """Return the position in a split of each row's structure, [R]."""
        return graph_of_row(self.graphs, self.rows_of(split), node=self.is_node(name))

    def group_of_row(self, name: str, split: str) -> np.ndarray:
        """Return the group of each row's structure in a split, [R]."""
        group = self.graphs.group[self.rows_of(split)]
        rows: np.ndarray = group[self.graph_of_row(name, split)]
        return rows

    @cached_property
    def strata(self) -> Strata:
        """The rule for strata with their own intervals; it does not use targets."""
        by = self.campaign.ensemble.intervals
        indices = self.rows_of("cal")
        if by == "auto":
            return choose_strata(self.graphs, indices)
        if by == "element":
            return Strata(atoms="element")
        if by == "size":
            return size_strata(self.graphs.num_nodes()[indices])
        return Strata(by)


@dataclass(frozen=True)
class CrossContext(BuildContext):
    """Data of a build whose candidates are configurations that were trained on folds.

    ``sel`` and ``cal`` are all structures outside the test split, each as predicted by the nets
    that have not seen it; ``val`` is fold 0, and ``train`` the other folds.
    """

    @property
    def judged(self) -> tuple[str, ...]:
        """The one split on which configurations are weighted.

        Returns:
            Its name.
        """
        return ("sel",)

    @property
    def folds(self) -> int:
        """Return the number of folds, K."""
        return self.candidates[0].fits[0].config.training.folds

    @cached_property
    def fold(self) -> np.ndarray:
        """Fold of each graph of the store, or ``NONE``, [G]."""
        training = self.candidates[0].fits[0].config.training
        return deal_folds(self.graphs, training.folds, training.fold_seed)

    def rows_of(self, split: str) -> np.ndarray:
        """Return the positions of a split's graphs in the store, ascending, [G]."""
        if split in ("sel", "cal"):
            return np.flatnonzero(self.fold != NONE)
        return super().rows_of(split)

    @property
    def learned_rows(self) -> np.ndarray:
        """Positions in the store of the graphs of all folds, ascending, [G]."""
        return self.rows_of("cal")

    def unseen_by(self, net: "Net") -> tuple[str, np.ndarray]:
        """Return the graphs to check a net on: those of its fold.

        Returns:
            As ``BuildContext.unseen_by``.
        """
        return "val", np.flatnonzero(self.fold == net.fold)

    def fold_of_row(self, name: str) -> np.ndarray:
        """Return the fold of each row of a head outside the test split, [R]."""
        rows: np.ndarray = self.fold[self.rows_of("cal")][self.graph_of_row(name, "cal")]
        return rows

    @cached_property
    def _out_of_fold(self) -> dict[str, np.ndarray]:
        """Stored predictions of the configurations for what their nets did not see, [C, R, w]."""
        of_head: dict[str, list[np.ndarray]] = {name: [] for name in self.targets}
        for candidate in self.candidates:
            stored = [
                read_stored_predictions(fit, "val", np.flatnonzero(self.fold == fold))
                for fold, fit in enumerate(candidate.fits)
            ]
            for name, whole in of_head.items():
                fold = self.fold_of_row(name)
                values = np.empty((len(fold), stored[0][name].shape[1]))
                for number, one in enumerate(stored):
                    values[fold == number] = one[name]
                whole.append(values)
        return {name: np.stack(whole) for name, whole in of_head.items()}

    def stored(self, split: str) -> dict[str, np.ndarray]:
        """Read the stored out-of-fold predictions of all configurations.

        Returns:
            By head, [C, R, w] in fp64, in the head's unit, for ``sel`` and ``cal`` alike.

        Raises:
            RunError: a file is missing or damaged, or holds predictions for other structures.
        """
        return self._out_of_fold


@dataclass(frozen=True)
class Net:
    """A training whose weights may go into the ensemble."""

    candidate: int
    """Position of its candidate."""
    trained: Candidate
    """The trial that was trained: the candidate itself, or one of its fits on folds."""
    share: float
    """Part of the candidate's weight that it has; 0 if it is not kept."""
    fold: int | None
    """Fold that it has not seen; None where it was trained on the training split."""

    @property
    def trial(self) -> str:
        """Return the name of its trial."""
        return self.trained.trial


def list_nets(context: BuildContext, candidates: Sequence[int]) -> list[Net]:
    """List the nets of some candidates, the best of each candidate first.

    Where ``ensemble.nets`` keeps fewer, those that are left out have no share.

    Args:
        context: data shared by all steps of the build.
        candidates: positions of the candidates.
    """
    nets = []
    for candidate in candidates:
        trained = context.candidates[candidate].nets
        kept = _kept_folds(context, candidate) if isinstance(context, CrossContext) else {None}
        for each in trained:
            fold = each.config.training.fold
            nets.append(Net(candidate, each, 1.0 / len(kept) if fold in kept else 0.0, fold))
    return nets


def _kept_folds(context: CrossContext, candidate: int) -> set[int]:
    """Return the folds without which the kept nets of a configuration were trained.

    All configurations keep as many nets as each other, the best ones one more where that does not
    come out even, and the folds take turns: nets of unlike folds differ most.
    """
    count = len(context.candidates)
    folds = context.folds
    most = context.campaign.ensemble.nets or count * folds
    numbers = [min(max(most // count + (c < most % count), 1), folds) for c in range(count)]
    first = sum(numbers[:candidate])
    return {fold % folds for fold in range(first, first + numbers[candidate])}


def average_nets(predictions: np.ndarray, nets: Sequence[Net]) -> np.ndarray:
    """Average the predictions of the nets of each candidate.

    Args:
        predictions: predictions of the nets, [M, R, w].
        nets: the M nets, those of one candidate one after another.

    Returns:
        One row for each candidate that has a net, in the order of the nets, [candidates, R, w].
    """
    of_net = np.array([net.candidate for net in nets])
    order = dict.fromkeys(of_net.tolist())
    share = np.array([net.share for net in nets])
    means = (
        np.average(predictions[of_net == one], axis=0, weights=share[of_net == one])
        for one in order
    )
    return np.stack(list(means))


def open_build_context(run: RunDir, keep: int = 0) -> BuildContext:
    """Open the candidates, graphs and cards of a finished campaign.

    Args:
        run: the run directory.
        keep: if above 0, used instead of ``ensemble.nets`` of the campaign.

    Raises:
        HydraError: a file cannot be read, no trial may become a member, or so many nets cannot be
            kept.
    """
    campaign = load_config(run.campaign, CampaignConfig)
    if keep:
        campaign = _keep_nets(campaign, keep)
    cross = campaign.ensemble.fit == "cross"
    configurations = find_configurations(run) if cross else []
    if cross and not configurations:
        logger.warning(
            "%s: no configuration was trained on every fold, so the ensemble is made of the "
            "trials of the search: run the campaign to its end.",
            run.path,
        )
    candidates = configurations or find_candidates(run)
    first = candidates[0].fits[0] if configurations else candidates[0]
    models = [one.config.model for one in candidates]
    trunks = {one.embedding: one.trunk_spec for one in models if one.trunk_spec is not None}
    graphs = open_graphs(first.folder, first.config, trunks)
    stores = [first.folder.path / entry.store for entry in first.config.data]
    cards = tuple(load_config(store / "card.toml", CardConfig) for store in stores)
    kind = CrossContext if configurations else BuildContext
    return leave_out_heads(kind(run, campaign, cards, graphs, candidates))


def leave_out_heads(context: BuildContext) -> BuildContext:
    """Return a context without the heads that some split has no label of.

    Args:
        context: data of a build, with all heads of the trials.

    Raises:
        RunError: no head is left.
    """
    splits = tuple(dict.fromkeys((*context.judged, "cal", "test")))
    missing = {
        name: tuple(split for split in splits if not context.truth(name, split)[1].any())
        for name in context.targets
    }
    for name, target in context.targets.items():
        missing[name] = missing[name] or missing.get(target.get("derived_from") or "", ())
    missing = {name: lacking for name, lacking in missing.items() if lacking}
    if len(missing) == len(context.targets):
        name, (split, *_) = next(iter(missing.items()))
        raise RunError(
            f"{context.run.path}: no structure of the split '{split}' has the target '{name}' for "
            "an element with a label in train, and so no head is left: add labels, or raise the "
            "shares in the card's [split], and start the campaign with another --run."
        )
    if not missing:
        return context
    candidates = [_without_heads(candidate, missing) for candidate in context.candidates]
    return replace(context, candidates=candidates, missing=missing)


def _without_heads(candidate: Candidate, missing: Collection[str]) -> Candidate:
    """Return a candidate, and its fits, without some of their heads."""
    heads = {name: head for name, head in candidate.config.heads.items() if name not in missing}
    return replace(
        candidate,
        config=candidate.config.model_copy(update={"heads": heads}),
        val_mae={name: mae for name, mae in candidate.val_mae.items() if name not in missing},
        fits=tuple(_without_heads(fit, missing) for fit in candidate.fits),
    )


def _keep_nets(campaign: CampaignConfig, nets: int) -> CampaignConfig:
    """Return a campaign whose ensemble keeps a number of nets.

    Raises:
        ConfigError: the campaign is not cross-fitted, or has more configurations than that.
    """
    ensemble = campaign.ensemble
    if ensemble.fit == "split":
        raise ConfigError(
            f"--nets {nets}: the members of this run are not cross-fitted; build without it, then "
            "use ensemble prune."
        )
    if nets < ensemble.configurations:
        raise ConfigError(
            f"--nets {nets} is fewer than one for each of {ensemble.configurations} "
            "configurations: raise it."
        )
    return campaign.model_copy(update={"ensemble": ensemble.model_copy(update={"nets": nets})})


def flops_per_graph(model: ModelConfig, stats: StoreStats) -> float:
    """Estimate the floating point operations that a net spends on the mean structure of a store.

    Args:
        model: the net; the negligible cost of its heads is left out.
        stats: content of the store's ``stats.json``.
    """
    nodes = float(stats["nodes"]["mean"])
    most = model.max_neighbors or math.inf
    edges = nodes * min(mean_neighbors(stats, model.cutoff), most)
    angle = angle_cutoff(model)
    triplets = 0.0 if angle is None else nodes * mean_triplets(stats, angle, most)
    return forward_flops(model, nodes, edges, triplets)
