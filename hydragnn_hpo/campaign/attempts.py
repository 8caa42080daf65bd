"""Run attempts: start their jobs at the backend, write their records and ends to the journal."""

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hydragnn_hpo.campaign.dispatch import Dispatch
from hydragnn_hpo.campaign.energy_accounting import charge_epoch, sum_finite
from hydragnn_hpo.campaign.event_store import EventStore
from hydragnn_hpo.campaign.journal import read_journal
from hydragnn_hpo.campaign.outcome import OURS, EndedAttempt, find_failed_host, retry_out_of_memory
from hydragnn_hpo.campaign.state import LOST, Trial
from hydragnn_hpo.config import OUT_OF_MEMORY, CampaignConfig, TrialConfig
from hydragnn_hpo.config.convs.spec import is_user_conv, package_of
from hydragnn_hpo.errors import HydraError, JobError, StorageError
from hydragnn_hpo.journal_events import AttemptOutcome
from hydragnn_hpo.launching import Backend, Event
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.placement import Plan, StartTask
from hydragnn_hpo.rank_requests import Request
from hydragnn_hpo.search import Point, finite_number
from hydragnn_hpo.search.objective import read_epoch_objective, read_objective
from hydragnn_hpo.search.pruner import TrialPruner

PATIENCE_SECONDS = 15.0
"""Time that interrupted trials have to write their checkpoint."""

WRITERS = 16
"""Threads that write the files of attempts, so that slow file systems do not add up."""

LAUNCH_SECONDS = 0.3
"""Time for starting attempts in one turn of the controller loop."""

REQUESTS: dict[str, Request] = {"resized": "yield", "median": "stop", "curve": "stop"}
"""Request sent to rank 0, by reason to end; for other reasons the ranks get a signal."""


