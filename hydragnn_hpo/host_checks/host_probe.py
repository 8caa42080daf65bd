"""Collect facts about this host: ``python -m hydragnn_hpo.host_checks.host_probe REQUEST``.

Every part runs in a separate process with a time limit, so a file system or driver that hangs costs
only its own part of the answer. The answer is printed as short lines: ``srun --label`` cuts lines
of more than 1,024 characters (Slurm 22.05), and lines of several hosts may be interleaved.
"""

import contextlib
import ctypes
import hashlib
import importlib
import importlib.util
import json
import multiprocessing
import os
import re
import resource
import secrets
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from multiprocessing.connection import Connection
from pathlib import Path
from string import Template
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

import hydragnn_hpo
from hydragnn_hpo.host_info import host_memory_mb
from hydragnn_hpo.launching import find_devices
from hydragnn_hpo.launching.host_network import address_of, interfaces
from hydragnn_hpo.launching.slots import device_memory_mb


class ProbeRequest(Struct, frozen=True):
    """Facts that every host collects; the only argument of the probe, as JSON."""

    folder: str
    """Folder that all hosts should share."""

    scratch: str = ""
    """Folder that should be local to every host; its temporary folder if empty."""

    interfaces: tuple[str, ...] = ()
    """Network interfaces of the fabric."""

    libraries: tuple[str, ...] = ()
    """Names or paths of libraries, best first; one of them must be loadable."""

    sample: tuple[str, ...] = ()
    """Hosts that run the parts that thousands of hosts must not run at once."""

    seconds: float = 25.0
    """Time limit of each part, in seconds."""

    def samples(self, host: str) -> bool:
        """Check whether a host belongs to the sample, with its domain or without."""
        return short(host) in map(short, self.sample)


_LARGEST = 1 << 53

Whole = Annotated[int, Meta(ge=-1, le=_LARGEST)]
"""A count; hosts may answer anything, and larger numbers cannot be written as floats."""


class SystemFacts(Struct, frozen=True):
    """Resources of a host, and the limits of this user's processes."""

    cores: Whole | None
    """Physical cores; None if unknown."""
    allowed: str
    """Cores that the process may use, as the kernel writes them."""
    memory_mb: Whole
    """Memory that the control groups of this process allow."""
    installed_mb: Whole
    """Memory of the host."""
    open_files: Whole
    """Hard limit of open files per process; -1: no limit."""
    locked_bytes: Whole
    """Memory that network cards may lock; -1: no limit."""
    shm_mb: Whole
    """Free space in /dev/shm, in MiB."""


class DeviceFacts(Struct, frozen=True):
    """Devices that the driver shows to this user's processes."""

    count: Whole
    memory_mb: Whole | None
    """Memory of the smallest device, in MiB."""


class NetworkFacts(Struct, frozen=True):
    """Interfaces of a host."""

    addresses: dict[str, str]
    """Interface -> IPv4 address, for all interfaces that have one."""
    fabric: tuple[str, ...]
    """Interfaces of the request that are up and have an address."""


class LibraryFacts(Struct, frozen=True):
    """The first library of the request that could be loaded, or why none could."""

    loaded: str = ""
    problem: str = ""


class FolderFacts(Struct, frozen=True):
    """A folder, or why it cannot be used."""

    path: str
    problem: str = ""
    filesystem: str = "unknown"
    free_mb: Whole = 0


class ScratchFacts(FolderFacts, frozen=True):
    """The host's own folder; speeds in bytes per second, None where they were not measured."""

    ours: bool = True
    write: float | None = None
    read: float | None = None


class SharedFacts(FolderFacts, frozen=True):
    """The shared folder; only hosts of the sample fill in the fields below."""

    won: tuple[int, ...] | None = None
    """Numbers of the files that this host was the first to create."""
    rename: bool | None = None
    """Whether a reader sees either the old or the new file, complete."""
    sync_seconds: float | None = None
    ahead_seconds: float | None = None
    """Least number of seconds by which this host's clock is ahead of the file server's."""


class SoftwareFacts(Struct, frozen=True):
    """Versions, which must be equal on all hosts, and variables of the environment."""

    python: str
    version: str = ""
    package: str = ""
    """Digest of this package's files."""
    torch_at: str = ""
    """Path of torch; empty where it is not installed."""
    torch_filesystem: str = ""
    environment: dict[str, str] = {}
    """Variables whose names show that they hold no secret."""


class TorchFacts(Struct, frozen=True):
    """Time that ``import torch`` took on a host of the sample, or why it failed."""

    seconds: float | None = None
    problem: str = ""


