"""Rehearse a campaign: the real controller, journal and link before hosts that are stubs.

    python tests/stub_campaign.py CAMPAIGN --hosts 64 [--machine PROFILE] [--minutes 5] ...

The clock of trials and journal runs ``speed_up`` times as fast as the real one. The controller's
own work takes real time, so each second of it counts ``speed_up`` seconds of the campaign.
"""

import argparse
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from stub_agents import SpeedUp, StubPlan, StubTransport

from hydragnn_hpo import log
from hydragnn_hpo.campaign.backends import fleet_on
from hydragnn_hpo.campaign.controller import Controller
from hydragnn_hpo.campaign.journal import read_journal
from hydragnn_hpo.campaign.outcome import last_lines
from hydragnn_hpo.campaign.setup import open_run
from hydragnn_hpo.campaign.shutdown import Drained
from hydragnn_hpo.campaign.state import State
from hydragnn_hpo.campaign.trial_kind import TrialKind
from hydragnn_hpo.config import STORE_VERSION, CampaignConfig
from hydragnn_hpo.config.search_config import Goal
from hydragnn_hpo.errors import HydraError
from hydragnn_hpo.file_records import StoreStats
from hydragnn_hpo.files import storage, write_json
from hydragnn_hpo.journal_events import JournalEvent
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.pipeline import load_campaign
from hydragnn_hpo.pipeline.estimate_stats import data_of_campaign
from hydragnn_hpo.placement import CostModel
from hydragnn_hpo.planning import PlanRequest, choose_machine, forecast_drawn
from hydragnn_hpo.planning.forecast import ERROR, ForecastMachine, TrialPricer, forecast_campaign
from hydragnn_hpo.resources import find_resource
from hydragnn_hpo.search.objective import goals
from hydragnn_hpo.walltime import WallTime

RECORDS = ("first_step", "epoch", "checkpoint")
"""Events of the journal that are records of trials."""

STEADY = 0.75
"""Load is measured while at least this share of the largest number of running trials runs."""

_SAMPLE_SECONDS = 1.0
_JOINING_SECONDS = 120.0
_HOSTS_PER_SECOND = 20.0
"""Hosts may take ``_JOINING_SECONDS`` to join, and one more second for every so many hosts."""

_SLACK = 3.0
"""A rehearsal may take so many times its predicted time, and ``_SLACK_SECONDS`` more."""

_SLACK_SECONDS = 300.0


class RehearsalError(HydraError):
    """A rehearsal did not come to its end."""

    exit_code = 1


@dataclass(frozen=True)
class RehearsalPlan:
    """What is rehearsed, and how."""

    config: CampaignConfig
    cards: Mapping[Path, str]
    """Path and name of the campaign's cards."""

    stats: Mapping[str, StoreStats]
    """Statistics of each card's data, by its name."""

    pooled_stats: StoreStats | None
    """Of all data together; None where trials are a command."""

    machine: ForecastMachine
    makespan: float
    """Predicted seconds."""

    speed_up: float
    kills_per_minute: float

    @property
    def deadline_seconds(self) -> float:
        """Seconds after which a rehearsal is given up, once all hosts have joined."""
        return _SLACK * self.makespan / self.speed_up + _SLACK_SECONDS

    @property
    def joining_seconds(self) -> float:
        """Seconds in which all hosts have to join."""
        return _JOINING_SECONDS + self.machine.hosts / _HOSTS_PER_SECOND


@dataclass(frozen=True)
class Load:
    """The controller's process at one moment."""

    time: float
    """Real seconds since the epoch."""

    cpu_seconds: float
    """Of all its threads since it began."""

    resident_bytes: int
    running: int
    """Trials."""


@dataclass(frozen=True)
class ControllerLoad:
    """Records that the controller processed, CPU and memory, while nearly all trials ran."""

    steady_seconds: float
    running_trials: float
    """Median."""

    records_per_second: float
    controller_cores: float
    memory_first_mb: float
    memory_last_mb: float
    memory_most_mb: float
    """In the whole rehearsal."""


