"""Files of graphs: HydraGNN's ADIOS2 layout, PyG's lists; and SMILES."""

import shutil
from pathlib import Path

import adios2
import numpy as np
import pytest
import torch
from structure_files import write_as_hydragnn
from torch_geometric.data import Data, InMemoryDataset

from hydragnn_hpo.data.readers import reader_of
from hydragnn_hpo.data.readers.source import Source
from hydragnn_hpo.errors import ConfigError, DataError

WATER = {
    "pos": np.array([[0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]]),
    "x": np.array([[8, 0.5, -0.8], [1, 0.1, 0.4], [1, 0.2, 0.4]]),
    "energy": np.array([-76.4]),
    "forces": np.arange(9.0).reshape(3, 3),
    "y": np.array([[-76.4], [0.1], [0.2], [0.3]]),
    "y_loc": np.array([[0, 1, 4]]),
    "edge_index": np.array([[0, 1], [1, 0]]),
    "cell": np.zeros((3, 3)),
    "pbc": np.zeros(3, dtype=bool),
    "smiles": np.frombuffer(b"O", dtype=np.uint8),
}
SALT = {
    "pos": np.array([[0, 0, 0], [2.8, 0, 0]], dtype=float),
    "x": np.array([[11.0, 1, 1], [17, 2, -1]]),
    "energy": np.array([-3.5]),
    "forces": np.ones((2, 3)),
    "y": np.array([[-3.5], [1.0], [2.0]]),
    "y_loc": np.array([[0, 1, 3]]),
    "edge_index": np.array([[0, 1, 0, 1], [1, 0, 1, 0]]),
    "cell": 5.6 * np.eye(3),
    "pbc": np.ones(3, dtype=bool),
    "smiles": np.frombuffer(b"[Na+].[Cl-]", dtype=np.uint8),
}


@pytest.fixture
def bp(tmp_path: Path) -> Path:
    path = tmp_path / "old.bp"
    sets = {"testset": [SALT], "trainset": [WATER, SALT, WATER], "valset": [WATER]}
    write_as_hydragnn(path, sets)
    return path


def read(path: Path, start: int = 0, stop: int | None = None, **more: object) -> list:
    source = Source(path, **more)
    return list(reader_of(source, None).read(source, start, stop))


def test_a_file_of_hydragnn_gives_its_graphs(bp: Path) -> None:
    source = Source(bp)
    assert reader_of(source, None).count(source) == 5
    results = read(bp)
    labels = ["trainset@0", "trainset@1", "trainset@2", "valset@0", "testset@0"]
    assert [name for name, _ in results] == [f"old.bp:{label}" for label in labels]
    splits = [atoms.info["split"] for _, atoms in results]
    assert splits == ["train", "train", "train", "val", "test"]
    truths = [WATER, SALT, WATER, WATER, SALT]
    for (_, atoms), truth in zip(results, truths, strict=True):
        assert atoms.numbers.tolist() == truth["x"][:, 0].tolist()
        np.testing.assert_array_equal(atoms.positions, truth["pos"])
        np.testing.assert_array_equal(atoms.cell.array, truth["cell"])
        assert atoms.pbc.tolist() == truth["pbc"].tolist()
        assert atoms.info["energy"] == truth["energy"][0]
        np.testing.assert_array_equal(atoms.arrays["forces"], truth["forces"])
        np.testing.assert_array_equal(atoms.arrays["x_2"], truth["x"][:, 2])
        assert atoms.info["y_0"] == truth["y"][0, 0]
        np.testing.assert_array_equal(atoms.arrays["y_1"], truth["y"][1:, 0])
        assert atoms.info["smiles"] == truth["smiles"].tobytes().decode()


@pytest.mark.parametrize("name", ["md.idx", "md.0", "data.0"])
def test_a_file_without_a_part_is_refused(bp: Path, name: str) -> None:
    (bp / name).write_bytes(b"")
    if name == "md.idx":
        with pytest.raises(DataError, match=f"old.bp: .*{name} is missing or empty"):
            read(bp)
    (bp / name).unlink()
    source = Source(bp)
    reader = reader_of(source, "hydragnn_bp")
    with pytest.raises(DataError, match=f"old.bp: .*{name} is missing or empty"):
        reader.count(source)


