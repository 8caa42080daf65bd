"""One rank of a command that ``srun`` or ``mpiexec`` starts, so that it can use their PMI.

``python -P -m hydragnn_hpo.launching.launched_rank FOLDER`` reads FOLDER/launch.json,
applies the settings of its rank (cores, device, environment, private folders), and runs the
command. It ends the command once FOLDER/launch.lease is no longer renewed: launchers take minutes
to detect a lost host, and a killed launcher may leave its ranks behind. The lines of that file are
the signals to send to the command; they do not go through the launchers, which handle signals
differently (SIGUSR2 ends hydra's ``mpiexec``). Other lines are requests, see ``rank_requests``.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from hydragnn_hpo.errors import HydraError
from hydragnn_hpo.files import read_json
from hydragnn_hpo.host_info import SCRATCH
from hydragnn_hpo.launching import process_control
from hydragnn_hpo.launching.protocol import RankStart
from hydragnn_hpo.launching.rank_environment import rank_of_launcher
from hydragnn_hpo.launching.scratch_folders import local_place, make_rank_folders, remove_folders
from hydragnn_hpo.leases import RANK_LEASE_LAPSED, StampWatch
from hydragnn_hpo.rank_requests import REQUESTS

ORDER, LEASE, FAILED = "launch.json", "launch.lease", "launch.failed"
"""Files in an attempt's folder; the first rank that fails writes its exit code to ``FAILED``."""

_LOOK_SECONDS = 0.25
"""Seconds between two checks of the lease."""


class LaunchOrder(msgspec.Struct, frozen=True):
    """Command and settings of a launcher's ranks; the content of ``launch.json``."""

    job: str
    argv: tuple[str, ...]
    lease_seconds: float
    scratch: str | None
    """As in ``HostProfile``."""

    ranks: tuple[RankStart, ...]
    """Settings of each rank, in the launcher's rank order."""


class LaunchedRank:
    """Runs the command as one rank."""

    def __init__(self, folder: Path, rank: int) -> None:
        """Read the launch order, and start watching the lease."""
        self._folder = folder
        self._order = msgspec.convert(read_json(folder / ORDER), LaunchOrder)
        self._rank = self._order.ranks[rank]
        self._lease = StampWatch(folder / LEASE, self._order.lease_seconds, time.monotonic())
        self._passed_on = 0
        self._requests: int | None = None
        """Descriptor of the pipe to the command of rank 0."""

    def run(self) -> int:
        """Run the command to its end; return its exit code, or 128 plus the number of a signal."""
        folders: list[Path] = []
        try:
            folders = self._take_slot()
            if self._rank.rank == 0:
                self._open_requests()
            process = subprocess.Popen(
                process_control.tethered(self._order.argv),
                stdin=subprocess.DEVNULL,
                cwd=self._folder,
                close_fds=False,  # the command uses PMI through an inherited descriptor
            )
            code = self._follow(process)
            self._record_failure(code)
        finally:
            remove_folders(folders)
        return code if code >= 0 else 128 - code

    def _record_failure(self, code: int) -> None:
        """Write the exit code to ``FAILED``, unless another rank failed before.

        Nothing is written after the lease expired: the cause may be that the run directory cannot
        be reached.
        """
        if code in (0, RANK_LEASE_LAPSED):
            return
        with contextlib.suppress(OSError), (self._folder / FAILED).open("x") as file:
            file.write(f"{code}\n")

    def _take_slot(self) -> list[Path]:
        """Set environment and cores, create folders; return the folders to remove afterwards."""
        place = local_place(self._order.scratch, os.environ)
        if place is not None:
            os.environ.setdefault(SCRATCH, str(place))
        folders: list[Path] = []
        if self._rank.folders:
            own = Path(tempfile.mkdtemp(prefix="hydragnn-hpo-", dir=place))
            job = self._order.job
            host = socket.gethostname()
            folders = [*make_rank_folders(job, [self._rank], host=host, scratch=own), own]
        for name in self._rank.without:
            os.environ.pop(name, None)
        os.environ.update(self._rank.environment)
        if self._rank.cores:
            with contextlib.suppress(OSError):  # not allowed: keep the launcher's binding
                os.sched_setaffinity(0, self._rank.cores)
        return folders

    def _open_requests(self) -> None:
        """Open the pipe from which the command reads requests."""
        reading, self._requests = os.pipe()
        os.set_inheritable(reading, True)
        os.environ[REQUESTS] = str(reading)

    def _follow(self, process: "subprocess.Popen[bytes]") -> int:
        """Wait for the command, forward signals, and kill it when the lease expires."""
        for wanted in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(wanted, lambda got, _: process.send_signal(got))
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_LOOK_SECONDS)
            if not self._renew():
                sys.stderr.write("the lease of this rank lapsed: its command is ended.\n")
                process.kill()
                process.wait()
                return RANK_LEASE_LAPSED
            self._pass_on(process)

    def _renew(self) -> bool:
        """Check whether the lease still holds."""
        now = time.monotonic()
        try:
            self._lease.update(now)
        except FileNotFoundError:  # the file is removed when the job ends
            return False
        except OSError:  # cannot be reached: the last renewal counts
            pass
        return now < self._lease.until

    def _pass_on(self, process: "subprocess.Popen[bytes]") -> None:
        """Send the command the signals and requests that are new since the last call."""
        try:
            lines = (self._folder / LEASE).read_text().split()
        except OSError:
            return
        new = lines[self._passed_on :]
        self._passed_on = len(lines)
        for line in new:
            if line.isdigit():
                process.send_signal(int(line))
            elif self._requests is not None:
                with contextlib.suppress(OSError):  # the command has closed its end
                    os.write(self._requests, f"{line}\n".encode())


def main(folder: str) -> None:
    """Run one rank and exit with its code; kill everything that it started."""
    process_control.name_process("hpo-rank")
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    process_control.die_with_parent(os.getppid())
    try:
        code = LaunchedRank(Path(folder), rank_of_launcher(os.environ)).run()
    except (HydraError, OSError) as error:
        sys.exit(f"{socket.gethostname()}: {error}")
    finally:
        process_control.end_group()
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
