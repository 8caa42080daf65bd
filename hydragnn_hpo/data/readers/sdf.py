"""Molecules of an SD file (V2000 and V3000), with their tags as properties.

ASE reads the first molecule of such a file and no tags. An MDL molfile is one without a last line.
"""

import contextlib
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from ase import Atoms
from ase.data import atomic_numbers

from hydragnn_hpo.data.readers.source import (
    Item,
    Reader,
    Source,
    Value,
    is_number,
    open_text,
    text_errors,
    value_of,
)
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.sanitize import shorten

MOLFILES = ("sdf", "mol")
"""ASE's names of the formats, which differ only in how many molecules are usual."""

_END = "$$$$"
"""Beginning of the line after a molecule."""

_TAG = re.compile(r">.*?<([^<>]+)>")
"""Line before the value of a tag: ``>  <logp>  (1)``."""

_CHARGES = {1: 3, 2: 2, 3: 1, 5: -1, 6: -2, 7: -3}
"""Charge by its code in the line of an atom, V2000."""

_UNPAIRED = {2: 1, 3: 2}
"""Number of unpaired electrons by the code of a radical; 1 is a singlet."""

_HYDROGEN = ("D", "T")
"""Symbols of isotopes of hydrogen."""

Record = list[str]
"""Lines of a molecule and its tags."""


def read_sdf(source: Source, start: int, stop: int | None) -> Iterator[Item]:
    """Read molecules.

    ``info`` has the tags, the title as ``name``, the formal ``charge``, ``spin``, the number of
    unpaired electrons, and with RDKit the ``smiles``. No hydrogens are added. A drawing (2D)
    is a bad structure.

    Args:
        source: the SD file.
        start: first structure, counted from 0.
        stop: one after the last structure; None means the end.

    Raises:
        DataError: the file is unreadable or holds no molecule.
    """
    path = source.path
    number = start
    with text_errors(path), open_text(path) as file:
        for record in itertools.islice(_split_records(file), start, stop):
            name = f"{path.name}@{number}"
            atoms = _molecule(record)
            if isinstance(atoms, str):
                yield name, DataError(f"{path}: structure {number} {atoms}; mend or remove it.")
            else:
                yield name, atoms
            number += 1
    if not number and stop != 0:
        raise DataError(f"{path}: is empty; get the file again.")


def count_sdf(source: Source) -> int | None:
    """Count the molecules."""
    with text_errors(source.path), open_text(source.path) as file:
        return sum(1 for _ in _split_records(file))


SDF = Reader(count_sdf, read_sdf, takes=frozenset({"format"}))


def holds_one_molecule(path: Path) -> bool:
    """Check whether a file holds at most one molecule; False if it cannot be read."""
    try:
        return (count_sdf(Source(path)) or 0) <= 1
    except DataError:
        return False


def molecules_of(content: Path | IO[str]) -> Iterator[Atoms | str]:
    """Yield the molecules of an SD file, and for one that is not usable the problem."""
    opened = open_text(content) if isinstance(content, Path) else contextlib.nullcontext(content)
    with opened as lines:
        yield from map(_molecule, _split_records(lines))


def _split_records(lines: Iterable[str]) -> Iterator[Record]:
    """Yield the lines of each molecule; the last one may lack the line that ends it."""
    record: Record = []
    for line in lines:
        if line.startswith(_END):
            yield record
            record = []
        else:
            record.append(line.rstrip("\r\n"))
    if any(map(str.strip, record)):
        yield record


def _molecule(record: Record) -> Atoms | str:
    """Return the molecule of a record, or the problem with it."""
    try:
        atoms = _parse_v3000(record) if "V3000" in record[3] else _parse_v2000(record)
    except KeyError as error:
        return f"has the unknown element {shorten(str(error), most=20)}"
    except (ValueError, IndexError):
        return "cannot be read as sdf (its counts and its lines of atoms do not fit)"
    if record[1][20:22].upper() == "2D" and len(atoms) > 1 and not atoms.positions[:, 2].any():
        return "is a drawing (2D), which has no distances; give its SMILES, or compute positions"
    title = record[0].strip()
    named = {"name": title} if title else {}
    atoms.info |= {**_write_smiles(record), **named, **_parse_tags(record)}
    return atoms


