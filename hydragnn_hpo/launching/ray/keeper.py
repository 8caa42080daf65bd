"""The actor that keeps our agent on one host of a Ray cluster.

It travels by value: Ray starts it on any host, and what is wrong there is told by a sentence.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_SAID = 2000


class Keeper:
    """Runs one agent as the child of its main thread: where it ends, the kernel ends the agent."""

    def keep(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: str | None,
        before: tuple[str, str] | None,
    ) -> dict[str, Any]:
        """End what an earlier agent left on this host, then run the agent until it ends.

        Args:
            argv: what to run after the name of the Python interpreter.
            environment: added to that of the host's raylet.
            log: where the agent's output is appended; a file of its own if None.
            before: variable and value that what is to be ended carries in its environment.

        Returns:
            The agent's exit code, and what it said last.
        """
        if before is not None:
            _sweep(*before, path=environment.get("PYTHONPATH", ""))
        with open(log, "ab+") if log else tempfile.TemporaryFile() as file:
            began = file.seek(0, os.SEEK_END)
            code = subprocess.call(
                [sys.executable, *argv],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=_of_the_host() | dict(environment),
                start_new_session=True,
            )
            file.seek(max(began, file.seek(0, os.SEEK_END) - _SAID))
            return {"code": code, "said": file.read().decode(errors="replace")}


def _sweep(variable: str, value: str, *, path: str) -> None:
    """Kill what carries a tag on this host, and see it gone."""
    sys.path.extend(folder for folder in path.split(os.pathsep) if folder)
    from hydragnn_hpo.launching.strays import end_tagged

    end_tagged(variable, value)


def _of_the_host() -> dict[str, str]:
    """Give our environment with the devices of the host's raylet.

    A worker that asked Ray for no GPU may have been shown none.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _DEVICES}
    content = Path(f"/proc/{os.environ['RAY_RAYLET_PID']}/environ").read_bytes()
    for entry in content.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name.decode() in _DEVICES:
            kept[name.decode()] = os.fsdecode(value)
    return kept
