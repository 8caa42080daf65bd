"""What srun or mpiexec starts in place of an agent: ``... keeper VARIABLES FOLDER``.

It runs one rank of one job in a fork, keeps its lease, passes on what it is told, and writes down
how the rank ended. It speaks with the controller through small files in FOLDER:

in: ``order.json``, ``signal`` (a number); out, by rank: ``N.started`` (touched as long as it is
kept), ``N.ended``; ``meet`` from the first rank: where all of them meet.
"""

import contextlib
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.files import read_json, write_json
from hydragnn_hpo.launching import process_control
from hydragnn_hpo.launching.agent.rank import run_rank
from hydragnn_hpo.launching.host_network import PortPool, address_of, first_there, is_free
from hydragnn_hpo.launching.scratch_folders import (
    SCRATCH,
    local_place,
    make_rank_folders,
    remove_folders,
)
from hydragnn_hpo.leases import StampWatch, create_rank_lease, grant_rank_lease

_HEARD = (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

_MEETING_SECONDS = 120.0
"""Time in which the first rank must have said where the others meet it."""

_LOOK_SECONDS = 0.2

BEATS = 3
"""Signs of life per lease time."""


def rank_of(variables: str, environment: Mapping[str, str]) -> int:
    """Give our rank, from the first of some variables (separated by commas) that is set."""
    for name in variables.split(","):
        if name in environment:
            return int(environment[name])
    raise SystemExit(f"none of {variables} is set: this is to be started by srun or mpiexec.")


class Keeper:
    """Runs one rank."""

    def __init__(self, folder: Path, rank: int) -> None:
        """Read the order."""
        self.folder, self.rank = folder, rank
        self.order: dict[str, Any] = read_json(folder / "order.json")
        self.place: dict[str, Any] = self.order["ranks"][rank]
        self._scratch = Path(tempfile.mkdtemp(prefix="hydragnn-hpo-"))
        self._own: Path | None = None
        self._own_lease = self._scratch / "lease"
        seconds = float(self.order["lease_seconds"])
        self._lease = StampWatch(Path(self.order["lease"]), seconds, time.monotonic())
        self._interface = self._find_interface()
        self._signalled: set[int] = set()
        self._beaten = 0.0

    def run(self) -> None:
        """Run the rank to its end."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        process_control.name_process("hpo-keeper")
        try:
            self.place["environment"] |= self._meet()
            self._settle()
            create_rank_lease(self._own_lease, self._lease.until)
            child = self._fork()
            self._tell("started", pid=child, host=socket.gethostname())
            code = self._follow(child)
            self._tell("ended", code=code, time=time.time())
        finally:
            remove_folders([self._scratch, *([self._own] if self._own else [])])

    def _tell(self, what: str, **values: Any) -> None:
        write_json(self.folder / f"{self.rank}.{what}", values)

    def _meet(self) -> dict[str, str]:
        """Say, or learn, where the ranks of the job meet."""
        path = self.folder / "meet"
        if self.rank == 0:
            pool = PortPool(os.getpid())  # no two keepers of a host begin at the same port
            port = next(port for port in iter(pool.take, 0) if is_free(port))
            meeting = {"address": self._address(), "port": port}
            write_json(path, meeting)
        deadline = time.monotonic() + _MEETING_SECONDS
        while not path.exists():
            if time.monotonic() > deadline:
                raise SystemExit(f"{path}: rank 0 did not say where to meet; ending.")
            time.sleep(_LOOK_SECONDS)
        meet = read_json(path)
        found = {"MASTER_ADDR": meet["address"], "MASTER_PORT": str(meet["port"])}
        return found | ({"GLOO_SOCKET_IFNAME": self._interface} if self._interface else {})

    def _find_interface(self) -> str:
        """Give the interface of this host on which ranks of several hosts meet, if it is said."""
        named = self.order["interfaces"]
        if self.order["one_host"] or not named:
            return ""
        if found := first_there(named):
            return found
        raise SystemExit(
            f"{socket.gethostname()} has no interface {', '.join(named)}: set another."
        )

    def _settle(self) -> None:
        """Make the folders of our rank, on the fastest place of this host."""
        place = local_place(self.order["scratch"], os.environ)
        if place is not None:
            os.environ.setdefault(SCRATCH, str(place))
        if self.place["folders"]:
            self._own = Path(tempfile.mkdtemp(prefix="hydragnn-hpo-", dir=place))
            order = {"job": self.order["job"], "ranks": [self.place]}
            try:
                make_rank_folders(order, host=socket.gethostname(), scratch=self._own)
            except (ConfigError, OSError) as error:
                raise SystemExit(f"{socket.gethostname()}: {error}") from error

    def _address(self) -> str:
        if self.order["one_host"]:
            return "127.0.0.1"
        if self._interface and (found := address_of(self._interface)):
            return found
        return socket.gethostbyname(socket.gethostname())

    def _fork(self) -> int:
        keeper = os.getpid()
        child = os.fork()
        if child == 0:
            order = self.order | {"lease": str(self._own_lease)}
            run_rank(order, self.place, zygote=keeper)
        return child

    def _follow(self, child: int) -> int:
        """Wait for the rank; gives its code, negative for a signal."""
        while True:
            heard = signal.sigtimedwait(_HEARD, _LOOK_SECONDS)
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child, signal.SIGKILL)  # not reaped yet: the number is its own
                return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if heard and heard.si_signo != signal.SIGCHLD:
                os.kill(child, heard.si_signo)
            self._renew()
            self._obey(child)

    def _renew(self) -> None:
        """Hand on how long the controller lets us run; the rank itself sees to its end."""
        now = time.monotonic()
        with contextlib.suppress(OSError):
            if now - self._beaten > float(self.order["lease_seconds"]) / BEATS:
                self._beaten = now
                os.utime(self.folder / f"{self.rank}.started")
            try:
                self._lease.update(now)
            except FileNotFoundError:  # the controller took it away
                self._own_lease.unlink(missing_ok=True)
                return
            except OSError:  # out of reach: what was granted last counts
                pass
            grant_rank_lease(self._own_lease, self._lease.until)

    def _obey(self, child: int) -> None:
        """Give the rank the signal that the controller left for us, each once."""
        try:
            number = int((self.folder / "signal").read_text())
        except (OSError, ValueError):
            return
        if number in self._signalled:
            return
        self._signalled.add(number)
        os.kill(child, number)
        if number == signal.SIGKILL:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child, number)


def main(variables: str, folder: str) -> None:
    """Keep the rank that we are; its code is told by a file, and our own proves nothing."""
    Keeper(Path(folder), rank_of(variables, os.environ)).run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
