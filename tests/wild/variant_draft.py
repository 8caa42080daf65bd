"""A data set in the shape of real files while it is drawn: columns, and what is right for each.

What is right is written down where a column is made; nothing of it is asked of the package.

Shapes: G structures, N atoms of a structure.
"""

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ase import Atoms
from rdkit import Chem
from rdkit.Chem import AllChem

Random = random.Random
Array = np.ndarray

HEAD = ("head",)
ASIDE = ("offered", "left_out", "unused")
"""Roles of a column: predicted; a target without a head, left out with a reason, not mentioned."""

ATTRIBUTE = ("attribute", "left_out")


@dataclass(frozen=True)
class Truth:
    """What an expert says about a column."""

    roles: tuple[str, ...] = HEAD
    """Roles that are right."""
    kinds: tuple[str, ...] = ()
    """Kinds of reasons that are right where it is left out or offered; empty allows all."""
    level: str = "graph"
    shape: str = "scalar"
    unit: str | None = None
    """Unit of the numbers; None for pure numbers and for units that no card knows."""
    stated: bool = False
    """Whether the file states the unit."""
    evident: bool = False
    """Whether the values alone exclude what is usual."""
    energy: tuple[str | None, ...] = (None,)
    """Kinds of energies that are right."""
    derived_from: str | None = None
    """Column of the energy of a derivative."""
    leak: bool = False
    """Whether a head of it would repeat a target, another model's prediction or the split."""


def aside(*kinds: str, **fields: Any) -> Truth:
    """Return the truth of a column that is not predicted."""
    return Truth(roles=ASIDE, kinds=kinds, **fields)


@dataclass
class Column:
    """A column of a file."""

    name: str
    values: list[Any]
    """Number, text or array of each structure; None where it is missing."""
    truth: Truth
    stem: str = ""
    """Its name without prefix and unit."""


PER_EV = {
    "eV": 1.0,
    "meV": 1000.0,
    "Hartree": 1.0 / 27.211386,
    "kcal/mol": 23.060548,
    "kJ/mol": 96.485332,
}
"""Units of energy in one eV, CODATA 2018."""

ANGSTROM = {"angstrom": 1.0, "bohr": 1.0 / 0.52917721}
"""Units of length in one angstrom."""

SPELLINGS = {
    "eV": ("_ev", "_eV", " (eV)", " [eV]", "/eV", " in eV", ", eV"),
    "meV": ("_mev", "_meV", " (meV)", " [meV]"),
    "Hartree": ("_hartree", "_Ha", " (Hartree)", " (Ha)", " [Eh]"),
    "kcal/mol": ("_kcal_mol", "_kcalmol", " (kcal/mol)", " [kcal mol-1]", " (kcal mol^-1)"),
    "kJ/mol": ("_kj_mol", "_kJ_per_mol", " (kJ/mol)", " [kJ mol-1]"),
    "eV/atom": ("_ev_atom", "_eV_per_atom", " (eV/atom)", " [eV/atom]"),
    "meV/atom": ("_mev_atom", "_meV_per_atom", " (meV/atom)"),
    "debye": ("_debye", "_D", " (D)", " (Debye)", " [D]"),
    "K": ("_kelvin", "_K", " (K)", " [K]", " / K"),
    "GPa": ("_gpa", "_GPa", " (GPa)", " [GPa]"),
    "muB": ("_muB", "_mub", " (muB)", " [mu_B]"),
    "nm": ("_nm", " (nm)", " [nm]"),
    "bohr^3": ("_bohr3", " (bohr^3)", " (a0^3)"),
    "eV/angstrom": ("_ev_ang", "_eV_A", "_ev_per_ang"),
    "kcal/mol/angstrom": ("_kcal_mol_ang", "_kcal_mol_A"),
    "Hartree/bohr": ("_hartree_bohr", "_Ha_bohr"),
}
"""How names end in a unit; those with an underscore can be keys of extended XYZ."""

UNIT_TEXTS = {
    "eV": ("eV", "ev"),
    "meV": ("meV",),
    "Hartree": ("Ha", "Hartree", "hartree", "Eh"),
    "kcal/mol": ("kcal/mol", "kcal mol^-1"),
    "kJ/mol": ("kJ/mol",),
    "eV/atom": ("eV/atom", "eV per atom"),
    "debye": ("D", "Debye", "debye"),
    "bohr^3": ("a0 a0 a0", "bohr^3", "a0^3"),
    "eV/angstrom": ("eV/Ang", "eV/A", "eV/angstrom"),
    "kcal/mol/angstrom": ("kcal/mol/Ang", "kcal/mol/A"),
    "Hartree/bohr": ("Ha/Bohr", "Hartree/bohr", "Eh/a0"),
    "K": ("K",),
    "GPa": ("GPa",),
    "e": ("e",),
}
"""How metadata and columns of units write them."""

