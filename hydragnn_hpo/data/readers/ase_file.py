"""Anything ASE reads: CIF, POSCAR, trajectories and many more; also compressed."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ase import Atoms
from ase.io import iread
from ase.io.formats import UnknownFileTypeError, filetype, ioformats

from hydragnn_hpo.data.readers.source import OPENERS, Source, read_text
from hydragnn_hpo.errors import ConfigError, DataError, unknown

_READABLE = sorted(name for name, form in ioformats.items() if form.can_read)


def read_ase_file(source: Source) -> Iterator[tuple[str, Atoms]]:
    """Read every structure of a file.

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
    if path.suffix.lower() in OPENERS:
        inner = path.with_suffix("").name
        frames = structures_in(
            io.StringIO(read_text(path)), source.format or _format(path, inner), path
        )
    else:
        frames = structures_in(path, source.format or _format(path, None), path)
    for number, atoms in enumerate(frames, start=1):
        yield f"{path.name}:{number}", atoms


def structures_in(content: Any, form: str, place: Path | str, **options: Any) -> Iterator[Atoms]:
    """Yield the structures of a file or a text stream.

    Args:
        content: path or text stream.
        form: ASE's name of the format.
        place: file, for errors.
        options: options of ASE's reader of this format.

    Raises:
        DataError: ASE cannot read the next structure, or there is none.
    """
    number = 0
    try:
        for atoms in iread(content, ":", format=form, parallel=False, **options):
            number += 1
            yield atoms
    except (MemoryError, GeneratorExit):
        raise
    except Exception as error:  # ASE's parsers raise errors of many types
        raise unreadable(f"{place}: structure {number + 1}", form, error) from error
    if not number:
        raise DataError(f"{place}: holds no structure; get it again.")


def single_structure(path: Path) -> Atoms:
    """Read a file that holds exactly one structure."""
    return single((atoms for _, atoms in read_ase_file(Source(path))), path)


def single(frames: Iterator[Atoms], place: Path | str) -> Atoms:
    """Return the first and only structure.

    Args:
        frames: structures, at least one.
        place: file, for errors.

    Raises:
        DataError: there is a second structure.
    """
    atoms = next(frames)
    if next(frames, None) is not None:
        raise DataError(f"{place}: holds several structures where one belongs; split it.")
    return atoms


def _format(path: Path, inner: str | None) -> str:
    """Return ASE's name of the format of a file.

    Args:
        path: the file.
        inner: name of a compressed file without its suffix, from which alone the format is taken;
            None for a plain file, whose content is examined too.
    """
    if path.is_file() and path.stat().st_size == 0:
        raise DataError(f"{path}: is empty; get the file again.")
    try:
        return str(filetype(inner or str(path), read=inner is None))
    except (UnknownFileTypeError, OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(
            f"{path}: cannot be read ({reason}); give a file in a format that ASE knows."
        ) from error


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
    return DataError(f"{place} cannot be read as {form} ({reason}); mend or remove it.")
