"""Runs commands under limits, each in a fork of a process that has imported everything, and judges.

``Sandbox`` starts that process (this file as a script) and sends it a case at a time. What a case
leaves behind, processes included, is removed; whoever it forks belongs to it.
"""

import contextlib
import ctypes
import dataclasses
import hashlib
import json
import os
import re
import resource
import runpy
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

GOLDENS = Path(__file__).parents[1] / "goldens"

VERDICTS = ("clean", "traceback", "hang", "silent", "other", "skipped")
"""``silent``: success, or an answer, that is wrong; ``other``: unclear words, a good input that is
refused, files half-written; ``skipped``: this computer cannot give the case its surroundings."""

Wants = Literal["any", "ok", "fail"]

Files = Mapping[str, bytes | None]
"""Content by name; None is a FIFO, and what is in ``bin/`` is a program, first on ``PATH``."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One command, the files around it, and what is known of its end."""

    name: str
    argv: tuple[str, ...]
    """Arguments of ``hydragnn-hpo``, or the path of a script that is run in its place; ``{}`` in
    them is the folder of the files."""

    files: Files
    wants: Wants = "any"
    answer: str | None = None
    """What a success must print."""

    says: str | None = None
    """What a failure must say."""

    stdin: bytes = b""
    closed: tuple[int, ...] = ()
    """Standard streams that are closed."""

    full: tuple[int, ...] = ()
    """Standard streams that lead to a device without room."""

    broken: tuple[int, ...] = ()
    """Standard streams that lead to a pipe which nobody reads."""

    interrupted: bool = False
    """Whether it gets Ctrl-C once it rests."""

    deleted: bool = False
    """Whether its working directory, not that of its files, is removed before it begins."""

    file_bytes: int | None = None
    """Largest file that it may write."""

    read_only: bool = False
    """Whether its working directory is mounted so that nothing can be written; only root may."""

    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """More variables of its environment."""

    memory_mb: int | None = None
    """Memory that it may take before the kernel kills it, or one of its processes; only root may.

    Pages that it shares with the process that forks are not counted."""

    disk_kb: int | None = None
    """Room for what it writes into its working directory, a disk of its own; only root may."""

    optimize: int = 0
    """Level of ``python -O``, in a process of its own."""

    again: bool = False
    """Whether the same command must succeed without limits after it failed."""

    may_pause: bool = False
    """Whether 75 is an answer: the allocation ends, and its next job goes on."""

    cpu_seconds: float = 15.0
    idle_seconds: float = 10.0
    """Within this time it must use CPU or end."""

    wall_seconds: float = 240.0
    memory_gb: float = 2.5


@dataclasses.dataclass(frozen=True)
class Verdict:
    """How a case ended."""

    case: Case
    kind: str
    why: str
    seconds: float
    out: str = ""
    err: str = ""
    code: int = 0


@dataclasses.dataclass(frozen=True)
class End:
    """What is known of a case that ended."""

    code: int
    """Exit code, negative for a signal."""

    out: str
    err: str
    left: Mapping[str, str]
    """Checksums of the files that changed or are new, by name; empty for one removed."""

    memory_kills: int = 0
    """How many of its processes the kernel killed for lack of memory."""


# -- the judge ---------------------------------------------------------------------------

LONGEST = 300
"""Characters of a sentence before a list of names."""

LIBRARY = re.compile(
    r"pydantic|\w*Config\b(?!\.)|[A-Z]\w+(?:Error|Exception|Warning)\b|\b(?:rdkit|msgspec|numpy)\b"
    r"|<class|object at 0x|\[Errno|[Ii]nput should|should be a valid|\.py:\d+|instance of"
)
"""What no message may hold: classes and modules of libraries, their own words, lines of code."""

PARTIAL = re.compile(r"(^|/)\.[^/]|\.part|\.tmp|\.lock$")
"""Names of files that are not finished."""

PARTS = re.compile(r"\.parts/[^.].*")
"""What a prediction keeps so that the same command goes on: pieces, each of them whole."""

