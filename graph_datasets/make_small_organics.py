"""Make small_organics.extxyz.gz: organic molecules of up to 7 heavy atoms, relaxed with GFN2-xTB.

Needs ``pip install "hydragnn-hpo[chem,xtb]"`` (RDKit, tblite); run it in this folder. It takes 8
minutes on one core, and goes on where it was interrupted. No list is read: molecules grow by atoms.
Sources: Bannwarth et al. (2019), J. Chem. Theory Comput. 15, 1652 (GFN2-xTB); Riniker and Landrum
(2015), J. Chem. Inf. Model. 55, 2562 (first geometries).
"""

import gzip
import random
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice, zip_longest
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.data import covalent_radii
from ase.optimize import BFGS
from ase.units import Bohr, Hartree
from rdkit import Chem, RDLogger
from rdkit.Chem import AllChem
from tblite.ase import TBLite
from tblite.interface import Calculator

LARGEST, DRAWN, SEED = 7, 1960, 20261126  # heavy atoms; molecules before sulfides are oxidized
PARENTS = 350  # molecules of a size from which larger ones grow
FMAX, STEPS = 0.03, 300  # eV/angstrom; steps of a relaxation before it is given up
VALENCE = {"C": 4, "N": 3, "O": 2, "F": 1, "S": 2, "Cl": 1}
UNPAIRED = {1: 1, 6: 2, 7: 3, 8: 2, 9: 1, 16: 2, 17: 1}  # electrons of free atoms

# What no chemist would keep in a bottle: bonds of two heteroatoms but a few, cumulated bonds,
# strained rings, what would turn into a tautomer, split off water or an acid, or polymerize.
UNWANTED = """
[F,Cl][!#6]  [O;!a][O,S;!a]  [SH]S  SSS  S[SX3,SX4]  [SX3,SX4;!H0]  [SX3][OH]  [O,S;X1]=[O,S;X1]
S(=O)C=[O,S]
[N,n][N,n;!a][N,n]  NNS  [NX3;!a][O,$([SX2]);!a]  [NX2][SX2]  [N;!a]=[N,O,S]  n[!#6;!n;!o;!s;!#1]
[N,O,S;r3,r4][N,O,S]  N=NC=*  C=NN=*  nnn[o,s]  nn[o,s]n
C=C=[C,N]  N=C=[C,N]  [O,S]=C=[O,S,C]  [!#6]N=C=*  C(=*)N=C=*  O=C=NC=*
[r3,r4]=,:[*]  [#6;r]#*  [*;R2]=,:[*]  [*;R3]  [r3]([r3])([r3])[r3]  [r3;x4]  [r3]1[r3]~*~*1
*12**(*1)*2  [r4]1[r4]*[r4]1[r4]
[C;!a]=[C;!a][OH,SH,NH,NH2]  [N;!a]=[C;!a][OH,SH]  [NX2;H1]=[C;!$(C-N);!$(C=[O,S])]  [CH2]=N  C=CN=C
N=CN=*  C=NC=[O,S]  N=C[F,Cl,S]  [c;r5][OH,SH]  [c;r5]=*  c=N
[CX4]([OH,SH,NH,NH2])[O,N,S;!a]  [F,Cl][CX4][O,N,S;!a]  [CX4]([N,O,S])([N,O,S])[N,O,S]
[CX3](=O)([OH,SH,Cl,F])[O,S,N,F,Cl]  C(=O)C#N  C(=O)(Cl)C=O
[C;!$(C-N);!$(C=N)]=S  C(=S)[OH,SH,F,Cl]  [C,N]#C[O,N,F,Cl,$([SH]);!a]  C(Cl)(Cl)Cl
"""
# Molecules are dealt from these in turn, so that all of them occur.
GROUPS = """
[CX4;!R] C=C C#C c1ccccc1 n [o,s] [r3] [r4] [r5;!a] [r6;!a] [CX4][OH] c[OH] [OX2]([#6])[#6]
[CX3H1]=O [#6]C(=O)[#6] C(=O)[OH] C(=O)O[#6] [NX3;!$(NC=O)] C(=O)N C#N C=N N=C=[O,S]
[#6][SX2] S(=O) C=S F Cl
"""
REFUSED, DEALT = ([Chem.MolFromSmarts(one) for one in text.split()] for text in (UNWANTED, GROUPS))
SULFIDE = Chem.MolFromSmarts("[S;X2,X3;H0;!$(S=C);!$(SC=,#*);!$(S[!#6])]")


