"""Predictions in files: a family of formats, chosen by the name's ending."""

from hydragnn_hpo.ensemble.output.formats import FORMATS, Format, format_of
from hydragnn_hpo.ensemble.output.layout import Layout, Rows, rows_of

__all__ = ["FORMATS", "Format", "Layout", "Rows", "format_of", "rows_of"]