class Attempts:
    """All attempts of one controller."""

    def __init__(
        self,
        config: CampaignConfig,
        run: RunDir,
        event_store: EventStore,
        dispatch: Dispatch,
        backend: Backend,
        *,
        tell: Callable[[Trial], None],
    ) -> None:
        """Start without attempts.

        Args:
            config: the campaign.
            run: its directory.
            event_store: the journal that attempts are recorded in.
            dispatch: writes the jobs' files and keeps the cost model.
            backend: runs the jobs.
            tell: called with each trial that has ended, except for cancelled ones.
        """
        self.config, self.run_dir, self.event_store = config, run, event_store
        self.dispatch, self.backend, self.tell = dispatch, backend, tell
        self.rule = replay_stop_rule(config, event_store)
        self.to_launch: deque[StartTask] = deque()
        """Attempts that are placed in the journal but not started yet."""
        self._adopted: set[str] = set()
        self._writers = ThreadPoolExecutor(WRITERS, thread_name_prefix="writer")
        self.started = 0
        """Number of attempts that were started."""
        self.trouble: HydraError | None = None
        """Why the campaign cannot go on (full disk, repeated equal failures); None if it can."""
        self.files_away_since = math.inf
        """Monotonic time since which ranks cannot reach their files; infinity while they can."""
        self.news = False
        """Whether anything that planning depends on has changed since the last plan."""

    def start_plan(self, plan: Plan) -> None:
        """Write a plan's starts and resizes durably to the journal; ``launch`` starts them."""
        state = self.event_store.state
        for start in plan.starts:
            trial = state.trials[start.name]
            self.dispatch.pool.claim(start.slots)
            predicted = self.dispatch.price(trial).epoch_seconds(start.width)
            self.event_store.append(
                "placed",
                durable=False,
                trial=trial.name,
                attempt=trial.attempt + 1,
                until=trial.until,
                width=start.width,
                slots=start.slots,
                reason=start.reason,
                predicted_epoch_seconds=predicted,
                predicted_seconds=predicted * (trial.until - trial.epoch),
            )
            self.to_launch.append(start)
        for resize in plan.resizes:
            trial = state.trials[resize.name]
            self.ask(trial, "resized", width=resize.width, why=resize.reason)
        self.event_store.sync()

    def launch(self, seconds: float = LAUNCH_SECONDS) -> None:
        """Start placed attempts for a limited time: thousands of starts must not block the loop.

        An attempt that was asked to end before its start ends without having started.

        Args:
            seconds: time after which the remaining attempts are left for the next call.
        """
        until = time.monotonic() + seconds
        while self.to_launch and time.monotonic() < until:
            some = [self.to_launch.popleft() for _ in range(min(WRITERS, len(self.to_launch)))]
            pairs = [(self.event_store.state.trials[start.name], start) for start in some]
            going = [pair for pair in pairs if pair[0].stop_reason is None]
            for job in self._writers.map(lambda pair: self.dispatch.prepare(*pair), going):
                self.backend.start(job)
                self.started += 1
            for trial, _ in pairs:
                if trial.stop_reason is not None:
                    self.end(trial)

    def ask(self, trial: Trial, reason: str, **values: Any) -> None:
        """Ask a running trial to end.

        Reasons in ``REQUESTS`` have no effect if the trial was asked before; others are sent again.

        Args:
            trial: a running trial.
            reason: its new ``stop_reason``.
            values: further fields of the event ``asked``.
        """
        if trial.stop_reason is not None and reason in REQUESTS:
            return
        if trial.stop_reason is None or reason == "cancelled":
            self.event_store.append("asked", trial=trial.name, reason=reason, **values)
        self._send_request(trial, reason)

    def _send_request(self, trial: Trial, reason: str) -> None:
        if reason in REQUESTS:
            self.backend.ask(trial.job, REQUESTS[reason])
        else:
            self.backend.stop(trial.job, grace=PATIENCE_SECONDS)

    def adopt(self, job: str) -> None:
        """Adopt a job that a lost controller left running; stop it if no trial runs as this job.

        A request to end is sent again: the lost controller may have died before it sent it.
        """
        self._adopted.add(job)
        trial = self._trial_of(job)
        if trial is None:
            self.backend.stop(job, grace=PATIENCE_SECONDS)
        elif trial.stop_reason is not None:
            self._send_request(trial, trial.stop_reason)

    def recover(self, wait: Callable[[], None]) -> None:
        """Adopt the attempts that a lost controller left running; end those that are gone.

        Args:
            wait: waits a moment and processes the backend's events.
        """
        for trial in self.event_store.state.with_status("running"):
            folder = self.run_dir.trial(trial.name).attempt(trial.attempt)
            if (folder / "result.json").exists():
                self.end(trial)
        while self._orphans() and not self.backend.settled:
            wait()
        wait()
        for trial in self._orphans():
            self.end(trial)

    def _orphans(self) -> list[Trial]:
        running = self.event_store.state.with_status("running")
        return [trial for trial in running if trial.job not in self._adopted]

    def checkpoint_and_end(
        self, reason: str, *, spare: frozenset[str], process_events: Callable[[], None]
    ) -> None:
        """Ask running trials to checkpoint and end, and wait for them for a limited time.

        Args:
            reason: why, for the journal.
            spare: hosts; trials that run only on these go on.
            process_events: waits for events of the backend and processes them.
        """
        state = self.event_store.state
        resting = {t.name for t in state.with_status("running") if not spare.issuperset(t.hosts)}
        for name in resting:
            self.ask(state.trials[name], reason)
        self.launch(PATIENCE_SECONDS)  # a trial that was not started yet ends at once
        deadline = time.monotonic() + PATIENCE_SECONDS + 5.0
        while time.monotonic() < deadline:
            if resting.isdisjoint(trial.name for trial in state.with_status("running")):
                break
            process_events()

    def _trial_of(self, job: str) -> Trial | None:
        """Return the trial whose present attempt is this job; None for all other jobs."""
        trial = self.event_store.state.trials.get(job.partition(".")[0])
        runs = trial is not None and trial.status == "running" and trial.job == job
        return trial if runs else None

    def on_event(self, event: Event) -> None:
        """Process an event of a present attempt; drop events of all other jobs."""
        trial = None if event.job is None else self._trial_of(event.job)
        if trial is None:
            return
        if event.kind == "ended":
            self.end(trial, **event.data)
        elif event.kind == "record":
            self._record(trial, event.data)

    def _record(self, trial: Trial, record: dict[str, Any]) -> None:
        """Write a record of a trial to the journal; ignore malformed ones of a user's command.

        An adopted attempt repeats its records from the first one, so known ones are dropped.
        """
        self._note_files(reachable=True)
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
            match record.get("record"):
                case "first_step" if trial.first_step is None:
                    if (moment := finite_number(record["time"])) is not None:
                        most = self.event_store.clock() - trial.placed
                        seconds = min(max(0.0, moment - trial.placed), max(0.0, most))
                        fields = {"trial": trial.name, "seconds": seconds}
                        self.event_store.append("first_step", durable=False, **fields)
                case "checkpoint" if int(record["epoch"]) <= trial.until:
                    self._checkpoint(trial, int(record["epoch"]), int(record.get("step", 0)))
                case "epoch" if trial.epoch < int(record["epoch"]) <= trial.until:
                    self._epoch(trial, record)

    def _checkpoint(self, trial: Trial, epoch: int, step: int) -> None:
        if (epoch, step) > self.event_store.state.checkpoints.get(trial.name, (-1, 0)):
            reached = {"reached": epoch, "step": step}
            self.event_store.append("checkpoint", durable=False, trial=trial.name, **reached)

    def _epoch(self, trial: Trial, record: dict[str, Any]) -> None:
        seconds = sum_finite(record.get(part, 0.0) for part in ("train_seconds", "val_seconds"))
        fresh = trial.width not in trial.seconds
        joules = charge_epoch(record.get("energy", {}))
        objective = finite_number(record["objective"])
        value = read_epoch_objective(self.config.search.objective, record, self.dispatch.spreads)
        self.event_store.append(
            "epoch",
            durable=False,
            trial=trial.name,
            reached=int(record["epoch"]),
            objective=objective,
            best_objective=finite_number(record.get("best_objective", objective)),
            seconds=seconds,
            width=trial.width,
            **({"joules": joules} if joules else {}),
            **({"watched": value} if value != objective else {}),
        )
        self.news |= fresh
        self.dispatch.learn(trial, trial.width, seconds)
        self._apply_stop_rule(trial, int(record["epoch"]), value)

    def _apply_stop_rule(self, trial: Trial, epoch: int, value: float | None) -> None:
        """Ask a trial to end if the campaign's stopping rule gives it up."""
        if value is None or trial.parent is not None:
            return
        verdict = self.rule.observe(trial.name, epoch, value, until=trial.until)
        if verdict:
            self.ask(trial, self.config.search.stop_rule, why=verdict)

    def end(
        self,
        trial: Trial,
        codes: Sequence[int] = (),
        *,
        first: int | None = None,
        signal_sent: bool = False,
        error: str | None = None,
        away: Sequence[str] = (),
        **_: Any,
    ) -> None:
        """Record how an attempt ended, free its slots, and decide what its trial does next.

        Args:
            trial: a trial that was running until now.
            codes: exit codes by rank, negative ones are signals; empty if its controller was lost.
            first: the rank that ended first, if known.
            signal_sent: whether the backend itself sent signals to the ranks.
            error: the backend's message if the job could not run.
            away: hosts of the attempt that were lost, including those without ranks.
        """
        self._check_run_directory()
        left = EndedAttempt(
            self.run_dir.trial(trial.name).attempt(trial.attempt),
            codes,
            trial.stop_reason,
            restarts=trial.restarts,
            max_restarts=self.config.search.max_restarts,
            error=error,
            first=first,
            away=away,
            crashes=trial.crashes,
            package=_package(self.dispatch.configs[trial.name]),
        )
        ended = self.dispatch.work.read_end(left, until=trial.until)
        ended = self._retry_out_of_memory(trial, ended, codes)
        if ended["reason"] in LOST:
            ended["codes"] = list(codes)
        if ended["reason"] == "host_lost" and not ended.get("excused"):
            self._record_host_failure(trial, codes, first=first, signal_sent=signal_sent)
        self.dispatch.release(trial, ended)
        if ended["outcome"] != "interrupted":
            ended["score"] = self._score(trial, ended)
        self.event_store.append("ended", trial=trial.name, attempt=trial.attempt, **ended)
        self.news = True
        self._note_files(reachable=ended["reason"] != "files_away")
        (left.folder / "meeting").unlink(missing_ok=True)
        if trial.status not in ("queued", "cancelled"):
            self.tell(trial)
        self._check_trouble(trial)

    def _retry_out_of_memory(
        self, trial: Trial, ended: AttemptOutcome, codes: Sequence[int]
    ) -> AttemptOutcome:
        """Turn a lack of memory into an interruption where the trial may run again."""
        widths, shared = self.dispatch.choices(trial)
        again = OUT_OF_MEMORY in codes and trial.restarts < self.config.search.max_restarts
        return retry_out_of_memory(
            ended, width=trial.width, widths=widths, shared=shared, as_it_is=again
        )

    def _check_run_directory(self) -> None:
        """Check that the run directory is mounted; without it every attempt seems to lack a result.

        Raises:
            StorageError: the directory cannot be reached.
        """
        try:
            self.run_dir.campaign.stat()
        except OSError as error:
            raise StorageError(
                f"{self.run_dir.path}: is out of reach ({error.strerror}); see its file server."
            ) from error

    def _note_files(self, *, reachable: bool) -> None:
        """Update ``files_away_since``: whether a rank that just reported could reach its files."""
        if reachable:
            self.files_away_since = math.inf
        else:
            self.files_away_since = min(self.files_away_since, time.monotonic())

    def _score(self, trial: Trial, ended: AttemptOutcome) -> Point | None:
        """Return the score of an ended trial; None for a failure or cancellation."""
        if ended["outcome"] not in ("completed", "stopped"):
            return None
        known: AttemptOutcome = {**ended, "joules": trial.joules} if trial.joules else ended
        return read_objective(self.config.search.objective, known, self.dispatch.spreads)

    def _record_host_failure(
        self, trial: Trial, codes: Sequence[int], *, first: int | None, signal_sent: bool
    ) -> None:
        """Record a failure of the host that probably caused the loss of an attempt, if any."""
        places = trial.slots[:: max(1, len(trial.slots) // len(codes))]
        host = find_failed_host(places, codes, first=first, signalled=signal_sent)
        if host is not None:
            self.event_store.append("host_failed", host=host, cause=trial.name)

    def _check_trouble(self, trial: Trial) -> None:
        """Set ``trouble`` if further trials would only repeat a failure."""
        folder = self.run_dir.trial(trial.name).attempt(trial.attempt)
        if trial.reason == "disk_full":
            self.trouble = StorageError(
                f"{folder}: the disk is full; make room, then run the same command again to go on."
            )
        if trial.reason == "bad_config" and not self._any_trains():
            self.trouble = JobError(
                f"{trial.name} cannot train, and no trial has yet: "
                f"{(trial.message or '').rstrip('.')}. Correct the campaign; or run the same "
                "command again to go on with other values."
            )
        most = self.config.search.max_failures
        if trial.reason == "bug" and self.event_store.state.count_equal_failures(trial) >= most:
            self.trouble = JobError(
                f"{most} trials failed alike; the last, {trial.name}, with: "
                f"{(trial.message or '').rstrip('.')}. See {folder / 'log'}."
            )

    def _any_trains(self) -> bool:
        """Check whether some trial has trained, or, as a command, has written what is minimized."""
        trials = self.event_store.state.trials.values()
        if self.config.command is not None:
            return any(trial.rung_scores for trial in trials)
        return any(trial.epoch for trial in trials)


def _package(config: Any) -> str:
    """Return the package of a trial's own code: that of the user's conv, or this package."""
    conv = config.model.conv if isinstance(config, TrialConfig) else ""
    return package_of(conv) if is_user_conv(conv) else OURS


def replay_stop_rule(config: CampaignConfig, event_store: EventStore) -> TrialPruner:
    """Build the stopping rule and feed it the epochs in the journal."""
    rule = TrialPruner(config.search)
    for event in read_journal(event_store.path) if config.search.stop_rule != "none" else ():
        if event["event"] == "objective_changed":  # what was watched before is another number
            rule = TrialPruner(config.search)
        if event["event"] != "epoch" or event_store.state.trials[event["trial"]].parent is not None:
            continue
        value = event.get("watched", event["objective"])
        if value is not None:
            rule.observe(event["trial"], event["reached"], value, until=event["reached"])
    return rule
