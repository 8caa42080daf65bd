"""What the trials of a campaign are: trainings of ours, or any command."""

import itertools
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from hydragnn_hpo.campaign.backends import launcher_of, spreads_stores
from hydragnn_hpo.campaign.data_changes import (
    StoreVerifier,
    check_description,
    find_changes,
    note_seen,
    seen_file,
    stamp_sources,
)
from hydragnn_hpo.campaign.outcome import EndedAttempt, find_crash, last_lines, read_outcome
from hydragnn_hpo.campaign.setup import (
    check_corners,
    check_labels,
    facts_of_stats,
    find_trunks,
    stores_of,
    trial_config,
)
from hydragnn_hpo.config import (
    OUT_OF_MEMORY,
    CampaignConfig,
    CardConfig,
    CommandConfig,
    TrialConfig,
    dump_config,
    load_config,
    read_stats,
    to_toml,
    unite_stats,
)
from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.file_records import FailureReason, StoreStats
from hydragnn_hpo.files import storage
from hydragnn_hpo.journal_events import AttemptOutcome, SearchedValues
from hydragnn_hpo.launching import Slot
from hydragnn_hpo.launching.command_rank import spec_of
from hydragnn_hpo.layout import RunDir, TrialDir, derive_seed
from hydragnn_hpo.leases import RANK_LEASE_LAPSED
from hydragnn_hpo.search import apply_values, finite_number
from hydragnn_hpo.search.objective import lacks_number, read_objective

logger = logging.getLogger(__name__)

RunJob = Callable[[str, Mapping[str, str]], Any]
"""Runs a job that is no trial, given its kind and order, and returns its answer."""


