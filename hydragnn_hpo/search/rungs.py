"""Choose the trials that train on: successive halving over rungs, decided from results alone.

All functions are pure: the same results in the same order give the same decisions, so that a
journal can be replayed. Source: Li et al. (2020), "A system for massively parallel
hyperparameter tuning", arXiv:1810.05934.

The second place of every rung is for the trial that adds most to the best one in an ensemble whose
members have weights of their own for each head: features of a foundation model may halve the error
of energies where elements alone predict band edges better, and one objective keeps only one kind.
"""

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from hydragnn_hpo.search.objective import Point, rank_points


class RungResult(NamedTuple):
    """Result of a trial at a rung."""

    trial: str
    objective: Point | None
    """None if it failed or a stopping rule ended it; such a trial is never promoted."""
    final: bool = False
    """Whether it ended by early stopping: more epochs would not change its result."""
    errors: tuple[float, ...] = ()
    """Validation error of each head; empty where they are not known, or are not the objective."""


CORRELATION = 0.9
"""What errors of two nets are taken to correlate by: .85 to .95 on recorded crystals."""

LEAST_GAIN = 0.03
"""Share of the expected error of the two best that another second one must take off: those of
alike nets, compared on a few structures, differ by luck."""


class Promotion(NamedTuple):
    """Promotion of a trial from one rung to another; rungs are counted from 0."""

    trial: str
    from_rung: int
    to_rung: int


Rungs = Sequence[Sequence[RungResult]]
"""For each rung, the results of all trials that reached it, in journal order."""

Promoted = Sequence[Collection[str]]
"""For each rung, the names of the trials promoted from it so far."""


def promote_asynchronously(
    results: Rungs, promoted: Promoted, *, reduction: int
) -> list[Promotion]:
    """List the trials that may go on now, without waiting for others; highest rung first.

    A trial goes on when it is among the best ``floor(n / reduction)`` of the ``n`` that reached
    its rung, including failed ones; the best goes on at once, so that a first net is trained to
    the end early, and all rungs can be compared.

    Args:
        results: of each rung, lowest first.
        promoted: names of the trials that left each rung.
        reduction: one trial in ``reduction`` goes on.
    """
    promotions: list[Promotion] = []
    seated = _best_of_rungs(results, reduction)
    for rung in reversed(range(len(results) - 1)):
        promotions += _promotions_to(seated[rung], promoted[rung], rung, rung + 1)
    return promotions


def promote_synchronously(
    results: Rungs, promoted: Promoted, *, reduction: int, finalists: int
) -> list[Promotion]:
    """List the trials that may go on once no trial is on its way to any rung.

    The lowest rung that no trial has left yet is closed: one in ``reduction`` of its trials goes
    on, best first, but never fewer than ``finalists``. Only finalists go to the last rung, and
    later those that replace finalists that failed there.

    Args:
        results: of each rung, lowest first.
        promoted: names of the trials that left each rung.
        reduction: one trial in ``reduction`` goes on.
        finalists: number of trials that are to reach the last rung.
    """
    for rung in range(len(results) - 1):
        resting = rank_results(results[rung])
        if promoted[rung] or not resting:
            continue
        last = rung + 2 == len(results)
        seats = finalists if last else max(finalists, len(results[rung]) // reduction)
        if going := _promotions_to(resting[:seats], promoted[rung], rung, rung + 1):
            return going
    return promote_finalists(results, promoted, finalists=finalists)


def promote_finalists(results: Rungs, promoted: Promoted, *, finalists: int) -> list[Promotion]:
    """List the trials that go on to the last rung, so that there are enough finalists.

    Called when all trials of the budget have ended; an empty list ends the search. The best of the
    highest rung go first. A trial that ended by early stopping counts as a finalist without
    training on. A promoted trial that never arrived was cancelled, and is not promoted again.

    Args:
        results: of each rung, lowest first.
        promoted: names of the trials that left each rung.
        finalists: trials that are to reach the last rung.
    """
    last = len(results) - 1
    gone: set[str] = set()
    seats = finalists - len(rank_results(results[last]))
    promotions: list[Promotion] = []
    for rung in reversed(range(last)):
        gone |= set(promoted[rung])
        resting = [r for r in rank_results(results[rung]) if r.trial not in gone]
        chosen = resting[: max(seats, 0)]
        seats -= len(chosen)
        promotions += _promotions_to(chosen, promoted[rung], rung, last)
    return promotions


def rank_results(rested: Sequence[RungResult]) -> list[RungResult]:
    """Return the results that have an objective, best first.

    The second is the one that adds most to the best, where that is clearly more than the second by
    its objective adds.
    """
    scored = [(r, r.objective) for r in rested if r.objective is not None]
    ranked = [scored[place][0] for place in rank_points([objective for _, objective in scored])]
    if len(ranked) > 2 and ranked[0].errors:
        expected = [expect_pair(ranked[0].errors, r.errors) for r in ranked]
        place = min(range(1, len(ranked)), key=expected.__getitem__)
        if expected[place] < (1.0 - LEAST_GAIN) * expected[1]:
            ranked.insert(1, ranked.pop(place))
    return ranked


def expect_pair(best: Sequence[float], other: Sequence[float]) -> float:
    """Return the error that two nets should have together, as a share of the first one's.

    It is the mean over heads of what the best weights give for errors a <= b that correlate by r:
    a where r b > a, else a b sqrt((1 - r^2) / (a^2 + b^2 - 2 r a b)).

    Source: Bates and Granger (1969), The combination of forecasts, OR 20, 451.

    Args:
        best: error of each head of the first net.
        other: those of the second; of other heads it adds nothing.
    """
    if len(other) != len(best):
        return 1.0
    shares = []
    for a, b in zip(best, other, strict=True):
        low, high = sorted((a, b))
        if CORRELATION * high >= low:
            error = low
        else:
            apart = low**2 + high**2 - 2.0 * CORRELATION * low * high
            error = low * high * math.sqrt((1.0 - CORRELATION**2) / apart)
        shares.append(error / a if a else 1.0)
    return math.fsum(shares) / len(shares)


def _best_of_rungs(results: Rungs, reduction: int) -> list[list[RungResult]]:
    """Return the best of each rung, one in ``reduction``.

    Trials that ended by early stopping are compared at higher rungs too: training on would not
    change them.
    """
    seated: list[list[RungResult]] = []
    tired: list[RungResult] = []
    for rung in results:
        there = {rested.trial for rested in rung} if tired else set()
        here = [*rung, *(rested for rested in tired if rested.trial not in there)]
        seated.append(rank_results(here)[: max(1, len(here) // reduction)])
        tired = [rested for rested in seated[-1] if rested.final]
    return seated


def _promotions_to(
    chosen: Sequence[RungResult], promoted: Collection[str], rung: int, to: int
) -> list[Promotion]:
    return [Promotion(r.trial, rung, to) for r in chosen if not r.final and r.trial not in promoted]
