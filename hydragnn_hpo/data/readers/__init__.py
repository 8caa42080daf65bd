"""Readers of structures: a plain dict, and the choice by what a path is."""

from pathlib import Path

from hydragnn_hpo.data.readers.ase_file import read_ase_file
from hydragnn_hpo.data.readers.folder import read_folder
from hydragnn_hpo.data.readers.source import Reader
from hydragnn_hpo.data.readers.table import read_table

READERS: dict[str, Reader] = {
    "ase_file": read_ase_file,
    "folder": read_folder,
    "table": read_table,
}


def reader_of(path: Path) -> Reader:
    """Choose by what the path is: a folder, a CSV file, or anything ASE reads."""
    if path.is_dir():
        return READERS["folder"]
    is_table = ".csv" in [suffix.lower() for suffix in path.suffixes[-2:]]
    return READERS["table" if is_table else "ase_file"]
