"""The controller loop: ask the brain, price trials, place, launch and watch them, report results.

One thread makes all decisions. Each decision is in the journal before it is acted on.
"""

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydragnn_hpo.campaign.attempts import Attempts, replay_stop_rule
from hydragnn_hpo.campaign.auxiliary_job import AuxiliaryJobs
from hydragnn_hpo.campaign.dispatch import Dispatch, HostHealth, warn_absent
from hydragnn_hpo.campaign.energy_accounting import EnergyMeter
from hydragnn_hpo.campaign.event_store import EventStore
from hydragnn_hpo.campaign.fold_fits import FoldFits
from hydragnn_hpo.campaign.journal import read_journal, steady_time
from hydragnn_hpo.campaign.promotion import LearningCurveFits, Promoter, Replicates
from hydragnn_hpo.campaign.proposals import Proposals
from hydragnn_hpo.campaign.rescoring import compute_scores
from hydragnn_hpo.campaign.setup import check_stores, controller_versions, tidy
from hydragnn_hpo.campaign.shutdown import NEVER, Drained, ShutdownRequest
from hydragnn_hpo.campaign.state import State, Trial
from hydragnn_hpo.campaign.status import explain_no_result, predict_seconds_left
from hydragnn_hpo.campaign.trial_kind import TrialKind, make_trial_kind
from hydragnn_hpo.campaign.user_requests import RequestHandler
from hydragnn_hpo.config import CampaignConfig, dump_config, find_profile, load_config
from hydragnn_hpo.errors import HydraError, JobError, StorageError
from hydragnn_hpo.files import is_transient, write_text
from hydragnn_hpo.launching import Backend, Event, Slot, find_backend
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.leases import DRAINED, FAILED, FINISHED, PAUSED, ControllerLease
from hydragnn_hpo.placement import Plan
from hydragnn_hpo.units import shown_unit
from hydragnn_hpo.walltime import WallTime

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2
TURN_SECONDS = 0.02
PLANNING_SHARE = 0.1
"""Largest share of the controller's time that planning may take."""

PLAN_SECONDS = 5.0
"""Longest time between two plans: predictions come due even if nothing happened."""

HOST_SECONDS = 600.0
"""How long a campaign waits for its first host, or for hosts that its queued trials can start on,
or for files that its trials cannot reach."""

GATHERING_SECONDS = 2.0
"""The campaign begins once no further host has joined for this long."""

CHECK_SECONDS = 2.0
"""How long the end of the search waits until the stores of an earlier run are compared."""

Watch = Callable[[State, "Controller"], None]


