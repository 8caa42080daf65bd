"""Widen what would outlast the others: at a checkpoint, when that gains more than it costs."""

from collections.abc import Sequence

from hydragnn_hpo.placement.target import Prices
from hydragnn_hpo.placement.task import Outlook, Resize, Running, duration

WORTH = 2.0
"""A restart must gain so many times what it costs."""

GROWTH = 1.5
"""A trial that cannot get all it needs takes what is free if it is so many times wider then."""


def kept_for_asked(busy: Sequence[Running], changes: Sequence[Resize] = ()) -> int:
    """Give the free slots that are kept for trials that were asked to yield.

    Args:
        busy: trials that run.
        changes: what is asked now; without it, what was asked before.
    """
    wished = {change.name: change.width for change in changes}
    kept = 0
    for each in busy:
        task = each.task
        width = wished.get(task.name) if changes else task.wished
        if width is not None:
            kept += max(width - each.width, 0) * task.lanes
    return kept


def resizes(
    busy: Sequence[Running], priced: Prices, deadline: float, free: int, outlook: Outlook
) -> tuple[Resize, ...]:
    """Choose whom to widen, those first that would end last.

    Args:
        busy: trials that run.
        priced: what all take; the last rows are the running ones.
        deadline: seconds until all should have ended.
        free: slots that nobody else was promised.
        outlook: what a restart costs, and whether further trials will come.
    """
    cost = max(outlook.restart_seconds, 1e-3)
    enough = outlook.time_left > outlook.checkpoint_seconds + cost
    if free <= 0 or not enough or (outlook.more_to_come and not outlook.to_come):
        return ()
    first = len(priced.now) - len(busy)
    late = [
        row
        for row in range(first, len(priced.now))
        if priced.ready[row] and priced.left[row] > deadline + WORTH * cost
    ]
    columns = priced.column(deadline)
    changes = []
    for row in sorted(late, key=lambda row: (-priced.left[row], row)):
        column = _affordable(row, int(columns[row]), priced, free, cost)
        if column is None:
            continue
        each = busy[row - first]
        free -= int(priced.slots[row, column] - priced.now[row])
        seconds = float(priced.seconds[row, column])
        width = each.task.widths[column]
        reason = (
            f"would end in {duration(float(priced.left[row]))}, the others in "
            f"{duration(deadline)}: {width} ranks end it in {duration(seconds)}"
        )
        changes.append(Resize(each.task.name, width, reason))
    return tuple(changes)


def _affordable(row: int, column: int, priced: Prices, free: int, cost: float) -> int | None:
    """Give the column of the width that a late trial gets, or None if no change pays."""
    slots, now = priced.slots[row], priced.now[row]
    if slots[column] > now + free:
        column = int(slots.searchsorted(now + free, side="right")) - 1
        if column < 0 or slots[column] < GROWTH * now:
            return None
    if slots[column] <= now:
        return None
    gain = priced.left[row] - priced.seconds[row, column]
    return column if gain >= WORTH * cost else None
