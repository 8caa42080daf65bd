"""Requests to a running rank: lines in a pipe to which its parent process writes.

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
"""``yield``: save a checkpoint and exit; ``stop``: end the trial now and write its result."""

_KNOWN: dict[bytes, Request] = {word.encode(): word for word in get_args(Request)}

_READ_BYTES = 4096


class RequestReader:
    """Reads the requests to this rank; without a pipe there are none, and no error is raised."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """Use the descriptor that the environment names, if it is a pipe."""
        self._newest: Request | None = None
        self._unfinished = b""
        self._pipe: int | None = None
        number = environment.get(REQUESTS, "")
        if not (number.isascii() and number.isdecimal()):
            return
        try:
            # An outdated number may by now be the descriptor of another file.
            if stat.S_ISFIFO(os.fstat(int(number)).st_mode):
                os.set_blocking(int(number), False)  # training never waits
                self._pipe = int(number)
        except (OSError, OverflowError):
            return

    def read(self) -> Request | None:
        """Return the newest request received so far; None if there was none.

        Unknown lines are ignored: agents of a later version may send other requests.
        """
        while self._pipe is not None and (content := self._receive(self._pipe)):
            *lines, unfinished = (self._unfinished + content).split(b"\n")
            self._unfinished = unfinished[:_READ_BYTES]  # bounds memory if a line never ends
            for line in lines:
                self._newest = _KNOWN.get(line.strip(), self._newest)
        return self._newest

    def _receive(self, pipe: int) -> bytes:
        """Return the bytes in the pipe; stop using it once it is closed or broken."""
        try:
            content = os.read(pipe, _READ_BYTES)
        except BlockingIOError:
            return b""
        except OSError:
            content = b""
        if not content:
            self._pipe = None
        return content