@cache
def accepted(smiles: str) -> str | None:
    """Return the canonical form of a SMILES, or None where a chemist would object."""
    mol = Chem.MolFromSmiles(smiles)
    if mol is None or any(mol.HasSubstructMatch(pattern) for pattern in REFUSED):
        return None
    return Chem.MolToSmiles(mol)


def accept(mols: Iterable[Chem.RWMol]) -> set[str]:
    """Return those molecules, by canonical SMILES, to which a chemist would not object."""
    return {one for mol in mols if (one := accepted(Chem.MolToSmiles(mol)))}


def deal(molecules: Iterable[str], count: int) -> list[str]:
    """Return ``count`` molecules, dealt in turn from the groups that they contain."""
    shuffled = sorted(molecules)
    random.Random(SEED).shuffle(shuffled)
    mols = [(smiles, Chem.MolFromSmiles(smiles)) for smiles in shuffled]
    piles = [[one for one, mol in mols if mol.HasSubstructMatch(pattern)] for pattern in DEALT]
    turns = (one for turn in zip_longest(*piles, shuffled) for one in turn if one)
    return list(islice(dict.fromkeys(turns), count))


def grow(smiles: str) -> Iterator[Chem.RWMol]:
    """Yield all molecules with one heavy atom more."""
    mol = Chem.MolFromSmiles(smiles)
    Chem.Kekulize(mol, clearAromaticFlags=True)
    for atom in mol.GetAtoms():
        orders = [(s, o) for s, v in VALENCE.items() for o in range(1, min(v, 3) + 1)]
        more = [(symbol, order) for symbol, order in orders if order <= atom.GetTotalNumHs()]
        for symbol, order in more:
            yield bind(mol, atom.GetIdx(), symbol, order)


def oxidize(smiles: str) -> Iterator[Chem.RWMol]:
    """Yield the sulfoxides of sulfides and the sulfones of sulfoxides, if not too large."""
    mol = Chem.MolFromSmiles(smiles)
    for (place,) in mol.GetSubstructMatches(SULFIDE):
        if mol.GetNumAtoms() < LARGEST:
            yield bind(mol, place, "O", 2)


def bind(mol: Chem.Mol, place: int, symbol: str, order: int) -> Chem.RWMol:
    """Return a molecule with one atom more, bound to the one at ``place``."""
    changed = Chem.RWMol(mol)
    changed.AddBond(place, changed.AddAtom(Chem.Atom(symbol)), Chem.BondType.values[order])
    return changed


def vary(smiles: str) -> Iterator[Chem.RWMol]:
    """Yield all molecules with one ring more, or with another element in place of a carbon."""
    mol = Chem.MolFromSmiles(smiles)
    Chem.Kekulize(mol, clearAromaticFlags=True)
    free = [atom.GetTotalNumHs() for atom in mol.GetAtoms()]
    for one, two in np.argwhere(np.triu(Chem.GetDistanceMatrix(mol)) > 1).tolist():
        if free[one] and free[two]:
            changed = Chem.RWMol(mol)
            changed.AddBond(one, two, Chem.BondType.SINGLE)
            yield changed
    for atom in mol.GetAtoms():
        for symbol in ("N", "O", "S") if atom.GetSymbol() == "C" else ():
            if VALENCE["C"] - free[atom.GetIdx()] <= VALENCE[symbol]:
                changed = Chem.RWMol(mol)
                changed.ReplaceAtom(atom.GetIdx(), Chem.Atom(symbol))
                yield changed