class HostFacts(Struct, frozen=True):
    """Answer of one host; a part is None where it failed."""

    host: Annotated[str, Meta(min_length=1, max_length=255)]
    clock: float
    """Seconds since the epoch when all parts were done."""

    errors: dict[str, str] = {}
    """Part -> why its facts are missing."""

    system: SystemFacts | None = None
    devices: DeviceFacts | None = None
    network: NetworkFacts | None = None
    libraries: LibraryFacts | None = None
    scratch: ScratchFacts | None = None
    shared: SharedFacts | None = None
    software: SoftwareFacts | None = None
    torch: TorchFacts | None = None


def short(host: str) -> str:
    """Return the name of a host without its domain."""
    return host.partition(".")[0]


def host_id() -> str:
    """Return Slurm's name of this host if set, else the kernel's, which virtual hosts share."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


MARK = "hpo-doctor"
WIDTH = 800
"""Characters of a piece."""

_PIECE = re.compile(rf"{MARK} (\w+) (\d{{1,6}}) (\d{{1,6}}) (.*)")
"""Name of the answer, index of this piece, number of pieces, and the piece."""


def split_answer(text: str) -> list[str]:
    """Split a text without line ends into lines that carry it."""
    name = secrets.token_hex(6)
    pieces = [text[at : at + WIDTH] for at in range(0, len(text), WIDTH)]
    return [f"{MARK} {name} {k} {len(pieces)} {piece}" for k, piece in enumerate(pieces)]


def join_answers(lines: Iterable[str]) -> Iterator[str]:
    """Yield each text of ``split_answer`` when its lines are complete; ignore other lines."""
    answers: dict[str, dict[int, str]] = {}
    for match in filter(None, map(_PIECE.search, lines)):
        name = match[1]
        place = int(match[2])
        count = int(match[3])
        pieces = answers.setdefault(name, {})
        pieces[place] = match[4]
        if len(pieces) >= count:
            yield "".join(pieces[k] for k in sorted(answers.pop(name)))


SHARED_KINDS = (
    *("nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb", "afs", "9p", "wekafs", "panfs"),
    *("dvs", "orangefs", "glusterfs"),
)
"""Prefixes of the kinds of file systems that several hosts share."""


def is_shared(kind: str) -> bool:
    """Check whether a file system of this kind is shared by several hosts."""
    return kind.removeprefix("fuse.").startswith(SHARED_KINDS)


def filesystem_of(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Return the kind of file system on which a path lies, such as ``ext4`` or ``lustre``."""
    best, kind = "", "unknown"
    where = str(path.resolve())
    for line in mounts.read_text(errors="replace").splitlines():
        _, point, its, *_ = line.split()
        point = point.replace("\\040", " ")  # as the kernel writes a space
        inside = where == point or where.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, its
    return kind


_MEBI = 1 << 20


def probe_system(request: ProbeRequest) -> SystemFacts:
    """Return the resources of the host, and the limits of this user's processes."""
    limits = (
        resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
    )
    most_files, locked = (
        -1 if limit == resource.RLIM_INFINITY else min(limit, _LARGEST) for limit in limits
    )
    shm = Path("/dev/shm")
    return SystemFacts(
        cores=count_cores() or None,
        allowed=format_cores(os.sched_getaffinity(0)),
        memory_mb=host_memory_mb(),
        installed_mb=host_memory_mb(installed=True),
        open_files=most_files,
        locked_bytes=locked,
        shm_mb=shutil.disk_usage(shm).free // _MEBI if shm.exists() else 0,
    )


def count_cores(cpus: Path = Path("/sys/devices/system/cpu")) -> int:
    """Count the cores of the host, threads of one core once; 0 if unknown."""
    lists = cpus.glob("cpu[0-9]*/topology/thread_siblings_list")
    return len({path.read_text().strip() for path in lists})


def format_cores(cores: Iterable[int]) -> str:
    """Write cores as the kernel does: ``0-3,8``."""
    runs = groupby(enumerate(sorted(cores)), key=lambda pair: pair[1] - pair[0])
    ends = [[core for _, core in run] for _, run in runs]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in ends)


def probe_devices(request: ProbeRequest) -> DeviceFacts:
    """Count the devices that the driver and the environment show to this process."""
    visible = find_devices(os.environ)
    return DeviceFacts(len(visible), device_memory_mb() or None if visible else None)


def probe_network(request: ProbeRequest) -> NetworkFacts:
    """Return all interfaces, and those of the fabric that can be used."""
    fabric = tuple(name for name in request.interfaces if is_up(name) and address_of(name))
    return NetworkFacts(interfaces(), fabric)


def is_up(interface: str, folder: Path = Path("/sys/class/net")) -> bool:
    """Check whether an interface is up; an unknown state counts as up."""
    try:
        return (folder / interface / "operstate").read_text().strip() in ("up", "unknown")
    except OSError:
        return False


