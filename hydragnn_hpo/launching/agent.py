"""The agent of one host: ``python -m hydragnn_hpo.launching.agent FD``.

It owns one zygote, keeps the leases of its jobs, tells the controller what happens, and ends
all it started when the controller is gone. It speaks over one channel, whatever carries it:

in: ``init`` (preload, lease_seconds, token), ``start``, ``stop`` (job, grace);
out: ``hello``, ``beat``, ``ready``, ``started``, ``records`` (records, offset), ``ended``
(codes by rank, ...) and ``zygote_lost``.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from hydragnn_hpo.launching import linux
from hydragnn_hpo.launching.channel import Channel, wait
from hydragnn_hpo.launching.running import Running
from hydragnn_hpo.launching.strays import ZYGOTE, end_tagged

_TICK = 0.1
"""Seconds between two looks at the files and clocks of running jobs."""

_START_SECONDS = 600.0
"""Seconds a zygote has for its imports, which may come over a busy file system."""

_STARTS = 3
"""Zygotes in a row that may be killed before they are ready, until we give up."""

_UNANSWERED = 15
"""A zygote that left so many pings, five per lease time, without an answer is hung."""

_CANNOT_RUN = 73
"""Exit code told for the ranks of a job whose files cannot be made (EX_CANTCREAT)."""


class ZygoteProcess:
    """The zygote as the agent sees it: a child process with a channel."""

    def __init__(self, token: str, preload: list[str]) -> None:
        """Execute it; ``token`` marks it and everything it will fork."""
        ours, theirs = socket.socketpair()
        descriptor = theirs.fileno()
        module = "hydragnn_hpo.launching.zygote"
        argv = [sys.executable, "-P", "-m", module, str(descriptor), str(os.getpid()), *preload]
        self.token = token
        self.ready = False
        self.error: str | None = None
        self.began = time.monotonic()
        self.unanswered = 0
        self.process = subprocess.Popen(
            argv,
            pass_fds=[descriptor],
            stdin=subprocess.DEVNULL,
            env=os.environ | {ZYGOTE: token, "OMP_NUM_THREADS": "1"},
        )
        theirs.close()
        self.channel = Channel(ours)

    def ping(self, now: float) -> None:
        """See whether it lives; kill it when it hangs."""
        if not self.ready:
            hangs = now - self.began > _START_SECONDS
        else:
            hangs = self.unanswered >= _UNANSWERED
            self.unanswered += 1
            self.channel.send({"op": "ping"})
        if hangs:
            self.process.kill()

    def end(self) -> None:
        """Kill it and all it forked, and wait until they are gone."""
        self.channel.close()
        self.process.kill()
        self.process.wait()
        end_tagged(ZYGOTE, self.token)


class Agent:
    """Runs the jobs of one controller on this host until the controller is gone."""

    def __init__(self, controller: Channel) -> None:
        """Serve ``controller``, whose ``init`` tells how."""
        self._controller = controller
        self._zygote: ZygoteProcess | None = None
        self._jobs: dict[str, Running] = {}
        self._preload: list[str] = []
        self._token = ""
        self._lives = 0
        self._failed_starts = 0
        self._lease_seconds = 10.0
        self._renewed = 0.0

    def serve(self) -> None:
        """Work until the controller is gone; then nothing is left running."""
        self._tell("hello", pid=os.getpid())
        while not self._controller.closed:
            busy = bool(self._jobs)
            zygote = [self._zygote.channel] if self._zygote else []
            wait([self._controller, *zygote], _TICK if busy else self._lease_seconds / 5)
            for message in self._controller.receive():
                self._obey(message)
            self._hear_zygote()
            self._tick()
        if self._zygote:
            self._zygote.end()

    def _tell(self, event: str, job: str | None = None, **data: Any) -> None:
        self._controller.send({"event": event, "job": job, "time": time.time(), **data})

    def _obey(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "init":
                self._preload = message["preload"]
                self._token = message["token"]
                self._lease_seconds = message["lease_seconds"]
                self._start_zygote()
            case "start":
                self._start(message)
            case "stop":
                self._stop(message["job"], message["grace"])

    def _start_zygote(self) -> None:
        self._lives += 1
        self._zygote = ZygoteProcess(f"{self._token}.{self._lives}", self._preload)

    def _start(self, order: dict[str, Any]) -> None:
        """Take a job on; it waits here while the zygote imports."""
        job = Running(order)
        self._jobs[job.id] = job
        try:
            job.begin()
        except OSError as error:
            job.error = f"{job.lease}: the lease cannot be written ({error.strerror})."
            job.lose_ranks(_CANNOT_RUN)
            self._finish(job)
            return
        if self._zygote is None:
            self._start_zygote()
        self._send_waiting()

    def _send_waiting(self) -> None:
        if self._zygote is None or not self._zygote.ready:
            return
        for job in self._jobs.values():
            if not job.sent:
                job.sent = True
                order = job.order | {"lease_seconds": self._lease_seconds}
                self._zygote.channel.send(order)

    def _stop(self, job_id: str, grace: float) -> None:
        job = self._jobs.get(job_id)
        if job is None:
            return
        if job.sent:
            job.stop(grace, time.monotonic())
        else:
            job.lose_ranks(-signal.SIGTERM)
            self._finish(job)

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
                told = {key: message[key] for key in ("import_seconds", "threads")}
                self._tell("ready", **told)
                self._send_waiting()
            case "failed":
                zygote.error = message["error"]
            case "forked" if job:
                job.pids[message["rank"]] = message["pid"]
                if job.ranks == sorted(job.pids):
                    job.told = True
                    self._tell("started", job.id, pids=[job.pids[rank] for rank in job.ranks])
            case "exit" if job:
                job.error = job.error or message["error"]
                job.end_rank(message["rank"], message["code"], now=time.monotonic())
                if job.ended:
                    self._finish(job)

    def _lose_zygote(self, zygote: ZygoteProcess) -> None:
        """Tell that the zygote and with it all ranks are gone; warm a new one if it helps."""
        zygote.end()
        self._zygote = None
        error = self._why_lost(zygote)
        self._tell("zygote_lost", code=zygote.process.returncode, error=error)
        for job in list(self._jobs.values()):
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
        return f"a zygote ended (code {code}) while importing {', '.join(self._preload)}."

    def _finish(self, job: Running) -> None:
        """Tell the last records and the end of a job whose ranks are gone."""
        while self._tell_records(job):
            pass
        with contextlib.suppress(OSError):
            job.lease.unlink()
        del self._jobs[job.id]
        self._tell("ended", job.id, **job.result())

    def _tell_records(self, job: Running) -> bool:
        """Forward a batch of records; False when there were none."""
        if job.tail is None:
            return False
        before = job.tail.offset
        try:
            records = job.tail.read()
        except OSError as error:
            job.error = f"{job.tail.path}: cannot be read ({error.strerror})."
            return False
        if job.tail.offset == before:
            return False
        self._tell("records", job.id, records=records, offset=job.tail.offset)
        return True

    def _tick(self) -> None:
        """Renew leases, forward records, send the signals that are due."""
        now = time.monotonic()
        if now - self._renewed >= self._lease_seconds / 5:
            self._renewed = now
            self._renew(now)
        for job in self._jobs.values():
            if job.told:
                self._tell_records(job)
            if job.sent and self._zygote and (due := job.due_signal(now)):
                self._zygote.channel.send({"op": "signal", "job": job.id, "signal": due})

    def _renew(self, now: float) -> None:
        """Touch every lease, show that we live, and see whether the zygote does."""
        for job in self._jobs.values():
            with contextlib.suppress(OSError):  # taken away or out of reach: it lapses
                os.utime(job.lease)
        if not self._controller.unsent:
            self._tell("beat")
        if self._zygote:
            self._zygote.ping(now)


def main(descriptor: int) -> None:
    """Serve the controller at the other end of an inherited socket."""
    linux.die_with_parent(os.getppid())
    linux.name_process("hpo-agent")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Agent(Channel(socket.socket(fileno=descriptor))).serve()


if __name__ == "__main__":
    main(int(sys.argv[1]))
