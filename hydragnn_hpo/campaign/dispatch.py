"""Connect state and planner: price trials, place them on slots, and write their jobs."""

import logging
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydragnn_hpo.campaign.backends import start_profile
from hydragnn_hpo.campaign.event_store import EventStore
from hydragnn_hpo.campaign.state import State, Trial
from hydragnn_hpo.campaign.trial_kind import TrialKind
from hydragnn_hpo.config import (
    HERE,
    CampaignConfig,
    PlacementConfig,
    ProfileConfig,
    TrialConfig,
    dump_config,
    find_profile,
)
from hydragnn_hpo.errors import JobError
from hydragnn_hpo.file_records import StoreStats
from hydragnn_hpo.files import storage, write_text
from hydragnn_hpo.journal_events import AttemptOutcome
from hydragnn_hpo.launching import Event, Job, Slot
from hydragnn_hpo.launching.job import ABSENT_SECONDS
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.placement import (
    CostModel,
    Plan,
    PlanningContext,
    Price,
    RunningTask,
    SlotPool,
    StartTask,
    Task,
    plan,
)


def merge_slots(slots: Sequence[Slot]) -> Slot:
    """Merge the slots that one rank takes on its device: it gets all their cores and memory."""
    if len(slots) == 1:
        return slots[0]
    cores = tuple(sorted({core for slot in slots for core in slot.cores}))
    return replace(slots[0], cores=cores, memory_mb=sum(slot.memory_mb for slot in slots))


NAMED = 20
"""Most hosts without an agent that are warned about one by one."""

FEW = 16
"""Most joining hosts that are added to the pool one by one; for more it is rebuilt."""


def choose_profile(slots: Sequence[Slot], here: ProfileConfig, lanes: int) -> ProfileConfig:
    """Choose a profile by device and memory of the slots, for a machine that names none.

    Args:
        slots: all slots of the backend.
        here: the profile for a computer without GPUs.
        lanes: number of slots that share one device.
    """
    profile = find_profile("generic-slurm") if any(s.device != "cpu" for s in slots) else here
    return set_measured_memory(profile, slots, lanes)


def set_measured_memory(profile: ProfileConfig, slots: Sequence[Slot], lanes: int) -> ProfileConfig:
    """Return the profile with the smallest device memory that the slots report, if any do.

    Args:
        profile: not modified; a copy is returned where memory is known.
        slots: of the backend; their ``memory_mb`` is a lane's share of a device, in MiB.
        lanes: number of slots that share one device.
    """
    known = [slot.memory_mb for slot in slots if slot.memory_mb]
    if not known:
        return profile
    measured = min(known) * lanes * 2**20 / 1e9
    return profile.model_copy(update={"memory_gb": min(measured, profile.memory_gb or measured)})


SPEEDS = (
    *("device", "process_gb", "flops_per_second", "bytes_per_second"),
    *("step_seconds", "layer_seconds", "within", "between"),
)
"""Fields of a profile that describe its devices."""


def fill_profile(profile: ProfileConfig, slots: Sequence[Slot], lanes: int) -> ProfileConfig:
    """Set the memory that slots have; replace the device's fields if the slots have the other kind.

    A job may have been given less memory of its hosts than the profile says.

    With a GPU's figures, hosts without GPUs would seem a hundred times too fast.

    Args:
        profile: not modified.
        slots: of the backend; if there are none, the profile's device is kept.
        lanes: number of slots that share one device.
    """
    kind = "gpu" if any(slot.device != "cpu" for slot in slots) else "cpu"
    if slots and kind != profile.device:
        other = find_profile("generic-slurm" if kind == "gpu" else HERE)
        update = {key: getattr(other, key) for key in SPEEDS}
        profile = profile.model_copy(update={**update, "memory_gb": 0.0})
    if kind == "gpu" and profile.memory_gb:
        return profile
    return set_measured_memory(profile, slots, lanes)


