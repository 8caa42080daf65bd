"""Structures as arrays of NumPy: folders of DeePMD-kit, and npz as of sGDML, MD17 and QM7-X.

Shapes: G structures, N atoms of a structure.
"""

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.data import atomic_numbers

from hydragnn_hpo.data.readers.lengths import to_angstrom
from hydragnn_hpo.data.readers.source import (
    Item,
    Reader,
    Source,
    add_property,
    make_or_catch,
    read_text,
    text_errors,
)
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.sanitize import shorten
from hydragnn_hpo.units import interpret_unit

Arrays = dict[str, np.ndarray]

ROLES = {
    "numbers": ("z", "nuclear_charges", "atomic_numbers", "numbers", "species", "atoms", "charges"),
    "positions": ("r", "coord", "coords", "coordinates", "positions", "pos", "xyz"),
    "cell": ("lattice", "cell", "cells", "box", "unit_cell"),
    "energy": ("e",),
    "forces": ("f", "force"),
}
"""Names in lower case of atomic numbers or symbols, [N] or [G, N] with 0 for no atom; of positions,
[G, N, 3]; of lattice vectors as rows (of sGDML they are columns); and names that say too little."""


def is_deepmd(folder: Path) -> bool:
    """Check whether a folder is a system of DeePMD-kit."""
    has_positions = (folder / "coord.raw").is_file() or any(folder.glob("set.*/coord.npy"))
    return (folder / "type.raw").is_file() and has_positions


def find_systems(folder: Path) -> list[Path]:
    """Return the systems of DeePMD-kit at and below a folder, sorted."""
    return sorted({file.parent for file in folder.rglob("type.raw") if is_deepmd(file.parent)})


def read_arrays(source: Source, start: int, stop: int | None) -> Iterator[Item]:
    """Read structures of an npz, or of a folder of DeePMD-kit.

    A property goes to ``info``, and one with a row for each atom to ``arrays``.

    Args:
        source: file or folder.
        start: first structure, counted from 0.
        stop: one after the last structure; None means the end.

    Raises:
        DataError: an array is missing, unreadable, or does not fit the others.
    """
    arrays = _load(source)
    for number in range(len(arrays["positions"]))[start:stop]:
        make = functools.partial(_structure, arrays, number, source.length)
        place = f"{source.path}: structure {number}"
        yield f"{source.path.name}@{number}", make_or_catch(place, make)


def read_stated_units(source: Source) -> Iterator[tuple[str, str]]:
    """Yield name and unit of energy and forces where they are stated, as by sGDML."""
    arrays = _load(source)
    if "e_unit" in arrays:
        energy = str(arrays["e_unit"])
        yield from (("energy", energy), ("virial", energy))
        yield "forces", f"{energy}/{arrays.get('r_unit', 'angstrom')}"


ARRAYS = Reader(
    lambda source: len(_load(source)["positions"]),
    read_arrays,
    takes=frozenset({"length"}),
    read_units=read_stated_units,
)


def _structure(arrays: Arrays, number: int, length: str | None) -> Atoms:
    shape = arrays["positions"].shape[:2]
    numbers = np.broadcast_to(arrays["numbers"], shape)[number]
    used = np.flatnonzero(numbers)
    cell = arrays["cell"][number] if "cell" in arrays else None
    positions = arrays["positions"][number][used]
    atoms = Atoms(numbers[used], positions, cell=cell, pbc=cell is not None)
    for name, values in arrays.items():
        is_property = values.shape[:1] == shape[:1] and values.dtype.kind in "biuf"
        if name in ("numbers", "positions", "cell") or not is_property:
            continue
        value = values[number]
        if value.shape[:1] == numbers.shape and len(numbers) > 1:
            value = value[used]
        elif value.size == 1:
            value = value.item()
        add_property(atoms, name, value)
    stated = interpret_unit(str(arrays["r_unit"])) if "r_unit" in arrays else None
    return to_angstrom(atoms, length or stated)


def _load(source: Source) -> Arrays:
    """Load a file or folder; the latest is kept, because its pieces are read one by one."""
    path = source.path
    with text_errors(path):
        return _load_once(path, path.stat().st_mtime_ns, path.stat().st_size)


