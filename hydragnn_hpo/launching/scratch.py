"""A private folder of one agent on its host, for what only it and its ranks touch."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from urllib.parse import quote


class Scratch:
    """A folder under the host's temporary folder that is ours alone, made at its first use."""

    def __init__(self, owner: str) -> None:
        """Remove what an earlier life of the same owner left."""
        self._prefix = f"hydragnn-hpo-{quote(owner, safe='')}-"
        self._path: Path | None = None
        for old in Path(tempfile.gettempdir()).glob(f"{self._prefix}*"):
            with contextlib.suppress(OSError):
                if old.lstat().st_uid == os.getuid():
                    shutil.rmtree(old)

    def file(self, name: str) -> Path:
        """Give the path of a file, whatever its name is made of.

        Raises:
            OSError: the temporary folder is full or not ours.
        """
        if self._path is None:
            self._path = Path(tempfile.mkdtemp(prefix=self._prefix))
        return self._path / quote(name, safe="")

    def remove(self) -> None:
        """Leave nothing behind."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
