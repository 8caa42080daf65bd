"""A packed environment on this host: what is in the archive, put into a folder where it works.

The archive is judged although its checksum was right: nothing lands outside the folder, whatever
it holds. Only the standard library is needed here, see ``arrival.py``.
"""

import contextlib
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import IO, Any

from hydragnn_hpo.errors import StorageError

FORMAT = 1
"""Of the archive; the first member is its manifest."""

MANIFEST = "manifest.json"
ENV, BASE = "env", "base"
"""Folders of an archive: the environment, and the interpreter that it was made from."""

WHOLE = "whole.json"
"""In an unpacked environment: how many files and bytes it has."""

_MOST_MANIFEST = 8 << 20
_SHEBANG = 127
"""Longest first line of a script that older kernels read, with its line's end."""

_SCRIPT = 1 << 20
"""Longer files in ``bin`` are no scripts."""


class ArchiveRefused(StorageError):
    """An archive, or a place for it, will not do."""


def open_plain(path: Path) -> BufferedReader:
    """Open a file to read; a link in its place is refused by the system."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb")


def checksum_of(file: BufferedReader) -> str:
    """Give the SHA-256 of a file from its beginning on."""
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()


# -- unpacking ---------------------------------------------------------------------------


@contextlib.contextmanager
def _decompressed(file: BufferedReader) -> Iterator[IO[bytes]]:
    """Read through the compression that a file's first bytes name."""
    file.seek(0)
    magic = file.read(4)
    file.seek(0)
    if magic[:2] == b"\x1f\x8b":
        with gzip.open(file) as stream:
            yield stream  # type: ignore[misc]
        return
    if magic != b"\x28\xb5\x2f\xfd":
        raise ArchiveRefused("is neither gzip nor zstd")
    os.lseek(file.fileno(), 0, os.SEEK_SET)
    try:
        process = subprocess.Popen(["zstd", "-dcq"], stdin=file, stdout=subprocess.PIPE)
    except OSError:
        raise ArchiveRefused(
            "needs the program 'zstd', which this host lacks: pack as .tar.gz"
        ) from None
    with process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.stdout.close()
    if process.returncode:
        raise ArchiveRefused(f"is damaged (zstd ended with code {process.returncode})")


