"""Our planner beside simpler ones, on the same random work, in the same simulated machine.

8,192 hosts of 8 slots; work of the trials lognormal, 1-99 % quantiles 50 times apart; on p slots a
trial takes w (1 + a (p - 1)) / p, a lognormal around 0.00025 and different for each trial, at most
4,096 slots. The planner sees the work with a lognormal error of ``sigma`` and one mean a, until
2 % of a trial are measured: then its speed at the width it has, nothing else. A restart costs 60 s,
a trial that is to yield does so at its next checkpoint (every 60 s); events of 10 s are answered by
one decision. Work is scaled so that the Turek-Ludwig bound is 2 hours.

``bound_ratio`` is the makespan over that bound, ``useful`` one-slot work over slot-time, both means
over seeds. ``decision_ms``: one event, 2,000 trials queued, all of 9,408 x 8 slots taken but those
of one trial; ``replan_ms``: the same 2,000 on the empty machine. Both are CPU time (one thread), so
that work of others on this machine does not count. ``controller_cores`` is of ``rehearsal.py``,
which runs beside. ``--quick`` has one seed, and a quarter of the machine and of the trials where
there are 2,000; it is not recorded.
"""

import heapq
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from makespan_bound import least_makespan
from numpy.typing import NDArray
from record import finish, make_parser

from hydragnn_hpo.placement.planner import plan
from hydragnn_hpo.placement.pool import SlotPool
from hydragnn_hpo.placement.task import Plan, PlanningContext, RunningTask, StartTask, Task
from hydragnn_hpo.planning.simulator import (
    Decide,
    SimulatedWork,
    SimulationResult,
    SimulationSettings,
    simulate,
)

Floats = NDArray[np.float64]

BOUND = 7200.0
"""Seconds that the bound is scaled to: a restart of 60 s is 0.8 % of it."""
SPREAD, LOSS, LOSS_SPREAD, WIDEST = 50.0, 0.00025, 0.5, 4096
SIGMAS = {"0": 0.0, "025": 0.25, "07": 0.7}
MACHINE = SimulationSettings(
    hosts=8192,
    slots_per_host=8,
    hosts_per_group=128,
    restart_seconds=60.0,
    checkpoint_every=60.0,
    tick=10.0,
    efficiency_floor=0.4,
)
EQUAL = {200: 1024, 2000: 256}
"""Slots of the equal subsets: the best of the reference table (128 and 32 hosts)."""


def widths(most: int) -> tuple[int, ...]:
    """Return the widths a trial may have: all up to 32, then 16 steps to each doubling."""
    results = list(range(1, 33))
    step = 2
    while results[-1] < most:
        results += [results[-1] + step * count for count in range(1, 17)]
        step *= 2
    return tuple(width for width in results if width <= most)


def law(work: Floats, loss: Floats, slots: Floats) -> Floats:
    """Return the seconds that each trial takes on so many slots, [n, W]."""
    return work[:, None] * (1.0 + loss[:, None] * (slots - 1.0)) / slots


def trials(count: int, seed: int, sigma: float, slots: int) -> list[SimulatedWork]:
    """Draw the work of a campaign; its bound at the granularity of single slots is ``BOUND``."""
    draw = np.random.default_rng(seed)
    work = np.exp(draw.normal(0.0, np.log(SPREAD) / (2 * 2.326), count))
    loss = np.exp(draw.normal(np.log(LOSS), LOSS_SPREAD, count))
    error = np.exp(draw.normal(0.0, sigma, count))
    every = np.arange(1.0, WIDEST + 1.0)
    work *= BOUND / least_makespan(law(work, loss, every), every, slots)
    some = widths(WIDEST)
    true = law(work, loss, np.array(some, dtype=float))
    believed = law(work * error, np.full(count, loss.mean()), np.array(some, dtype=float))
    return [
        SimulatedWork(f"t{row:04}", some, tuple(true[row].tolist()), tuple(believed[row].tolist()))
        for row in range(count)
    ]


