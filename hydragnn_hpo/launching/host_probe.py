"""Collect facts about this host: ``python -m hydragnn_hpo.launching.host_probe REQUEST``.

Every part runs in a process of its own with a time limit: a file system or driver that hangs costs
its part, not the answer. The answer is printed as short lines: ``srun --label`` cuts lines of more
than 1,024 letters (22.05), and lines of several hosts may come mixed.
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
from multiprocessing.connection import Connection
from pathlib import Path
from string import Template
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

import hydragnn_hpo
from hydragnn_hpo.host_info import host_memory_mb
from hydragnn_hpo.launching.devices import device_memory_mb, find_devices
from hydragnn_hpo.launching.host_network import address_of, interfaces


class ProbeRequest(BaseModel):
    """What every host is asked; the only argument of the probe, as JSON."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    name: str
    """Unique per examination: names the files that hosts share."""

    folder: str
    """Where all hosts should see each other's files."""

    scratch: str = ""
    """Folder that every host should have for itself; its temporary folder if empty."""

    interfaces: tuple[str, ...] = ()
    """Of the fabric."""

    libraries: tuple[str, ...] = ()
    """Names or paths of which one can be loaded, best first."""

    sample: tuple[str, ...] = ()
    """Hosts that do what must not be done by thousands at once."""

    seconds: float = 30.0
    """Time for each part."""

    def samples(self, host: str) -> bool:
        """Check whether a host belongs to the sample, with its domain or without."""
        return short(host) in map(short, self.sample)


class HostFacts(BaseModel):
    """What one host answered; None where its part failed or was left out."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    host: str = Field(min_length=1, max_length=255)
    clock: float
    """Seconds since the epoch when all parts were done."""

    errors: dict[str, str] = {}
    """Part -> why its facts are missing."""

    cores: int | None = None
    """Physical ones."""
    allowed: str | None = None
    """Cores that this process may use, as the kernel writes them."""
    memory_mb: int | None = None
    open_files: int | None = None
    """Largest number that a process can be allowed; -1: no limit."""
    locked_bytes: int | None = None
    """Memory that network cards may lock; -1: no limit."""
    shm_mb: int | None = None
    """Room in /dev/shm."""

    devices: int | None = None
    """As the driver shows them to a process."""
    device_memory_mb: int | None = None
    """Of the smallest device."""

    interfaces: dict[str, str] | None = None
    """All with an address."""
    fabric: tuple[str, ...] | None = None
    """Those of the request that are up and have an address."""
    library: str | None = None
    """The first of the request that could be loaded; empty if none."""
    library_problem: str = ""

    scratch: str | None = None
    """Path of the host's own folder. Speeds are in bytes per second."""
    scratch_problem: str = ""
    scratch_ours: bool = True
    scratch_free_mb: int = 0
    scratch_filesystem: str = "unknown"
    scratch_write: float | None = None
    scratch_read: float | None = None

    shared: str | None = None
    """Path of the folder that all hosts see. The last four are of hosts of the sample only."""
    shared_problem: str = ""
    shared_filesystem: str = "unknown"
    shared_free_mb: int = 0
    won: tuple[int, ...] | None = None
    """Numbers of the files that this host was the first to create."""
    rename: bool | None = None
    """Whether a reader sees the old or the new file whole."""
    sync_seconds: float | None = None
    ahead_seconds: float | None = None
    """By how much this host's clock is ahead of the file server's, at least."""

    python: str | None = None
    version: str = ""
    package: str = ""
    """Digest of this package's files."""
    torch_at: str = ""
    torch_filesystem: str = ""
    environment: dict[str, str] = {}
    """Variables whose names show that they hold no secret."""

    torch_seconds: float | None = None
    """Time that ``import torch`` took."""
    torch_problem: str = ""


def short(host: str) -> str:
    """Return the name of a host without its domain."""
    return host.partition(".")[0]


