"""Decide who starts now, where and how wide, and who is to be resized: a pure function.

All should end together: a trial gets the fewest ranks that end it by the common target, the
longest first. What cannot start yet keeps its turn, and short trials fill the holes meanwhile.
"""

import math
import statistics
from collections.abc import Sequence

from hydragnn_hpo.placement.backfill import BackfillScheduler
from hydragnn_hpo.placement.deadline import PriceTable, build_price_table, common_deadline
from hydragnn_hpo.placement.pool import SlotPool
from hydragnn_hpo.placement.resizing import WidthPlanner, reserve_for_yielding
from hydragnn_hpo.placement.task import (
    Plan,
    PlanningContext,
    RunningTask,
    Task,
    format_duration,
    narrow_running,
    narrow_task,
)

OUTLASTS = 1.4
"""While nobody knows how many trials are to come, one longer than so many typical ones is wide."""


def plan(
    waiting: Sequence[Task],
    running: Sequence[RunningTask],
    pool: SlotPool,
    outlook: PlanningContext,
) -> Plan:
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
        waiting = [narrow_task(task, pool.widest) for task in waiting]
        running = [narrow_running(each, pool.widest) for each in running]
    busy = sorted(running, key=lambda each: each.task.name)
    if outlook.time_left <= outlook.checkpoint_seconds:
        return _drain_plan(waiting, busy, outlook)
    never = _unplaceable(waiting, pool.widest)
    possible = (task for task in waiting if task.name not in never)
    queue = sorted(possible, key=_queue_order if pool.total > 1 else _yielded_first)
    priced = build_price_table(queue, busy, pool.total, outlook)
    aim = _choose_deadline(queue, busy, priced, pool.total, outlook)
    deadline = max(aim, priced.quickest())
    desk = BackfillScheduler(queue, busy, priced, pool.copy(), aim, reserve_for_yielding(busy))
    asked = sum(task.wished is not None for task in queue)
    desk.start(range(asked))
    resizing = WidthPlanner(busy, priced, deadline=deadline, free=desk.available, outlook=outlook)
    if busy and _may_resize(outlook):
        resizing.decide()
    desk.kept += resizing.kept
    desk.start(range(asked, len(queue)))
    return Plan(tuple(desk.starts), tuple(resizing.changes), {**desk.held, **never}, deadline)


def _unplaceable(waiting: Sequence[Task], total: int) -> dict[str, str]:
    """Give the trials that cannot start on this machine, with the reason."""
    never = {}
    for task in waiting:
        needed = task.widths[0] * task.lanes
        if needed > total:
            never[task.name] = f"needs {needed} slots, there are {total}"
        elif not math.isfinite(task.seconds[0]):
            never[task.name] = "nobody knows how long it takes"
    return never


def _may_resize(outlook: PlanningContext) -> bool:
    """Tell whether an end is in sight, and the time left allows a restart."""
    needed = outlook.checkpoint_seconds + outlook.restart_seconds
    return outlook.time_left > needed and (not outlook.more_to_come or outlook.to_come > 0)


def _yielded_first(task: Task) -> bool:
    return task.wished is None


def _queue_order(task: Task) -> tuple[bool, float, str]:
    """Order the queue: who was stopped for a better width, then the longest."""
    return task.wished is None, -task.seconds[0] * task.widths[0] * task.lanes, task.name


def _choose_deadline(
    queue: Sequence[Task],
    busy: Sequence[RunningTask],
    priced: PriceTable,
    total: int,
    outlook: PlanningContext,
) -> float:
    """Give the seconds that widths are chosen for.

    Trials to come are counted like the mean of those that wait, or else of those that run. Where
    their number is unknown no end is in sight, and only what outlasts the others by far is wide.
    """
    known = list(queue) or [each.task for each in busy]
    if not known or not outlook.more_to_come:
        return common_deadline(priced, total)
    mean = statistics.fmean(task.seconds[0] * task.widths[0] * task.lanes for task in known)
    aim = common_deadline(priced, total, outlook.to_come * mean)
    if outlook.to_come:
        return aim
    return max(aim, OUTLASTS * statistics.median(task.seconds[0] for task in known))


def _drain_plan(
    waiting: Sequence[Task], busy: Sequence[RunningTask], outlook: PlanningContext
) -> Plan:
    """Start nothing any more: no checkpoint could be reached."""
    left = max(outlook.time_left, 0.0)
    reason = f"no checkpoint can be reached in the {format_duration(left)} left"
    ends = max((each.seconds_left for each in busy), default=0.0)
    return Plan(held={task.name: reason for task in waiting}, ends_in=min(ends, left))