@dataclass(frozen=True)
class Rehearsal:
    """What a rehearsal found."""

    hosts: int
    wall_seconds: float
    hosts_admitted: int
    admission_seconds: float | None
    """Until all hosts had joined; None if they never did."""

    admission_cpu_seconds: float | None
    hosts_killed: int
    trials: int
    results: int
    attempts: int
    attempts_lost: int
    results_lost: int
    """Results on disk that the journal does not have."""

    results_twice: int
    load: ControllerLoad
    predicted_makespan: float
    """Seconds of the campaign, by a forecast of these trials with as many failures of hosts."""

    makespan: float
    """Seconds of the campaign, as rehearsed."""

    def problems(self) -> list[str]:
        """List what the controller did wrong, one sentence each."""
        problems = []
        if self.hosts_admitted < self.hosts:
            problems.append(f"{self.hosts_admitted:,} of {self.hosts:,} hosts joined.")
        if self.results_lost:
            problems.append(f"{self.results_lost:,} results are on disk and not in the journal.")
        if self.results_twice:
            problems.append(f"{self.results_twice:,} results were counted twice.")
        return problems


def _without_counters(config: CampaignConfig) -> CampaignConfig:
    """Return a campaign without counters of energy: they count real seconds, trials its own."""
    machine = config.machine.model_copy(update={"sample_seconds": 0.0})
    return config.model_copy(update={"machine": machine})


def rehearse(plan: RehearsalPlan, path: Path) -> Rehearsal:
    """Run a campaign before stub agents.

    Args:
        plan: what is rehearsed.
        path: a run directory that does not exist, or is empty.

    Raises:
        RehearsalError: the controller, the stubs or the time came to an end before the campaign.
        ConfigError: the space does not fit the data.
        StorageError: the run directory cannot be written.
    """
    config = _without_counters(plan.config)
    run = _open_run(config, path, plan.stats)
    clock = SpeedUp(time.time(), plan.speed_up)
    transport = StubTransport(_describe(plan, run, clock))
    monitor = Monitor(plan, transport)
    state, work = _run_controller(config, run, plan, transport, monitor, clock)
    events = list(read_journal(run.journal))
    lost, twice = check_results(events, find_results(run))
    ends = [e for e in events if e["event"] == "ended"]
    admission = monitor.admission
    return Rehearsal(
        hosts=plan.machine.hosts,
        wall_seconds=time.time() - clock.began,
        hosts_admitted=monitor.admitted,
        admission_seconds=admission.time - clock.began if admission else None,
        admission_cpu_seconds=admission.cpu_seconds if admission else None,
        hosts_killed=monitor.killed,
        trials=len(state.trials),
        results=sum(trial.score is not None for trial in state.trials.values()),
        attempts=len(ends),
        attempts_lost=sum(e["reason"] == "host_lost" for e in ends),
        results_lost=lost,
        results_twice=twice,
        load=summarize_load(monitor.samples, events, clock),
        predicted_makespan=_predict(plan, config, work, state),
        makespan=measure_makespan(events),
    )


def find_results(run: RunDir) -> list[tuple[str, int]]:
    """Return trial and attempt of each result on disk."""
    paths = run.trials.glob("*/attempts/*/result.json")
    return [(path.parents[2].name, int(path.parent.name)) for path in paths]


def summarize_load(
    samples: Sequence[Load], events: Sequence[JournalEvent], clock: SpeedUp
) -> ControllerLoad:
    """Return the load of the time in which nearly all trials ran.

    Args:
        samples: of the whole rehearsal.
        events: of the journal.
        clock: relates the times of the two.

    Raises:
        RehearsalError: nothing was measured.
    """
    steady = find_steady(samples)
    first, last = steady[0], steady[-1]
    seconds = last.time - first.time
    per_second = 1.0 / seconds if seconds else 0.0
    return ControllerLoad(
        steady_seconds=seconds,
        running_trials=statistics.median(load.running for load in steady),
        records_per_second=per_second * count_records(events, steady, clock),
        controller_cores=per_second * (last.cpu_seconds - first.cpu_seconds),
        memory_first_mb=first.resident_bytes / 1e6,
        memory_last_mb=last.resident_bytes / 1e6,
        memory_most_mb=max(load.resident_bytes for load in samples) / 1e6,
    )


