"""The Python that agents run: the controller's, a packed copy on local disks, or a container's.

An archive (``hydragnn-hpo pack``) is a tar file of ``manifest.json``, ``env/`` (the virtual
environment, with this package as a wheel installs it) and ``base/`` (its interpreter, unless that
is the system's). Slurm's ``sbcast`` sends it to all hosts; hosts that it does not reach read it
from the shared file system. One process per host, a Python on shared storage, unpacks it:

    python -S -P -m hydragnn_hpo.launching.environment install --checksum SHA256 --place FOLDER ...

``start ... -- ARGUMENT...`` in place of ``install`` also executes the unpacked Python. Under ``-S``
there is only the standard library: modules that need packages are imported inside functions.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path, PurePosixPath
from string import Template
from typing import IO, TYPE_CHECKING, Self

import hydragnn_hpo
from hydragnn_hpo.errors import ConfigError, JobError, StorageError
from hydragnn_hpo.files import hash_file, read_json, storage, whole_file, write_json
from hydragnn_hpo.host_info import create_private, private_folder

if TYPE_CHECKING:
    from hydragnn_hpo.config import MachineConfig, SiteConfig
    from hydragnn_hpo.launching.slurm_allocation import Allocation

logger = logging.getLogger(__name__)

ROOT = Path(hydragnn_hpo.__file__).parents[1]
"""Folder that holds this package: a checkout, or ``site-packages``."""

PATH = "PYTHONPATH"

PLACE = "/tmp"
"""Where archives are unpacked on machines whose profile names no ``scratch``."""

FORMAT = 2
MANIFEST = "manifest.json"
ENV, BASE = "env", "base"

_COMPRESSORS = {".tar.gz": ("gzip", "-1nc"), ".tar.zst": ("zstd", "-3qcT0")}
"""External programs: Python has no zstd before 3.14, and unpacking hosts have no packages yet."""

_HOST_VARIABLE = "SLURMD_NODENAME"


# -- which Python ------------------------------------------------------------------------


def import_path(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which another process finds this package.

    Returns:
        ``PYTHONPATH`` with this checkout in front of its value in ``environment``; empty if this
        package is installed.
    """
    if ROOT.name in ("site-packages", "dist-packages"):
        return {}
    return {PATH: os.pathsep.join(filter(None, (str(ROOT), environment.get(PATH))))}


