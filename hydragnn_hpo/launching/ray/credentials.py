"""The token without which we neither join nor start a Ray cluster (Law 10)."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.files import storage, write_text

MODE = "RAY_AUTH_MODE"
TOKEN = "RAY_AUTH_TOKEN"
PATH = "RAY_AUTH_TOKEN_PATH"

_ALWAYS = {
    MODE: "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Tell nobody of us, and leave the devices of processes that ask Ray for none as they are."""

_REFUSED = ("ROCR_VISIBLE_DEVICES",)
"""Slurm sets it and Ray (2.45 and later) does not start with it (ray-project/ray #53737)."""


def ray_environment(
    environment: Mapping[str, str], token: Path | None = None, home: Path | None = None
) -> dict[str, str]:
    """Give the environment in which to run whatever speaks with a Ray cluster.

    Args:
        environment: what there is now.
        token: file of the cluster's token; where Ray itself would look, if left out.
        home: home folder of the user, where Ray looks last.

    Raises:
        ConfigError: there is no token, or others can read it.
    """
    kept = {name: value for name, value in environment.items() if name not in _REFUSED}
    if token is None and environment.get(TOKEN):
        return kept | _ALWAYS
    path = token or Path(environment.get(PATH) or (home or Path.home()) / ".ray" / "auth_token")
    _check(path)
    kept.pop(TOKEN, None)
    return kept | _ALWAYS | {PATH: str(path.absolute())}


def _check(path: Path) -> None:
    """See that a token file can be used: Ray aborts without a sentence where it cannot."""
    try:
        content, mode = path.read_text().strip(), path.stat().st_mode
    except (OSError, UnicodeDecodeError):
        content, mode = "", 0
    if not content:
        raise ConfigError(
            f"{path}: no token of a Ray cluster is there, and without one anybody could use what "
            f"we start: set {PATH} to the file of your cluster's token."
        )
    if mode & 0o077:
        raise ConfigError(f"{path}: others may read this token: run 'chmod 600 {path}'.")


def make_token(path: Path) -> Path:
    """Write a new token that only its owner can read, unless there is one; gives ``path``.

    Raises:
        StorageError: it cannot be written.
    """
    if not path.exists():
        with storage(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_text(path, secrets.token_hex(32))
        os.chmod(path, 0o600)
    return path
