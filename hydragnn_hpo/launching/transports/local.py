"""Run jobs on this computer: the agent is the controller's own child."""

import contextlib
import math
import os
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydragnn_hpo.config.machine import SiteConfig
from hydragnn_hpo.files import FILE_MODE, storage
from hydragnn_hpo.launching.fleet import Fleet
from hydragnn_hpo.launching.job import JOBS, PRELOAD
from hydragnn_hpo.launching.process_control import AGENT, HOST, end_tagged, host_tag
from hydragnn_hpo.launching.profile_adapter import UNKNOWN, layout_of
from hydragnn_hpo.launching.slots import Layout, detect_slots
from hydragnn_hpo.launching.transports.agent_software import OWN, Software
from hydragnn_hpo.launching.transports.transport import AgentCall, HostNews, agent_argv

HERE = "local"
"""Host id of this computer."""

_START_SECONDS = 60.0
_CLOSING_SECONDS = 10.0


class LocalTransport:
    """Starts one agent on this computer; the kernel kills it when the controller's thread ends."""

    hosts: Sequence[str] = (HERE,)
    outlives = False
    allocation = ""
    address = "127.0.0.1"
    ends_at = math.inf

    def __init__(
        self, slots: int, lanes: int, log: Path, layout: Layout, software: Software = OWN
    ) -> None:
        """Find the slots of this computer; the agent's output is appended to ``log``."""
        self.slots = detect_slots(slots, HERE, lanes, layout)
        self._log, self._software = log, software
        self._tags: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, hosts: Sequence[str], call: AgentCall) -> None:
        """Start an agent, replacing any that is running."""
        self.end(HERE)
        self._tags = {HOST: host_tag(call.tag, HERE), AGENT: secrets.token_hex(8)}
        with storage(self._log):
            log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
        try:
            self._process = subprocess.Popen(
                agent_argv(HERE, parent=os.getpid(), software=self._software),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=call.whole_environment(software=self._software) | self._tags,
                start_new_session=True,
            )
        finally:
            os.close(log)

    def poll(self) -> list[HostNews]:
        """Report once that the agent has ended, after killing all that it started."""
        if self._process is None or self._process.poll() is None:
            return []
        reason = f"ended (code {self._process.returncode}): see {self._log}"
        self.end(HERE)
        return [HostNews(HERE, "gone", reason)]

    def find_last_words(self, host: str) -> str:
        """Return where the output of the agent is."""
        return f"see {self._log}"

    def end(self, host: str) -> bool:
        """Kill the agent and all that it started, and wait until they are gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            end_tagged(AGENT, self._tags[AGENT])
        return True

    def close(self) -> None:
        """Wait for the agent to clean up, and kill whatever is left."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_CLOSING_SECONDS)
            self.end(HERE)


class LocalBackend(Fleet):
    """Forked ranks on this computer, see ``Backend``.

    Create, poll and close it in the same thread, which must outlive it: when that thread ends, the
    kernel kills the agent and all that it started.
    """

    def __init__(
        self,
        *,
        slots: int = 0,
        lanes: int = 1,
        lease_seconds: float = 10.0,
        sample_seconds: float = 0.0,
        run_dir: Path,
        jobs: Mapping[str, str] = JOBS,
        preload: Sequence[str] = PRELOAD,
        site: SiteConfig = UNKNOWN,
        software: Software = OWN,
    ) -> None:
        """Start an agent, whose fork server warms up; returns once the agent has connected.

        Args:
            slots: ranks at a time; for this and ``lanes`` see ``detect_slots``.
            lanes: slots that share one GPU.
            lease_seconds: how long ranks outlive an agent that hangs.
            sample_seconds: as in ``MachineConfig``.
            run_dir: an existing folder for the agent's log.
            jobs: kind of job -> ``module:function``.
            preload: the modules that the fork server imports.
            site: settings of the machine's profile.
            software: the Python that runs the agent.

        Raises:
            JobError: the agent cannot start.
        """
        super().__init__(
            LocalTransport(slots, lanes, run_dir / "agent.log", layout_of(site), software),
            run_dir=run_dir,
            lease_seconds=lease_seconds,
            sample_seconds=sample_seconds,
            jobs=jobs,
            preload=preload,
            site=site.model_copy(update={"interfaces": ()}),  # Law 10: loopback only
        )
        self._await_agent()

    def _await_agent(self) -> None:
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self.await_hosts(_START_SECONDS)
            undo.pop_all()
