"""Stub agents: thousands of simulated hosts in one process, which follow the protocol only.

``python tests/stub_agents.py PLAN`` reads lines from stdin: the name of a host to
start, or ``-NAME`` for one that fails silently; it ends at the end of stdin. ``StubTransport``
starts it for a controller. A trial's epochs take their predicted seconds, times an error that the
controller does not know, divided by the speed-up; its files have the format of a real trial's.
"""

import contextlib
import heapq
import itertools
import logging
import math
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import zmq

import hydragnn_hpo
from hydragnn_hpo.config import (
    INTERRUPTED,
    PlacementConfig,
    TrialConfig,
    find_profile,
    load_config,
)
from hydragnn_hpo.errors import HydraError
from hydragnn_hpo.files import storage, write_json
from hydragnn_hpo.launching.host_registry import raise_file_limit
from hydragnn_hpo.launching.job import Slot
from hydragnn_hpo.launching.job_process import PEER_GRACE
from hydragnn_hpo.launching.jsonl_tail import JsonlTail
from hydragnn_hpo.launching.link import AgentLink, ControllerAddress, read_address, read_keys
from hydragnn_hpo.launching.process_control import tethered
from hydragnn_hpo.launching.protocol import (
    VERSION,
    AskRank,
    DropJob,
    Farewell,
    ForgetJob,
    ForkServerReady,
    Goodbye,
    Heartbeat,
    Hello,
    HostSlots,
    JobEnded,
    JobStarted,
    KnownJob,
    Lease,
    NewRecords,
    News,
    Order,
    PeerEnded,
    RankEnded,
    StartJob,
    StopJob,
    Welcome,
    heartbeat_seconds,
)
from hydragnn_hpo.launching.transports.transport import AgentCall, HostNews
from hydragnn_hpo.layout import TrialDir, derive_seed
from hydragnn_hpo.placement import CostModel, Price
from hydragnn_hpo.planning.simulator import draw_error

if TYPE_CHECKING:
    from hydragnn_hpo.file_records import StoreStats

logger = logging.getLogger(__name__)

_COMMAND_CHECKPOINT_SECONDS = 60.0
"""Assumed seconds between the checkpoints of a command, as in a forecast."""

_ARRIVALS = 32
"""Most hosts that connect before messages of connected hosts are handled."""

_RETRY_SECONDS = 0.5
_SILENT_LEASES = 6.0
"""Durations of a lease without an answer after which a host sends ``Hello`` again."""

_LONGEST_WAIT = 0.2
_CLOSING_SECONDS = 10.0
_LINGER_MS = 500


class SpeedUp(msgspec.Struct, frozen=True):
    """A clock that runs faster than real time from a given moment on."""

    began: float
    """This moment, in seconds since the epoch."""

    factor: float

    def __call__(self) -> float:
        """Return seconds since the epoch."""
        return self.began + self.factor * (time.time() - self.began)

    def real(self, simulated: float) -> float:
        """Return the real time at which the clock shows a time."""
        return self.began + (simulated - self.began) / self.factor


class StubPlan(msgspec.Struct, frozen=True):
    """Input of stub agents that simulate a campaign on a machine."""

    run_dir: str
    hosts: int
    slots_per_host: int
    lanes: int
    clock: SpeedUp
    seed: int
    """Seed of the campaign, from which the errors of predicted times are drawn."""

    spread: float
    """Standard deviation of the logarithm of these errors."""

    stats: dict[str, Any] | None
    """``StoreStats`` of the data, not validated, as earlier versions wrote fewer keys. None where
    trials are a command."""

    profile: str | None
    max_width: int
    command_width: int | None
    """Ranks of a trial that is a command; None where trials are trainings."""

    goals: tuple[str, ...]
    """Names of the numbers that a result must hold, such as ``objective`` or ``val_mae.energy``."""

    start_seconds: float
    """From the start of an attempt to its first step, before the speed-up."""


