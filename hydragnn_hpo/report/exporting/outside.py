"""Keep libraries of trackers at home: no server, no login, no file outside the export."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

_THEIRS = ("WANDB_", "MLFLOW_", "DATABRICKS_", "_MLFLOW")
"""Variables that would send an export elsewhere."""

_FOLDERS = (
    "HOME",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
    "TMPDIR",
)
"""Where they would keep caches, settings, logs and keys."""


@contextlib.contextmanager
def at_home(folder: Path, settings: Mapping[str, str]) -> Iterator[None]:
    """Let them see our settings only, and a folder of their own as the user's.

    Args:
        folder: for whatever they keep beside the export.
        settings: environment variables that they read.
    """
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith(_THEIRS)]:
        del os.environ[name]
    os.environ.update({name: str(folder) for name in _FOLDERS})
    os.environ.update({"DO_NOT_TRACK": "true", **settings})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
