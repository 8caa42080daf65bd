"""Run a campaign in no time: the real planner on a simulated machine, event by event."""

import heapq
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from hydragnn_hpo.placement.planner import plan
from hydragnn_hpo.placement.pool import Pool
from hydragnn_hpo.placement.simulated import CAUSES, Bar, Setting, Simulated, What, Work
from hydragnn_hpo.placement.simulated_trial import SimulatedTrial
from hydragnn_hpo.placement.task import Outlook, Plan, Resize, Running, Start, Task

Decide = Callable[[Sequence[Task], Sequence[Running], Pool, Outlook], Plan]
Promote = Callable[[str, float], Iterable[Work]]


def simulate(
    works: Sequence[Work],
    setting: Setting,
    *,
    decide: Decide = plan,
    promote: Promote | None = None,
) -> Simulated:
    """Run all trials to their ends on a machine.

    Args:
        works: the trials, in the order in which they are proposed.
        setting: the machine.
        decide: the planner.
        promote: gives what a trial that ended, and when, is followed by.
    """
    simulation = _Simulation(works, setting, decide, promote)
    simulation.run()
    return simulation.result()


class _Simulation:
    """The clock, the machine and the trials."""

    def __init__(
        self, works: Sequence[Work], setting: Setting, decide: Decide, promote: Promote | None
    ) -> None:
        self.setting, self.decide, self.promote = setting, decide, promote
        self.now, self.planned, self.asked = 0.0, False, False
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.order = 0
        self.to_come = list(reversed(works))
        self.waiting: dict[str, SimulatedTrial] = {}
        self.running: dict[str, SimulatedTrial] = {}
        self.trials: list[SimulatedTrial] = []
        self.bars: list[Bar] = []
        self.spent = dict.fromkeys(CAUSES, 0.0)
        self.decisions = self.failed = 0
        self.draining = False
        self.consulted = False
        """Whether nothing happened since the planner was asked."""
        hosts = {f"n{host:05}": range(setting.slots_per_host) for host in range(setting.hosts)}
        self.pool = Pool(
            hosts, hosts_per_group=setting.hosts_per_group, slot_order=setting.slot_order
        )
        self.free = self.total = self.pool.total
        self.draws = np.random.default_rng(setting.seed)

    # -- the clock -------------------------------------------------------------------

    def run(self) -> None:
        """Let everything happen."""
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
        """Tell whether nothing more will happen to any trial."""
        if self.running:
            return False
        whole = self.total == self.setting.slots
        stuck = self.consulted and not self.to_come and whole
        return self.draining or stuck or not (self.to_come or self.waiting)

    def at(self, time: float, act: Callable[[], None]) -> None:
        """Let something happen at a time."""
        self.order += 1
        heapq.heappush(self.queue, (max(time, self.now), self.order, act))

    def idle(self, time: float) -> None:
        """Let time pass, and write down why free slots were idle meanwhile."""
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
        """Take in what the brain answers."""
        self.asked = False
        wanted = self.setting.wave - len(self.waiting) if self.setting.wave else len(self.to_come)
        for _ in range(min(wanted, len(self.to_come))):
            self.enter(self.to_come.pop())
        self.soon()

    def enter(self, work: Work) -> None:
        """Let a trial wait for its first start."""
        trial = SimulatedTrial(work)
        self.trials.append(trial)
        self.waiting[work.name] = trial

    def soon(self) -> None:
        """Ask the planner, once for all that happens within a tick."""
        if not self.planned:
            self.planned = True
            self.at(self.now + self.setting.tick, self.consult)

    def consult(self) -> None:
        """Ask the planner and do what it says."""
        self.planned = False
        if self.draining:
            return
        self.decisions += 1
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
        if self.to_come and few and not self.asked:
            self.asked = True
            self.at(self.now + self.setting.brain_seconds, self.propose)

    def outlook(self) -> Outlook:
        """Say what the planner must know beside tasks and slots."""
        setting = self.setting
        return Outlook(
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

    def start(self, start: Start) -> None:
        """Start an attempt."""
        trial = self.waiting.pop(start.name)
        self.pool.claim(start.slots)
        self.free -= len(start.slots)
        self.running[start.name] = trial
        setup = self.setting.restart_seconds if trial.attempts else self.setting.start_seconds
        trial.start(self.now, setup, start.width, start.slots)
        attempt = trial.attempts
        self.at(trial.end, lambda: self.ended(trial, attempt))
        probed = trial.time_of(trial.done + self.setting.probe)
        if probed < trial.end:
            self.at(probed, lambda: self.measured(trial, attempt))

    def measured(self, trial: SimulatedTrial, attempt: int) -> None:
        """Learn the speed of an attempt."""
        if trial.attempts == attempt and trial.name in self.running:
            trial.measure()
            self.soon()

    def ask_to_yield(self, resize: Resize) -> None:
        """Let a trial end its attempt at its next checkpoint, and go on at another width."""
        trial = self.running[resize.name]
        trial.wished = resize.width
        stop = trial.next_checkpoint(self.now, self.setting.checkpoint_every)
        attempt = trial.attempts
        if stop < trial.end:
            self.at(stop, lambda: self.yielded(trial, attempt))

    def yielded(self, trial: SimulatedTrial, attempt: int) -> None:
        """Take a trial back that ended its attempt at a checkpoint."""
        if trial.attempts == attempt and trial.name in self.running:
            trial.resized += 0 if self.draining else 1
            self.leave(trial, self.now)
            self.waiting[trial.name] = trial
            self.soon()

    def ended(self, trial: SimulatedTrial, attempt: int) -> None:
        """Take the slots back of a trial that is done."""
        if trial.attempts != attempt or trial.name not in self.running:
            return
        self.leave(trial, self.now)
        trial.done = 1.0
        for work in self.promote(trial.name, self.now) if self.promote else ():
            self.enter(work)
        self.soon()

    def leave(self, trial: SimulatedTrial, kept: float) -> None:
        """End an attempt; what it trained after the time ``kept`` is lost."""
        trained = min(trial.started + trial.setup, self.now)
        kept = min(max(kept, trained), self.now)
        self.bar(trial, trial.started, trained, "start-up")
        self.bar(trial, trained, kept, "training")
        self.bar(trial, kept, self.now, "lost")
        trial.done = trial.done_at(kept)
        del self.running[trial.name]
        self.pool.give_back(trial.slots)
        self.free = self.pool.free
        trial.slots = ()

    def bar(self, trial: SimulatedTrial, start: float, end: float, what: What) -> None:
        """Write down what a trial did for a while."""
        if end > start:
            bar = Bar(trial.name, trial.slots, start, end, what)
            self.bars.append(bar)
            self.spent["failures" if what == "lost" else what] += bar.slot_seconds

    # -- hosts -----------------------------------------------------------------------

    def fail_later(self) -> None:
        """Draw when the next host fails."""
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
            trial.wished = None
            self.waiting[trial.name] = trial
        self.pool.close_host(host)
        self.free, self.total = self.pool.free, self.pool.total
        if math.isfinite(self.setting.repair_seconds):
            self.at(self.now + self.setting.repair_seconds, lambda: self.repair(host))
        self.soon()

    def repair(self, host: str) -> None:
        """Use a host again."""
        self.pool.add_host(host, ())
        self.free, self.total = self.pool.free, self.pool.total
        self.soon()

    def drain(self) -> None:
        """Ask everybody to end at the next checkpoint: the allocation is about to end."""
        self.draining = True
        for trial in self.running.values():
            self.ask_to_yield(Resize(trial.name, trial.width, "the allocation ends"))

    def cut(self) -> None:
        """End what a planner let run up to the end of the allocation."""
        if self.running:
            self.idle(self.setting.wall_time)
        for trial in list(self.running.values()):
            self.leave(trial, trial.last_checkpoint(self.now, self.setting.checkpoint_every))

    # -- the result ------------------------------------------------------------------

    def result(self) -> Simulated:
        """Give what was written down, up to the last end."""
        return Simulated(
            bars=tuple(self.bars),
            makespan=self.now,
            slots=self.setting.slots,
            spent=self.spent,
            useful_seconds=sum(trial.done * trial.work.useful for trial in self.trials),
            restarts=sum(trial.resized for trial in self.trials),
            failed_hosts=self.failed,
            decisions=self.decisions,
            unfinished={t.name: 1.0 - t.done for t in self.trials if t.done < 1.0},
        )
