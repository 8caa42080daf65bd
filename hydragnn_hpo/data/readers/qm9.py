"""Molecules of QM9 as they were published: one file each, or many joined by ``cat``.

Source: Ramakrishnan et al. (2014), Sci. Data 1, 140022, table 2 and the readme of the data.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
from ase import Atoms

from hydragnn_hpo.data.readers.source import open_text

QM9 = "qm9"
"""Name of the format."""

QM9_UNITS = (
    *(("A", "GHz"), ("B", "GHz"), ("C", "GHz"), ("mu", "debye"), ("alpha", "bohr^3")),
    *((name, "Hartree") for name in ("homo", "lumo", "gap")),
    *(("r2", "bohr^2"), ("zpve", "Hartree")),
    *((name, "Hartree") for name in ("U0", "U", "H", "G")),
    *(("Cv", "cal/mol/K"), ("mulliken_charge", "e")),
)
"""Name and unit of the properties, in the order of the file; the last one is that of atoms."""


def read_qm9(content: Path | IO[str]) -> Iterator[Atoms | str]:
    """Yield the molecules, and for one that is not usable the problem.

    Args:
        content: file or stream: for each molecule the number of atoms, a line of properties, a line
            of each atom, and lines of frequencies, SMILES and InChI.
    """
    opened = open_text(content) if isinstance(content, Path) else contextlib.nullcontext(content)
    with opened as lines:
        for first in lines:
            if not first.strip():
                continue
            count = int(first)
            molecule = [next(lines, "").replace("*^", "e").split() for _ in range(count + 4)]
            (_, index, *properties), rows = molecule[0], molecule[1 : count + 1]
            if any(len(row) != 5 for row in rows) or not molecule[count + 3]:
                yield f"ends before its {count} atoms, frequencies, SMILES and InChI"
                return
            positions = [[float(word) for word in row[1:4]] for row in rows]
            atoms = Atoms([row[0] for row in rows], positions=positions)
            names = (name for name, _ in QM9_UNITS)
            atoms.info.update(zip(names, map(float, properties), strict=False))
            atoms.info["name"] = f"gdb_{index}"
            atoms.arrays["mulliken_charge"] = np.array([float(row[4]) for row in rows])
            yield atoms
