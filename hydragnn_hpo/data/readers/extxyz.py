"""Extended XYZ, compressed or not: any run of structures, and a bad one does not stop the others.

Each frame is cut out of the file by its count of atoms and read from its own text.
"""

import io
import itertools
import lzma
import zlib
from collections.abc import Iterator

from hydragnn_hpo.data.readers.ase_file import single, structures_in
from hydragnn_hpo.data.readers.source import OPENERS, Item, Source
from hydragnn_hpo.errors import DataError


def count_extxyz(source: Source) -> int | None:
    """Count the frames; None where the file is torn, which ``read_extxyz`` will say."""
    try:
        return sum(1 for _ in _frames(source, 0, None))
    except DataError:
        return None


def read_extxyz(source: Source, start: int, stop: int | None) -> Iterator[Item]:
    """Read frames ``start`` to ``stop``.

    Raises:
        DataError: the file is unreadable, empty, or no longer in frames.
    """
    path = source.path
    for number, text in _frames(source, start, stop):
        name = f"{path.name}:{number}"
        try:
            place = f"{path}: structure {number}"
            atoms = single(structures_in(io.StringIO(text), "extxyz", place), path)
        except DataError as error:
            reason = str(error).replace(f"{place}: structure 1 ", f"{place} ")
            yield name, DataError(reason)
        else:
            yield name, atoms


def _frames(source: Source, start: int, stop: int | None) -> Iterator[tuple[int, str]]:
    """Give number, counted from 1, and text of some frames; earlier ones have no text kept."""
    path = source.path
    opener = OPENERS.get(path.suffix.lower(), open)
    number = 0
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            for head in file:
                if not head.strip():
                    continue
                if stop is not None and number >= stop:
                    return
                number += 1
                atoms = _count(head, f"{path}: structure {number}")
                lines = list(itertools.islice(file, atoms + 1))
                if len(lines) <= atoms or (atoms and not lines[-1].strip()):
                    raise DataError(
                        f"{path}: structure {number} cannot be read as extxyz (the file ends "
                        f"within its {atoms} atoms); get the file again."
                    )
                if number > start:
                    yield number, "".join([head, *lines])
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DataError(f"{path}: cannot be read ({reason}); get the file again.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not a text file ({error.reason}).") from error
    if not number:
        raise DataError(f"{path}: is empty, it holds no structure; get the file again.")


def _count(head: str, place: str) -> int:
    try:
        atoms = int(head)
    except ValueError:
        atoms = -1
    if atoms < 0:
        raise DataError(
            f"{place} cannot be read as extxyz (a number of atoms was wanted, found "
            f"{head.strip()[:40]!r}); mend or remove it."
        )
    return atoms