def host_id() -> str:
    """Return the name by which this host is known: virtual hosts share one."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


MARK = "hpo-doctor"
WIDTH = 800
"""Letters of a piece."""

_PIECE = re.compile(rf"{MARK} (\w+) (\d{{1,6}}) (\d{{1,6}}) (.*)")
"""Name of the answer, number of this piece, number of all, and the piece."""


def split_answer(text: str) -> list[str]:
    """Split a text without line ends into lines that carry it."""
    name = secrets.token_hex(6)
    pieces = [text[at : at + WIDTH] for at in range(0, len(text), WIDTH)]
    return [f"{MARK} {name} {k} {len(pieces)} {piece}" for k, piece in enumerate(pieces)]


class AnswerCollector:
    """Reassemble answers from their lines, whatever else is printed between them."""

    def __init__(self) -> None:
        self._pieces: dict[str, dict[int, str]] = {}

    def add_line(self, line: str) -> str | None:
        """Take a line; return the text that it completes, or None."""
        if not (match := _PIECE.search(line)):
            return None
        name, place, count = match[1], int(match[2]), int(match[3])
        pieces = self._pieces.setdefault(name, {})
        pieces[place] = match[4]
        if len(pieces) < count:
            return None
        del self._pieces[name]
        return "".join(pieces[k] for k in sorted(pieces))


SHARED_KINDS = (
    *("nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb", "afs", "9p", "wekafs", "panfs"),
    *("dvs", "orangefs", "glusterfs"),
)
"""Prefixes of file systems that several hosts see."""


def is_shared(kind: str) -> bool:
    """Check whether several hosts see a file system of this kind."""
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
_SHM = Path("/dev/shm")


def probe_system(request: ProbeRequest) -> dict[str, Any]:
    """Return what the host has, and what we may use of it."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return {
        "cores": count_cores(),
        "allowed": format_cores(os.sched_getaffinity(0)),
        "memory_mb": host_memory_mb(),
        "open_files": -1 if most_files == resource.RLIM_INFINITY else most_files,
        "locked_bytes": -1 if locked == resource.RLIM_INFINITY else locked,
        "shm_mb": shutil.disk_usage(_SHM).free // _MEBI if _SHM.exists() else 0,
    }


def count_cores(cpus: Path = Path("/sys/devices/system/cpu")) -> int:
    """Count the cores of the host, threads of one core once; 0 if unknown."""
    lists = cpus.glob("cpu[0-9]*/topology/thread_siblings_list")
    return len({path.read_text().strip() for path in lists})


def format_cores(cores: Iterable[int]) -> str:
    """Write cores as the kernel does: ``0-3,8``."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1][1:] = [core]
        else:
            runs.append([core])
    return ",".join("-".join(map(str, run)) for run in runs)


def probe_devices(request: ProbeRequest) -> dict[str, Any]:
    """Count devices as the driver and the environment show them to a process of ours."""
    seen = find_devices(os.environ)
    return {"devices": len(seen), "device_memory_mb": device_memory_mb() if seen else 0}


def probe_network(request: ProbeRequest) -> dict[str, Any]:
    """Return all interfaces, and those of the fabric that can be used."""
    fabric = [name for name in request.interfaces if is_up(name) and address_of(name)]
    return {"interfaces": interfaces(), "fabric": fabric}


def is_up(interface: str, folder: Path = Path("/sys/class/net")) -> bool:
    """Check whether an interface can carry something; an unknown state counts as up."""
    try:
        return (folder / interface / "operstate").read_text().strip() in ("up", "unknown")
    except OSError:
        return False


def probe_libraries(request: ProbeRequest) -> dict[str, Any]:
    """Load libraries in turn until one can be loaded."""
    problem = ""
    for name in request.libraries:
        try:
            ctypes.CDLL(name)
        except OSError as error:
            problem = problem or str(error)
        else:
            return {"library": name}
    return {"library": "", "library_problem": problem}


SIZE = 64 << 20
"""Bytes that are written and read."""

RACES = 8
"""Files that hosts of the sample all try to be the first to create."""

_REPEATS = 3


def probe_scratch(request: ProbeRequest) -> dict[str, Any]:
    """Write and read a file on the host's own disk."""
    name = Template(request.scratch).safe_substitute(os.environ) or tempfile.gettempdir()
    place = Path(name)
    if problem := _problem(place):
        return {"scratch": name, "scratch_problem": problem}
    facts: dict[str, Any] = {
        "scratch": name,
        "scratch_ours": place.stat().st_uid in (os.getuid(), 0),
        "scratch_free_mb": shutil.disk_usage(place).free // _MEBI,
        "scratch_filesystem": filesystem_of(place),
    }
    alone = request.samples(host_id()) or not is_shared(facts["scratch_filesystem"])
    if alone and facts["scratch_free_mb"] > 2 * SIZE // _MEBI:
        with _own_folder(place, request) as folder:
            facts["scratch_write"], facts["scratch_read"] = _speeds(folder / "block")
    return facts


def _problem(place: Path) -> str:
    if "$" in str(place):
        return "names a variable that is not set here"
    if not place.is_dir():
        return "is no folder here"
    return "" if os.access(place, os.W_OK | os.X_OK) else "cannot be written"


@contextlib.contextmanager
def _own_folder(place: Path, request: ProbeRequest) -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix=f".doctor-{request.name}-", dir=place)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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


def probe_shared_folder(request: ProbeRequest) -> dict[str, Any]:
    """Create, rename and sync files in the shared folder, as a run does."""
    place = Path(request.folder)
    if problem := _problem(place):
        return {"shared": str(place), "shared_problem": problem}
    facts: dict[str, Any] = {
        "shared": str(place),
        "shared_filesystem": filesystem_of(place),
        "shared_free_mb": shutil.disk_usage(place).free // _MEBI,
    }
    if not request.samples(host_id()):
        return facts
    facts["won"] = [number for number in range(RACES) if _create(place / f"race-{number}")]
    with _own_folder(place, request) as folder:
        times = [_write_seconds(folder / "small", b"x" * 4096) for _ in range(_REPEATS)]
        facts["rename"] = _renames_whole(folder)
        facts["sync_seconds"] = statistics.median(times)
        facts["ahead_seconds"] = _seconds_ahead(folder / "clock")
    return facts


