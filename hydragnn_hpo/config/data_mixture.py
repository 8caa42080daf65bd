"""Several data sets in one training: entries, and what is known about them together.

Read by ``data.mixture`` and by the campaign, which prices and checks without a graph in hand.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from annotated_types import Len
from pydantic import BeforeValidator, Field, PositiveFloat

from hydragnn_hpo.config.data_config import SPLITS, CardConfig
from hydragnn_hpo.config.epoch_size import mean_degree
from hydragnn_hpo.config.schema import Config
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.units import inside

C = TypeVar("C", bound=Config)
Stats = dict[str, Any]

_AGREE = ("level", "shape", "unit", "energy", "derived_from")
"""What must be the same where data sets share a target."""


class MixedConfig(Config):
    """How a data set takes part in a training. Read by ``data.batch_sampler``, ``data.mixture``."""

    ratio: PositiveFloat | None = None
    """Share of the graphs that are drawn from this set, relative to the others; every graph once
    per epoch if left out everywhere."""

    prefix: Annotated[str, Field(pattern=r"^([A-Za-z][A-Za-z0-9_]*)?$")] = ""
    """Put before the names of this set's targets."""


def _several(value: Any) -> Any:
    return [value] if isinstance(value, (Mapping, Config)) else value


DataSets = Annotated[tuple[C, ...], Len(1), BeforeValidator(_several)]
"""One table or several."""

AnyDataSets = Annotated[tuple[C, ...], BeforeValidator(_several)]
"""One table, several, or none."""


def check_ratios(entries: Sequence[MixedConfig]) -> None:
    """Raise ``ValueError`` where some data sets have a ratio and others have none."""
    given = [entry.ratio is not None for entry in entries]
    if any(given) and not all(given):
        raise ValueError("some data sets have a ratio and others have none: give all or none.")


def unite_stats(
    stats: Sequence[Stats], entries: Sequence[MixedConfig], shared: Sequence[str] = ()
) -> Stats:
    """Return the statistics of several data sets as one.

    Args:
        stats: the content of each set's ``stats.json``.
        entries: how each takes part.
        shared: targets that sets have in common.

    Raises:
        ConfigError: two sets have a target of one name that is not declared as shared, or what
            they share differs in level, shape or unit.
    """
    if len(stats) == 1 and not entries[0].prefix:
        return stats[0]
    cutoff = min(each["cutoff"] for each in stats)
    return {
        "name": "+".join(str(each.get("name", "")) for each in stats),
        "title": "; ".join(str(each.get("title", "")) for each in stats),
        "num_graphs": sum(each["num_graphs"] for each in stats),
        "cutoff": cutoff,
        "elements": sorted(set().union(*(each["elements"] for each in stats))),
        "splits": {s: sum(each["splits"][s] for each in stats) for s in SPLITS},
        "nodes": _sizes([each["nodes"] for each in stats], stats),
        "edges": _sizes([each["edges"] for each in stats], stats),
        "degree": _degrees(stats, cutoff),
        "attributes": _attributes(stats),
        "laplacian": min(each.get("laplacian", 0) for each in stats),
        "train_nodes": sum(each["train_nodes"] for each in stats),
        "train_edges": sum(each["train_edges"] for each in stats),
        "sets": [
            {"train": each["splits"]["train"], "train_nodes": each["train_nodes"]} for each in stats
        ],
        "targets": unite_targets([each["targets"] for each in stats], entries, shared),
        "checksum": "-".join(str(each.get("checksum", "")) for each in stats),
    }


def _attributes(stats: Sequence[Stats]) -> dict[str, dict[str, float]]:
    """Pool centre and spread of the attributes that all sets have, over their train splits."""
    known: list[Stats] = [each.get("attributes", {}) for each in stats]
    counts = [each["splits"]["train"] for each in stats]
    found = {}
    for name in sorted(set.intersection(*(set(each) for each in known))):
        parts = [(count, each[name]) for count, each in zip(counts, known, strict=True)]
        total = max(sum(counts), 1)
        mean = math.fsum(n * one["mean"] for n, one in parts) / total
        square = math.fsum(n * (one["std"] ** 2 + (one["mean"] - mean) ** 2) for n, one in parts)
        found[name] = {"mean": mean, "std": math.sqrt(square / total) or 1.0}
    return found


