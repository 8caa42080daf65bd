"""Members of an ensemble in the making: their nets, and what each of them says.

Shapes: M members, R rows of a head, w components.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from hydragnn_hpo.ensemble.building.bench import Bench
from hydragnn_hpo.ensemble.building.candidates import Candidate, stored_predictions
from hydragnn_hpo.ensemble.engine import (
    EDGES_PER_BATCH,
    Member,
    make_member,
    member_batches,
    pieces,
)
from hydragnn_hpo.ensemble.uncertainty.moments import Moments, moments_of
from hydragnn_hpo.errors import RunError
from hydragnn_hpo.model.gnn import variance_of
from hydragnn_hpo.training.checkpoints import checkpoint

Said = dict[str, np.ndarray]
"""By head what each member says, [M, R, w]; by ``variance_of(head)`` the variances, [M, R, 1]."""


def weights_of(candidate: Candidate) -> dict[str, Tensor]:
    """Read a trial's best weights."""
    return checkpoint.read(candidate.folder.best)[0]


def member_of(bench: Bench, candidate: int, tensors: Mapping[str, Tensor]) -> Member:
    """Build a candidate's net around its weights; alone, it says all there is to say."""
    chosen = bench.candidates[candidate]
    where, alone = str(chosen.folder.best), dict.fromkeys(bench.targets, 1.0)
    return make_member(chosen.config, tensors, bench.targets, weights=alone, where=where)


@torch.no_grad()
def said_by(bench: Bench, by_candidate: Mapping[int, Member], split: str, device: str) -> Said:
    """Predict a split with each member alone, in fp64; who predicts no variance says 0 there."""
    place, members = torch.device(device), list(by_candidate.values())
    graphs, indices = bench.graphs, bench.graphs.indices_of(split)
    for member in members:
        member.model.to(place)
    parts: list[dict[str, list[np.ndarray]]] = [{} for _ in members]
    for piece in pieces(graphs, indices, EDGES_PER_BATCH):
        for row, (member, batch) in enumerate(member_batches(members, graphs, piece, place)):
            for name, values in member.model(batch).items():
                parts[row].setdefault(name, []).append(values.double().cpu().numpy())
    whole = [{name: np.concatenate(some) for name, some in part.items()} for part in parts]
    said: Said = {}
    for head in members[0].heads:
        said[head] = np.stack([one[head] for one in whole])
        key, silent = variance_of(head), np.zeros((said[head].shape[1], 1))
        if any(key in one for one in whole):
            said[key] = np.stack([one.get(key, silent) for one in whole])
    return said


def mixed(said: Said, head: str, weights: np.ndarray, rows: np.ndarray) -> Moments:
    """Mix what members say about some rows of a head; those of weight 0 are left out.

    Args:
        said: see ``said_by``.
        head: its name.
        weights: of the members, [M].
        rows: mask of the rows wanted, [R].
    """
    noise = said.get(variance_of(head))
    return moments_of(said[head][:, rows], weights, None if noise is None else noise[:, rows])


def check_members(bench: Bench, members: Mapping[int, Member], said: Said) -> None:
    """Make sure that weights and stored predictions belong to the same epoch.

    Args:
        bench: what the steps share.
        members: by number of the candidate.
        said: what they say about ``cal``, in the same order.

    Raises:
        RunError: a member's weights do not repeat what its trial said of ``cal``.
    """
    for row, candidate in enumerate(members):
        stored = stored_predictions(bench.candidates[candidate], "cal", bench.graphs)
        for name in bench.targets:
            kept = stored[name]
            gap = np.abs(said[name][row] - kept).max(initial=0.0)
            # Another device rounds differently, the more the larger the numbers are.
            if not gap <= 1e-3 * bench.scale(name) + 1e-5 * np.abs(kept).max(initial=0.0):
                raise RunError(
                    f"{bench.candidates[candidate].folder.best}: does not repeat the predictions "
                    f"of '{name}' beside the trial's result (they differ by {gap:.3g} "
                    f"{bench.targets[name]['unit']}): remove the trial's last attempt and run "
                    "the campaign again."
                )