class TrialKind(Protocol):
    """What a trial of a campaign is."""

    kind: str
    """Kind of its jobs, see ``launching.job.JOBS``."""

    stats: StoreStats | None
    """What the data hold; None before ``prepare``, and where trials are a command."""

    needs: tuple[Path, ...]
    """What every trial reads beside its own folder."""

    def prepare(self, job: RunJob) -> None:
        """Make ready what all trials need.

        Raises:
            ConfigError: the space does not fit the data.
        """

    def check(self, finish_seconds: float | None = None) -> None:
        """Check whether what all trials need was found altered so far.

        Args:
            finish_seconds: at the end of the search, how long the rest may take to be read.

        Raises:
            StorageError: it was.
        """

    def configure(self, name: str, values: SearchedValues) -> Any:
        """Make a trial's whole configuration.

        Raises:
            ConfigError: the values do not make a valid trial.
        """

    def render_config(self, config: Any) -> str:
        """Return the content of ``trial.toml``."""

    def choose_rank_slots(self, slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
        """Return those of a trial's slots on which a rank is started.

        Returns:
            Slots by rank, in the order of ``slots``.
        """

    def make_spec(
        self, trial: TrialDir, *, attempt: int, epochs: int, slots: tuple[Slot, ...]
    ) -> dict[str, Any]:
        """Return the job specification that every rank of an attempt gets.

        Args:
            trial: the trial's folder.
            attempt: number of the attempt.
            epochs: it is to reach.
            slots: it holds.

        Returns:
            What ``Job.spec`` holds; plain data.
        """

    def read_end(self, attempt: EndedAttempt, *, until: int) -> AttemptOutcome:
        """Read how an attempt that was to go up to an epoch ended, see ``outcome.read_outcome``."""


class TrainingTrials:
    """Trials that train a model on graph stores."""

    kind = "train"

    def __init__(self, config: CampaignConfig, run: RunDir, cards: Mapping[Path, str]) -> None:
        """Keep the cards of the campaign: path and name, which is the store's too."""
        self.config, self.run_dir, self.cards = config, run, cards
        self.stats: StoreStats | None = None
        self.needs = tuple(run.store(name) for name in cards.values())
        self._stores = stores_of(config, list(cards.values()))
        self._verifier: StoreVerifier | None = None

    def check(self, finish_seconds: float | None = None) -> None:
        """Check whether the stores of an earlier run were found altered so far."""
        if self._verifier is None:
            return
        left = None if finish_seconds is None else self._verifier.finish(finish_seconds)
        if self._verifier.damage is not None:
            raise StorageError(self._verifier.damage)
        if left is not None:
            logger.warning("%s", left)

    def prepare(self, job: RunJob) -> None:
        """Build the stores that are not there yet, try the space on them, compute features."""
        every: list[StoreStats] = []
        older = []
        for path, name in self.cards.items():
            store = self.run_dir.store(name)
            sources = stamp_sources(path, load_config(path, CardConfig))
            if (store / "index.json").exists():
                for sentence in find_changes(store, sources):
                    logger.warning("%s", sentence)
                if seen_file(store).exists():  # an earlier version wrote none
                    check_description(store)
                    older.append(store)
            else:
                with storage(self.run_dir.data):
                    self.run_dir.data.mkdir(exist_ok=True)
                job("build", {"card": str(path), "out": str(store)})
                note_seen(store, sources)
            every.append(read_stats(store))
        self._verifier = StoreVerifier(older)
        stats = unite_stats(every, self.config.data, self.config.shared)
        check_corners(self.config, facts_of_stats(stats))
        for sentence in check_labels(self.config, stats):
            logger.warning("%s", sentence)
        for name, spec in find_trunks(self.config).items():
            own = self.config.trunks.get(name)
            trunk = {"trunk": own.file if own else name, "checksum": spec.checksum}
            for store in self.needs:
                job("embed", {"store": str(store), **trunk})
        self.stats = stats

    def configure(self, name: str, values: SearchedValues) -> TrialConfig:
        """Make a trial's configuration from the template and searched values."""
        return trial_config(self.config, name, values, self._stores)

    def render_config(self, config: TrialConfig) -> str:
        """Return the content of ``trial.toml``."""
        return dump_config(config)

    def choose_rank_slots(self, slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
        """Return all slots.

        Returns:
            One slot for each rank.
        """
        return slots

    def make_spec(
        self, trial: TrialDir, *, attempt: int, epochs: int, slots: tuple[Slot, ...]
    ) -> dict[str, Any]:
        """Return trial and attempt; ``placement.toml`` says the rest.

        Args:
            trial: the trial's folder.
            attempt: number of the attempt.
            epochs: is in ``placement.toml``.
            slots: tell whether all ranks lie on one host.

        Returns:
            ``trial_dir attempt one_host``.
        """
        one_host = len({slot.host for slot in slots}) == 1
        return {"trial_dir": str(trial.path.resolve()), "attempt": attempt, "one_host": one_host}

    def read_end(self, attempt: EndedAttempt, *, until: int) -> AttemptOutcome:
        """Read how an attempt ended."""
        return read_outcome(attempt)


class MpiTrainings(TrainingTrials):
    """Trainings whose ranks are started by ``srun`` or ``mpiexec``, so that MPI connects them."""

    kind = "command"

    def choose_rank_slots(self, slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
        """Return the slot of the rank that starts the launcher.

        Returns:
            The first slot.
        """
        return slots[:1]

    def make_spec(
        self, trial: TrialDir, *, attempt: int, epochs: int, slots: tuple[Slot, ...]
    ) -> dict[str, Any]:
        """Return the command that trains, and how it is started on each slot.

        Args:
            trial: the trial's folder.
            attempt: number of the attempt.
            epochs: it is to reach.
            slots: it holds.

        Returns:
            See ``launching.spec_of``.
        """
        train = ("-m", "mpi4py", "-m", "hydragnn_hpo", "trial", "{trial}")
        argv = ("{python}", "-P", *train, "--attempt", str(attempt))
        command = CommandConfig(argv=argv, launcher=launcher_of(self.config))
        kind = CommandTrials(self.config, command)
        return kind.make_spec(trial, attempt=attempt, epochs=epochs, slots=slots)

    def read_end(self, attempt: EndedAttempt, *, until: int) -> AttemptOutcome:
        """Read how an attempt ended, from the exit code of the rank that failed first.

        A training leaves a result where it exits with 1, so that without one it was not started.

        Args:
            attempt: what is known of it.
            until: epoch up to which it was to go.
        """
        codes = [_training_code(code) for code in attempt.codes]
        if codes == [1] and not (attempt.folder / "result.json").exists():
            return _failed("bug", f"was not started: {last_lines(attempt.folder / 'log')}")
        return read_outcome(replace(attempt, codes=codes))


def _training_code(code: int) -> int:
    """Return a launched rank's exit code as that of a forked one: a signal is negative."""
    return 128 - code if 128 < code < 128 + signal.NSIG else code


def make_trial_kind(config: CampaignConfig, run: RunDir, cards: Mapping[Path, str]) -> TrialKind:
    """Choose the kind of trials that the campaign asks for.

    Args:
        config: the campaign.
        run: its directory.
        cards: path and name of each card; empty for a command.
    """
    if config.command is not None:
        return CommandTrials(config, config.command)
    kind = MpiTrainings if spreads_stores(config) else TrainingTrials
    return kind(config, run, cards)


FROM_OUTSIDE = (
    *(os.EX_OSERR, os.EX_CANTCREAT, RANK_LEASE_LAPSED, 128 + signal.SIGTERM, OUT_OF_MEMORY),
)
"""Exit codes of a rank that was not its command's doing: no fork, no lease, lease lapsed, a
command that was asked to end and did, and a rank that the kernel killed for lack of memory."""


class CommandTrials:
    """Trials that are a command."""

    kind = "command"
    needs: tuple[Path, ...] = ()

    def __init__(self, config: CampaignConfig, command: CommandConfig) -> None:
        """Keep the command, with ``{here}`` filled in."""
        self.config, self.command = config, command
        self.stats: StoreStats | None = None

    def prepare(self, job: "RunJob") -> None:
        """Do nothing: a command has no data to prepare."""

    def check(self, finish_seconds: float | None = None) -> None:
        """Do nothing, likewise."""

    def configure(self, name: str, values: SearchedValues) -> dict[str, Any]:
        """Fill the searched values into the template; name and seed are ours.

        Returns:
            Content of ``trial.toml``.
        """
        seed = derive_seed(self.config.seed, name, "training")
        return {"trial": name, "seed": seed, **apply_values(self.config.trial, values)}

    def render_config(self, config: dict[str, Any]) -> str:
        """Return the content of ``trial.toml``."""
        return to_toml(config)

    def choose_rank_slots(self, slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
        """Return the slots on which a process is started: all, or the first for all of them.

        Returns:
            One slot for each process.
        """
        forked = self.command.per == "rank" and self.command.launcher is None
        return slots if forked else slots[:1]

    def make_spec(
        self, trial: TrialDir, *, attempt: int, epochs: int, slots: tuple[Slot, ...]
    ) -> dict[str, Any]:
        """Return the command and its place.

        Args:
            trial: the trial's folder.
            attempt: number of the attempt.
            epochs: it is to reach.
            slots: it holds.

        Returns:
            See ``launching.spec_of``.
        """
        return spec_of(
            self.command,
            trial,
            attempt=attempt,
            epochs=epochs,
            slots=slots,
            machine=self.config.machine,
        )

    def read_end(self, attempt: EndedAttempt, *, until: int) -> AttemptOutcome:
        """Read how an attempt ended; see ``outcome.read_outcome``.

        A result must hold what is minimized. A command that ended by itself without a result is
        at fault; one that lost its host or its lease is not.

        Args:
            attempt: what is known of it.
            until: epoch up to which it was to go, and went unless its result says otherwise.
        """
        log, path = attempt.folder / "log", attempt.folder / "result.json"
        if not path.exists():
            if attempt.stop_reason is None and attempt.error is None and _by_itself(attempt):
                codes = ", ".join(map(str, attempt.codes))
                cause = find_crash(log, _programs(self.command.argv)) or last_lines(log)
                return _failed("bug", f"ended (exit code {codes}) without result.json: {cause}")
            # A command's own codes may look like those that our ranks end with.
            lost = [code for code in attempt.codes if code < 0 or code in FROM_OUTSIDE]
            lost = lost or [1] * len(attempt.codes)
            return read_outcome(replace(attempt, codes=lost, first=None))
        ended = read_outcome(attempt)
        if "reached" not in ended:  # a failure
            return ended
        if ended["outcome"] == "cancelled":
            return _sound(ended, until)
        if read_objective(self.config.search.objective, ended) is None:
            goal = self.config.search.objective
            wanted = "objective" if goal == "weighted" else f"search.objective {goal!r}"
            # Without the number at all it is the campaign that is wrong, not this trial.
            reason: FailureReason = "bad_config" if lacks_number(goal, ended) else "bug"
            return _failed(reason, f"{path}: has no finite number for {wanted}: {last_lines(log)}")
        return _sound(ended, until)


def _sound(ended: AttemptOutcome, until: int) -> AttemptOutcome:
    """Keep of what a user wrote only what can be counted and shown."""
    reached = ended["reached"]
    errors = ended.get("val_mae")
    reason = ended["reason"]
    known = type(reached) is int and 0 < reached <= until  # True is an int, too
    errors = errors if isinstance(errors, dict) else {}
    return {
        **ended,
        "reached": reached if known else until,
        "val_mae": {
            head: e for head, each in errors.items() if (e := finite_number(each)) is not None
        },
        "reason": reason if isinstance(reason, str) else None,
    }


def _failed(reason: FailureReason, message: str) -> AttemptOutcome:
    return {"outcome": "failed", "reason": reason, "message": message}


def _programs(argv: Sequence[str]) -> list[str]:
    """Return the Python scripts that a command names, without ``.py``, and the module it runs."""
    scripts = [Path(part).stem for part in argv if part.endswith(".py")]
    modules = [name for flag, name in itertools.pairwise(argv) if flag == "-m"]
    return [*scripts, *(name.partition(".")[0] for name in modules)]


def _by_itself(attempt: EndedAttempt) -> bool:
    """Check whether the first rank to end, or every one where it is unknown, ended by itself.

    A command that loses a host may end with any code.
    """
    if attempt.away:
        return False
    judged = attempt.codes if attempt.first is None else [attempt.codes[attempt.first]]
    return bool(judged) and all(code >= 0 and code not in FROM_OUTSIDE for code in judged)
