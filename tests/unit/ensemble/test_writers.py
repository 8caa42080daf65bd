"""Predictions written down and read back by others: csv, pyarrow, ASE, adios2, json."""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase.io import read

from hydragnn_hpo.data.columns import Graph, columns_of
from hydragnn_hpo.ensemble.artefact import CreatedBy, HeadEntry, Manifest, MemberEntry, Provenance
from hydragnn_hpo.ensemble.predict_file import make_writer
from hydragnn_hpo.ensemble.predict_output import OutputColumns, make_rows
from hydragnn_hpo.ensemble.prediction import HeadPrediction, Prediction
from hydragnn_hpo.ensemble.structure_batches import Structures
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.uncertainty.calibrate import Calibration

CALIBRATION = Calibration(1.0, 0.1, {"0.5": 0.5, "0.9": 1.5}, 1.0, 10, 10)
HEADS = {
    "energy": ("graph", "scalar", "eV/atom"),
    "dipole": ("graph", "vector", "angstrom"),
    "charge": ("node", "scalar", "e"),
}
WIDTHS = {"scalar": 1, "vector": 3}
ENERGY = ["energy", "energy_std", "energy_std_epistemic", "energy_lo90", "energy_hi90"]
DIPOLE = [
    *("dipole_x", "dipole_y", "dipole_z", "dipole_std", "dipole_std_epistemic"),
    *("dipole_lo90_x", "dipole_lo90_y", "dipole_lo90_z"),
    *("dipole_hi90_x", "dipole_hi90_y", "dipole_hi90_z"),
]


@pytest.fixture
def manifest():
    heads = {
        name: HeadEntry(
            level=level, shape=shape, unit=unit, mean=0.0, std=1.0, calibration=CALIBRATION
        )
        for name, (level, shape, unit) in HEADS.items()
    }
    member = MemberEntry(trial="t1", weights=dict.fromkeys(heads, 1.0), objective=1.0, val_mae={})
    return Manifest(
        package="1", created_by=CreatedBy(campaign="c", seed=1, method="top"),
        data=Provenance(name="d"), elements=(1, 8), cutoff=4.0, members=(member,), heads=heads,
    )  # fmt: skip


def graph_of(numbers: Sequence[int], cell: float = 0.0) -> Graph:
    size = len(numbers)
    return Graph(
        id="?", numbers=np.array(numbers, np.int16),
        positions=np.arange(3.0 * size).reshape(size, 3) + 0.123456789, cell=cell * np.eye(3),
        pbc=np.array([cell > 0] * 3), edges=np.zeros((2, 2), np.int32),
        edge_shift=np.zeros((2, 3), np.int16), targets={}, group="", published=None,
    )  # fmt: skip


def head(first: float, rows: int, width: int) -> HeadPrediction:
    """Number a head's values: mean first, first + 1, ...; std +0.25, and so on."""
    mean = first + np.arange(float(rows * width)).reshape(rows, width)
    one = mean[:, :1]
    return HeadPrediction(
        mean, one + 0.25, one + 0.125, mean - 2.0, mean + 2.0,
        bounds={50: (mean - 0.5, mean + 0.5)}, members={"t1": mean + 100.0},
    )  # fmt: skip


@pytest.fixture
def two_batches():
    """Water, a bad one, and an oxygen crystal; then a batch of one bad structure."""
    columns = columns_of([graph_of([8, 1, 1]), graph_of([8], cell=4.0)], {}, {"cutoff": 4.0})
    kept: tuple[dict[str, Any], ...] = ({"label": "=1+1", "gap": 2.5}, {}, {"gap": 3})
    first = Structures(columns, ("water", "=cmd|' /C calc'!A0", "o,2"), {1: "is bad"}, kept)
    heads = {"energy": head(-3.0, 2, 1), "dipole": head(10.0, 2, 3), "charge": head(0.5, 4, 1)}
    none = {name: head(0.0, 0, WIDTHS[shape]) for name, (_, shape, _) in HEADS.items()}
    empty = columns_of([], {}, {"cutoff": 4.0})
    second = Structures(empty, ("last",), {0: "is bad, too"}, ({},))
    return [
        make_rows(first, Prediction(heads, ("ok", "large spread of energy"))),
        make_rows(second, Prediction(none, ())),
    ]