def _degrees(stats: Sequence[Stats], cutoff: float) -> dict[str, float]:
    """Return the mean number of neighbours at every cutoff that some set names."""
    nodes = [each["nodes"]["total"] for each in stats]
    named = {float(r) for each in stats for r in each["degree"]} | {cutoff}
    return {
        str(r): math.fsum(n * mean_degree(each, r) for n, each in zip(nodes, stats, strict=True))
        / sum(nodes)
        for r in sorted(named)
        if r <= cutoff
    }


def targets_of(card: CardConfig) -> dict[str, Stats]:
    """Return what a card says about its targets, in our own units, as a store will."""
    found: dict[str, Stats] = {}
    for name, target in card.targets.items():
        unit = inside(target.unit)[1]
        found[name] = {**target.model_dump(), "unit": f"{unit}/atom" if target.per_atom else unit}
    return found


def unite_targets(
    targets: Sequence[Mapping[str, Stats]],
    entries: Sequence[MixedConfig],
    shared: Sequence[str] = (),
) -> dict[str, Stats]:
    """Return the targets of several data sets by their names in the mixture.

    Raises:
        ConfigError: see ``unite_stats``.
    """
    found: dict[str, list[Stats]] = {}
    for number, (own, entry) in enumerate(zip(targets, entries, strict=True)):
        for name, target in own.items():
            derived = target.get("derived_from")
            renamed = {**target, "derived_from": derived and entry.prefix + derived, "set": number}
            found.setdefault(entry.prefix + name, []).append(renamed)
    for name, several in found.items():
        if len(several) > 1:
            _check_shared(name, several, shared)
    unknown = sorted(set(shared) - {name for name, several in found.items() if len(several) > 1})
    if unknown:
        raise ConfigError(
            f"shared names '{unknown[0]}', which no two data sets have: correct or drop it."
        )
    return {name: _pooled(several) for name, several in found.items()}


def _check_shared(name: str, several: Sequence[Stats], shared: Sequence[str]) -> None:
    if name not in shared:
        raise ConfigError(
            f"data sets {several[0]['set'] + 1} and {several[1]['set'] + 1} both have a target "
            f"'{name}': give one of them a prefix, or, if both mean the same quantity, name it in "
            "shared."
        )
    for key in _AGREE:
        values = [str(target.get(key)) for target in several]
        if len(set(values)) > 1:
            raise ConfigError(
                f"the shared target '{name}' has {key} {values[0]} in one data set and "
                f"{values[1]} in another: give one of them a prefix."
            )


def _pooled(several: Sequence[Stats]) -> Stats:
    """Pool centre and spread over the train splits; a baseline per element cannot be pooled."""
    first = {key: value for key, value in several[0].items() if key != "set"}
    if len(several) == 1 or "mean" not in first:
        return first
    counts = [target["count"] for target in several]
    total: int = sum(counts)

    def mean_of(values: Sequence[float]) -> float:
        weighted: float = math.fsum(n * v for n, v in zip(counts, values, strict=True))
        return weighted / total

    mean = mean_of([target["mean"] for target in several])
    squares = [target["std"] ** 2 + (target["mean"] - mean) ** 2 for target in several]
    return {
        **first,
        "mean": mean,
        "std": math.sqrt(mean_of(squares)) or 1.0,
        "min": min(target["min"] for target in several),
        "max": max(target["max"] for target in several),
        "mad": mean_of([target["mad"] for target in several]),
        "count": total,
        "elements": None,
    }


def _sizes(sizes: Sequence[Mapping[str, float]], stats: Sequence[Stats]) -> dict[str, float]:
    total = sum(size["total"] for size in sizes)
    return {
        "mean": total / sum(each["num_graphs"] for each in stats),
        "min": min(size["min"] for size in sizes),
        "max": max(size["max"] for size in sizes),
        "total": total,
    }
