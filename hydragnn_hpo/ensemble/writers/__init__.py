"""The family of output formats: one writer per file, and a dict of them by suffix."""

from hydragnn_hpo.ensemble.predict_output import OutputFormat, Writer
from hydragnn_hpo.ensemble.writers.bp_writer import BpWriter
from hydragnn_hpo.ensemble.writers.csv_writer import CsvWriter
from hydragnn_hpo.ensemble.writers.extxyz_writer import ExtxyzWriter
from hydragnn_hpo.ensemble.writers.json_writer import JsonLinesWriter, JsonWriter
from hydragnn_hpo.ensemble.writers.parquet_writer import ParquetWriter

WRITERS: dict[str, type[Writer]] = {
    OutputFormat.CSV: CsvWriter,
    OutputFormat.PARQUET: ParquetWriter,
    OutputFormat.EXTXYZ: ExtxyzWriter,
    OutputFormat.XYZ: ExtxyzWriter,
    OutputFormat.JSON: JsonWriter,
    OutputFormat.JSON_LINES: JsonLinesWriter,
    OutputFormat.BP: BpWriter,
}
"""Writer of each format, by the suffix of the output."""
