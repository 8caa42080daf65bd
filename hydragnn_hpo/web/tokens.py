"""The token of a service: where it comes from, and comparing it without telling how far it fits."""

import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hydragnn_hpo.errors import ConfigError

VARIABLE = "HYDRAGNN_HPO_TOKEN"
"""Environment variable that may hold the token."""
SHORTEST = 16
"""Fewest characters of a token that somebody chose."""


@dataclass(frozen=True)
class Token:
    """What a client must know."""

    text: str
    """Printable ASCII without blanks."""
    made: bool
    """Whether it was made just now, so that it has to be shown."""

    def fits(self, header: str | None) -> bool:
        """Say whether an ``Authorization`` header is ``Bearer`` and this token."""
        kind, _, found = (header or "").partition(" ")
        same = hmac.compare_digest(found.strip().encode(), self.text.encode())
        return same and kind.lower() == "bearer"


def find_token(file: Path | None, environment: Mapping[str, str]) -> Token:
    """Take the token of a file, else of the environment, else make one.

    Args:
        file: a file that only its owner may read.
        environment: may hold ``HYDRAGNN_HPO_TOKEN``.

    Raises:
        ConfigError: the file is missing or open to others, or the token is too short.
    """
    if file is not None:
        return Token(_sound(_read(file), str(file)), made=False)
    if VARIABLE in environment:
        return Token(_sound(environment[VARIABLE].strip(), VARIABLE), made=False)
    return Token(secrets.token_urlsafe(32), made=True)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(4096)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); give a file that holds the token."
        ) from error
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(f"{path}: others may read it; chmod 600 it, and change the token.")
    return content.decode("ascii", errors="replace").strip()


def _sound(text: str, where: str) -> str:
    if len(text) < SHORTEST or not all("!" <= letter <= "~" for letter in text):
        raise ConfigError(
            f"{where}: a token has at least {SHORTEST} printable ASCII characters and no blanks; "
            "openssl rand -hex 32 makes one."
        )
    return text
