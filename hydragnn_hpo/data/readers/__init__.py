"""Readers of structures by name, and the choice of one for a path."""

from pathlib import Path

from hydragnn_hpo.data.readers.arrays import ARRAYS, is_deepmd
from hydragnn_hpo.data.readers.ase_file import (
    holds_one_structure,
    read_ase_file,
    read_stated_units,
)
from hydragnn_hpo.data.readers.database import DATABASE, LMDB, holds_lmdb
from hydragnn_hpo.data.readers.extxyz import count_extxyz, has_one_frame, read_extxyz
from hydragnn_hpo.data.readers.folder import FOLDER
from hydragnn_hpo.data.readers.folder import TABLE as ID_PROP
from hydragnn_hpo.data.readers.formats import recognize
from hydragnn_hpo.data.readers.hydragnn_bp import HYDRAGNN_BP, is_hydragnn_bp
from hydragnn_hpo.data.readers.pyg import PYG
from hydragnn_hpo.data.readers.sdf import MOLFILES, SDF
from hydragnn_hpo.data.readers.smiles import SMILES, names_smiles
from hydragnn_hpo.data.readers.source import (
    OPENERS,
    TABLE_SUFFIXES,
    Reader,
    Source,
    in_one_piece,
)
from hydragnn_hpo.data.readers.structure_columns import JSON_SUFFIXES
from hydragnn_hpo.data.readers.table import TABLE
from hydragnn_hpo.data.readers.text_folder import CFG, LSMS, holds_cfg
from hydragnn_hpo.errors import ConfigError, unknown

READERS: dict[str, Reader] = {
    "arrays": ARRAYS,
    "ase_file": in_one_piece(
        read_ase_file, frozenset({"format", "length"}), read_units=read_stated_units
    ),
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
    **dict.fromkeys(TABLE_SUFFIXES, "table"),
    **dict.fromkeys(JSON_SUFFIXES, "table"),
    ".db": "database",
    **dict.fromkeys(LMDB, "database"),
    ".sdf": "sdf",
    ".mol": "sdf",
    ".smi": "smiles",
    ".smiles": "smiles",
    ".pt": "pyg",
}
"""Names of readers by suffix, after that of a compression is removed."""


def reader_of(source: Source, name: str | None) -> Reader:
    """Return the reader of a source.

    Without a name, a folder is recognised by its files and a file by its content, else by its
    suffix, and SMILES in tables by their column. ASE reads all other files. LSMS text is read only
    where ``name`` says so.

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
    named = _BY_SUFFIX.get(inner.suffix.lower())
    if named != "pyg" and (form := recognize(path)) is not None:
        return READERS[form.reader]
    if inner.suffix.lower() in TABLE_SUFFIXES and names_smiles(source):
        return READERS["smiles"]
    return READERS[named or "ase_file"]


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


_WHOLE = (
    ("hydragnn_bp", is_hydragnn_bp),
    ("database", holds_lmdb),
    ("arrays", is_deepmd),
    ("cfg", lambda path: holds_cfg(path) and not (path / ID_PROP).exists()),
)
"""Readers of whole folders, and checks whether a folder is one for them; the first is taken."""


def reads_whole(folder: Path) -> bool:
    """Check whether one reader reads a folder as a whole, without a table in it."""
    return _of_folder(folder) != "folder"


def _of_folder(path: Path) -> str:
    return next((name for name, fits in _WHOLE if fits(path)), "folder")
