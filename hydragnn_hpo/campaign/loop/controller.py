"""The loop: ask the brain, price, place, launch, watch, tell.

One thread decides; the journal is written before anything is acted on.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hydragnn_hpo.campaign.backends import OUTLIVES
from hydragnn_hpo.campaign.lease import DRAINED, FAILED, FINISHED, PAUSED, Lease
from hydragnn_hpo.campaign.loop.attempts import PATIENCE_SECONDS, Attempts
from hydragnn_hpo.campaign.loop.book import Book
from hydragnn_hpo.campaign.loop.dispatch import Dispatch
from hydragnn_hpo.campaign.loop.errand import Errand, Errands, run_here
from hydragnn_hpo.campaign.loop.ladder import Ladder
from hydragnn_hpo.campaign.loop.metering import Metering
from hydragnn_hpo.campaign.loop.pause import NEVER, Drained, Pause
from hydragnn_hpo.campaign.loop.proposals import Proposals
from hydragnn_hpo.campaign.loop.reseeding import Reseeding
from hydragnn_hpo.campaign.loop.roster import Roster
from hydragnn_hpo.campaign.loop.steering import Steering
from hydragnn_hpo.campaign.records.software import opened_with
from hydragnn_hpo.campaign.records.state import State, Trial
from hydragnn_hpo.campaign.setup import tidy
from hydragnn_hpo.campaign.work import Work, work_of
from hydragnn_hpo.config.campaign import CampaignConfig
from hydragnn_hpo.config.machine import find_profile
from hydragnn_hpo.errors import JobError, StorageError
from hydragnn_hpo.launching.job import Backend, Event
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.placement.task import Plan
from hydragnn_hpo.walltime import WallTime

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2
TURN_SECONDS = 0.02
PLANNING_SHARE = 0.1
"""Most of the controller's time that goes into plans."""

PLAN_SECONDS = 5.0
"""A plan is made again after so long even if nothing happened: predictions come due."""

HOST_SECONDS = 600.0
"""How long a campaign waits for its first host, and for hosts that what waits could start on."""

GATHERING_SECONDS = 2.0
"""Once nobody has joined for so long those who are there begin."""

Watch = Callable[[State, "Controller"], None]


