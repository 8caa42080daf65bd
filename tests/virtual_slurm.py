"""A real Slurm with virtual hosts on this machine: munged, slurmctld and one slurmd per host.

All hosts share this machine's name, address, files and processors. Everything lies below one
folder, and every process is a child of the test or found by a tag in its environment.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from processes import until

from hydragnn_hpo.launching import batch_jobs
from hydragnn_hpo.launching.host_network import is_free
from hydragnn_hpo.launching.process_control import die_with_parent, end_tagged, find_tagged

TAG, HOST_TAG = "HPO_TEST_SLURM", "HPO_TEST_SLURM_HOST"
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "salloc", "scontrol", "sinfo")
SECONDS = 120.0
"""Patience with Slurm, which is quick only where it is quiet."""

PATIENCE = 600.0
"""Seconds for a job of a campaign: the machine may be very busy."""

PORTS = range(61_000, 65_000)
BLOCK = 16
"""Above the ports that the kernel hands out, so that nobody gets one between its being chosen and
its being used, be it hours later; each cluster has a block, whose first port says that it is taken.
"""

CONF = """\
ClusterName=virtual
SlurmctldHost={name}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=10
KillWait=3
MessageTimeout=60
InactiveLimit=0
CompleteWait=0
RebootProgram=/bin/true
SlurmdParameters=config_overrides
"""


def missing() -> str | None:
    """Say why there can be no Slurm here."""
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    if lacking:
        return f"no {', '.join(lacking)}: install slurm-wlm and munge."
    return None if os.geteuid() == 0 else "slurmd starts tasks as another user: run as root."


def take_ports(count: int) -> tuple[socket.socket, list[int]]:
    """Give ports that are nobody else's as long as a socket is open, and that socket."""
    assert count < BLOCK
    for first in PORTS[::BLOCK]:
        try:
            guard = socket.create_server(("127.0.0.1", first))
        except OSError:  # another cluster's
            continue
        ports = list(range(first + 1, first + 1 + count))
        if all(map(is_free, ports)):
            return guard, ports
        guard.close()
    raise AssertionError(f"no {count} free ports in {PORTS}")


