"""Remove members from an ensemble: the rest share their weight and are calibrated again.

Neither the data set nor the test split is needed: the ensemble file holds the predictions of all
members for the calibration split.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hydragnn_hpo.ensemble.artefact import (
    ArtefactContent,
    HeadEntry,
    Manifest,
    MemberEntry,
    Pruned,
    describe_needs,
)
from hydragnn_hpo.errors import ConfigError, unknown
from hydragnn_hpo.uncertainty import (
    CalibrationData,
    calibrate_probabilities,
    class_sets,
    log_losses,
)

_NO_CALIBRATION_DATA = (
    "does not hold what its members said about the calibration split, so fewer members cannot be "
    "given honest intervals: rebuild it from its run, with fewer [ensemble] members, or by "
    "ensemble build RUN --nets 4 if it is cross-fitted."
)


@dataclass(frozen=True)
class PruneEffect:
    """Quality of one head before and after, on the calibration split, in its unit."""

    unit: str
    """Unit of the head."""
    mae_before: float
    """Mean absolute error of the mean of all members."""
    width90_before: float
    """Mean width of the 90 % interval of all members."""
    mae_after: float
    """Mean absolute error of the mean of the members that stay."""
    width90_after: float
    """Mean width of the 90 % interval of these members, after the new calibration."""


def choose_members(manifest: Manifest, keep: int | None, members: Sequence[str]) -> tuple[str, ...]:
    """Decide which members stay: those named, or the ``keep`` of largest weight.

    Among equal weights, lower validation objectives stay.

    Args:
        manifest: manifest of the ensemble.
        keep: number of members that stay, from 1 to one less than all; None if they are named.
        members: trials of the members that stay; empty if their number is given.

    Returns:
        Trials of the members that stay, in the order of the manifest.

    Raises:
        ConfigError: number and names are both given or both missing, a member is unknown, or no
            member would be removed.
    """
    known = [member.trial for member in manifest.members]
    if len(known) == 1:
        raise ConfigError("it has one member alone: leave it whole.")
    if (keep is None) == (not members):
        raise ConfigError("nothing says which members to keep; add --keep 4 or --members a,b.")
    if keep is not None and not 1 <= keep < len(known):
        raise ConfigError(
            f"--keep {keep} of {len(known)} members: give a number from 1 to {len(known) - 1}."
        )
    for name in members:
        if name not in known:
            raise ConfigError(unknown("member", name, known))
    if len(set(members)) == len(known):
        raise ConfigError("--members names all members: leave at least one out.")
    ranked = sorted(manifest.members, key=lambda m: (-m.weight, m.objective, m.trial))
    stay = set(members) or {member.trial for member in ranked[:keep]}
    return tuple(name for name in known if name in stay)


def prune_members(
    content: ArtefactContent, stay: Sequence[str], *, where: str
) -> tuple[ArtefactContent, dict[str, PruneEffect]]:
    """Return an ensemble of some of the members, and the effect on each head.

    Sigma changes with the members, so it is fitted again on the calibration data of the file.
    Scores on the test split are dropped: they belong to the larger ensemble, and that split is
    used only once.

    Args:
        content: the ensemble, read from its file with its calibration data.
        stay: trials of the members that stay, at least one.
        where: file named in the error.

    Returns:
        The smaller ensemble, and the effect by head.

    Raises:
        ConfigError: the file holds no calibration data, or a head loses all its members.
    """
    data, old = content.calibration_data, content.manifest
    if data is None:
        raise ConfigError(f"{where}: {_NO_CALIBRATION_DATA}")
    removed = tuple(sorted({member.trial for member in old.members} - set(stay)))
    new = _without_members(content, stay, removed)
    heads, effects = {}, {}
    for name, head in old.heads.items():
        is_class = head.shape == "class"
        shares = new.shares(name)
        fit = data.calibrate_head(name, shares, head.std or 1.0, head.bounds, is_class=is_class)
        heads[name] = head.model_copy(update={"calibration": fit})
        before = _quality(data, name, old.shares(name), head)
        effects[name] = PruneEffect(
            head.shown_unit, *before, *_quality(data, name, shares, heads[name])
        )
    checked = Manifest.model_validate(new.model_dump() | {"heads": heads})
    features = content.features
    local = content.local
    sources = {*stay, *checked.trunks}
    smaller = replace(
        content,
        manifest=checked,
        configs={name: content.configs[name] for name in stay},
        weights={name: content.weights[name] for name in stay},
        calibration_data=data.without(removed),
        trunks={name: content.trunks[name] for name in checked.trunks},
        features=features if features is not None and features.source in sources else None,
        local=None if local is None or local.basis.trunk not in ("", *checked.trunks) else local,
        identity="",
        sizes={},
        sums={},
    )
    return smaller, effects


def _without_members(
    content: ArtefactContent, stay: Sequence[str], removed: tuple[str, ...]
) -> Manifest:
    """Return the manifest of the members that stay, with the old calibration.

    Args:
        content: the larger ensemble.
        stay: trials of the members that stay.
        removed: trials of the others.
    """
    old = content.manifest
    models = [content.configs[name].model for name in stay]
    return old.model_copy(
        update={
            "members": tuple(_share_weights(old, set(stay))),
            "evaluation": {},
            "diversity": {},
            "pruned": (*old.pruned, Pruned(parent=content.identity, removed=removed)),
            **describe_needs(
                models,
                [head.sum for head in old.heads.values()],
                attributes=old.attributes,
                packages=old.packages,
                local_trunks=old.local_trunks,
                own_trunks=old.own_trunks,
            ),
        }
    )


def _share_weights(old: Manifest, stay: set[str]) -> list[MemberEntry]:
    """Scale the weights of the members that stay so that those of each head sum to 1.

    Raises:
        ConfigError: a head loses all its members.
    """
    members = [member for member in old.members if member.trial in stay]
    sums = {name: sum(m.weights.get(name, 0.0) for m in members) for name in old.heads}
    for name, total in sums.items():
        if not total:
            raise ConfigError(
                f"no member that stays takes part in head '{name}': keep one of "
                f"{', '.join(m.trial for m in old.members if name in m.weights)}."
            )
    return [
        m.model_copy(update={"weights": {n: min(w / sums[n], 1.0) for n, w in m.weights.items()}})
        for m in members
    ]


def _quality(
    data: CalibrationData, name: str, weights: dict[str, float], entry: HeadEntry
) -> tuple[float, float]:
    """Measure the weighted mean of members for one head on the calibration split.

    Args:
        data: predictions of the members.
        name: name of the head.
        weights: weights of the members, by trial.
        entry: bounds of the head, and the calibration of their weighted mean.

    Returns:
        The mean absolute error, and the mean width of the 90 % interval, in the head's unit; for a
        class the log-loss in nats, and the mean number of classes in the 90 % set.
    """
    head = data.heads[name]
    moments = data.moments(name, weights, entry.bounds)
    fit = entry.calibration
    if fit.temperature is not None:
        probability = calibrate_probabilities(moments.mean[head.mask], fit)
        sizes = class_sets(probability, fit)[1].sum(axis=1)
        return float(log_losses(probability, head.truth[head.mask]).mean()), float(sizes.mean())
    error = np.abs(moments.mean - head.truth)[head.mask]
    factor = data.factor_of_rows(name, moments.mean, fit)
    half = fit.half_width(fit.sigma(moments.spread, moments.noise, factor))
    return float(error.mean()), float(2.0 * half[head.mask].mean())
