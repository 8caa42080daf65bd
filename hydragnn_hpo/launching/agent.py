"""The agent of one host: ``python -m hydragnn_hpo.launching.agent --host ID``.

It starts the ranks of jobs through one fork server, renews their lease, forwards the records that
they write, and ends all of them when the controller is silent for longer than a lease.
"""

import argparse
import logging
import os
import random
import secrets
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import hydragnn_hpo
from hydragnn_hpo.errors import ConfigError, HydraError, JobError, StorageError
from hydragnn_hpo.files import limit_umask
from hydragnn_hpo.host_info import SCRATCH
from hydragnn_hpo.launching import process_control
from hydragnn_hpo.launching.batch_jobs import BATCH_JOB, cancel_own_batch_job, in_batch_job
from hydragnn_hpo.launching.counter_process import CounterProcess
from hydragnn_hpo.launching.fork_server import ForkServerProcess
from hydragnn_hpo.launching.framed_socket import wait_readable
from hydragnn_hpo.launching.host_network import interface_of, is_free, network_of_job
from hydragnn_hpo.launching.job import Slot
from hydragnn_hpo.launching.job_process import JobProcess
from hydragnn_hpo.launching.link import (
    ADDRESS,
    AgentLink,
    ControllerAddress,
    read_address,
    read_keys,
)
from hydragnn_hpo.launching.process_control import AGENT, HOST, RUN, end_tagged, host_tag
from hydragnn_hpo.launching.protocol import (
    VERSION,
    AskRank,
    CounterReport,
    DropJob,
    Farewell,
    ForgetJob,
    ForkNews,
    ForkRanks,
    ForkServerLost,
    ForkServerReady,
    Goodbye,
    Heartbeat,
    Hello,
    HostSlots,
    ImportFailed,
    JobStarted,
    KnownJob,
    Lease,
    NewRecords,
    News,
    Order,
    PeerEnded,
    PortTaken,
    RankEnded,
    RankExit,
    RankForked,
    SignalJob,
    StartJob,
    StopJob,
    Welcome,
    heartbeat_seconds,
)
from hydragnn_hpo.launching.rank_environment import OF_A_RANK, rank_of_launcher
from hydragnn_hpo.launching.scratch_folders import (
    AgentScratch,
    local_place,
    make_rank_folders,
    remove_folders,
)
from hydragnn_hpo.launching.slots import detect_slots
from hydragnn_hpo.leases import RankLease
from hydragnn_hpo.walltime import WallTime

logger = logging.getLogger(__name__)

_TICK_SECONDS = 0.1
"""Interval at which the record files and due signals of running jobs are checked."""

_FORK_SERVER_STARTS = 3
"""Fork servers in a row that are killed before they are ready until the agent reports an error."""

_CANNOT_RUN = 73
"""Exit code reported for ranks whose files or folders cannot be created (EX_CANTCREAT)."""

_UNREAD = 1 << 22
"""Bytes that the controller has not read yet, above which further records stay in their files."""

_GIVE_UP_SECONDS = 60.0
_GIVE_UP_LEASES = 12.0
"""An agent that finds no controller ends after this time or this many leases, the longer one."""

_CANCEL_SECONDS = 0.05
"""Time per host of a batch job over which the hosts' commands to cancel it are spread."""

_FIRST_SIGHT_SECONDS = 30.0
"""Time limit until the controller's address file is visible on a shared file system."""


