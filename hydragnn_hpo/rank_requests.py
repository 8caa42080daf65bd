"""What is asked of a rank while it runs: lines in a pipe that the process above it writes.

The environment variable ``HYDRAGNN_HPO_REQUESTS`` holds the number of the pipe's reading end, which
the rank inherits. Each request is one line of ASCII.
"""

import os
import stat
from collections.abc import Mapping
from typing import Literal, get_args

REQUESTS = "HYDRAGNN_HPO_REQUESTS"
"""The environment variable that holds the number of the descriptor."""

Request = Literal["stop", "yield"]
"""``yield``: leave a checkpoint and end; ``stop``: end for good, with a result."""

_KNOWN: dict[bytes, Request] = {word.encode(): word for word in get_args(Request)}

_READ_BYTES = 4096


class RequestReader:
    """Reads what is asked of this rank; without a pipe that is nothing, and never an error."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """Take the pipe that the environment names, if it is one."""
        self._newest: Request | None = None
        self._unfinished = b""
        self._pipe: int | None = None
        number = environment.get(REQUESTS, "")
        if not (number.isascii() and number.isdecimal()):
            return
        try:
            # A number that went stale may by now be a descriptor of something else.
            if stat.S_ISFIFO(os.fstat(int(number)).st_mode):
                os.set_blocking(int(number), False)  # a training never waits for a request
                self._pipe = int(number)
        except (OSError, OverflowError):
            return

    def read(self) -> Request | None:
        """Return the newest request that has come so far; None if there was none.

        Lines that are no known request are ignored: a later agent may send others.
        """
        while self._pipe is not None and (content := self._receive(self._pipe)):
            *lines, unfinished = (self._unfinished + content).split(b"\n")
            self._unfinished = unfinished[:_READ_BYTES]  # a line without end fills no memory
            for line in lines:
                self._newest = _KNOWN.get(line.strip(), self._newest)
        return self._newest

    def _receive(self, pipe: int) -> bytes:
        """Return what lies in the pipe; let go of one that is closed or broken."""
        try:
            content = os.read(pipe, _READ_BYTES)
        except BlockingIOError:
            return b""
        except OSError:
            content = b""
        if not content:
            self._pipe = None
        return content
