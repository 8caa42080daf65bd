"""Open a zip that may come from anywhere: check names, sizes and checksums before using a byte.

Nothing is unpacked to disk. Entries are read one at a time, so that a file of many members
is never in memory twice.
"""

import hashlib
import io
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from hydragnn_hpo.errors import DataError

MANIFEST, CARD, SUMS = "ensemble.json", "MODEL_CARD.md", "SHA256SUMS"
CALIBRATION = "calibration.safetensors"
STORED = ".safetensors"
"""Suffix of the entries that are not compressed."""

MAX_TEXT = 64 * 2**20
"""Most text in all entries together, bytes."""
MAX_WEIGHTS = 8 * 2**30
"""Largest entry of weights, bytes."""
MAX_ENTRIES = 10_000
MAX_LIST = 4 * 2**20
"""Most bytes of the zip's own list of its entries."""

_NAME = re.compile(
    r"ensemble\.json|MODEL_CARD\.md|SHA256SUMS|calibration\.safetensors"
    r"|data/[\w-]{1,100}\.toml|members/[\w-]{1,100}\.(toml|safetensors)",
    re.ASCII,
)
_SUM = re.compile(r"([0-9a-f]{64})  (\S+)")
_PIECE = 2**20
_DAMAGE = (
    *(OSError, zipfile.BadZipFile, zlib.error, EOFError),
    *(NotImplementedError, RuntimeError, ValueError, OverflowError),
)


def reject(path: Path, what: str, cause: BaseException | None = None) -> NoReturn:
    """Raise a ``DataError`` that refuses an ensemble file in one sentence."""
    raise DataError(f"{path}: {what}; get the ensemble again or build it anew.") from cause


class SafeZip:
    """The entries of an opened ensemble, each checked against its sum when it is read."""

    def __init__(self, path: Path, file: zipfile.ZipFile) -> None:
        """Check all names and sizes, and read the checksums."""
        self.path = path
        self._file = file
        infos = file.infolist()
        _check_infos(path, infos)
        self.sizes = {info.filename: info.file_size for info in infos}
        if SUMS not in self.sizes:
            reject(path, f"lacks '{SUMS}'")
        sums = file.read(SUMS)
        self.identity = hashlib.sha256(sums).hexdigest()
        found = _SUM.findall(sums.decode("ascii", errors="replace"))
        self.sums: dict[str, str] = {name: value for value, name in found}
        for name in self.sizes:
            if name not in self.sums and name != SUMS:
                reject(path, f"holds '{name}', which {SUMS} does not name")
        for name in self.sums:
            if name not in self.sizes:
                reject(path, f"lacks '{name[:200]}'")

    def read(self, name: str) -> bytes:
        """Return one entry after checking its checksum."""
        if name not in self.sizes:
            reject(self.path, f"lacks '{name}'")
        with translate_damage(self.path):
            data = self._file.read(name)
        self._check(name, hashlib.sha256(data).hexdigest())
        return data

    def check(self, name: str) -> None:
        """Compare one entry with its checksum, piece by piece."""
        digest = hashlib.sha256()
        with translate_damage(self.path), self._file.open(name) as stream:
            while piece := stream.read(_PIECE):
                digest.update(piece)
        self._check(name, digest.hexdigest())

    def refuse_others(self, wanted: set[str]) -> None:
        """Reject entries that the manifest does not name."""
        for name in sorted(set(self.sizes) - wanted):
            reject(self.path, f"holds '{name}', which belongs to no member")

    def _check(self, name: str, found: str) -> None:
        if found != self.sums[name]:
            reject(self.path, f"'{name}' does not have the checksum that {SUMS} gives")


@contextmanager
def open_safe_zip(path: Path) -> Iterator[SafeZip]:
    """Open an ensemble file for reading.

    Raises:
        DataError: the file is missing, is no plain file, or is damaged or hostile.
    """
    if not path.exists():
        raise DataError(f"{path}: no such ensemble; give the path of an ensemble.zip.")
    if not path.is_file():
        raise DataError(f"{path}: is no such ensemble but a folder or a device; give a file.")
    with translate_damage(path):
        source = _Source(path)
    with source:
        with translate_damage(path):
            file = zipfile.ZipFile(source)
        source.most = None
        with file:
            with translate_damage(path):
                entries = SafeZip(path, file)
            yield entries


@contextmanager
def translate_damage(path: Path) -> Iterator[None]:
    """Turn any error of a damaged zip into one ``DataError``."""
    try:
        yield
    except _DAMAGE as error:
        reason = str(error).strip().rstrip(".")
        reason = reason[:200] if reason.isprintable() and reason else type(error).__name__
        reject(path, f"cannot be read as a zip ({reason})", error)


class _Source(io.FileIO):
    """A file that refuses to return a huge central directory, which would fill the memory."""

    most: int | None = MAX_LIST

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to ``size`` bytes."""
        if self.most is not None and size is not None and size > self.most:
            raise zipfile.BadZipFile(f"its list of entries has more than {self.most} bytes")
        return super().read(-1 if size is None else size) or b""


def _check_infos(path: Path, infos: list[zipfile.ZipInfo]) -> None:
    if len(infos) > MAX_ENTRIES:
        reject(path, f"holds {len(infos)} entries, more than {MAX_ENTRIES}")
    seen: set[str] = set()
    text = packed = 0
    for info in infos:
        name = info.filename
        if not _NAME.fullmatch(name):
            reject(path, f"holds {name[:200]!a}, which has no place in an ensemble")
        if name in seen:
            reject(path, f"holds '{name}' twice")
        if info.flag_bits & 0x1:
            reject(path, f"'{name}' is encrypted")
        seen.add(name)
        packed += info.compress_size
        if not name.endswith(STORED):
            text += info.file_size
        elif info.compress_type != zipfile.ZIP_STORED or info.file_size > MAX_WEIGHTS:
            reject(path, f"'{name}' is compressed or larger than {MAX_WEIGHTS} bytes")
        elif info.file_size != info.compress_size:
            reject(path, f"'{name}' claims {info.file_size} bytes and holds {info.compress_size}")
    if text > MAX_TEXT:
        reject(path, f"claims {text} bytes of text, more than {MAX_TEXT}")
    if packed > path.stat().st_size:
        reject(path, f"claims {packed} bytes in a file of {path.stat().st_size}")