class _Tree:
    """Puts members of an archive below a folder, and nothing anywhere else."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = self.bytes = 0
        self._made: set[PurePosixPath] = {PurePosixPath(".")}
        self._links: list[Path] = []

    def put(self, member: tarfile.TarInfo, content: IO[bytes] | None, most: int) -> None:
        """Write one member; ``most`` bytes may come in all."""
        name = PurePosixPath(member.name)
        if name.is_absolute() or ".." in name.parts or name.parts[:1] not in ((ENV,), (BASE,)):
            raise ArchiveRefused(f"holds {member.name!r}, which would lie elsewhere")
        self._folder(name.parent)
        path = self.root / name
        if member.issym():
            if member.linkname.startswith("/"):
                raise ArchiveRefused(f"holds {member.name!r}, which leads to {member.linkname!r}")
            os.symlink(member.linkname, path)
            self._links.append(path)
        elif member.isreg() and content is not None:
            self.bytes += member.size
            if self.bytes > most:
                raise ArchiveRefused(f"holds more than the {most} bytes that it tells")
            mode = 0o755 if member.mode & 0o100 else 0o644
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
            os.utime(path, (member.mtime, member.mtime))
        else:
            raise ArchiveRefused(f"holds {member.name!r}, which is neither a file nor a link")
        self.files += 1

    def _folder(self, name: PurePosixPath) -> None:
        """Make a folder; one that is not of our making may be a link."""
        if name not in self._made:
            self._folder(name.parent)
            os.mkdir(self.root / name)
            self._made.add(name)

    def check_links(self) -> None:
        """See that no link, followed to its end, leaves the folder."""
        root = os.path.realpath(self.root)
        for link in self._links:
            if not os.path.realpath(link).startswith(f"{root}/"):
                raise ArchiveRefused(
                    f"holds {str(link.relative_to(self.root))!r}, which leads out of it"
                )


def _manifest(tar: tarfile.TarFile) -> dict[str, Any]:
    first = tar.next()
    if first is None or first.name != MANIFEST or first.size > _MOST_MANIFEST or not first.isreg():
        raise ArchiveRefused("does not begin with its manifest")
    content = tar.extractfile(first)
    assert content is not None
    told = json.loads(content.read())
    wanted = {"files": int, "bytes": int, "prefix": str, "home": str, "python": str}
    wanted |= {"base": str, "executable": str, "system_site": bool}
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise ArchiveRefused(f"is not of format {FORMAT}: pack it again")
    if any(not isinstance(told.get(key), kind) for key, kind in wanted.items()):
        raise ArchiveRefused("has a manifest that lacks something: pack it again")
    if not re.fullmatch(r"python[0-9.]+", told["executable"]):
        raise ArchiveRefused(f"names an interpreter {told['executable']!r}")
    return told


def _extract(file: BufferedReader, work: Path) -> dict[str, Any]:
    """Unpack an archive into an empty folder; gives its manifest."""
    with _decompressed(file) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        told = _manifest(tar)
        free = os.statvfs(work)
        if told["bytes"] > (room := free.f_bavail * free.f_frsize):
            raise ArchiveRefused(f"needs {told['bytes']} bytes, {room} are free")
        tree = _Tree(work)
        for member in tar:
            if member.name != MANIFEST:
                tree.put(member, tar.extractfile(member) if member.isreg() else None, told["bytes"])
        while stream.read(1 << 20):  # the checksum of the compression comes last
            pass
    if (tree.files, tree.bytes) != (told["files"], told["bytes"]):
        raise ArchiveRefused(f"ends after {tree.files} of {told['files']} files")
    tree.check_links()
    return told


def unpack(archive: Path, target: Path, checksum: str) -> None:
    """Unpack a checked archive into a folder that takes its name when it is whole.

    Raises:
        Refused: the archive is not what it should be, or there is no room; nothing is left.
    """
    work = target.parent / f".{target.name}.part"
    shutil.rmtree(work, ignore_errors=True)
    try:
        with open_plain(archive) as file:
            if checksum_of(file) != checksum:
                raise ArchiveRefused("has another checksum")
            work.mkdir(mode=0o700)
            told = _extract(file, work)
        _settle(work, target, told)
        _write_whole(work)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(work, target)
    except (ArchiveRefused, tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
        said = error if isinstance(error, ArchiveRefused) else f"cannot be unpacked ({error})"
        raise ArchiveRefused(f"{archive}: {said}.") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


# -- mending what names the place where it was -------------------------------------------


def _settle(work: Path, target: Path, told: dict[str, Any]) -> None:
    """Let an environment know where it will be: links, ``pyvenv.cfg``, first lines of scripts."""
    name = told["executable"]
    home = Path(told["home"])
    if not told["home"]:
        home = target / BASE / "bin"
        program = work / BASE / "bin" / name
        if not program.is_file():
            raise ArchiveRefused(f"lacks its interpreter {name}")
        _find_library_beside(program, f"{told['base']}/lib".encode())
    elif not os.access(home / name, os.X_OK):
        raise ArchiveRefused(f"wants {home / name}, which this host does not have")
    scripts = work / ENV / "bin"
    scripts.mkdir(parents=True, exist_ok=True)
    (scripts / name).symlink_to(home / name if told["home"] else f"../../{BASE}/bin/{name}")
    for other in ("python", "python3"):
        if other != name:
            (scripts / other).symlink_to(name)
    site = "true" if told["system_site"] else "false"
    (work / ENV / "pyvenv.cfg").write_text(
        f"home = {home}\ninclude-system-site-packages = {site}\nversion = {told['python']}\n"
    )
    for script in scripts.iterdir():
        if script.is_file() and not script.is_symlink() and script.stat().st_size < _SCRIPT:
            _mend(script, told["prefix"].encode(), bytes(target / ENV))


def _find_library_beside(program: Path, old: bytes) -> None:
    """Let a program look for shared libraries in ``../lib``, not where it was linked for.

    The run path is a string in the program, ended by a zero byte: a shorter one takes its place.
    """
    new = b"$ORIGIN/../lib"
    content = program.read_bytes()
    if len(new) <= len(old):
        named = b"\0" + old + b"\0"
        program.write_bytes(content.replace(named, b"\0" + new.ljust(len(old), b"\0") + b"\0"))


def _mend(script: Path, old: bytes, new: bytes) -> None:
    text = script.read_bytes()
    if b"\0" in text or not old or old not in text:
        return
    text = text.replace(old + b"/", new + b"/").replace(old + b'"', new + b'"')
    first, _, rest = text.partition(b"\n")
    if first.startswith(b"#!" + new) and len(first) >= _SHEBANG:
        # Read by a shell and by Python: to the latter the second line is a string.
        rest = b"'''exec' " + first[2:] + b" \"$0\" \"$@\"\n' '''\n" + rest
        first = b"#!/bin/sh"
    script.write_bytes(first + b"\n" + rest)


# -- whether it is whole -----------------------------------------------------------------


def _measure(folder: Path) -> tuple[int, int]:
    """Count files and bytes, without what Python makes of them."""
    files = size = 0
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            if name != WHOLE:
                files += 1
                size += os.lstat(os.path.join(where, name)).st_size
    return files, size


def _write_whole(work: Path) -> None:
    (work / WHOLE).write_text(json.dumps(_measure(work)))


def is_whole(target: Path) -> bool:
    """Tell whether an unpacked environment still has every file; temporary folders get swept."""
    try:
        return bool(json.loads((target / WHOLE).read_bytes()) == list(_measure(target)))
    except (OSError, ValueError):
        return False
