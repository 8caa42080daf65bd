"""How much a first campaign searches: sizes of nets, trials and epochs."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

BATCHES = (16, 32, 64)

TIERS: tuple[tuple[tuple[int, ...], tuple[int, int]], ...] = (
    ((32, 64, 96, 128), (2, 4)),
    ((32, 48, 64), (2, 4)),
    ((16, 32, 48), (2, 3)),
    ((16, 32), (2, 3)),
)
"""Widths and rounds of message passing, the largest nets first. Every number of attention heads
divides every width."""

LEAST, MOST, WISHED = 8, 400, 24
"""Trials: below which there is no search, above which it gains little, and what is aimed at."""

ASKED_PER_CONV = 4
"""Trials for every conv that is tried, at least."""

MOST_CONVS = 8
"""Convs of a campaign that has a time to keep."""

QUICK = ("painn", "schnet", "egnn", "pnaplus", "et", "cgcnn", "gat", "pnaeq", "alignn", "mace")
"""Convs in the order in which a campaign of few trials takes them: the shipped campaigns' first."""


@dataclass(frozen=True)
class Scope:
    """What a campaign searches, and how far."""

    trials: int = 60
    initial: int = 20
    rungs: tuple[int, int] = (10, 40)
    finalists: int | None = None
    """Trials that are trained to the full budget; what the config says if left out."""
    members: int = 6
    features: tuple[int, ...] = (32, 64, 96, 128)
    layers: tuple[int, int] = (2, 4)
    batches: tuple[int, ...] = BATCHES
    steps: int | None = None
    """Steps that are called an epoch; a pass over the data if left out."""
    convs: tuple[str, ...] | None = None
    """Convs to search; all that fit if left out."""
    why: tuple[str, ...] = ()
    """Reasons, for comments."""


def whole_epochs(training: int) -> int:
    """Give the epochs at which a training of so many graphs has mostly learned what it will.

    Fewer graphs need more passes: 40 for a thousand, as the root of their number.
    """
    return max(8, min(120, round(40.0 * math.sqrt(1000.0 / max(training, 1)))))


def batches_of(training: int) -> tuple[int, ...]:
    """Give batches that leave an epoch at least a few steps."""
    return tuple(b for b in BATCHES if training >= 6 * b) or (8,)


def scopes(training: int, able: Sequence[str]) -> Iterator[Scope]:
    """Give scopes from the most thorough to the least, without their number of trials.

    Args:
        training: structures in the training split.
        able: convs that can predict what is asked.
    """
    full = whole_epochs(training)
    for features, layers in TIERS:
        for share in (1.0, 0.6):
            last = max(6, round(share * full))
            yield Scope(
                rungs=(max(2, round(last / 4)), last),
                features=features,
                layers=layers,
                batches=batches_of(training),
                convs=tuple(able),
            )
    features, layers = TIERS[-1]
    for steps in (1000, 300, 100, 30):
        if steps * max(batches_of(training)) < training:
            yield Scope(
                rungs=(2, 8), features=features, layers=layers, steps=steps, convs=tuple(able)
            )


def with_trials(scope: Scope, trials: int) -> Scope:
    """Settle a scope on a number of trials, and on convs and finalists that go with it."""
    trials = max(LEAST, min(MOST, trials))
    finalists = max(6, min(12, trials // 3))
    return replace(
        scope,
        trials=trials,
        initial=max(4, trials // 4),
        finalists=finalists,
        members=min(6, finalists),
        convs=chosen(scope.convs or (), min(MOST_CONVS, max(3, trials // ASKED_PER_CONV))),
    )


def chosen(able: Sequence[str], most: int) -> tuple[str, ...]:
    """Choose some convs, the quick ones first; in the order in which they were given."""
    order = [name for name in (*QUICK, *able) if name in able]
    kept = list(dict.fromkeys(order))[:most]
    return tuple(name for name in able if name in kept)


def trials_for(scope: Scope, seconds: float, epoch_seconds: float, slots: int) -> int:
    """Give the trials of a scope that fit into a time.

    Args:
        scope: rungs, and nothing else of it, counts.
        seconds: that the search may take.
        epoch_seconds: of one trial on one slot, on average.
        slots: that work side by side.
    """
    first, last = scope.rungs
    each = (first + (last - first) / 3.0) * epoch_seconds
    return int(seconds * slots / max(each, 1e-9))
