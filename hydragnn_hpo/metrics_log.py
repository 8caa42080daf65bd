"""Structured records: the only way a number leaves a running trial (Law 2).

A record is a JSON object on a line of its own, with its kind in ``record`` and the ``time`` in
seconds since 1970. The first record names the unit of each target in ``units``. The README of
``training`` lists all kinds and their keys.
"""

import errno
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hydragnn_hpo.files import FILE_MODE, storage


def replace_nonfinite(value: Any) -> Any:
    """Return nested values with NaN and infinity, which JSON cannot hold, replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: replace_nonfinite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [replace_nonfinite(item) for item in value]
    return value


class RecordWriter:
    """Appends records to a file, one line each."""

    def __init__(self, path: Path) -> None:
        """Open the file for appending."""
        self.path = path
        with storage(path):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)

    def write(self, record: str, time: float, **values: Any) -> None:
        """Append one record as one line, in a single write.

        Args:
            record: kind of the record.
            time: seconds since 1970.
            values: further keys with values that JSON can represent.

        Raises:
            StorageError: the line cannot be written, or only a part of it (full disk).
        """
        line = json.dumps(
            replace_nonfinite({"record": record, "time": time, **values}), allow_nan=False
        )
        content = line.encode() + b"\n"
        with storage(self.path):
            if os.write(self._descriptor, content) < len(content):  # only a full disk does this
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Flush the file to disk and close it."""
        with storage(self.path):
            os.fsync(self._descriptor)
        os.close(self._descriptor)


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file, without an incomplete last line; none if there is no file."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)
