"""Read each record of a growing JSON-lines file once."""

import json
from pathlib import Path
from typing import Any

_LARGEST_READ = 1 << 20


def _parse(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if isinstance(value, dict):
        return value
    return {"record": "unreadable", "line": line[:200].decode(errors="replace")}


class JsonlTail:
    """Reader of a JSON-lines file from byte ``offset`` on, also while lines are appended."""

    def __init__(self, path: Path, offset: int) -> None:
        """Start at ``offset`` bytes; the file need not exist yet."""
        self.path = path
        self.offset = offset

    def read(self) -> list[dict[str, Any]]:
        """Return the records of the next complete lines, about 1 MiB at most; [] if there are none.

        A line that is not a JSON object becomes a record of kind ``unreadable``.
        """
        lines: list[bytes] = []
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                size = 0
                while size < _LARGEST_READ and (line := file.readline()).endswith(b"\n"):
                    lines.append(line)
                    size += len(line)
        except FileNotFoundError:
            return []
        self.offset += sum(map(len, lines))
        return [_parse(line) for line in lines if line.strip()]


def end_of(path: Path) -> int:
    """Return the length of a file in bytes, 0 when it does not exist."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
