"""Files that the ranks of a host open on a shared file system, until they could start training.

    python tests/benchmarks/imports.py [--quick]

Counted by ``strace`` below the environment, its interpreter and this checkout, which stand for a
shared file system. Eight ranks on one host: each a fresh Python; forked by a zygote; forked by the
zygote of a packed environment, whose own disk is a temporary folder. ``lookups`` are all calls
with such a path, found or not. ``--quick`` imports torch alone, and packs only what that needs.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from unittest.mock import patch

from record import finish, make_parser, skip

from hydragnn_hpo import packed_environment as packing
from hydragnn_hpo.launching.job import PRELOAD, Job
from hydragnn_hpo.launching.transports.agent_software import OWN, Software, packed_software
from hydragnn_hpo.launching.transports.local import LocalBackend
from hydragnn_hpo.packed_environment import ROOT, Pack

RANKS = 8
AGENT = "hydragnn_hpo.launching.agent"
CALL = re.compile(r'^(\w+)\((?:AT_FDCWD[^,]*, )?"([^"]*)".* = (-?\d+)')
TARGET = "builtins:len"
"""What a rank calls with nothing in hand: it ends with 0. All that it needs was imported before."""


def strace(folder: Path) -> list[str]:
    return ["strace", "-f", "-ff", "--seccomp-bpf", "-e", "trace=%file", "-o", str(folder / "s")]


def count(folder: Path, shared: Iterable[str]) -> tuple[int, int]:
    """Return the opened files below shared folders, and all calls that named one."""
    opened = looked = 0
    tops = tuple(f"{top}/" for top in shared)
    for file in folder.glob("s.*"):
        for line in file.read_text(errors="replace").splitlines():
            if (call := CALL.match(line)) and os.path.normpath(call[2]).startswith(tops):
                looked += 1
                opened += call[1].startswith("open") and int(call[3]) >= 0
    return opened, looked


def fresh(folder: Path, preload: tuple[str, ...]) -> float:
    """Import what a rank needs in a Python of its own; gives seconds."""
    code = f"import importlib\nfor name in {preload!r}: importlib.import_module(name)"
    began = time.monotonic()
    subprocess.run([*strace(folder), sys.executable, "-P", "-c", code], check=True)
    return time.monotonic() - began


def forked(folder: Path, preload: tuple[str, ...], software: Software) -> float:
    """Run ranks of an agent that ``software`` starts; gives seconds until all are done."""
    traced = Software((*strace(folder), *software.python), software.path, starts_child=True)
    run = folder / "run"
    run.mkdir()
    began = time.monotonic()
    with LocalBackend(
        slots=1,
        lease_seconds=60.0,
        run_dir=run,
        jobs={"none": TARGET},
        preload=preload,
        software=traced,
    ) as backend:
        for number in range(RANKS):
            name = f"job{number}"
            log = run / f"{name}.log"
            backend.start(Job(name, "none", 1, {}, log, None, backend.slots[:1]))
            codes = ended(backend, name)
            assert codes == [0], (run / "agent.log").read_text()
    return time.monotonic() - began


def ended(backend: LocalBackend, name: str) -> list[int]:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        for event in backend.poll(1.0):
            if (event.kind, event.job) == ("ended", name):
                return list(event.data["codes"])
    raise TimeoutError(name)


def imported(preload: tuple[str, ...]) -> set[str]:
    """Return the folders and files of ``site-packages`` that ranks import something from."""
    code = (
        f"import importlib, sys\nfor name in {preload!r}: importlib.import_module(name)\n"
        "print(*(m.__file__ for m in sys.modules.values() if getattr(m, '__file__', None)))"
    )
    argv = [sys.executable, "-P", "-c", code]
    files = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    parts = (file.partition("/site-packages/")[2].partition("/")[0] for file in files)
    return {part for part in parts if part}


def make_pack(out: Path, preload: tuple[str, ...], *, quick: bool) -> Pack:
    clean = packing._clean
    site = f"env/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages/"
    kept = imported((*preload, AGENT)) | {"hydragnn_hpo"}

    def needed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        inside = member.name.removeprefix(site)
        top = inside.split("/")[0]
        fits = inside == member.name or top in kept or top.endswith((".dist-info", ".libs"))
        return clean(member) if fits else None

    with patch.object(packing, "_clean", needed if quick else clean):
        return packing.pack_environment(out)


def smoke(folder: Path) -> dict[str, float]:
    """Let ranks that import nothing start in two of the ways, and pack no environment."""
    figures: dict[str, float] = {}
    for name in ("fresh", "zygote"):
        (place := folder / name).mkdir()
        figures[f"seconds_{name}"] = fresh(place, ()) if name == "fresh" else forked(place, (), OWN)
        opened, looked = count(
            place, [str(Path(sys.prefix)), str(Path(sys.base_prefix)), str(ROOT)]
        )
        assert 0 < opened <= looked
        figures |= {f"opens_{name}": opened, f"lookups_{name}": looked}
    return figures


def measure(folder: Path, *, quick: bool) -> dict[str, float]:
    shared = [str(Path(sys.prefix)), str(Path(sys.base_prefix)), str(ROOT)]
    figures: dict[str, float] = {"ranks_per_host": RANKS}
    preload = ("torch",) if quick else PRELOAD
    began = time.monotonic()
    suffix = ".tar.zst" if shutil.which("zstd") else ".tar.gz"
    pack = make_pack(folder / f"env{suffix}", preload, quick=quick)
    figures |= {"pack_seconds": time.monotonic() - began, "pack_megabytes": pack.size / 1e6}
    software = packed_software(pack, str(folder / "disk"))
    began = time.monotonic()
    subprocess.run(
        [*software.python, "-c", "pass"], env=software.agent_environment(os.environ), check=True
    )
    figures["unpack_seconds"] = time.monotonic() - began
    ways: dict[str, Software | None] = {"fresh": None, "zygote": OWN, "packed": software}
    for name, way in ways.items():
        place = folder / name
        place.mkdir()
        seconds = fresh(place, preload) if way is None else forked(place, preload, way)
        opened, looked = count(place, shared)
        each = 1 if way is None else RANKS
        figures[f"shared_opens_per_rank_{name}"] = opened / each
        figures[f"shared_lookups_per_rank_{name}"] = looked / each
        figures[f"seconds_{name}"] = seconds
    return figures


def main() -> None:
    parser = make_parser(__doc__, "a cut of it, not recorded")
    options = parser.parse_args()
    if shutil.which("strace") is None:
        if options.smoke:
            return skip(__file__, "strace is missing.")
        sys.exit("strace is missing: install it.")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        figures = smoke(folder) if options.smoke else measure(folder, quick=options.quick)
    return finish(__file__, figures, keep=not (options.quick or options.smoke))


if __name__ == "__main__":
    main()