@functools.lru_cache(maxsize=1)
def _load_once(path: Path, changed: int, size: int) -> Arrays:
    try:
        return _arrange(path, _load_deepmd(path) if path.is_dir() else _load_npz(path))
    except (DataError, OSError):
        raise
    except Exception as error:  # NumPy and zipfile raise errors of many types
        reason = shorten(" ".join(str(error).split()))
        raise DataError(f"{path}: cannot be read as arrays ({reason}); mend it.") from error


def _load_npz(path: Path) -> Arrays:
    arrays = {}
    with np.load(path, allow_pickle=False) as archive:
        for name in archive.files:
            try:
                arrays[name] = np.asarray(archive[name])
            except ValueError:  # objects of Python, which need pickle
                continue
    return arrays


def _load_deepmd(path: Path) -> Arrays:
    """Load all sets of a system.

    Source: docs.deepmodeling.com/projects/deepmd, "Formats of a system", 2026-11.
    """
    sets = sorted(path.glob("set.*")) or [path]
    arrays = {"e_unit": np.array("eV"), "r_unit": np.array("angstrom")}
    for file in sorted((*sets[0].glob("*.npy"), *path.glob("*.raw"))):
        parts = [file] if file.suffix == ".raw" else [folder / file.name for folder in sets]
        if file.stem not in ("type", "type_map") and all(part.is_file() for part in parts):
            load = np.loadtxt if file.suffix == ".raw" else np.load
            arrays[file.stem] = np.concatenate([np.asarray(load(part)) for part in parts])
    if (path / "nopbc").exists():
        arrays.pop("box", None)
    types = np.array(read_text(path / "type.raw").split(), dtype=int)
    types = arrays.pop("real_atom_types", types).astype(int)
    symbols = read_text(path / "type_map.raw").split() if (path / "type_map.raw").is_file() else []
    if types.max() >= len(symbols) or not set(symbols) <= set(atomic_numbers):
        raise DataError(
            f"{path}: type.raw has types 0 to {types.max()}, type_map.raw names {symbols}: write "
            "the chemical symbol of each type into type_map.raw, in their order."
        )
    arrays["z"] = np.array([*(atomic_numbers[symbol] for symbol in symbols), 0])[types]
    return arrays


def _arrange(path: Path, arrays: Arrays) -> Arrays:
    """Return arrays by the names of ``ROLES``, in their shapes."""
    names = {name.lower(): name for name in arrays}
    known = {role: [names[name] for name in ROLES[role] if name in names] for role in ROLES}
    if not known["numbers"] or not known["positions"]:
        role = "positions" if known["numbers"] else "atomic numbers"
        raise DataError(
            f"{path}: has no array of {role} (as {', '.join(ROLES[role.split()[-1]])}; those of "
            "objects are not read); save it again as numpy.savez(NAME, z=numbers, R=positions, "
            "E=energies, F=forces)."
        )
    renamed = {several[0]: role for role, several in known.items() if several}
    made = {renamed.get(name, name): array for name, array in arrays.items()}
    numbers, positions = made["numbers"], made["positions"]
    if numbers.dtype.kind in "US":
        made["numbers"] = np.vectorize(lambda s: atomic_numbers.get(str(s).strip(), 0))(numbers)
    if positions.shape == (*numbers.shape, 3) and numbers.ndim == 1:  # one structure
        units = ("numbers", "e_unit", "r_unit")
        made = {n: array if n in units else array[None] for n, array in made.items()}
    made["positions"] = made["positions"].reshape(-1, numbers.shape[-1], 3)
    count = len(made["positions"])
    for name, array in made.items():
        if name == "cell":
            cells = array.reshape(-1, 3, 3)
            is_sgdml = {"e_unit", "md5", "theory"} & set(made) and not path.is_dir()
            cells = cells.swapaxes(1, 2) if is_sgdml else cells
            made[name] = np.broadcast_to(cells, (count, 3, 3))
        elif name == "virial":
            made[name] = array.reshape(-1, 3, 3)
        elif name == "forces" or (name.startswith("atom") and array.shape[:1] == (count,)):
            shaped = array.reshape(count, numbers.shape[-1], -1)
            made[name] = shaped[:, :, 0] if shaped.shape[2] == 1 else shaped
    np.broadcast_to(made["numbers"], made["positions"].shape[:2])
    made["numbers"] = made["numbers"].astype(int)
    return made
