"""Simulate a campaign: the real planner on a simulated machine, event by event."""

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hydragnn_hpo.layout import derive_seed
from hydragnn_hpo.placement import (
    Bar,
    Plan,
    PlanningContext,
    ResizeTask,
    RunningTask,
    SlotPool,
    StartTask,
    Task,
    plan,
)
from hydragnn_hpo.placement.task import What

CAUSES = ("training", "start-up", "tail", "held", "failures", "brain")
"""Uses of slot-seconds; they add up to all slot-seconds of a campaign.

``training``: training that was not lost. ``start-up``: of trials and of the machine. ``tail``: idle
as no trial waits and none is to come. ``held``: idle although trials wait, for more slots than are
free. ``failures``: training lost since the last checkpoint, and slots of failed hosts. ``brain``:
idle as no trial waits, but more will be proposed.
"""


@dataclass(frozen=True)
class SimulatedWork:
    """One trial of a simulated campaign: its true seconds, and those that the planner predicts."""

    name: str
    widths: tuple[int, ...]
    """Allowed numbers of ranks, ascending."""
    seconds: tuple[float, ...]
    """True seconds of the whole trial at each width, without start-up."""
    predicted: tuple[float, ...] = ()
    """Seconds of the whole trial that the planner assumes before its speed is measured; the true
    ones if empty."""
    lanes: int = 1
    """Slots that each of its ranks occupies."""

    def planned_seconds(self) -> tuple[float, ...]:
        """Return the seconds that the planner assumes before the trial's speed is measured.

        Returns:
            Seconds of the whole trial, in the order of ``widths``.
        """
        return self.predicted or self.seconds

    def true(self, width: int) -> float:
        """Return the true seconds of the whole trial at one of its widths."""
        return self.seconds[self.widths.index(width)]

    @property
    def useful(self) -> float:
        """Slot-seconds at its narrowest width, where communication costs least."""
        return self.seconds[0] * self.widths[0] * self.lanes


@dataclass(frozen=True)
class SimulationSettings:
    """Machine of a simulation and its behaviour; times are in seconds."""

    hosts: int
    slots_per_host: int
    hosts_per_group: int = 0
    slot_order: tuple[int, ...] = ()
    cold_seconds: float = 0.0
    """Time until the first trial can start: agents, environment, data on every host."""
    start_seconds: float = 0.0
    """Start-up of a trial, during which it holds all its slots."""
    restart_seconds: float = 10.0
    """Start-up of a trial that goes on from a checkpoint."""
    checkpoint_every: float = 60.0
    """Training time between checkpoints; a trial that must yield does so at the next one."""
    probe: float = 0.02
    """Share of a trial after which its speed is measured."""
    tick: float = 1.0
    """The planner runs once for all events within this time."""
    wave: int = 0
    """Number of waiting trials up to which the brain proposes more; 0: all trials wait from the
    start."""
    brain_seconds: float = 0.0
    """Time that the brain takes to propose trials."""
    wall_time: float = math.inf
    """Time of the end of the allocation, from its start."""
    failures: float = 0.0
    """Host failures per host and hour."""
    repair_seconds: float = math.inf
    """Time after which a failed host is usable again."""
    efficiency_floor: float = 0.5
    restarts: int = 3
    """Maximum number of restarts of one trial for a better width."""
    seed: int = 0
    """Seed of the random host failures."""

    @property
    def slots(self) -> int:
        """Slots of the whole machine."""
        return self.hosts * self.slots_per_host


