"""Decide who starts now, where and how wide, and who is to be resized: a pure function.

All should end together: a trial gets the fewest ranks that end it by the common target, the
longest first. What cannot start yet keeps its turn, and short trials fill the holes meanwhile.
"""

import math
import statistics
from collections.abc import Sequence

from hydragnn_hpo.placement.desk import Desk
from hydragnn_hpo.placement.pool import Pool
from hydragnn_hpo.placement.resizing import Resizing, kept_for_asked
from hydragnn_hpo.placement.target import Prices, prices, target
from hydragnn_hpo.placement.task import (
    Outlook,
    Plan,
    Running,
    Task,
    duration,
    narrow,
    narrowed,
)

OUTLASTS = 1.4
"""While nobody knows how many trials are to come, one longer than so many typical ones is wide."""


def plan(waiting: Sequence[Task], running: Sequence[Running], pool: Pool, outlook: Outlook) -> Plan:
    """Choose what happens now; the same question always has the same answer.

    With one slot trials start in the order in which they are given: it costs nothing, and a
    campaign repeats itself although the times that predictions are made of never do (Law 5).

    Args:
        waiting: trials that could start.
        running: trials that hold slots.
        pool: the slots; it is not changed.
        outlook: what else there is to know.
    """
    if pool.widest < pool.total:  # several allocations: each trial has its place in one
        waiting = [narrow(task, pool.widest) for task in waiting]
        running = [narrowed(each, pool.widest) for each in running]
    busy = sorted(running, key=lambda each: each.task.name)
    if outlook.time_left <= outlook.checkpoint_seconds:
        return _drained(waiting, busy, outlook)
    never = _never(waiting, pool.widest)
    possible = (task for task in waiting if task.name not in never)
    queue = sorted(possible, key=_turn if pool.total > 1 else _asked_first)
    priced = prices(queue, busy, pool.total, outlook)
    aim = _aim(queue, busy, priced, pool.total, outlook)
    deadline = max(aim, priced.quickest())
    desk = Desk(queue, busy, priced, pool.copy(), aim, kept_for_asked(busy))
    asked = sum(task.wished is not None for task in queue)
    desk.start(range(asked))
    resizing = Resizing(busy, priced, deadline=deadline, free=desk.available, outlook=outlook)
    if busy and _may_resize(outlook):
        resizing.decide()
    desk.kept += resizing.kept
    desk.start(range(asked, len(queue)))
    return Plan(tuple(desk.starts), tuple(resizing.changes), {**desk.held, **never}, deadline)


def _never(waiting: Sequence[Task], total: int) -> dict[str, str]:
    """Give the trials that cannot start on this machine, with the reason."""
    never = {}
    for task in waiting:
        needed = task.widths[0] * task.lanes
        if needed > total:
            never[task.name] = f"needs {needed} slots, there are {total}"
        elif not math.isfinite(task.seconds[0]):
            never[task.name] = "nobody knows how long it takes"
    return never


def _may_resize(outlook: Outlook) -> bool:
    """Tell whether an end is in sight, and the time left allows a restart."""
    needed = outlook.checkpoint_seconds + outlook.restart_seconds
    return outlook.time_left > needed and (not outlook.more_to_come or outlook.to_come > 0)


def _asked_first(task: Task) -> bool:
    return task.wished is None


def _turn(task: Task) -> tuple[bool, float, str]:
    """Order the queue: who was stopped for a better width, then the longest."""
    return task.wished is None, -task.seconds[0] * task.widths[0] * task.lanes, task.name


def _aim(
    queue: Sequence[Task], busy: Sequence[Running], priced: Prices, total: int, outlook: Outlook
) -> float:
    """Give the seconds that widths are chosen for.

    Trials to come are counted like the mean of those that wait, or else of those that run. Where
    their number is unknown no end is in sight, and only what outlasts the others by far is wide.
    """
    known = list(queue) or [each.task for each in busy]
    if not known or not outlook.more_to_come:
        return target(priced, total)
    mean = statistics.fmean(task.seconds[0] * task.widths[0] * task.lanes for task in known)
    aim = target(priced, total, outlook.to_come * mean)
    if outlook.to_come:
        return aim
    return max(aim, OUTLASTS * statistics.median(task.seconds[0] for task in known))


def _drained(waiting: Sequence[Task], busy: Sequence[Running], outlook: Outlook) -> Plan:
    """Start nothing any more: no checkpoint could be reached."""
    left = max(outlook.time_left, 0.0)
    reason = f"no checkpoint can be reached in the {duration(left)} left"
    ends = max((each.seconds_left for each in busy), default=0.0)
    return Plan(held={task.name: reason for task in waiting}, ends_in=min(ends, left))
