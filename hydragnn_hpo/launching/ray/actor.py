"""The actor that has our agent on one host of a Ray cluster.

It travels by value, so that Ray can start it wherever it runs itself; what else is wrong on a
host is told by a sentence.
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
"""Bytes of an agent's last words that are told."""


class AgentActor:
    """Runs one agent as the child of its main thread: when that ends, the kernel ends the agent."""

    def run(
        self, argv: Sequence[str], *, environment: Mapping[str, str], log: str | None
    ) -> dict[str, Any]:
        """Run an agent until it ends and nothing that it started is left.

        Args:
            argv: what to run after the name of the Python interpreter.
            environment: added to that of the host's raylet; names the agent's life.
            log: where the agent's output is appended; a file of its own if None.

        Returns:
            The agent's exit code, and what it said last.
        """
        with open(log, "ab+") if log else tempfile.TemporaryFile() as file:
            began = file.seek(0, os.SEEK_END)
            code = subprocess.call(
                [sys.executable, *argv, "--parent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=_of_the_host() | dict(environment),
                start_new_session=True,
            )
            file.seek(max(began, file.seek(0, os.SEEK_END) - _SAID))
            said = file.read().decode(errors="replace").strip()
        self.sweep(environment)
        return {"code": code, "said": said}

    def sweep(self, environment: Mapping[str, str]) -> None:
        """Kill whatever an agent that had this environment left on this host, and see it gone."""
        paths = environment.get("PYTHONPATH", "").split(os.pathsep)
        sys.path.extend(path for path in paths if path and path not in sys.path)
        from hydragnn_hpo.launching.process_control import AGENT, end_tagged

        end_tagged(AGENT, environment[AGENT])


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
