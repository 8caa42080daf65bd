"""Anything ASE reads: CIF, POSCAR, trajectories and many more; also compressed."""

import codecs
import contextlib
import io
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from ase import Atoms
from ase.io import iread
from ase.io.cif import CIFBlock, parse_cif
from ase.io.formats import UnknownFileTypeError, extension2format, filetype, ioformats

from hydragnn_hpo.data.readers.formats import recognize
from hydragnn_hpo.data.readers.lengths import LengthUnit, decide_length, to_angstrom
from hydragnn_hpo.data.readers.qm9 import QM9, QM9_UNITS, read_qm9
from hydragnn_hpo.data.readers.read_limits import LimitExceeded, read_limits
from hydragnn_hpo.data.readers.sdf import MOLFILES, holds_one_molecule, molecules_of
from hydragnn_hpo.data.readers.source import OPENERS, Item, Source, count_lines, read_text
from hydragnn_hpo.errors import ConfigError, DataError, unknown
from hydragnn_hpo.sanitize import shorten, shorten_words

# What matters of ASE's warnings is a reason to set a structure aside, see ``_read_cif``.
warnings.filterwarnings("ignore", module=r"ase\.", append=True)

_READABLE = sorted(name for name, form in ioformats.items() if form.can_read)


def read_ase_file(source: Source) -> Iterator[Item]:
    """Read every structure of a file; a bad one is an error in its place.

    A compressed file is decompressed into a string first: ASE seeks backwards, which takes minutes
    in a gzip stream.

    Yields:
        Name and structure.

    Raises:
        ConfigError: ASE has no reader of the format that the card names.
        DataError: the file cannot be read.
    """
    path = source.path
    if source.format is not None and source.format not in _READABLE:
        raise ConfigError(f"{path}: {unknown('format', source.format, _READABLE)}")
    form = source.format or format_of(path)
    content: Path | IO[str] = path
    if path.suffix.lower() in OPENERS:
        try:
            with read_limits(path.stat().st_size):
                content = io.StringIO(read_text(path))
        except LimitExceeded as error:
            raise unreadable(f"{path}: structure 0", form, error) from error
    length = source.length
    if form == N2P2 and length is None:
        length = choose_length(path)
    for number, atoms in enumerate(structures_in(content, form, path, length)):
        yield f"{path.name}@{number}", atoms


def read_stated_units(source: Source) -> Iterable[tuple[str, str]]:
    """Return name and unit of each property of a raw file of QM9; of other formats none."""
    form = recognize(source.path)
    return QM9_UNITS if form is not None and form.name == QM9 else ()


N2P2 = "runnerdata"
"""ASE's name of the format of n2p2 and RuNNer, which does not say its units."""


def choose_length(path: Path) -> LengthUnit:
    """Choose the unit of lengths of a file of n2p2 by the distances of its atoms.

    Raises:
        ConfigError: it is not clear which unit they are in.
        DataError: the file cannot be read.
    """
    content = io.StringIO(read_text(path))
    frames = structures_in(content, N2P2, path, "bohr")
    with contextlib.closing(frames):  # type: ignore[type-var]
        unit = decide_length(atoms for atoms in frames if isinstance(atoms, Atoms))
    if unit is None:
        raise ConfigError(
            f"{path}: does not say whether it is in bohr and Hartree or in angstrom and eV, and "
            'distances of its atoms fit neither well: write length = "bohr" or "angstrom" under '
            "[[files]] of the card, or give init --unit positions=bohr or positions=angstrom."
        )
    return unit


def holds_one_structure(source: Source) -> bool:
    """Check whether a file holds at most one structure, also where it cannot be read.

    By its format, for CIF and SDF by its content. A file of no known format counts as one.
    """
    try:
        form = source.format or format_of(source.path)
    except DataError:
        return True
    if form == "cif":
        return count_lines(source.path, _BLOCK) <= 1
    if form in MOLFILES:
        return holds_one_molecule(source.path)
    return form not in ioformats or ioformats[form].single