@functools.cache
def _import_chem() -> Any:
    """Return RDKit's module of molecules, its log silenced; None where it is not installed."""
    try:
        from rdkit import Chem, RDLogger
    except ImportError:
        return None
    RDLogger.DisableLog("rdApp.*")
    return Chem


def _write_smiles(record: Record) -> dict[str, Value]:
    """Return the ``smiles`` of a molecule, by which its descriptors are recognised among its tags.

    Returns:
        Nothing where RDKit is not installed, or where a molecule is none to it.
    """
    chem = _import_chem()
    molecule = None if chem is None else chem.MolFromMolBlock("\n".join(record))
    return {} if molecule is None else {"smiles": chem.MolToSmiles(molecule)}


def _parse_v2000(record: Record) -> Atoms:
    """Parse a molecule of fixed columns; where some are not kept, blanks divide an atom's line.

    The codes of charges in the lines of atoms hold only where there are no lines of charges.
    """
    count = int(record[3][:3])
    bonds = int(record[3][3:6])
    lines, rest = record[4 : 4 + count], record[4 + count :]
    if len(lines) < count or any(line[:1] not in "MAVGS>" for line in rest[bonds : bonds + 1]):
        raise ValueError
    cells = [line.split()[:4] for line in lines]
    if not all(map(_is_atom, cells)):
        cells = [[line[:10], line[10:20], line[20:30], line[31:34].strip()] for line in lines]
    charges = _list_values(rest, "M  CHG")
    radicals = _list_values(rest, "M  RAD")
    if not charges and not radicals:
        pairs = zip(lines, cells, strict=True)
        after = [line.partition(cell[3])[2].split() for line, cell in pairs]
        codes = [int(words[1]) for words in after if len(words) > 1 and words[1].isdigit()]
        charges = [_CHARGES.get(code, 0) for code in codes]
        radicals = [2 for code in codes if code == 4]
    return _make(cells, charges, radicals)


def _is_atom(cells: Sequence[str]) -> bool:
    return len(cells) == 4 and all(map(is_number, cells[:3])) and cells[3].isalpha()


def _list_values(lines: Sequence[str], start: str) -> list[int]:
    """Return the second of each pair, atom and value, in lines as ``M  CHG  2   1   1   5  -1``."""
    return [int(v) for line in lines if line.startswith(start) for v in line.split()[4::2]]


def _parse_v3000(record: Record) -> Atoms:
    """Parse a molecule of lines ``M  V30 INDEX SYMBOL X Y Z MAP CHG=1``; ``-`` continues a line."""
    text = "\n".join(line[7:].strip() for line in record if line.startswith("M  V30 "))
    lines = text.replace("-\n", " ").split("\n")
    counts = [int(line.split()[1]) for line in lines if line.startswith("COUNTS ")]
    first = lines.index("BEGIN ATOM") + 1
    words = [line.split() for line in lines[first : lines.index("END ATOM")]]
    if counts != [len(words)]:
        raise ValueError
    options = [word.partition("=") for line in words for word in line[6:]]
    charges, radicals = (
        [int(value) for key, _, value in options if key == wanted] for wanted in ("CHG", "RAD")
    )
    return _make([[*line[2:5], line[1]] for line in words], charges, radicals)


def _make(cells: Sequence[Sequence[str]], charges: list[int], radicals: list[int]) -> Atoms:
    """Make a molecule.

    Args:
        cells: for each atom three coordinates in angstrom and the symbol.
        charges: formal charges.
        radicals: codes of radicals.
    """
    positions = np.array([[float(x) for x in place] for *place, _ in cells]).reshape(-1, 3)
    if not all(symbol for *_, symbol in cells):
        raise ValueError
    numbers = [1 if symbol in _HYDROGEN else atomic_numbers[symbol] for *_, symbol in cells]
    atoms = Atoms(numbers, positions=positions)
    atoms.info["charge"] = sum(charges)
    atoms.info["spin"] = sum(_UNPAIRED.get(code, 0) for code in radicals)
    return atoms


def _parse_tags(record: Record) -> dict[str, Value]:
    """Return the tags of a molecule; the value of each is in the lines up to a blank one."""
    tags: dict[str, Value] = {}
    lines = iter(record[4:])
    for line in lines:
        if line.startswith(">"):
            value = "\n".join(itertools.takewhile(str.strip, lines)).strip()
            if value and (name := _TAG.match(line)) is not None:
                tags[name[1].strip()] = value_of(value)
    return tags
