"""Agents and ranks inside a container image: the command that runs Python there."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydragnn_hpo.config import ContainerConfig, fill_path
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.staging.software import Software

PYTHON = "python3"
"""In the image; it has our package."""

_DATA = "HYDRAGNN_HPO_DATA"


def contained(
    container: ContainerConfig, image: Path, *, binds: Sequence[Path], path: str | None = None
) -> Software:
    """Give the Python of an image.

    Args:
        container: what the machine's profile says of containers.
        image: a file (``.sif``), or a folder as ``apptainer build --sandbox`` makes it.
        binds: folders of the host that are seen inside, under their own names.
        path: where to look for the program, in place of PATH.

    Raises:
        ConfigError: there is no such image or program, or a folder cannot be bound.
    """
    if not image.exists():
        raise ConfigError(f"{image}: no such container image; see launch/container for one.")
    program = container.command[0]
    if shutil.which(program, path=path) is None:
        raise ConfigError(
            f"machine.container needs the program '{program}', which is not on PATH: load its "
            "module, or name another one in the profile's container.command."
        )
    wanted = [folder.absolute() for folder in binds]
    for folder in wanted:
        if any(sign in str(folder) for sign in ":,"):
            raise ConfigError(f"{folder}: cannot be bound into a container, it has ':' or ','.")
    named = [part for folder in dict.fromkeys(wanted) for part in ("--bind", str(folder))]
    inside = (*container.command, *container.flags, *named, str(image.absolute()), PYTHON)
    return Software(inside, path="", starts_others=True)


def binds_of(
    run_dir: Path, scratch: str | None, environment: Mapping[str, str] = os.environ
) -> list[Path]:
    """Give the folders that ranks need: the run, scratch, raw data, and ``/sys`` for counters."""
    found = [run_dir, Path("/sys")]
    if scratch is not None:
        found.append(Path(fill_path(scratch, environment)))
    if data := environment.get(_DATA):
        found.append(Path(data))
    return found
