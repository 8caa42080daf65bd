"""The errors a user can meet: one sentence each, with where, what was found, what to do.

Different cures are different classes. The command line prints the sentence and exits
with ``exit_code``; anything else is a bug and shows its traceback, unless it is the operating
system that has no room, no permission or the like.
"""

import difflib
from collections.abc import Iterable


class HydraError(Exception):
    """What every error for a user derives from."""

    exit_code = 2


class ConfigError(HydraError):
    """A setting is wrong: the user edits a file or an argument."""


class DataError(HydraError):
    """A structure, card or store is wrong: the user mends the data."""


class RunError(HydraError):
    """A run directory cannot be used as asked."""


class StorageError(HydraError):
    """The disk said no: the user makes room or changes permissions."""


class JobError(HydraError):
    """Work that was started did not come to a good end."""

    exit_code = 1


def answer_of(error: HydraError) -> dict[str, str | bool]:
    """Return the answer of a job that failed with an error.

    Returns:
        ``error``: the sentence; ``storage``: true where the disk is to blame, so that the job may
        succeed on another host.

    >>> answer_of(ConfigError("no heads."))
    {'error': 'no heads.'}
    """
    return {"error": str(error)} | ({"storage": True} if isinstance(error, StorageError) else {})


def unknown(kind: str, found: str, known: Iterable[str]) -> str:
    """Return a sentence on an unknown name: what it may have meant, and which are known.

    >>> unknown("conv", "schent", ["gin", "pna", "schnet"])
    "unknown conv 'schent'. Did you mean 'schnet'? Known: gin, pna, schnet."
    """
    names = sorted(known)
    close = difflib.get_close_matches(found, names, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return f"unknown {kind} '{found}'.{hint} Known: {', '.join(names)}."
