"""Private folders on a host: one for its agent, and below it those of ranks."""

import contextlib
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

from hydragnn_hpo.config.path_templates import FIELD, fill_path
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.launching.protocol import RankStart

logger = logging.getLogger(__name__)

TRIAL = "{trial}"
"""A folder whose name contains this belongs to one attempt and is removed after it; others stay."""


def _one_name(text: str) -> str:
    """Return a text escaped as a single component of a path."""
    safe = quote(text, safe="")
    return safe if safe.strip(".") else safe.replace(".", "%2E") or "%"


def fill(template: str, fields: Mapping[str, str]) -> Path:
    """Return the path that a template of a profile names.

    Args:
        template: such as ``{scratch}/{trial}/miopen``.
        fields: ``scratch`` (a path), ``trial``, ``host``, ``slot``.

    Raises:
        ConfigError: the template names another field.
    """

    def value(found: re.Match[str]) -> str:
        if found[1] not in fields:
            raise ConfigError(
                f"rank.folders: '{template}' names {found[0]}; known: "
                f"{', '.join('{' + name + '}' for name in fields)}."
            )
        return fields[found[1]] if found[1] == "scratch" else _one_name(fields[found[1]])

    return Path(FIELD.sub(value, template))


def fill_all(templates: Mapping[str, str], fields: Mapping[str, str]) -> dict[str, str]:
    """Fill in the folders of one rank.

    Returns:
        Variable -> path.
    """
    return {name: str(fill(template, fields)) for name, template in templates.items()}


def attempt_folders(templates: Mapping[str, str], fields: Mapping[str, str]) -> list[Path]:
    """Return the folders to remove after the attempt; only folders below ``scratch`` qualify."""
    paths = []
    for template in templates.values():
        first, separator, rest = template.partition(TRIAL)
        if separator:  # the folder whose name holds the trial, with all that is in it
            path = fill(first + TRIAL + rest.partition("/")[0], fields)
            if Path(fields["scratch"]) in path.parents and ".." not in path.parts:
                paths.append(path)
    return paths


def remove_folders(paths: list[Path]) -> None:
    """Remove folders with all that is in them."""
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)


def make_rank_folders(
    job: str, ranks: Iterable[RankStart], *, host: str, scratch: Path
) -> list[Path]:
    """Make the folders of a job's ranks, and set their variables in the ranks' environments.

    Args:
        job: id of the job.
        ranks: ranks on this host; variables that name folders are added to each ``environment``.
        host: id of this host.
        scratch: a private folder on this host.

    Returns:
        Folders to remove once the job has ended.

    Raises:
        OSError: a folder cannot be made.
        ConfigError: a template of the profile names an unknown field.
    """
    temporary: list[Path] = []
    for rank in ranks:
        if not rank.folders:
            continue
        fields = {"scratch": str(scratch), "trial": job, "host": host}
        fields["slot"] = str(rank.slot)
        paths = fill_all(rank.folders, fields)
        for path in paths.values():
            os.makedirs(path, mode=0o700, exist_ok=True)
        rank.environment.update(paths)
        temporary += attempt_folders(rank.folders, fields)
    return temporary


def local_place(wanted: str | None, environment: Mapping[str, str]) -> Path | None:
    """Return the profile's scratch folder on this host; None if it is missing or not writable.

    Args:
        wanted: path with variables such as ``$USER``; None if the profile has none.
        environment: values of these variables.
    """
    if wanted is None:
        return None
    try:
        path = Path(fill_path(wanted, environment))
    except ConfigError as error:
        logger.warning("the profile's scratch %s", error)
        return None
    if path.is_dir() and os.access(path, os.W_OK | os.X_OK):
        return path
    instead = tempfile.gettempdir()
    logger.warning("%s: is no folder that we can write here; using %s.", path, instead)
    return None


_RANDOM = "?" * 8
"""Pattern of the suffix that ``mkdtemp`` adds; a longer one belongs to another owner whose name
begins with ours."""


class AgentScratch:
    """A private folder of one owner on a local disk, made at its first use."""

    def __init__(self, owner: str) -> None:
        """Remove the folders that an earlier process of the same owner left."""
        self._prefix = f"hydragnn-hpo-{quote(owner, safe='')}-"
        self._path: Path | None = None
        self._place = Path(tempfile.gettempdir())
        self._clear()

    def prefer(self, place: Path | None) -> None:
        """Use ``place`` instead of the temporary folder, unless the folder was made already."""
        if place is not None and self._path is None:
            self._place = place
            self._clear()

    def _clear(self) -> None:
        for old in self._place.glob(f"{self._prefix}{_RANDOM}"):
            with contextlib.suppress(OSError):
                if old.lstat().st_uid == os.getuid():
                    shutil.rmtree(old)

    def file(self, name: str) -> Path:
        """Return the path of a file in the folder; its name is escaped.

        Raises:
            OSError: the place is full or not ours.
        """
        if self._path is None:
            self._path = Path(tempfile.mkdtemp(prefix=self._prefix, dir=self._place))
        return self._path / quote(name, safe="")

    def remove(self) -> None:
        """Remove the folder with all files in it."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