def _create(path: Path) -> bool:
    """Create a file exclusively; exactly one host may succeed."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def _renames_whole(folder: Path) -> bool:
    """Replace a file that another descriptor reads; it must show the old or the new whole."""
    old, new = folder / "old", folder / "new"
    old.write_text("old")
    new.write_text("new")
    with old.open() as reader:
        os.replace(new, old)
        return reader.read() == "old" and old.read_text() == "new" and not new.exists()


def _seconds_ahead(path: Path) -> float:
    """Return by how many seconds this host's clock is ahead of the file server's, at least.

    A host that stood still meanwhile, or waited for its files, is not ahead for that.
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
"""Prefixes of variables that may be reported: others can hold secrets."""


def _digest_package() -> str:
    """Return a checksum of this package's modules: hosts must have the same."""
    top, checksum = Path(hydragnn_hpo.__file__).parent, hashlib.sha256()
    for path in sorted(top.rglob("*.py")):
        checksum.update(f"{path.relative_to(top)}\0{path.stat().st_size}\0".encode())
        checksum.update(path.read_bytes())
    return checksum.hexdigest()


def probe_software(request: ProbeRequest) -> dict[str, Any]:
    """Return what must be equal on all hosts, and what the environment sets."""
    spec = importlib.util.find_spec("torch")
    where = spec.origin if spec and spec.origin else ""
    return {
        "python": sys.version.split()[0],
        "version": hydragnn_hpo.__version__,
        "package": _digest_package(),
        "torch_at": where,
        "torch_filesystem": filesystem_of(Path(where)) if where else "",
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(REPORTED)},
    }


def probe_torch(request: ProbeRequest) -> dict[str, Any]:
    """Time the import of torch; by hosts of the sample only."""
    if not request.samples(host_id()) or importlib.util.find_spec("torch") is None:
        return {}
    began = time.perf_counter()
    try:
        importlib.import_module("torch")
    except (ImportError, OSError) as error:
        return {"torch_problem": str(error)}
    return {"torch_seconds": time.perf_counter() - began}


Probe = Callable[[ProbeRequest], dict[str, Any]]

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
"""Part of the answer -> what returns fields of ``HostFacts``."""

PATIENCE = {"torch": 4.0}
"""Parts that may take so many times longer."""

NO_ANSWER = "no answer in time"


def probe_host(request: ProbeRequest, probes: Mapping[str, Probe] = PROBES) -> dict[str, Any]:
    """Run all probes one after the other; those that fail or hang are named in ``errors``."""
    answer: dict[str, Any] = {"host": host_id(), "errors": {}}
    for part, probe in probes.items():
        try:
            answer |= run_limited(probe, request, request.seconds * PATIENCE.get(part, 1.0))
        except OSError as error:
            answer["errors"][part] = str(error)
    answer["clock"] = time.time()
    return answer


_FORK = multiprocessing.get_context("fork")


def run_limited(probe: Probe, request: ProbeRequest, seconds: float) -> dict[str, Any]:
    """Run a probe in a process of its own, and kill it when its time is over.

    Raises:
        OSError: it failed, or gave no answer in time.
    """
    reading, writing = _FORK.Pipe(duplex=False)
    child = _FORK.Process(target=_answer, args=(probe, request, writing), daemon=True)
    child.start()
    writing.close()
    try:
        if not reading.poll(seconds):
            raise TimeoutError(NO_ANSWER)
        result: dict[str, Any] = json.loads(reading.recv_bytes())
    except EOFError as error:
        raise OSError("it crashed") from error
    finally:
        reading.close()
        assert child.pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # with what it started
        child.kill()
        child.join(1.0)  # one that the kernel holds is left to it
    if "error" in result:
        raise OSError(result["error"])
    facts: dict[str, Any] = result["facts"]
    return facts


def _answer(probe: Probe, request: ProbeRequest, writing: Connection) -> None:
    """Run a probe in the child, in a process group of its own that ends with it."""
    os.setpgid(0, 0)
    result: dict[str, Any]
    try:
        result = {"facts": probe(request)}
    except Exception as error:  # whatever it is: the other parts go on
        result = {"error": f"{type(error).__name__}: {error}"}
    writing.send_bytes(json.dumps(result).encode())


def main() -> None:
    """Probe this host and print the answer."""
    answer = json.dumps(probe_host(ProbeRequest.model_validate_json(sys.argv[1])))
    for line in split_answer(answer):
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    os._exit(0)  # an orderly end would wait for a probe that the kernel holds


if __name__ == "__main__":
    main()