class Session:
    """The conversation with the current controller, and the lease that it extends."""

    def __init__(self, host: str, life: str, run_dir: Path) -> None:
        """Find the controller of a run; see ``Agent`` for the arguments.

        Raises:
            JobError: this host does not see the run directory.
        """
        self._host, self._life, self._run_dir = host, life, run_dir
        self._address = _await_address(host, run_dir)
        self._link: AgentLink | None = None
        self.joined = False
        """Whether the controller has sent ``Welcome`` in this conversation."""
        self.terms: Welcome | None = None
        """The last ``Welcome``, perhaps from an earlier controller; None before the first one."""
        self._greeted = self._next_try = self._last_beat = 0.0
        self._valid_until = 0.0
        self._last_answer = self._last_turn = time.monotonic()
        self.ends_at = WallTime.of(os.environ).known
        """When the allocation of this host ends, in seconds since the epoch; None if unknown."""

    @property
    def fenced(self) -> bool:
        """Whether ranks may run only as long as the controller answers."""
        return self.terms is None or self.terms.fenced

    @property
    def lease_seconds(self) -> float:
        """Length of a lease in seconds."""
        return self._address.lease_seconds

    @property
    def crowded(self) -> bool:
        """Whether so many bytes are unread that further records should stay in their files."""
        return self._link is not None and self._link.unread > _UNREAD

    def connect(self, describe: Callable[[], tuple[KnownJob, ...]]) -> bool:
        """Keep a conversation with the current controller; return False if none was found in time.

        Args:
            describe: returns the jobs of this agent, which ``Hello`` reports.
        """
        now = time.monotonic()
        # A turn takes far less than a lease, unless this process is stopped, as by ``scontrol
        # suspend``: the controller is stopped, too, and time without a turn is no silence of it.
        self._last_answer += max(0.0, now - self._last_turn - self.lease_seconds)
        self._last_turn = now
        if self._link is not None and self._is_over(now):
            self.disconnect()
        if self._link is None and now >= self._next_try:
            self._next_try = now + min(1.0, self.lease_seconds / 10) * random.uniform(0.5, 1.5)
            self._begin_conversation(now, describe)
        if self.joined and not self.fenced:  # an unfenced agent ends with its controller anyway
            self._last_answer = now
        patience = max(_GIVE_UP_SECONDS, _GIVE_UP_LEASES * self.lease_seconds)
        return now - self._last_answer < patience

    def _begin_conversation(self, now: float, describe: Callable[[], tuple[KnownJob, ...]]) -> None:
        address = self._find_address()
        if address is None or address.epoch < self._address.epoch:
            return
        try:
            keys = read_keys(self._run_dir)
        except StorageError:  # the file server does not respond: try again later
            return
        self._address = address
        self._greeted = now
        self.joined = False
        self._link = AgentLink(address, keys)
        self._link.send(
            Hello(
                protocol=VERSION,
                version=hydragnn_hpo.__version__,
                run=os.environ[RUN],
                host=self._host,
                life=self._life,
                jobs=describe(),
            )
        )

    def _find_address(self) -> ControllerAddress | None:
        try:
            return read_address(self._run_dir)
        except StorageError:
            return None

    def _has_successor(self) -> bool:
        newest = self._find_address()
        return newest is not None and newest.epoch > self._address.epoch

    def _is_over(self, now: float) -> bool:
        """Check whether the conversation is broken, unanswered, or with a former controller."""
        assert self._link is not None
        if self._link.broken:
            return True
        if not self.joined:
            if now < self._next_try:
                return False
            self._next_try = now + min(1.0, self.lease_seconds / 10) * random.uniform(0.5, 1.5)
            return self._has_successor() or now - self._greeted > 6 * self.lease_seconds
        if not self.fenced:
            return False
        if now >= self._valid_until:
            return True
        return self._valid_until - now < self.lease_seconds / 2 and self._has_successor()

    def disconnect(self, last_words: bool = False) -> None:
        """End the conversation."""
        if self._link is not None:
            self._link.close(last_words)
        self._link, self.joined = None, False

    def wait(self, seconds: float, *sockets: "ForkServerProcess | CounterProcess | None") -> None:
        """Wait until the controller or a child process has sent something, or time is over."""
        ends = [each.socket for each in sockets if each is not None and each.socket is not None]
        if self._link is not None:
            self._link.wait(seconds, ends)
        else:
            wait_readable(ends, seconds)

    def receive(self) -> list[Order]:
        """Return the orders that have arrived."""
        orders = self._link.receive() if self._link else []
        if orders:
            self._last_answer = time.monotonic()
        return orders

    def send(self, news: News) -> None:
        """Send a message, or drop it without a conversation: the next ``Hello`` makes up for it."""
        if self._link and self.joined:
            self._link.send(news)

    def join(self, terms: Welcome) -> None:
        """Accept the terms of a controller, which was alive after ``Hello`` was sent to it."""
        self.terms = terms
        self.joined = True
        self._extend(self._greeted)

    def on_lease(self, lease: Lease) -> None:
        """Extend the lease from the time of the heartbeat that was answered."""
        if self._link:
            self._link.acknowledge(lease.received)
        self._extend(lease.at)

    def _extend(self, at: float) -> None:
        if at <= time.monotonic():
            self._valid_until = max(self._valid_until, at + self.lease_seconds)

    def until(self) -> float:
        """Return the end of the lease, in monotonic time.

        An unfenced agent cannot outlive its controller, so its lease never expires.
        """
        return self._valid_until if self.fenced else time.monotonic() + self.lease_seconds

    def send_heartbeat(self, now: float) -> None:
        """Send a heartbeat if one is due."""
        if now - self._last_beat >= heartbeat_seconds(self.lease_seconds):
            self._last_beat = now
            self.send(Heartbeat(now))

    def send_slots(self, slots: tuple[Slot, ...]) -> None:
        """Report the slots of this host, its address, and when its allocation ends."""
        wanted = self.terms.profile.interfaces if self.terms else ()
        address, interface = interface_of(wanted, self._address.address)
        self.send(HostSlots(slots, address, interface, self.ends_at))