class Controller:
    """Runs one campaign in one run directory."""

    def __init__(
        self,
        config: CampaignConfig,
        run: RunDir,
        *,
        cards: Mapping[Path, str],
        make_backend: Callable[[], Backend],
        watch: Watch = lambda *_: None,
        pause: Pause = NEVER,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Take the run directory.

        Args:
            config: the campaign.
            run: its directory, opened by ``setup.open_run``.
            cards: path of each data set's card, and its name, which is the store's too.
            make_backend: starts the backend.
            watch: called after each turn with the state, for a display.
            pause: looked at in each turn.
            clock: gives seconds since the epoch.

        Raises:
            RunError: another controller is at work there, or its journal is damaged.
        """
        self.config, self.run_dir = config, run
        self.watch, self.pause = watch, pause
        self.lease = Lease(run.path)
        tidy(run, trials_may_live=config.machine.backend == OUTLIVES)
        self.book = Book(run.journal, self.lease.epoch, clock, self.lease.renew)
        self.state = self.book.state
        self.walltime = WallTime.of(os.environ)
        self.backend = make_backend()
        self.ready, self.stopping, self._left = False, False, FAILED
        self.ends_in: float | None = None
        """Predicted seconds until all trials that are known have ended."""
        self.errands = Errands(run.path, self.lease.epoch, self._send)
        self._plan_due, self._heard, self._idle_since = 0.0, 0.0, math.inf
        self._adopted, self._unheard = set[str](), list[Event]()
        self._assemble(work_of(config, run, cards))

    def _assemble(self, work: Work) -> None:
        config, run, book = self.config, self.run_dir, self.book
        self.work = work
        self.dispatch = Dispatch(config, run, work, find_profile(config.machine.profile))
        self.proposals = Proposals(config, book, self.dispatch, configure=work.configure)
        self.attempts = Attempts(
            config, run, book, self.dispatch, self.backend, tell=self.proposals.tell
        )
        self.ladder = Ladder(config.search, book)
        self.reseeding = Reseeding(config.ensemble.reseed, book, self.proposals)
        self.roster = Roster(book, self.dispatch)
        self.metering = Metering(book, lambda: self.backend.slots)
        self.steering = Steering(run, book, self.attempts)

    def run(self) -> State:
        """Run the campaign to the end of its last rung.

        Raises:
            JobError: trials fail alike, or none has a result.
            StorageError: the disk is full; the trials that ran may go on.
            ConfigError: the space does not fit the data.
            KeyboardInterrupt: a person asked for a pause; checkpoints are written first.
            Drained: the allocation ends before the campaign does. What runs on hosts of other
                allocations goes on; whoever takes over has a lease's time to adopt it.
        """
        try:
            self._open()
            while not self._done():
                self._turn()
            self.metering.flush()
        except Drained:
            self._left = DRAINED
            self._rest("walltime", spare=self.backend.guests)
            raise
        except (KeyboardInterrupt, JobError, StorageError) as why:
            self._left = PAUSED if isinstance(why, KeyboardInterrupt) else FAILED
            self._rest("paused")
            raise
        return self.state

    @property
    def slots(self) -> int:
        """Slots that can be used now, taken or free."""
        return self.dispatch.pool.total

    def finish(self) -> None:
        """Write down that the ensemble is built: a further ``run`` has nothing to do."""
        self.book.note("finished")
        self._left = FINISHED

    def close(self) -> None:
        """Keep what was learnt, end the backend, and give the lease back."""
        self.proposals.close()
        if self.attempts.started:
            self.dispatch.costs.save(self.run_dir.costs)
        self.backend.close()
        self.book.close()
        self.lease.release(self._left)

    def job(self, kind: str, spec: dict[str, Any]) -> Any:
        """Run one job that is not a trial, on one slot, and give its answer.

        One whose host is lost is sent again, to another host where there is one.

        Raises:
            JobError: it ended without an answer.
            ConfigError: its answer is an error for the user.
        """
        answer = self.errands.answer(kind, spec)
        self.metering.flush()
        return answer

    def _send(self, errand: Errand, spec: dict[str, Any], hosts: list[str]) -> Mapping[str, Any]:
        """Run an errand on a host, one that had no try if there is one, and say how it ended."""
        if not self.config.machine.shared_files:  # other hosts would not see its files
            return run_here(errand, spec)
        self._wait_for_hosts()
        bad = self.state.hosts.quarantined
        slot = min(self.backend.slots, key=lambda s: (s.host in bad, hosts.count(s.host)))
        hosts.append(slot.host)
        self.backend.start(errand.job(spec, slot))
        while True:
            for event in self._wait():
                if event.kind == "ended" and event.job == errand.name:
                    return event.data
            self.watch(self.state, self)

    # -- opening ---------------------------------------------------------------------

    def _open(self) -> None:
        self.work.prepare(self.job)
        stats = self.work.stats
        units = {name: target["unit"] for name, target in stats.get("targets", {}).items()}
        self._wait_for_hosts()
        self.dispatch.settle(stats, self.backend.slots)
        slots = sorted(slot.name for slot in self.backend.slots)
        known: dict[str, Any] = {"data": stats.get("checksum"), "software": opened_with()}
        self.book.note("opened", units=units, slots=slots, **known)
        self.proposals.wake()
        self.dispatch.lay_out(self.backend.slots, self.state)
        self._recover()

    def _wait_for_hosts(self) -> None:
        """Wait for the first host, and for those that come on its heels."""
        seen, now = len(self.backend.slots), time.monotonic()
        changed, deadline = now, now + HOST_SECONDS
        if seen:
            return
        while not seen or now < changed + GATHERING_SECONDS:
            if now > deadline and not seen:
                raise JobError(f"no host joined within {HOST_SECONDS:.0f} s: see the agents' logs.")
            self._wait()
            self.watch(self.state, self)
            now = time.monotonic()
            if len(self.backend.slots) != seen:
                seen, changed = len(self.backend.slots), now

    def _recover(self) -> None:
        """Take over what a lost controller left running, or queue it again."""
        for trial in self.state.with_status("running"):
            folder = self.run_dir.trial(trial.name).attempt(trial.attempt)
            if (folder / "result.json").exists():
                self.attempts.end(trial)
        while self._orphans() and not self.backend.settled:
            self._hear()
            self.watch(self.state, self)
        self._hear()
        for trial in self._orphans():
            self.attempts.end(trial)

    def _orphans(self) -> list[Any]:
        running = self.state.with_status("running")
        return [trial for trial in running if trial.job not in self._adopted]

    # -- one turn --------------------------------------------------------------------

    def _turn(self) -> None:
        if self.time_left <= 0.0:  # ranks know it, too; this is for those that do not
            raise Drained("the allocation ends")
        if self.attempts.trouble is not None:
            raise self.attempts.trouble
        self.proposals.turn()
        self.ladder.climb(exhausted=self.proposals.exhausted)
        self.reseeding.turn()
        for trial in self._leaving():
            self.attempts.ask(trial, "walltime")
        self._place()
        self.attempts.launch()
        self._hear()
        self.roster.judge()
        self.steering.turn()
        self.watch(self.state, self)

    def _place(self) -> None:
        """Plan anew when something happened, or predictions came due; never too often."""
        now = time.monotonic()
        waits = self.state.count("queued") > 0 or self.attempts.news
        if not self.ready or now < self._plan_due or self.attempts.to_launch:
            return
        if not waits and now < self._plan_due + PLAN_SECONDS:
            return
        self.attempts.news = False
        plan = self.dispatch.decide(
            self.state,
            now=self.book.clock(),
            to_come=self.proposals.to_come,
            time_left=self.time_left,
        )
        self.ends_in = plan.ends_in
        self._plan_due = now + (time.monotonic() - now) / PLANNING_SHARE
        self.attempts.follow(plan)
        if plan.starts or self.state.count("running"):
            self._idle_since = math.inf
        else:
            self._see_whether_to_wait(plan, now)

    @property
    def time_left(self) -> float:
        """Seconds until the allocation must be drained; infinity where nobody says."""
        end = min(self.walltime.end, self.backend.ends_at)
        return end - self.book.clock() - self.walltime.least_margin

    def _leaving(self) -> list[Trial]:
        """Give the trials whose hosts are taken from us: other allocations have their own ends."""
        now = self.book.clock() + self.walltime.least_margin
        profile = self.dispatch.profile
        checkpoint = profile.start_seconds + profile.restart_seconds
        return self.roster.leave(now, checkpoint=checkpoint)

    def _see_whether_to_wait(self, plan: Plan, now: float) -> None:
        """Wait, when nothing runs and nothing can start, for hosts, but not for ever."""
        if self.time_left < self.dispatch.profile.restart_seconds:
            raise Drained("the allocation ends: what is left would not reach a checkpoint")
        self._idle_since = min(self._idle_since, now) if plan.held else math.inf
        if now - self._idle_since > HOST_SECONDS:
            trial, why = next(iter(plan.held.items()))
            raise JobError(
                f"nothing could start for {HOST_SECONDS:.0f} s: {trial} {why}; give the campaign "
                "more slots, or cancel the trial."
            )

    def _hear(self) -> None:
        """Take in what happened since the last turn; ends are durable before they are acted on."""
        events, self._unheard = [*self._unheard, *self._listen()], []
        joined = set()
        for event in events:
            if event.kind == "host_joined":
                joined.add(event.data["host"])
            if not self.roster.hear(event):
                self.attempts.hear(event)
        if joined:
            self.dispatch.join(joined, self.backend.slots, self.state)
        elif not self.dispatch.pool.total and self.backend.slots:
            self.dispatch.lay_out(self.backend.slots, self.state)  # none but quarantined hosts left

    def _wait(self) -> list[Event]:
        """Give what happens while something else is waited for; it is heard later."""
        events = self._listen()
        self._unheard += events
        return events

    def _listen(self) -> list[Event]:
        if not self.stopping:
            self._obey()
        # Turns that wait for some more news at once cost a busy campaign half as much.
        time.sleep(max(0.0, self._heard + TURN_SECONDS - time.monotonic()))
        events = self.backend.poll(POLL_SECONDS)
        self._heard = time.monotonic()
        for event in events:
            if event.kind == "ready":
                self.ready = True
                told = {k: event.data[k] for k in ("host", "import_seconds") if k in event.data}
                self.book.note("zygote_ready", durable=False, **told)
            elif event.kind == "counters":
                self.metering.hear(event)
            elif event.kind == "adopted" and event.job:
                self._adopted.add(event.job)
                self.attempts.adopt(event.job)
            elif event.kind in ("zygote_lost", "agent_lost"):
                self.book.note(event.kind, durable=False, host=event.data.get("host"))
                if event.data.get("error"):
                    self._do_without(str(event.data.get("host")), str(event.data["error"]))
        self.metering.turn()
        self.lease.renew()
        self.book.flush()
        return events

    def _obey(self) -> None:
        """Leave the loop if somebody wishes so; a person's word comes before a scheduler's."""
        if self.pause.wanted or self.steering.pause_wanted:
            raise KeyboardInterrupt
        if self.pause.draining:
            raise Drained("the scheduler ends the allocation")

    def _do_without(self, host: str, error: str) -> None:
        """Use a host no more on which nothing can start; without another one there is no way."""
        others = {slot.host for slot in self.backend.slots} - {host}
        if others <= self.state.hosts.quarantined.keys():
            raise JobError(error)
        self.roster.set_aside(host, f"can start nothing: {error}")

    def _done(self) -> bool:
        state = self.state
        if state.count("queued", "running") or not (state.closed or state.ending):
            return False
        if not state.ranked():
            raise JobError(f"no trial has a result: {self._why_none()}.")
        return not self.reseeding.missing

    def _why_none(self) -> str:
        failed = [t for t in self.state.trials.values() if t.reason]
        if not failed:
            return "none was proposed"
        return f"{failed[-1].name} ended as {failed[-1].reason}: {failed[-1].message}"

    def _rest(self, reason: str, spare: frozenset[str] = frozenset()) -> None:
        """Let running trials write a checkpoint and end, but for those on spared hosts alone."""
        self.stopping = True
        if reason == "walltime":
            self.book.note("draining")
        resting = {
            t.name for t in self.state.with_status("running") if not spare.issuperset(t.hosts)
        }
        for name in resting:
            self.attempts.ask(self.state.trials[name], reason)
        self.attempts.launch(PATIENCE_SECONDS)  # who was not started yet ends at once
        deadline = time.monotonic() + PATIENCE_SECONDS + 5.0
        while time.monotonic() < deadline:
            if resting.isdisjoint(trial.name for trial in self.state.with_status("running")):
                break
            self._hear()
        self.metering.flush()
