"""Last stage of a build: the content of the ensemble file."""

import math
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from ase.data import chemical_symbols

from hydragnn_hpo import __version__
from hydragnn_hpo.campaign.setup import read_software_versions
from hydragnn_hpo.config import CardConfig, ModelConfig
from hydragnn_hpo.config.convs.spec import is_user_conv, package_of, version_of
from hydragnn_hpo.data import Columns
from hydragnn_hpo.ensemble import ArtefactContent, HeadEntry, Manifest
from hydragnn_hpo.ensemble.artefact import (
    Alike,
    Coordination,
    CreatedBy,
    LocalShare,
    MemberEntry,
    MemberNeeds,
    Provenance,
    describe_needs,
)
from hydragnn_hpo.ensemble.descriptors import (
    GRAPH,
    NODE,
    TrainingFeatures,
    TrunkBlock,
    sample_training_set,
)
from hydragnn_hpo.ensemble.engine import Member
from hydragnn_hpo.ensemble.head_predictions import neighbor_counts
from hydragnn_hpo.ensemble.packed_trunk import keep_beside, pack_trunk
from hydragnn_hpo.ensemble_build.candidates import BuildContext, CrossContext, Net
from hydragnn_hpo.ensemble_build.evidence import own_trunks
from hydragnn_hpo.ensemble_build.member_selection import MemberSelection, list_kept
from hydragnn_hpo.ensemble_build.tested import BuildStages
from hydragnn_hpo.file_records import StoreStats
from hydragnn_hpo.layout import derive_seed
from hydragnn_hpo.uncertainty.calibration_data import MOST_VALUES

PACKAGES = ("torch", "torch-geometric", "numpy", "scipy", "safetensors", "ase", "vesin")
"""Packages whose version can change the last digits of a result; the manifest records them."""

_ROOT = Path(__file__).parents[2]
"""Folder that holds the package."""
_GIT_SECONDS = 10
"""Timeout of ``git describe``, in seconds."""


def pack(build: BuildStages) -> ArtefactContent:
    """Return the content of the ensemble file."""
    context = build.context
    predicted = build.predicted
    manifest = make_manifest(build)
    nets = list_kept(context, build.choice)
    data = build.calibrated.data
    local = predicted.simpler.local
    if local and local.basis.trunk not in ("", *manifest.trunks):
        local = None  # it reads a model that no member reads
    return ArtefactContent(
        manifest=manifest,
        configs={net.trial: net.trained.config for net in nets},
        weights={net.trial: dict(predicted.weights[net.trial]) for net in nets},
        cards={card.name: card for card in context.cards},
        calibration_data=data if data is not None and data.values <= MOST_VALUES else None,
        features=find_training_features(context, manifest, predicted.members),
        local=local,
        local_members=tuple(member.models for member in predicted.joined.members),
        trunks={
            name: pack_trunk(_place_of_trunk(context, name), manifest.trunk_spec(name))
            for name in manifest.trunks
        },
    )


def keep_trunks(context: BuildContext, content: ArtefactContent) -> None:
    """Keep beside the file those of the user's foundation models that must not travel in it."""
    for name, packed in content.trunks.items():
        if name in content.manifest.own_trunks and not packed.has_weights:
            keep_beside(Path(_place_of_trunk(context, name)), context.run.path)


def _place_of_trunk(context: BuildContext, name: str) -> str:
    """Return the name of a shipped foundation model, or the card of a user's."""
    own = context.campaign.trunks.get(name)
    return own.file if own else name


def make_manifest(build: BuildStages) -> Manifest:
    """Return the manifest of an ensemble."""
    context = build.context
    choice = build.choice
    nets = list_kept(context, choice)
    kept = sorted({net.candidate for net in nets})
    models = [context.candidates[c].config.model for c in kept]
    heads = {name: _head(build, name) for name in context.targets}
    train = context.rows_of("train")
    sizes = context.graphs.num_nodes()[train]
    # Counting within the shortest cutoff stays possible after any member is pruned.
    shortest = min(model.cutoff for model in models)
    return Manifest(
        package=__version__,
        created_by=CreatedBy(
            campaign=context.campaign.name,
            seed=context.campaign.seed,
            method=choice.kept,
            folds=context.folds if isinstance(context, CrossContext) else None,
        ),
        data=describe_data(context.cards, context.graphs.stats),
        elements=tuple(sorted(int(z) for z in context.graphs.stats["elements"])),
        members=tuple(_member(choice, net) for net in nets),
        heads=heads,
        evaluation={name: {**head.scores} for name, head in build.tested.heads.items()},
        diversity={
            name: Alike(
                correlation=of_head["mean_correlation"],
                member_rmse=math.sqrt(of_head["mean_member_mse"]),
                rmse=math.sqrt(of_head["mse"]),
            )
            for name, of_head in build.diversity.items()
        },
        software=read_software_versions(PACKAGES),
        commit=read_commit(),
        licence=context.campaign.ensemble.licence,
        strata=context.strata,
        coordination=measure_coordination(context.take(train), shortest),
        sizes=(int(sizes.min()), int(sizes.max())),
        **_needs(context, models, [head.local for head in heads.values()]),
    )


def _needs(
    context: BuildContext, models: Sequence[ModelConfig], shares: Iterable[LocalShare | None]
) -> MemberNeeds:
    attributes = {name: a for card in context.cards for name, a in card.attributes.items()}
    own = sorted({model.conv for model in models if is_user_conv(model.conv)})
    packages = {package_of(name): version_of(name) for name in own}
    sums = [target.get("sum") for target in context.targets.values()]
    return describe_needs(
        models,
        sums,
        attributes=attributes,
        packages=packages,
        local_trunks={share.trunk for share in shares if share is not None and share.trunk},
        own_trunks=own_trunks(context),
    )


def _member(choice: MemberSelection, net: Net) -> MemberEntry:
    shares = {head: net.share * float(w[net.candidate]) for head, w in choice.best.items()}
    return MemberEntry(
        trial=net.trial,
        weights={head: share for head, share in shares.items() if share > 0},
        objective=net.trained.objective,
        val_mae=net.trained.val_mae,
    )


def _head(build: BuildStages, name: str) -> HeadEntry:
    """Return the entry of a head."""
    target = build.context.targets[name]
    baseline = build.predicted.simpler.baselines.get(name)
    described = {key: value for key, value in target.items() if key in HeadEntry.model_fields}
    return HeadEntry.model_validate(
        described
        | {
            "lowest": target.get("min"),
            "highest": target.get("max"),
            "calibration": build.calibrated.heads[name],
            "baseline": None if baseline is None else baseline.as_entry(),
            "elements": build.context.labelled_elements[name],
            "local": build.predicted.joined.share_of(name),
        }
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