def _await_address(host: str, run_dir: Path) -> ControllerAddress:
    """Return the controller's address, as soon as its file is visible on this host."""
    deadline = time.monotonic() + _FIRST_SIGHT_SECONDS
    while time.monotonic() < deadline:
        try:
            address = read_address(run_dir)
        except StorageError:
            address = None
        if address is not None and address.port:
            return address
        time.sleep(0.2)
    raise JobError(
        f"host {host} does not see the run directory {run_dir}: put it on storage that all hosts "
        "share (--run)."
    )


class Agent:
    """Runs jobs on this host for a controller and, if that is lost, for its successors."""

    def __init__(self, host: str, life: str, run_dir: Path, scratch: AgentScratch) -> None:
        """Find the controller; starts no process.

        Args:
            host: id of this host.
            life: tag of this process and of all that it starts, see ``process_control.AGENT``.
            run_dir: run directory, which holds the controller's address and the keys.
            scratch: private folder on this host.

        Raises:
            JobError: this host does not see the run directory.
        """
        self.host, self.life = host, life
        self._session = Session(host, life, run_dir)
        self._scratch = scratch
        self._lease = RankLease.create()
        self._fork_server: ForkServerProcess | None = None
        self._counters = CounterProcess()
        self._jobs: dict[str, JobProcess] = {}
        self._slots: tuple[Slot, ...] = ()
        self._preload: tuple[str, ...] = ()
        self._fork_servers = self._failed_starts = 0
        self._renewed = 0.0
        self._owes_slots = self._leaving = False

    def serve(self) -> None:
        """Execute orders until ``Goodbye``, or until no controller is left; then end all ranks."""
        try:
            while not self._leaving and self._session.connect(self._describe):
                self._wait()
                for order in self._session.receive():
                    self._execute(order)
                self._read_fork_server()
                self._tick()
        finally:
            self._counters.end()
            if self._fork_server:
                self._fork_server.end()
            self._session.send(Farewell())
            self._session.disconnect(last_words=True)
        if not self._leaving:
            _release_batch_job(self.host)

    def end_soon(self, *_: object) -> None:
        """Handle SIGTERM, which Slurm also sends to the ranks: report that this host leaves now."""
        self._session.ends_at = time.time()
        self._owes_slots = self._session.joined

    def _describe(self) -> tuple[KnownJob, ...]:
        return tuple(job.describe() for job in self._jobs.values() if not job.dropped)

    def _wait(self) -> None:
        calm = self._running() == [] and self._session.joined
        seconds = self._session.lease_seconds / 5 if calm else _TICK_SECONDS
        self._session.wait(seconds, self._fork_server, self._counters)

    def _running(self) -> list[JobProcess]:
        return [job for job in self._jobs.values() if not job.finished]

    # -- the controller --------------------------------------------------------------

    def _execute(self, order: Order) -> None:
        match order:
            case Welcome():
                self._join(order)
            case Lease():
                self._session.on_lease(order)
                self._renew_lease()
            case StartJob():
                self._start(order)
            case Goodbye():
                self._leaving = True
                if order.reason:
                    logger.warning("the controller sends this agent away: %s", order.reason)
            case StopJob() | PeerEnded() | AskRank() | ForgetJob() | DropJob():
                if job := self._jobs.get(order.job):
                    self._execute_for(job, order)

    def _execute_for(
        self, job: JobProcess, order: StopJob | PeerEnded | AskRank | ForgetJob | DropJob
    ) -> None:
        match order:
            case StopJob(_, grace):
                self._stop(job, grace)
            case PeerEnded(_, code):
                if job.sent or code == 0:  # a peer that is done early may wait for none
                    job.peer_ended(code, time.monotonic())
                else:
                    self._stop(job, 0.0)
            case AskRank():
                if job.sent and not job.finished and self._fork_server:
                    self._fork_server.socket.send(order)
            case ForgetJob():
                del self._jobs[job.id]
            case DropJob():
                self._drop(job)

    def _join(self, terms: Welcome) -> None:
        """Accept the terms of a controller, and end the jobs that it does not keep."""
        self._session.join(terms)
        self._preload = terms.preload
        if (place := local_place(terms.profile.scratch, os.environ)) is not None:
            self._scratch.prefer(place)
            os.environ.setdefault(SCRATCH, str(place))  # a value set by the user wins
        self._renew_lease()
        self._counters.begin(terms.sample_seconds, time.monotonic())
        for job in list(self._jobs.values()):
            if job.id in terms.keep:
                job.forward_from(terms.keep[job.id])
            else:
                self._drop(job)
        self._owes_slots = True
        if self._fork_server is None:
            self._start_fork_server()
        elif self._fork_server.ready:
            self._session.send(self._fork_server.ready)
        for job in self._jobs.values():
            if job.finished:
                self._report_end(job)

    def _drop(self, job: JobProcess) -> None:
        if job.finished or not job.sent:
            del self._jobs[job.id]
        else:
            job.dropped = True
            job.stop(0.0, time.monotonic())

    def _report_slots(self) -> None:
        """Report the slots of this host, once the ranks of dropped jobs are gone."""
        terms = self._session.terms
        if terms is None or any(job.dropped for job in self._jobs.values()):
            return
        self._owes_slots = False
        if not self._slots and terms.slots is not None:
            self._slots = detect_slots(terms.slots, self.host, terms.lanes, terms.profile.layout)
        self._session.send_slots(self._slots)

    # -- the lease -------------------------------------------------------------------

    def _renew_lease(self) -> None:
        self._lease.grant(self._session.until())

    def _fence(self) -> None:
        """End all ranks: the controller was silent for the length of a lease."""
        if self._fork_server:
            self._fork_server.end()
            self._fork_server = None
        for job in self._running():
            seconds = f"{self._session.lease_seconds:g} s"
            job.error = f"host {self.host} was cut off from its controller for {seconds}."
            job.cut_off = True
            job.lose_ranks(-signal.SIGKILL)
            self._finish(job)

    def _tick(self) -> None:
        """Renew the lease, forward records, send the signals that are due."""
        now = time.monotonic()
        if now >= self._session.until() and self._running():
            self._fence()
        if now - self._renewed >= self._session.lease_seconds / 5:
            self._renewed = now
            self._renew_lease()
            if self._fork_server:
                self._fork_server.ping(now)
        self._session.send_heartbeat(now)
        if self._owes_slots and self._session.joined:
            self._report_slots()
        self._forward_counters(now)
        for job in self._running():
            if job.announced and not self._session.crowded:
                self._forward_records(job)
            if job.sent and self._fork_server and (due := job.due_signal(now)):
                self._fork_server.socket.send(SignalJob(job.id, due))

    # -- jobs ------------------------------------------------------------------------

    def _start(self, start: StartJob) -> None:
        """Accept a job; its ranks are forked once the fork server is ready."""
        if any(rank.rank == 0 for rank in start.ranks) and not is_free(start.meet.port):
            self._session.send(PortTaken(start.job))
            return
        job = self._jobs[start.job] = JobProcess(start)
        try:
            job.begin()
            if any(rank.folders for rank in start.ranks):
                own = self._scratch.file("of ranks")
                job.folders = make_rank_folders(start.job, start.ranks, host=self.host, scratch=own)
        except ConfigError as error:
            job.error = str(error)
        except OSError as error:
            job.error = f"{error.filename or job.id}: cannot be used ({error.strerror})."
        if job.error:
            job.lose_ranks(_CANNOT_RUN)
            self._finish(job)
            return
        if self._fork_server is None:
            self._start_fork_server()
        self._fork_waiting()

    def _fork_waiting(self) -> None:
        if self._fork_server is None or self._fork_server.ready is None:
            return
        for job in self._running():
            if not job.sent:
                job.sent = True
                self._fork_server.socket.send(ForkRanks(job.start, self._session.lease_seconds))

    def _stop(self, job: JobProcess, grace: float) -> None:
        if job.sent:
            job.stop(grace, time.monotonic())
        elif not job.finished:
            job.lose_ranks(-signal.SIGTERM)
            self._finish(job)

    def _finish(self, job: JobProcess) -> None:
        """Report the last records and the end of a job whose ranks are gone."""
        job.finished = True
        self._counters.hurry()
        remove_folders(job.folders)
        if job.dropped:
            del self._jobs[job.id]
        else:
            self._report_end(job)

    def _report_end(self, job: JobProcess) -> None:
        while self._forward_records(job):
            pass
        self._session.send(job.result())

    def _forward_records(self, job: JobProcess) -> bool:
        """Forward a batch of records; return False if there was none, or no controller."""
        if job.tail is None or job.dropped or not self._session.joined:
            return False
        before = job.tail.offset
        try:
            records = job.tail.read()
        except OSError as error:
            job.error = f"{job.tail.path}: cannot be read ({error.strerror})."
            return False
        if job.tail.offset == before:
            return False
        self._session.send(NewRecords(job.id, records, job.tail.offset))
        return True

    def _forward_counters(self, now: float) -> None:
        self._counters.receive(now)
        ready = self._session.joined and not self._session.crowded
        if ready and (sample := self._counters.take()):
            self._session.send(CounterReport(sample))

    # -- the fork server -------------------------------------------------------------

    def _start_fork_server(self) -> None:
        self._fork_servers += 1
        token = f"{self.life}.{self._fork_servers}"
        self._fork_server = ForkServerProcess(token, self._preload, self._lease)

    def _read_fork_server(self) -> None:
        server = self._fork_server
        if server is None:
            return
        for news in server.receive():
            self._on_fork_news(server, news)
        if server.ended:
            self._on_fork_server_lost(server)

    def _on_fork_news(self, server: ForkServerProcess, news: ForkNews) -> None:
        match news:
            case ForkServerReady():
                server.ready = news
                self._failed_starts = 0
                self._session.send(news)
                self._fork_waiting()
            case ImportFailed(error):
                server.error = error
            case RankForked():
                if job := self._jobs.get(news.job):
                    self._on_forked(job, news)
            case RankExit():
                if job := self._jobs.get(news.job):
                    job.error = job.error or news.error
                    self._on_rank_exit(job, news)

    def _on_forked(self, job: JobProcess, news: RankForked) -> None:
        job.pids[news.rank] = news.pid
        if job.ranks == sorted(job.pids):
            job.announced = True
            self._session.send(JobStarted(job.id, tuple(job.pids[rank] for rank in job.ranks)))

    def _on_rank_exit(self, job: JobProcess, news: RankExit) -> None:
        job.end_rank(news.rank, news.code, now=time.monotonic())
        if job.start.has_peers and job.first == news.rank:
            self._session.send(RankEnded(job.id, news.rank, news.code))
        if job.ended:
            self._finish(job)

    def _on_fork_server_lost(self, server: ForkServerProcess) -> None:
        """Report that the fork server and all ranks are gone; start another one if it can help."""
        code = server.exit_code()
        server.end()
        self._fork_server = None
        error = self._why_lost(server)
        self._session.send(ForkServerLost(server.process.returncode, error))
        for job in self._running():
            if job.sent or error:
                job.error = job.error or error
                job.lose_ranks(code)
                self._finish(job)
        if error is None:  # otherwise only the next job tries again: failing imports must not loop
            self._start_fork_server()

    def _why_lost(self, server: ForkServerProcess) -> str | None:
        """Return a sentence if another fork server would fail as well; otherwise None."""
        if server.ready or server.error:
            return server.error
        self._failed_starts += 1
        code = server.process.returncode
        if code < 0 and self._failed_starts < _FORK_SERVER_STARTS:
            return None
        preload = ", ".join(self._preload)
        ended = f"a fork server ended (code {code}) while importing {preload}"
        if code == -signal.SIGKILL:
            return f"{ended}: most likely memory has run out; ask for more."
        return f"{ended}: import them by hand to see why."