@dataclass(frozen=True)
class Software:
    """The command that runs Python with this package on a host."""

    python: tuple[str, ...] = (sys.executable,)
    """The command, to which Python's arguments are appended."""

    path: str | None = None
    """Value of PYTHONPATH; None uses ``import_path``, an empty string unsets it."""

    starts_child: bool = False
    """Whether the command may start Python as a child instead of becoming it."""

    def agent_environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return an environment in which the command finds this package.

        Returns:
            ``environment`` with another ``PYTHONPATH``, or none.
        """
        if self.path is None:
            return {**environment, **import_path(environment)}
        kept = {name: value for name, value in environment.items() if name != PATH}
        return kept | ({PATH: self.path} if self.path else {})


OWN = Software()
"""The Python of this process, which all hosts see under the same path."""


def software_here(
    machine: "MachineConfig",
    site: "SiteConfig",
    run_dir: Path,
    environment: Mapping[str, str] = os.environ,
) -> Software:
    """Return the Python for an agent that needs no archive: this process's, or a container's.

    Args:
        machine: names the image, a ``.sif`` file or a sandbox folder, whose ``python3`` has this
            package.
        site: names the container program, its flags, and scratch.
        run_dir: run directory; bound into the container like scratch, raw data, and ``/sys`` for
            counters.
        environment: environment of this process.

    Raises:
        ConfigError: the image or program does not exist, or a folder cannot be bound.
    """
    from hydragnn_hpo.config import fill_path

    if machine.container is None:
        return OWN
    image = Path(machine.container)
    container = site.container
    if not image.exists():
        raise ConfigError(f"{image}: no such container image; see launch/container for one.")
    if shutil.which(container.command[0]) is None:
        raise ConfigError(
            f"machine.container needs the program '{container.command[0]}', which is not on PATH: "
            "load its module, or name another one in the profile's container.command."
        )
    folders = [str(run_dir.absolute()), "/sys"]
    folders += [fill_path(site.scratch, environment)] if site.scratch is not None else []
    folders += filter(None, [environment.get("HYDRAGNN_HPO_DATA")])
    argv = [*container.command, *container.flags]
    for folder in dict.fromkeys(os.path.abspath(folder) for folder in folders):
        if ":" in folder or "," in folder:
            raise ConfigError(f"{folder}: no container can bind a ':' or ',' in it: rename it.")
        argv += ["--bind", folder]
    return Software((*argv, str(image.absolute()), "python3"), path="", starts_child=True)


def check_software(
    machine: "MachineConfig", site: "SiteConfig", run_dir: Path, *, packed_later: bool = False
) -> None:
    """Check that the software for a campaign's machine exists, before anything is started.

    Args:
        machine: machine of the campaign.
        site: settings from the machine's profile.
        run_dir: run directory of the campaign.
        packed_later: whether the archive is written after this check.

    Raises:
        ConfigError: the software is missing, or the backend cannot use it.
    """
    for key, backends in {"pack": ("slurm",), "container": ("slurm", "local")}.items():
        if getattr(machine, key) is not None and machine.backend not in backends:
            raise ConfigError(
                f"machine.{key} does not work with the backend '{machine.backend}': use "
                f"{' or '.join(backends)}."
            )
    if machine.pack is not None and not packed_later:
        Pack.read(Path(machine.pack))
    software_here(machine, site, run_dir)


# -- packing -----------------------------------------------------------------------------

_SYSTEM = "/usr"
"""Prefix of the system's interpreter, which every host has."""

_CACHES = {"__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"}

_NAMES_ITS_PLACE = re.compile(r"env/(pyvenv\.cfg|bin/(python[0-9.]*|[Aa]ctivate.*))")

_UNUSED_BASE = re.compile(r"base/lib/[^/]*/(config-|idlelib/|test/|turtledemo/)")
"""Parts of the standard library that no training needs; ``config-*`` is a static library."""

_PYTHON = "env/bin/python"
_SETTINGS = "env/pyvenv.cfg"

_TIME = 315532800
"""Modification time of every file in an archive: 1980-01-01, as in wheels."""

_LAUNCH = b"""#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")/python" "$0" "$@"
' '''
"""
"""First lines of a script that runs with the Python in its folder; Python reads a string there."""


@dataclass(frozen=True)
class ArchiveMember:
    """A file or link of an archive, and where its content comes from."""

    info: tarfile.TarInfo
    source: Path | bytes = b""


@dataclass(frozen=True)
class Pack:
    """An archive, as described by the file ``ARCHIVE.json`` next to it."""

    path: Path
    checksum: str
    """SHA-256 of the archive, in hexadecimal."""
    size: int
    """Size of the archive in bytes."""
    fingerprint: str
    """SHA-256 over the names, links, sizes and times of the packed files."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the description of an archive.

        Raises:
            ConfigError: the description is missing or damaged, or does not match the archive.
        """
        description = path.with_name(f"{path.name}.json")
        if not path.is_file() or not description.is_file():
            raise ConfigError(
                f"{path}: no packed environment with its {description.name} is there: "
                "hydragnn-hpo pack."
            )
        try:
            known = read_json(description)
            pack = cls(path.resolve(), known["checksum"], known["size"], known["fingerprint"])
        except (StorageError, KeyError, TypeError) as error:
            raise ConfigError(f"{description}: is damaged ({error}): pack again.") from None
        for key, value in {"size": path.stat().st_size, "format": FORMAT}.items():
            if (described := known.get(key)) != value:
                raise ConfigError(
                    f"{path}: has {key} {value}, {description.name} says {described}: pack again."
                )
        return pack


