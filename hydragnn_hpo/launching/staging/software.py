"""Which Python agents are started with, and where it finds this package."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import hydragnn_hpo
from hydragnn_hpo.launching.staging.pack import Pack

ROOT = Path(hydragnn_hpo.__file__).parents[1]
"""Where this package is found: a checkout, or ``site-packages``."""

PATH = "PYTHONPATH"
"""The variable that says where."""

_ARRIVAL = "hydragnn_hpo.launching.staging.arrival"


def import_path(ours: Mapping[str, str]) -> dict[str, str]:
    """Give the variable by which another process finds this package, where it is a checkout."""
    if ROOT.name in ("site-packages", "dist-packages"):
        return {}
    return {PATH: os.pathsep.join(filter(None, (str(ROOT), ours.get(PATH))))}


@dataclass(frozen=True)
class Software:
    """What is executed on a host to be a Python with our package in it."""

    python: tuple[str, ...] = (sys.executable,)
    """The command, to which Python's own arguments are added."""

    path: str | None = None
    """PYTHONPATH, where it is not to be ours; an empty one is unset."""

    starts_others: bool = False
    """Whether the command may start Python as a child, in place of becoming it."""

    def settle(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Give an agent's environment with the way to our package in it."""
        if self.path is None:
            return {**environment, **import_path(environment)}
        kept = {name: value for name, value in environment.items() if name != PATH}
        return kept | ({PATH: self.path} if self.path else {})


OWN = Software()
"""The Python that we run in ourselves, which hosts see where we see it."""


def arrival_argv(what: str, pack: Pack, place: str, *more: str) -> tuple[str, ...]:
    """Give the command that serves a packed environment on a host, see ``arrival.py``.

    ``-S`` and ``-P``: of a file system that thousands share, only few files are to be read.
    """
    known = ("--checksum", pack.checksum, "--place", place, "--old-prefix", pack.prefix)
    return (sys.executable, "-S", "-P", "-m", _ARRIVAL, what, *known, *more)


def packed(pack: Pack, place: str) -> Software:
    """Give the Python of a packed environment, which a host fetches once more if it lost it."""
    python = arrival_argv("start", pack, place, "--shared", str(pack.path), "--")
    return Software(python, path=str(ROOT))
