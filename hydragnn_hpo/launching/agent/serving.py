"""What the agent of a host does all day; see ``__main__.py`` for how it begins.

It owns one zygote, keeps the leases of its jobs, tells the controller what happens, and ends
all it started when the controller stays away. What is said is in ``protocol.py``.
"""

import contextlib
import logging
import os
import signal
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hydragnn_hpo.errors import ConfigError, StorageError
from hydragnn_hpo.files import write_json
from hydragnn_hpo.launching.agent.running import Running
from hydragnn_hpo.launching.agent.session import Session
from hydragnn_hpo.launching.agent.zygote_process import ZygoteProcess
from hydragnn_hpo.launching.counters import CounterProcess
from hydragnn_hpo.launching.host_network import is_free
from hydragnn_hpo.launching.scratch_folders import (
    SCRATCH,
    AgentScratch,
    local_place,
    make_rank_folders,
    remove_folders,
)
from hydragnn_hpo.launching.slots import Layout, detect_slots
from hydragnn_hpo.launching.wire.channel import wait
from hydragnn_hpo.launching.wire.dialer import Dialer
from hydragnn_hpo.launching.wire.ferry import Hold, inside
from hydragnn_hpo.leases import grant_rank_lease

logger = logging.getLogger(__name__)

_TICK = 0.1
"""Seconds between two looks at the files and clocks of running jobs."""

_STARTS = 3
"""Zygotes in a row that may be killed before they are ready, until we give up."""

_CANNOT_RUN = 73
"""Exit code told for the ranks of a job whose files cannot be made (EX_CANTCREAT)."""


