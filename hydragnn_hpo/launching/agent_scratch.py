"""A private folder of one agent on its host, for what only it and its ranks touch."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from urllib.parse import quote

_RANDOM = "?" * 8
"""Letters that ``mkdtemp`` adds: with more of them it is of a host whose name begins as ours."""


class AgentScratch:
    """A folder on a local place of the host that is ours alone, made at its first use."""

    def __init__(self, owner: str) -> None:
        """Remove what an earlier life of the same owner left."""
        self._prefix = f"hydragnn-hpo-{quote(owner, safe='')}-"
        self._path: Path | None = None
        self._place = Path(tempfile.gettempdir())
        self._clear()

    def prefer(self, place: Path | None) -> None:
        """Use another place than the temporary folder, if nothing was put there yet."""
        if place is not None and self._path is None:
            self._place = place
            self._clear()

    def _clear(self) -> None:
        for old in self._place.glob(f"{self._prefix}{_RANDOM}"):
            with contextlib.suppress(OSError):
                if old.lstat().st_uid == os.getuid():
                    shutil.rmtree(old)

    def file(self, name: str) -> Path:
        """Return the path of a file, whatever its name is made of.

        Raises:
            OSError: the place is full or not ours.
        """
        if self._path is None:
            self._path = Path(tempfile.mkdtemp(prefix=self._prefix, dir=self._place))
        return self._path / quote(name, safe="")

    def remove(self) -> None:
        """Leave nothing behind."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
