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

from hydragnn_hpo.campaign.attempts import Attempts
from hydragnn_hpo.campaign.chosen_values import check_values
from hydragnn_hpo.campaign.event_store import EventStore
from hydragnn_hpo.campaign.state import State, Trial
from hydragnn_hpo.config import CampaignConfig, Config, Scalar, parse_config, validation_sentence
from hydragnn_hpo.errors import ConfigError, HydraError, RunError, StorageError
from hydragnn_hpo.files import storage, write_json
from hydragnn_hpo.layout import RunDir

logger = logging.getLogger(__name__)

Kind = Literal["stop", "pause", "retry", "cancel", "add-trials"]

LARGEST = 4 * 2**20
"""Bytes of a request; a longer file is none of ours."""

MOST = 100_000
"""Trials that one request may add."""


class UserRequest(Config):
    """One request. Read by ``campaign.controller``."""

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
            wanted = "name one trial" if of_one else "leave the trial out"
            raise ValueError(f"'{self.request}': {wanted}.")
        adds = (self.count is not None) + bool(self.values)
        if adds != (self.request == "add-trials"):
            has = "both" if adds > 1 else "one of them" if adds else "neither"
            raise ValueError(
                f"'{self.request}' has {has} of count and values; give one to add-trials, none "
                "to another request."
            )
        return self


def write_request(run: RunDir, kind: Kind, **values: Any) -> Path:
    """Write a request for the controller of a run; return its file.

    Args:
        run: the run directory.
        kind: of the request.
        values: ``trial``, ``count`` or ``values``, as the kind needs.

    Raises:
        ConfigError: the request makes no sense.
        StorageError: the run directory cannot be written.
    """
    request = parse_config({"request": kind, **values}, UserRequest, where="request")
    with storage(run.requests):
        run.requests.mkdir(mode=0o700, exist_ok=True)
    path = run.requests / f"{time.time_ns():020d}-{secrets.token_hex(4)}.json"
    write_json(path, request.model_dump(mode="json", exclude_defaults=True), private=True)
    return path


def read_requests(run: RunDir) -> list[tuple[Path, UserRequest]]:
    """Return what was asked and not yet answered, oldest first.

    A file that is no request is removed with a warning.
    """
    requests = []
    for path in sorted(run.requests.glob("[0-9]*.json")):
        try:
            requests.append((path, _read(path)))
        except FileNotFoundError:
            continue
        except ConfigError as error:
            logger.warning("%s: no request, removed: %s", path, error)
            remove_request(path)
    return requests


def remove_request(path: Path) -> None:
    """Remove a request that was acted on, or refused."""
    with storage(path):
        if path.is_dir() and not path.is_symlink():
            path.rename(path.with_suffix(".refused"))
        else:
            path.unlink(missing_ok=True)


def _read(path: Path) -> UserRequest:
    """Read one file.

    Raises:
        ConfigError: it is not a small regular file with a request in it.
    """
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
        raise ConfigError("it is not a small file: write a request with a command.")
    try:
        return UserRequest.model_validate(json.loads(path.read_bytes()))
    except ValidationError as error:
        raise ConfigError(validation_sentence(error, UserRequest)) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            "it is no JSON that can be read: write a request with a command."
        ) from error


def check_request(request: UserRequest, config: CampaignConfig, state: State) -> None:
    """Refuse a request that cannot come true.

    Args:
        request: the request.
        config: the campaign.
        state: how it stands.

    Raises:
        RunError: the campaign is finished, or the trial cannot be retried or cancelled.
        ConfigError: there is no such trial, or values do not fit the campaign's space.
    """
    if state.finished:
        raise RunError(
            f"campaign '{config.name}' is finished: nothing is left to {_verb(request)}; start "
            "another one, with search.warm_start to use its results."
        )
    if request.trial is not None:
        _check_trial(request.trial, request.request, state)
    if request.request == "stop" and state.ending:
        raise RunError(f"campaign '{config.name}' was asked to stop before: wait for its end.")
    if request.request == "add-trials" and state.ending:
        raise RunError(
            f"campaign '{config.name}' was asked to stop: start another one for more trials."
        )
    for values in request.values:
        check_values(config, values)


