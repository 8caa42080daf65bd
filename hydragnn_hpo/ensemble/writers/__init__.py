"""The family of output formats."""

from hydragnn_hpo.ensemble.predict_output import Writer
from hydragnn_hpo.ensemble.writers.bp import BpWriter
from hydragnn_hpo.ensemble.writers.csv import CsvWriter
from hydragnn_hpo.ensemble.writers.extxyz import ExtxyzWriter
from hydragnn_hpo.ensemble.writers.json import JsonLinesWriter, JsonWriter
from hydragnn_hpo.ensemble.writers.parquet import ParquetWriter

WRITERS: dict[str, type[Writer]] = {
    ".csv": CsvWriter,
    ".parquet": ParquetWriter,
    ".extxyz": ExtxyzWriter,
    ".xyz": ExtxyzWriter,
    ".json": JsonWriter,
    ".jsonl": JsonLinesWriter,
    ".bp": BpWriter,
}
"""By the suffix of the output."""
