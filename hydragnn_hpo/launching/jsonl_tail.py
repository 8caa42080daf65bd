"""Read records as they are appended to a JSON-lines file, each once."""

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
    """The records of a JSON-lines file from ``offset`` (bytes) on, as they appear."""

    def __init__(self, path: Path, offset: int) -> None:
        """Begin at ``offset``; the file need not exist yet."""
        self.path = path
        self.offset = offset

    def read(self) -> list[dict[str, Any]]:
        """Return the next whole lines, about a megabyte at most; [] when there are none.

        A line that is no JSON object becomes a record of kind ``unreadable``.
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
