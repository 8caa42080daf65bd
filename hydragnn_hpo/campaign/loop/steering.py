"""What a person asks of a live campaign, acted on by the controller."""

import logging
import time

from hydragnn_hpo.campaign.loop.attempts import Attempts
from hydragnn_hpo.campaign.loop.book import Book
from hydragnn_hpo.campaign.requests import Request, answer, read_requests
from hydragnn_hpo.campaign.state import Trial
from hydragnn_hpo.campaign.wishes import check_wish
from hydragnn_hpo.errors import HydraError, StorageError
from hydragnn_hpo.layout import RunDir

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""How often the folder of requests is looked at."""


class Steering:
    """Answers requests, each once."""

    def __init__(self, run: RunDir, book: Book, attempts: Attempts) -> None:
        """Look at the requests of a run from now on."""
        self.run, self.book = run, book
        self.attempts = attempts
        self.pause_wanted = False
        self._looked = 0.0

    def turn(self) -> None:
        """Act on what was asked since the last look."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        try:
            asked = read_requests(self.run)
        except (OSError, StorageError) as error:  # they are there at the next look, or the one then
            logger.warning("requests cannot be read: %s", error)
            return
        for path, request in asked:
            try:
                check_wish(request, self.attempts.config, self.book.state)
            except HydraError as error:
                logger.warning("%s: refused: %s", path.name, error)
            else:
                self._obey(request, path.stem)
            answer(path)

    def _obey(self, request: Request, name: str) -> None:
        match request.request:
            case "pause":
                self.pause_wanted = True
            case "stop":
                self._stop()
            case "add-trials":
                self._add(request, name)
            case "cancel":
                self._cancel(self.book.state.trials[request.trial or ""])
            case "retry":
                self.book.note("retried", trial=request.trial)
        self.attempts.news = True

    def _stop(self) -> None:
        """Let running trials rest; those that wait are cancelled, nobody is promoted.

        All at once and said last: a controller that dies meanwhile is asked again.
        """
        for trial in self.book.state.with_status("queued"):
            self._drop(trial, "the campaign was stopped", durable=False)
        self.book.note("ending")

    def _add(self, request: Request, name: str) -> None:
        """Widen the budget once, for the brain or for values that the person chose."""
        if name not in self.book.state.additions:
            chosen = [dict(values) for values in request.values]
            count = request.count or len(chosen)
            self.book.note("added", request=name, trials=count, values=chosen)

    def _cancel(self, trial: Trial) -> None:
        if trial.status == "running":
            self.attempts.ask(trial, "cancelled")
        elif trial.status == "queued":
            self._drop(trial, "a person cancelled it")

    def _drop(self, trial: Trial, why: str, *, durable: bool = True) -> None:
        """End a trial that waits: what it reached at an earlier rung stays its result."""
        if trial.rests:
            self.book.note("rested", durable=durable, trial=trial.name)
            return
        ended = {"outcome": "cancelled", "reason": "cancelled", "message": why}
        self.book.note("ended", durable=durable, trial=trial.name, **ended)
