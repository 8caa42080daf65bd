"""One job that a launcher runs: its order, its files, and what they tell."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from hydragnn_hpo.errors import HydraError
from hydragnn_hpo.files import read_json, storage, write_json, write_text
from hydragnn_hpo.launching.agent.running import Running
from hydragnn_hpo.launching.agent.tether import tethered
from hydragnn_hpo.launching.job import Event, Job
from hydragnn_hpo.launching.jsonl_tail import JsonlTail, end_of
from hydragnn_hpo.launching.launchers.keeper import BEATS
from hydragnn_hpo.launching.launchers.launcher import Site, host_by_host, places, wrapped
from hydragnn_hpo.launching.process_control import end_tagged
from hydragnn_hpo.launching.rank_environment import JOB

RANKS = ".ranks"
"""Ending of the folder beside a lease in which keepers and controller leave their files."""

_KEEPER = "hydragnn_hpo.launching.launchers.keeper"

_BACK_OFF = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before a launcher that started nobody is tried again."""

_LINGER_SECONDS = 10.0
"""Time that a launcher gets to end by itself once all its ranks have ended."""


class Launched:
    """A job from its order to its end."""

    def __init__(self, job: Job, target: str, site: Site) -> None:
        """Take it on; nothing is started yet."""
        self.job, self._site = host_by_host(job), site
        self.over = False
        self.folder = job.lease.absolute().with_name(job.lease.name + RANKS)
        self._order = self._make_order(target)
        self._running = Running(self._order, job.lease)
        self._process: subprocess.Popen[bytes] | None = None
        self._seen: set[str] = set()
        self._beats: dict[int, tuple[int, float]] = {}
        self._listened = 0.0
        self._tries = 0
        self._again_at: float | None = None
        self._ended_at: float | None = None
        self._log_end = 0

    def _make_order(self, target: str) -> dict[str, Any]:
        job, site = self.job, self._site
        return {
            "job": job.id,
            "target": target,
            "spec": job.spec,
            "log": str(job.log.absolute()),
            "lease": str(job.lease.absolute()),
            "lease_seconds": site.lease_seconds,
            "watch": None if job.watch is None else str(job.watch.absolute()),
            "width": job.width,
            "one_host": len({slot.host for slot in job.slots}) == 1,
            "interfaces": list(site.profile.interfaces),
            "scratch": site.profile.scratch,
            "ranks": places(job, site.tag, site=site.profile),
        }

    # -- starting --------------------------------------------------------------------

    def begin(self) -> None:
        """Write the order and the lease, and start the launcher."""
        with self._cannot():
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(mode=0o700)
            self.job.lease.touch(mode=0o600)
            write_json(self.folder / "order.json", self._order)
            hosts = "".join(f"{slot.host}\n" for slot in self.job.slots)
            write_text(self.folder / "hosts", hosts)
            if self.job.watch is not None:
                self._running.tail = JsonlTail(self.job.watch, end_of(self.job.watch))
            self._launch()

    @contextlib.contextmanager
    def _cannot(self) -> Iterator[None]:
        """Let the job end where something cannot be done, and no other."""
        try:
            yield
        except OSError as error:
            self._give_up(f"{self.folder}: cannot be written ({error.strerror}).")
        except HydraError as error:
            self._give_up(str(error))

    def _launch(self) -> None:
        launcher = self._site.launcher
        keeper = (sys.executable, "-P", "-m", _KEEPER, launcher.rank_variables, str(self.folder))
        argv = wrapped(keeper, self._site.profile)
        launch = launcher.render(self.job, argv, self.folder / "hosts")
        self._tries += 1
        self._again_at, self._log_end = None, end_of(self.job.log)
        with storage(self.job.log):
            log = os.open(self.job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._process = subprocess.Popen(
                tethered(launch.argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._site.environment(self.job, launch),
                start_new_session=True,
            )
        finally:
            os.close(log)

    def renew(self) -> None:
        """Let the ranks run on for another lease time."""
        with contextlib.suppress(OSError):
            os.utime(self.job.lease)

    # -- ending ----------------------------------------------------------------------

    def stop(self, grace: float) -> None:
        """Have SIGTERM sent now and SIGKILL after ``grace`` seconds."""
        self._running.stop(grace, time.monotonic())

    def never_started(self) -> Event:
        """Tell the end of a job whose turn never came."""
        self._running.lose_ranks(-signal.SIGTERM)
        return self._ended()

    def force(self) -> None:
        """Have every rank killed, and the launcher asked to end."""
        self._signal(signal.SIGKILL)
        with contextlib.suppress(OSError):
            self.job.lease.unlink()
        if self._process and self._process.poll() is None:
            self._process.terminate()

    def end(self) -> None:
        """Wait until the launcher is gone."""
        if self._process is None:
            return
        try:
            self._process.wait(_LINGER_SECONDS / 2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(OSError):
            write_text(self.folder / "signal", str(number))

    def _give_up(self, reason: str) -> None:
        self._running.error = reason
        self._running.lose_ranks(-signal.SIGKILL)

    def _ended(self) -> Event:
        self.over = True
        result = self._running.result()
        result["codes"] = [result["codes"][rank] for rank in range(self.job.width)]
        return Event("ended", self.job.id, time.time(), result)

    # -- looking ---------------------------------------------------------------------

    def look(self) -> list[Event]:
        """Give what happened to the job since the last look."""
        now, running = time.monotonic(), self._running
        events = self._read_files(now) if self.folder.exists() else []
        if running.told:
            events += self._records()
        self._miss_silent(now)
        if due := running.due_signal(now):
            self._signal(due)
        self._look_at_launcher(now)
        if running.ended and self._launcher_is_gone(now):
            while told := self._records():
                events += told
            self._tidy()
            events.append(self._ended())
        return events

    def _read_files(self, now: float) -> list[Event]:
        events, running = [], self._running
        for rank, pid in self._told("started"):
            running.pids[rank] = pid["pid"]
        for rank, end in sorted(self._told("ended"), key=lambda told: told[1]["time"]):
            running.end_rank(rank, end["code"], now=now)
        if not running.told and len(running.pids) == self.job.width:
            running.told = True
            pids = [running.pids[rank] for rank in range(self.job.width)]
            events.append(Event("started", self.job.id, time.time(), {"pids": pids}))
        return events

    def _told(self, what: str) -> list[tuple[int, dict[str, Any]]]:
        """Give what keepers wrote since the last look: ``started`` or ``ended``, by rank."""
        names = {f"{rank}.{what}": rank for rank in range(self.job.width)}
        fresh = sorted(set(os.listdir(self.folder)) & names.keys() - self._seen)
        self._seen.update(fresh)
        return [(names[name], read_json(self.folder / name)) for name in fresh]

    def _miss_silent(self, now: float) -> None:
        """Give ranks up that nobody keeps any more: a launcher takes minutes to miss a host.

        After two lease times without a sign of its keeper a rank has ended by its own lease.
        """
        seconds = self._site.lease_seconds
        if now - self._listened < seconds / BEATS:
            return
        self._listened = now
        for rank in self._running.pids.keys() - self._running.codes.keys():
            stamp, since = self._beats.get(rank, (0, now))
            with contextlib.suppress(OSError):
                found = (self.folder / f"{rank}.started").stat().st_mtime_ns
                if found != stamp:
                    stamp, since = found, now
            self._beats[rank] = (stamp, since)
            if now - since > 2 * seconds:
                self._running.end_rank(rank, -signal.SIGKILL, now=now)

    def _records(self) -> list[Event]:
        tail = self._running.tail
        if tail is None:
            return []
        try:
            records = tail.read()
        except OSError as error:
            self._running.error = f"{tail.path}: cannot be read ({error.strerror})."
            return []
        return [Event("record", self.job.id, time.time(), record) for record in records]

    def _look_at_launcher(self, now: float) -> None:
        """Try again where it started nobody; else give ranks up once none can be alive."""
        if self._again_at is not None:
            if now >= self._again_at:
                with self._cannot():
                    self._launch()
            return
        if self._running.ended or self._process is None or self._process.poll() is None:
            return
        if self._ended_at is None:
            self._ended_at = now
            with contextlib.suppress(OSError):
                self.job.lease.unlink()
            if self._site.launcher.here:
                end_tagged(JOB, f"{self._site.tag}/{self.job.id}")
        if not self._running.pids:
            self._back_off(now)
        elif self._site.launcher.here or now - self._ended_at > self._site.lease_seconds:
            self._running.lose_ranks(-signal.SIGKILL)

    def _back_off(self, now: float) -> None:
        """Try again later, or give up with the launcher's last words."""
        self._ended_at = None
        if self._tries > len(_BACK_OFF) or self._running.signal_sent:
            self._give_up(f"{self._words()} (tried {self._tries} times).")
            return
        self.job.lease.touch(mode=0o600)
        self._again_at = now + _BACK_OFF[self._tries - 1]

    def _words(self) -> str:
        with contextlib.suppress(OSError), self.job.log.open("rb") as log:
            log.seek(self._log_end)
            lines = log.read(1 << 16).decode(errors="replace").strip().splitlines()
            if lines:
                return lines[-1].rstrip(".")
        assert self._process is not None
        return f"the launcher ended (code {self._process.returncode}) and started nobody"

    def _launcher_is_gone(self, now: float) -> bool:
        """Say whether the launcher has given its slots back; hurry it when it does not."""
        if self._process is None or self._process.poll() is not None:
            return True
        if self._ended_at is None:
            self._ended_at = now
        elif now - self._ended_at > 2 * _LINGER_SECONDS:
            self._process.kill()
        elif now - self._ended_at > _LINGER_SECONDS:
            self._process.terminate()
        return False

    def _tidy(self) -> None:
        with contextlib.suppress(OSError):
            self.job.lease.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)