def first_that_fits(
    order: Sequence[Task], size: dict[str, int], pool: SlotPool, *, backfill: bool
) -> Plan:
    """Start trials in turn at given sizes; with ``backfill`` one that does not fit stops nobody."""
    room = pool.copy()
    starts = []
    for task in order:
        taken = room.take(size[task.name])
        if taken is None and (not backfill or not room.free):
            break
        if taken is not None:
            starts.append(StartTask(task.name, taken, size[task.name], ""))
    return Plan(tuple(starts))


def equal_waves(size: int) -> Decide:
    """Give equal subsets to as many as fit, and the next ones when all of them are done."""

    def decide(
        waiting: Sequence[Task], running: Sequence[RunningTask], pool: SlotPool, _: PlanningContext
    ) -> Plan:
        sizes = {task.name: size for task in waiting}
        return Plan() if running else first_that_fits(waiting, sizes, pool, backfill=False)

    return decide


def equal_first_come(size: int) -> Decide:
    """Give equal subsets in the order of arrival, whenever one is free: the reference's way."""

    def decide(
        waiting: Sequence[Task], _: Sequence[RunningTask], pool: SlotPool, __: PlanningContext
    ) -> Plan:
        sizes = {task.name: size for task in waiting}
        return first_that_fits(waiting, sizes, pool, backfill=False)

    return decide


def equal_longest_first(size: int) -> Decide:
    """Give equal subsets, the longest first."""

    def decide(
        waiting: Sequence[Task], _: Sequence[RunningTask], pool: SlotPool, __: PlanningContext
    ) -> Plan:
        order = sorted(waiting, key=lambda task: -task.at(size))
        sizes = {task.name: size for task in waiting}
        return first_that_fits(order, sizes, pool, backfill=False)

    return decide


def moldable(works: Sequence[SimulatedWork], slots: int) -> Decide:
    """Return widths of the best of several targets, longest first with backfill; never again."""
    some = np.array(works[0].widths)
    believed = np.array([work.planned_seconds() for work in works])
    bound = least_makespan(believed, some.astype(float), slots)
    best = None
    for factor in (0.1, 0.33, 0.5, 0.7, 0.85, 0.95, 1.0, 1.05, 1.1, 1.2, 1.35, 1.6, 2.0):
        enough = believed <= bound * factor
        columns = np.where(enough.any(axis=1), enough.argmax(axis=1), len(some) - 1)
        seconds = believed[np.arange(len(works)), columns]
        results = (list_makespan(seconds, some[columns], slots), seconds, some[columns])
        best = results if best is None or results[0] < 0.985 * best[0] else best
    assert best is not None
    names = [work.name for work in works]
    seconds_of = dict(zip(names, best[1].tolist(), strict=True))
    size = dict(zip(names, best[2].tolist(), strict=True))

    def decide(
        waiting: Sequence[Task], _: Sequence[RunningTask], pool: SlotPool, __: PlanningContext
    ) -> Plan:
        order = sorted(waiting, key=lambda task: -seconds_of[task.name])
        return first_that_fits(order, size, pool, backfill=True)

    return decide


def list_makespan(seconds: Floats, sizes: NDArray[np.int64], slots: int) -> float:
    """Return the makespan of longest first with backfill."""
    order = np.argsort(-seconds, kind="stable")
    waiting = [(seconds[row], int(sizes[row])) for row in order]
    free = slots
    now = 0.0
    running: list[tuple[float, int]] = []
    while waiting or running:
        left = []
        for length, size in waiting:
            if size <= free:
                free -= size
                heapq.heappush(running, (now + length, size))
            else:
                left.append((length, size))
        waiting = left
        now, size = heapq.heappop(running)
        free += size
    return now


@dataclass(frozen=True)
class Case:
    """One column of the table."""

    count: int
    sigma: str
    machine: SimulationSettings

    def policies(self, works: Sequence[SimulatedWork]) -> dict[str, Decide]:
        """Return the planners to compare; what plans by no prediction runs once."""
        size = EQUAL[self.count]
        result: dict[str, Decide] = {"ours": plan, "moldable": moldable(works, self.machine.slots)}
        result["longest_first"] = equal_longest_first(size)
        if self.sigma == "0":
            result |= {"waves": equal_waves(size), "first_come": equal_first_come(size)}
        return result