@pytest.fixture
def write(manifest, two_batches, tmp_path):
    """Write the batches as two pieces, and an empty one behind."""

    def written(name: str, **options: Any) -> list[Path]:
        form = make_writer(tmp_path / name, OutputColumns(manifest, **options))
        parts = [form.part(two_batches[:1]), form.part(two_batches[1:]), form.part([])]

        def shares() -> Iterator[dict[str, bytes]]:
            return iter(parts)

        return form.join(shares, tmp_path / name)

    return written


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_atoms_have_the_row_of_their_structure_though_names_repeat(manifest, two_batches, tmp_path):
    """Four parts: a bad one; water (3 atoms), a bad one, an oxygen; nothing; the second again."""
    form = make_writer(tmp_path / "out.csv", OutputColumns(manifest))
    parts = [form.part(some) for some in (two_batches[1:], two_batches[:1], [], two_batches[:1])]
    main, nodes = form.join(lambda: iter(parts), tmp_path / "out.csv")
    structures = rows(main)
    assert [row["id"] for row in structures if not row["error"]] == ["water", "o,2"] * 2
    atoms = rows(nodes)
    assert [int(row["structure_index"]) for row in atoms] == [1, 1, 1, 3, 4, 4, 4, 6]
    assert all(structures[int(row["structure_index"])]["id"] == row["id"] for row in atoms)


def test_csv_has_a_row_per_structure_and_one_per_atom(write):
    main, nodes = write("out.csv")
    assert (main.name, nodes.name) == ("out.csv", "out.nodes.csv")
    results = rows(main)
    assert list(results[0]) == ["id", *ENERGY, *DIPOLE, "trust", "error"]
    assert [row["id"] for row in results] == ["water", "'=cmd|' /C calc'!A0", "o,2", "last"]
    assert [float(results[2][title]) for title in ENERGY] == [-2.0, -1.75, -1.875, -4.0, 0.0]
    assert [float(results[2][title]) for title in DIPOLE] == [
        *(13.0, 14.0, 15.0, 13.25, 13.125), *(11.0, 12.0, 13.0), *(15.0, 16.0, 17.0),
    ]  # fmt: skip
    assert [results[1][title] for title in (*ENERGY, *DIPOLE)] == [""] * 16
    assert [row["error"] for row in results] == ["", "is bad", "", "is bad, too"]
    assert [row["trust"] for row in results] == ["ok", "", "large spread of energy", ""]
    atoms = rows(nodes)
    assert [row["element"] for row in atoms] == ["O", "H", "H", "O"]
    assert [row["atom"] for row in atoms] == ["0", "1", "2", "0"]
    assert [row["id"] for row in atoms] == ["water"] * 3 + ["o,2"]
    assert [float(row["charge_hi90"]) for row in atoms] == [2.5, 3.5, 4.5, 5.5]


def test_other_levels_members_and_kept_keys(write):
    main, _ = write("out.csv", levels=(50, 90), members=True, keep=("label", "gap"))
    results = rows(main)
    ends = ["energy_lo50", "energy_hi50", "energy_lo90", "energy_hi90"]
    assert list(results[0])[1:9] == [*ENERGY[:3], *ends, "energy_t1"]
    assert [float(results[0][title]) for title in ends] == [-3.5, -2.5, -5.0, -1.0]
    assert float(results[0]["energy_t1"]) == 97.0
    assert [row["label"] for row in results] == ["'=1+1", "", "", ""]
    assert [row["gap"] for row in results] == ["2.5", "", "3", ""]


def test_extxyz_keeps_the_atoms_in_order(write):
    (path,) = write("out.extxyz", keep=("gap",))
    first, second = read(path, ":")
    assert first.calc is None, "a prediction per atom is not the total energy"
    assert first.info["predicted_energy"] == -3.0
    assert [first.info["id"], second.info["id"]] == ["water", "o,2"]
    assert first.info["units"] == "energy=eV/atom dipole=angstrom charge=e"
    assert (first.get_chemical_formula(), list(first.numbers)) == ("H2O", [8, 1, 1])
    np.testing.assert_allclose(first.positions, np.arange(9.0).reshape(3, 3) + 0.123456789)
    np.testing.assert_allclose(second.cell[:], 4.0 * np.eye(3))
    assert [first.pbc.any(), second.pbc.all()] == [False, True]
    assert second.info["energy_hi90"] == 0.0
    np.testing.assert_array_equal(second.info["dipole_lo90"], [11.0, 12.0, 13.0])
    assert second.info["dipole_std"] == 13.25
    np.testing.assert_array_equal(first.arrays["predicted_charge"], [0.5, 1.5, 2.5])
    np.testing.assert_array_equal(first.arrays["charge_std"], [0.75, 1.75, 2.75])
    assert [first.info["gap"], second.info["gap"]] == [2.5, 3]