class Controller:
    """Runs one campaign in one run directory."""

    ends_in: float | None = None
    """Predicted seconds until ensemble and report are there; None before the first epoch."""

    def __init__(
        self,
        config: CampaignConfig,
        run: RunDir,
        *,
        cards: Mapping[Path, str],
        make_backend: Callable[[], Backend],
        watch: Watch = lambda *_: None,
        pause: ShutdownRequest = NEVER,
        clock: Callable[[], float] = steady_time,
    ) -> None:
        """Take the lease of the run directory, open its journal and start the backend.

        Args:
            config: the campaign.
            run: its directory, opened by ``setup.open_run``.
            cards: name of each data set's card by its path; the graph store has the same name.
            make_backend: starts the backend and returns it.
            watch: called after each turn with the state and this controller, for a display.
            pause: request to stop, checked in each turn.
            clock: returns seconds since the epoch; it must not jump.

        Raises:
            RunError: another controller holds the lease, the journal is damaged, or a graph store
                has a version that this program does not read.
        """
        self.config, self.run_dir, self.watch, self.pause = config, run, watch, pause
        check_stores(run, cards.values())
        self.lease = ControllerLease(run.path)
        tidy(run, trials_may_live=not find_backend(config.machine.backend).tethered)
        self.event_store = EventStore(run.journal, self.lease.epoch, clock, self.lease.renew)
        self.state = self.event_store.state
        self.walltime = WallTime.of(os.environ)
        self.backend = make_backend()
        self.ready = self.stopping = self._served = self._opened = False
        self._left = FAILED
        self._unprocessed: list[Event] = []
        self._assemble(make_trial_kind(config, run, cards))

    def _assemble(self, work: TrialKind) -> None:
        config, run, event_store = self.config, self.run_dir, self.event_store
        self.work = work
        self._plan_due = 0.0
        self._last_poll = 0.0
        self._idle_since = math.inf
        self.dispatch = Dispatch(config, run, work, find_profile(config.machine.profile))
        self.proposals = Proposals(config, event_store, self.dispatch, configure=work.configure)
        self.attempts = Attempts(
            config, run, event_store, self.dispatch, self.backend, tell=self.proposals.tell
        )
        self.promoter = Promoter(config.search, event_store)
        self.replicates = Replicates(config.ensemble.reseed, event_store, self.proposals)
        self.learning_curve = LearningCurveFits(config, event_store, self.proposals, self.dispatch)
        self.fold_fits = FoldFits(config, event_store, self.proposals, work)
        self.host_health = HostHealth(event_store, self.dispatch)
        self.energy_meter = EnergyMeter(event_store, lambda: self.backend.slots)
        self.request_handler = RequestHandler(run, event_store, self.attempts)
        self.auxiliary_jobs = AuxiliaryJobs(
            run.path,
            self.backend,
            epoch=self.lease.epoch,
            choose=self._slot_beside,
            wait=self._wait,
        )

    def run(self) -> State:
        """Run the campaign to the end of its last rung.

        Raises:
            JobError: too many trials fail with the same error, no trial has a result, or no host
                can be used.
            StorageError: the disk is full; interrupted trials can be resumed.
            ConfigError: the space does not fit the data.
            KeyboardInterrupt: the user asked for a pause; checkpoints are written first.
            Drained: the allocation ends before the campaign does, or its hosts or files cannot be
                reached. Trials on hosts of other allocations keep running; the next controller
                must adopt them before their leases lapse.
        """
        with self._left_in_order():
            self._open()
            while not self._done():
                self._turn()
            self.work.check(CHECK_SECONDS)
            self.energy_meter.flush()
        return self.state

    @contextlib.contextmanager
    def _left_in_order(self) -> Iterator[None]:
        """Checkpoint trials and set the lease's release reason when an error ends the work."""
        try:
            yield
        except (Drained, KeyboardInterrupt, JobError, StorageError, OSError) as why:
            if self.stopping:  # ``job`` ran within ``run``: its trials have ended already
                raise
            goes_on = isinstance(why, Drained) or is_transient(why) or self._files_are_away(why)
            if goes_on:
                self._left = DRAINED
            elif isinstance(why, KeyboardInterrupt):
                self._left = PAUSED
            self._end_trials("walltime" if goes_on else "paused")
            if goes_on and not isinstance(why, Drained):
                raise Drained(str(why)) from why
            raise

    def _files_are_away(self, why: BaseException) -> bool:
        """Check whether an error comes from files that have become unreachable since the start.

        An unmounted file system reports missing files, a dead one refuses access. Neither error
        is in ``files.TRANSIENT_ERRORS``, because before a campaign starts the user must fix it.
        """
        if not self._opened or not isinstance(why, (StorageError, OSError)):
            return False
        try:
            for path in (self.run_dir.campaign, *self.work.needs):
                path.stat()
        except OSError:
            return True
        return False

    def finish(self) -> None:
        """Record in the journal that the ensemble is built: the campaign is finished."""
        if not self.state.finished:
            self.event_store.append("finished")
        self._left = FINISHED

    def close(self) -> None:
        """Save the cost model, close backend and journal, and release the lease.

        Errors here are only logged, so that they do not replace the error that ended the work.
        """
        steps: list[Callable[[], object]] = [self.proposals.close]
        if self.attempts.started:
            steps.append(lambda: self.dispatch.costs.save(self.run_dir.costs))
        steps += [
            self.backend.close,
            self.event_store.close,
            lambda: self.lease.release(self._left),
        ]
        for step in steps:
            try:
                step()
            except (HydraError, OSError) as error:
                logger.warning("%s", error)

    def job(self, kind: str, spec: Mapping[str, str]) -> Any:
        """Run one auxiliary job (not a trial) on one slot, and return its answer.

        Raises:
            JobError: the job ended without an answer.
            ConfigError: the answer is an error for the user.
            KeyboardInterrupt, Drained, StorageError: as in ``run``.
        """
        with self._left_in_order():
            answer = self.auxiliary_jobs.run(kind, spec)
            self.energy_meter.flush()
        return answer

    def _slot_beside(self, tried: Sequence[str]) -> Slot:
        """Choose a slot on the host tried least often; quarantined hosts come last."""
        self._wait_for_hosts()
        bad = self.state.hosts.quarantined
        return min(self.backend.slots, key=lambda s: (s.host in bad, tried.count(s.host)))

    # -- opening ---------------------------------------------------------------------

    def _open(self) -> None:
        self.work.prepare(self.job)
        stats = self.work.stats
        self._wait_for_hosts()
        self.dispatch.settle(stats, self.backend.slots)
        targets = stats["targets"] if stats else {}
        self.event_store.append(
            "opened",
            units={name: shown_unit(target) for name, target in targets.items()},
            slots=sorted(slot.name for slot in self.backend.slots),
            data=stats.get("checksum") if stats else None,
            software=controller_versions(),
        )
        self._change_objective()
        self.proposals.start()
        self.dispatch.lay_out(self.backend.slots, self.state)
        self._opened = True
        self.attempts.recover(self._wait)

    def _change_objective(self) -> None:
        """Score the trials again if the objective was changed; ``open_run`` has checked that."""
        before = load_config(self.run_dir.campaign, CampaignConfig)
        objective = self.config.search.objective
        if before.search.objective == objective:
            return
        events = read_journal(self.event_store.path)
        computed = compute_scores(events, objective, self.dispatch.spreads)
        scores = {
            trial: {rung: score for rung, score in by_rung.items() if score is not None}
            for trial, by_rung in computed.items()
            if None not in by_rung.values()
        }
        self.event_store.append("objective_changed", objective=objective, scores=scores)
        search = before.search.model_copy(update={"objective": objective})
        changed = before.model_copy(update={"search": search})
        write_text(self.run_dir.campaign, dump_config(changed))
        self.attempts.rule = replay_stop_rule(self.config, self.event_store)

    def _wait_for_hosts(self) -> None:
        """Wait for the first host, and until no further one joins for ``GATHERING_SECONDS``."""
        seen = len(self.backend.slots)
        now = time.monotonic()
        changed = now
        deadline = now + HOST_SECONDS
        if seen:
            self._served = True
            return
        while not seen or now < changed + GATHERING_SECONDS:
            if now > deadline and not seen:
                message = f"no host joined within {HOST_SECONDS:.0f} s: see the agents' logs."
                raise self._no_hosts_error(message)
            self._wait()
            now = time.monotonic()
            if len(self.backend.slots) != seen:
                seen = len(self.backend.slots)
                changed = now
        self._served = True

    def _no_hosts_error(self, said: str) -> Exception:
        """Return the error for a campaign without hosts: ``Drained`` if it had hosts before.

        Args:
            said: the message.
        """
        return Drained(said) if self._served else JobError(said)

    # -- one turn --------------------------------------------------------------------

    def _turn(self) -> None:
        if self.attempts.trouble is not None:
            raise self.attempts.trouble
        self.work.check()
        if time.monotonic() - self.attempts.files_away_since > HOST_SECONDS:
            raise Drained(
                f"no trial could reach its files for {HOST_SECONDS:.0f} s: see their file server"
            )
        self.proposals.propose_next()
        self.promoter.promote(exhausted=self.proposals.exhausted)
        self.replicates.propose_missing()
        self.learning_curve.propose_missing()
        self.fold_fits.propose_missing()
        for trial in self._trials_to_yield():
            self.attempts.ask(trial, "walltime")
        self._place()
        self.attempts.launch()
        # Ask the brain before processing any end, however late that end arrives, so that a
        # one-slot campaign is reproducible (Law 5).
        self.proposals.propose_next()
        self._process_events()
        self.host_health.check_enough_joined()
        self.host_health.quarantine_failing()
        self.request_handler.handle_new()
        self.watch(self.state, self)

    def _place(self) -> None:
        """Plan again after news or when predictions come due, within ``PLANNING_SHARE``."""
        now = time.monotonic()
        waits = self.state.count("queued") > 0 or self.attempts.news
        if not self.ready or now < self._plan_due or self.attempts.to_launch:
            return
        if not waits and now < self._plan_due + PLAN_SECONDS:
            return
        self.attempts.news = False
        began = time.thread_time()  # CPU time: it excludes time in which the process is stopped
        plan = self.dispatch.decide(
            self.state,
            now=self.event_store.clock(),
            to_come=self.proposals.to_come,
            time_left=self.time_left,
        )
        self.ends_in = predict_seconds_left(
            self.state,
            self.event_store.ledger,
            self.config.search,
            self.event_store.clock(),
            ensemble=self.config.ensemble,
            finishing=self.event_store.finish_seconds,
        )
        self._plan_due = now + (time.thread_time() - began) / PLANNING_SHARE
        self.attempts.start_plan(plan)
        if plan.starts or self.state.count("running"):
            self._idle_since = math.inf
        else:
            self._check_idle_time(plan, now)

    @property
    def time_left(self) -> float:
        """Seconds until the allocation must be drained; infinity where none is known."""
        end = min(self.walltime.end, self.backend.ends_at)
        return end - self.event_store.clock() - self.walltime.least_margin

    def _trials_to_yield(self) -> list[Trial]:
        """Return the trials that must checkpoint now because the allocation of a host ends."""
        now = self.event_store.clock() + self.walltime.least_margin
        profile = self.dispatch.profile
        checkpoint = profile.start_seconds + profile.restart_seconds
        return self.host_health.close_ending_hosts(now, checkpoint=checkpoint)

    def _check_idle_time(self, plan: Plan, now: float) -> None:
        """Limit how long the campaign waits for hosts while no trial runs or can start.

        Raises:
            Drained: too little of the allocation is left, or hosts were lost and none came back.
            JobError: no trial could start for ``HOST_SECONDS``.
        """
        if self.time_left < self.dispatch.profile.restart_seconds:
            raise Drained("the allocation ends: what is left would not reach a checkpoint")
        self._idle_since = min(self._idle_since, now) if plan.held else math.inf
        if now - self._idle_since > HOST_SECONDS:
            trial, why = next(iter(plan.held.items()))
            message = (
                f"nothing could start for {HOST_SECONDS:.0f} s: {trial} {why}; give the campaign "
                "more slots, or cancel the trial."
            )
            raise self._no_hosts_error(message) if self.state.hosts.lost else JobError(message)

    def _process_events(self) -> None:
        """Process the backend's events since the last turn; ends are journaled durably first."""
        events, self._unprocessed = [*self._unprocessed, *self._poll_events()], []
        joined = set()
        for event in events:
            if event.kind == "host_joined":
                joined.add(event.data["host"])
            if not self.host_health.on_event(event):
                self.attempts.on_event(event)
        if joined:
            self.dispatch.join(joined, self.backend.slots, self.state)
        elif not self.dispatch.pool.total and self.backend.slots:
            self.dispatch.lay_out(self.backend.slots, self.state)  # only quarantined hosts are left

    def _wait(self) -> None:
        """Process events while the caller waits; keep them for later until the run is open."""
        if self._opened:
            self._process_events()
        else:
            self._unprocessed += self._poll_events()
        self.watch(self.state, self)

    def _poll_events(self) -> list[Event]:
        if not self.stopping:
            self._check_stop_requests()
        # Batching the events of ``TURN_SECONDS`` halves the cost of a turn in a busy campaign.
        time.sleep(max(0.0, self._last_poll + TURN_SECONDS - time.monotonic()))
        try:
            events = self.backend.poll(POLL_SECONDS)
        except JobError as error:
            raise self._no_hosts_error(str(error)) from error
        self._last_poll = time.monotonic()
        for event in events:
            self.auxiliary_jobs.on_event(event)
            if event.kind == "ready":
                self.ready = True
                fields = {k: event.data[k] for k in ("host", "import_seconds") if k in event.data}
                self.event_store.append("zygote_ready", durable=False, **fields)
            elif event.kind == "counters":
                self.energy_meter.on_event(event)
            elif event.kind == "hosts_absent":
                warn_absent(event.data["hosts"], event.data["of"])
            elif event.kind == "adopted" and event.job:
                self.attempts.adopt(event.job)
            elif event.kind in ("zygote_lost", "agent_lost"):
                self.event_store.append(event.kind, durable=False, host=event.data.get("host"))
                if event.data.get("error"):
                    host = str(event.data.get("host"))
                    there = {s.host for s in self.backend.slots}
                    self._quarantine_unusable(host, there, str(event.data["error"]))
        self.energy_meter.flush_if_due()
        self.lease.renew()
        self.event_store.flush()
        return events

    def _quarantine_unusable(self, host: str, there: Collection[str], error: str) -> None:
        """Quarantine a host; if it was the last usable one, drain where others were lost before."""
        try:
            self.host_health.quarantine_unusable(host, there, error)
        except JobError as unusable:
            raise (Drained(str(unusable)) if self.state.hosts.lost else unusable) from None

    def _check_stop_requests(self) -> None:
        """Raise if the user, the scheduler or the clock ends the work, in this order."""
        if self.pause.wanted or self.request_handler.pause_wanted:
            raise KeyboardInterrupt
        if self.pause.draining:
            raise Drained("the scheduler ends the allocation")
        if self.time_left <= 0.0:  # for ranks that do not check the time themselves
            raise Drained("the allocation ends")

    def _done(self) -> bool:
        state = self.state
        if state.count("queued", "running") or not (state.closed or state.ending):
            return False
        if not state.ranked():
            raise JobError(f"no trial has a result: {explain_no_result(self.state)}; see status.")
        extra = (self.replicates, self.learning_curve, self.fold_fits)
        return not any(each.missing for each in extra)

    def _end_trials(self, reason: str) -> None:
        """Checkpoint and end the trials; log errors only, as the reason is reported already."""
        self.stopping = True
        spare = self.backend.foreign_hosts if reason == "walltime" else frozenset()
        try:
            if reason == "walltime":
                self.event_store.append("draining")
            if self._opened:  # else trials of an earlier controller stay for the next one to adopt
                self.attempts.checkpoint_and_end(
                    reason, spare=spare, process_events=self._process_events
                )
            self.energy_meter.flush()
        except (HydraError, OSError, Drained) as error:
            logger.warning("%s", error)
