"""Readers of structures by name, and the choice of one for a path."""

import re
from pathlib import Path

from hydragnn_hpo.data.readers.ase_file import holds_one_structure, read_ase_file
from hydragnn_hpo.data.readers.database import DATABASE, LMDB, holds_lmdb
from hydragnn_hpo.data.readers.extxyz import count_extxyz, has_one_frame, read_extxyz
from hydragnn_hpo.data.readers.folder import FOLDER
from hydragnn_hpo.data.readers.folder import TABLE as ID_PROP
from hydragnn_hpo.data.readers.hydragnn_bp import HYDRAGNN_BP, is_hydragnn_bp
from hydragnn_hpo.data.readers.pyg import PYG
from hydragnn_hpo.data.readers.sdf import MOLFILES, SDF
from hydragnn_hpo.data.readers.smiles import SMILES, names_smiles
from hydragnn_hpo.data.readers.source import OPENERS, Reader, Source, in_one_piece
from hydragnn_hpo.data.readers.table import TABLE
from hydragnn_hpo.data.readers.text_folder import CFG, LSMS, holds_cfg
from hydragnn_hpo.errors import ConfigError, unknown

READERS: dict[str, Reader] = {
    "ase_file": in_one_piece(read_ase_file, frozenset({"format", "length"})),
    "cfg": CFG,
    "database": DATABASE,
    "extxyz": Reader(count_extxyz, read_extxyz, takes=frozenset({"length"})),
    "folder": FOLDER,
    "hydragnn_bp": HYDRAGNN_BP,
    "lsms": LSMS,
    "pyg": PYG,
    "sdf": SDF,
    "smiles": SMILES,
    "table": TABLE,
}

_BY_SUFFIX = {
    ".xyz": "extxyz",
    ".extxyz": "extxyz",
    ".csv": "table",
    ".db": "database",
    **dict.fromkeys(LMDB, "database"),
    ".sdf": "sdf",
    ".mol": "sdf",
    ".smi": "smiles",
    ".smiles": "smiles",
    ".pt": "pyg",
}
"""Names of readers by suffix, after that of a compression is removed."""

_DATABASE = re.compile(rb'\s*\{\s*"(\d+|ids|nextid)"\s*:')
"""Beginning of a JSON database of ASE."""


def reader_of(source: Source, name: str | None) -> Reader:
    """Return the reader of a source.

    Without a name, a folder is recognised by its files and a file by its suffix, JSON also by its
    beginning, and SMILES in CSV by the name of a column. ASE reads all other files. LSMS text is
    read only where ``name`` says so.

    Args:
        source: file or folder to read.
        name: name of the reader in ``READERS``; None recognises it.

    Raises:
        ConfigError: there is no reader of this name.
    """
    path = source.path
    if name is None and source.format is not None:
        name = "sdf" if source.format in MOLFILES else "ase_file"
    if name is not None:
        if name not in READERS:
            raise ConfigError(f"{path}: {unknown('reader', name, READERS)}")
        return READERS[name]
    if path.is_dir():
        return READERS[_of_folder(path)]
    inner = path.with_suffix("") if path.suffix.lower() in OPENERS else path
    if inner.suffix.lower() == ".json":
        return READERS["database" if _is_database(path) else "table"]
    if inner.suffix.lower() == ".csv" and names_smiles(source):
        return READERS["smiles"]
    return READERS[_BY_SUFFIX.get(inner.suffix.lower(), "ase_file")]


def is_single_structure(source: Source, name: str | None) -> bool:
    """Check whether a file holds at most one structure, also where it cannot be read.

    Args:
        source: file or folder.
        name: name of the reader, see ``reader_of``.
    """
    reader = reader_of(source, name)
    if reader is READERS["extxyz"]:
        return has_one_frame(source.path)
    return reader in (READERS["ase_file"], SDF) and holds_one_structure(source)


def _of_folder(path: Path) -> str:
    if is_hydragnn_bp(path):
        return "hydragnn_bp"
    if holds_lmdb(path):
        return "database"
    return "cfg" if holds_cfg(path) and not (path / ID_PROP).exists() else "folder"


def _is_database(path: Path) -> bool:
    """Check whether a JSON file is a database of ASE; return False for an unreadable file."""
    if path.suffix.lower() in OPENERS:
        return False
    try:
        with path.open("rb") as file:
            return bool(_DATABASE.match(file.read(4096)))
    except OSError:
        return False
