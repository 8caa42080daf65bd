"""A CSV file with a header and a structure column: a path, or the text of a CIF."""

import io
from collections.abc import Iterator
from pathlib import Path

from ase import Atoms

from hydragnn_hpo.data.readers.ase_file import single, single_structure, structures_in
from hydragnn_hpo.data.readers.source import Source, read_rows, value_of
from hydragnn_hpo.errors import ConfigError, DataError, unknown


def read_table(source: Source) -> Iterator[tuple[str, Atoms]]:
    """Read one structure per line; all other columns become ``atoms.info``.

    Raises:
        ConfigError: the structure column is not set, or not in the file.
        DataError: a line is too short or its structure unreadable.
    """
    path, column = source.path, source.structure_column
    header, *body = read_rows(path)
    if column is None:
        raise ConfigError(
            f"{path}: is a table: name the column with the structures as structure_column in the "
            f"card (columns: {', '.join(header)})."
        )
    if column not in header:
        raise ConfigError(f"{path}: {unknown('column', column, header)}")
    if not body:
        raise DataError(f"{path}: holds no structure; get the file again.")
    for number, row in enumerate(body, start=1):
        if len(row) != len(header):
            raise DataError(
                f"{path}: structure {number} has {len(row)} columns instead of {len(header)}; "
                "mend the line."
            )
        cells = dict(zip(header, row, strict=True))
        atoms = _structure(cells.pop(column), path, number)
        atoms.info.update({key: value_of(cell) for key, cell in cells.items() if cell})
        yield f"{path.name}:{number}", atoms


def _structure(cell: str, path: Path, number: int) -> Atoms:
    """Read a cell: text of several lines is a CIF, one line is a path beside the table."""
    if "\n" in cell:
        place = f"{path}: the CIF text of structure {number}"
        return single(structures_in(io.StringIO(cell + "\n"), "cif", place), place)
    file = path.parent / cell
    if not cell or not file.is_file():
        raise DataError(
            f"{path}: structure {number} names the file '{cell}', which is not there; "
            "mend the line or add the file."
        )
    return single_structure(file)