class Dispatch:
    """Holds slots, configurations and the cost model; the planner makes all decisions."""

    def __init__(
        self, config: CampaignConfig, run: RunDir, work: TrialKind, profile: ProfileConfig
    ) -> None:
        """Start without slots, statistics and trials; the controller fills them in.

        Args:
            config: the campaign.
            run: its directory.
            work: the kind of its trials.
            profile: of the machine.
        """
        self.config, self.run_dir, self.work, self.profile = config, run, work, profile
        self.slots: dict[str, Slot] = {}
        self.pool = SlotPool({})
        self.costs = CostModel(None, profile, max_width=config.machine.max_width)
        self.configs: dict[str, Any] = {}

    def settle(self, stats: StoreStats | None, slots: Sequence[Slot]) -> None:
        """Set up profile and cost model from data, slots and the cost models of earlier campaigns.

        What this campaign measured itself comes later from its journal, see ``learn_again``.
        """
        if self.config.machine.profile is None:
            self.profile = choose_profile(slots, self.profile, self.config.machine.lanes)
        else:
            self.profile = fill_profile(self.profile, slots, self.config.machine.lanes)
        self.profile = start_profile(self.profile, self.config)
        self.costs = CostModel(stats, self.profile, max_width=self.config.machine.max_width)
        for path in self.config.search.warm_start:
            if (earlier := RunDir(Path(path)).costs).exists():
                self.costs.load(earlier)

    @property
    def spreads(self) -> dict[str, float]:
        """Standard deviation of each target in its own unit.

        Returns:
            Standard deviation by target; empty for a command.
        """
        targets = self.work.stats["targets"] if self.work.stats else {}
        return {name: target["std"] for name, target in targets.items() if "std" in target}

    # -- slots -----------------------------------------------------------------------

    def lay_out(self, slots: Sequence[Slot], state: State) -> None:
        """Rebuild the pool from the present slots, and claim those of running trials.

        Quarantined hosts are used only if there are no others. ``slots`` keeps the slots of lost
        hosts: a trial placed there is still started, and the backend reports it as lost.
        """
        self.slots |= {slot.name: slot for slot in slots}
        kept = [slot.name for slot in slots if slot.host not in state.hosts.quarantined]
        self.pool = SlotPool.of(
            kept or [slot.name for slot in slots],
            hosts_per_group=self.profile.hosts_per_group,
            slot_order=self.profile.slot_order,
        )
        for trial in state.with_status("running"):
            self.pool.claim(trial.slots)

    def join(self, hosts: Collection[str], slots: Sequence[Slot], state: State) -> None:
        """Add joined hosts to the pool; rebuild it if there are more than ``FEW``.

        Args:
            hosts: ids of the joined hosts.
            slots: all slots of the backend.
            state: the campaign's state.
        """
        if len(hosts) > FEW or not self.pool.total:
            self.lay_out(slots, state)
            return
        slots_by_host: dict[str, list[str]] = {}
        for slot in slots:
            if slot.host in hosts:
                self.slots[slot.name] = slot
                slots_by_host.setdefault(slot.host, []).append(slot.name)
        for host, names in slots_by_host.items():
            if host not in state.hosts.quarantined:
                self.pool.add_host(host, names)
        for trial in state.with_status("running"):
            if not slots_by_host.keys().isdisjoint(trial.hosts):
                self.pool.claim(trial.slots)

    # -- deciding --------------------------------------------------------------------

    def decide(self, state: State, *, now: float, to_come: int, time_left: float) -> Plan:
        """Plan what starts now, where, and which running trials are resized.

        Args:
            state: the campaign's state.
            now: seconds since the Unix epoch.
            to_come: number of trials still to be proposed.
            time_left: seconds until the allocation is drained.
        """
        profile = self.profile
        outlook = PlanningContext(
            restart_seconds=profile.restart_seconds,
            checkpoint_seconds=profile.start_seconds + profile.restart_seconds,
            time_left=time_left,
            more_to_come=to_come > 0,
            to_come=to_come,
        )
        queued = sorted(state.with_status("queued"), key=lambda trial: (-trial.until, trial.name))
        waiting = [self._task(trial) for trial in queued]
        running = [self._running(trial, now) for trial in state.with_status("running")]
        return plan(waiting, running, self.pool, outlook)

    def _task(self, trial: Trial) -> Task:
        price = self.price(trial)
        epochs = trial.until - trial.epoch
        widths = [w for w in price.widths if w >= trial.min_width] or [price.widths[-1]]
        return Task(
            trial.name,
            tuple(widths),
            tuple(epochs * price.epoch_seconds(width) for width in widths),
            measured=price.measured,
            restarts=trial.resizes,
            lanes=self._lanes(trial, price),
            requested_width=trial.requested_width,
        )

    def _running(self, trial: Trial, now: float) -> RunningTask:
        epoch = self.price(trial).epoch_seconds(trial.width)
        left = epoch * (trial.until - trial.epoch)
        if trial.first_step is None:
            left += self.profile.start_seconds
        since = max(0.0, now - trial.last_progress)
        stoppable = trial.first_step is not None and trial.stop_reason is None
        return RunningTask(
            self._task(trial), trial.width, max(left - since, 0.1 * epoch), stoppable
        )

    def _lanes(self, trial: Trial, price: Price) -> int:
        """Return the number of slots each rank takes: one, or all lanes of its device."""
        lanes = self.config.machine.lanes
        if lanes == 1:
            return 1
        room = self.profile.memory_bytes / lanes
        return lanes if trial.whole_device or price.memory(trial.min_width) > room else 1

    def price(self, trial: Trial) -> Price:
        """Price a trial by the present cost model."""
        config = self.configs[trial.name]
        if isinstance(config, TrialConfig):
            return self.costs.price(config)
        command = self.config.command
        return self.costs.price_values(trial.values, (command.width,) if command else (1,))

    def choices(self, trial: Trial) -> tuple[tuple[int, ...], bool]:
        """Return the widths a trial may have on this machine, and whether it shares devices.

        Returns:
            Widths in ranks, rising; whether its devices may also run ranks of other trials.
        """
        price = self.price(trial)
        lanes = self._lanes(trial, price)
        room = self.pool.widest // lanes
        widths = tuple(width for width in price.widths if width <= room)
        return widths, self.config.machine.lanes > 1 and lanes == 1

    # -- starting and ending -----------------------------------------------------------

    def prepare(self, trial: Trial, start: StartTask) -> Job:
        """Write the placement of a trial's present attempt, and return its job for the backend.

        ``trial.toml`` is also written here if it is missing, so that a trial proposed just before
        a crash of the controller gets one.
        """
        attempt = trial.attempt
        folder = self.run_dir.trial(trial.name)
        place = folder.attempt(attempt)
        placement = PlacementConfig(
            attempt=attempt,
            epochs=trial.until,
            width=start.width,
            slots=start.slots,
            reason=start.reason,
        )
        with storage(place):
            place.mkdir(parents=True, exist_ok=True)
        if not folder.config.exists():
            write_text(folder.config, self.work.render_config(self.configs[trial.name]))
        write_text(place / "placement.toml", dump_config(placement))
        slots = self._places(start)
        ranks = self.work.choose_rank_slots(slots)
        other_hosts = dict.fromkeys(slot.host for slot in slots)
        for slot in ranks:
            other_hosts.pop(slot.host, None)
        return Job(
            id=f"{trial.name}.{attempt}",
            kind=self.work.kind,
            width=len(ranks),
            spec=self.work.make_spec(folder, attempt=attempt, epochs=trial.until, slots=slots),
            log=place / "log",
            watch=place / "metrics.jsonl",
            slots=ranks,
            other_hosts=tuple(other_hosts),
        )

    def _places(self, start: StartTask) -> tuple[Slot, ...]:
        """Return one slot for each rank, merged from the lanes that it takes."""
        lanes = len(start.slots) // start.width
        named = [self.slots[name] for name in start.slots]
        return tuple(merge_slots(named[at : at + lanes]) for at in range(0, len(named), lanes))

    def release(self, trial: Trial, ended: AttemptOutcome) -> None:
        """Free a trial's slots, and update the cost model by its end and its memory."""
        self.pool.give_back(trial.slots)
        config = self.configs[trial.name]
        if ended["outcome"] == "interrupted" or not isinstance(config, TrialConfig):
            return
        failed = ended["outcome"] == "failed"
        self.costs.observe_end(config, ended["reason"] if failed else None)
        if peak := ended.get("peak_bytes"):
            self.costs.observe_memory(config, trial.width, peak)

    def learn_again(self, trial: Trial) -> None:
        """Update the cost model by a trial of an earlier controller, from the journal."""
        for width, seconds in trial.seconds.items():
            self.learn(trial, width, seconds)
        config = self.configs.get(trial.name)
        if isinstance(config, TrialConfig) and trial.status not in ("queued", "running"):
            self.costs.observe_end(config, trial.reason if trial.status == "failed" else None)

    def learn(self, trial: Trial, width: int, seconds: float) -> None:
        """Update the cost model by the measured time of one epoch.

        Args:
            trial: the trial.
            width: number of ranks in this epoch.
            seconds: time of training and validation; 0 is ignored.
        """
        config = self.configs[trial.name]
        if isinstance(config, TrialConfig):
            self.costs.observe(config, width, seconds)
        else:
            self.costs.observe_values(trial.values, width, seconds)


