"""The family of output formats."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from hydragnn_hpo.ensemble.predict_output import OutputColumns, PredictedRows
from hydragnn_hpo.ensemble.writers.bp import BpWriter
from hydragnn_hpo.ensemble.writers.csv import CsvWriter
from hydragnn_hpo.ensemble.writers.extxyz import ExtxyzWriter
from hydragnn_hpo.ensemble.writers.json import JsonLinesWriter, JsonWriter
from hydragnn_hpo.ensemble.writers.parquet import ParquetWriter
from hydragnn_hpo.errors import ConfigError


class Writer(Protocol):
    """Writes a chunk's share of each file, and joins the shares of all chunks.

    ``part`` may run anywhere and any time; the bytes depend on the rows alone.
    """

    def part(self, some: Sequence[PredictedRows]) -> dict[str, bytes]:
        """Return the shares of some structures, by what is put behind the name of the output."""

    def join(self, shares: Callable[[], Iterator[dict[str, bytes]]], out: Path) -> list[Path]:
        """Write each file whole or not at all, and return their paths, the main one first.

        Args:
            shares: reads the shares of all chunks in order, as often as it is called.
            out: path of the main file.
        """


WRITERS: dict[str, Callable[[OutputColumns], Writer]] = {
    ".csv": CsvWriter,
    ".parquet": ParquetWriter,
    ".extxyz": ExtxyzWriter,
    ".xyz": ExtxyzWriter,
    ".json": JsonWriter,
    ".jsonl": JsonLinesWriter,
    ".bp": BpWriter,
}
"""By the suffix of the output."""


def make_writer(out: Path, layout: OutputColumns) -> Writer:
    """Choose by the output's suffix.

    Raises:
        ConfigError: it is not known, or needs a package that is not installed.
    """
    if out.suffix not in WRITERS:
        raise ConfigError(f"{out}: cannot tell the format; end it in {', '.join(WRITERS)}.")
    return WRITERS[out.suffix](layout)