@dataclass
class StubTrial:
    """A trial: its predicted time, and the state of its checkpoints."""

    config: TrialConfig | None
    price: Price
    error: float
    """Ratio of its true seconds to the predicted ones."""

    quality: float
    checkpoint_seconds: float
    last_epoch: int
    """Epoch after which it is complete."""

    saved: float = 0.0
    """Epochs in its checkpoint."""

    train_seconds: float = 0.0

    def objective(self, epoch: int) -> float:
        """Return its objective after an epoch: a smooth curve that falls towards ``quality``."""
        return self.quality + math.exp(-4.0 * epoch / max(self.last_epoch, 1))


@dataclass
class StubJob:
    """One attempt, with ranks on one host or more."""

    start: StartJob
    attempt: int
    folder: TrialDir
    trial: StubTrial
    until: int
    """Epoch after which it ends."""

    tail: JsonlTail
    first_host: str
    """The host of rank 0."""

    num_hosts: int
    """Number of hosts of its ranks."""

    hosts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Host -> ranks that are alive there."""

    epoch_seconds: float = 1.0
    """Real seconds per epoch at its width."""

    resumed: float = 0.0
    """Epochs of the checkpoint from which it resumed."""

    began: float = math.inf
    """When it began to train, in monotonic time; infinity while it does not train."""

    checkpointed: float = 0.0

    @property
    def id(self) -> str:
        """The job's id."""
        return self.start.job

    def progress(self, now: float) -> float:
        """Return the number of epochs trained, including those of earlier attempts."""
        if now < self.began:
            return self.resumed
        trained = (now - self.began) / self.epoch_seconds
        return min(self.resumed + trained, float(self.until))

    def result(self, status: str, epoch: int, goals: Sequence[str]) -> dict[str, Any]:
        """Return the content of ``result.json``.

        Args:
            status: ``completed`` or ``stopped``.
            epoch: last epoch that it trained.
            goals: names of the numbers that a result must hold, see ``StubPlan``.

        Returns:
            The fields that a training writes, and every goal.
        """
        value = self.trial.objective(epoch)
        heads = self.trial.config.heads if self.trial.config else ()
        errors = {head: value for head in heads}
        errors |= {goal.partition(".")[2]: value for goal in goals if goal.startswith("val_mae.")}
        numbers = {goal: value for goal in goals if "." not in goal}
        return numbers | {
            "trial": self.folder.path.name,
            "status": status,
            "reason": None,
            "epochs": epoch,
            "best_epoch": epoch,
            "objective": value,
            "val_mae": errors,
            "width": len(self.start.slots),
            "train_seconds": self.trial.train_seconds,
        }


@dataclass
class StubAgent:
    """One host and its conversation with the controller."""

    name: str
    life: str
    link: AgentLink | None = None
    descriptor: int = -1
    greeted: float = 0.0
    lease_seconds: float = 10.0
    joined: bool = False
    valid_until: float = math.inf
    """When the ranks here must end, in monotonic time."""

    ended: dict[str, JobEnded] = field(default_factory=dict)
    """Ends of jobs that the controller has not confirmed, by job."""


