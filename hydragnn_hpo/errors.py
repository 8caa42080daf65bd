"""Errors for users: one sentence each, with the place, what was found there, and what to do.

Errors with different remedies are different classes. The command line prints the sentence and
exits with ``exit_code``. Any other exception is a bug and shows its traceback, unless it is an
error of the operating system, such as a full disk or missing permission.
"""

import difflib
from collections.abc import Iterable


class HydraError(Exception):
    """Base class of the errors for users."""

    exit_code = 2
    """Exit code of the command line."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython and Jupyter show in place of a traceback: the sentence."""
        return [f"{type(self).__name__}: {self}"]


class ConfigError(HydraError):
    """A setting is wrong: the user corrects a file or an argument."""


class DataError(HydraError):
    """A structure, card or store is wrong: the user corrects the data."""


class UnsupportedStructure(DataError):
    """A structure is of a kind that no model here represents: the user gives another kind."""


class RunError(HydraError):
    """A run directory does not allow what a command does."""


class StorageError(HydraError):
    """A file cannot be read or written: the user makes room or changes permissions."""


class JobError(HydraError):
    """A job failed."""

    exit_code = 1


def answer_of(error: HydraError) -> dict[str, str | bool]:
    """Return the answer of a job that failed with an error.

    Returns:
        ``error``: the sentence; ``storage``: present and true if a file could not be read or
        written, so that the job may succeed on another host.

    >>> answer_of(ConfigError("no heads."))
    {'error': 'no heads.'}
    """
    return {"error": str(error)} | ({"storage": True} if isinstance(error, StorageError) else {})


def unknown(kind: str, found: str, known: Iterable[str]) -> str:
    """Return a sentence about an unknown name, with the nearest known name and all of them.

    >>> unknown("conv", "schent", ["gin", "pna", "schnet"])
    "unknown conv 'schent'. Did you mean 'schnet'? Known: gin, pna, schnet."

    Args:
        kind: of thing that the name stands for, such as ``conv``.
        found: the unknown name.
        known: all names of that kind.
    """
    names = sorted(known)
    close = difflib.get_close_matches(found, names, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return f"unknown {kind} '{found}'.{hint} Known: {', '.join(names) or 'none'}."
