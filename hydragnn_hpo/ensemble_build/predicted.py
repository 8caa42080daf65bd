"""Second stage of a build: what the members predict for ``cal`` and for ``test``.

Shapes: C candidates, M nets, K regressions, R rows of a head, w components.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hydragnn_hpo.config import Bounds
from hydragnn_hpo.ensemble.engine import (
    EDGES_PER_BATCH,
    EagerEngine,
    Member,
    as_array,
    keep_heads,
    make_member,
    pieces,
    predict_in_halves,
)
from hydragnn_hpo.ensemble_build.candidates import (
    BuildContext,
    CrossContext,
    Net,
    list_nets,
    read_stored_predictions,
)
from hydragnn_hpo.ensemble_build.member_selection import MemberSelection
from hydragnn_hpo.ensemble_build.simpler_models import (
    JoinedModels,
    SimplerModels,
    fit_simpler_models,
    join_local_models,
)
from hydragnn_hpo.errors import RunError
from hydragnn_hpo.model import rename_weights, variance_key
from hydragnn_hpo.training import keep_freed_memory
from hydragnn_hpo.training.checkpoint import read_checkpoint
from hydragnn_hpo.uncertainty import Moments, compute_moments


@dataclass(frozen=True)
class MemberPredictions:
    """Predictions of all members, each alone, for the rows of a split."""

    means: Mapping[str, np.ndarray]
    """By head, [M, R, w]."""
    noises: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Variances that members predict, by head that has any, [M, R, 1]; 0 of those without."""

    def mix(
        self, head: str, weights: np.ndarray, rows: np.ndarray, bounds: Bounds | None
    ) -> Moments:
        """Mix the members' predictions of some rows of a head; those of weight 0 are left out.

        Args:
            head: name of the head.
            weights: weights of the members, [M].
            rows: the rows wanted, as a mask [R] or as positions.
            bounds: of the mean, in the unit.
        """
        noise = self.noises.get(head)
        own = None if noise is None else noise[:, rows]
        return compute_moments(self.means[head][:, rows], weights, own, bounds)

    def append(self, means: Mapping[str, np.ndarray], count: int) -> "MemberPredictions":
        """Return these predictions and those of more members, which predict no variance.

        Args:
            means: of the others, [K, R, w], by head; 0 in heads that they do not predict.
            count: K.

        Returns:
            The same of [M + K].
        """
        return MemberPredictions(
            {name: _append(values, means.get(name), count) for name, values in self.means.items()},
            {name: _append(values, None, count) for name, values in self.noises.items()},
        )


def _append(values: np.ndarray, others: np.ndarray | None, count: int) -> np.ndarray:
    """Append the values of ``count`` members, or zeros, to values, [M, R, w]."""
    others = np.zeros((count, *values.shape[1:])) if others is None else others
    return np.concatenate([values, others])


@dataclass(frozen=True)
class Predicted:
    """The second stage: members, and what they predict."""

    nets: Sequence[Net]
    """The M nets of all mixes, or of all configurations on folds."""
    members: Sequence[Member]
    """The same, each as a member that is alone."""
    weights: Mapping[str, Mapping[str, Tensor]]
    """Their weights and buffers, by trial."""
    cal: MemberPredictions
    """Of the M nets, for ``cal``."""
    test: MemberPredictions
    """Of the M nets, for ``test``, whose labels are not read yet."""
    simpler: SimplerModels
    """Predictions that the ensemble is compared with."""
    joined: JoinedModels
    """The K regressions that are members, too."""

    @property
    def all_on_test(self) -> MemberPredictions:
        """Of nets and regressions for ``test``, [M + K]."""
        return self.test.append(self.joined.unseen, len(self.joined.members))


def predict(context: BuildContext, choice: MemberSelection, device: str) -> Predicted:
    """Predict ``cal`` and ``test`` with all members, and fit the regressions beside them.

    Args:
        context: data shared by all steps of the build.
        choice: the selected members and their weights.
        device: torch device to predict on.

    Raises:
        DataError: a configuration, heads and weights do not fit.
        RunError: the weights of a net do not reproduce what is stored.
    """
    cross = isinstance(context, CrossContext)
    nets = list_nets(context, range(len(context.candidates)) if cross else choice.needed)
    weights = dict(_read_weights(context, nets))
    members = [make_lone_member(context, net, weights[net.trial]) for net in nets]
    cal = predict_split(context, members, "cal", device)
    check_members(context, nets, cal)
    test = predict_split(context, members, "test", device)
    simpler = fit_simpler_models(context)
    joined = join_local_models(context, choice, simpler)
    return Predicted(nets, members, weights, cal, test, simpler, joined)


def _read_weights(
    context: BuildContext, nets: Sequence[Net]
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yield the name and the weights of each net, with those of the ensemble's heads alone."""
    for net in nets:
        config = net.trained.config
        weights, _ = read_checkpoint(net.trained.folder.best)
        weights = rename_weights(weights, config.model.conv)
        if context.missing:
            weights = keep_heads(weights, config, context.targets)
        yield net.trial, weights


def make_lone_member(context: BuildContext, net: Net, tensors: Mapping[str, Tensor]) -> Member:
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
        In fp64, in the order of the members.
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
    means = {head: np.stack([one[head] for one in whole]) for head in members[0].heads}
    noises = {}
    for head, mean in means.items():
        key = variance_key(head)
        silent = np.zeros((mean.shape[1], 1))
        if any(key in one for one in whole):
            noises[head] = np.stack([one.get(key, silent) for one in whole])
    return MemberPredictions(means, noises)


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
            gap = np.abs(predictions.means[name][row][chosen] - before).max(initial=0.0)
            # Devices round differently, in proportion to the size of the predictions.
            if not gap <= 1e-3 * context.scale(name) + 1e-5 * np.abs(before).max(initial=0.0):
                raise RunError(
                    f"{net.trained.folder.best}: does not repeat the predictions "
                    f"of '{name}' beside the trial's result (they differ by {gap:.3g} "
                    f"{context.targets[name]['unit']}): remove the trial's last attempt and run "
                    "the campaign again."
                )