@dataclass(frozen=True)
class SimulationResult:
    """Result of a simulated campaign."""

    bars: tuple[Bar, ...]
    """Bars of all trials, in the order in which attempts ended."""
    makespan: float
    """Seconds from the start of the simulation to its last event."""
    slots: int
    spent: Mapping[str, float]
    """Slot-seconds by cause, see ``CAUSES``; their sum is ``slots * makespan``."""
    useful_seconds: float
    """Slot-seconds that the finished work takes at the narrowest widths."""
    restarts: int
    """Restarts for a better width, all trials together."""
    failed_hosts: int = 0
    unfinished: Mapping[str, float] = field(default_factory=dict)
    """Share left, 0 to 1, of each trial that did not finish, by name."""

    @property
    def useful(self) -> float:
        """Share of all slot-seconds that the work takes at the narrowest widths, 0 to 1."""
        return self.useful_seconds / max(self.slots * self.makespan, 1e-9)

    @property
    def shares(self) -> dict[str, float]:
        """Return the share of slot-seconds by cause.

        Returns:
            Shares by cause of ``CAUSES``, 0 to 1; they sum to 1.
        """
        whole = max(self.slots * self.makespan, 1e-9)
        return {cause: self.spent.get(cause, 0.0) / whole for cause in CAUSES}

    @property
    def widths(self) -> dict[str, int]:
        """Return the number of slots in each trial's last training.

        Returns:
            Number of slots by trial.
        """
        return {bar.trial: len(bar.slots) for bar in self.bars if bar.what == "training"}


class SimulatedTrial:
    """A trial of the simulation: its true state, and the task that the planner sees."""

    def __init__(self, work: SimulatedWork) -> None:
        """Start with nothing done."""
        self.work = work
        self.name = work.name
        self.done, self.attempts, self.resized = 0.0, 0, 0
        self.requested_width: int | None = None
        self.slots: tuple[str, ...] = ()
        self.hosts: frozenset[str] = frozenset()
        self.started = self.setup = self.whole = self.end = 0.0
        self.width = 0
        self._known = Task(self.name, work.widths, work.planned_seconds(), lanes=work.lanes)

    def start(self, now: float, setup: float, width: int, slots: tuple[str, ...]) -> None:
        """Start an attempt.

        Args:
            now: seconds since the simulation began.
            setup: seconds until it trains.
            width: ranks.
            slots: ``host:number`` each.
        """
        self.attempts += 1
        self.requested_width = None
        self.started, self.setup, self.width, self.slots = now, setup, width, slots
        self.hosts = frozenset(name.rpartition(":")[0] for name in slots)
        self.whole = self.work.true(width)
        self.end = now + setup + (1.0 - self.done) * self.whole

    def time_of(self, done: float) -> float:
        """Return the time at which a share of the trial, 0 to 1, is done."""
        return self.started + self.setup + (done - self.done) * self.whole

    def done_at(self, time: float) -> float:
        """Return the share of the trial that is done at a time of its attempt."""
        return min(1.0, self.done + max(0.0, time - self.started - self.setup) / self.whole)

    def last_checkpoint(self, now: float, every: float) -> float:
        """Return the time of the last checkpoint."""
        trained = max(0.0, now - self.started - self.setup)
        return self.started + self.setup + math.floor(trained / every) * every

    def next_checkpoint(self, now: float, every: float) -> float:
        """Return the time of the next checkpoint."""
        trained = max(0.0, now - self.started - self.setup)
        return self.started + self.setup + max(1, math.ceil(trained / every)) * every

    def measure(self) -> None:
        """Scale the predicted seconds so that they are true at the present width."""
        known = self._known
        factor = self.whole / known.at(self.width)
        if factor != 1.0:
            seconds = tuple(factor * each for each in known.seconds)
            known = replace(known, seconds=seconds)
        self._known = replace(known, measured=True)

    def task(self) -> Task:
        """Return the task that the planner sees while the trial waits."""
        left = 1.0 - self.done
        seconds = self._known.seconds
        if self.done:
            seconds = tuple(left * each for each in seconds)
        elif self.requested_width is None and not self.resized:
            return self._known
        return replace(
            self._known,
            seconds=seconds,
            restarts=self.resized,
            requested_width=self.requested_width,
        )

    def running(self, now: float, every: float) -> RunningTask:
        """Return the task that the planner sees while the trial runs.

        Args:
            now: seconds since the simulation began.
            every: seconds of training between checkpoints.
        """
        if (
            self.requested_width != self._known.requested_width
            or self.resized != self._known.restarts
        ):
            self._known = replace(
                self._known, requested_width=self.requested_width, restarts=self.resized
            )
        trained = now - self.started - self.setup
        left = (1.0 - self.done) * self._known.at(self.width)
        if trained < 0.0:
            return RunningTask(self._known, self.width, left - trained, stoppable=False)
        # A running trial is not done, even if its predicted time is over.
        left = max(left - trained, 0.01 * left)
        wait = self.next_checkpoint(now, every) - now
        return RunningTask(self._known, self.width, left, self.requested_width is None, wait)