_BLOCK = re.compile(rb"\s*data_", re.IGNORECASE)
"""Beginning of the line that begins a block of a CIF."""


def structures_in(
    content: Path | IO[str], form: str, place: Path | str, length: str | None = None
) -> Iterator[Atoms | DataError]:
    """Yield the structures of a file or a text stream, and the error of one that is not usable.

    Args:
        content: path or text stream.
        form: ASE's name of the format.
        place: file, for errors.
        length: unit of lengths; None means angstrom. It also decides on energies of n2p2's files,
            which are in Hartree or in eV.

    Raises:
        DataError: ASE cannot read the next structure, or there is none.
    """
    number = 0
    try:
        size = _size_of(content)
        frames = _frames_in(content, form, length)
        while True:
            with read_limits(size):
                atoms = next(frames, None)
            if atoms is None:
                break
            if isinstance(atoms, str):
                yield DataError(f"{place}: structure {number} {atoms}; mend or remove it.")
            else:
                yield to_angstrom(atoms, None if form == N2P2 else length)
            number += 1
    except (MemoryError, GeneratorExit):
        raise
    except Exception as error:  # ASE's parsers raise errors of many types
        raise unreadable(f"{place}: structure {number}", form, error) from error
    if not number:
        raise DataError(
            f"{place}: was read as {form} and holds no structure; give a file of structures."
        )


def _frames_in(content: Path | IO[str], form: str, length: str | None) -> Iterator[Atoms | str]:
    """Yield structures, and for one that is not usable the problem; see ``structures_in``."""
    if form == "cif":
        return _read_cif(content)
    if form in MOLFILES:
        return molecules_of(content)
    if form == QM9:
        return read_qm9(content)
    # otherwise ``NAME@0`` would be structure 0 of the file NAME
    options: dict[str, Any] = {"parallel": False, "do_not_split_by_at_sign": True}
    if form == N2P2:
        from ase.io.runner.runneratoms import Units

        options["input_units"] = Units.ATOMIC if length == "bohr" else Units.ASE
    frames: Iterator[Atoms] = iread(content, ":", format=form, **options)
    return frames


def _size_of(content: Path | IO[str]) -> int:
    """Return the bytes of a file, or the characters of a text."""
    if isinstance(content, Path):
        return content.stat().st_size
    size = content.seek(0, os.SEEK_END)
    content.seek(0)
    return size


_CELL = CIFBlock.cell_tags
"""Tags of a CIF for the lengths and angles of the cell."""


def _read_cif(content: Path | IO[str]) -> Iterator[Atoms | str]:
    """Yield the structures of a CIF, and for one that is not usable the problem and the cure.

    Latin-1 is what ASE reads CIF as; a byte order mark at the beginning is left out.
    """
    stream: Any = content
    if isinstance(content, Path):
        stream = io.BytesIO(content.read_bytes().removeprefix(codecs.BOM_UTF8))
    block: Any
    for block in parse_cif(stream):
        if block.has_structure():
            yield _check_cell(block) or _check_occupancies(block) or _structure_of_block(block)


def _check_cell(block: Mapping[str, Any]) -> str | None:
    """Return the problem with the cell of a CIF, without which ASE would build a molecule."""
    known = [tag for tag in _CELL if isinstance(block.get(tag), int | float)]
    missing = [tag for tag in _CELL if tag not in known]
    if not missing or not (known or "_atom_site_fract_x" in block):
        return None
    return f"has no number for {', '.join(missing)}; give the cell"


def _check_occupancies(block: Mapping[str, Any]) -> str | None:
    """Return the problem with an occupancy that is not a number, such as ``?``."""
    shares = block.get("_atom_site_occupancy")
    for site, share in enumerate(shares if isinstance(shares, list) else [], start=1):
        if not isinstance(share, int | float):
            return f"has the occupancy {share!r} at site {site}; give a number, 1 for a full site"
    return None


