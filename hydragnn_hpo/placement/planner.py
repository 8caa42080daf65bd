"""Decide who starts now, where and how wide, and who is to be resized: a pure function.

All should end together: a trial gets the fewest ranks that end it by the common target, the
longest first. What cannot start yet keeps its turn, and short trials fill the holes meanwhile.
"""

import statistics
from collections.abc import Sequence

from hydragnn_hpo.placement.desk import Desk
from hydragnn_hpo.placement.pool import Pool
from hydragnn_hpo.placement.resizing import kept_for_asked, resizes
from hydragnn_hpo.placement.target import Prices, prices, target
from hydragnn_hpo.placement.task import Outlook, Plan, Running, Task, duration

OUTLASTS = 1.4
"""While nobody knows how many trials are to come, one longer than so many typical ones is wide."""


def plan(waiting: Sequence[Task], running: Sequence[Running], pool: Pool, outlook: Outlook) -> Plan:
    """Choose what happens now; the same question always has the same answer.

    Args:
        waiting: trials that could start.
        running: trials that hold slots.
        pool: the slots; it is not changed.
        outlook: what else there is to know.
    """
    queue = sorted(waiting, key=_turn)
    busy = sorted(running, key=lambda each: each.task.name)
    if outlook.time_left <= outlook.checkpoint_seconds:
        return _drained(queue, busy, outlook)
    priced = prices(queue, busy, pool.total, outlook)
    aim = _aim([*queue, *(each.task for each in busy)], priced, pool.total, outlook)
    deadline = max(aim, priced.quickest())
    desk = Desk(queue, busy, priced, pool.copy(), aim, kept_for_asked(busy))
    asked = sum(task.wished is not None for task in queue)
    desk.start(range(asked))
    changes = resizes(busy, priced, deadline, desk.available, outlook)
    desk.kept += kept_for_asked(busy, changes)
    desk.start(range(asked, len(queue)))
    return Plan(tuple(desk.starts), changes, desk.held, deadline)


def _turn(task: Task) -> tuple[bool, float, str]:
    """Order the queue: who was stopped for a better width, then the longest."""
    return task.wished is None, -task.seconds[0] * task.widths[0] * task.lanes, task.name


def _aim(tasks: Sequence[Task], priced: Prices, total: int, outlook: Outlook) -> float:
    """Give the seconds that widths are chosen for.

    Trials to come are counted like the mean of those that are known. Where their number is
    unknown no end is in sight, and only what outlasts the others by far is made wider.
    """
    if not tasks:
        return 0.0
    if not outlook.more_to_come:
        return target(priced, total)
    if outlook.to_come:
        return target(priced, total, 1.0 + outlook.to_come / len(tasks))
    typical = statistics.median(task.seconds[0] for task in tasks)
    return max(target(priced, total), OUTLASTS * typical)


def _drained(queue: Sequence[Task], busy: Sequence[Running], outlook: Outlook) -> Plan:
    """Start nothing any more: no checkpoint could be reached."""
    left = max(outlook.time_left, 0.0)
    reason = f"no checkpoint can be reached in the {duration(left)} left"
    ends = max((each.seconds_left for each in busy), default=0.0)
    return Plan(held={task.name: reason for task in queue}, ends_in=min(ends, left))
