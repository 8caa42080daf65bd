"""``FILE@INDEX``: some structures of a file, by their numbers from 0 on, as ASE writes it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hydragnn_hpo.errors import DataError

_NUMBER = r"[-+]?\d{1,12}"
_STEP = r"[-+]?0{0,9}[1-9]\d{0,9}"
_INDEX = re.compile(rf"{_NUMBER}|({_NUMBER})?:({_NUMBER})?(?::({_STEP})?)?", re.ASCII)

MANY = 10**15
"""A number of structures that no file holds: the end of a range without an end."""


@dataclass(frozen=True)
class Selection:
    """A part of the structures of a file."""

    file: Path
    index: str
    """A number, or a range ``first:end:step``; negative numbers count from the end of the file."""

    def resolve(self, count: Callable[[], int]) -> range:
        """Return the numbers of the structures, some of which may lie beyond the end of the file.

        Args:
            count: counts the structures of the file; called only for negative numbers.

        Raises:
            DataError: the file holds too few structures.
        """
        chosen = self._slice()
        total = count() if "-" in self.index else MANY
        numbers = range(*chosen.indices(total))
        if not numbers:
            raise self.beyond_end(count())
        return numbers

    def _slice(self) -> slice:
        parts = [int(part) if part else None for part in self.index.split(":")]
        if len(parts) > 1:
            return slice(*parts)
        number = parts[0]
        assert number is not None, "an index is not empty"
        return slice(number, None if number == -1 else number + 1)

    def beyond_end(self, count: int) -> DataError:
        """Return the error of a selection that holds no structure.

        Args:
            count: number of structures of the file.
        """
        return DataError(
            f"{self.file}@{self.index}: selects none of the {count} structures, which are numbered "
            f"from 0 to {count - 1}; correct the index."
        )


def split_index(path: Path) -> tuple[Path, str]:
    """Split ``FILE@INDEX``, whether the file exists or not.

    Returns:
        The file, and the index with its ``@``; of another path the path and an empty text.
    """
    name, at, index = path.name.rpartition("@")
    if not name or not _INDEX.fullmatch(index):
        return path, ""
    return path.with_name(name), at + index


def find_selection(path: Path) -> Selection | None:
    """Return what ``FILE@INDEX`` selects; None if the path is a file or FILE is none."""
    file, index = split_index(path)
    if not index or not file.is_file() or path.exists():
        return None
    return Selection(file, index.removeprefix("@"))


def strip_index(path: Path) -> Path:
    """Return the file of ``FILE@INDEX``, and any other path unchanged."""
    selection = find_selection(path)
    return path if selection is None else selection.file
