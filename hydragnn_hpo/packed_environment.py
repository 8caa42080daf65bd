"""An archive of the Python environment: written once, unpacked on each host's own disk.

An archive (``hydragnn-hpo pack``) is a tar file of ``env/``, the environment with this package as a
wheel installs it, and ``base/``, the interpreter of a virtual environment unless that is the
system's. conda-pack writes conda's environments, whose files name their place. venv-pack2 is not
used: it refuses an editable install of this package, and leaves the interpreter behind. One process
per host, a Python on shared storage, unpacks an archive:

    python -S -P -m hydragnn_hpo.packed_environment install --checksum SHA256 ...

``start ... -- ARGUMENT...`` in place of ``install`` also executes the unpacked Python. Under ``-S``
there is only the standard library: modules that need packages are imported inside functions.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template
from typing import IO, Self

import hydragnn_hpo
from hydragnn_hpo.errors import ConfigError, StorageError
from hydragnn_hpo.files import hash_file, read_json, storage, whole_file, write_json
from hydragnn_hpo.host_info import create_private, private_folder

ROOT = Path(hydragnn_hpo.__file__).parents[1]
"""Folder that holds this package: a checkout, or ``site-packages``."""

PATH = "PYTHONPATH"

ENV, BASE = "env", "base"

_COMPRESSORS = {".tar.gz": ("gzip", "-1nc"), ".tar.zst": ("zstd", "-3qcT0")}
"""External programs: Python has no zstd before 3.14, and unpacking hosts have no packages yet."""

# -- packing -----------------------------------------------------------------------------

_SYSTEM = "/usr"
"""Prefix of the system's interpreter, which every host has."""

_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_PYTHON = f"{ENV}/bin/python"
_SETTINGS = f"{ENV}/pyvenv.cfg"
_CONDA_UNPACK = f"{ENV}/bin/conda-unpack"

_LEFT_OUT = re.compile(
    r".*/(__pycache__|\.(mypy|pytest|ruff)_cache)|.*\.py[co]|.*editable.*hydragnn_hpo.*\.pth|"
    r"env/(lib64|bin/(python[0-9.]*|[Aa]ctivate.*))|"
    r"base/lib/[^/]*/(config-[^/]*|idlelib|test|turtledemo|site-packages)"
)
"""Files that name their place or are made again, and parts of the standard library that no training
needs; ``config-*`` is a static library."""

_TIME = 315532800
"""Modification time of every file in an archive: 1980-01-01, as in wheels."""


@dataclass(frozen=True)
class Pack:
    """An archive, as described by the file ``ARCHIVE.json`` next to it."""

    path: Path
    checksum: str
    """SHA-256 of the archive, in hexadecimal."""
    size: int
    """Size of the archive in bytes."""

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
            pack = cls(path.resolve(), known["checksum"], known["size"])
        except (StorageError, KeyError, TypeError) as error:
            raise ConfigError(f"{description}: is damaged ({error}): pack again.") from None
        if (size := path.stat().st_size) != pack.size:
            raise ConfigError(
                f"{path}: has size {size}, {description.name} says {pack.size}: pack again."
            )
        return pack


