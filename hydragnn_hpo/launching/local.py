"""Run jobs on this computer: the agent is the controller's own child."""

import itertools
import json
import math
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import hydragnn_hpo
from hydragnn_hpo.errors import JobError, unknown
from hydragnn_hpo.files import storage, write_text
from hydragnn_hpo.launching.channel import Channel, wait
from hydragnn_hpo.launching.job import JOBS, PRELOAD, Event, Job
from hydragnn_hpo.launching.link import AgentLink, Rendezvous, start_order
from hydragnn_hpo.launching.ports import PortPool
from hydragnn_hpo.launching.slots import detect_slots
from hydragnn_hpo.launching.strays import AGENT, RUN, end_tagged, run_tag

_SILENT_LEASES = 3.0
"""An agent that has not been heard for so many lease times is hung."""

_GREETING_SECONDS = 60.0
"""Seconds an agent has to say its first word."""

_CLOSING_SECONDS = 10.0


def _environment(tag: str, token: str) -> dict[str, str]:
    """Give the agent's environment; a checkout that is not installed is found again."""
    environment = os.environ | {RUN: tag, AGENT: token}
    root = Path(hydragnn_hpo.__file__).parents[1]
    if root.name not in ("site-packages", "dist-packages"):
        path = os.environ.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{root}{os.pathsep}{path}" if path else str(root)
    return environment


class LocalBackend:
    """Forked ranks on this computer, see ``Backend``.

    Create, poll and close it in one thread that lives as long as it: when that thread
    ends, the kernel kills the agent and everything below.
    """

    adoption_seconds = 0.0
    ends_at = math.inf

    def __init__(
        self,
        *,
        slots: int = 0,
        lease_seconds: float = 10.0,
        run_dir: Path,
        jobs: Mapping[str, str] = JOBS,
        preload: Sequence[str] = PRELOAD,
    ) -> None:
        """Start an agent and let its zygote warm up; returns at once.

        Args:
            slots: how many ranks at a time, see ``detect_slots``.
            lease_seconds: how long ranks outlive an agent that hangs.
            run_dir: an existing folder, the agent's log goes there.
            jobs: kind of job -> ``module:function``.
            preload: the modules that the zygote imports.
        """
        self.slots = detect_slots(slots)
        self._lease_seconds = lease_seconds
        self._log = run_dir / "agent.log"
        self._tag = run_tag(run_dir)
        self._jobs = jobs
        self._preload = preload
        self._pool = PortPool(os.getpid())
        self._ports: dict[str, int] = {}
        self._controls: dict[str, Path | None] = {}
        self._lives = itertools.count(1)
        self._name = secrets.token_hex(8)
        self._closed = False
        self._start_agent()

    def _start_agent(self) -> None:
        self._token = f"{self._name}.{next(self._lives)}"
        ours, theirs = socket.socketpair()
        descriptor = theirs.fileno()
        with storage(self._log):
            log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hydragnn_hpo.launching.agent", str(descriptor)],
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(self._tag, self._token),
                start_new_session=True,
            )
        finally:
            os.close(log)
            theirs.close()
        self._link = AgentLink(
            Channel(ours),
            token=self._token,
            preload=self._preload,
            lease_seconds=self._lease_seconds,
        )

    def start(self, job: Job) -> None:
        """Run a job as soon as a zygote is warm; returns at once.

        Raises:
            JobError: the kind is unknown, or no port is free.
        """
        assert not self._closed, "the backend is closed"
        if job.kind not in self._jobs:
            raise JobError(unknown("kind of job", job.kind, self._jobs))
        self._ports[job.id] = self._pool.take()
        self._controls[job.id] = job.control
        meet = Rendezvous("127.0.0.1", self._ports[job.id], "lo")
        order = start_order(
            job, self._jobs[job.kind], ranks=range(job.width), meet=meet, tag=self._tag
        )
        self._link.start(job, order)

    def stop(self, job_id: str, grace: float = 5.0) -> None:
        """Ask a job to end by SIGTERM, force it after ``grace`` seconds; ended ones are ignored."""
        self._link.stop(job_id, grace)

    def ask(self, job_id: str, wish: str) -> None:
        """Leave a wish where rank 0 of a job finds it; ended ones are ignored."""
        control = self._controls.get(job_id)
        if control is not None:
            write_text(control, json.dumps({"wish": wish}))

    def poll(self, timeout: float) -> list[Event]:
        """Give what happened, waiting at most ``timeout`` seconds for something to happen.

        Raises:
            JobError: an agent could not even start.
        """
        deadline = time.monotonic() + timeout
        while True:
            events = self._hear()
            left = deadline - time.monotonic()
            if events or left <= 0 or self._closed:
                return events
            wait([self._link.channel], min(left, self._lease_seconds / 5))

    def _hear(self) -> list[Event]:
        """Read the agent's news; replace it when it is gone or hangs."""
        if self._closed:
            return []
        gone = self._process.poll() is not None
        events = self._link.read()
        silent = time.monotonic() - self._link.heard
        patience = _SILENT_LEASES * self._lease_seconds
        if not self._link.greeted:
            patience = max(patience, _GREETING_SECONDS)
        if gone or self._link.channel.closed:
            events += self._replace_agent("ended")
        elif silent > patience:
            events += self._replace_agent(f"was silent for {silent:.0f} s")
        for event in events:
            if event.kind == "ended" and event.job is not None:
                self._pool.give_back(self._ports.pop(event.job))
                self._controls.pop(event.job, None)
        return events

    def _replace_agent(self, reason: str) -> list[Event]:
        """Make sure that all of a lost agent is gone, and start another."""
        self._end_agent(0.0)
        code = self._process.returncode
        events = self._link.abandon(f"the agent {reason} (code {code})")
        if not self._link.greeted:
            raise JobError(f"the agent cannot start (code {code}): see {self._log}.")
        self._start_agent()
        return events

    def _end_agent(self, patience: float) -> None:
        """Hang up, wait for the agent to clean up, and kill whatever is left."""
        self._link.channel.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        end_tagged(AGENT, self._token)

    def close(self) -> None:
        """End everything; no process is left. What was not polled yet is lost."""
        if not self._closed:
            self._closed = True
            self._end_agent(_CLOSING_SECONDS)

    def __enter__(self) -> Self:
        """Use the backend in a ``with``."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close it."""
        self.close()
