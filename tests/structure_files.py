"""Five crystals in a file of every format that readers know, made by hand."""

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path

import adios2
import numpy as np
import torch
from ase import Atoms
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator
from ase.db import connect
from ase.io import write
from torch_geometric.data import Data

from hydragnn_hpo.data.readers.source import Source

Make = Callable[[Path], Source]


def truths() -> list[Atoms]:
    """Five crystals with a gap each, and a charge per atom."""
    kinds = [bulk("Cu", cubic=True), bulk("NaCl", "rocksalt", a=5.6), bulk("Fe"), bulk("Si")]
    results = [*kinds, bulk("Al", cubic=True)]
    for number, atoms in enumerate(results):
        atoms.info["gap"] = number / 4
        atoms.arrays["charge"] = 0.5 + np.arange(len(atoms)) / 8
    return results


def bound_by_springs() -> Iterator[tuple[Atoms, float, np.ndarray]]:
    """Yield copper, its energy by springs of 8 eV/angstrom^2, and the gradient: minus forces."""
    random = np.random.default_rng(0)
    for _ in range(30):
        atoms = bulk("Cu", cubic=True)
        away = random.normal(0.0, 0.04, (4, 3))
        atoms.positions += away
        yield atoms, 4.0 * float((away**2).sum()), 8.0 * away


def extxyz(folder: Path) -> Source:
    write(folder / "all.extxyz", truths(), format="extxyz")
    return Source(folder / "all.extxyz", ("gap",))


def compressed(suffix: str, compress: Callable[[bytes], bytes]) -> Make:
    def make(folder: Path) -> Source:
        path = folder / f"all.extxyz.{suffix}"
        path.write_bytes(compress(extxyz(folder).path.read_bytes()))
        return Source(path, ("gap",))

    return make


def trajectory(folder: Path) -> Source:
    write(folder / "all.traj", truths())
    return Source(folder / "all.traj", ("gap",))


def folder_of_files(folder: Path) -> Source:
    lines = [f"c{n}.cif,{atoms.info['gap']}" for n, atoms in enumerate(truths())]
    for number, atoms in enumerate(truths()):
        write(folder / f"c{number}.cif", atoms)
    (folder / "id_prop.csv").write_text("\n".join(lines))
    return Source(folder, ("gap",))


def folder_with_header(folder: Path) -> Source:
    source = folder_of_files(folder)
    lines = [f"c{number},7,{atoms.info['gap']}" for number, atoms in enumerate(truths())]
    (folder / "id_prop.csv").write_text("\n".join(["file,other,gap", *lines]))
    return source


def csv_of_paths(folder: Path) -> Source:
    lines = ["gap,where"]
    for number, atoms in enumerate(truths()):
        write(folder / f"POSCAR_{number}", atoms, format="vasp")
        lines.append(f"{atoms.info['gap']},POSCAR_{number}")
    (folder / "all.csv").write_text("\n".join(lines))
    return Source(folder / "all.csv", ("gap",), "where")


