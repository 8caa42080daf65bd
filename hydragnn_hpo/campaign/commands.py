"""Trials that are a command of the user's: what they are told, and what counts as their end."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydragnn_hpo.campaign.outcome import Attempt, last_lines, outcome_of
from hydragnn_hpo.config.campaign import CampaignConfig
from hydragnn_hpo.config.command import CommandConfig
from hydragnn_hpo.config.loading import to_toml
from hydragnn_hpo.launching.agent.command import spec_of
from hydragnn_hpo.launching.job import Slot
from hydragnn_hpo.layout import TrialDir, derive_seed
from hydragnn_hpo.search import space
from hydragnn_hpo.search.objective import number, objective_of

if TYPE_CHECKING:
    from hydragnn_hpo.campaign.work import RunJob

FROM_OUTSIDE = (71, 73, 75, 128 + signal.SIGTERM)
"""Exit codes of a rank that was not its command's doing: no fork, no lease, lease lapsed, and a
command that was asked to end and did."""


class Command:
    """Trials that are a command."""

    kind = "command"
    needs: tuple[Path, ...] = ()

    def __init__(self, config: CampaignConfig, command: CommandConfig) -> None:
        """Know what to run, with ``{here}`` filled in."""
        self.config, self.command = config, command
        self.stats: dict[str, Any] = {}

    def prepare(self, job: "RunJob") -> None:
        """Have nothing to prepare."""

    def configure(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Fill the searched values into the template; name and seed are ours."""
        seed = derive_seed(self.config.seed, name, "training")
        return {"trial": name, "seed": seed, **space.apply(self.config.trial, dict(values))}

    def written(self, config: dict[str, Any]) -> str:
        """Give the content of ``trial.toml``."""
        return to_toml(config)

    def ranks(self, slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
        """Give the slots on which a process is started: all, or the first for all of them."""
        return slots if self.command.per == "rank" else slots[:1]

    def spec(
        self, trial: TrialDir, *, attempt: int, epochs: int, slots: tuple[Slot, ...]
    ) -> dict[str, Any]:
        """Give the command and its place."""
        return spec_of(self.command, trial, attempt=attempt, epochs=epochs, slots=slots)

    def ended(self, attempt: Attempt, *, until: int, first: int | None) -> dict[str, Any]:
        """Say how an attempt ended; see ``outcome.outcome_of``.

        A result must hold what is minimized. A command that ended by itself without a result is
        at fault; one that lost its host or its lease is not.

        Args:
            attempt: what is known of it.
            until: epoch up to which it was to go, and went unless its result says otherwise.
            first: the rank that ended first, if anybody saw it.
        """
        log, path = attempt.folder / "log", attempt.folder / "result.json"
        if not path.exists():
            if attempt.asked is None and attempt.error is None and _by_itself(attempt.codes, first):
                codes = ", ".join(map(str, attempt.codes))
                return _bug(f"ended (exit code {codes}) without result.json: {last_lines(log)}")
            lost = [code for code in attempt.codes if code < 0]  # others may look like ours
            return outcome_of(replace(attempt, codes=lost))
        ended = outcome_of(attempt)
        if ended["outcome"] not in ("completed", "stopped"):
            return ended
        if objective_of(self.config.search.objective, ended) is None:
            goal = self.config.search.objective
            wanted = "objective" if goal == "weighted" else f"search.objective {goal!r}"
            return _bug(f"{path}: has no finite number for {wanted}: {last_lines(log)}")
        return _sound(ended, until)


def _sound(ended: dict[str, Any], until: int) -> dict[str, Any]:
    """Keep of what a user wrote only what can be counted and shown."""
    reached, errors = ended["reached"], ended.get("val_mae")
    known = isinstance(reached, int) and 0 < reached <= until
    errors = errors if isinstance(errors, dict) else {}
    numbers = {head: e for head, each in errors.items() if (e := number(each)) is not None}
    reason = ended["reason"]
    return ended | {
        "reached": reached if known else until,
        "val_mae": numbers,
        "reason": reason if isinstance(reason, str) else None,
    }


def _bug(message: str) -> dict[str, Any]:
    return {"outcome": "failed", "reason": "bug", "message": message}


def _by_itself(codes: Sequence[int], first: int | None) -> bool:
    """Whether the rank that ended first, or any if nobody saw it, was not ended from outside."""
    judged = list(codes) if first is None else [codes[first]]
    return bool(judged) and all(code >= 0 and code not in FROM_OUTSIDE for code in judged)