def probe_libraries(request: ProbeRequest) -> LibraryFacts:
    """Load libraries in turn until one can be loaded."""
    problem = ""
    for name in request.libraries:
        try:
            ctypes.CDLL(name)
        except OSError as error:
            problem = problem or str(error)
        else:
            return LibraryFacts(name)
    return LibraryFacts(problem=problem)


SIZE = 64 << 20
"""Bytes that are written and read to measure speeds."""

RACES = 8
"""Number of files that all hosts of the sample try to create exclusively."""

_REPEATS = 3


def probe_scratch(request: ProbeRequest) -> ScratchFacts:
    """Write and read a file on the host's own disk."""
    path = Template(request.scratch).safe_substitute(os.environ) or tempfile.gettempdir()
    if problem := _problem(path):
        return ScratchFacts(path, problem)
    kind = filesystem_of(Path(path))
    free_mb = shutil.disk_usage(path).free // _MEBI
    write = read = None
    alone = request.samples(host_id()) or not is_shared(kind)
    if alone and free_mb > 2 * SIZE // _MEBI:
        with _own_folder(path) as folder:
            write, read = _speeds(folder / "block")
    ours = os.stat(path).st_uid in (os.getuid(), 0)
    return ScratchFacts(path, "", kind, free_mb, ours, write, read)


def _problem(path: str) -> str:
    """Return why a folder cannot be used; empty if it can."""
    if "$" in path:
        return "names a variable that is not set here"
    if not os.path.isdir(path):
        return "is no folder here"
    return "" if os.access(path, os.W_OK | os.X_OK) else "cannot be written"


