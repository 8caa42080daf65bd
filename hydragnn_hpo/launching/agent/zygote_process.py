"""The zygote as its agent sees it."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydragnn_hpo.launching.process_control import ZYGOTE, end_tagged
from hydragnn_hpo.launching.wire.channel import Channel

_START_SECONDS = 600.0
"""Seconds a zygote has for its imports, which may come over a busy file system."""

_UNANSWERED = 15
"""A zygote that left so many pings, five per lease time, without an answer is hung."""


def _path(code: Path | None) -> dict[str, str]:
    """Let modules be looked for in a folder first."""
    if code is None:
        return {}
    known = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{code}{os.pathsep}{known}" if known else str(code)}


class ZygoteProcess:
    """A child process with a channel, which imports once and forks ranks."""

    def __init__(self, token: str, preload: Sequence[str], code: Path | None = None) -> None:
        """Execute it.

        Args:
            token: marks it and everything it will fork.
            preload: modules that it imports.
            code: folder in which it is to find this package, if not where we found it.
        """
        ours, theirs = socket.socketpair()
        descriptor = theirs.fileno()
        module = "hydragnn_hpo.launching.agent.zygote"
        argv = [sys.executable, "-P", "-m", module, str(descriptor), str(os.getpid()), *preload]
        self.token = token
        self.ready = False
        self.told: dict[str, Any] = {}
        self.error: str | None = None
        self.began = time.monotonic()
        self.unanswered = 0
        self.process = subprocess.Popen(
            argv,
            pass_fds=[descriptor],
            stdin=subprocess.DEVNULL,
            env=os.environ | {ZYGOTE: token, "OMP_NUM_THREADS": "1"} | _path(code),
        )
        theirs.close()
        self.channel = Channel(ours)

    def ping(self, now: float) -> None:
        """See whether it lives; kill it when it hangs."""
        if not self.ready:
            hangs = now - self.began > _START_SECONDS
        else:
            hangs = self.unanswered >= _UNANSWERED
            self.unanswered += 1
            self.channel.send({"op": "ping"})
        if hangs:
            self.process.kill()

    def end(self) -> None:
        """Kill it and all it forked, and wait until they are gone."""
        self.channel.close()
        self.process.kill()
        self.process.wait()
        end_tagged(ZYGOTE, self.token)
