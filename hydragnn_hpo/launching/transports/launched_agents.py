"""Processes of a launcher (``srun``, ``mpiexec``) that each run agents on some hosts."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydragnn_hpo.errors import JobError
from hydragnn_hpo.files import storage
from hydragnn_hpo.launching.transports.transport import HostNews

_CLOSING_SECONDS = 2.0
"""For each of: ending by itself (its agents have gone already), SIGTERM, SIGKILL."""


_CHECK_SECONDS = 120.0

_CHECK = """
[ -d "$1" ] || sleep 3
[ -d "$1" ] || echo "unseen: ${SLURMD_NODENAME:-$(hostname)}"
"""
"""What each host runs to see whether it sees a folder; a file server may be a moment late."""


def check_shared_folder(
    launcher: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> None:
    """Check whether all hosts see a folder, before anything starts there.

    A launcher that fails says nothing about the folder: why is found when it starts agents.

    Args:
        launcher: what runs a command on every host.
        folder: an existing one in the run directory.
        environment: of the launcher.

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


@dataclass
class _Launcher:
    hosts: tuple[str, ...]
    process: subprocess.Popen[bytes]
    log: Path

    def reason(self) -> str:
        """Complete a sentence about why it ended."""
        lines = self.log.read_bytes()[-2000:].decode(errors="replace").strip().splitlines()
        errors = [line for line in lines if "error" in line.lower()] or lines[-1:]
        ended = f"its launcher ended (code {self.process.returncode})"
        return f"has no agent, {ended}: {errors[-1] if errors else f'see {self.log}'}"


class LaunchedAgents:
    """Launchers that were started, and what they ran on.

    They live on when the controller is lost: agents and their ranks are adopted by the next one.
    """

    def __init__(self, folder: Path) -> None:
        """Start nothing yet; logs go to ``folder``, which is made when needed."""
        self.folder = folder
        self._launched: list[_Launcher] = []

    def prepare(self) -> None:
        """Make the folder.

        Raises:
            StorageError: that is not possible.
        """
        with storage(self.folder):
            self.folder.mkdir(mode=0o700, exist_ok=True)

    def start(
        self,
        name: str,
        argv: Sequence[str],
        *,
        hosts: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        """Start a launcher.

        Args:
            name: of its log, without ending.
            argv: its command.
            hosts: ids of the hosts on which it starts agents.
            environment: all that it finds.

        Raises:
            OSError: it cannot be started.
            StorageError: its log cannot be written.
        """
        self.prepare()
        path = self.folder / f"{name}.log"
        with storage(path):
            log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environment),
                start_new_session=True,
            )
        finally:
            os.close(log)
        self._launched.append(_Launcher(tuple(hosts), process, path))

    def poll(self, starting: Collection[str] = ()) -> list[HostNews]:
        """Return news of the hosts whose launcher ended, unless a later one runs agents there.

        Args:
            starting: hosts on which a later one is about to start.
        """
        news = []
        for ended in [each for each in self._launched if each.process.poll() is not None]:
            self._launched.remove(ended)
            reason = ended.reason()
            later = {host for other in self._launched for host in other.hosts} | set(starting)
            news += [HostNews(h, "failed", reason) for h in ended.hosts if h not in later]
        return news

    def close(self) -> None:
        """Wait for the launchers, whose agents were told to go, and end those that stay."""
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + _CLOSING_SECONDS
            for each in self._launched:
                if number is not None and each.process.poll() is None:
                    each.process.send_signal(number)
            for each in self._launched:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    each.process.wait(max(0.1, deadline - time.monotonic()))
        self._launched.clear()