def pack_environment(out: Path) -> Pack:
    """Pack the environment of this process, unless the archive ``out`` is already up to date.

    The same environment gives the same bytes.

    Args:
        out: ``NAME.tar.gz``, or ``NAME.tar.zst`` if the program ``zstd`` is installed.

    Raises:
        ConfigError: the environment cannot be moved.
        StorageError: the disk is full; no partial file is left.
    """
    program = _compressor(out)
    if shutil.which(program[0]) is None:
        raise ConfigError(f"{out}: there is no program '{program[0]}' here: call it .tar.gz.")
    versions = _check_movable()
    members = list_members()
    files = [(m.info.name, m.info.linkname, m.info.size, m.info.mtime) for m in members]
    fingerprint = hashlib.sha256(repr(files).encode()).hexdigest()
    with contextlib.suppress(ConfigError):
        if (there := Pack.read(out)).fingerprint == fingerprint:
            return there
    size = sum(member.info.size for member in members)
    manifest = {"format": FORMAT, "files": len(members), "bytes": size}
    with storage(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(out) as file:
        _compress(file, program, [_file(MANIFEST, json.dumps(manifest).encode()), *members])
    pack = Pack(out.resolve(), hash_file(out), out.stat().st_size, fingerprint)
    about = {"path": pack.path.name, "python": platform.python_version(), "packages": versions}
    write_json(out.with_name(f"{out.name}.json"), {**manifest, **asdict(pack), **about})
    return pack


def _compressor(archive: Path) -> tuple[str, str]:
    for suffix, argv in _COMPRESSORS.items():
        if archive.name.endswith(suffix):
            return argv
    raise ConfigError(f"{archive}: call an archive NAME.tar.gz or NAME.tar.zst.")


def _check_movable() -> dict[str, str]:
    """Check that the environment of this process can be moved; return its packages' versions.

    Raises:
        ConfigError: it belongs to conda, is no virtual environment, or links to packages outside.
    """
    import importlib.metadata

    for folder in (sys.prefix, sys.base_prefix):
        if Path(folder, "conda-meta").is_dir():
            raise ConfigError(
                f"{folder}: belongs to conda, whose files name their place: use conda-pack to "
                "move it, or make a venv of a Python that is not conda's (--pack none: few hosts)."
            )
    if sys.prefix == sys.base_prefix:
        raise ConfigError(
            f"{sys.prefix}: is no virtual environment: install hydragnn-hpo into one."
        )
    versions = {}
    for package in importlib.metadata.distributions():
        name = package.metadata["Name"]
        versions[name] = package.version
        origin = json.loads(package.read_text("direct_url.json") or "{}")
        if name != "hydragnn-hpo" and origin.get("dir_info", {}).get("editable"):
            raise ConfigError(
                f"{name} is installed as a link to {origin['url']}: install it without -e, so "
                "that it is in the environment."
            )
    return dict(sorted(versions.items()))


def list_members() -> list[ArchiveMember]:
    """Return all files and links of the environment of this process, sorted by name.

    Raises:
        ConfigError: a link leads to a folder that other hosts may not have.
    """
    prefix = Path(sys.prefix)
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    settings = (prefix / "pyvenv.cfg").read_text()
    system_site = "include-system-site-packages = true" in settings
    members = [*_list_prefix(prefix)]
    members += [_link(f"{ENV}/bin/{name}", "python") for name in ("python3", python)]
    if sys.base_prefix == _SYSTEM:
        members.append(_link(_PYTHON, os.path.realpath(sys.executable)))
    else:
        members.append(_link(_PYTHON, f"../../{BASE}/bin/python"))
        members += _list_base(Path(sys.base_prefix), python, site_packages=system_site)
    site = f"include-system-site-packages = {str(system_site).lower()}\n"
    members.append(_file(_SETTINGS, site.encode()))
    if not ROOT.is_relative_to(prefix):
        package = f"{ENV}/lib/{python}/site-packages/hydragnn_hpo"
        members += walk(ROOT / "hydragnn_hpo", package)
        for folder in ("graph_datasets", "workflows", "launch"):  # where a wheel has them
            members += walk(ROOT / folder, f"{package}/_shipped/{folder}")
    by_name = {member.info.name: member for member in members}
    return [by_name[name] for name in sorted(by_name)]


def _list_prefix(prefix: Path) -> Iterator[ArchiveMember]:
    """Yield the files of a virtual environment; those with its path are left out or rewritten."""
    shebang = f"#!{prefix}/bin/python".encode()
    for member in walk(prefix, ENV):
        name, path = member.info.name, member.source
        if _NAMES_ITS_PLACE.fullmatch(name):
            continue
        if isinstance(path, Path):  # no link
            if path.suffix == ".pth" and path.read_text().strip() == str(ROOT):
                continue
            if name.startswith(f"{ENV}/bin/") and path.read_bytes().startswith(shebang):
                script = path.read_bytes().partition(b"\n")[2]
                about = path.stat()
                moved = _file(name, _LAUNCH + script, about.st_mode)
                moved.info.mtime = about.st_mtime  # the fingerprint includes it
                yield moved
                continue
        yield member


def _list_base(base: Path, python: str, *, site_packages: bool) -> Iterator[ArchiveMember]:
    """Yield an interpreter: program, libraries, and headers, which kernel compilers need."""
    program = Path(os.path.realpath(sys.executable))
    content = program.read_bytes()
    # A run path is a zero-terminated string. A shorter one replaces it, so that the program
    # finds its library in the archive and not where it was linked.
    old = f"{base}/lib".encode()
    new = b"$ORIGIN/../lib"
    if len(new) <= len(old):
        content = content.replace(b"\0%b\0" % old, b"\0%b\0" % new.ljust(len(old), b"\0"))
    yield _file(f"{BASE}/bin/python", content, 0o755)
    for library in base.glob("lib/libpython*.so*"):
        yield _file(f"{BASE}/lib/{library.name}", library)
    for part in (f"include/{python}", f"lib/{python}"):
        for member in walk(base / part, f"{BASE}/{part}"):
            name = member.info.name
            own_package = name.startswith(f"{BASE}/lib/{python}/site-packages/")
            if not _UNUSED_BASE.match(name) and (site_packages or not own_package):
                yield member


def walk(folder: Path, name: str) -> Iterator[ArchiveMember]:
    """Yield the files below a folder without caches; archived names begin with ``name``.

    A link to a file becomes that file.

    Raises:
        ConfigError: a link leads neither to a file nor to a folder inside ``folder``.
    """
    top = os.path.realpath(folder)
    for where, folders, files in os.walk(folder):
        folders[:] = [part for part in folders if part not in _CACHES]
        links = [part for part in folders if os.path.islink(os.path.join(where, part))]
        for part in [*files, *links]:
            path = Path(where, part)
            archived = f"{name}/{path.relative_to(folder)}"
            if path.suffix in (".pyc", ".pyo"):
                continue
            if path.is_file():
                yield _file(archived, path)
                continue
            real = os.path.realpath(path)
            if not os.path.isdir(real) or not real.startswith(f"{top}/"):
                raise ConfigError(
                    f"{path}: leads to {real}, which is not packed; put the folder itself there."
                )
            yield _link(archived, os.path.relpath(real, os.path.realpath(where)))


def _file(name: str, source: Path | bytes, mode: int = 0o644) -> ArchiveMember:
    """Return a file of an archive; ``mode`` is used only if ``source`` is bytes."""
    info = tarfile.TarInfo(name)
    if isinstance(source, Path):
        about = source.stat()
        info.size, info.mtime, mode = about.st_size, about.st_mtime, about.st_mode
    else:
        info.size = len(source)
    info.mode = 0o755 if mode & 0o100 else 0o644
    return ArchiveMember(info, source)


def _link(name: str, leads: str) -> ArchiveMember:
    info = tarfile.TarInfo(name)
    info.type = tarfile.SYMTYPE
    info.linkname = leads
    return ArchiveMember(info)


def _compress(file: IO[bytes], program: Sequence[str], members: Sequence[ArchiveMember]) -> None:
    with (
        subprocess.Popen(program, stdin=subprocess.PIPE, stdout=file) as process,
        tarfile.open(fileobj=process.stdin, mode="w|", format=tarfile.GNU_FORMAT) as tar,
    ):
        for member in members:
            member.info.mtime = _TIME
            source = member.source
            with BytesIO(source) if isinstance(source, bytes) else source.open("rb") as content:
                tar.addfile(member.info, content)
    if process.returncode:
        raise StorageError(f"{program[0]} failed (code {process.returncode}); make room.")


# -- installing, on a host ---------------------------------------------------------------

_COMPLETE = "complete.json"
"""File with the number and bytes of unpacked files: cleaners of ``/tmp`` remove single files."""

_ERROR_LENGTH = 500
"""Most characters of an error: ``srun --label`` cuts lines of more than 1,024 (22.05)."""


class ArchiveRefused(StorageError):
    """An archive, or a place for it, cannot be used."""


def software_folder(place: str, environment: Mapping[str, str]) -> Path:
    """Return this user's private folder for software below a place; create it if necessary.

    Args:
        place: folder that may contain variables, such as ``/mnt/bb/$USER``.
        environment: environment of this host.

    Raises:
        ArchiveRefused: the folder cannot be created, or other users can enter it.
    """
    try:
        resolved = Path(Template(place).substitute(environment))
    except (KeyError, ValueError) as error:
        raise ArchiveRefused(
            f"{place}: names {error}, which this host does not have; correct it."
        ) from None
    if not resolved.is_absolute():
        raise ArchiveRefused(f"{place}: is no absolute path; choose another scratch folder.")
    ours = private_folder(resolved)
    try:
        if not create_private(ours):
            raise ArchiveRefused(f"{ours}: is not a folder that only you can enter; remove it.")
        (ours / "software").mkdir(exist_ok=True)
    except OSError as error:
        raise ArchiveRefused(
            f"{ours}: cannot be written ({error.strerror}); choose another scratch folder."
        ) from None
    return ours / "software"


@contextlib.contextmanager
def _locked(file: Path, kind: int) -> Iterator[int]:
    """Hold a lock on a file; raise BlockingIOError if it is taken and ``kind`` has LOCK_NB."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, kind)
        yield descriptor
    finally:
        os.close(descriptor)


def install(folder: Path, checksum: str, archives: Sequence[Path]) -> Path:
    """Unpack an archive on this host unless it is there already; return its folder.

    Args:
        folder: result of ``software_folder``.
        checksum: SHA-256 of the archive.
        archives: possible paths of the archive, in the order in which they are tried.

    Raises:
        ArchiveRefused: no archive is valid, or the disk is full; no partial folder is left.
        OSError: the folder cannot be written.
    """
    target = folder / checksum[:16]
    with _locked(folder / "lock", fcntl.LOCK_EX):
        with contextlib.suppress(OSError, ValueError):
            if json.loads((target / _COMPLETE).read_bytes()) == _measure(target):
                return target
        for other in filter(Path.is_dir, list(folder.iterdir())):
            used = folder / f"{other.name}.used"
            with contextlib.suppress(BlockingIOError), _locked(used, fcntl.LOCK_EX | fcntl.LOCK_NB):
                shutil.rmtree(other, ignore_errors=True)
        problem = ArchiveRefused("no archive was sent to this host; start the campaign again.")
        for archive in archives:
            try:
                unpack(archive, target, checksum)
                return target
            except ArchiveRefused as error:
                problem = error
        raise problem


class _Unfit(Exception):
    """Reason why an archive cannot be used, and what to do; both are parts of a sentence."""

    def __init__(self, what: str, remedy: str = "pack it again") -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy


def unpack(archive: Path, target: Path, checksum: str) -> None:
    """Check an archive and unpack it into a folder that no other process uses.

    Args:
        archive: path of the archive, which must not be a symbolic link.
        target: folder to create, in place of any that exists.
        checksum: SHA-256 that the archive must have.

    Raises:
        ArchiveRefused: the archive is invalid, or the disk is full; ``target`` is removed.
    """
    try:
        shutil.rmtree(target, ignore_errors=True)
        with os.fdopen(os.open(archive, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != checksum:
                raise _Unfit("its checksum differs")
            os.lseek(file.fileno(), 0, os.SEEK_SET)  # the program shares the descriptor
            program = _compressor(archive)[0]
            if shutil.which(program) is None:
                raise _Unfit(f"needs the program '{program}'", "pack as .tar.gz")
            target.mkdir(mode=0o700)
            with (
                subprocess.Popen([program, "-dcq"], stdin=file, stdout=subprocess.PIPE) as process,
                tarfile.open(fileobj=process.stdout, mode="r|") as tar,
            ):
                _extract(tar, target)
        (target / _COMPLETE).write_text(json.dumps(_measure(target)))
        return
    except _Unfit as error:
        problem = error
    except (tarfile.TarError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        problem = _Unfit(f"cannot be unpacked ({getattr(error, 'strerror', None) or error})")
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    shutil.rmtree(target, ignore_errors=True)
    raise ArchiveRefused(f"{archive}: {problem.what}; {problem.remedy}.")


def _extract(tar: tarfile.TarFile, target: Path) -> None:
    """Write the members of an archive below an empty folder, and nowhere else.

    Links are created after all files, so that no file is written through one, and then checked:
    tarfile's data filter came with Python 3.11.4 and let links escape before 3.11.13.
    """
    most_files, most_bytes = _read_manifest(tar)
    if most_bytes > (free := shutil.disk_usage(target).free):
        raise _Unfit(f"needs {most_bytes} bytes, {free} are free", "make room")
    files = size = 0
    links: dict[Path, str] = {}
    while (member := tar.next()) is not None:
        name = PurePosixPath(member.name)
        if ".." in name.parts or name.parts[:1] not in ((ENV,), (BASE,)):
            raise _Unfit(f"holds {member.name!r}, which would lie elsewhere")
        files, size = files + 1, size + member.size
        if files > most_files or size > most_bytes:
            raise _Unfit(f"holds more than {most_files} files of {most_bytes} bytes")
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if member.issym():
            links[path] = member.linkname
        elif content := tar.extractfile(member) if member.isreg() else None:
            with path.open("xb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
            path.chmod(0o755 if member.mode & 0o100 else 0o644)
            os.utime(path, (member.mtime, member.mtime))
        else:
            raise _Unfit(f"holds {member.name!r}, which is neither a file nor a link")
    if (files, size) != (most_files, most_bytes):
        raise _Unfit(f"ends after {files} of {most_files} files")
    _make_links(links, target)


def _read_manifest(tar: tarfile.TarFile) -> tuple[int, int]:
    """Return the number of files and of bytes that follow the manifest."""
    first = tar.next()
    content = tar.extractfile(first) if first and first.name == MANIFEST else None
    if content is None:
        raise _Unfit("does not begin with its manifest")
    manifest = json.loads(content.read(1 << 20))
    if manifest["format"] != FORMAT:
        raise _Unfit(f"is not of format {FORMAT}")
    return int(manifest["files"]), int(manifest["bytes"])


def _make_links(links: Mapping[Path, str], target: Path) -> None:
    """Create and check links, and write the interpreter's folder to ``pyvenv.cfg``."""
    for path, leads in links.items():
        path.symlink_to(leads)
    interpreter, top = (Path(os.path.realpath(path)) for path in (target / _PYTHON, target))
    if not os.access(interpreter, os.X_OK):
        raise _Unfit(f"wants {interpreter}, which this host does not have")
    for path in links:
        real = Path(os.path.realpath(path))
        if real != interpreter and top not in real.parents:
            raise _Unfit(f"holds {path.name!r}, which leads out of it")
    with (target / _SETTINGS).open("a") as file:
        file.write(f"home = {interpreter.parent}\n")


def _measure(folder: Path) -> list[int]:
    """Return the number and bytes of files, without the caches that Python adds."""
    sizes = [
        os.lstat(os.path.join(where, name)).st_size
        for where, _, names in os.walk(folder)
        for name in names
        if name != _COMPLETE and not where.endswith("/__pycache__")
    ]
    return [len(sizes), sum(sizes)]


def isolated_environment(target: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Python finds only the unpacked packages.

    Returns:
        ``environment`` with the archive's programs in front of ``PATH``.
    """
    ours = os.path.dirname(sys.executable)
    path = [part for part in environment.get("PATH", "").split(":") if part not in ("", ours)]
    dropped = (PATH, "PYTHONHOME", "PYTHONUSERBASE")
    kept = {name: value for name, value in environment.items() if name not in dropped}
    return kept | {
        "PATH": ":".join([str(target / ENV / "bin"), *path]),
        "VIRTUAL_ENV": str(target / ENV),
        "PYTHONNOUSERSITE": "1",
    }


def main(argv: Sequence[str]) -> int:
    """Install an archive on this host, or execute its Python; return the exit code."""
    parser = argparse.ArgumentParser("hydragnn_hpo.launching.environment")
    parser.add_argument("what", choices=("install", "start"))
    parser.add_argument("--checksum", required=True)
    parser.add_argument("--place", required=True)
    parser.add_argument(
        "--sent", type=lambda path: Path(Template(path).safe_substitute(os.environ))
    )
    parser.add_argument("--source", type=Path)
    end = argv.index("--") if "--" in argv else len(argv)
    options = parser.parse_args(argv[:end])
    error = ""
    try:
        folder = software_folder(options.place, os.environ)
        # Held while the archive is unpacked, and by the Python executed below until it ends.
        with _locked(folder / f"{options.checksum[:16]}.used", fcntl.LOCK_SH) as used:
            archives = [path for path in (options.sent, options.source) if path is not None]
            target = install(folder, options.checksum, archives)
            if options.what == "start":
                os.set_inheritable(used, True)
                python = str(target / _PYTHON)
                environment = isolated_environment(target, os.environ)
                os.execve(python, [python, *argv[end + 1 :]], environment)
    except (ArchiveRefused, OSError) as reason:
        error = str(reason)
    if options.sent is not None:
        options.sent.unlink(missing_ok=True)
    if options.what == "start":
        sys.stderr.write(f"error: {error}\n")
    else:
        answer = {"host": os.environ.get(_HOST_VARIABLE, ""), "error": error[:_ERROR_LENGTH]}
        sys.stdout.write(json.dumps(answer) + "\n")
    return 1 if error else 0


# -- bringing an archive to the hosts of an allocation -----------------------------------

_AT_ONCE = 256
"""Hosts that read one archive from a shared file system at a time."""

_SECONDS = 1800.0
"""Time limit of ``sbcast`` and of a step that unpacks: a busy host takes a minute."""


def packed_software(pack: Pack, place: str) -> Software:
    """Return the Python of an archive; a host that lost the unpacked files unpacks it again."""
    argv = _host_argv("start", pack, place, "--source", str(pack.path), "--")
    return Software(argv, path=str(ROOT))


def _host_argv(what: str, pack: Pack, place: str, *more: str) -> tuple[str, ...]:
    """Return the command for a host; with ``-S -P`` Python reads few files of shared storage."""
    python = (sys.executable, "-S", "-P", "-m", "hydragnn_hpo.launching.environment")
    return (*python, what, "--checksum", pack.checksum, "--place", place, *more)


@dataclass(frozen=True)
class _Delivery:
    """The delivery of an archive to the hosts of an allocation."""

    pack: Pack
    place: str
    """A folder on each host, see ``software_folder``."""
    allocation: "Allocation"
    log: Path
    environment: Mapping[str, str]
    flags: tuple[str, ...]
    """``srun`` flags of the machine's steps that start agents."""

    def run(self) -> "Allocation":
        """Deliver the archive; return the allocation without the hosts where that failed.

        Raises:
            ConfigError: the place names a variable that is not set.
            JobError: the archive is on no host, or Slurm does not answer.
        """
        from hydragnn_hpo.launching.scheduler_commands import run_with_retries
        from hydragnn_hpo.launching.slurm_allocation import find_unusable_hosts

        down = find_unusable_hosts(self.allocation.hosts, run_with_retries)
        failed = {host: f"is {state}" for host, state in down.items()}
        waiting = [host for host in self.allocation.hosts if host not in failed]
        problems: dict[str, str] = {}
        if waiting and (sent := self._broadcast()):
            problems = self._install(waiting, "--sent", sent)
            waiting = [host for host in waiting if problems[host]]
        for first in range(0, len(waiting), _AT_ONCE):
            some = waiting[first : first + _AT_ONCE]
            problems |= self._install(some, "--source", str(self.pack.path))
        failed |= {host: f"has no software: {why}" for host, why in problems.items() if why}
        for host, why in failed.items():
            logger.warning("host %s is left out: it %s", host, why)
        hosts = tuple(host for host in self.allocation.hosts if host not in failed)
        if not hosts:
            host, why = next(iter(failed.items()))
            raise JobError(f"no host can be used: host {host} {why.rstrip('.')}; see its log.")
        return replace(self.allocation, hosts=hosts)

    def _broadcast(self) -> str:
        """Send the archive to all hosts; return its path there, empty if it was not sent."""
        from hydragnn_hpo.config import fill_path
        from hydragnn_hpo.launching.scheduler_commands import run_scheduler

        if _HOST_VARIABLE in self.place or shutil.which("sbcast") is None:
            return ""  # sbcast writes to the same path on all hosts
        name = f".hydragnn-hpo-{self.pack.checksum[:16]}-{self.pack.path.name}"
        sent = f"{fill_path(self.place, self.environment)}/{name}"
        job = f"--jobid={self.allocation.job}"
        argv = ["sbcast", "--force", job, str(self.pack.path), sent]
        try:
            run_scheduler(*argv, seconds=_SECONDS, environment=self.environment)
        except JobError as error:  # some hosts may have received it
            logger.warning("%s Hosts read the archive themselves.", error)
        return sent

    def _install(self, hosts: Sequence[str], *where: str) -> dict[str, str]:
        """Unpack on some hosts in one step; return the error of each host, empty on success."""
        from hydragnn_hpo.launching.slurm_allocation import step_argv, step_environment

        environment = step_environment(self.environment, self.allocation.ends_at)
        command = _host_argv("install", self.pack, self.place, *where)
        with storage(self.log), self.log.open("ab") as log:
            try:
                output = subprocess.run(
                    step_argv(self.allocation.job, hosts, command, self.flags),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=environment | {PATH: str(ROOT)},
                    start_new_session=True,
                    timeout=_SECONDS,
                ).stdout
            except subprocess.TimeoutExpired as late:
                output = late.stdout or b""
        answers = {}
        for line in output.decode(errors="replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                answer = json.loads(re.sub(r"^ *\d+: ?", "", line))  # srun labels lines by task
                answers[str(answer["host"])] = str(answer["error"])
        return {host: answers.get(host, f"its step is silent, see {self.log}") for host in hosts}


def equip(
    machine: "MachineConfig",
    site: "SiteConfig",
    allocation: "Allocation",
    *,
    run_dir: Path,
    environment: Mapping[str, str] = os.environ,
) -> "tuple[Software, Allocation]":
    """Deliver a campaign's software to the hosts of an allocation; return when that is done.

    Args:
        machine: machine of the campaign.
        site: settings from the machine's profile.
        allocation: the hosts.
        run_dir: run directory, which must exist.
        environment: environment of this process.

    Returns:
        The Python for agents, and the allocation without hosts where the delivery failed.

    Raises:
        ConfigError: there is no such archive, image or place.
        JobError: the delivery failed on all hosts, or Slurm does not answer.
    """
    if machine.pack is None:
        return software_here(machine, site, run_dir), allocation
    pack = Pack.read(Path(machine.pack))
    place = site.scratch or PLACE
    log = run_dir / "agents" / "software.log"
    with storage(log):
        log.parent.mkdir(mode=0o700, exist_ok=True)
    delivery = _Delivery(pack, place, allocation, log, environment, site.step.agents)
    return packed_software(pack, place), delivery.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
