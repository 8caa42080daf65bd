"""The loop: ask the brain, price, place, launch, watch, tell.

One thread decides; the journal is written before anything is acted on.
"""

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hydragnn_hpo.campaign.dispatch import Dispatch
from hydragnn_hpo.campaign.errand import Errand
from hydragnn_hpo.campaign.journal import Journal
from hydragnn_hpo.campaign.lease import Lease
from hydragnn_hpo.campaign.outcome import outcome_of
from hydragnn_hpo.campaign.pause import NEVER, Pause
from hydragnn_hpo.campaign.setup import check_space, stores_of, trial_config
from hydragnn_hpo.campaign.state import State, Trial, fold
from hydragnn_hpo.campaign.thinker import Thinker
from hydragnn_hpo.config.campaign import CampaignConfig
from hydragnn_hpo.config.mixture import united
from hydragnn_hpo.config.trial import TrialConfig
from hydragnn_hpo.errors import ConfigError, JobError, StorageError
from hydragnn_hpo.files import read_json, storage, sweep
from hydragnn_hpo.launching.job import Backend, Event
from hydragnn_hpo.launching.strays import end_strays, run_tag
from hydragnn_hpo.layout import RunDir, derive_seed
from hydragnn_hpo.search.protocol import make_brain

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2
PATIENCE_SECONDS = 15.0
"""Time that interrupted trials get to write their checkpoint."""

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
        """Take the run directory and end strays of a dead controller.

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
        self.config, self.run_dir, self.cards = config, run, cards
        self.watch, self.pause, self.clock = watch, pause, clock
        self.lease = Lease(run.path)
        if strays := end_strays(run_tag(run.path)):
            logger.warning("ended %d processes that a lost controller had left", len(strays))
        sweep(run.path)
        self.journal = Journal(run.journal, self.lease.epoch, clock)
        self.state = fold(self.journal.events)
        self.backend = make_backend()
        self.slots = {slot.name: slot for slot in self.backend.slots}
        self.dispatch, self.errands = Dispatch(config, run, self.backend.slots), 0
        self.thinker: Thinker | None = None
        self.ready = self.stopping = self.exhausted = False

    def run(self) -> State:
        """Run the campaign to the end of its last rung.

        Raises:
            JobError: trials fail alike, or none has a result.
            StorageError: the disk is full; the trials that ran may go on.
            ConfigError: the space does not fit the data.
            KeyboardInterrupt: a person asked for a pause; checkpoints are written first.
        """
        try:
            self._open()
            while not self._done():
                self._turn()
        except KeyboardInterrupt:
            self._pause()
            raise
        except (JobError, StorageError):
            self._pause()
            raise
        return self.state

    def finish(self) -> None:
        """Write down that the ensemble is built: a further ``run`` has nothing to do."""
        self._note("finished")

    def close(self) -> None:
        """End the backend and give the lease back."""
        if self.thinker:
            self.thinker.close()
        self.backend.close()
        self.journal.close()
        self.lease.release()

    def job(self, kind: str, spec: dict[str, Any]) -> Any:
        """Run one job that is not a trial, on one slot, and give its answer.

        Raises:
            JobError: it ended without an answer.
            ConfigError: its answer is an error for the user.
        """
        self.errands += 1
        name = f"{kind}.{self.lease.epoch}.{self.errands}"
        errand = Errand(self.run_dir.path, kind, name)
        self.backend.start(errand.job(spec, self.backend.slots[0]))
        while not any(e.kind == "ended" and e.job == name for e in self._listen()):
            self.watch(self.state, self)
        return errand.answer()

    # -- opening ---------------------------------------------------------------------

    def _open(self) -> None:
        stats = self._build_stores()
        self.dispatch.costs.stats = stats
        check_space(self.config, stats["targets"], stats["cutoff"], stats)
        units = {name: target["unit"] for name, target in stats["targets"].items()}
        self._note("opened", units=units, slots=sorted(self.slots), data=stats["checksum"])
        for trial in self.state.trials.values():
            if trial.reason != "bad_config":
                self.dispatch.configs[trial.name] = self._configure(trial.name, trial.values)
        for trial in self.state.with_status("running"):
            self._end(trial, codes=())
        self.exhausted = len(self.state.trials) >= self.config.search.trials
        if not self.exhausted:
            self._wake_brain()

    def _build_stores(self) -> dict[str, Any]:
        """Build the stores that are not there yet; gives what they hold together."""
        every = []
        for path, name in self.cards.items():
            store = self.run_dir.store(name)
            if not (store / "index.json").exists():
                with storage(self.run_dir.data):
                    self.run_dir.data.mkdir(exist_ok=True)
                self.job("build", {"card": str(path), "out": str(store)})
            every.append(read_json(store / "stats.json"))
        return united(every, self.config.data, self.config.shared)

    def _wake_brain(self) -> None:
        search = self.config.search
        known = list(self.state.trials.values())
        ended = [t for t in known if t.status in ("stopped", "completed", "failed")]
        results = [(t.values, t.objective) for t in ended]
        pending = [t.values for t in known if t not in ended]
        seed = derive_seed(self.config.seed, "campaign", "search")
        self.thinker = Thinker(
            lambda: make_brain(search.brain, self.config.space, seed=seed, initial=search.initial),
            results,
            pending,
        )

    def _configure(self, name: str, values: dict[str, Any]) -> TrialConfig:
        stores = stores_of(self.config, list(self.cards.values()))
        return trial_config(self.config, name, values, stores)

    # -- one turn --------------------------------------------------------------------

    def _turn(self) -> None:
        self._take_proposals()
        self._promote()
        if self.ready:
            self._place()
        self._ask()
        for event in self._listen():
            self._handle(event)
        self.watch(self.state, self)

    def _listen(self) -> list[Event]:
        if self.pause.wanted and not self.stopping:
            raise KeyboardInterrupt
        events = self.backend.poll(POLL_SECONDS)
        for event in events:
            if event.kind == "ready":
                self.ready = True
                self._note("zygote_ready", import_seconds=event.data["import_seconds"])
            elif event.kind in ("zygote_lost", "agent_lost"):
                self.ready = False
                self._note(event.kind)
                if event.data.get("error"):
                    raise JobError(str(event.data["error"]))
        self.lease.renew()
        self.journal.flush()
        return events

    def _note(self, kind: str, *, durable: bool = True, **values: Any) -> None:
        self.state.apply(self.journal.append(kind, durable=durable, **values))

    def _done(self) -> bool:
        if not self.state.promoted:
            return False
        if self.state.with_status("queued", "running"):
            return False
        if not self.state.ranked():
            raise JobError(f"no trial has a result: {self._why_none()}.")
        return True

    def _why_none(self) -> str:
        failed = [t for t in self.state.trials.values() if t.reason]
        if not failed:
            return "none was proposed"
        return f"{failed[-1].name} ended as {failed[-1].reason}: {failed[-1].message}"

    # -- proposals -------------------------------------------------------------------

    def _ask(self) -> None:
        """Keep one wave of trials waiting, so that a free slot never waits for the brain."""
        if self.thinker is None or self.exhausted:
            return
        self.thinker.check()
        wave = len(self.slots)
        waiting = len(self.state.with_status("queued"))
        left = self.config.search.trials - len(self.state.trials)
        wanted = (2 * wave if not self.state.trials else wave) - waiting
        if self.thinker.asking == 0 and min(wanted, left) > 0:
            self.thinker.ask(min(wanted, left))

    def _take_proposals(self) -> None:
        proposals = self.thinker.answer() if self.thinker else None
        if proposals is None:
            return
        for values in proposals:
            self._propose(values)
        full = len(self.state.trials) >= self.config.search.trials
        self.exhausted = full or not proposals

    def _propose(self, values: dict[str, Any]) -> None:
        name = f"t{len(self.state.trials):04d}"
        self._note("proposed", trial=name, values=values, until=self.config.search.rungs[0])
        try:
            config = self._configure(name, values)
        except ConfigError as error:
            self._note(
                "ended", trial=name, outcome="failed", reason="bad_config", message=str(error)
            )
            self._tell(self.state.trials[name])
            return
        self.dispatch.configs[name] = config

    def _promote(self) -> None:
        """Once all trials have run, train the best on to the full budget."""
        if self.state.promoted or not self.exhausted:
            return
        if self.state.with_status("queued", "running"):
            return
        best = [t for t in self.state.ranked() if t.status == "stopped"]
        names = [trial.name for trial in best[: self.config.search.finalists]]
        self._note("promoted", trials=names, until=self.config.search.rungs[-1])

    # -- placement -------------------------------------------------------------------

    def _place(self) -> None:
        if self.stopping:
            return
        decisions = self.dispatch.decide(self.state, more_to_come=not self.exhausted)
        for decision in decisions:
            trial = self.state.trials[decision.name]
            job = self.dispatch.prepare(trial, decision)
            self._note(
                "placed",
                trial=trial.name,
                attempt=trial.attempt + 1,
                until=trial.until,
                width=decision.width,
                slots=decision.slots,
                reason=decision.reason,
                predicted_seconds=self.dispatch.seconds_left(trial, decision.width),
            )
            self.backend.start(job)

    # -- events ----------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        if event.job is None or event.kind not in ("record", "ended"):
            return
        name, _, attempt = event.job.partition(".")
        trial = self.state.trials.get(name)
        if trial is None or trial.status != "running" or str(trial.attempt) != attempt:
            return
        if event.kind == "ended":
            self._end(trial, codes=event.data["codes"])
        else:
            self._record(trial, event.data)

    def _record(self, trial: Trial, record: dict[str, Any]) -> None:
        kind = record["record"]
        if kind == "first_step":
            seconds = record["time"] - trial.placed
            self._note("first_step", durable=False, trial=trial.name, seconds=seconds)
        elif kind == "checkpoint":
            reached = {"reached": record["epoch"], "step": record["step"]}
            self._note("checkpoint", durable=False, trial=trial.name, **reached)
        elif kind == "epoch":
            seconds = record["train_seconds"] + record["val_seconds"]
            self._note(
                "epoch",
                durable=False,
                trial=trial.name,
                reached=record["epoch"],
                objective=record["objective"],
                best_objective=record["best_objective"],
                seconds=seconds,
                width=trial.width,
            )
            self.dispatch.learn(trial, seconds)

    def _end(self, trial: Trial, codes: tuple[int, ...] | list[int]) -> None:
        folder = self.run_dir.trial(trial.name).attempt(trial.attempt)
        ended = outcome_of(
            folder,
            codes,
            asked_to_stop=self.stopping,
            restarts=trial.restarts,
            max_restarts=self.config.search.max_restarts,
        )
        self._note("ended", trial=trial.name, attempt=trial.attempt, **ended)
        for name in ("lease", "meeting"):
            (folder / name).unlink(missing_ok=True)
        if trial.status != "queued" and not self.state.promoted:
            self._tell(trial)
        if trial.reason == "disk_full" and not self.stopping:
            raise StorageError(
                f"{folder}: the disk is full; make room, then run the same command again to go on."
            )
        if self.state.bugs_in_a_row >= self.config.search.max_failures and not self.stopping:
            raise JobError(
                f"{self.state.bugs_in_a_row} trials in a row failed; the last, {trial.name}, "
                f"with: {trial.message} See {folder / 'log'}."
            )

    def _tell(self, trial: Trial) -> None:
        if self.thinker is not None and trial.status != "cancelled":
            self.thinker.tell(trial.values, trial.objective)

    def _pause(self) -> None:
        """Let running trials write a checkpoint and end."""
        self.stopping = True
        for trial in self.state.with_status("running"):
            self.backend.stop(f"{trial.name}.{trial.attempt}", grace=PATIENCE_SECONDS)
        deadline = time.monotonic() + PATIENCE_SECONDS + 5.0
        while self.state.with_status("running") and time.monotonic() < deadline:
            for event in self._listen():
                self._handle(event)
