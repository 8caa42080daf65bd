"""Parquet: ``trials.parquet`` and ``epochs.parquet``.

Units stand in the titles, as in CSV, and in each field's metadata; the file's own metadata says
which campaign it is.
"""

import json
from pathlib import Path
from typing import Any

from hydragnn_hpo import __version__
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.files import whole_file, whole_folder
from hydragnn_hpo.report.exporting.tables import Table, tables_of
from hydragnn_hpo.report.exporting.written import Written
from hydragnn_hpo.report.facts import Facts

_TYPES = {"text": "string", "whole": "int64", "real": "float64", "truth": "bool_"}


def write(facts: Facts, out: Path) -> Written:
    """Write both tables into a new folder.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            "--to parquet needs a package that is not installed: "
            "pip install 'hydragnn-hpo[parquet]', or take --to csv."
        ) from error
    tables = tables_of(facts)
    about = {"campaign": facts.config.name, "program": f"hydragnn-hpo {__version__}"}
    with whole_folder(out) as folder:
        for name, table in tables.items():
            made = _arrow(pyarrow, table, about)
            with whole_file(folder / f"{name}.parquet") as file:
                pyarrow.parquet.write_table(made, file)
    return Written(
        files=tuple(out / f"{name}.parquet" for name in tables),
        trials=len(tables["trials"][0].values),
        epochs=len(tables["epochs"][0].values),
        open_with=f"pandas.read_parquet({str(out / 'trials.parquet')!r})",
    )


def _arrow(arrow: Any, table: Table, about: dict[str, str]) -> Any:
    fields, columns = [], []
    for column in table:
        kind = getattr(arrow, _TYPES[column.kind])()
        unit = {"unit": column.unit} if column.unit else None
        fields.append(arrow.field(column.title, kind, metadata=unit))
        columns.append(arrow.array(column.values, kind))
    return arrow.table(columns, schema=arrow.schema(fields, {"hydragnn_hpo": json.dumps(about)}))