def pack_environment(out: Path) -> Pack:
    """Pack the environment of this process; the same virtual environment gives the same bytes.

    Args:
        out: ``NAME.tar.gz``, or ``NAME.tar.zst`` if the program ``zstd`` is installed.

    Raises:
        ConfigError: the environment cannot be moved.
        StorageError: the disk is full; no partial file is left.
    """
    program = _compressor(out)
    if shutil.which(program[0]) is None:
        raise ConfigError(f"{out}: there is no program '{program[0]}' here: call it .tar.gz.")
    conda = Path(sys.prefix, "conda-meta").is_dir()
    versions = _check_movable(conda)
    with storage(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with (
        whole_file(out) as file,
        subprocess.Popen(program, stdin=subprocess.PIPE, stdout=file) as process,
    ):
        assert process.stdin is not None
        if conda:
            _write_conda(process.stdin, out.parent)
        else:
            _write_venv(process.stdin)
        process.stdin.close()
        if code := process.wait():
            raise StorageError(f"{program[0]} failed (code {code}); make room.")
    pack = Pack(out.resolve(), hash_file(out), out.stat().st_size)
    about = {"path": pack.path.name, "python": platform.python_version(), "packages": versions}
    write_json(out.with_name(f"{out.name}.json"), {**asdict(pack), **about})
    return pack


def _compressor(archive: Path) -> tuple[str, str]:
    for suffix, argv in _COMPRESSORS.items():
        if archive.name.endswith(suffix):
            return argv
    raise ConfigError(f"{archive}: call an archive NAME.tar.gz or NAME.tar.zst.")


def _check_movable(conda: bool) -> dict[str, str]:
    """Check that the environment of this process can be moved.

    Returns:
        Package -> version.

    Raises:
        ConfigError: it is no environment of its own, or links to packages outside.
    """
    import importlib.metadata

    if not conda and sys.prefix == sys.base_prefix:
        raise ConfigError(
            f"{sys.prefix}: is no virtual environment: install hydragnn-hpo into one."
        )
    if not conda and Path(sys.base_prefix, "conda-meta").is_dir():
        raise ConfigError(
            f"{sys.prefix}: its Python is conda's, whose files name their place: install "
            "hydragnn-hpo into the conda environment, or use a container."
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


def _clean(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return a file of an archive without owner and time; None for one that is left out."""
    if _LEFT_OUT.fullmatch(member.name):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = _TIME
    member.mode = 0o755 if member.mode & 0o100 else 0o644
    return member


def _add_own(tar: tarfile.TarFile) -> None:
    """Add this package and its data, where it is not installed but a checkout."""
    if not ROOT.is_relative_to(sys.prefix):
        package = f"{ENV}/lib/{_VERSION}/site-packages/hydragnn_hpo"
        tar.add(ROOT / "hydragnn_hpo", package, filter=_clean)
        for folder in ("graph_datasets", "workflows", "launch"):  # where a wheel has them
            tar.add(ROOT / folder, f"{package}/_shipped/{folder}", filter=_clean)


def _write_venv(stream: IO[bytes]) -> None:
    """Write a virtual environment and its interpreter; links to files become those files."""
    interpreter = os.path.realpath(sys.executable)
    base = Path(sys.base_prefix)
    links = {"python3": "python", _VERSION: "python", "../lib64": "lib"}
    with tarfile.open(fileobj=stream, mode="w|", dereference=True) as tar:
        tar.add(sys.prefix, ENV, filter=_clean)
        _add_own(tar)
        if sys.base_prefix == _SYSTEM:
            links["python"] = interpreter
        else:
            links["python"] = f"../../{BASE}/bin/python"
            libraries = sorted(f"lib/{path.name}" for path in base.glob("lib/libpython*.so*"))
            tar.add(interpreter, f"{BASE}/bin/python", filter=_clean)
            for part in (*libraries, f"include/{_VERSION}", f"lib/{_VERSION}"):  # for compilers
                if (base / part).exists():
                    tar.add(base / part, f"{BASE}/{part}", filter=_clean)
        for name, leads in links.items():
            link = tarfile.TarInfo(os.path.normpath(f"{ENV}/bin/{name}"))
            link.type = tarfile.SYMTYPE
            link.linkname = leads
            tar.addfile(link)


def _write_conda(stream: IO[bytes], folder: Path) -> None:
    """Write a conda environment, by way of a temporary file in a folder.

    Raises:
        ConfigError: conda-pack is not installed, or refuses.
    """
    from hydragnn_hpo.optional_packages import explain_missing

    with explain_missing(instead=", or use a container"):
        import conda_pack
    with tempfile.TemporaryDirectory(dir=folder) as place:
        part = Path(place, "env.tar")
        options = {"arcroot": ENV, "ignore_editable_packages": True}
        try:
            conda_pack.pack(prefix=sys.prefix, output=str(part), **options)
        except conda_pack.CondaPackException as error:
            raise ConfigError(
                f"{sys.prefix}: conda-pack refuses ({error}): mend the environment, or use a "
                "container."
            ) from None
        with tarfile.open(part, "a", dereference=True) as tar:
            _add_own(tar)
        with part.open("rb") as whole:
            shutil.copyfileobj(whole, stream)


# -- installing, on a host ---------------------------------------------------------------

_COMPLETE = "complete.json"
"""File with the number and bytes of unpacked files: cleaners of ``/tmp`` remove single files."""

_SCRIPT = re.compile(rb"#!\S*/bin/python[0-9.]*\n")
_LAUNCH = b"""#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")/python" "$0" "$@"
' '''
"""
"""First lines of a script that runs with the Python in its folder; Python reads a string there."""


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


def unpack(archive: Path, target: Path, checksum: str) -> None:
    """Unpack an archive into a folder that no other process uses, if it is what was packed.

    Args:
        archive: path of the archive, which must not be a symbolic link.
        target: folder to create, in place of any that exists.
        checksum: SHA-256 that the archive must have.

    Raises:
        ArchiveRefused: it has another, or cannot be unpacked; ``target`` is removed.
    """
    shutil.rmtree(target, ignore_errors=True)
    try:
        with os.fdopen(os.open(archive, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != checksum:
                raise ArchiveRefused(f"{archive}: its checksum differs; pack it again.")
            os.lseek(file.fileno(), 0, os.SEEK_SET)  # the program shares the descriptor
            target.mkdir(mode=0o700)
            program = f"--use-compress-program={_compressor(archive)[0]}"
            _run(["tar", "-x", program, "-f", "-", "-C", str(target)], file)
        _finish(target)
        (target / _COMPLETE).write_text(json.dumps(_measure(target)))
    except (OSError, subprocess.SubprocessError) as error:
        shutil.rmtree(target, ignore_errors=True)
        why = getattr(error, "strerror", None) or getattr(error, "stderr", None) or str(error)
        last = why.strip().splitlines()[-1].rstrip(".")
        raise ArchiveRefused(
            f"{archive}: cannot be unpacked ({last}): make room, or pack it again as .tar.gz."
        ) from None
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _run(argv: Sequence[str], stdin: IO[bytes] | None = None) -> None:
    subprocess.run(argv, stdin=stdin, stderr=subprocess.PIPE, text=True, check=True)


def _finish(target: Path) -> None:
    """Write the place of an unpacked environment to those of its files that name it."""
    python = target / _PYTHON
    if not os.access(python, os.X_OK):
        raise OSError(f"it wants {os.path.realpath(python)}, which this host does not have")
    if (target / _CONDA_UNPACK).exists():
        _run([str(python), str(target / _CONDA_UNPACK)])
        return
    home = f"home = {os.path.dirname(os.path.realpath(python))}"
    settings = re.sub("(?m)^home *=.*$", lambda _: home, (target / _SETTINGS).read_text())
    (target / _SETTINGS).write_text(settings)
    for script in python.parent.iterdir():
        if not script.is_symlink() and _SCRIPT.match(content := script.read_bytes()):
            script.write_bytes(_SCRIPT.sub(_LAUNCH, content, count=1))


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
        ``environment`` with the archive's programs and its interpreter's library in front.
    """
    ours = os.path.dirname(sys.executable)
    path = [part for part in environment.get("PATH", "").split(":") if part not in ("", ours)]
    libraries = [str(target / BASE / "lib"), environment.get("LD_LIBRARY_PATH", "")]
    dropped = (PATH, "PYTHONHOME", "PYTHONUSERBASE")
    kept = {name: value for name, value in environment.items() if name not in dropped}
    return kept | {
        "PATH": ":".join([str(target / ENV / "bin"), *path]),
        "LD_LIBRARY_PATH": ":".join(filter(None, libraries)),
        "VIRTUAL_ENV": str(target / ENV),
        "PYTHONNOUSERSITE": "1",
    }


def main(argv: Sequence[str]) -> int:
    """Install an archive on this host, or execute its Python; return the exit code."""
    parser = argparse.ArgumentParser("hydragnn_hpo.packed_environment")
    parser.add_argument("what", choices=("install", "start"))
    parser.add_argument("--checksum", required=True)
    parser.add_argument("--place", required=True)
    parser.add_argument(
        "--sent", type=lambda path: Path(Template(path).safe_substitute(os.environ))
    )
    parser.add_argument("--source", type=Path)
    end = argv.index("--") if "--" in argv else len(argv)
    options = parser.parse_args(argv[:end])
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
    except (ArchiveRefused, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    finally:
        if options.sent is not None:
            options.sent.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
