"""Make xtb_moments.extxyz.gz: dipoles, polarizabilities and Born charges of 600 small organics.

Molecules come from small_organics.extxyz.gz. Needs ``pip install "hydragnn-hpo[xtb]"``; run it in
this folder, for a minute or two. In a homogeneous field E, to first order, ``dipole = dipole_0 +
polarizability E`` and ``forces = forces_0 + Z^T E``, so central differences give both tensors.

Source: Bannwarth et al. (2019), J. Chem. Theory Comput. 15, 1652 (GFN2-xTB).
"""

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from random import Random

import ase.io
import numpy as np
from ase import Atoms
from ase.units import Bohr
from tblite.interface import Calculator
from tblite.library import ffi

COUNT, FIELD = 600, 1e-3
"""Molecules, and the strength of the field in atomic units."""


def solve(atoms: Atoms, field: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return dipole, [3], and forces, [N, 3], in a homogeneous field, in atomic units."""
    solver = Calculator("GFN2-xTB", atoms.numbers, atoms.positions / Bohr)
    solver.set("verbosity", 0)
    solver.set("accuracy", 0.001)
    vector = np.ascontiguousarray(field, dtype=np.float64)
    if vector.any():
        solver.add("electric-field", ffi.cast("double*", vector.ctypes.data))
    result = solver.singlepoint()
    return result.get("dipole"), -result.get("gradient")


def to_text(numbers: np.ndarray) -> str:
    """Return numbers with four digits, without -0.0000."""
    return " ".join(f"{number:.4f}" for number in numbers.round(4) + 0.0)


def frame(atoms: Atoms) -> str:
    """Return a labelled molecule as extended XYZ, in e*angstrom, angstrom^3 and e."""
    steps = FIELD * np.eye(3)
    ends = [[solve(atoms, sign * step) for sign in (1, -1)] for step in steps]
    alpha = np.array([up[0] - down[0] for up, down in ends]) / (2 * FIELD) * Bohr**3
    born = np.array([up[1] - down[1] for up, down in ends]) / (2 * FIELD)  # [field, N, force]
    alpha = 0.5 * (alpha + alpha.T)
    dipole = to_text(solve(atoms, np.zeros(3))[0] * Bohr)
    tensor = to_text(alpha.ravel())
    head = "Properties=species:S:1:pos:R:3:born_charges:R:9"
    lines = [
        f'{head} smiles="{atoms.info["smiles"]}" dipole="{dipole}" polarizability="{tensor}" '
        'pbc="F F F"'
    ]
    for place, atom in enumerate(atoms):
        numbers = [*atom.position, *born[:, place].ravel()]
        lines.append(f"{atom.symbol} {to_text(np.array(numbers))}")
    return "\n".join([str(len(atoms)), *lines]) + "\n"


def label_molecules(make_frame: Callable[[Atoms], str], out: str) -> None:
    """Write some molecules of ``small_organics`` with what ``make_frame`` adds to each."""
    text = gzip.decompress(Path("small_organics.extxyz.gz").read_bytes()).decode()
    molecules = ase.io.read(io.StringIO(text), ":", format="extxyz")
    chosen = sorted(Random(0).sample(range(len(molecules)), COUNT))
    frames = "".join(make_frame(molecules[number]) for number in chosen)
    Path(out).write_bytes(gzip.compress(frames.encode(), mtime=0))


if __name__ == "__main__":
    label_molecules(frame, "xtb_moments.extxyz.gz")
