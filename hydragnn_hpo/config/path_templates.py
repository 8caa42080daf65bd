"""Paths with variables in them: what they may hold, and what comes of them on a host.

Without pydantic: agents need it, and thousands of them are not to load what they do not.
"""

import re
from collections.abc import Mapping

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.sanitize import quote

FIELD = re.compile(r"\{([^{}]*)\}")
"""What ``rank.folders`` of a profile have filled in: ``{trial}``."""

FOLDER_FIELDS = frozenset({"scratch", "trial", "host", "slot"})
"""What is known to be filled in there."""

_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")


def one_line(text: str) -> str:
    """Return a text of one line.

    Raises:
        ValueError: it is none.
    """
    if not text.isprintable():
        raise ValueError(f"{quote(text)} holds what cannot be printed: write one line.")
    return text


def place(text: str) -> str:
    """Return an absolute path in which ``fill_path`` fills in variables.

    Raises:
        ValueError: it is none.
    """
    if re.search(r"[$`]", _VARIABLE.sub("", one_line(text))):
        raise ValueError(
            f"{quote(text)}: write variables as $USER or ${{USER}}, others are not filled in."
        )
    if not text.startswith(("/", "$")):
        raise ValueError(f"{quote(text)} is no absolute path: begin it with / or a variable.")
    return text


def fill_path(text: str, environment: Mapping[str, str]) -> str:
    """Fill the variables of a path in: ``$USER`` and ``${USER}``, and nothing else.

    Raises:
        ConfigError: a variable is not set, or is empty, or would lead elsewhere.
    """

    def value_of(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        value = environment.get(name, "")
        if not value:
            raise ConfigError(f"'{text}': {name} is not set: set it, or write the path itself.")
        if not value.isprintable() or ".." in value.split("/"):
            raise ConfigError(
                f"'{text}': {name} is {value!r}, which is no part of a path: correct it."
            )
        return value

    try:
        return _VARIABLE.sub(value_of, place(text))
    except ValueError as error:
        raise ConfigError(str(error)) from error