def csv_of_cifs(folder: Path) -> Source:
    with (folder / "all.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["cif", "gap"])
        for atoms in truths():
            text = io.BytesIO()
            write(text, atoms, format="cif")
            rows.writerow([text.getvalue().decode(), atoms.info["gap"]])
    return Source(folder / "all.csv", ("gap",), "cif")


def pymatgen_of(atoms: Atoms) -> dict:
    """Write a structure as pymatgen's ``Structure.as_dict`` does."""
    sites = [
        {"species": [{"element": str(symbol), "occu": 1}], "abc": abc, "properties": {"charge": q}}
        for symbol, abc, q in zip(
            atoms.symbols, atoms.get_scaled_positions().tolist(), atoms.arrays["charge"].tolist(),
            strict=True,
        )
    ]  # fmt: skip
    return {"lattice": {"matrix": atoms.cell.array.tolist()}, "sites": sites}


def matbench(folder: Path, suffix: str = ".json") -> Source:
    content = {
        "index": [f"mb-{n}" for n in range(5)],
        "columns": ["structure", "gap"],
        "data": [[pymatgen_of(atoms), atoms.info["gap"]] for atoms in truths()],
    }
    text = json.dumps(content).encode()
    path = folder / f"matbench{suffix}"
    path.write_bytes(gzip.compress(text) if suffix.endswith(".gz") else text)
    return Source(path, ("gap",))


def matbench_gz(folder: Path) -> Source:
    return matbench(folder, ".json.gz")


def jarvis_records(folder: Path) -> Source:
    records = [
        {
            "jid": f"JVASP-{n}",
            "gap": atoms.info["gap"],
            "atoms": {
                "lattice_mat": atoms.cell.array.tolist(),
                "coords": atoms.get_scaled_positions().tolist(),
                "elements": list(atoms.symbols),
                "cartesian": False,
            },
        }
        for n, atoms in enumerate(truths())
    ]
    (folder / "all.json").write_text(json.dumps(records))
    return Source(folder / "all.json", ("gap",))


def json_columns(folder: Path) -> Source:
    texts = []
    for atoms in truths():
        text = io.BytesIO()
        write(text, atoms, format="cif")
        texts.append(text.getvalue().decode())
    content = {"cif": texts, "gap": {str(n): a.info["gap"] for n, a in enumerate(truths())}}
    (folder / "all.json").write_text(json.dumps(content))
    return Source(folder / "all.json", ("gap",))


def database(folder: Path, name: str = "all.db") -> Source:
    with connect(folder / name) as rows:
        for atoms in truths():
            rows.write(atoms, gap=atoms.info["gap"], data={"charge": atoms.arrays["charge"]})
    return Source(folder / name, ("gap",))


def json_database(folder: Path) -> Source:
    return database(folder, "all.json")


def lmdb_folder(folder: Path) -> Source:
    """Write two LMDB files as fairchem's data sets come."""
    from ase_db_backends.aselmdb import LMDBDatabase

    for part, chosen in (("a", truths()[:2]), ("b", truths()[2:])):
        with LMDBDatabase(str(folder / f"{part}.aselmdb")) as rows:
            for atoms in chosen:
                atoms.calc = SinglePointCalculator(atoms, energy=2 * atoms.info["gap"])
                data = {"gap": atoms.info["gap"], "charge": atoms.arrays["charge"]}
                rows.write(atoms, data=data)
    return Source(folder, ("gap",))


def lsms(folder: Path) -> Source:
    """Write FePt-like text: energy; then protons, index, x, y, z, charge density, moment."""
    for number, atoms in enumerate(truths()):
        lines = [f"{atoms.info['gap']} 7.0 8.0"]
        for row, (z, (x, y, w)) in enumerate(zip(atoms.numbers, atoms.positions, strict=True)):
            charge = z + atoms.arrays["charge"][row]
            lines.append(f"{z:.1f} {row} {x} {y} {w} {charge} 0.25")
        (folder / f"s{number}.txt").write_text("\n".join(lines))
    return Source(folder, ("gap",), cell=((9.0, 0, 0), (0, 9.0, 0), (0, 0, 9.0)))


def cfg(folder: Path) -> Source:
    for number, atoms in enumerate(truths()):
        write(folder / f"s{number}.cfg", atoms)
        (folder / f"s{number}.bulk").write_text(f"{atoms.info['gap']} 1.0 2.0\n")
    return Source(folder, ("gap",))


def pyg(folder: Path) -> Source:
    entries = [
        Data(
            z=torch.from_numpy(atoms.numbers.astype(np.int64)),
            pos=torch.from_numpy(atoms.positions),
            cell=torch.from_numpy(atoms.cell.array.copy()),
            gap=torch.tensor([atoms.info["gap"]]).double(),
            charge=torch.from_numpy(atoms.arrays["charge"]),
        )
        for atoms in truths()
    ]
    torch.save(entries, folder / "all.pt")
    return Source(folder / "all.pt", ("gap",))


def write_as_hydragnn(path: Path, sets: dict[str, list[dict[str, np.ndarray]]]) -> None:
    """Write a file as HydraGNN's ``AdiosWriter`` does, with one process."""
    with adios2.Stream(str(path), "w") as stream:
        stream.begin_step()
        for label, graphs in sets.items():
            stream.write_attribute(f"{label}/ndata", np.array(len(graphs)))
            stream.write_attribute(f"{label}/keys", sorted(graphs[0]))
            for key in sorted(graphs[0]):
                axis = int(key == "edge_index")
                arrays = [graph[key] for graph in graphs]
                arrays = [a.astype(np.uint8) if a.dtype == bool else a for a in arrays]
                whole = np.ascontiguousarray(np.concatenate(arrays, axis=axis))
                counts = np.array([array.shape[axis] for array in arrays])
                for name, value in (
                    (key, whole),
                    (f"{key}/variable_count", counts),
                    (f"{key}/variable_offset", np.cumsum(counts) - counts),
                ):
                    shape = list(value.shape)
                    value = value.copy()
                    stream.write(f"{label}/{name}", value, shape, [0] * len(shape), shape)
                stream.write_attribute(f"{label}/{key}/variable_dim", np.array(axis))
        stream.write_attribute("total_ndata", np.array(sum(map(len, sets.values()))))
        stream.end_step()


def hydragnn_bp(folder: Path) -> Source:
    graphs = [
        {
            "x": np.stack([atoms.numbers, atoms.arrays["charge"]], axis=1).astype(float),
            "pos": atoms.positions,
            "cell": atoms.cell.array,
            "gap": np.array([atoms.info["gap"]]),
            "charge": atoms.arrays["charge"],
        }
        for atoms in truths()
    ]
    sets = {"trainset": graphs[:3], "valset": graphs[3:4], "testset": graphs[4:]}
    write_as_hydragnn(folder / "all.bp", sets)
    return Source(folder / "all.bp", ("gap",))


def smiles(folder: Path) -> Source:
    """Write molecules: their geometry is RDKit's, so only what is in the line is compared."""
    lines = ["smiles,gap", *(f"{s},{n / 4}" for n, s in enumerate(("O", "CO", "N", "C", "CC")))]
    (folder / "all.csv").write_text("\n".join(lines))
    return Source(folder / "all.csv", ("gap",))


def sdf(folder: Path) -> Source:
    """Write the atoms of the crystals as molecules."""
    with (folder / "all.sdf").open("w") as file:
        for atoms in truths():
            write(file, atoms, format="sdf", record_separator="")
            file.write(f"> <gap>\n{atoms.info['gap']}\n\n$$$$\n")
    return Source(folder / "all.sdf", ("gap",))


def padded_npz(folder: Path) -> Source:
    """Arrays of structures of unequal sizes, with 0 for no atom."""
    structures = truths()
    most = max(map(len, structures))
    numbers = np.zeros((len(structures), most), dtype=int)
    positions = np.zeros((len(structures), most, 3))
    charges = np.zeros((len(structures), most))
    for row, atoms in enumerate(structures):
        numbers[row, : len(atoms)] = atoms.numbers
        positions[row, : len(atoms)] = atoms.positions
        charges[row, : len(atoms)] = atoms.arrays["charge"]
    cells = np.array([atoms.cell.array for atoms in structures])
    gaps = np.array([atoms.info["gap"] for atoms in structures])
    known = {"Z": numbers, "R": positions, "cell": cells, "gap": gaps, "charge": charges}
    np.savez(folder / "all.npz", **known)
    return Source(folder / "all.npz", ("gap",))


FIXTURES: dict[str, tuple[str, Make]] = {
    "extxyz": ("extxyz", extxyz),
    "extxyz.gz": ("extxyz", compressed("gz", gzip.compress)),
    "extxyz.bz2": ("extxyz", compressed("bz2", bz2.compress)),
    "extxyz.xz": ("extxyz", compressed("xz", lzma.compress)),
    "trajectory": ("ase_file", trajectory),
    "folder": ("folder", folder_of_files),
    "folder with header": ("folder", folder_with_header),
    "csv of paths": ("table", csv_of_paths),
    "csv of cifs": ("table", csv_of_cifs),
    "matbench": ("table", matbench),
    "matbench gz": ("table", matbench_gz),
    "jarvis": ("table", jarvis_records),
    "json columns": ("table", json_columns),
    "sqlite": ("database", database),
    "ase json": ("database", json_database),
    "aselmdb": ("database", lmdb_folder),
    "lsms": ("lsms", lsms),
    "cfg": ("cfg", cfg),
    "pyg": ("pyg", pyg),
    "hydragnn": ("hydragnn_bp", hydragnn_bp),
    "npz": ("arrays", padded_npz),
    "sdf": ("sdf", sdf),
    "smiles": ("smiles", smiles),
}