def run(case: Case, seeds: int, share: int) -> dict[str, float]:
    """Return the figures of one column, means over seeds."""
    outcome: dict[str, list[SimulationResult]] = {}
    for seed in range(seeds):
        works = trials(case.count // share, seed, SIGMAS[case.sigma], case.machine.slots)
        for name, decide in case.policies(works).items():
            outcome.setdefault(name, []).append(simulate(works, case.machine, decide=decide))
    tag = f"{case.count}_s{case.sigma}"
    figures = {}
    for name, results in outcome.items():
        assert not any(result.unfinished for result in results)
        ratio = statistics.fmean(result.makespan for result in results) / BOUND
        figures[f"bound_ratio_{tag}" if name == "ours" else f"{name}_{tag}"] = ratio
    ours = outcome["ours"]
    figures[f"worst_{tag}"] = max(result.makespan for result in ours) / BOUND
    figures[f"useful_{tag}"] = statistics.fmean(result.useful for result in ours)
    mean = statistics.fmean(result.restarts for result in ours)
    figures[f"restarts_{tag}"] = mean / (case.count // share)
    return figures


def decisions(turns: int, count: int = 2000, hosts: int = 9408) -> dict[str, float]:
    """Time one decision on the whole of Frontier: a full re-plan, and one after one event."""
    works = trials(count, 0, 0.25, hosts * 8)
    tasks = [Task(work.name, work.widths, work.planned_seconds()) for work in works]
    pool = SlotPool.of(f"n{host:05}:{slot}" for host in range(hosts) for slot in range(8))
    outlook = PlanningContext(restart_seconds=60.0, efficiency_floor=0.4)
    whole, one = [], []
    for _ in range(turns):
        started = time.process_time()
        first = plan(tasks, [], pool, outlook)
        whole.append(time.process_time() - started)
    by_name = {task.name: task for task in tasks}
    busy = []
    for start in first.starts[1:]:
        pool.claim(start.slots)
        task = replace(by_name[start.name], measured=True)
        busy.append(RunningTask(task, start.width, task.at(start.width) / 2))
    queued = [replace(task, name=f"q{task.name}") for task in tasks]
    for _ in range(turns):
        started = time.process_time()
        plan(queued, busy, pool, outlook)
        one.append(time.process_time() - started)
    return {
        "decision_ms": 1e3 * statistics.median(one),
        "decision_ms_max": 1e3 * max(one),
        "replan_ms": 1e3 * statistics.median(whole),
        "replan_ms_max": 1e3 * max(whole),
    }


class Rehearsal:
    """The rehearsal of the controller, in a process of its own."""

    def __init__(self, quick: bool) -> None:
        script = str(Path(__file__).with_name("rehearsal.py"))
        argv = [sys.executable, script, *(["--quick"] if quick else [])]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)

    def figures(self) -> dict[str, float]:
        """Wait for its end, and give what it found out about the controller."""
        output, _ = self.process.communicate()
        assert self.process.returncode == 0, output
        figures = json.loads(output.splitlines()[-1])
        kept = ("controller_cores", "records_per_second", "results_lost", "results_twice")
        return {key: figures[key] for key in kept}


def main() -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__, "a quarter of it, not recorded")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if options.smoke:
        result = run(Case(200, "0", replace(MACHINE, hosts=512)), 1, 10) | decisions(1, 20, 512)
        return finish(__file__, result, keep=False)
    rehearsal = Rehearsal(options.quick)
    figures = dict[str, float]()
    for count in (200, 2000):
        share = 4 if options.quick and count == 2000 else 1
        machine = replace(MACHINE, hosts=MACHINE.hosts // share)
        for sigma in SIGMAS:
            seeds = 1 if options.quick else options.seeds
            figures |= run(Case(count, sigma, machine), seeds, share)
    figures |= decisions(5 if options.quick else 25) | rehearsal.figures()
    return finish(__file__, figures, keep=not options.quick)


if __name__ == "__main__":
    main()