def _verb(request: UserRequest) -> str:
    return "add to" if request.request == "add-trials" else request.request


def _check_trial(name: str, verb: str, state: State) -> None:
    trial = state.trials.get(name)
    if trial is None:
        if not state.trials:
            raise ConfigError(f"there is no trial '{name}': wait until one is proposed.")
        first = min(state.trials)
        last = max(state.trials)
        raise ConfigError(
            f"there is no trial '{name}': name one of the {len(state.trials)} from {first} to "
            f"{last}."
        )
    if verb == "cancel" and trial.status not in ("queued", "running"):
        raise RunError(
            f"{name} has ended already ({trial.reason or trial.status}): name one that has not."
        )
    if verb == "retry":
        _check_retry(trial)


def _check_retry(trial: Trial) -> None:
    if trial.reason == "bad_config":
        raise RunError(
            f"{trial.name} cannot run with its values ({trial.message}): add a trial with others."
        )
    if trial.status not in ("failed", "cancelled"):
        kept = "leave it with its result" if trial.rung_scores else "let it end first"
        raise RunError(
            f"{trial.name} is {trial.status}: only a failed or cancelled trial is retried; {kept}."
        )


LOOK_SECONDS = 0.5
"""How often the folder of requests is looked at."""


class RequestHandler:
    """Answers requests, each once."""

    def __init__(self, run: RunDir, event_store: EventStore, attempts: Attempts) -> None:
        """Start without having read any request."""
        self.run, self.event_store = run, event_store
        self.attempts = attempts
        self.pause_wanted = False
        self._looked = 0.0

    def handle_new(self) -> None:
        """Act on the requests written since the last look."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        try:
            requests = read_requests(self.run)
        except (OSError, StorageError) as error:  # they are there at the next look, or the one then
            logger.warning("requests cannot be read: %s", error)
            return
        for path, request in requests:
            try:
                check_request(request, self.attempts.config, self.event_store.state)
            except HydraError as error:
                logger.warning("%s: refused: %s", path.name, error)
            else:
                self._act_on(request, path.stem)
            remove_request(path)

    def _act_on(self, request: UserRequest, name: str) -> None:
        match request.request:
            case "pause":
                self.pause_wanted = True
            case "stop":
                self._stop()
            case "add-trials":
                self._add(request, name)
            case "cancel":
                self._cancel(self.event_store.state.trials[request.trial or ""])
            case "retry":
                self.event_store.append("retried", trial=request.trial)
        self.attempts.news = True

    def _stop(self) -> None:
        """End the search: running trials go to their rungs, waiting ones are cancelled.

        The event comes last: if this controller dies before it, the request is still there.
        """
        for trial in self.event_store.state.with_status("queued"):
            self._drop(trial, "the campaign was stopped", durable=False)
        self.event_store.append("ending")

    def _add(self, request: UserRequest, name: str) -> None:
        """Widen the budget once, for the brain or for values that the person chose."""
        if name not in self.event_store.state.additions:
            chosen = [dict(values) for values in request.values]
            count = request.count or len(chosen)
            self.event_store.append("added", request=name, trials=count, values=chosen)

    def _cancel(self, trial: Trial) -> None:
        if trial.status == "running":
            self.attempts.ask(trial, "cancelled")
        elif trial.status == "queued":
            self._drop(trial, "a person cancelled it")

    def _drop(self, trial: Trial, why: str, *, durable: bool = True) -> None:
        """End a trial that waits: what it reached at an earlier rung stays its result."""
        if trial.rung_scores:
            self.event_store.append("rested", durable=durable, trial=trial.name)
            return
        ended = {"outcome": "cancelled", "reason": "cancelled", "message": why}
        self.event_store.append("ended", durable=durable, trial=trial.name, **ended)