def _run_controller(
    config: CampaignConfig,
    run: RunDir,
    plan: RehearsalPlan,
    transport: StubTransport,
    monitor: "Monitor",
    clock: SpeedUp,
) -> tuple[State, TrialKind]:
    """Run the controller to its end; whatever ends it sooner becomes a sentence."""
    try:
        controller = Controller(
            config,
            run,
            cards=plan.cards,
            make_backend=lambda: fleet_on(transport, config.machine, run.path),
            watch=monitor,
            clock=clock,
        )
        controller.walltime = WallTime(math.inf)  # of real time, and of our own allocation
        try:
            return controller.run(), controller.work
        finally:
            controller.close()
    except HydraError:
        raise
    except Drained as why:
        raise RehearsalError(
            f"the campaign was drained: {why}; {monitor.progress}: run it again."
        ) from why
    except Exception as error:
        raise RehearsalError(
            f"the controller ended with {type(error).__name__} ({error}); {monitor.progress}: "
            f"see {run.path}."
        ) from error
    finally:
        transport.close()


class Monitor:
    """Follows a rehearsal after each turn of the controller: measures, kills hosts, gives up."""

    def __init__(self, plan: RehearsalPlan, transport: StubTransport) -> None:
        """Begin the time in which hosts have to join."""
        self._plan, self._transport = plan, transport
        self.samples: list[Load] = []
        self.admission: Load | None = None
        """When all hosts had joined; CPU seconds since the beginning."""
        self.admitted = self.killed = 0
        self.progress = "no trial was proposed"
        """How far the campaign is, in words."""
        self._random = random.Random(plan.config.seed)
        self._began = time.monotonic()
        self._began_cpu = time.process_time()
        self._next_sample = 0.0
        self._next_kill = math.inf

    def __call__(self, state: State, controller: Controller) -> None:
        """Look at the controller.

        Raises:
            RehearsalError: the stubs have ended, or the time is over.
        """
        now = time.monotonic()
        if now < self._next_sample and now < self._next_kill:
            return
        if self._next_kill <= now:
            self._kill_host(now)
        self._next_sample = now + _SAMPLE_SECONDS
        load = measure_load(state)
        self.samples.append(load)
        ended = sum(trial.score is not None for trial in state.trials.values())
        self.progress = (
            f"{ended:,} of {len(state.trials):,} trials had a result, {load.running:,} ran, "
            f"{state.count('queued'):,} waited"
        )
        there = len(controller.backend.slots) // self._plan.machine.slots_per_host
        self.admitted = max(self.admitted, there)
        if self.admission is None and there >= self._plan.machine.hosts:
            spent = load.cpu_seconds - self._began_cpu
            self.admission = replace(load, cpu_seconds=spent)
        if self._next_kill == math.inf and self.admission and load.running:
            self._await_kill(now)
        self._check_time(now)

    def _await_kill(self, now: float) -> None:
        if self._plan.kills_per_minute:
            rate = self._plan.kills_per_minute / 60.0
            self._next_kill = now + self._random.expovariate(rate)

    def _kill_host(self, now: float) -> None:
        """Kill a host; of half of them the transport notices nothing."""
        host = self._random.choice(self._transport.hosts)
        self._transport.kill(host, noticed=self._random.random() < 0.5)
        self.killed += 1
        self._await_kill(now)

    def _check_time(self, now: float) -> None:
        """Check that stubs and hosts are there, and that the end is in reach.

        Raises:
            RehearsalError: they are not.
        """
        if (code := self._transport.exit_code) is not None:
            raise RehearsalError(
                f"the stub agents ended (code {code}): {last_lines(self._transport.log)}; "
                f"{self.progress}: see the log."
            )
        seconds = now - self._began
        hosts = self._plan.machine.hosts
        if self.admission is None and seconds > self._plan.joining_seconds:
            raise RehearsalError(
                f"{self.admitted:,} of {hosts:,} hosts joined within {seconds:.0f} s; "
                f"{self.progress}: rehearse fewer hosts."
            )
        if seconds > self._plan.joining_seconds + self._plan.deadline_seconds:
            raise RehearsalError(
                f"after {seconds:.0f} s the campaign, predicted to take "
                f"{self._plan.makespan / self._plan.speed_up:.0f} s, had not ended: "
                f"{self.progress}; rehearse a smaller campaign."
            )