class Agent:
    """Runs jobs on this host, for one controller after the other."""

    def __init__(self, host: str, life: str, dialer: Dialer, scratch: AgentScratch) -> None:
        """Be the agent of a host.

        Args:
            host: its id.
            life: names this process and all it starts, see ``process_control.AGENT``.
            dialer: the way to the controller.
            scratch: a private folder on this host.
        """
        self.host, self.life = host, life
        self._session = Session(host, life, dialer)
        self._scratch = scratch
        self._hold = Hold(
            lambda: scratch.file("files"),
            lambda message: self._session.tell(**message),
            lambda: self._session.unsent,
        )
        self._zygote: ZygoteProcess | None = None
        self._sampling = CounterProcess()
        self._jobs: dict[str, Running] = {}
        self._slots: list[dict[str, Any]] = []
        self._code: Path | None = None
        self._zygotes = self._failed_starts = 0
        self._renewed = 0.0
        self._owes_slots = self._leaving = False

    def serve(self) -> None:
        """Work until we are told to go or nobody is there; then nothing is left running."""
        try:
            while not self._leaving and self._session.reach(self._describe):
                self._wait()
                for message in self._session.receive():
                    self._obey(message)
                self._hear_zygote()
                self._tick()
        finally:
            self._sampling.end()
            if self._zygote:
                self._zygote.end()

    def end_soon(self, *_: object) -> None:
        """Hear that all here is about to be ended, as Slurm says it: our ranks hear it, too."""
        self._session.ends_at, self._owes_slots = time.time(), self._session.joined

    def _describe(self) -> list[dict[str, Any]]:
        return [job.describe() for job in self._jobs.values() if not job.discarded]

    def _wait(self) -> None:
        channels = [self._session.channel, self._zygote and self._zygote.channel]
        channels.append(self._sampling.channel)
        calm = self._alive() == [] and self._session.joined and not self._hold
        seconds = self._session.lease_seconds / 5 if calm else _TICK
        wait([channel for channel in channels if channel], seconds)

    def _alive(self) -> list[Running]:
        return [job for job in self._jobs.values() if not job.over]

    # -- the controller --------------------------------------------------------------

    def _obey(self, message: dict[str, Any]) -> None:
        job = self._jobs.get(message.get("job", ""))
        match message["op"]:
            case "init":
                self._join(message)
            case "beat":
                self._session.extend(message["at"])
                self._renew_leases()
            case "cargo":
                self._hold.take(message)
            case "code":
                self._use_code(message)
            case "start":
                self._start(self._hold.localize(message))
            case "stop" if job:
                self._stop(job, message["grace"])
            case "peer_ended" if job:
                self._end_peers(job, message["code"])
            case "ask" if job:
                self._ask(job, message["wish"])
            case "forget" if job:
                del self._jobs[job.id]
            case "drop" if job:
                self._discard(job)
            case "bye":
                self._leaving = True

    def _join(self, terms: dict[str, Any]) -> None:
        """Work for a controller from now on; what it does not want is ended first."""
        self._session.join(terms)
        self._hold.begin_anew()
        if (place := local_place(terms["scratch"], os.environ)) is not None:
            self._scratch.prefer(place)
            os.environ.setdefault(SCRATCH, str(place))  # a person who set it knows better
        self._renew_leases()
        self._sampling.begin(terms.get("sample_seconds", 0.0), time.monotonic())
        for job in list(self._jobs.values()):
            if job.id in terms["keep"]:
                job.tell_from(terms["keep"][job.id])
            else:
                self._discard(job)
        self._owes_slots = True
        if self._zygote is None:
            self._start_zygote()
        elif self._zygote.ready:
            self._session.tell("ready", **self._zygote.told)
        for job in self._jobs.values():
            if job.over:
                self._tell_end(job)

    def _discard(self, job: Running) -> None:
        if job.over or not job.sent:
            job.lease.unlink(missing_ok=True)
            del self._jobs[job.id]
        else:
            job.discarded = True
            job.stop(0.0, time.monotonic())

    def _tell_slots(self) -> None:
        """Tell what there is to run on, once those who should not run any more are gone."""
        session = self._session
        if session.channel is None or any(job.discarded for job in self._jobs.values()):
            return
        self._owes_slots = False
        if not self._slots and session.terms["slots"] is not None:
            layout = Layout.of_json(session.terms["layout"])
            wanted, lanes = session.terms["slots"], session.terms["lanes"]
            self._slots = [asdict(s) for s in detect_slots(wanted, self.host, lanes, layout)]
        session.tell_slots(self._slots)

    # -- leases ----------------------------------------------------------------------

    def _renew_leases(self) -> None:
        until = self._session.until()
        for job in self._alive():
            if not job.discarded:
                with contextlib.suppress(OSError):  # taken away or out of reach: it lapses
                    grant_rank_lease(job.lease, until)

    def _fence(self) -> None:
        """End all ranks: we have not heard of the controller for the length of a lease."""
        if self._zygote:
            self._zygote.end()
            self._zygote = None
        for job in self._alive():
            seconds = f"{self._session.lease_seconds:g} s"
            job.error = f"host {self.host} was cut off from its controller for {seconds}."
            job.lose_ranks(-signal.SIGKILL)
            self._finish(job)

    def _tick(self) -> None:
        """Renew leases, forward records, send the signals that are due."""
        now = time.monotonic()
        if now >= self._session.until() and self._alive():
            self._fence()
        if now - self._renewed >= self._session.lease_seconds / 5:
            self._renewed = now
            self._renew_leases()
            if self._zygote:
                self._zygote.ping(now)
        self._session.beat(now)
        if self._session.joined:
            self._hold.pump()
        if self._owes_slots:
            self._tell_slots()
        self._tell_counters(now)
        for job in self._alive():
            if job.told and not self._session.crowded:
                self._tell_records(job)
            if job.sent and self._zygote and (due := job.due_signal(now)):
                self._zygote.channel.send({"op": "signal", "job": job.id, "signal": due})

    # -- jobs ------------------------------------------------------------------------

    def _start(self, order: dict[str, Any]) -> None:
        """Take a job on; it waits here while the zygote imports."""
        first = any(place["rank"] == 0 for place in order["ranks"])
        if first and not is_free(order["meet"][1]):
            self._session.tell("taken", order["job"])
            return
        job = Running(order, Path(order["lease"] or ""), begun=time.time())
        self._jobs[job.id] = job
        try:
            self._hold.check()
            job.lease = job.lease if order["lease"] else self._scratch.file(job.id)
            job.begin(self._session.until())
            if any(place["folders"] for place in order["ranks"]):
                own = self._scratch.file("of ranks")  # leases lie there by the names of jobs
                job.folders = make_rank_folders(order, host=self.host, scratch=own)
        except (StorageError, ConfigError) as error:
            job.error = str(error)
        except OSError as error:
            job.error = f"{error.filename or job.lease}: cannot be written ({error.strerror})."
        if job.error:
            job.lose_ranks(_CANNOT_RUN)
            self._finish(job)
            return
        if self._zygote is None:
            self._start_zygote()
        self._send_waiting()

    def _send_waiting(self) -> None:
        if self._zygote is None or not self._zygote.ready:
            return
        for job in self._alive():
            if not job.sent:
                job.sent = True
                terms = {"lease": str(job.lease), "lease_seconds": self._session.lease_seconds}
                self._zygote.channel.send(job.order | terms)

    def _stop(self, job: Running, grace: float) -> None:
        if job.sent:
            job.stop(grace, time.monotonic())
        elif not job.over:
            job.lose_ranks(-signal.SIGTERM)
            self._finish(job)

    def _end_peers(self, job: Running, code: int) -> None:
        if job.sent or code == 0:  # a peer that is done early may wait for nobody
            job.peer_ended(code, time.monotonic())
        else:
            self._stop(job, 0.0)

    def _ask(self, job: Running, wish: str) -> None:
        """Put a wish where rank 0 reads it."""
        if job.order["control"] and not job.over:
            try:
                write_json(Path(job.order["control"]), {"wish": wish})
            except StorageError as error:
                logger.warning("%s", error)

    def _finish(self, job: Running) -> None:
        """Tell the last records and the end of a job whose ranks are gone."""
        job.over = True
        self._sampling.hurry()
        with contextlib.suppress(OSError):
            job.lease.unlink()
        remove_folders(job.folders)
        if job.discarded:
            del self._jobs[job.id]
        else:
            self._tell_end(job)

    def _tell_end(self, job: Running) -> None:
        while self._tell_records(job):
            pass
        if not self._session.joined:  # it is told to whom we join next
            return
        self._hold.offer(job.order)
        self._hold.follow({"event": "ended", "job": job.id, **job.result()})
        self._hold.pump()

    def _tell_counters(self, now: float) -> None:
        self._sampling.receive(now)
        ready = self._session.joined and not self._session.crowded
        if ready and (sample := self._sampling.take()):
            self._session.tell("counters", **sample)

    def _tell_records(self, job: Running) -> bool:
        """Forward a batch of records; False when there were none, or nobody to hear them."""
        if job.tail is None or job.discarded or not self._session.joined:
            return False
        before = job.tail.offset
        try:
            records = job.tail.read()
        except OSError as error:
            job.error = f"{job.tail.path}: cannot be read ({error.strerror})."
            return False
        if job.tail.offset == before:
            return False
        if any(record.get("record") == "checkpoint" for record in records):
            self._hold.offer(job.order)
        self._session.tell("records", job.id, records=records, offset=job.tail.offset)
        return True

    # -- the zygote ------------------------------------------------------------------

    def _start_zygote(self) -> None:
        self._zygotes += 1
        token, preload = f"{self.life}.{self._zygotes}", self._session.terms["preload"]
        self._zygote = ZygoteProcess(token, preload, self._code)

    def _use_code(self, message: dict[str, Any]) -> None:
        """Have ranks use the package that was brought, in place of this host's own."""
        self._session.code = message["code"]
        self._code = inside(self._hold.root, message["root"])
        if self._zygote:
            self._zygote.end()
        self._start_zygote()

    def _hear_zygote(self) -> None:
        zygote = self._zygote
        if zygote is None:
            return
        for message in zygote.channel.receive():
            zygote.unanswered = 0
            self._note(zygote, message)
        if zygote.channel.closed or zygote.process.poll() is not None:
            self._lose_zygote(zygote)

    def _note(self, zygote: ZygoteProcess, message: dict[str, Any]) -> None:
        """Act on what the zygote tells."""
        job = self._jobs.get(message.get("job", ""))
        match message["event"]:
            case "ready":
                zygote.ready = True
                self._failed_starts = 0
                zygote.told = {key: message[key] for key in ("import_seconds", "threads")}
                self._session.tell("ready", **zygote.told)
                self._send_waiting()
            case "failed":
                zygote.error = message["error"]
            case "forked" if job:
                job.pids[message["rank"]] = message["pid"]
                if job.ranks == sorted(job.pids):
                    job.told = True
                    self._session.tell(
                        "started", job.id, pids=[job.pids[rank] for rank in job.ranks]
                    )
            case "exit" if job:
                job.error = job.error or message["error"]
                self._end_rank(job, message["rank"], message["code"])

    def _end_rank(self, job: Running, rank: int, code: int) -> None:
        job.end_rank(rank, code, now=time.monotonic())
        if job.has_peers and job.first == rank:
            self._session.tell("rank_ended", job.id, rank=rank, code=code)
        if job.ended:
            self._finish(job)

    def _lose_zygote(self, zygote: ZygoteProcess) -> None:
        """Tell that the zygote and with it all ranks are gone; warm a new one if it helps."""
        zygote.end()
        self._zygote = None
        error = self._why_lost(zygote)
        self._session.tell("zygote_lost", code=zygote.process.returncode, error=error)
        for job in self._alive():
            if job.sent or error:
                job.error = job.error or error
                job.lose_ranks(-signal.SIGKILL)
                self._finish(job)
        if error is None:  # else the next job tries again: no loop of imports that fail
            self._start_zygote()

    def _why_lost(self, zygote: ZygoteProcess) -> str | None:
        """Give a sentence when another zygote would not fare better."""
        if zygote.ready or zygote.error:
            return zygote.error
        self._failed_starts += 1
        code = zygote.process.returncode
        if code < 0 and self._failed_starts < _STARTS:
            return None
        preload = ", ".join(self._session.terms["preload"])
        return f"a zygote ended (code {code}) while importing {preload}."