@pytest.mark.slow
def test_another_adios_file_is_refused(tmp_path: Path) -> None:
    with adios2.Stream(str(tmp_path / "x.bp"), "w") as stream:
        stream.write("a", np.ones(3), [3], [0], [3])
    with pytest.raises(DataError, match=r"x.bp: is no file of HydraGNN"):
        read(tmp_path / "x.bp")


@pytest.mark.slow
def test_a_bad_graph_does_not_stop_the_others(tmp_path: Path) -> None:
    bad = {**SALT, "x": np.array([[0.5, 1, 1], [17, 2, -1]])}
    write_as_hydragnn(tmp_path / "b.bp", {"trainset": [WATER, bad, SALT]})
    result = read(tmp_path / "b.bp")
    assert isinstance(result[1][1], DataError)
    assert "structure 1 of trainset: the first column of 'x' does not hold" in str(result[1][1])
    assert [len(atoms) for _, atoms in (result[0], result[2])] == [3, 2]


def data(**changes: object) -> Data:
    values = {
        "z": torch.tensor([8, 1, 1]),
        "pos": torch.tensor(WATER["pos"], dtype=torch.float32),
        "y": torch.tensor([[-76.4]], dtype=torch.float64),
        "charge": torch.tensor([-0.8, 0.4, 0.4]),
        "edge_index": torch.tensor([[0, 1], [1, 0]]),
        "name": "water",
    }
    return Data(**{**values, **changes})


class Kept(InMemoryDataset):
    def __init__(self, root: Path, entries: list[Data]) -> None:
        super().__init__(str(root))
        self.save(entries, str(root / "kept.pt"))


def test_collated_lists_of_data_are_read(tmp_path: Path) -> None:
    entries = [data(), data(z=torch.tensor([8, 1, 6]), y=torch.tensor([[1.0]]).double())]
    Kept(tmp_path, entries)
    source = Source(tmp_path / "kept.pt")
    assert reader_of(source, None).count(source) == 2
    (_, one), (name, two) = read(tmp_path / "kept.pt")
    assert name == "kept.pt@1"
    assert two.numbers.tolist() == [8, 1, 6]
    np.testing.assert_allclose(one.positions, WATER["pos"], atol=1e-6)
    assert one.info["y"] == -76.4
    assert one.info["name"] == "water"
    np.testing.assert_allclose(one.arrays["charge"], [-0.8, 0.4, 0.4], atol=1e-6)
    assert not one.pbc.any()
    assert [n for n, _ in read(tmp_path / "kept.pt", 1, 2)] == ["kept.pt@1"]


class Evil:
    def __reduce__(self):
        return (print, ("run",))


def test_nothing_that_a_file_names_is_run(tmp_path: Path, capsys) -> None:
    torch.save([Evil()], tmp_path / "evil.pt")
    with pytest.raises(DataError, match=r"evil.pt: cannot be read .*must not be run"):
        read(tmp_path / "evil.pt")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("content", [[], {"a": 1}, [1, 2]])
def test_other_content_is_refused(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(DataError, match="holds no structure|is no list of PyG Data"):
        read(tmp_path / "other.pt")


def test_smiles_become_molecules(tmp_path: Path) -> None:
    (tmp_path / "m.smi").write_text("CCO ethanol\nc1ccccc1\n[NH4+] ammonium\n[CH3] methyl\n")
    source = Source(tmp_path / "m.smi")
    assert reader_of(source, None).count(source) == 4
    results = dict(read(tmp_path / "m.smi"))
    assert list(results) == ["ethanol", "m.smi@1", "ammonium", "methyl"]
    formulas = [atoms.get_chemical_formula() for atoms in results.values()]
    assert formulas == ["C2H6O", "C6H6", "H4N", "CH3"]
    assert [atoms.info["charge"] for atoms in results.values()] == [0, 0, 1, 0]
    assert [atoms.info["spin"] for atoms in results.values()] == [0, 0, 0, 1]
    # Benzene: six C-C of about 1.39, six C-H of about 1.08 angstrom, planar.
    benzene = results["m.smi@1"]
    distances = benzene.get_all_distances()[:6, :6]
    nearest = np.sort(distances, axis=1)[:, 1:3]
    np.testing.assert_allclose(nearest, 1.39, atol=0.03)
    assert np.linalg.svd(benzene.positions - benzene.positions.mean(axis=0))[1][2] < 0.1


def test_a_smiles_has_one_conformer(tmp_path: Path) -> None:
    (tmp_path / "a.smi").write_text("CCCO\nCCN\n")
    (tmp_path / "b.smi").write_text("CCN\nO\nCCCO\n")
    first = read(tmp_path / "a.smi")
    second = read(tmp_path / "b.smi")
    np.testing.assert_array_equal(first[0][1].positions, second[2][1].positions)
    np.testing.assert_array_equal(first[1][1].positions, second[0][1].positions)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["md.0", "data.0"])
