"""Readers of structures: a plain dict, and the choice by what a path is."""

from hydragnn_hpo.data.readers.ase_file import read_ase_file
from hydragnn_hpo.data.readers.extxyz import count_extxyz, read_extxyz
from hydragnn_hpo.data.readers.folder import read_folder
from hydragnn_hpo.data.readers.hydragnn_bp import HYDRAGNN_BP, is_hydragnn_bp
from hydragnn_hpo.data.readers.pyg import PYG
from hydragnn_hpo.data.readers.smiles import SMILES
from hydragnn_hpo.data.readers.source import OPENERS, Reader, Source, in_one_piece
from hydragnn_hpo.data.readers.table import read_table
from hydragnn_hpo.errors import ConfigError, unknown

READERS: dict[str, Reader] = {
    "ase_file": in_one_piece(read_ase_file),
    "extxyz": Reader(count_extxyz, read_extxyz),
    "folder": in_one_piece(read_folder),
    "hydragnn_bp": HYDRAGNN_BP,
    "pyg": PYG,
    "smiles": SMILES,
    "table": in_one_piece(read_table),
}

_BY_SUFFIX = {
    ".xyz": "extxyz",
    ".extxyz": "extxyz",
    ".csv": "table",
    ".smi": "smiles",
    ".smiles": "smiles",
    ".pt": "pyg",
}
"""Readers by the suffix that is left when that of a compression is taken away."""


def reader_of(source: Source, name: str | None) -> Reader:
    """Choose by name or, without one, by what the path is.

    A folder, a file with one of the suffixes above, or anything else that ASE reads.

    Raises:
        ConfigError: there is no reader of this name.
    """
    path = source.path
    if name is not None:
        if name not in READERS:
            raise ConfigError(f"{path}: {unknown('reader', name, READERS)}")
        return READERS[name]
    if path.is_dir():
        return READERS["hydragnn_bp" if is_hydragnn_bp(path) else "folder"]
    inner = path.with_suffix("") if path.suffix.lower() in OPENERS else path
    return READERS[_BY_SUFFIX.get(inner.suffix.lower(), "ase_file")]
