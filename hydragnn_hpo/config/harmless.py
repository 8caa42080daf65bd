"""Values of profiles that reach a batch script, an argv or a path: what they may hold.

Nothing of ours builds a shell string from a value. These types keep out what would do harm in a
script that somebody else fills or sources: line ends, quotes, substitutions.
"""

import re
from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator

from hydragnn_hpo.config.filling import one_line, place


def _matching(pattern: str, what: str) -> Callable[[str], str]:
    def checked(text: str) -> str:
        if not re.fullmatch(pattern, text, re.ASCII):
            raise ValueError(f"{text!r} is no {what}.")
        return text

    return checked


def _literal(text: str) -> str:
    if re.search(r"[$`]", one_line(text)):
        raise ValueError(
            f"{text!r} holds $ or a backquote, and nothing fills it in: write the value itself."
        )
    return text


Line = Annotated[str, AfterValidator(one_line)]
"""Any text of one line."""

Variable = Annotated[
    str,
    AfterValidator(
        _matching(r"[A-Za-z_][A-Za-z0-9_]*", "name of a variable: use letters, digits and _")
    ),
]
"""Name of an environment variable."""

Plain = Annotated[str, AfterValidator(_literal)]
"""Value of an environment variable, as it stands."""

Place = Annotated[str, AfterValidator(place)]
"""An absolute path in which ``filled`` fills in variables."""

Title = Annotated[
    str,
    AfterValidator(
        _matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "name: use letters, digits, . _ and -")
    ),
]
"""Name of a machine."""

Interface = Annotated[
    str,
    AfterValidator(
        _matching(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,14}", "network interface, such as hsn0")
    ),
]
"""Name of a network interface; Linux allows 15 characters."""

Module = Annotated[
    str,
    AfterValidator(
        _matching(r"[A-Za-z0-9][A-Za-z0-9._+/-]*", "environment module, such as rocm/7.1.1")
    ),
]
"""Name of an environment module, with its version or without."""

Option = Annotated[
    str,
    AfterValidator(
        _matching(
            r"--?[A-Za-z0-9][A-Za-z0-9_=:,.+/%@&|*()\[\]!^~{}-]*",
            "option: write one such as --gpus-per-node=8 or -c7",
        )
    ),
]
"""One argument of an argv that begins with ``-`` and has no spaces."""

Directive = Annotated[
    str,
    AfterValidator(
        _matching(
            r"--?[A-Za-z0-9][A-Za-z0-9 _=:,.+/%@&|*()\[\]!^~-]*",
            "directive: write one such as --partition=batch or -l place=scatter",
        )
    ),
]
"""What follows ``#SBATCH`` or ``#PBS``: an option, perhaps with a value after a space."""

Environment = dict[Variable, Plain]
"""Variables and their values."""