def draw_error(seed: int, trial: str, spread: float) -> float:
    """Draw a trial's true over predicted seconds, lognormal; the same at each call.

    Args:
        seed: seed of the campaign.
        trial: name of the trial.
        spread: standard deviation of the factor's logarithm.
    """
    draws = np.random.default_rng(derive_seed(seed, trial, "forecast"))
    return math.exp(spread * float(draws.standard_normal()))


Decide = Callable[[Sequence[Task], Sequence[RunningTask], SlotPool, PlanningContext], Plan]
Promote = Callable[[str, float], Iterable[SimulatedWork]]


def simulate(
    works: Sequence[SimulatedWork],
    setting: SimulationSettings,
    *,
    decide: Decide = plan,
    promote: Promote | None = None,
) -> SimulationResult:
    """Run all trials to their ends on a machine.

    Args:
        works: the trials, in the order in which they are proposed.
        setting: the machine.
        decide: the planner.
        promote: returns the trials to queue after one ended, from its name and time of end.
    """
    simulation = _Simulation(works, setting, decide, promote)
    simulation.run()
    return simulation.result()


class _Simulation:
    """State of a simulation: clock, machine and trials."""

    def __init__(
        self,
        works: Sequence[SimulatedWork],
        setting: SimulationSettings,
        decide: Decide,
        promote: Promote | None,
    ) -> None:
        self.setting, self.decide, self.promote = setting, decide, promote
        self.now, self.planned, self.brain_is_asked = 0.0, False, False
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.order = 0
        self.to_come = list(reversed(works))
        self.waiting: dict[str, SimulatedTrial] = {}
        self.running: dict[str, SimulatedTrial] = {}
        self.trials: list[SimulatedTrial] = []
        self.bars: list[Bar] = []
        self.spent = dict.fromkeys(CAUSES, 0.0)
        self.failed = 0
        self.draining = False
        self.consulted = False
        """Whether no event happened since the last call of the planner."""
        hosts = {f"n{host:05}": range(setting.slots_per_host) for host in range(setting.hosts)}
        self.pool = SlotPool(
            hosts, hosts_per_group=setting.hosts_per_group, slot_order=setting.slot_order
        )
        self.free = self.total = self.pool.total
        self.draws = np.random.default_rng(setting.seed)

    # -- the clock -------------------------------------------------------------------

    def run(self) -> None:
        """Process events until nothing more happens or the wall time is over."""
        self.at(self.setting.cold_seconds, self.propose)
        if math.isfinite(self.setting.wall_time):
            self.at(self.setting.wall_time - self.setting.checkpoint_every, self.drain)
        self.fail_later()
        while self.queue and not self.over():
            time, _, act = heapq.heappop(self.queue)
            if time > self.setting.wall_time:
                self.cut()
                break
            self.idle(time)
            self.consulted = False
            act()

    def over(self) -> bool:
        """Check whether nothing more will happen to any trial."""
        if self.running:
            return False
        whole = self.total == self.setting.slots
        stuck = self.consulted and not self.to_come and whole
        return self.draining or stuck or not (self.to_come or self.waiting)

    def at(self, time: float, act: Callable[[], None]) -> None:
        """Schedule an action at a time, or now if that is past."""
        self.order += 1
        heapq.heappush(self.queue, (max(time, self.now), self.order, act))

    def schedule_while_running(
        self, trial: SimulatedTrial, time: float, act: Callable[[SimulatedTrial], None]
    ) -> None:
        """Schedule an action that is skipped if the trial's present attempt has ended by then.

        Args:
            trial: a running trial.
            time: seconds since the simulation began.
            act: the action; called with the trial.
        """
        attempt = trial.attempts

        def act_if_running() -> None:
            if trial.attempts == attempt and trial.name in self.running:
                act(trial)

        self.at(time, act_if_running)

    def idle(self, time: float) -> None:
        """Advance the clock, and add the idle slot-seconds since then to their cause."""
        passed, self.now = time - self.now, time
        self.spent["failures"] += (self.setting.slots - self.total) * passed
        if time <= self.setting.cold_seconds:
            cause = "start-up"
        elif self.waiting:
            cause = "held"
        else:
            cause = "brain" if self.to_come else "tail"
        self.spent[cause] += self.free * passed

    # -- deciding --------------------------------------------------------------------

    def propose(self) -> None:
        """Queue what the brain proposes."""
        self.brain_is_asked = False
        wanted = self.setting.wave - len(self.waiting) if self.setting.wave else len(self.to_come)
        for _ in range(min(wanted, len(self.to_come))):
            self.enter(self.to_come.pop())
        self.soon()

    def enter(self, work: SimulatedWork) -> None:
        """Queue a trial for its first start."""
        trial = SimulatedTrial(work)
        self.trials.append(trial)
        self.waiting[work.name] = trial

    def soon(self) -> None:
        """Schedule one call of the planner for all events within a tick."""
        if not self.planned:
            self.planned = True
            self.at(self.now + self.setting.tick, self.consult)

    def consult(self) -> None:
        """Call the planner and carry out its plan; then schedule the brain if few trials wait."""
        self.planned = False
        if self.draining:
            return
        decided = self.decide(
            [trial.task() for trial in self.waiting.values()],
            [
                trial.running(self.now, self.setting.checkpoint_every)
                for trial in self.running.values()
            ],
            self.pool,
            self.outlook(),
        )
        for start in decided.starts:
            self.start(start)
        for resize in decided.resizes:
            self.ask_to_yield(resize)
        few = len(self.waiting) < self.setting.wave
        self.consulted = True
        if self.to_come and few and not self.brain_is_asked:
            self.brain_is_asked = True
            self.at(self.now + self.setting.brain_seconds, self.propose)

    def outlook(self) -> PlanningContext:
        """Return the planning context at the present time."""
        setting = self.setting
        return PlanningContext(
            restart_seconds=setting.restart_seconds,
            checkpoint_seconds=max(setting.start_seconds, setting.restart_seconds)
            + setting.checkpoint_every,
            time_left=setting.wall_time - self.now,
            more_to_come=bool(self.to_come),
            to_come=len(self.to_come),
            efficiency_floor=setting.efficiency_floor,
            restarts=setting.restarts,
        )

    # -- trials ----------------------------------------------------------------------

    def start(self, start: StartTask) -> None:
        """Start an attempt of a waiting trial and schedule its measurement and its end."""
        trial = self.waiting.pop(start.name)
        self.pool.claim(start.slots)
        self.free -= len(start.slots)
        self.running[start.name] = trial
        setup = self.setting.restart_seconds if trial.attempts else self.setting.start_seconds
        trial.start(self.now, setup, start.width, start.slots)
        self.schedule_while_running(trial, trial.end, self.end)
        probed = trial.time_of(trial.done + self.setting.probe)
        if probed < trial.end:
            self.schedule_while_running(trial, probed, self.measure)

    def measure(self, trial: SimulatedTrial) -> None:
        """Report the speed of an attempt to the planner."""
        trial.measure()
        self.soon()

    def ask_to_yield(self, resize: ResizeTask) -> None:
        """Stop an attempt at its next checkpoint, to go on at another width."""
        trial = self.running[resize.name]
        trial.requested_width = resize.width
        stop = trial.next_checkpoint(self.now, self.setting.checkpoint_every)
        if stop < trial.end:
            self.schedule_while_running(trial, stop, self.requeue)

    def requeue(self, trial: SimulatedTrial) -> None:
        """End an attempt at a checkpoint and queue the trial again."""
        trial.resized += 0 if self.draining else 1
        self.leave(trial, self.now)
        self.waiting[trial.name] = trial
        self.soon()

    def end(self, trial: SimulatedTrial) -> None:
        """Free the slots of a trial that is done."""
        self.leave(trial, self.now)
        trial.done = 1.0
        for work in self.promote(trial.name, self.now) if self.promote else ():
            self.enter(work)
        self.soon()

    def leave(self, trial: SimulatedTrial, kept: float) -> None:
        """End an attempt; its training after the time ``kept`` is lost."""
        trained = min(trial.started + trial.setup, self.now)
        kept = min(max(kept, trained), self.now)
        self.add_bar(trial, trial.started, trained, "start-up")
        self.add_bar(trial, trained, kept, "training")
        self.add_bar(trial, kept, self.now, "lost")
        trial.done = trial.done_at(kept)
        del self.running[trial.name]
        self.pool.give_back(trial.slots)
        self.free = self.pool.free
        trial.slots = ()

    def add_bar(self, trial: SimulatedTrial, start: float, end: float, what: What) -> None:
        """Record a span of a trial, and add its slot-seconds to their cause.

        Args:
            trial: the trial that holds the slots.
            start: seconds since the simulation began.
            end: seconds since the simulation began; nothing is recorded unless ``end > start``.
            what: ``start-up``, ``training`` or ``lost``.
        """
        if end > start:
            bar = Bar(trial.name, trial.slots, start, end, what)
            self.bars.append(bar)
            self.spent["failures" if what == "lost" else what] += bar.slot_seconds

    # -- hosts -----------------------------------------------------------------------

    def fail_later(self) -> None:
        """Draw the time of the next host failure."""
        rate = self.setting.failures * self.setting.hosts / 3600.0
        if rate > 0.0:
            self.at(self.now + float(self.draws.exponential(1.0 / rate)), self.fail)

    def fail(self) -> None:
        """Lose a host; its trials go back to their last checkpoints."""
        host = f"n{int(self.draws.integers(self.setting.hosts)):05}"
        if self.total or math.isfinite(self.setting.repair_seconds):
            self.fail_later()
        if host not in self.pool.hosts:
            return
        self.failed += 1
        for trial in [t for t in self.running.values() if host in t.hosts]:
            kept = trial.last_checkpoint(self.now, self.setting.checkpoint_every)
            self.leave(trial, kept)
            trial.requested_width = None
            self.waiting[trial.name] = trial
        self.pool.close_host(host)
        self.free, self.total = self.pool.free, self.pool.total
        if math.isfinite(self.setting.repair_seconds):
            self.at(self.now + self.setting.repair_seconds, lambda: self.repair(host))
        self.soon()

    def repair(self, host: str) -> None:
        """Return a failed host to the pool."""
        self.pool.add_host(host, ())
        self.free, self.total = self.pool.free, self.pool.total
        self.soon()

    def drain(self) -> None:
        """Stop all running trials at their next checkpoints: the allocation is about to end."""
        self.draining = True
        for trial in self.running.values():
            self.ask_to_yield(ResizeTask(trial.name, trial.width, "the allocation ends"))

    def cut(self) -> None:
        """End trials that still run at the wall time; training after a checkpoint is lost."""
        if self.running:
            self.idle(self.setting.wall_time)
        for trial in list(self.running.values()):
            self.leave(trial, trial.last_checkpoint(self.now, self.setting.checkpoint_every))

    # -- the result ------------------------------------------------------------------

    def result(self) -> SimulationResult:
        """Return what was recorded."""
        return SimulationResult(
            bars=tuple(self.bars),
            makespan=self.now,
            slots=self.setting.slots,
            spent=self.spent,
            useful_seconds=sum(trial.done * trial.work.useful for trial in self.trials),
            restarts=sum(trial.resized for trial in self.trials),
            failed_hosts=self.failed,
            unfinished={t.name: 1.0 - t.done for t in self.trials if t.done < 1.0},
        )
