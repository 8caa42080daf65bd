"""The content of a run directory in memory: the input of all sections, tables and exports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hydragnn_hpo.campaign import State, read_journal, require_campaign
from hydragnn_hpo.campaign.accounting import Utilization
from hydragnn_hpo.campaign.history import JournalHistory, TrialHistory
from hydragnn_hpo.campaign.state import first_goal
from hydragnn_hpo.config import CampaignConfig, CardConfig, load_config
from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.file_records import EnsembleTable, RunFigures
from hydragnn_hpo.files import read_json
from hydragnn_hpo.journal_events import JournalEvent
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.report.charts import readable_name
from hydragnn_hpo.report.structure_errors import StructureErrors
from hydragnn_hpo.report.test_structures import read_structure_errors
from hydragnn_hpo.search.objective import goal_label, goals

_ENDS = {"seconds": "s", "joules": "J", "bytes": "B"}
"""Unit of a number in a result, by the end of its name."""


@dataclass(frozen=True)
class Facts:
    """The content of a run directory."""

    run: RunDir
    config: CampaignConfig
    """The resolved campaign."""
    cards: Mapping[str, CardConfig]
    """Data cards of the stores, by name; empty if there are none."""
    history: JournalHistory
    """The journal's events, and the trials, slots and state derived from them."""
    figures: RunFigures
    """Counts, slot time and energy of the whole campaign."""
    losses: Utilization
    """Slot-seconds of the campaign, by cause."""
    ensemble: EnsembleTable | None
    """``report/ensemble.json``; None before there is an ensemble."""

    @property
    def state(self) -> State:
        """The campaign's state."""
        return self.history.state

    @property
    def events(self) -> Sequence[JournalEvent]:
        """All events of the journal."""
        return self.history.events

    @property
    def trials(self) -> Mapping[str, TrialHistory]:
        """All trials, in the order in which they were proposed."""
        return self.history.trials

    @property
    def begin(self) -> float | None:
        """Time of the first placement, in seconds since the epoch; None before that."""
        return self.history.slots.begin

    @property
    def end(self) -> float | None:
        """Time of the last event, in seconds since the epoch; None without events."""
        return self.events[-1]["time"] if self.events else None

    @property
    def units(self) -> Mapping[str, str]:
        """Unit of each target, by its name."""
        return self.state.units

    @property
    def data_checksum(self) -> str | None:
        """Checksum of the graphs; None for a command, or before the data is opened."""
        opened = [e["data"] for e in self.events if e["event"] == "opened" and e.get("data")]
        return str(opened[-1]) if opened else None

    @property
    def slots_per_host(self) -> float:
        """Mean number of slots per host, over all hosts that ever joined."""
        return self.history.slots.slots_per_host

    @property
    def members(self) -> Mapping[str, float]:
        """Weight of each ensemble member, by trial; empty before the ensemble is built.

        A configuration whose fits on folds are members is among them, with the weight of these.
        """
        members = self.ensemble["members"] if self.ensemble is not None else ()
        weights = {member["trial"]: member["weight"] for member in members}
        of_parents: dict[str, float] = {}
        for (parent, _), fit in self.state.folds.items():
            if fit in weights:
                of_parents[parent] = of_parents.get(parent, 0.0) + weights[fit]
        return weights | of_parents

    @cached_property
    def structure_errors(self) -> StructureErrors | None:
        """Errors by structure of the test split; None without an ensemble or its structures."""
        if self.ensemble is None:
            return None
        return read_structure_errors(self.run, self.config)

    def goal_name(self, goal: int = 0) -> str:
        """Return the label of one of the campaign's goals, for an axis or a column."""
        wanted = goals(self.config.search.objective)[goal]
        if wanted == "weighted":
            return "objective"
        if isinstance(wanted, str) and wanted.startswith("val_mae."):
            return f"validation MAE of {readable_name(wanted.removeprefix('val_mae.'))}"
        return readable_name(goal_label(wanted))

    def goal_unit(self, goal: int = 0) -> str:
        """Return the unit of a goal; a weighted sum of MAEs is in standard deviations."""
        wanted = goals(self.config.search.objective)[goal]
        if wanted == "weighted" or not isinstance(wanted, str):
            return "MAE / std"
        if wanted.startswith("val_mae."):
            return self.units.get(wanted.removeprefix("val_mae."), "")
        return next((unit for end, unit in _ENDS.items() if wanted.endswith(end)), "")

    def scored_trials(self) -> list[tuple[TrialHistory, float]]:
        """Return the scored trials with their score for the first goal, in order of proposal.

        Fits of the learning curve have other data or epochs, and are left out.
        """
        ranked = (t for t in self.trials.values() if t.trial.is_ranked)
        ended = (t for t in ranked if t.trial.status in ("stopped", "completed"))
        scored = ((trial, first_goal(trial.trial.score)) for trial in ended)
        return [(trial, score) for trial, score in scored if score is not None]


def read_facts(run: RunDir) -> Facts:
    """Read a run directory; the campaign may be running.

    Raises:
        RunError: there is no campaign, or its journal is damaged.
    """
    require_campaign(run)
    return facts_of(run, JournalHistory(read_journal(run.journal)))


def facts_of(run: RunDir, history: JournalHistory) -> Facts:
    """Combine the history of a journal with the campaign, cards and ensemble of the run."""
    config = load_config(run.campaign, CampaignConfig)
    cards = [load_config(path, CardConfig) for path in sorted(run.data.glob("*.bp/card.toml"))]
    more = history.state.is_searching(config.search.trials)
    return Facts(
        run=run,
        config=config,
        cards={card.name: card for card in cards},
        history=history,
        figures=history.figures(),
        losses=history.ledger.utilization(more=more),
        ensemble=read_ensemble_table(run),
    )


def read_ensemble_table(run: RunDir) -> EnsembleTable | None:
    """Read the table of a run's ensemble; None before the ensemble is built.

    Raises:
        StorageError: the file is unreadable, or holds something else.
    """
    path = run.report / "ensemble.json"
    if not path.exists():
        return None
    table: EnsembleTable = read_json(path)
    whole = isinstance(table, dict) and isinstance(table.get("heads"), dict)
    if not whole or not isinstance(table.get("members"), list):
        raise StorageError(
            f"{path}: names no heads or no members; remove it, and build the ensemble again."
        )
    return table