def measure_load(state: State) -> Load:
    """Return what this process takes now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    resident = pages * os.sysconf("SC_PAGE_SIZE")
    return Load(time.time(), time.process_time(), resident, state.count("running"))


def find_steady(samples: Sequence[Load]) -> Sequence[Load]:
    """Return the samples from the first to the last at which nearly all trials ran.

    Raises:
        RehearsalError: there are none.
    """
    if not samples:
        raise RehearsalError("the rehearsal was over before anything was measured: see --minutes.")
    most = max(load.running for load in samples)
    busy = [place for place, load in enumerate(samples) if load.running >= STEADY * most]
    return samples[busy[0] : busy[-1] + 1]


def count_records(events: Iterable[JournalEvent], steady: Sequence[Load], clock: SpeedUp) -> int:
    """Count the records that the journal took between the first and the last of some samples.

    Args:
        events: of the journal, in the campaign's time.
        steady: the samples, in real time.
        clock: relates the two.
    """
    first, last = steady[0].time, steady[-1].time
    times = (clock.real(e["time"]) for e in events if e["event"] in RECORDS)
    return sum(first <= moment < last for moment in times)


def check_results(
    events: Iterable[JournalEvent], results: Iterable[tuple[str, int]]
) -> tuple[int, int]:
    """Compare results on disk with those in the journal.

    Args:
        events: of the journal.
        results: trial and attempt of each ``result.json``.

    Returns:
        How many are not in the journal, and how often the journal counts a trial again for epochs
        that it had ended before.
    """
    until: dict[tuple[str, int], int] = {}
    counted: set[tuple[str, int]] = set()
    ends: Counter[tuple[str, int]] = Counter()
    for event in events:
        if event["event"] == "placed":
            until[event["trial"], event["attempt"]] = event["until"]
        elif event["event"] == "ended" and event["outcome"] != "interrupted":
            attempt = event["trial"], event["attempt"]
            counted.add(attempt)
            ends[event["trial"], until.get(attempt, 0)] += 1
    lost = sum(attempt not in counted for attempt in results)
    return lost, sum(count - 1 for count in ends.values())


def measure_makespan(events: Iterable[JournalEvent]) -> float:
    """Return the seconds from the first attempt's begin to the last one's end."""
    began = ended = math.nan
    for event in events:
        if event["event"] == "placed" and math.isnan(began):
            began = event["time"]
        elif event["event"] == "ended":
            ended = event["time"]
    return ended - began


def _predict(plan: RehearsalPlan, config: CampaignConfig, work: TrialKind, state: State) -> float:
    """Return the makespan that a forecast predicts of the trials that were rehearsed.

    Neither knows a start of the machine, nor the end of an allocation. Hosts fail as often.
    """
    update = {"cold_start_seconds": 0.0, "wall_hours": None, "limits": ()}
    profile = plan.machine.profile.model_copy(update=update)
    per_hour = 60.0 * plan.kills_per_minute / plan.speed_up / plan.machine.hosts
    machine = replace(plan.machine, profile=profile, failures=per_hour)
    width = min(config.machine.max_width, machine.slots)
    costs = CostModel(plan.pooled_stats, profile, max_width=width)
    pricer = TrialPricer(config, machine, costs, work.configure)
    trials = ((n, t.values) for n, t in state.trials.items() if t.parent is None)
    priced = {each.name: each for n, v in trials if (each := pricer.price(n, v)) is not None}
    return forecast_campaign(config, machine, priced).simulated.makespan


def _open_run(config: CampaignConfig, path: Path, stats: Mapping[str, StoreStats]) -> RunDir:
    """Make a run directory with what a controller reads of graph stores.

    Args:
        config: the campaign.
        path: of the directory.
        stats: of the stores, by name.

    Raises:
        RehearsalError: it holds a run.
    """
    run = open_run(config, path)
    if run.journal.exists():
        raise RehearsalError(f"{path}: has been run already: choose another directory.")
    for name, content in stats.items():
        store = run.store(name)
        with storage(store):
            store.mkdir(parents=True, exist_ok=True)
        write_json(store / "stats.json", content)
        write_json(store / "index.json", {"version": STORE_VERSION})
    return run


def _describe(plan: RehearsalPlan, run: RunDir, clock: SpeedUp) -> StubPlan:
    """Return what the stub agents must know."""
    config, command = plan.config, plan.config.command
    return StubPlan(
        run_dir=str(run.path.resolve()),
        hosts=plan.machine.hosts,
        slots_per_host=plan.machine.slots_per_host,
        lanes=config.machine.lanes,
        clock=clock,
        seed=config.seed,
        spread=ERROR,
        stats=None if plan.pooled_stats is None else {**plan.pooled_stats},
        profile=config.machine.profile,
        max_width=config.machine.max_width,
        command_width=command.width if command else None,
        goals=tuple(name for goal in goals(config.search.objective) for name in _numbers(goal)),
        start_seconds=plan.machine.profile.start_seconds,
    )


def _numbers(goal: Goal) -> tuple[str, ...]:
    """Return the names of the numbers of a result that a goal is made of."""
    if isinstance(goal, str):
        return () if goal == "weighted" else (goal,)
    return tuple(f"val_mae.{head}" for head in goal)


_HOSTS_PER_KILL = 256.0
"""Hosts per kill and minute, unless ``--kills`` says otherwise."""


def parse_arguments() -> argparse.Namespace:
    """Parse the command line, whose options of the machine are those of ``hydragnn-hpo plan``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("campaign")
    parser.add_argument("--machine")
    for name in ("hosts", "slots", "trials", "structures"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--minutes", type=float, default=5.0, help="approximate length")
    parser.add_argument("--speed-up", type=float, help="overrides --minutes")
    parser.add_argument("--kills", type=float, help="hosts to kill per minute")
    parser.add_argument("--run", type=Path, help="directory to keep")
    return parser.parse_args()


def make_plan(given: argparse.Namespace) -> RehearsalPlan:
    """Read a campaign as ``plan`` does, and choose the speed-up of its rehearsal."""
    source = find_resource(given.campaign, "workflows")
    config = load_campaign(source, profile=given.machine)
    run = RunDir(Path("runs") / config.name)
    data = data_of_campaign(config, source, run, given.structures)
    machine = choose_machine(config, PlanRequest(given.hosts, given.slots))
    if given.trials:
        initial = min(config.search.initial, given.trials)
        update = {"trials": given.trials, "initial": initial}
        config = config.model_copy(update={"search": config.search.model_copy(update=update)})
    configure, trials = data.work.configure, config.search.trials
    makespan = forecast_drawn(config, machine, data.stats, configure, trials).simulated.makespan
    usual_kills = machine.hosts / _HOSTS_PER_KILL
    return RehearsalPlan(
        config=config,
        cards=data.cards,
        stats=data.by_card,
        pooled_stats=data.stats,
        machine=machine,
        makespan=makespan,
        speed_up=given.speed_up or max(1.0, makespan / (60.0 * given.minutes)),
        kills_per_minute=usual_kills if given.kills is None else given.kills,
    )


def main() -> None:
    """Rehearse a campaign, and print what was found as JSON."""
    given = parse_arguments()
    log.configure(level=40)  # hosts that are killed are no news here
    try:
        plan = make_plan(given)
        with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
            rehearsal = rehearse(plan, given.run or Path(folder) / "run")
    except HydraError as error:
        sys.exit(f"error: {error}")
    figures = asdict(rehearsal)
    load = figures.pop("load")
    settings = {"slots_per_host": plan.machine.slots_per_host, "speed_up": plan.speed_up}
    print(json.dumps({**settings, **figures, **load}))
    if problems := rehearsal.problems():
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
