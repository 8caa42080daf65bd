"""Waiting for something, and finding processes, for tests that start real ones."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydragnn_hpo.launching.host.strays import find_strays, run_tag

SECONDS = 50.0


def until(look: Callable[[], Any], what: str, seconds: float = SECONDS) -> Any:
    """Wait for a true answer, and give it."""
    deadline = time.monotonic() + seconds
    while not (answer := look()):
        assert time.monotonic() < deadline, f"no {what} after {seconds} s"
        time.sleep(0.01)
    return answer


def is_alive(pid: int) -> bool:
    """Say whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def tagged(run: Path, name: str) -> list[int]:
    """Find the processes of a run by the name the kernel shows for them."""
    found = []
    for pid in find_strays(run_tag(run)):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                found.append(pid)
    return found
