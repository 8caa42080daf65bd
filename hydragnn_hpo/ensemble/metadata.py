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
from hydragnn_hpo.campaign.records.software import software
from hydragnn_hpo.config.convs.user import is_user_conv, package_of, version_of
from hydragnn_hpo.config.data import CardConfig
from hydragnn_hpo.config.model import ModelConfig
from hydragnn_hpo.ensemble.building.bench import Bench
from hydragnn_hpo.ensemble.building.calibration import strata_for, watched
from hydragnn_hpo.ensemble.building.candidates import Candidate
from hydragnn_hpo.ensemble.building.choose import Choice, members_of
from hydragnn_hpo.ensemble.building.members import Said
from hydragnn_hpo.ensemble.calibration_data import MOST_VALUES, CalibrationData, HeadCalibrationData
from hydragnn_hpo.ensemble.inference import rows
from hydragnn_hpo.ensemble.manifest import (
    Alike,
    CreatedBy,
    HeadEntry,
    Manifest,
    MemberEntry,
    Provenance,
)
from hydragnn_hpo.ensemble.uncertainty.calibrate import Calibration
from hydragnn_hpo.model.gnn import variance_of

_HEAD = ("level", "shape", "unit", "energy", "derived_from", "description", "mean", "std")


def make_manifest(
    bench: Bench,
    choice: Choice,
    calibrations: Mapping[str, Calibration],
    evaluation: dict[str, dict[str, Any]],
    seen: Mapping[str, Mapping[str, Any]],
) -> Manifest:
    """Return the manifest of an ensemble.

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
        data=describe_data(bench.cards, stats),
        elements=tuple(sorted(int(z) for z in stats["elements"])),
        cutoff=max(c.config.model.cutoff for c in chosen),
        members=tuple(_member(bench.candidates[c], _shares(choice, int(c))) for c in taken),
        heads={n: _head(target, calibrations[n]) for n, target in bench.targets.items()},
        evaluation=evaluation,
        diversity={name: _alike(one) for name, one in seen.items()},
        software=software(PACKAGES),
        commit=read_commit(),
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


def collect_calibration_data(
    bench: Bench, said: Said, candidates: Sequence[int], weights: Mapping[str, np.ndarray]
) -> CalibrationData | None:
    """Collect the predictions of the chosen members for ``cal``, so that pruning can calibrate.

    Args:
        bench: what the steps share.
        said: about ``cal``.
        candidates: who said it, in that order.
        weights: by head the shares of those, [M].

    Returns:
        None where there are more than ``MOST_VALUES``.
    """
    indices, heads = bench.graphs.indices_of("cal"), {}
    for name in bench.targets:
        truth, mask = bench.truth(name, "cal")
        node = rows.is_node(bench.graphs, name)
        chosen = [(row, bench.candidates[candidates[row]].trial) for row in _used(weights[name])]
        noise = said.get(variance_of(name))
        heads[name] = HeadCalibrationData(
            truth=np.where(mask[:, None], truth, 0.0),
            mask=mask,
            graph=rows.graph_of_row(bench.graphs, node=node, indices=indices),
            predictions={trial: said[name][row] for row, trial in chosen},
            variances={} if noise is None else {trial: noise[row] for row, trial in chosen},
        )
    kind = rows.stratum_of_row(bench.graphs, strata_for(bench), node=False, indices=indices)
    data = CalibrationData(np.asarray(bench.graphs.group[indices]), kind, heads)
    return data if data.values <= MOST_VALUES else None


def _used(weights: np.ndarray) -> list[int]:
    return [int(row) for row in np.flatnonzero(weights)]


PACKAGES = ("torch", "torch-geometric", "numpy", "scipy", "safetensors", "ase", "vesin")
"""Packages that may change the last digits of a number."""

_ROOT = Path(__file__).parents[2]
_SECONDS = 10


def describe_data(cards: Sequence[CardConfig], stats: Mapping[str, Any]) -> Provenance:
    """Return the provenance of the data from its cards and the statistics of the store."""
    said = ("name", "title", "origin", "licence", "cite")
    nodes = stats.get("nodes") or {}
    atoms = (int(nodes["min"]), int(nodes["max"])) if {"min", "max"} <= set(nodes) else None
    return Provenance(
        **{key: join_distinct([getattr(card, key) for card in cards]) for key in said},
        checksum=str(stats["checksum"]),
        files={Path(f.path).name: f.sha256 or "" for card in cards for f in card.files},
        cards=tuple(dict.fromkeys(card.name for card in cards)),
        splits={name: int(count) for name, count in (stats.get("splits") or {}).items()},
        atoms=atoms,
    )


def join_distinct(said: Sequence[str]) -> str:
    """Join distinct, non-empty texts."""
    return "; ".join(dict.fromkeys(filter(None, said)))


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