def _structure_of_block(block: Any) -> Atoms | str:
    """Return the structure of a CIF, or the problem if two elements share a site.

    Of symmetry-equivalent sites ASE keeps the first; it warns unless there are occupancies.
    """
    symbols = block.get_symbols()
    shares = block.get("_atom_site_occupancy")
    if shares is None:
        full = {**block, "_atom_site_occupancy": [1.0] * len(symbols)}
        block = CIFBlock(block.name, full)
    atoms: Atoms = block.get_atoms()
    if shares is None:
        del atoms.info["occupancy"]
    elif any(share != 1 for share in np.atleast_1d(shares)):
        return atoms  # refused with its shares when it becomes a graph
    kinds = atoms.arrays.get("spacegroup_kinds", np.arange(len(symbols)))
    dropped = sorted(set(range(len(symbols))) - set(kinds.tolist()))
    if not dropped:
        return atoms
    places = atoms.cell.scaled_positions(atoms.positions)
    basis = block.get_unsymmetrized_structure().get_scaled_positions()
    for site in dropped:
        apart = places - basis[site]
        nearest = np.linalg.norm(apart - np.rint(apart), axis=1).argmin()
        if (other := symbols[kinds[nearest]]) != symbols[site]:
            return (
                f"has {other} and {symbols[site]} on one site (site {site + 1}); give an ordered "
                "structure"
            )
    return atoms


def single_structure(path: Path) -> Atoms:
    """Read a file that holds exactly one structure."""
    return single((atoms for _, atoms in read_ase_file(Source(path))), path)


def single(frames: Iterator[Atoms | DataError], place: Path | str) -> Atoms:
    """Return the first and only structure.

    Args:
        frames: structures, at least one.
        place: file, for errors.

    Raises:
        DataError: it is not usable, or there is a second structure.
    """
    atoms = next(frames)
    if isinstance(atoms, DataError):
        raise atoms
    if next(frames, None) is not None:
        raise DataError(f"{place}: holds several structures where one belongs; split it.")
    return atoms


def format_of(path: Path) -> str:
    """Return the name of the format of a file: by its content, or else by its name.

    Raises:
        DataError: the file is empty or unreadable, its format unknown or one that is not read.
    """
    if path.is_file() and path.stat().st_size == 0:
        raise DataError(f"{path}: is empty; get the file again.")
    if (recognized := recognize(path)) is not None:
        if recognized.cure is not None:
            raise DataError(f"{path}: is {recognized.name}: {recognized.cure}.")
        return recognized.name
    packed = path.suffix.lower() in OPENERS
    name = path.with_suffix("").name if packed else str(path)
    suffix = Path(name).suffix.lower()[1:]
    try:
        form = str(filetype(name, read=not packed))
        inner = Path(name).with_suffix("")
        if form not in ioformats and inner.suffix:
            form = str(filetype(inner.name, read=False))
    except (UnknownFileTypeError, OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(
            f"{path}: cannot be read ({reason}); give a file in a format that ASE knows."
        ) from error
    if form.startswith("vasp") and suffix in extension2format:
        form = str(extension2format[suffix].name)
    if form not in ioformats:
        raise DataError(
            f"{path}: structure 0 cannot be read, as neither content nor name shows the format; "
            "name it as the program does that wrote it, or give format under [[files]] of a card."
        )
    return form


def unreadable(place: str, form: str, error: Exception) -> DataError:
    """Return an error for a structure that ASE cannot read.

    For an unknown chemical symbol ASE raises a ``KeyError`` that holds only the symbol.

    Args:
        place: file and number of the structure.
        form: ASE's name of the format.
        error: what ASE raised.
    """
    reason = " ".join(str(error).split()).partition(". ")[0] or "a part is missing or misplaced"
    if isinstance(error, KeyError):
        reason = f"unknown element or key {error}"
    reason = shorten(shorten_words(reason, most=30))  # it may quote what stands in the file
    return DataError(f"{place} cannot be read as {form} ({reason}); mend or remove it.")
