"""Agents that a launcher (``srun``, ``mpiexec``) starts, one launcher for several hosts."""

import contextlib
import os
import re
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from hydragnn_hpo.errors import JobError, StorageError
from hydragnn_hpo.files import storage
from hydragnn_hpo.launching.job import Slot
from hydragnn_hpo.launching.transports.transport import AgentCall, HostNews

_CLOSING_SECONDS = 2.0
"""Seconds for each stage: ending by itself after its agents, SIGTERM, SIGKILL."""


_CHECK_SECONDS = 120.0

_CHECK = """
[ -d "$1" ] || sleep 3
[ -d "$1" ] || echo "unseen: ${SLURMD_NODENAME:-$(hostname)}"
"""
"""Script by which each host checks for a folder; a file server may show it a moment later."""


def check_shared_folder(
    launcher: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> None:
    """Check whether all hosts see a folder, before anything starts there.

    A failure of the launcher is ignored here: it is reported when agents are started.

    Args:
        launcher: command line that runs a command on every host.
        folder: an existing folder in the run directory.
        environment: environment of the launcher.

    Raises:
        JobError: a host does not see it.
    """
    argv = [*launcher, "sh", "-c", _CHECK, "sh", str(folder.absolute())]
    try:
        answer = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            text=True,
            errors="replace",
            timeout=_CHECK_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    if blind := sorted(re.findall(r"unseen: (\S+)", answer.stdout)):
        more = f" (and {len(blind) - 1} more)" if len(blind) > 1 else ""
        raise JobError(
            f"host {blind[0]}{more} does not see the run directory {folder.parent}: put it on "
            "storage that all hosts share (--run)."
        )


_READ_BYTES = 1 << 20
"""End of a log that is read; agents of a long campaign may have written much."""


@dataclass
class _Launcher:
    hosts: tuple[str, ...]
    process: subprocess.Popen[bytes]
    log: Path
    seen_size: int = 0
    read_size: int = 0
    """Size of the log when it was last looked at, and when it was last read."""

    def lines(self) -> list[str]:
        """Return the last lines of its log."""
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - _READ_BYTES))
            return log.read().decode(errors="replace").splitlines()
        return []

    def has_news(self) -> bool:
        """Check whether its log has grown, and is complete as far as it goes.

        A launcher may report the end of a process before it passes on its last line.
        """
        before = self.seen_size
        with contextlib.suppress(OSError):
            self.seen_size = self.log.stat().st_size
        if self.seen_size != before or self.seen_size == self.read_size:
            return False
        self.read_size = self.seen_size
        return True

    def reason(self) -> str:
        """Complete a sentence about why it ended."""
        lines = [line for line in self.lines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()] or lines[-1:]
        ended = f"its launcher ended (code {self.process.returncode})"
        if not errors:
            return f"has no agent, {ended}: see {self.log}"
        return f"has no agent, {ended}: {errors[-1].removeprefix('error: ').rstrip('.')}"