def _release_batch_job(host: str) -> None:
    """Cancel the campaign's batch job that holds this host, whose controller is lost for good.

    Otherwise all its hosts idle until its wall-time ends, while the next job of the chain waits.
    """
    if not in_batch_job(os.environ):
        return
    hosts = int(os.environ.get("SLURM_JOB_NUM_NODES", "0")) or 1000
    time.sleep(random.uniform(0.0, hosts * _CANCEL_SECONDS))  # one host's command is enough
    # Before the command, which ends this process, too.
    logger.warning(
        "host %s found no controller: it cancels batch job %s", host, os.environ[BATCH_JOB]
    )
    cancel_own_batch_job(os.environ)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("hydragnn_hpo.launching.agent")
    parser.add_argument("--host", help="id of this host")
    parser.add_argument("--host-of", help="environment variable that holds the id")
    parser.add_argument("--host-file", type=Path, help="ids in the order of a launcher's ranks")
    parser.add_argument("--allocation", help="becomes a part of the id")
    parser.add_argument("--parent", type=int, help="process with which to die")
    return parser.parse_args()


def _tag_process(host: str) -> None:
    """Execute this program again with tags in its environment, unless they are there already."""
    if AGENT not in os.environ:
        tags = {HOST: host_tag(os.environ[RUN], host), AGENT: secrets.token_hex(8)}
        os.execve(sys.executable, sys.orig_argv, os.environ | tags)


