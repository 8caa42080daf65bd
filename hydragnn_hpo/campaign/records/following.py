"""A journal that grows, read as it grows: every line once."""

from pathlib import Path

from hydragnn_hpo.campaign.records.journal import Event, decode
from hydragnn_hpo.errors import RunError

MOST_BYTES = 16_000_000
"""Taken at a time."""


class Replaced(RunError):
    """The journal is not the one that was read so far: begin anew."""


class Following:
    """Where a reader is in a journal that another process writes; opens nothing for writing."""

    def __init__(self, path: Path) -> None:
        """Begin before the first line; the file need not be there yet.

        Args:
            path: the journal.
        """
        self.path = path
        self.offset = 0
        """Bytes of whole lines that were read."""
        self._last = b""
        """The newest line that was read: it has to stand where it stood."""

    def new(self) -> list[Event]:
        """Give what was written since the last time; a line without its end has to wait.

        Raises:
            Replaced: the file is gone, or another one stands in its place.
            RunError: a line before the last is damaged.
        """
        found: list[Event] = []
        while lines := self._lines():
            before = len(found)
            for place, line in enumerate(lines):
                event = decode(line)
                if event is None:
                    if place + 1 < len(lines):
                        raise RunError(
                            f"{self.path}: the line at byte {self.offset} is damaged and lines "
                            "follow it; restore the file from a copy."
                        )
                    break
                self.offset, self._last = self.offset + len(line), line
                found.append(event)
            if len(found) == before:
                break
        return found

    def _lines(self) -> list[bytes]:
        """Give lines that were not read yet, each with its end."""
        begin = self.offset - len(self._last)
        try:
            with self.path.open("rb") as file:
                file.seek(begin)
                content = file.read(MOST_BYTES + len(self._last))
        except FileNotFoundError:
            if not self.offset:
                return []
            raise Replaced(f"{self.path}: was removed; is the run elsewhere now?") from None
        except OSError as error:
            raise RunError(f"{self.path}: cannot be read ({error.strerror}).") from error
        if not content.startswith(self._last):
            raise Replaced(f"{self.path}: was written anew while it was read; look again.")
        *whole, _ = content[len(self._last) :].split(b"\n")
        return [line + b"\n" for line in whole]
