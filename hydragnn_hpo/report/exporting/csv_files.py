"""CSV: ``trials.csv`` and ``epochs.csv``; units stand in the titles.

Numbers are written with all their digits, what is not known as nothing at all.
"""

import csv
import io
from pathlib import Path
from typing import Any

from hydragnn_hpo.files import whole_folder, write_bytes
from hydragnn_hpo.report.exporting.tables import Table, tables_of
from hydragnn_hpo.report.exporting.written import Written
from hydragnn_hpo.report.facts import Facts

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a table program takes for the beginning of a formula.

Source: OWASP, CSV Injection, https://owasp.org/www-community/attacks/CSV_Injection, 2026-11-22.
"""


def write(facts: Facts, out: Path) -> Written:
    """Write both tables into a new folder."""
    tables = tables_of(facts)
    with whole_folder(out) as folder:
        for name, table in tables.items():
            write_bytes(folder / f"{name}.csv", _encoded(table))
    return Written(
        files=tuple(out / f"{name}.csv" for name in tables),
        trials=len(tables["trials"][0].values),
        epochs=len(tables["epochs"][0].values),
        open_with=f"pandas.read_csv({str(out / 'trials.csv')!r})",
    )


def _encoded(table: Table) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_cell(column.title) for column in table])
    columns = [[_cell(value) for value in column.values] for column in table]
    writer.writerows(zip(*columns, strict=True))
    return text.getvalue().encode()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value if value.startswith(_FORMULA) else value
    return repr(value)
