"""Packing the environment that we run in into one archive, the same whenever it is the same."""

import contextlib
import gzip
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sysconfig
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Self

from hydragnn_hpo.errors import ConfigError, StorageError
from hydragnn_hpo.files import PART, read_json, storage, write_json
from hydragnn_hpo.launching.staging.contents import Entry, Interpreter, entries, packages, running
from hydragnn_hpo.launching.staging.unpack import FORMAT, MANIFEST, checksum_of, open_plain

SUFFIXES = (".tar.gz", ".tar.zst")
_TIME = 315532800
"""Of every file in an archive: 1980, as in wheels."""

_LEVEL = 1
"""Of gzip: libraries full of machine code hardly get smaller by more."""


@dataclass(frozen=True)
class Pack:
    """An archive, as the file ``ARCHIVE.json`` beside it tells."""

    path: Path
    checksum: str
    """SHA-256."""
    size: int
    """Bytes."""
    prefix: str
    """Where its environment was."""
    fingerprint: str
    """Of the files it was made from: their names, sizes and times."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Give an archive that we packed.

        Raises:
            ConfigError: there is none, or it is not the one that was written.
        """
        beside = _beside(path)
        if not path.is_file() or not beside.is_file():
            raise ConfigError(
                f"{path}: no packed environment with its {beside.name} is there: hydragnn-hpo pack."
            )
        try:
            told = read_json(beside)
            found = cls(
                path.resolve(), **{key: told[key] for key in cls.__annotations__ if key != "path"}
            )
        except (StorageError, KeyError, TypeError) as error:
            raise ConfigError(f"{beside}: is damaged ({error}): pack again.") from None
        if path.stat().st_size != found.size:
            raise ConfigError(
                f"{path}: has {path.stat().st_size} bytes, {found.size} were written: pack again."
            )
        return found


def pack_environment(out: Path) -> Pack:
    """Pack the environment that we run in, unless the archive there is already of it.

    Args:
        out: ``NAME.tar.gz``, or ``NAME.tar.zst`` where the program ``zstd`` is at hand.

    Raises:
        ConfigError: the environment cannot be moved.
        StorageError: there is no room; nothing is left behind.
    """
    if not out.name.endswith(SUFFIXES):
        raise ConfigError(f"{out}: an archive is called NAME.tar.gz or NAME.tar.zst.")
    found = running()
    listed = entries(found)
    known = fingerprint(listed)
    with contextlib.suppress(ConfigError):
        if (there := Pack.read(out)).fingerprint == known:
            return there
    with storage(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        _beside(out).unlink(missing_ok=True)
        part = out.with_name(f".{out.name}{PART}")
        try:
            with part.open("wb") as file, _compressed(out.name, file) as stream:
                _write(stream, listed, manifest(found, listed))
            with open_plain(part) as written:
                checksum = checksum_of(written)
                os.fsync(written.fileno())
            os.replace(part, out)
        finally:
            part.unlink(missing_ok=True)
    made = Pack(out.resolve(), checksum, out.stat().st_size, str(found.prefix), known)
    told = manifest(found, listed) | asdict(made)
    write_json(_beside(out), {key: told[key] for key in told if key != "path"})
    return made


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def fingerprint(listed: Sequence[Entry]) -> str:
    """Give a checksum of what files look like from outside."""
    known = hashlib.sha256()
    for entry in listed:
        about = entry.source.lstat() if entry.link else entry.source.stat()
        seen = entry.link or (about.st_size, about.st_mtime_ns, about.st_mode)
        known.update(f"{entry.name}\0{seen}\n".encode())
    return known.hexdigest()


def manifest(found: Interpreter, listed: Sequence[Entry]) -> dict[str, Any]:
    """Say what an archive holds."""
    files = [entry.source.stat().st_size for entry in listed if not entry.link]
    return {
        "format": FORMAT,
        "python": platform.python_version(),
        "platform": sysconfig.get_platform(),
        "prefix": str(found.prefix),
        "base": str(found.base),
        "home": str(found.executable.parent) if found.shared_with_hosts else "",
        "executable": f"python{'.'.join(platform.python_version_tuple()[:2])}",
        "system_site": found.system_site,
        "files": len(listed),
        "bytes": sum(files),
        "packages": packages(),
    }


@contextlib.contextmanager
def _compressed(name: str, file: IO[bytes]) -> Iterator[IO[bytes]]:
    """Write through the compression that a name asks for."""
    if name.endswith(".gz"):
        with gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as stream:
            yield stream  # type: ignore[misc]
        return
    if shutil.which("zstd") is None:
        raise ConfigError(f"{name}: there is no program 'zstd' here: call it .tar.gz.")
    argv = ["zstd", "-q", "-T0", "-3", "-c"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=file) as process:
        assert process.stdin is not None
        yield process.stdin
        process.stdin.close()
    if process.returncode:
        raise StorageError(f"{name}: zstd failed (code {process.returncode}); make room.")


def _write(stream: IO[bytes], listed: Sequence[Entry], told: dict[str, Any]) -> None:
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT) as tar:
        content = json.dumps(told, indent=1).encode()
        tar.addfile(_member(MANIFEST, len(content)), BytesIO(content))
        for entry in listed:
            if entry.link:
                member = _member(entry.name, 0)
                member.type, member.linkname = tarfile.SYMTYPE, entry.link
                tar.addfile(member)
                continue
            with entry.source.open("rb") as file:
                about = os.fstat(file.fileno())
                tar.addfile(_member(entry.name, about.st_size, about.st_mode), file)


def _member(name: str, size: int, mode: int = 0) -> tarfile.TarInfo:
    """Describe a member without anything of this host or this hour."""
    member = tarfile.TarInfo(name)
    member.size, member.mtime = size, _TIME
    member.mode = 0o755 if mode & 0o100 else 0o644
    return member
