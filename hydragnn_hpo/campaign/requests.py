"""What a person asks of a live campaign: one small file each, in ``RUN/requests``.

A request is written whole, read by the controller in order of time, and removed once it was
acted on. Nothing in such a file is trusted: what cannot be understood is named and removed.
"""

import json
import logging
import secrets
import stat
import time
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveInt, ValidationError, model_validator

from hydragnn_hpo.config.loading import parse, sentence
from hydragnn_hpo.config.schema import Config
from hydragnn_hpo.config.search import Scalar
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.files import storage, write_json
from hydragnn_hpo.layout import RunDir

logger = logging.getLogger(__name__)

Kind = Literal["stop", "pause", "retry", "cancel", "add-trials"]

LARGEST = 4 * 2**20
"""Bytes of a request; a longer file is none of ours."""

MOST = 100_000
"""Trials that one request may add."""


class Request(Config):
    """One wish. Read by ``campaign.loop.controller``."""

    request: Kind
    """``stop``: no new trials, running ones come to rest, the ensemble is built. ``pause``:
    checkpoints, then the controller ends. ``retry``, ``cancel``: of one trial. ``add-trials``:
    more of them."""

    trial: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] | None = None
    """The trial that ``retry`` and ``cancel`` mean."""

    count: Annotated[PositiveInt, Field(le=MOST)] | None = None
    """How many trials ``add-trials`` lets the brain propose beyond the campaign's own."""

    values: Annotated[tuple[dict[str, Scalar], ...], Field(max_length=MOST)] = ()
    """Searched values of the trials that ``add-trials`` adds."""

    @model_validator(mode="after")
    def _says_what_it_needs(self) -> Self:
        of_one = self.request in ("retry", "cancel")
        if of_one != (self.trial is not None):
            raise ValueError(f"'{self.request}' {'names one trial' if of_one else 'has no trial'}.")
        adds = (self.count is not None) + bool(self.values)
        if adds != (self.request == "add-trials"):
            raise ValueError("add-trials has either a count or values, other requests have none.")
        return self


def write_request(run: RunDir, kind: Kind, **values: Any) -> Path:
    """Leave a wish for the controller of a run; gives the file.

    Args:
        run: the run directory.
        kind: what is asked.
        values: ``trial``, ``count`` or ``values``, as the kind needs.

    Raises:
        ConfigError: the wish makes no sense.
        StorageError: the run directory cannot be written.
    """
    request = parse({"request": kind, **values}, Request, where="request")
    with storage(run.requests):
        run.requests.mkdir(mode=0o700, exist_ok=True)
    path = run.requests / f"{time.time_ns():020d}-{secrets.token_hex(4)}.json"
    write_json(path, request.model_dump(mode="json", exclude_defaults=True))
    return path


def read_requests(run: RunDir) -> list[tuple[Path, Request]]:
    """Give what was asked and not yet answered, oldest first.

    A file that is no request is removed with a warning.
    """
    found = []
    for path in sorted(run.requests.glob("[0-9]*.json")):
        try:
            found.append((path, _read(path)))
        except FileNotFoundError:
            continue
        except ConfigError as error:
            logger.warning("%s: no request, removed: %s", path, error)
            answer(path)
    return found


def answer(path: Path) -> None:
    """Remove a request that was acted on, or refused."""
    with storage(path):
        if path.is_dir() and not path.is_symlink():
            path.rename(path.with_suffix(".refused"))
        else:
            path.unlink(missing_ok=True)


def _read(path: Path) -> Request:
    """Read one file.

    Raises:
        ConfigError: it is not a small regular file with a request in it.
    """
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
        raise ConfigError("it is not a small file.")
    try:
        return Request.model_validate(json.loads(path.read_bytes()))
    except ValidationError as error:
        raise ConfigError(sentence(error, Request)) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"it is not JSON ({type(error).__name__}).") from error