ORDERS = {*map(chr, range(0x20)), "\x7f", *map(chr, range(0x80, 0xA0)), "\u202e"} - set("\n\r\t")
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
NOT_A_NUMBER = re.compile(r"\b(NaN|nan|Infinity|inf)\b")


def judge(case: Case, end: End) -> tuple[str, str]:
    """Return the verdict on a case that ended, and the reason."""
    code, out, err, left = end.code, end.out, end.err, end.left
    if "Traceback (most" in out + err or "Exception ignored" in err:
        return "traceback", (err.strip() or out.strip()).splitlines()[-1][:300]
    killed = code == -signal.SIGKILL and end.memory_kills > 0
    if code not in ((0, 1, 2, 75) if case.may_pause else (0, 1, 2)) and not killed:
        return "traceback", f"exit code {code}: {err[-200:]}"
    own = {name for name in case.files if not name.startswith("run/") or "run" not in case.argv}
    if touched := sorted(set(left) & own):
        return "silent", f"changed its input {touched[0]}"
    if killed:
        return "clean", "killed by the kernel"
    return _judge_answer(case, end)


def _judge_answer(case: Case, end: End) -> tuple[str, str]:
    code, out, err = end.code, end.out, end.err
    if code == 75:
        return "clean", "the allocation ends"
    if code == 0 and case.wants == "fail":
        return "silent", f"took what is wrong: {' '.join((out or err).split())[:200]}"
    if code == 0 and case.answer is not None and out != case.answer:
        return "silent", f"another answer: {' '.join(out.split())[:200]}"
    if code == 0 and "--json" in case.argv and NOT_A_NUMBER.search(STRING.sub("", out)):
        return "silent", f"no number: {out[:200]}"
    typed = {"\u202e"} & set("".join(case.argv))  # typer shows what was typed as it is
    if orders := (ORDERS - typed) & set(out + err):
        return "other", f"orders to the terminal: {orders}"
    if code and case.says is not None and case.says not in err:
        return "other", f"says {err.strip()[-300:]!r}, not {case.says!r}"
    if code and case.wants == "ok":
        return "other", f"refused what is right: {err.strip()[:300]}"
    left = (name for name in end.left if not name.startswith("run/"))
    half = [name for name in left if PARTIAL.search(PARTS.sub("", name))]
    if half and not end.memory_kills:
        return "other", f"left {half[0]}"
    if case.argv[0] == "doctor" and code == 1 and out:  # what is wrong stands in its answer
        return "clean", "something is wrong"
    if 2 in case.closed:
        return "clean", "no words can arrive"
    return _judge_words(code, err)


def judge_again(first: End, second: End) -> tuple[str, str]:
    """Return the verdict on a command that failed under limits and then ran without them."""
    if "Traceback (most" in second.out + second.err or second.code:
        return "other", f"does not succeed afterwards: {second.err.strip()[-300:]}"
    written = {name for name in first.left if name.startswith("out.") and "/" not in name}
    if half := [name for name in written if first.left[name] != second.left.get(name)]:
        return "other", f"left {half[0]}, half-written"
    return "clean", ""


def _judge_words(code: int, err: str) -> tuple[str, str]:
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    if code and not errors and "Usage: " not in err:
        return "other", f"exit code {code} without a sentence: {err[:200]}"
    if code == 2 and len(errors) > 1:
        return "other", f"{len(errors)} sentences: {errors[1][:200]}"
    for line in err.splitlines() if "Usage: " not in err else ():
        if match := LIBRARY.search(re.sub(r"'[^']*'|\"[^\"]*\"", "''", line)):
            return "other", f"'{match.group()}' in: {line[:300]}"
    for line in errors:
        if len(re.split(r"Known: |known: |Did you mean", line)[0]) > LONGEST:
            return "other", f"{len(line)} characters: {line[:300]}"
        if ".." in line[-3:]:
            return "other", f"two full stops: {line[-200:]}"
    return "clean", errors[0] if errors else ""