class StubAgents:
    """All simulated hosts, their jobs, and a schedule of actions."""

    def __init__(self, plan: StubPlan) -> None:
        """Start without hosts.

        Raises:
            JobError: the system does not allow as many open files.
            ConfigError: the machine's profile cannot be read.
        """
        # A socket has two descriptors, and its successor may be opened before they are closed.
        raise_file_limit(2 * plan.hosts + plan.hosts // 4)
        self._plan = plan
        self._run_dir = Path(plan.run_dir)
        profile = find_profile(plan.profile)
        self._device = "cpu" if profile.device == "cpu" else "cuda:0"
        stats = cast("StoreStats | None", plan.stats)
        self._costs = CostModel(stats, profile, max_width=plan.max_width)
        self._keys = read_keys(self._run_dir)
        self._address: ControllerAddress | None = None
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, plan.hosts + 64)
        self._poller = select.epoll()
        self._agents: dict[str, StubAgent] = {}
        self._listening: dict[int, StubAgent] = {}
        self._jobs: dict[str, StubJob] = {}
        self._trials: dict[str, StubTrial] = {}
        self._arriving: deque[str] = deque()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._line = b""
        self._open = True

    def serve(self) -> None:
        """Serve until the end of stdin."""
        stdin = sys.stdin.fileno()
        os.set_blocking(stdin, False)
        self._poller.register(stdin, select.EPOLLIN)
        while self._open:
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()
            for _ in range(min(len(self._arriving), _ARRIVALS)):
                self._arrive(self._arriving.popleft())
            wait = self._due[0][0] - now if self._due else _LONGEST_WAIT
            wait = 0.0 if self._arriving else min(max(wait, 0.0), _LONGEST_WAIT)
            for descriptor, _ in self._poller.poll(wait, maxevents=1024):
                if descriptor == stdin:
                    self._read_lines(stdin)
                elif (agent := self._listening.get(descriptor)) is not None:
                    self._receive(agent)
        for agent in self._agents.values():
            self._disconnect(agent, last_words=True)
        self._context.destroy(_LINGER_MS)

    def _read_lines(self, stdin: int) -> None:
        content = os.read(stdin, 1 << 16)
        self._open = bool(content)
        *names, self._line = (self._line + content).split(b"\n")
        for name in map(bytes.decode, names):
            if name.startswith("-"):
                self._kill(name[1:])
            else:
                self._arriving.append(name)

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._count), act))

    # -- conversations ---------------------------------------------------------------

    def _arrive(self, name: str) -> None:
        """Start the agent of a host, replacing any agent there."""
        self._kill(name)
        agent = self._agents[name] = StubAgent(name, f"{name}.{next(self._count)}.{os.getpid()}")
        self._begin_conversation(agent)

    def _begin_conversation(self, agent: StubAgent) -> None:
        self._disconnect(agent)
        if self._address is None:
            self._address = read_address(self._run_dir)
            assert self._address is not None, "it was written before any agent was started"
        agent.greeted = time.monotonic()
        try:
            agent.link = AgentLink(self._address, self._keys, self._context)
        except zmq.ZMQError:  # closed sockets may keep their descriptors for a moment
            self._after(_RETRY_SECONDS, lambda: self._begin_again(agent))
            return
        agent.descriptor = agent.link.fileno()
        self._listening[agent.descriptor] = agent
        self._poller.register(agent.descriptor, select.EPOLLIN)
        hello = Hello(
            protocol=VERSION,
            version=hydragnn_hpo.__version__,
            run=self._address.run,
            host=agent.name,
            life=agent.life,
            jobs=tuple(self._describe_jobs(agent)),
        )
        self._send(agent, hello)
        link = agent.link
        self._after(heartbeat_seconds(agent.lease_seconds), lambda: self._beat(agent, link))

    def _begin_again(self, agent: StubAgent) -> None:
        if self._agents.get(agent.name) is agent and agent.link is None:
            self._begin_conversation(agent)

    def _describe_jobs(self, agent: StubAgent) -> list[KnownJob]:
        running = [job for job in self._jobs.values() if agent.name in job.hosts]
        return [
            KnownJob(
                job=job.id,
                slots=job.start.slots,
                meet=job.start.meet,
                watch=job.start.watch if agent.name == job.first_host else None,
                first_offset=0,
                pids=(1,) * len(job.hosts[agent.name]),
                forked=True,
                other_hosts=job.start.other_hosts,
            )
            for job in running
        ]

    def _disconnect(self, agent: StubAgent, *, last_words: bool = False) -> None:
        if agent.link is None:
            return
        self._poller.unregister(agent.descriptor)
        del self._listening[agent.descriptor]
        agent.link.close(last_words)
        agent.link, agent.joined = None, False

    def _send(self, agent: StubAgent, news: News) -> None:
        """Send a message; without a connection it is lost, and the next ``Hello`` replaces it."""
        if agent.link is not None:
            agent.link.send(news)
            self._after(0.0, lambda: self._receive(agent))  # sending resets the socket's wake-up

    def _beat(self, agent: StubAgent, link: AgentLink) -> None:
        """Send a heartbeat; reconnect if the connection is broken."""
        if agent.link is not link or self._agents.get(agent.name) is not agent:
            return
        now = time.monotonic()
        silent = not agent.joined and now - agent.greeted > _SILENT_LEASES * agent.lease_seconds
        if now >= agent.valid_until:
            logger.warning("the lease of %s is over", agent.name)
            self._end_all(agent, -signal.SIGKILL)
        if silent or link.broken or now >= agent.valid_until:
            agent.valid_until = math.inf
            self._begin_conversation(agent)
            return
        if agent.joined:
            self._send(agent, Heartbeat(now))
        self._after(heartbeat_seconds(agent.lease_seconds), lambda: self._beat(agent, link))

    def _receive(self, agent: StubAgent) -> None:
        for order in agent.link.receive() if agent.link else ():
            self._execute(agent, order)

    def _execute(self, agent: StubAgent, order: Order) -> None:
        match order:
            case Welcome():
                self._join(agent, order)
            case Lease(at, received):
                agent.valid_until = at + agent.lease_seconds
                if agent.link:
                    agent.link.acknowledge(received)
            case Goodbye():
                self._send(agent, Farewell())
                self._kill(agent.name, last_words=True)
            case StartJob():
                self._start(agent, order)
            case ForgetJob():
                agent.ended.pop(order.job, None)
            case AskRank() | StopJob() | PeerEnded() | DropJob():
                job = self._jobs.get(order.job)
                if job is not None and agent.name in job.hosts:
                    self._execute_for(job, agent, order)

    def _execute_for(
        self, job: StubJob, agent: StubAgent, order: AskRank | StopJob | PeerEnded | DropJob
    ) -> None:
        match order:
            case AskRank(_, request) if agent.name == job.first_host:
                self._interrupt(job) if request == "yield" else self._complete(job, "cancelled")
            case StopJob():
                self._interrupt(job)
            case PeerEnded(_, code) if code:
                job.began = math.inf
                self._after(PEER_GRACE, lambda: self._end_part(job, agent.name, -signal.SIGTERM))
            case DropJob():
                self._drop(job, agent.name)

    def _join(self, agent: StubAgent, terms: Welcome) -> None:
        agent.joined = True
        agent.lease_seconds = terms.lease_seconds
        agent.valid_until = agent.greeted + terms.lease_seconds
        for job in [job for job in self._jobs.values() if agent.name in job.hosts]:
            if job.id not in terms.keep:
                self._drop(job, agent.name)
            elif agent.name == job.first_host and (offset := terms.keep[job.id]) is not None:
                job.tail.offset = offset
                self._forward(job)
        lanes = self._plan.lanes
        slots = tuple(
            Slot(agent.name, n, (n,), self._device, visible=str(n // lanes))
            for n in range(self._plan.slots_per_host)
        )
        self._send(agent, HostSlots(slots, "127.0.0.1", "lo"))
        self._send(agent, ForkServerReady(import_seconds=5.0, threads=1))
        for end in agent.ended.values():
            self._send(agent, end)

    def _kill(self, name: str, *, last_words: bool = False) -> None:
        """End a host with all its ranks; their peers stop and wait for the controller's orders."""
        agent = self._agents.pop(name, None)
        if agent is not None:
            self._disconnect(agent, last_words=last_words)
        for job in [job for job in self._jobs.values() if name in job.hosts]:
            self._drop(job, name)

    # -- jobs ------------------------------------------------------------------------

    def _start(self, agent: StubAgent, start: StartJob) -> None:
        """Start the ranks of one host; the job trains once the ranks of all its hosts exist."""
        job = self._jobs.get(start.job)
        if job is None:
            job = self._jobs[start.job] = self._make_job(start)
        ranks = tuple(rank.rank for rank in start.ranks)
        job.hosts[agent.name] = ranks
        self._send(agent, JobStarted(job.id, (1,) * len(ranks)))
        if len(job.hosts) == job.num_hosts and job.began == math.inf:
            seconds = self._plan.start_seconds / self._plan.clock.factor
            self._after(seconds, lambda: self._begin(job))

    def _make_job(self, start: StartJob) -> StubJob:
        folder = TrialDir(Path(start.spec["trial_dir"]))
        attempt = start.spec["attempt"]
        placement = load_config(folder.attempt(attempt) / "placement.toml", PlacementConfig)
        name = folder.path.name
        if name not in self._trials:
            self._trials[name] = self._make_trial(folder)
        trial = self._trials[name]
        tail = JsonlTail(folder.attempt(attempt) / "metrics.jsonl", 0)
        seconds = trial.error * trial.price.epoch_seconds(placement.width)
        hosts = list(dict.fromkeys(slot.rpartition(":")[0] for slot in start.slots))
        return StubJob(
            start=start,
            attempt=attempt,
            folder=folder,
            trial=trial,
            until=placement.epochs,
            tail=tail,
            first_host=hosts[0],
            num_hosts=len(hosts),
            epoch_seconds=seconds / self._plan.clock.factor,
        )

    def _make_trial(self, folder: TrialDir) -> StubTrial:
        plan, name = self._plan, folder.path.name
        error = draw_error(plan.seed, name, plan.spread)
        quality = random.Random(derive_seed(plan.seed, name, "rehearsal")).random()
        if plan.command_width is not None:
            price = self._costs.price_values({}, (plan.command_width,))
            return StubTrial(None, price, error, quality, _COMMAND_CHECKPOINT_SECONDS, 0)
        config = load_config(folder.config, TrialConfig)
        every, last = config.training.checkpoint_seconds, config.training.epochs
        return StubTrial(config, self._costs.price(config), error, quality, every, last)

    def _begin(self, job: StubJob) -> None:
        if not self._is_whole(job):
            return
        job.began = job.checkpointed = time.monotonic()
        job.resumed = job.trial.saved
        self._record(job, "first_step", epoch=int(job.resumed))
        self._await_epoch(job)

    def _is_whole(self, job: StubJob) -> bool:
        return self._jobs.get(job.id) is job and len(job.hosts) == job.num_hosts

    def _await_epoch(self, job: StubJob) -> None:
        epoch = math.floor(job.progress(time.monotonic()) + 1e-9) + 1
        due = job.began + (epoch - job.resumed) * job.epoch_seconds
        self._after(due - time.monotonic(), lambda: self._end_epoch(job, epoch))

    def _end_epoch(self, job: StubJob, epoch: int) -> None:
        if not self._is_whole(job) or job.began == math.inf:
            return
        trial, factor = job.trial, self._plan.clock.factor
        value = trial.objective(epoch)
        seconds = factor * job.epoch_seconds
        trial.train_seconds += seconds
        times = {"train_seconds": 0.9 * seconds, "val_seconds": 0.1 * seconds}
        errors = {"val_mae": {head: value for head in trial.config.heads}} if trial.config else {}
        self._record(job, "epoch", epoch=epoch, objective=value, **times, **errors)
        now = time.monotonic()
        if epoch >= job.until or factor * (now - job.checkpointed) >= trial.checkpoint_seconds:
            job.checkpointed = now
            trial.saved = float(epoch)
            self._record(job, "checkpoint", epoch=epoch, step=0)
        if epoch >= job.until:
            self._complete(job, "completed" if epoch >= trial.last_epoch else "stopped")
        else:
            self._await_epoch(job)

    def _interrupt(self, job: StubJob) -> None:
        """Write a checkpoint, and end the ranks."""
        if self._is_whole(job) and job.began < math.inf:
            reached = job.progress(time.monotonic())
            job.trial.saved = reached
            epoch = int(reached)
            self._record(job, "checkpoint", epoch=epoch, step=int(1000 * (reached - epoch)))
        self._end_ranks(job, INTERRUPTED)

    def _complete(self, job: StubJob, status: str) -> None:
        """Write a result, and end the ranks; a job without a finished epoch is interrupted."""
        epoch = int(job.progress(time.monotonic()) + 1e-6)
        if not self._is_whole(job) or epoch < 1:
            self._interrupt(job)
            return
        content = job.result(status, epoch, self._plan.goals)
        write_json(job.folder.attempt(job.attempt) / "result.json", content)
        self._end_ranks(job, 0)

    def _record(self, job: StubJob, kind: str, **values: Any) -> None:
        """Append a record to the trial's file, and forward new records to the controller."""
        line = msgspec.json.encode({"record": kind, "time": self._plan.clock(), **values})
        with job.tail.path.open("ab") as file:
            file.write(line + b"\n")
        self._forward(job)

    def _forward(self, job: StubJob) -> None:
        agent = self._agents.get(job.first_host)
        if agent is not None and agent.joined and (records := job.tail.read()):
            self._send(agent, NewRecords(job.id, records, job.tail.offset))

    def _end_ranks(self, job: StubJob, code: int) -> None:
        for name in list(job.hosts):
            self._end_part(job, name, code)

    def _end_all(self, agent: StubAgent, code: int) -> None:
        for job in [job for job in self._jobs.values() if agent.name in job.hosts]:
            self._end_part(job, agent.name, code)

    def _end_part(self, job: StubJob, name: str, code: int) -> None:
        """End the ranks of a job on one host, and report it until the controller confirms."""
        ranks = job.hosts.get(name)
        agent = self._agents.get(name)
        if ranks is None or agent is None or self._jobs.get(job.id) is not job:
            return
        self._drop(job, name)
        if agent.joined and job.num_hosts > 1:
            self._send(agent, RankEnded(job.id, ranks[0], code))
        codes = dict.fromkeys(ranks, code)
        end = agent.ended[job.id] = JobEnded(job.id, codes, code < 0, ranks[0], None)
        if agent.joined:
            self._send(agent, end)

    def _drop(self, job: StubJob, name: str) -> None:
        """End the ranks of a job on one host without a report."""
        job.hosts.pop(name, None)
        if not job.hosts and self._jobs.get(job.id) is job:
            del self._jobs[job.id]


class StubTransport:
    """A ``Transport`` whose agents are stubs, all in one process."""

    slots: tuple[Slot, ...] = ()
    outlives = True
    allocation = ""
    address = "127.0.0.1"
    ends_at = math.inf

    def __init__(self, plan: StubPlan) -> None:
        """Name the hosts; the process starts with the first of them.

        Args:
            plan: the simulated campaign; written into its run directory.
        """
        self.hosts: Sequence[str] = tuple(f"h{number:05}" for number in range(plan.hosts))
        self.log = Path(plan.run_dir) / "stub_agents.log"
        self._plan = Path(plan.run_dir) / "stub_agents.json"
        self._plan.write_bytes(msgspec.json.encode(plan))
        self._process: subprocess.Popen[bytes] | None = None
        self._news: list[HostNews] = []

    @property
    def exit_code(self) -> int | None:
        """Exit code of the process of the stubs; None while it runs."""
        return self._process.poll() if self._process else None

    def start(self, hosts: Sequence[str], call: AgentCall) -> None:
        """Start an agent on each of these hosts."""
        if self._process is None:
            argv = [sys.executable, "-P", str(Path(__file__).resolve()), str(self._plan)]
            with storage(self.log), self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    tethered(argv),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=call.whole_environment(),
                )
        self._write("".join(f"{host}\n" for host in hosts))

    def kill(self, host: str, *, noticed: bool) -> None:
        """End a host and all its ranks.

        Args:
            host: name of the host.
            noticed: whether the transport reports it at once, like the end of a job step; else
                the host is only silent.
        """
        self._write(f"-{host}\n")
        if noticed:
            self._news.append(HostNews(host, "gone", "was killed"))

    def _write(self, text: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # ``exit_code`` says why
            self._process.stdin.write(text.encode())
            self._process.stdin.flush()

    def poll(self) -> list[HostNews]:
        """Return the hosts that are gone since the last call."""
        news, self._news = self._news, []
        return news

    def find_last_words(self, host: str) -> str:
        """Return where the output of the stubs is."""
        return f"see {self.log}"

    def end(self, host: str) -> bool:
        """Return False: the next agent of a silent host ends what is left there."""
        return False

    def close(self) -> None:
        """End the process, after its agents were dismissed."""
        if self._process is None or self._process.stdin is None:
            return
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main() -> None:
    """Run the stub agents of a plan."""
    try:
        StubAgents(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=StubPlan)).serve()
    except HydraError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
