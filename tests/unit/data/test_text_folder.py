"""LSMS text and CFG folders: where numbers are sought, and what is said when they are not there."""

import re
from pathlib import Path

import numpy as np
import pytest
from ase.build import bulk
from ase.io import write

from hydragnn_hpo.data.readers import READERS
from hydragnn_hpo.data.readers.source import Source
from hydragnn_hpo.errors import ConfigError, DataError

CELL = ((2.8, 0.0, 0.0), (0.0, 2.8, 0.0), (0.0, 0.0, 3.7))
# Iron and platinum: energy, charge, moment; protons, number, x, y, z, charge density, moment.
TEXT = "-1.5 0.0 3.0\n26 0 0 0 0 25.9 2.9\n78 1 1.4 1.4 1.85 78.1 0.3\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "fept"
    path.mkdir()
    (path / "a.txt").write_text(TEXT)
    return path


def only(source: Source, reader: str = "lsms"):
    [(_, item)] = READERS[reader].read(source, 0, None)
    if isinstance(item, DataError):
        raise item
    return item


def test_the_first_line_holds_the_targets_in_the_order_of_the_card(folder: Path) -> None:
    for names in (("energy", "total_charge"), ("total_charge", "energy")):
        atoms = only(Source(folder, names, cell=CELL))
        assert atoms.info == dict(zip(names, (-1.5, 0.0), strict=True))


def test_the_card_may_say_where_things_are(folder: Path) -> None:
    columns = {"moment": 2, "spin": 6}
    atoms = only(Source(folder, ("moment",), cell=CELL, columns=columns))
    assert atoms.info == {"moment": 3.0}
    assert atoms.arrays["spin"].tolist() == [2.9, 0.3]
    assert atoms.arrays["charge_density"].tolist() == [25.9, 78.1]
    assert atoms.cell.array.tolist() == [list(vector) for vector in CELL]


@pytest.mark.parametrize(
    ("text", "columns", "says"),
    [
        (TEXT, {"spin": 9}, "line 2 has 7 columns, column 9 is wanted"),
        (TEXT, {"energy": 3}, "its first line has 3 columns, 'energy' is sought in column 3"),
        (TEXT, {"number": 5}, "column 5 does not hold atomic numbers (found [25.9, 78.1])"),
        (TEXT.replace("1.4", "x"), {}, "has a line of an atom with could not convert"),
        (TEXT.replace("-1.5", "low"), {}, "has a first line with could not convert"),
        ("-1.5\n", {}, "column 0 does not hold atomic numbers (found [])"),
    ],
)
def test_what_is_wrong_is_reported(folder: Path, text: str, columns: dict, says: str) -> None:
    (folder / "a.txt").write_text(text)
    with pytest.raises(DataError, match=f"a.txt: {re.escape(says)}"):
        only(Source(folder, ("energy",), cell=CELL, columns=columns))


def test_a_lattice_must_come_from_the_card(folder: Path) -> None:
    with pytest.raises(ConfigError, match="LSMS text has no lattice: give cell"):
        only(Source(folder, ("energy",)))
    atoms = only(Source(folder, ("energy",), pbc=(False, False, False)))
    assert not atoms.pbc.any()


def test_forces_of_a_cfg_are_a_vector_too(tmp_path: Path) -> None:
    atoms = bulk("Cu", cubic=True)
    for number, axis in enumerate("xyz"):
        atoms.arrays[f"f{axis}"] = np.arange(4.0) + number
    write(tmp_path / "a.cfg", atoms)
    (tmp_path / "a.bulk").write_text("7.0 140.0\n")
    result = only(Source(tmp_path, ("bulk_modulus",), columns={"bulk_modulus": 1}), "cfg")
    assert result.info["bulk_modulus"] == 140.0
    np.testing.assert_allclose(result.arrays["forces"][3], [3.0, 4.0, 5.0])
