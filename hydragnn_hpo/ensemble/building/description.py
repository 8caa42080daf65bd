"""What an ensemble in the making says of itself: its manifest, and the evidence behind sigma.

Shapes: C candidates, M members.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hydragnn_hpo import __version__
from hydragnn_hpo.campaign.records.software import software
from hydragnn_hpo.config.convs.user import is_user_conv, package_of, version_of
from hydragnn_hpo.config.model import ModelConfig
from hydragnn_hpo.ensemble import target_rows
from hydragnn_hpo.ensemble.artefact.evidence import MOST_VALUES, Evidence, HeadEvidence
from hydragnn_hpo.ensemble.artefact.manifest import (
    Alike,
    CreatedBy,
    HeadEntry,
    Manifest,
    MemberEntry,
)
from hydragnn_hpo.ensemble.artefact.provenance import PACKAGES, commit, provenance
from hydragnn_hpo.ensemble.building.bench import Bench
from hydragnn_hpo.ensemble.building.calibration import strata_for, watched
from hydragnn_hpo.ensemble.building.candidates import Candidate
from hydragnn_hpo.ensemble.building.choose import Choice, members_of
from hydragnn_hpo.ensemble.building.members import Said
from hydragnn_hpo.ensemble.uncertainty.calibrate import Calibration
from hydragnn_hpo.model.gnn import variance_of

_HEAD = ("level", "shape", "unit", "energy", "derived_from", "description", "mean", "std")


def manifest_of(
    bench: Bench,
    choice: Choice,
    calibrations: Mapping[str, Calibration],
    evaluation: dict[str, dict[str, Any]],
    seen: Mapping[str, Mapping[str, Any]],
) -> Manifest:
    """Gather all that is known about an ensemble.

    Args:
        bench: what the steps share.
        choice: who was chosen, and with what weights.
        calibrations: by head.
        evaluation: scores on the test split, by head.
        seen: diversity of the members, by head.
    """
    stats, campaign = bench.graphs.stats, bench.campaign
    taken = np.flatnonzero(members_of(list(choice.best.values())))
    chosen = [bench.candidates[c] for c in taken]
    return Manifest(
        package=__version__,
        created_by=CreatedBy(campaign=campaign.name, seed=campaign.seed, method=choice.kept),
        data=provenance(bench.cards, stats),
        elements=tuple(sorted(int(z) for z in stats["elements"])),
        cutoff=max(c.config.model.cutoff for c in chosen),
        members=tuple(_member(bench.candidates[c], _shares(choice, int(c))) for c in taken),
        heads={n: _head(target, calibrations[n]) for n, target in bench.targets.items()},
        evaluation=evaluation,
        diversity={name: _alike(one) for name, one in seen.items()},
        software=software(PACKAGES),
        commit=commit(),
        licence=campaign.ensemble.licence,
        **_needs(bench, [candidate.config.model for candidate in chosen]),
        **watched(bench, [candidate.config.model for candidate in chosen]),
    )


def _shares(choice: Choice, candidate: int) -> dict[str, float]:
    """Give a candidate's weights by head; heads without it are left out."""
    every = {head: float(weights[candidate]) for head, weights in choice.best.items()}
    return {head: weight for head, weight in every.items() if weight > 0}


def _member(one: Candidate, weights: dict[str, float]) -> MemberEntry:
    return MemberEntry(
        trial=one.trial, weights=weights, objective=one.objective, val_mae=one.val_mae
    )


def _head(target: Mapping[str, Any], calibration: Calibration) -> HeadEntry:
    known = {key: target[key] for key in _HEAD if key in target}
    return HeadEntry(
        **known, lowest=target.get("min"), highest=target.get("max"), calibration=calibration
    )


def _alike(seen: Mapping[str, Any]) -> Alike:
    return Alike(
        correlation=seen["mean_correlation"],
        member_rmse=math.sqrt(seen["mean_member_mse"]),
        rmse=math.sqrt(seen["mse"]),
    )


def _needs(bench: Bench, models: Sequence[ModelConfig]) -> dict[str, Any]:
    """Say what members need beside edges: attributes, encodings, packages of users."""
    told = {name for model in models for name in model.attributes}
    known = {name: a for card in bench.cards for name, a in card.attributes.items()}
    coded = [model.encoding_size for model in models if model.encoding == "laplacian"]
    own = sorted({model.conv for model in models if is_user_conv(model.conv)})
    return {
        "attributes": {name: known[name] for name in sorted(told)},
        "laplacian": max(coded, default=0),
        "packages": {package_of(name): version_of(name) for name in own},
    }


def evidence_of(
    bench: Bench, said: Said, candidates: Sequence[int], weights: Mapping[str, np.ndarray]
) -> Evidence | None:
    """Keep what the chosen members said about ``cal``, so that fewer can be calibrated later.

    Args:
        bench: what the steps share.
        said: about ``cal``.
        candidates: who said it, in that order.
        weights: by head the shares of those, [M].

    Returns:
        Nothing where it would be a burden to carry (``MOST_VALUES``).
    """
    indices, heads = bench.graphs.indices_of("cal"), {}
    for name in bench.targets:
        truth, mask = bench.truth(name, "cal")
        node = target_rows.is_node(bench.graphs, name)
        chosen = [(row, bench.candidates[candidates[row]].trial) for row in _used(weights[name])]
        noise = said.get(variance_of(name))
        heads[name] = HeadEvidence(
            truth=np.where(mask[:, None], truth, 0.0),
            mask=mask,
            graph=target_rows.graph_of_row(bench.graphs, node=node, indices=indices),
            said={trial: said[name][row] for row, trial in chosen},
            variances={} if noise is None else {trial: noise[row] for row, trial in chosen},
        )
    kind = target_rows.stratum_of_row(bench.graphs, strata_for(bench), node=False, indices=indices)
    evidence = Evidence(np.asarray(bench.graphs.group[indices]), kind, heads)
    return evidence if evidence.values <= MOST_VALUES else None


def _used(weights: np.ndarray) -> list[int]:
    return [int(row) for row in np.flatnonzero(weights)]