@contextlib.contextmanager
def _own_folder(path: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory("", ".doctor-", path, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _speeds(path: Path) -> tuple[float, float]:
    """Return bytes per second of writing (to the disk) and reading (from it), medians of three."""
    block = os.urandom(_MEBI) * (SIZE // _MEBI)
    reading = []
    writing = []
    for _ in range(_REPEATS):
        writing.append(_write_seconds(path, block))
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.perf_counter()
            while file.read(4 * _MEBI):
                pass
        reading.append(time.perf_counter() - began)
    return SIZE / statistics.median(writing), SIZE / statistics.median(reading)


def _write_seconds(path: Path, block: bytes) -> float:
    """Return the seconds until a file is on its disk."""
    began = time.perf_counter()
    with path.open("wb") as file:
        file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - began


def probe_shared_folder(request: ProbeRequest) -> SharedFacts:
    """Create, rename and sync files in the shared folder, as a run does."""
    path = request.folder
    if problem := _problem(path):
        return SharedFacts(path, problem)
    kind = filesystem_of(Path(path))
    free_mb = shutil.disk_usage(path).free // _MEBI
    if not request.samples(host_id()):
        return SharedFacts(path, "", kind, free_mb)
    won = tuple(number for number in range(RACES) if _create(Path(path, f"race-{number}")))
    with _own_folder(path) as folder:
        times = [_write_seconds(folder / "small", b"x" * 4096) for _ in range(_REPEATS)]
        return SharedFacts(
            path,
            filesystem=kind,
            free_mb=free_mb,
            won=won,
            rename=_renames_whole(folder),
            sync_seconds=statistics.median(times),
            ahead_seconds=_seconds_ahead(folder / "clock"),
        )


def _create(path: Path) -> bool:
    """Create a file exclusively; exactly one host may succeed."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def _renames_whole(folder: Path) -> bool:
    """Check that after a rename open readers see the old file complete, and others the new."""
    old, new = folder / "old", folder / "new"
    old.write_text("old")
    new.write_text("new")
    with old.open() as reader:
        os.replace(new, old)
        return reader.read() == "old" and old.read_text() == "new" and not new.exists()


def _seconds_ahead(path: Path) -> float:
    """Return the least number of seconds by which this host's clock is ahead of the file server's.

    A pause of the host or a slow write meanwhile does not count; negative if the clock is behind.
    """
    before = time.time()
    path.write_bytes(b"x")
    after = time.time()
    stamp = path.stat().st_mtime
    return max(0.0, before - stamp) + min(0.0, after - stamp)


REPORTED = (
    *("NCCL_", "RCCL_", "FI_", "HSA_", "MIOPEN_", "MIOOPEN_", "ROCR_", "HIP_", "ZE_", "GLOO_"),
    *("CUDA_VISIBLE", "GPU_MAX", "OMP_", "TORCH_NCCL", "MPICH_", "OFI_", "UCX_", "AMD_"),
)
"""Prefixes of variables that may be reported; others may hold secrets."""


def _digest_package() -> str:
    """Return a checksum of this package's modules, which must be equal on all hosts."""
    top = Path(hydragnn_hpo.__file__).parent
    checksum = hashlib.sha256()
    for path in sorted(top.rglob("*.py")):
        checksum.update(f"{path.relative_to(top)}\0{path.stat().st_size}\0".encode())
        checksum.update(path.read_bytes())
    return checksum.hexdigest()


def probe_software(request: ProbeRequest) -> SoftwareFacts:
    """Return versions, which must be equal on all hosts, and variables of the environment."""
    spec = importlib.util.find_spec("torch")
    torch_at = spec.origin if spec and spec.origin else ""
    return SoftwareFacts(
        python=sys.version.split()[0],
        version=hydragnn_hpo.__version__,
        package=_digest_package(),
        torch_at=torch_at,
        torch_filesystem=filesystem_of(Path(torch_at)) if torch_at else "",
        environment={k: v for k, v in sorted(os.environ.items()) if k.startswith(REPORTED)},
    )


def probe_torch(request: ProbeRequest) -> TorchFacts:
    """Time the import of torch; on hosts of the sample only."""
    if not request.samples(host_id()) or importlib.util.find_spec("torch") is None:
        return TorchFacts()
    began = time.perf_counter()
    try:
        importlib.import_module("torch")
    except (ImportError, OSError) as error:
        return TorchFacts(problem=str(error))
    return TorchFacts(time.perf_counter() - began)


Probe = Callable[[ProbeRequest], Struct]

PROBES: dict[str, Probe] = {
    "system": probe_system,
    "devices": probe_devices,
    "network": probe_network,
    "libraries": probe_libraries,
    "scratch": probe_scratch,
    "shared": probe_shared_folder,
    "software": probe_software,
    "torch": probe_torch,
}
"""Part of ``HostFacts`` -> function that returns it."""

PATIENCE = {"torch": 4.0}
"""Part -> factor by which its time limit is longer."""

NO_ANSWER = "no answer in time"


def probe_host(request: ProbeRequest, probes: Mapping[str, Probe] = PROBES) -> bytes:
    """Run all probes in turn and return ``HostFacts`` as JSON; failures stand in ``errors``."""
    parts: dict[str, Raw] = {}
    errors: dict[str, str] = {}
    for part, probe in probes.items():
        try:
            parts[part] = run_limited(probe, request, request.seconds * PATIENCE.get(part, 1.0))
        except OSError as error:
            errors[part] = str(error)
    answer = {"host": host_id(), "clock": time.time(), "errors": errors, **parts}
    return msgspec.json.encode(answer)


_FAILED = b"!"
"""First byte of a reply that is an error message instead of JSON."""

_FORK = multiprocessing.get_context("fork")


def run_limited(probe: Probe, request: ProbeRequest, seconds: float) -> Raw:
    """Run a probe in a child process with a time limit, then kill the child's process group.

    Args:
        probe: returns facts, or raises anything.
        request: argument of the probe.
        seconds: time limit; a child that is stuck in the kernel is not waited for.

    Raises:
        OSError: the probe failed, crashed, or gave no answer in time.
    """
    reading, writing = _FORK.Pipe(duplex=False)
    child = _FORK.Process(target=_reply, args=(probe, request, writing), daemon=True)
    child.start()
    writing.close()
    try:
        if not reading.poll(seconds):
            raise TimeoutError(NO_ANSWER)
        reply = reading.recv_bytes()
    except EOFError as error:
        raise OSError("it crashed") from error
    finally:
        reading.close()
        assert child.pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.kill()  # it may not lead its group yet
        child.join(1.0)
    if reply.startswith(_FAILED):
        raise OSError(reply.removeprefix(_FAILED).decode())
    return Raw(reply)


def _reply(probe: Probe, request: ProbeRequest, writing: Connection) -> None:
    """Run a probe in the child, as the leader of its own process group, and send the reply."""
    os.setpgid(0, 0)
    try:
        reply = json.dumps(msgspec.to_builtins(probe(request))).encode()  # escapes any text
    except Exception as error:  # whatever it is: the other parts go on
        reply = _FAILED + f"{type(error).__name__}: {error}".encode(errors="replace")
    writing.send_bytes(reply)


def main() -> None:
    """Probe this host and print the answer in ASCII, so that bytes of a line equal characters."""
    answer = probe_host(msgspec.json.decode(sys.argv[1], type=ProbeRequest))
    for line in split_answer(json.dumps(msgspec.json.decode(answer))):
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    os._exit(0)  # a normal exit would wait for a probe that is stuck in the kernel


if __name__ == "__main__":
    main()
