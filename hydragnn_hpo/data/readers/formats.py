"""Formats of files by their content: one table, each entry of which says what a file looks like.

The content decides before the name, so that a CIF with ``POSCAR`` in its name is a CIF.
"""

import codecs
import functools
import lzma
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from hydragnn_hpo.data.readers.source import OPENERS

PEEK = 1 << 16
"""Bytes from the beginning of a file, decompressed, by which its format is recognised."""

_LINE = r"[^\n]*\n"
_SKIP = r"(?:[ \t]*(?:(?:[#!]|comment)[^\n]*)?\n)*[ \t]*"
"""Blank lines and comments."""

_NUMBER = r"[ \t]+[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:(?:[eEdD]|\*\^)[-+]?\d+)?"
_ROW = rf"(?:{_NUMBER}){{3}}"
_END = r"[ \t\r]*(?:[#!][^\n]*)?\n"


@dataclass(frozen=True)
class Format:
    """A format that is recognised by the beginning of a file."""

    name: str
    """ASE's name of the format, or a name of this package where ASE does not read it."""
    pattern: str
    """Regular expression of what such files begin with."""
    reader: str = "ase_file"
    """Name of its reader in ``READERS``."""
    cure: str | None = None
    """For a format that is not read, how to convert it; completes ``is NAME: ...``."""

    def looks_like(self, head: bytes) -> bool:
        """Check whether a file begins as those of this format do."""
        return re.match(self.pattern.encode(), head, re.DOTALL) is not None


_WRITE = (
    "write each structure by ASE as write('data.xyz', Atoms(numbers=Z, positions=R, "
    "info={'energy': E}), append=True)"
)
"""What converts any arrays to extended XYZ."""

FORMATS = (
    Format("database", r"SQLite format 3\0", "database"),
    Format(
        "json database",
        r'\s*\{\s*"(?:ids|nextid|\d+(?=.*"(?:unique_id|ctime|__ndarray__)"))"\s*:',
        "database",
    ),
    Format("npz", r"PK\x03\x04.{26}[^/]{1,99}?\.npy", "arrays"),
    Format("cif", rf"{_SKIP}(?i:data_){_LINE}(?:.*\n)?[ \t]*(?:_|loop_)"),
    Format("vasp-xml", r".{0,400}?<modeling>"),
    Format("vasp-out", rf"(?:{_LINE}){{0,5}}?\s*vasp\.\d"),
    Format("vasp-xdatcar", rf"(?:{_LINE}){{7,8}}?\s*Direct configuration="),
    Format(
        "vasp",
        rf"{_LINE}[ \t]*(?:{_NUMBER.replace('+', '*', 1)}){{1,3}}{_END}(?:{_ROW}{_END}){{3}}"
        rf"(?:{_LINE}){{1,3}}?\s*[SsDdCcKk][A-Za-z]*",
    ),
    Format("runnerdata", rf"{_SKIP}begin{_END}{_SKIP}(?:lattice|atom)\s"),
    Format(
        "aims", rf"{_SKIP}(?:lattice_vector{_ROW}{_END}|atom(?:_frac)?{_ROW}[ \t]+[A-Z][a-z]?\b)"
    ),
    Format("xsf", rf"{_SKIP}(?:ANIMSTEPS|CRYSTAL|SLAB|POLYMER|MOLECULE|ATOMS)\s"),
    Format("proteindatabank", r"(?:HEADER|CRYST1|ATOM  |HETATM|REMARK) "),
    Format("sdf", rf"(?:{_LINE}){{3}}[^\n]*V[23]000\s", "sdf"),
    Format("qm9", rf"\s*\d+\s*\ngdb{_NUMBER}(?:{_NUMBER}){{15}}\s"),
    Format(
        "extxyz",
        rf"[ \t]*\d+{_END}(?:[^\n]*\bProperties=\S+:[SRIL]:\d|{_LINE}[ \t]*\w+{_ROW}\s)",
        "extxyz",
    ),
    Format(
        "one array of NumPy (npy)", r"\x93NUMPY", cure=f"name its folder with type.raw, or {_WRITE}"
    ),
    Format("HDF5", r"\x89HDF", cure=f"open it by h5py.File(NAME), and {_WRITE}"),
    Format("a MATLAB file", r"MATLAB 5.0", cure=f"load it by scipy.io.loadmat(NAME), and {_WRITE}"),
    Format(
        "Parquet",
        r"PAR1",
        cure="write it as pandas.read_parquet(NAME).to_json('data.json', orient='records')",
    ),
    Format(
        "a pickle",
        r"\x80[\x02-\x05]",
        cure=f"it may run anything and is not opened here; load it if you trust it, and {_WRITE}",
    ),
    Format(
        "a spreadsheet",
        r"PK\x03\x04.{26}(\[Content_Types|_rels/|docProps/|xl/|mimetypeapplication/vnd\.oasis)"
        r"|\xd0\xcf\x11\xe0",
        cure="save its sheet as CSV",
    ),
    Format(
        "an archive",
        r"PK\x03\x04(?!.{0,200}/data\.pkl)|.{257}ustar",
        cure="unpack it and name what is in it",
    ),
)
"""All formats that are recognised by content; the first one that fits is taken."""


def recognize(path: Path) -> Format | None:
    """Return the format of a file by its content; None if that does not show it."""
    if not path.is_file():
        return None
    stat = path.stat()
    return _recognize(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=4096)
def _recognize(path: Path, changed: int, size: int) -> Format | None:
    try:
        with OPENERS.get(path.suffix.lower(), open)(path, "rb") as file:
            head = file.read(PEEK).removeprefix(codecs.BOM_UTF8)
    except (OSError, EOFError, lzma.LZMAError, zlib.error):
        return None
    return next((form for form in FORMATS if form.looks_like(head)), None)
