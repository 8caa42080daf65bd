"""An ``mpiexec`` for every job: for commands that need MPI where there is no Slurm."""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hydragnn_hpo.config import SiteConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.excluded_hosts import without_excluded
from hydragnn_hpo.launching.job import Job, Slot
from hydragnn_hpo.launching.launchers.launcher import Launch
from hydragnn_hpo.launching.profile_adapter import UNKNOWN, layout_of
from hydragnn_hpo.launching.slots import detect_slots
from hydragnn_hpo.launching.slurm.hostlist import checked
from hydragnn_hpo.walltime import WallTime


def find_mpiexec() -> str:
    """Give the ``mpiexec`` of our own environment, or the first on PATH.

    Raises:
        ConfigError: there is none.
    """
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise ConfigError("machine.backend is 'mpiexec', but no mpiexec is on PATH: load an MPI.")
    return found


def hosts_of(nodefile: str) -> list[str]:
    """Give the hosts of a PBS node file, which has one line per slot, each once.

    Raises:
        ConfigError: a line can be no name of a host.
    """
    lines = (line.strip() for line in nodefile.splitlines())
    return list(dict.fromkeys(checked(line) for line in lines if line))


class Mpiexec:
    """Runs the ranks of a job by ``mpiexec``, on this computer or on the hosts of a PBS job."""

    rank_variables = "PMI_RANK,PMIX_RANK,OMPI_COMM_WORLD_RANK,PALS_RANKID"
    ends_at: float
    """When the hosts are taken from us, as ``HYDRAGNN_HPO_END`` says."""

    def __init__(
        self,
        *,
        slots: int = 0,
        hosts: int = 0,
        without: Container[str] = (),
        environment: Mapping[str, str] = os.environ,
        program: str | None = None,
        site: SiteConfig = UNKNOWN,
    ) -> None:
        """Find slots and program.

        Args:
            slots: ranks at a time on each host, see ``detect_slots``; all hosts are taken to be
                like this one.
            hosts: how many to use; 0 for all.
            without: hosts to leave alone.
            environment: names the node file of a PBS job, if we are in one.
            program: the ``mpiexec`` to use.
            site: what the machine's profile says of its hosts and of steps.

        Raises:
            ConfigError: there is none, or the node file cannot be read.
        """
        self._program = program or find_mpiexec()
        self.ends_at = WallTime.of(environment).end
        self._hosts = without_excluded(pbs_hosts(environment), without)[: hosts or None]
        self._flags = site.step.trials
        each = detect_slots(slots, host="local", layout=layout_of(site))
        self.slots: tuple[Slot, ...] = each
        if self._hosts:
            self.slots = tuple(replace(slot, host=host) for host in self._hosts for slot in each)

    @property
    def here(self) -> bool:
        """Whether all ranks run on this host."""
        return not self._hosts

    def render(self, job: Job, program: Sequence[str], hostfile: Path) -> Launch:
        """Give the command of one job; its ranks are laid out in the order of the slots."""
        where: tuple[str, ...] = ()
        if self._hosts:
            counts = Counter(slot.host for slot in job.slots)
            if len(set(counts.values())) > 1:
                raise ConfigError(
                    f"{job.id}: mpiexec wants equally many ranks on each host, found "
                    f"{dict(counts)}: set machine.slots so that trials take whole hosts."
                )
            each = next(iter(counts.values()))
            where = ("-ppn", str(each), "-hosts", ",".join(counts))
        argv = (self._program, "-n", str(job.width), *where, *self._flags)
        return Launch((*argv, *program), {})


def pbs_hosts(environment: Mapping[str, str]) -> list[str]:
    """Give the hosts of the PBS job that we are in; [] in none.

    Raises:
        ConfigError: its node file cannot be read.
    """
    path = environment.get("PBS_NODEFILE")
    if path is None:
        return []
    try:
        return hosts_of(Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"{path} (PBS_NODEFILE): cannot be read ({error.strerror}).") from error