def test_a_truncated_file_of_hydragnn_does_not_hang(bp: Path, file: str, monkeypatch) -> None:
    # ADIOS2 hangs or fails, as it likes: it is given a moment in a process of its own.
    monkeypatch.setattr("hydragnn_hpo.data.readers.hydragnn_bp._OPEN_SECONDS", 2.0)
    whole = (bp / file).read_bytes()
    (bp / file).write_bytes(whole[: len(whole) // 2])
    source = Source(bp)
    with pytest.raises(DataError, match=r"old.bp: cannot be read"):
        reader_of(source, None).count(source)
    with pytest.raises(DataError, match=r"old.bp: cannot be read"):
        list(reader_of(source, None).read(source, 0, None))
    shutil.rmtree(bp)


BAD_DATA = {
    "cell of four numbers": {"z": [1], "pos": [[0, 0, 0]], "cell": [1.0, 0, 0, 1]},
    "no positions": {"z": [1]},
    "no atoms": {"z": [], "pos": np.zeros((0, 3)), "y": [1.0], "y_loc": [0, 1]},
    "empty y_loc": {"z": [1], "pos": [[0, 0, 0]], "y": [1.0], "y_loc": []},
    "x without columns": {"x": np.zeros((1, 0)), "pos": [[0, 0, 0]]},
    "positions in two dimensions": {"z": [1], "pos": [[0, 0]]},
}


@pytest.mark.parametrize("values", BAD_DATA.values(), ids=BAD_DATA)
def test_a_bad_graph_leaves_the_others_alone(values: dict, tmp_path: Path) -> None:
    bad = Data(**{name: torch.tensor(np.array(value)) for name, value in values.items()})
    good = Data(z=torch.tensor([1]), pos=torch.zeros(1, 3))
    torch.save([good, bad, good], tmp_path / "list.pt")
    results = read(tmp_path / "list.pt")
    assert [isinstance(item, DataError) for _, item in results] == [False, True, False]
    assert f"{tmp_path}/list.pt: structure 1" in str(results[1][1])


def test_a_file_of_pyg_is_loaded_once_for_all_its_pieces(tmp_path: Path, monkeypatch) -> None:
    torch.save([Data(z=torch.tensor([1]), pos=torch.zeros(1, 3))] * 6, tmp_path / "list.pt")
    loads = []
    load = torch.load
    monkeypatch.setattr(torch, "load", lambda *a, **k: loads.append(1) or load(*a, **k))
    assert [len(read(tmp_path / "list.pt", at, at + 2)) for at in (0, 2, 4)] == [2, 2, 2]
    assert len(loads) == 1


def test_a_table_of_smiles_loses_no_row_in_silence(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("smiles,logp\nCO,0.5\nO,1,2\nnonsense(,\nC,1.5\n")
    source = Source(table)
    results = [item for _, item in reader_of(source, "smiles").read(source, 0, None)]
    assert [isinstance(item, DataError) for item in results] == [False, True, True, False]
    assert "t.csv: structure 1 has 3 columns instead of 2" in str(results[1])
    assert "structure 2 (nonsense() is no valid SMILES" in str(results[2])
    assert (results[0].info["logp"], results[3].info["logp"]) == (0.5, 1.5)
    wrong = Source(table, structure_column="smile")
    with pytest.raises(ConfigError, match="unknown column 'smile'. Did you mean 'smiles'"):
        list(reader_of(source, "smiles").read(wrong, 0, None))
    table.write_text('smiles,logp\nCO,0.5\n"O,1\nC,0.1\n')
    with pytest.raises(DataError, match=r"t.csv: is not a CSV file \(unexpected end of data\)"):
        reader_of(source, "smiles").count(source)