def draw() -> list[str]:
    """Return the molecules of the set: all of up to four heavy atoms, a draw of the larger ones."""
    small = []
    larger = set()
    parents = ["C", "N", "O", "S"]
    for size in range(1, LARGEST + 1):
        new = set(parents) if size == 1 else accept(m for one in parents for m in grow(one))
        new |= {"c1ccccc1"} if size == 6 else set()
        for _ in range(2):
            new |= accept(m for one in deal(new, PARENTS) for m in vary(one))
        small += sorted(new) if size <= 4 else []
        larger |= new if size > 4 else set()
        parents = deal(new, PARENTS)
    found = small + deal(larger, DRAWN - len(small))
    oxides = accept(m for one in found for m in oxidize(one))
    for step in (oxidize, vary):
        oxides |= accept(m for one in sorted(oxides) for m in step(one))
    return found + sorted(oxides)


def relax(smiles: str) -> Atoms:
    """Return a molecule relaxed with GFN2-xTB; it must keep its bonds, and get no others."""
    mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
    if AllChem.EmbedMolecule(mol, randomSeed=SEED) != 0:
        raise RuntimeError("RDKit found no geometry")
    if AllChem.MMFFHasAllMoleculeParams(mol):
        AllChem.MMFFOptimizeMolecule(mol, maxIters=1000)
    symbols = [atom.GetSymbol() for atom in mol.GetAtoms()]
    atoms = Atoms(symbols, mol.GetConformer().GetPositions())
    atoms.calc = TBLite(method="GFN2-xTB", verbosity=0)
    if not BFGS(atoms, logfile=None, alpha=50.0).run(fmax=FMAX, steps=STEPS):
        raise RuntimeError(f"not relaxed after {STEPS} steps")
    radii = covalent_radii[atoms.numbers]
    bound = atoms.get_all_distances() < 1.25 * np.add.outer(radii, radii)
    if not np.array_equal(bound & ~np.eye(len(atoms), dtype=bool), Chem.GetAdjacencyMatrix(mol)):
        raise RuntimeError("its bonds changed")
    return Atoms(symbols, (atoms.positions - atoms.positions.mean(axis=0)).round(4))


def solve(atoms: Atoms, unpaired: int = 0) -> dict:
    """Return what GFN2-xTB says about a structure, in atomic units."""
    solver = Calculator("GFN2-xTB", atoms.numbers, atoms.positions / Bohr, uhf=unpaired)
    solver.set("verbosity", 0)
    return solver.singlepoint().dict()


@cache
def free_energy(number: int) -> float:
    """Return the energy of a free atom in hartree."""
    return float(solve(Atoms([number]), UNPAIRED[number])["energy"])


def frame(smiles: str, atoms: Atoms) -> str:
    """Return a labelled molecule as extended XYZ; the labels belong to rounded positions."""
    found = solve(atoms)
    energy = (found["energy"] - sum(map(free_energy, atoms.numbers.tolist()))) * Hartree
    pairs = round(found["orbital-occupations"].sum()) // 2
    highest, lowest = np.sort(found["orbital-energies"])[pairs - 1 : pairs + 1] * Hartree
    dipole = " ".join(f"{number:.4f}" for number in found["dipole"] * Bohr)
    head = "Properties=species:S:1:pos:R:3:partial_charge:R:1"
    head += f' smiles="{smiles}" atomization_energy={energy:.5f}'
    head += f" atomization_energy_per_atom={energy / len(atoms):.6f}"
    lines = [f'{head} homo_lumo_gap={lowest - highest:.4f} dipole="{dipole}" pbc="F F F"']
    for atom, charge in zip(atoms, found["charges"], strict=True):
        numbers = np.round([*atom.position, charge], 4) + 0.0  # no -0.0000
        lines.append(" ".join([atom.symbol, *(f"{number:.4f}" for number in numbers)]))
    return "\n".join([str(len(atoms)), *lines]) + "\n"


if __name__ == "__main__":
    RDLogger.DisableLog("rdApp.*")
    partial = Path("small_organics.partial.txt")
    done = partial.read_text() if partial.exists() else ""
    with partial.open("a", buffering=1) as file:
        for smiles in [smiles for smiles in draw() if f'smiles="{smiles}"' not in done]:
            try:
                file.write(frame(smiles, relax(smiles)))
            except RuntimeError as error:
                print(f"left out: {smiles}: {error}")
    frames = partial.read_bytes()
    Path("small_organics.extxyz.gz").write_bytes(gzip.compress(frames, mtime=0))
    print(f"{frames.count(b'smiles=')} molecules; the card needs what sha256sum says now")
    partial.unlink()
