"""Manifest and calibration data of an ensemble that is being built.

Shapes: C candidates, M members.
"""

import math
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hydragnn_hpo import __version__
from hydragnn_hpo.campaign import read_software_versions
from hydragnn_hpo.config import CardConfig, ModelConfig
from hydragnn_hpo.config.convs.spec import is_user_conv, package_of, version_of
from hydragnn_hpo.ensemble import target_rows
from hydragnn_hpo.ensemble.build_context import BuildContext
from hydragnn_hpo.ensemble.build_steps import MemberPredictions, make_strata, trust_metadata
from hydragnn_hpo.ensemble.calibrate import Calibration
from hydragnn_hpo.ensemble.calibration_data import MOST_VALUES, CalibrationData, HeadCalibrationData
from hydragnn_hpo.ensemble.candidates import Candidate
from hydragnn_hpo.ensemble.manifest import (
    Alike,
    CreatedBy,
    HeadEntry,
    Manifest,
    MemberEntry,
    Provenance,
)
from hydragnn_hpo.ensemble.select import MemberSelection, members_in_any
from hydragnn_hpo.model import variance_key

_HEAD = ("level", "shape", "unit", "energy", "derived_from", "description", "mean", "std")

PACKAGES = ("torch", "torch-geometric", "numpy", "scipy", "safetensors", "ase", "vesin")
"""Packages that may change the last digits of a number."""
_ROOT = Path(__file__).parents[2]
_SECONDS = 10


def make_manifest(
    context: BuildContext,
    choice: MemberSelection,
    calibrations: Mapping[str, Calibration],
    evaluation: dict[str, dict[str, Any]],
    seen: Mapping[str, Mapping[str, Any]],
) -> Manifest:
    """Return the manifest of an ensemble.

    Args:
        context: what the steps share.
        choice: the selected members and their weights.
        calibrations: by head.
        evaluation: scores on the test split, by head.
        seen: diversity of the members, by head.
    """
    stats, campaign = context.graphs.stats, context.campaign
    taken = np.flatnonzero(members_in_any(list(choice.best.values())))
    chosen = [context.candidates[c] for c in taken]
    return Manifest(
        package=__version__,
        created_by=CreatedBy(campaign=campaign.name, seed=campaign.seed, method=choice.kept),
        data=describe_data(context.cards, stats),
        elements=tuple(sorted(int(z) for z in stats["elements"])),
        cutoff=max(c.config.model.cutoff for c in chosen),
        members=tuple(_member(context.candidates[c], _shares(choice, int(c))) for c in taken),
        heads={n: _head(target, calibrations[n]) for n, target in context.targets.items()},
        evaluation=evaluation,
        diversity={name: _alike(one) for name, one in seen.items()},
        software=read_software_versions(PACKAGES),
        commit=read_commit(),
        licence=campaign.ensemble.licence,
        **_needs(context, [candidate.config.model for candidate in chosen]),
        **trust_metadata(context, [candidate.config.model for candidate in chosen]),
    )


def _shares(choice: MemberSelection, candidate: int) -> dict[str, float]:
    """Return a candidate's weights by head; heads without it are left out."""
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


def _needs(context: BuildContext, models: Sequence[ModelConfig]) -> dict[str, Any]:
    """Return what members need beside edges: attributes, encodings, packages of users."""
    names = {name for model in models for name in model.attributes}
    known = {name: a for card in context.cards for name, a in card.attributes.items()}
    coded = [model.encoding_size for model in models if model.encoding == "laplacian"]
    own = sorted({model.conv for model in models if is_user_conv(model.conv)})
    return {
        "attributes": {name: known[name] for name in sorted(names)},
        "laplacian": max(coded, default=0),
        "packages": {package_of(name): version_of(name) for name in own},
    }


def collect_calibration_data(
    context: BuildContext,
    predictions: MemberPredictions,
    candidates: Sequence[int],
    weights: Mapping[str, np.ndarray],
) -> CalibrationData | None:
    """Collect the predictions of the chosen members for ``cal``, so that pruning can calibrate.

    Args:
        context: what the steps share.
        predictions: predictions for ``cal``.
        candidates: those that predicted, in that order.
        weights: by head the shares of these, [M].

    Returns:
        None where there are more than ``MOST_VALUES``.
    """
    indices, heads = context.graphs.indices_of("cal"), {}
    for name in context.targets:
        truth, mask = context.truth(name, "cal")
        node = target_rows.is_node(context.graphs, name)
        chosen = [(row, context.candidates[candidates[row]].trial) for row in _used(weights[name])]
        noise = predictions.get(variance_key(name))
        heads[name] = HeadCalibrationData(
            truth=np.where(mask[:, None], truth, 0.0),
            mask=mask,
            graph=target_rows.graph_of_row(context.graphs, node=node, indices=indices),
            predictions={trial: predictions[name][row] for row, trial in chosen},
            variances={} if noise is None else {trial: noise[row] for row, trial in chosen},
        )
    kind = target_rows.stratum_of_row(
        context.graphs, make_strata(context), node=False, indices=indices
    )
    data = CalibrationData(np.asarray(context.graphs.group[indices]), kind, heads)
    return data if data.values <= MOST_VALUES else None


def _used(weights: np.ndarray) -> list[int]:
    return [int(row) for row in np.flatnonzero(weights)]


def describe_data(cards: Sequence[CardConfig], stats: Mapping[str, Any]) -> Provenance:
    """Return the provenance of the data from its cards and the statistics of the store."""
    fields = ("name", "title", "origin", "licence", "cite")
    nodes = stats.get("nodes") or {}
    atoms = (int(nodes["min"]), int(nodes["max"])) if {"min", "max"} <= set(nodes) else None
    return Provenance(
        **{key: join_distinct([getattr(card, key) for card in cards]) for key in fields},
        checksum=str(stats["checksum"]),
        files={Path(f.path).name: f.sha256 or "" for card in cards for f in card.files},
        cards=tuple(dict.fromkeys(card.name for card in cards)),
        splits={name: int(count) for name, count in (stats.get("splits") or {}).items()},
        atoms=atoms,
    )


def join_distinct(texts: Sequence[str]) -> str:
    """Join distinct, non-empty texts."""
    return "; ".join(dict.fromkeys(filter(None, texts)))


def read_commit(root: Path = _ROOT) -> str:
    """Return the commit of a checkout, ``-dirty`` where files were changed; empty elsewhere.

    Args:
        root: the folder that holds the package.
    """
    if not (root / ".git").exists():
        return ""
    argv = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