def test_json_names_units_and_errors(write):
    (path,) = write("out.json", members=True, keep=("gap",))
    content = json.loads(path.read_text())
    assert content["units"] == {"energy": "eV/atom", "dipole": "angstrom", "charge": "e"}
    first, second, third, fourth = content["structures"]
    assert first["heads"]["energy"]["mean"] == -3.0
    assert third["heads"]["dipole"]["hi90"] == [15.0, 16.0, 17.0]
    assert third["heads"]["charge"]["members"] == {"t1": [103.5]}
    assert "heads" not in second
    assert [second["error"], third["error"], fourth["error"]] == ["is bad", None, "is bad, too"]
    assert [third["kept"], fourth["kept"]] == [{"gap": 3}, {}]


def test_json_lines_begin_with_what_they_mean(write):
    (path,) = write("out.jsonl")
    head, *lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert head["units"]["charge"] == "e"
    assert [line["id"] for line in lines] == ["water", "=cmd|' /C calc'!A0", "o,2", "last"]


def test_parquet_has_lists_for_atoms_and_units_for_columns(write):
    parquet = pytest.importorskip("pyarrow.parquet")
    (path,) = write("out.parquet", keep=("gap",))
    table = parquet.read_table(path)
    result = table.to_pydict()
    assert result["dipole_hi90_z"] == [14.0, None, 17.0, None]
    assert result["charge_lo90"] == [[-1.5, -0.5, 0.5], None, [1.5], None]
    assert result["numbers"] == [[8, 1, 1], None, [8], None]
    assert result["error"] == [None, "is bad", None, "is bad, too"]
    assert result["gap"] == ["2.5", None, "3", None]
    assert table.schema.field("charge_std").metadata == {b"unit": b"e"}


def test_bp_lays_all_structures_end_to_end(write):
    import adios2

    from hydragnn_hpo.data.store_parts import remove_profile

    (path,) = write("out.bp", keep=("gap",))
    with adios2.FileReader(str(path)) as file:
        result = {name: np.asarray(file.read(name)) for name in file.available_variables()}
    remove_profile(path)
    np.testing.assert_array_equal(result["energy"], [-3.0, np.nan, -2.0, np.nan])
    np.testing.assert_array_equal(result["charge"], [0.5, 1.5, 2.5, 3.5])
    np.testing.assert_array_equal(result["num_nodes"], [3, 0, 1, 0])
    assert bytes(result["error_text"]) == b"is badis bad, too"
    np.testing.assert_array_equal(result["error_size"], [0, 6, 0, 11])


def test_an_unknown_format_is_refused(manifest):
    with pytest.raises(ConfigError, match=r"new.pdf: cannot tell the format; end it in .csv"):
        make_writer(Path("new.pdf"), OutputColumns(manifest))


def with_missing(batch: Any) -> Any:
    """Let the energy of the first structure and the charge of the first atom be missing."""
    heads = dict(batch.prediction.heads)
    for name in ("energy", "charge"):
        mean = heads[name].mean.copy()
        mean[0] = np.nan
        heads[name] = replace(heads[name], mean=mean)
    return replace(batch, prediction=replace(batch.prediction, heads=heads))


def test_what_is_missing_is_empty_null_or_nan(manifest, two_batches, tmp_path):
    batches = [with_missing(two_batches[0])]

    def write_as(suffix: str) -> Path:
        writer = make_writer(tmp_path / f"out{suffix}", OutputColumns(manifest))
        share = writer.part(batches)
        return writer.join(lambda: iter([share]), tmp_path / f"out{suffix}")[0]

    first = rows(write_as(".csv"))[0]
    assert (first["energy"], first["energy_std"]) == ("", "-2.75")
    assert rows(tmp_path / "out.nodes.csv")[0]["charge"] == ""
    entry = json.loads(write_as(".jsonl").read_text().splitlines()[1])
    assert entry["heads"]["energy"]["mean"] is None
    assert entry["heads"]["charge"]["mean"] == [None, 1.5, 2.5]
    atoms = read(write_as(".extxyz"), 0)
    assert np.isnan(atoms.info["predicted_energy"])
    assert np.isnan(atoms.arrays["predicted_charge"]).tolist() == [True, False, False]
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(write_as(".parquet")).to_pydict()
    assert table["energy"] == [None, None, -2.0]
    assert table["charge"] == [[None, 1.5, 2.5], None, [3.5]]