FREE_ATOMS = {"H": -0.500273, "C": -37.846772, "N": -54.583861, "O": -75.064579, "F": -99.718730}
"""Energies of free atoms in Hartree by B3LYP/6-31G(2df,p), those that are published with QM9.

Source: Ramakrishnan et al. (2014), Sci. Data 1, 140022, atomref.txt.
"""

ENDS = ("O", "N", "F", "C#N", "C=O", "OC", "C(=O)O", "C(=O)N", "c1ccccc1", "N(C)C", "C(F)F", "C#C")
SMILES = tuple(f"{'C' * n}{end}" for n in (1, 2, 3, 4) for end in ENDS)


@functools.cache
def embed(smiles: str) -> Chem.Mol:
    """Return a molecule with hydrogens and positions."""
    made = Chem.AddHs(Chem.MolFromSmiles(smiles))
    assert AllChem.EmbedMolecule(made, randomSeed=1) == 0
    return made


def make_molecule(smiles: str) -> Atoms:
    """Return a molecule as atoms."""
    made = embed(smiles)
    symbols = [atom.GetSymbol() for atom in made.GetAtoms()]
    return Atoms(symbols, positions=made.GetConformer().GetPositions())


@dataclass
class Draft:
    """A data set that is being drawn."""

    draw: Random
    rng: np.random.Generator
    world: str
    container: str
    structures: list[Atoms] = field(default_factory=list)
    smiles: list[str] = field(default_factory=list)
    columns: list[Column] = field(default_factory=list)
    published: tuple[str, str] | None = None
    """Column of the published split, and its value that means test."""
    groups: tuple[str, ...] = ()
    """Groups of the split that are right; empty allows all."""
    one_of: list[tuple[str, ...]] = field(default_factory=list)
    """Columns of one quantity, of which one is predicted."""
    metadata: dict[str, str] = field(default_factory=dict)
    """Unit of columns, stated by the file."""
    ends: dict[str, str] = field(default_factory=dict)
    """How units are written behind names."""
    case: Callable[[str], str] = str
    blank: str = "_"
    """What stands between the words of a name."""

    def __post_init__(self) -> None:
        """Choose how names are written."""
        self.case = self.draw.choice([str, str, str.lower, str.upper, str.capitalize])
        self.blank = "_" if self.plain else self.draw.choice(["_", "_", " ", "-"])

    @property
    def plain(self) -> bool:
        """Whether names can hold letters, digits and underscores only."""
        return self.container not in ("csv", "csv_of_cif", "sdf", "json")

    @property
    def count(self) -> int:
        """Number of structures, G."""
        return len(self.structures)

    def chance(self, share: float) -> bool:
        """Return true in a share of the draws."""
        return self.draw.random() < share

    def spell(self, name: str, unit: str | None = None) -> str:
        """Return a name in the writing of this file, with a unit behind it."""
        made = self.case(name).replace("_", self.blank)
        return made + (self.spell_unit(unit) if unit is not None else "")

    def spell_unit(self, unit: str) -> str:
        """Return a unit behind a name, the same everywhere in this file."""
        if unit not in self.ends:
            keys = self.plain or self.world == "potential"
            ends = [s for s in SPELLINGS[unit] if s[0] == "_" or not keys]
            self.ends[unit] = self.draw.choice(ends)
        return self.ends[unit]

    def add(self, name: str, values: Sequence[Any], truth: Truth) -> str:
        """Add a column; return its name."""
        taken = {column.name.lower() for column in self.columns}
        name = name if name.lower() not in taken else f"{name}{self.blank}2"
        self.columns.append(Column(name, list(values), truth))
        return name

    def noise(self, size: float = 1.0, middle: float = 0.0) -> Array:
        """Return normally distributed numbers, [G]."""
        return self.rng.normal(middle, size, self.count)

    def count_atoms(self, symbol: str) -> Array:
        """Return the number of atoms of an element, [G]."""
        return np.array([atoms.symbols.count(symbol) for atoms in self.structures])

    @property
    def sizes(self) -> Array:
        """Number of atoms of each structure, [G]."""
        return np.array([len(atoms) for atoms in self.structures])
