"""A private folder of one agent on its host, for what only it and its ranks touch."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from urllib.parse import quote


class Scratch:
    """A folder under the host's temporary folder that is ours alone."""

    def __init__(self, owner: str) -> None:
        """Make it, in place of what an earlier life of the same owner left."""
        prefix = f"hydragnn-hpo-{quote(owner, safe='')}-"
        for old in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            with contextlib.suppress(OSError):
                if old.lstat().st_uid == os.getuid():
                    shutil.rmtree(old)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))

    def file(self, name: str) -> Path:
        """Give the path of a file, whatever its name is made of."""
        return self.path / quote(name, safe="")

    def remove(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.path, ignore_errors=True)