def main() -> None:
    """Run the agent of this host, after ending any that is left of an earlier start."""
    limit_umask()
    arguments = _parse_arguments()
    if arguments.parent:
        process_control.die_with_parent(arguments.parent)
    try:
        if arguments.host_file:
            plain = arguments.host_file.read_text().splitlines()[rank_of_launcher(os.environ)]
        else:
            plain = arguments.host or os.environ[arguments.host_of]
        _serve(plain, arguments.allocation or "")
    except HydraError as error:  # the last line is what the controller reports
        sys.exit(f"error: {error}")


def _serve(plain: str, allocation: str) -> None:
    """Serve as the agent of a host of an allocation; an empty one belongs to the controller."""
    host = f"{plain}@{allocation}" if allocation else plain
    _tag_process(host)
    process_control.name_process("hpo-agent")
    # A step that ends signals all its processes; ranks need their agent to leave checkpoints.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    end_tagged(HOST, os.environ[HOST])
    if allocation:  # end agents of an earlier controller without allocations, too
        ours = f"SLURM_JOB_ID={allocation}"
        end_tagged(HOST, host_tag(os.environ[RUN], plain), ours)
    run_dir = Path(os.environ.pop(ADDRESS)).parent.parent
    for name in OF_A_RANK:  # the launcher numbers agents, not ranks
        os.environ.pop(name, None)
    os.environ.update(network_of_job(os.environ))
    scratch = AgentScratch(os.environ[HOST])
    try:
        agent = Agent(host, os.environ[AGENT], run_dir, scratch)
        signal.signal(signal.SIGTERM, agent.end_soon)
        agent.serve()
    finally:
        scratch.remove()


if __name__ == "__main__":
    main()