logger = logging.getLogger(__name__)

FAILURES = 2
"""Number of different failures after which a host gets no more trials."""


def warn_absent(absent: Mapping[str, str], hosts: int) -> None:
    """Warn about hosts without an agent.

    Args:
        absent: host -> end of a sentence that begins with it.
        hosts: number of all hosts of the allocation.
    """
    for host, reason in list(absent.items())[:NAMED]:
        logger.warning("host %s %s.", host, reason.rstrip("."))
    if len(absent) > NAMED:
        logger.warning("%d of %d hosts have no agent; status names them.", len(absent), hosts)


class HostHealth:
    """Records joined and lost hosts, and quarantines those that fail."""

    def __init__(self, event_store: EventStore, dispatch: Dispatch) -> None:
        """Start without hosts; events of the backend add them."""
        self.event_store, self.dispatch = event_store, dispatch
        self._absent: dict[str, str] = {}
        self._hosts = 0
        self._waiting = 0
        self._last_join = time.monotonic()
        self._ends: dict[str, float] = {}
        """When hosts of other allocations leave, in seconds since the Unix epoch, by host."""

    def on_event(self, event: Event) -> bool:
        """Process an event of a host; return False for any other event.

        The controller adds the slots of joined hosts to the pool, all hosts of a turn at once.
        """
        if event.kind == "host_joined":
            fields = {key: event.data[key] for key in ("host", "slots")}
            self.event_store.append("host_joined", durable=False, **fields)
            self._last_join = time.monotonic()
            self._absent.pop(event.data["host"], None)
        elif event.kind == "host_leaving":
            self._ends[event.data["host"]] = event.data["ends_at"]
        elif event.kind == "host_lost":
            self._ends.pop(event.data["host"], None)
            self._mark_host_lost(event.data["host"], event.data["reason"])
        elif event.kind == "hosts_absent":
            self.event_store.append("hosts_absent", hosts=event.data["hosts"])
            self._absent |= event.data["hosts"]
            self._hosts, self._waiting = event.data["of"], event.data["waiting"]
        return event.kind in ("host_joined", "host_leaving", "host_lost", "hosts_absent")

    def check_enough_joined(self) -> None:
        """Check whether as many hosts have started as the campaign needs, unless more may come.

        Raises:
            JobError: too few have.
        """
        fewest = self.dispatch.config.launch.min_hosts or math.ceil(self._hosts / 2)
        joined = self._hosts - len(self._absent)
        quiet = time.monotonic() - self._last_join > ABSENT_SECONDS
        if self._absent and joined < fewest and (quiet or not self._waiting):
            host, reason = next(iter(self._absent.items()))
            raise JobError(
                f"{joined} of {self._hosts} hosts started, fewer than the {fewest} of "
                f"launch.min_hosts: host {host} {reason}. Correct that, exclude such hosts, or "
                "lower launch.min_hosts."
            )

    def close_ending_hosts(self, now: float, *, checkpoint: float) -> list[Trial]:
        """Close hosts that leave soon for new trials.

        Args:
            now: seconds since the Unix epoch, plus the margin to keep free before an end.
            checkpoint: seconds from the start of a trial to its first checkpoint.

        Returns:
            Running trials that must checkpoint and end now.
        """
        gone = {host for host, end in self._ends.items() if end <= now}
        for host, end in self._ends.items():
            if end - now <= checkpoint:
                self.dispatch.pool.close_host(host)
        if not gone:
            return []
        running = self.event_store.state.with_status("running")
        return [t for t in running if t.stop_reason is None and not gone.isdisjoint(t.hosts)]

    def quarantine_failing(self) -> None:
        """Quarantine hosts with ``FAILURES`` failures of different causes, except the last one."""
        hosts = self.event_store.state.hosts
        for host, causes in list(hosts.failures.items()):
            if len(causes) < FAILURES or host in hosts.quarantined or host not in hosts.slots:
                continue
            if len(hosts.slots.keys() - hosts.quarantined.keys()) < 2:
                continue
            self.quarantine(host, f"failed {len(causes)} times: {', '.join(sorted(causes))}")

    def quarantine(self, host: str, reason: str) -> None:
        """Stop placing trials on a host."""
        logger.warning("host %s %s; it gets no more trials.", host, reason)
        self.event_store.append("quarantined", host=host, reason=reason)
        self.dispatch.pool.close_host(host)

    def quarantine_unusable(self, host: str, there: Collection[str], error: str) -> None:
        """Quarantine a host on which nothing can start.

        Args:
            host: its id.
            there: ids of all present hosts.
            error: why nothing can start.

        Raises:
            JobError: no other host is usable.
        """
        if set(there) - {host} <= self.event_store.state.hosts.quarantined.keys():
            raise JobError(error)
        self.quarantine(host, f"can start nothing: {error}")

    def _mark_host_lost(self, host: str, reason: str) -> None:
        times = sum(
            cause.startswith("lost") for cause in self.event_store.state.hosts.failures[host]
        )
        self.event_store.append("host_failed", durable=False, host=host, cause=f"lost {times + 1}")
        self.event_store.append("host_lost", host=host, reason=reason)
        self.dispatch.pool.close_host(host)
