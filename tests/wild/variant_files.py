"""Writes data sets in the containers in which they are published."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from ase.calculators.singlepoint import SinglePointCalculator
from ase.db import connect
from ase.io import write
from rdkit import Chem
from variant_draft import Column, Draft, embed

CALCULATED = ("energy", "forces")
"""Names of what a calculator of ASE holds."""


def write_variant(draft: Draft, folder: Path) -> Path:
    """Write a data set into a folder; return its file."""
    folder.mkdir()
    return WRITERS[draft.container](draft, folder)


def write_csv(draft: Draft, folder: Path) -> Path:
    """Write SMILES and other columns, with a word where a value is missing."""
    word = draft.draw.choice(["", "", "", "NaN", "nan", "NA", "N/A", "None", "-"])
    if word == "-" and any(c.truth.shape == "class" for c in draft.columns):
        word = ""  # a dash may be a class
    title = draft.draw.choice(["smiles", "SMILES", "canonical_smiles", "Smiles", "mol"])
    place = draft.draw.choice([0, len(draft.columns)])
    columns = [(c.name, [word if v is None else v for v in c.values]) for c in draft.columns]
    columns.insert(place, (title, list(draft.smiles)))
    if draft.chance(0.05):  # a SMILES that cannot be read
        row = draft.draw.randrange(draft.count)
        for name, values in columns:
            values.insert(row, "C1CC(" if name == title else "")
    path = folder / "data.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([name for name, _ in columns])
        rows.writerows(zip(*(values for _, values in columns), strict=True))
    return path


def write_csv_of_cif(draft: Draft, folder: Path) -> Path:
    """Write a CIF file of each structure, and a table that names them."""
    names = []
    for number, atoms in enumerate(draft.structures):
        write(folder / f"x{number}.cif", atoms)
        names.append(f"x{number}.cif" if draft.count % 2 else f"x{number}")
    columns = [("structure", names), *((c.name, c.values) for c in draft.columns)]
    path = folder / "targets.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([name for name, _ in columns])
        rows.writerows(zip(*(values for _, values in columns), strict=True))
    return path


def to_plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def write_json(draft: Draft, folder: Path) -> Path:
    """Write records with structures as JARVIS has them, or columns of them."""
    records = []
    for number, atoms in enumerate(draft.structures):
        structure = {
            "lattice_mat": atoms.cell.array.tolist(),
            "coords": atoms.get_scaled_positions().tolist(),
            "elements": list(atoms.symbols),
        }
        cells = {c.name: to_plain(c.values[number]) for c in draft.columns}
        records.append({"atoms": structure, **cells})
    path = folder / "data.json"
    columns = {name: [record[name] for record in records] for name in records[0]}
    path.write_text(json.dumps(columns if draft.count % 2 else records))
    return path


def write_extxyz(draft: Draft, folder: Path) -> Path:
    """Write extended XYZ, results of calculators as ASE does."""
    frames = []
    for number, atoms in enumerate(draft.structures):
        frame = atoms.copy()
        results = {}
        for column in draft.columns:
            value = column.values[number]
            if value is None:
                continue
            if column.name in CALCULATED:
                results[column.name] = value
            elif column.truth.level == "node":
                frame.arrays[column.name] = value
            else:
                frame.info[column.name] = value
        if results:
            frame.calc = SinglePointCalculator(frame, **results)
        frames.append(frame)
    write(folder / "frames.extxyz", frames)
    return folder / "frames.extxyz"


def write_db(draft: Draft, folder: Path) -> Path:
    """Write a database of ASE, all columns as data of its rows, as SchNetPack does."""
    path = folder / "data.db"
    with connect(path) as database:
        if draft.metadata:
            database.metadata = {"_property_unit_dict": draft.metadata}
        for number, atoms in enumerate(draft.structures):
            data = {c.name: c.values[number] for c in draft.columns}
            database.write(atoms, data={k: v for k, v in data.items() if v is not None})
    return path


def write_npz(draft: Draft, folder: Path) -> Path:
    """Write arrays; short structures are filled up, and texts are left out."""
    most = int(draft.sizes.max())
    numbers = np.zeros((draft.count, most), dtype=int)
    positions = np.zeros((draft.count, most, 3))
    for number, atoms in enumerate(draft.structures):
        numbers[number, : len(atoms)] = atoms.numbers
        positions[number, : len(atoms)] = atoms.positions
    arrays: dict[str, np.ndarray] = {"R": positions}
    arrays["z"] = numbers[0] if draft.world == "potential" else numbers
    draft.columns = [column for column in draft.columns if not has_texts(column)]
    for column in draft.columns:
        values = [np.nan if value is None else value for value in column.values]
        arrays[column.name.replace("/", "_")] = np.array(values)
    if draft.published and draft.published[0] not in arrays:
        draft.published = None
    if draft.metadata:
        arrays["E"] = arrays.pop("energy")
        arrays["F"] = arrays.pop("forces")
        arrays |= {name: np.array(text) for name, text in draft.metadata.items()}
    np.savez(folder / "data.npz", **arrays)
    return folder / "data.npz"


def has_texts(column: Column) -> bool:
    """Check whether a column holds text."""
    return any(isinstance(value, str) for value in column.values)


def write_sdf(draft: Draft, folder: Path) -> Path:
    """Write an SD file with a tag for each column."""
    path = folder / "data.sdf"
    with Chem.SDWriter(str(path)) as writer:
        for number, smiles in enumerate(draft.smiles):
            molecule = Chem.Mol(embed(smiles))
            for column in draft.columns:
                if column.values[number] is not None:
                    molecule.SetProp(column.name, str(column.values[number]))
            writer.write(molecule)
    return path


WRITERS: dict[str, Callable[[Draft, Path], Path]] = {
    "csv": write_csv,
    "csv_of_cif": write_csv_of_cif,
    "json": write_json,
    "extxyz": write_extxyz,
    "db": write_db,
    "npz": write_npz,
    "sdf": write_sdf,
}