class VirtualSlurm:
    """A cluster of hosts ``node1`` ... that lives as long as the test run."""

    def __init__(
        self,
        folder: Path,
        hosts: int,
        *,
        cpus: int = 8,
        gpus: int = 0,
        gpus_of: Mapping[str, int] | None = None,
        cores_of: Mapping[str, set[int]] | None = None,
        suffix: str = "",
        more_conf: str = "",
    ) -> None:
        """Lay out a cluster.

        Args:
            folder: holds everything.
            hosts: how many.
            cpus: that each host says it has.
            gpus: fake ones of each host: Slurm hands them out, no driver knows them.
            gpus_of: of hosts that have lost some.
            cores_of: what hosts may use that are confined to some cores of this machine.
            suffix: end of the names of all hosts.
            more_conf: further lines of slurm.conf; a later line wins.
        """
        self.cpus, self.gpus = cpus, gpus
        self._gpus_of, self._cores_of = gpus_of or {}, cores_of or {}
        self.folder = folder
        self.hosts = [f"node{n}{suffix}" for n in range(1, hosts + 1)]
        self._more_conf = more_conf
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), TAG: str(folder)}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._jobs: list[str] = []
        self._write_conf()

    def _write_conf(self) -> None:
        name = socket.gethostname().partition(".")[0]
        self._guard, (control, *ports) = take_ports(len(self.hosts) + 1)
        lines = [CONF.format(name=name, port=control, folder=self.folder)]
        for host, port in zip(self.hosts, ports, strict=True):
            where = f"NodeHostname={name} NodeAddr=127.0.0.1 Port={port}"
            gpus = self._gpus_of.get(host, self.gpus)
            has = f"CPUs={self.cpus} RealMemory=4096" + (f" Gres=gpu:{gpus}" * bool(gpus))
            lines.append(f"NodeName={host} {where} {has} State=UNKNOWN\n")
        listed = ",".join(self.hosts)
        lines.append(self._more_conf)
        lines.append(f"PartitionName=all Nodes={listed} Default=YES OverSubscribe=EXCLUSIVE\n")
        if self.gpus:
            lines.append("GresTypes=gpu\n")
            self._write_gres()
        (self.folder / "slurm.conf").write_text("".join(lines))
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)

    def _write_gres(self) -> None:
        """Say where the GPUs are: links to a character device satisfy slurmd."""
        lines = []
        for number in range(self.gpus):
            device = self.folder / f"gpu{number}"
            device.symlink_to("/dev/null")
            have = [host for host in self.hosts if number < self._gpus_of.get(host, self.gpus)]
            listed = ",".join(have)
            lines.append(f"NodeName={listed} Name=gpu File={device} Flags=amd_gpu_env\n")
        (self.folder / "gres.conf").write_text("".join(lines))

    def start(self) -> None:
        socket_path = self.folder / "munge.socket"
        paths = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid"}
        paths |= {"log-file": "munged.log", "seed-file": "munge.seed"}
        options = [f"--{name}={self.folder / file}" for name, file in paths.items()]
        self._daemon("munged", "munged", "--foreground", "--force", "--num-threads=2", *options)
        until(socket_path.exists, "munged")
        self._daemon("slurmctld", "slurmctld", "-D", "-c")
        for host in self.hosts:
            self.start_host(host)
        until(lambda: len(self.idle()) == len(self.hosts), "idle hosts")

    def _daemon(self, name: str, *argv: str, host: str = "") -> None:
        us = os.getpid()
        cores = self._cores_of.get(host)

        def before() -> None:
            die_with_parent(us)
            if cores:
                os.sched_setaffinity(0, cores)

        with (self.folder / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.environment | {HOST_TAG: f"{self.folder}/{host}"},
                start_new_session=True,
                preexec_fn=before,
            )

    def start_host(self, host: str) -> None:
        (self.folder / f"spool.{host}").mkdir(exist_ok=True)
        self._daemon(host, "slurmd", "-D", "-N", host, host=host)

    def ask(self, *argv: str) -> str:
        """Give what a command of Slurm says."""
        done = subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def idle(self) -> list[str]:
        lines = self.ask("sinfo", "-h", "-N", "-o", "%N %t").splitlines()
        return sorted({line.split()[0] for line in lines if line.split()[1] == "idle"})

    def allocate(self, hosts: int, minutes: int = 60, *, skip: int = 0) -> dict[str, str]:
        """Get the first hosts behind some; gives what a controller's environment holds then."""
        names = ",".join(self.hosts[skip : skip + hosts])
        options = ("--no-kill", "--no-shell", "-Q", "-w", names, "-t", str(minutes))
        name = f"j{len(self._jobs)}"
        self.ask("salloc", *options, "-J", name)
        job = self.ask("squeue", "-h", "-n", name, "-o", "%i").split()[-1]
        self._jobs.append(job)
        return {"SLURM_CONF": self.environment["SLURM_CONF"], "SLURM_JOB_ID": job}

    def release(self) -> None:
        """Give all hosts back, and mend those that were lost or frozen."""
        for host in self.hosts:
            self.signal_host(host, signal.SIGCONT)
        for job in self._jobs:
            subprocess.run(
                ["scancel", job], env=self.environment, capture_output=True, timeout=SECONDS
            )
        self._jobs.clear()
        for host in self.hosts:
            if self._daemons[host].poll() is not None:
                self.start_host(host)
        until(self._all_idle, "idle hosts again", 2 * SECONDS)

    def _all_idle(self) -> bool:
        """Say whether all hosts are idle; those that Slurm counts as lost may come back."""
        others = set(self.hosts) - set(self.idle())
        for host in others:
            update = ("scontrol", "update", f"NodeName={host}", "State=RESUME")
            subprocess.run(update, env=self.environment, capture_output=True, timeout=SECONDS)
        return not others

    def processes(self, host: str) -> list[int]:
        """Give all processes of a virtual host: its daemon, its steps, and all below them."""
        processes = find_tagged(HOST_TAG, f"{self.folder}/{host}")
        for pid in processes:
            processes += children(pid)
        return sorted(set(processes))

    def signal_host(self, host: str, number: int) -> None:
        """Freeze or thaw a host, or take it away, with what it starts meanwhile.

        A host that is killed is frozen first: on a real one no shell is left to record an end.
        """
        if number == signal.SIGKILL:
            self.signal_host(host, signal.SIGSTOP)
        reached: set[int] = set()
        while new := set(self.processes(host)) - reached:
            for pid in new:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            reached |= new

    def end_daemon(self, name: str) -> None:
        """Kill one daemon and nothing else."""
        self._daemons[name].kill()
        self._daemons[name].wait()

    def stop(self) -> None:
        for daemon in reversed(self._daemons.values()):
            daemon.kill()
            daemon.wait()
        end_tagged(TAG, str(self.folder))
        self._guard.close()


def children(pid: int) -> list[int]:
    """Return the children of a process, and theirs."""
    results: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                results += [child, *children(child)]
    return results


@contextlib.contextmanager
def started(folder: Path, hosts: int, **options: Any) -> Iterator[VirtualSlurm]:
    """Start a cluster and stop it at the end; skip the test where there can be none."""
    if reason := missing():
        pytest.skip(f"no Slurm: {reason}")
    cluster = VirtualSlurm(folder, hosts, **options)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def serve_campaigns(
    cluster: VirtualSlurm, hpo: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[VirtualSlurm]:
    """Let commands find a cluster, and empty its queue at the end of a test."""
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    monkeypatch.setattr(batch_jobs, "QUERY_SECONDS", PATIENCE)
    yield cluster
    cluster.ask("scancel", "--user=root")
    hpo.wait_for(lambda: not cluster.ask("squeue", "-h").strip(), "an empty queue", PATIENCE)
    cluster.release()
