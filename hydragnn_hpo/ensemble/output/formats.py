"""The family of output formats."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from hydragnn_hpo.ensemble.output.bp_file import BpFile
from hydragnn_hpo.ensemble.output.csv_file import CsvFile
from hydragnn_hpo.ensemble.output.extxyz_file import ExtxyzFile
from hydragnn_hpo.ensemble.output.json_file import JsonFile, JsonLines
from hydragnn_hpo.ensemble.output.layout import Layout, Rows
from hydragnn_hpo.ensemble.output.parquet_file import ParquetFile
from hydragnn_hpo.errors import ConfigError


class Format(Protocol):
    """Writes a piece's share of each file, and joins the shares of all pieces.

    ``part`` may run anywhere and any time; the bytes depend on the rows alone.
    """

    def part(self, some: Sequence[Rows]) -> dict[str, bytes]:
        """Give the shares of some structures, by what is put behind the name of the output."""

    def join(self, shares: Callable[[], Iterator[dict[str, bytes]]], out: Path) -> list[Path]:
        """Write each file whole or not at all, and give their paths, the main one first.

        Args:
            shares: gives the shares of all pieces in order, as often as it is asked.
            out: path of the main file.
        """


FORMATS: dict[str, Callable[[Layout], Format]] = {
    ".csv": CsvFile,
    ".parquet": ParquetFile,
    ".extxyz": ExtxyzFile,
    ".xyz": ExtxyzFile,
    ".json": JsonFile,
    ".jsonl": JsonLines,
    ".bp": BpFile,
}
"""By the suffix of the output."""


def format_of(out: Path, layout: Layout) -> Format:
    """Choose by the output's suffix.

    Raises:
        ConfigError: it is not known, or needs a package that is not installed.
    """
    if out.suffix not in FORMATS:
        raise ConfigError(f"{out}: cannot tell the format; end it in {', '.join(FORMATS)}.")
    return FORMATS[out.suffix](layout)