# -- the client --------------------------------------------------------------------------


class Sandbox:
    """A process that has imported everything, and runs a case in each fork."""

    def __init__(self, *, warm: bool = True) -> None:
        """Choose whether it imports before its first case what only some commands import."""
        self._warm = ["warm"] if warm else []

    def __enter__(self) -> Self:
        """Start it."""
        self.folder = Path(tempfile.mkdtemp(prefix="attack-"))
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self.folder), *self._warm],
            env=os.environ | one | {"COLUMNS": "200", "PYTHONWARNINGS": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._receive()
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        """End it, and remove what it left."""
        self._process.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _receive(self) -> Any:
        assert self._process.stdout
        if not (line := self._process.stdout.readline()):
            self.__exit__()
            raise RuntimeError("the process that forks ended")
        return json.loads(line)

    def run(self, case: Case) -> Verdict:
        """Run a case in a folder of its own."""
        place = Path(tempfile.mkdtemp(dir=self.folder))
        work = place / "case"
        work.mkdir()
        for name, content in case.files.items():
            _write(work / name, content)
        request = {f.name: getattr(case, f.name) for f in dataclasses.fields(case)}
        request |= {"files": [], "stdin": case.stdin.decode("latin1"), "place": str(place)}
        request["argv"] = [word.replace("{}", str(work)) for word in case.argv]
        request["enlarge"] = False
        done, end = self._request(request, case, before := _checksums(work))
        seconds = done["seconds"]
        if done["why"]:
            kind = "hang"
            why = done["why"]
        elif done["skipped"]:
            kind = "skipped"
            why = done["skipped"]
        else:
            kind, why = judge(case, end)
        if case.again and kind == "clean" and end.code:
            limits: dict[str, Any] = dict.fromkeys(("memory_mb", "disk_kb", "file_bytes"))
            free = limits | {"enlarge": case.disk_kb is not None}
            done, second = self._request(request | free, case, before)
            seconds += done["seconds"]
            kind, more = ("hang", done["why"]) if done["why"] else judge_again(end, second)
            why = more or why
            end = dataclasses.replace(second, err=end.err + second.err)
        if case.disk_kb is not None:
            self._send({"unmount": str(work)})
        shutil.rmtree(place, ignore_errors=True)
        return Verdict(case, kind, why, seconds, end.out, end.err, end.code)

    def _send(self, request: Mapping[str, Any]) -> Any:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._receive()

    def _request(
        self, request: Mapping[str, Any], case: Case, before: Mapping[str, str]
    ) -> tuple[Any, End]:
        """Run a case; return what the process that forks says of it, and how it ended."""
        done = self._send(request)
        work = Path(request["place"], "case")
        if case.disk_kb is not None and not done["skipped"]:  # mounted where only that one sees it
            work = Path(f"/proc/{self._process.pid}/root{work}")
        after = _checksums(work)
        left = {name: after.get(name, "") for name in {*before, *after} - {"."}}
        left = {name: seal for name, seal in left.items() if before.get(name) != seal}
        if case.deleted:
            left = {}
        return done, End(done["code"], done["out"], done["err"], left, done["memory_kills"])


def keep_case(verdict: Verdict, folder: Path) -> None:
    """Write the files of a case below a folder, with what it printed beside them."""
    place = folder / verdict.case.name
    for name, content in verdict.case.files.items():
        _write(place / "case" / name, content)
    words = (verdict.kind, verdict.why, " ".join(verdict.case.argv), verdict.out, verdict.err)
    (place / "verdict.txt").write_text("\n".join(words))


def _write(path: Path, content: bytes | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content)
    if path.parent.name == "bin":
        path.chmod(0o755)


def _checksums(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


# -- the process that forks --------------------------------------------------------------


def _family(pid: int) -> Iterator[int]:
    """Yield the processes below one."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                yield child
                yield from _family(child)


def _usage(pids: Iterable[int]) -> tuple[float, int]:
    """Return the seconds of CPU and the bytes of memory of some processes."""
    ticks, pages = 0, 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks, pages = ticks + sum(map(int, fields[11:15])), pages + int(fields[21])
    return ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE")


class Watcher:
    """Reads what a fork prints, and ends it at its limits."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        """Open the pipes."""
        self.case = case
        self.printed = (bytearray(), bytearray())
        pipes = [os.pipe(), os.pipe()]
        self.read, self.write = zip(*pipes, strict=True)
        self._open = list(self.read)

    def wait(self, pid: int) -> str:
        """Wait for the fork; return why it must be ended, or an empty string."""
        for end in self.write:
            os.close(end)
        began = changed = time.monotonic()
        before = 0.0
        watched = os.pidfd_open(pid)
        interrupt_requested = False
        with contextlib.closing(os.fdopen(watched)):
            while watched not in self._read(0.1, watched):
                now = time.monotonic()
                cpu, memory = _usage(_family(os.getpid()))
                if cpu > before:
                    before, changed = cpu, now
                if cpu > self.case["cpu_seconds"]:
                    return f"no end within {cpu:.0f} s of CPU"
                if memory > self.case["memory_gb"] * 1e9:
                    return f"{memory / 1e9:.1f} GB of memory"
                if max(map(len, self.printed)) > MOST_PRINTED:
                    return f"more than {MOST_PRINTED} bytes printed"
                if self.case["interrupted"] and not interrupt_requested and now - changed > 1.0:
                    interrupt_requested = True
                    changed = now
                    os.kill(pid, signal.SIGINT)
                if (
                    max(
                        now - changed - self.case["idle_seconds"],
                        now - began - self.case["wall_seconds"],
                    )
                    > 0.0
                ):
                    return f"no end within {now - began:.0f} s, {cpu:.1f} s of them CPU"
            return ""

    def _read(self, seconds: float, *more: int) -> list[int]:
        ready: list[int] = select.select([*self._open, *more], [], [], seconds)[0]
        for end, printed in zip(self.read, self.printed, strict=True):
            if end in ready:
                piece = os.read(end, 1 << 16)
                printed += piece
                if not piece:
                    self._open.remove(end)
        return ready

    def close(self) -> dict[str, str]:
        """Return what was printed, by the name of its stream."""
        for end, printed in zip(self.read, self.printed, strict=True):
            os.set_blocking(end, False)
            with contextlib.suppress(BlockingIOError):
                while piece := os.read(end, 1 << 16):
                    printed += piece
            os.close(end)
        words = (bytes(each).decode(errors="replace") for each in self.printed)
        return dict(zip(("out", "err"), words, strict=True))


MOST_PRINTED = 50_000_000


def _begin(case: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Set up streams, folder and limits of a fork."""
    place = Path(case["place"])
    (place / "in").write_bytes(case["stdin"].encode("latin1"))
    opened = [os.open(place / "in", os.O_RDONLY), *streams]
    os.setsid()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(opened[number], number)
        if number in case["full"]:
            os.dup2(os.open("/dev/full", os.O_WRONLY), number)
        if number in case["broken"]:
            reader, writer = os.pipe()
            os.close(reader)
            os.dup2(writer, number)
        if number in case["closed"]:
            os.close(number)
            setattr(sys, name, None)
    if case["read_only"]:
        _forbid_writing(place / "case")
    if group := case["group"]:
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
    os.chdir(place / "case")
    if case["deleted"]:
        (place / "gone").mkdir()
        os.chdir(place / "gone")
        (place / "gone").rmdir()
    os.environ["PATH"] = f"{place}/case/bin:{os.environ['PATH']}"
    os.environ.update(case["environment"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (64 << 30, 64 << 30))
    if case["file_bytes"] is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (case["file_bytes"],) * 2)
    warnings.filterwarnings("default", message="none: what was shown once is shown again")


LIBC = ctypes.CDLL(None, use_errno=True)
BIND = 1 << 12
REMOUNT = 1 << 5
READ_ONLY = 1
PRIVATE = 1 << 18 | 1 << 14


class Missing(Exception):
    """This computer cannot give a case its surroundings."""


def _mount(source: bytes, target: Path, kind: bytes | None, flags: int, more: str = "") -> None:
    if LIBC.mount(source, os.fsencode(target), kind, flags, more.encode() or None):
        raise Missing(f"nothing can be mounted here ({os.strerror(ctypes.get_errno())})")


def _own_mounts() -> None:
    """Let what this process mounts be seen by it and what it starts alone."""
    if LIBC.unshare(1 << 17):
        raise Missing(f"no mounts of its own here ({os.strerror(ctypes.get_errno())})")
    _mount(b"none", Path("/"), None, PRIVATE)


def _forbid_writing(folder: Path) -> None:
    """Mount a folder on itself, read-only, for this process and what it starts."""
    _own_mounts()
    _mount(os.fsencode(folder), folder, None, BIND)
    _mount(b"none", folder, None, BIND | REMOUNT | READ_ONLY)


def _mount_disk(folder: Path, kilobytes: int) -> None:
    """Move what a folder holds to a disk in its place that has so much room left."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.mkdir()
    pages = sum(-(-path.stat().st_size // 4096) for path in aside.rglob("*") if path.is_file())
    _mount(b"tmpfs", folder, b"tmpfs", 0, f"size={4 * pages + kilobytes}k")
    shutil.copytree(aside, folder, dirs_exist_ok=True)


def _memory_group(name: str, megabytes: int) -> Path:
    """Make a group of processes that share so much memory (cgroups of version 1 or 2)."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kinds, own = line.split(":", 2)
        if kinds not in ("", "memory"):
            continue
        mount = Path("/sys/fs/cgroup", kinds)
        limit = "memory.limit_in_bytes" if kinds else "memory.max"
        for place in {mount / own.strip("/"): 1, (mount / own.strip("/")).parent: 1, mount: 1}:
            with contextlib.suppress(OSError):
                (group := place / name).mkdir()
                try:
                    (group / limit).write_text(str(megabytes << 20))
                    return group
                except OSError:
                    group.rmdir()
    raise Missing("no group of processes with a limit of memory can be made here")


def _end_group(group: Path) -> int:
    """Remove a group; return how many of its processes the kernel killed."""
    kills = 0
    for name in ("memory.oom_control", "memory.events"):
        with contextlib.suppress(OSError):
            match = re.search(r"^oom_kill (\d+)$", (group / name).read_text(), re.MULTILINE)
            kills = int(match[1]) if match else kills
    for _ in range(50):
        with contextlib.suppress(OSError):
            group.rmdir()
            break
        time.sleep(0.1)
    return kills


def _fork(case: Mapping[str, Any], work: Callable[[], object], streams: Sequence[int]) -> int:
    if child := os.fork():
        return child
    code: Any = 70
    try:
        _begin(case, streams)
        sys.argv = ["hydragnn-hpo", *case["argv"]]
        if case["optimize"]:
            os.environ["PYTHONOPTIMIZE"] = str(case["optimize"])
            os.execv(sys.executable, [sys.executable, "-P", "-m", "hydragnn_hpo", *case["argv"]])
        work()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except Missing as missing:
        Path(case["place"], "skipped").write_text(str(missing))
    except BaseException:
        os.write(streams[1], traceback.format_exc().encode(errors="replace"))
    finally:
        code = code if isinstance(code, int) else 1
        for name in ("stdout", "stderr"):  # as Python does at its end
            try:
                getattr(sys, name).flush()
            except OSError as error:
                code = 120
                os.write(streams[1], f"Exception ignored in {name}: {error!r}\n".encode())
        os._exit(code)


def _reap(pid: int) -> int:
    """Kill what is left of a case, and return the exit code of its first process."""
    code = -9
    while family := list(_family(os.getpid())):
        for each in family:
            with contextlib.suppress(OSError):
                os.kill(each, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, 0))[0]:
                if ended[0] == pid:
                    code = os.waitstatus_to_exitcode(ended[1])
    return code


def _warm_up(main: Callable[[], None]) -> None:
    """Import what commands import inside functions: run some, on names that no case has."""
    for name in ("structures.toml", "structures.extxyz", "ensemble/ensemble.zip"):
        shutil.copy(GOLDENS / name, f"warm_{Path(name).name}")
    shutil.copytree(GOLDENS / "run", "warm_run")
    card = Path("warm_structures.toml")
    card.write_text(card.read_text().replace('"structures', '"warm_structures'))
    ensemble = ("--ensemble", "warm_ensemble.zip")
    Path("warm.csv").write_text("smiles\nCO\n")
    Path("warm.cif").write_text("data_x\n_cell_length_a 4\n")
    for argv in (
        ("predict", "warm_structures.extxyz", *ensemble, "--out", "warm_out.csv"),
        ("predict", "warm.csv", *ensemble, "--structure-column", "smiles", "--json"),
        ("predict", "warm.cif", *ensemble),
        ("ensemble", "info", "warm_ensemble.zip"),
        ("init", "warm.csv", "--dry-run"),
        ("dataset", "build", "warm_structures.toml", "--out", "warm.bp"),
        ("plan", "ci"),
        ("submit", "ci", "--machine", "frontier", "--hosts", "2", "--time", "1:00", "--dry-run"),
        ("status", "warm_run"),
        ("importance", "warm_run"),
        ("report", "warm_run"),
    ):
        sys.argv = ["hydragnn-hpo", *argv]
        with contextlib.suppress(SystemExit):
            main()


def _serve() -> None:
    folder = Path(sys.argv[1])
    answers = os.dup(1)
    os.chdir(folder)
    output = os.open(folder / "warm", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    errors = os.dup(2)
    os.dup2(output, 2)
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans of a case are found
    from hydragnn_hpo.cli.command_line import main

    if len(sys.argv) > 2:
        _warm_up(main)
    os.dup2(errors, 2)
    os.write(answers, b"{}\n")
    has_mounts = False
    for request in sys.stdin:
        case = json.loads(request)
        if "unmount" in case:
            LIBC.umount2(os.fsencode(case["unmount"]), 2)
            done: dict[str, Any] = {}
        else:
            try:
                if case["enlarge"]:
                    place = Path(case["place"], "case")
                    _mount(b"tmpfs", place, b"tmpfs", REMOUNT, "size=1g")
                if case["disk_kb"] is not None:
                    if not has_mounts:
                        _own_mounts()
                    has_mounts = True
                    _mount_disk(Path(case["place"], "case"), case["disk_kb"])
                done = _run(case, main)
            except Missing as missing:
                done = NOTHING | {"skipped": str(missing)}
        os.write(answers, json.dumps(done).encode() + b"\n")


NOTHING = {"code": 0, "why": "", "seconds": 0.0, "memory_kills": 0, "out": "", "err": ""}


def _run(case: dict[str, Any], main: Callable[[], None]) -> dict[str, Any]:
    """Run a case in a fork; return what there is to say of it."""
    began = time.monotonic()
    watcher = Watcher(case)
    place = Path(case["place"])
    group = None
    if case["memory_mb"] is not None:
        group = _memory_group(place.name, case["memory_mb"])
    case["group"] = group and str(group)
    first = case["argv"][0]
    work = partial(runpy.run_path, first, run_name="__main__") if first[-3:] == ".py" else main
    pid = _fork(case, work, watcher.write)
    why = watcher.wait(pid)
    done: dict[str, Any] = {"why": why, "code": _reap(pid), "seconds": time.monotonic() - began}
    done |= {"memory_kills": _end_group(group) if group else 0, "skipped": ""}
    if (note := place / "skipped").exists():
        done["skipped"] = note.read_text()
    return done | watcher.close()


if __name__ == "__main__":
    _serve()