class LauncherTransport(ABC):
    """Starts agents by launchers: one for all hosts, and one more for each restart of lost ones.

    A launcher's report does not prove that processes have ended; an expired lease does, and so does
    a new agent, which kills what earlier ones left on its host. Launchers outlive a lost
    controller; their agents and ranks then connect to the next one.
    """

    slots: tuple[Slot, ...] = ()
    outlives = True
    allocation = ""

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        run_dir: Path,
        address: str,
        ends_at: float,
        flags: Sequence[str] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Use some hosts; nothing is started yet.

        Args:
            hosts: ids of the hosts.
            run_dir: folder of the run, for logs.
            address: address on which the controller listens.
            ends_at: when the allocation of the hosts ends, in seconds since the epoch.
            flags: flags of the machine's profile for launchers of agents.
            variables: environment variables for launchers, beside those of each start.
        """
        self.hosts = tuple(hosts)
        self.address = address
        self.ends_at = ends_at
        self._flags = tuple(flags)
        self._variables = variables
        self._folder = run_dir / "agents"
        self._launchers: list[_Launcher] = []
        self._news: list[HostNews] = []
        self._count = 0

    @abstractmethod
    def start(self, hosts: Sequence[str], call: AgentCall) -> None:
        """Start an agent on each of these hosts; ``poll`` reports failures."""

    @abstractmethod
    def _launcher_argv(self, name: str, hosts: Sequence[str]) -> list[str]:
        """Return a launcher's command line for these hosts; write files NAME.* that it needs."""

    def check_run_directory(self, environment: Mapping[str, str]) -> None:
        """Check whether all hosts see the run directory.

        Raises:
            JobError: a host does not see it.
            StorageError: a folder cannot be made in it.
        """
        self._make_folder()
        launcher = self._launcher_argv("all", self.hosts)
        check_shared_folder(launcher, self._folder, {**environment, **self._variables})

    def _find_ended(self, lines: Sequence[str]) -> dict[str, str]:
        """Return the hosts of which a running launcher reports that their agent has ended.

        Returns:
            Host -> end of a sentence that begins with the host.
        """
        return {}

    def find_last_words(self, host: str) -> str:
        """Return the last line about a host in the log of its launcher, and which log that is."""
        for each in reversed(self._launchers):
            if host in each.hosts:
                named = re.compile(rf"(?<![\w.-]){re.escape(host.partition('@')[0])}(?![\w.-])")
                last = next(filter(named.search, reversed(each.lines())), "")
                return f"{last.strip().rstrip('.')}; see {each.log}" if last else f"see {each.log}"
        return f"see {self._folder}"

    def _make_folder(self) -> None:
        with storage(self._folder):
            self._folder.mkdir(mode=0o700, exist_ok=True)

    def _next_name(self, call: AgentCall) -> str:
        self._count += 1
        return f"{call.epoch:03d}-{self._count:04d}"

    def _launch(
        self,
        name: str,
        agent: Sequence[str],
        *,
        hosts: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        """Start agents by a launcher that logs to NAME.log; ``poll`` reports failures."""
        path = self._folder / f"{name}.log"
        try:
            self._make_folder()
            argv = [*self._launcher_argv(name, hosts), *agent]
            with storage(path):
                log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with open(log, "ab") as output:
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**environment, **self._variables},
                    start_new_session=True,
                )
        except (OSError, StorageError) as error:
            self._report_failed(hosts, f"has no agent: {error}")
        else:
            self._launchers.append(_Launcher(tuple(hosts), process, path))

    def _report_failed(self, hosts: Iterable[str], reason: str) -> None:
        self._news += [HostNews(host, "failed", reason) for host in hosts]

    def _starting_hosts(self) -> set[str]:
        """Return the hosts on which a launcher is about to be started."""
        return set()

    def poll(self) -> list[HostNews]:
        """Return the hosts whose agent or launcher ended, unless a later one runs agents there."""
        for each in list(self._launchers):
            ended = each.process.poll() is not None
            if not ended and not each.has_news():
                continue
            reasons = self._find_ended(each.lines())
            if ended:
                self._launchers.remove(each)
                reasons = dict.fromkeys(each.hosts, each.reason()) | reasons
            others = (other.hosts for other in self._launchers if other is not each)
            later = self._starting_hosts().union(*others)
            for host in [host for host in each.hosts if host in reasons and host not in later]:
                self._report_failed([host], reasons[host])
            each.hosts = tuple(host for host in each.hosts if host not in reasons)
        news, self._news = self._news, []
        return news

    def end(self, host: str) -> bool:
        """Return False: the state of a host that does not answer is unknown."""
        return False

    def close(self) -> None:
        """Wait for the launchers, whose agents were dismissed, and end those that stay."""
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + _CLOSING_SECONDS
            for each in self._launchers:
                if number is not None and each.process.poll() is None:
                    each.process.send_signal(number)
            for each in self._launchers:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    each.process.wait(max(0.1, deadline - time.monotonic()))
        self._launchers.clear()
