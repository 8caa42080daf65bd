"""Between state and planner: price trials, choose their places, write their orders."""

import statistics
from collections.abc import Sequence

from hydragnn_hpo.campaign.state import State, Trial
from hydragnn_hpo.config.campaign import CampaignConfig
from hydragnn_hpo.config.loading import dump
from hydragnn_hpo.config.sizes import epoch_size
from hydragnn_hpo.config.trial import PlacementConfig, TrialConfig
from hydragnn_hpo.files import storage, write_text
from hydragnn_hpo.launching.job import Job, Slot
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.placement.cost import CostModel
from hydragnn_hpo.placement.planner import Decision, Running, Waiting, plan


class Dispatch:
    """Knows slots, configurations and costs; decides by the planner alone."""

    def __init__(self, config: CampaignConfig, run: RunDir, slots: Sequence[Slot]) -> None:
        """Start without statistics and without trials; the controller fills both in.

        Args:
            config: the campaign.
            run: its directory.
            slots: all slots of the backend, neighbours side by side.
        """
        self.config, self.run_dir = config, run
        self.slots = {slot.name: slot for slot in slots}
        self.costs = CostModel({})
        self.configs: dict[str, TrialConfig] = {}

    def decide(self, state: State, *, more_to_come: bool) -> list[Decision]:
        """Choose what starts now, and where.

        Args:
            state: the campaign's state.
            more_to_come: whether the brain will propose further trials.
        """
        queued, running = state.with_status("queued"), state.with_status("running")
        taken = {name for trial in running for name in trial.slots}
        free = [name for name in self.slots if name not in taken]
        if not queued or not free:
            return []
        return plan(
            [self._waiting(trial) for trial in queued],
            [Running(t.name, t.slots, self.seconds_left(t, t.width)) for t in running],
            free,
            total=len(self.slots),
            typical=self._typical(state, queued[0].until),
            more_to_come=more_to_come,
        )

    def prepare(self, trial: Trial, decision: Decision) -> Job:
        """Write the placement of a trial's next attempt, and give the order for the backend.

        ``trial.toml`` is written here too, once, so that a trial that was proposed just before
        a crash has one.
        """
        attempt = trial.attempt + 1
        folder = self.run_dir.trial(trial.name)
        place = folder.attempt(attempt)
        placement = PlacementConfig(
            attempt=attempt,
            epochs=trial.until,
            width=decision.width,
            slots=decision.slots,
            reason=decision.reason,
        )
        with storage(place):
            place.mkdir(parents=True, exist_ok=True)
            folder.control.unlink(missing_ok=True)
        if not folder.config.exists():
            write_text(folder.config, dump(self.configs[trial.name]))
        write_text(place / "placement.toml", dump(placement))
        slots = tuple(self.slots[name] for name in decision.slots)
        one_host = len({slot.host for slot in slots}) == 1
        return Job(
            id=f"{trial.name}.{attempt}",
            kind="train",
            width=decision.width,
            spec={
                "trial_dir": str(folder.path.resolve()),
                "attempt": attempt,
                "one_host": one_host,
            },
            log=place / "log",
            lease=place / "lease",
            watch=place / "metrics.jsonl",
            slots=slots,
        )

    def seconds_left(self, trial: Trial, width: int) -> float:
        """Predict how long a trial still needs up to its rung, on ``width`` slots."""
        per_epoch = self.costs.epoch_seconds(self.configs[trial.name], width)
        return (trial.until - trial.epoch) * per_epoch

    def learn(self, trial: Trial, seconds: float) -> None:
        """Correct the cost model by one epoch that was measured."""
        self.costs.learn(self.configs[trial.name], trial.width, seconds)

    def _waiting(self, trial: Trial) -> Waiting:
        config = self.configs[trial.name]
        training, ratios = config.training, [entry.ratio for entry in config.data]
        graphs = epoch_size(self.costs.stats, training, ratios).graphs_per_step
        graphs = training.global_batch or graphs
        widest = max(1, graphs // training.min_graphs_per_rank)
        widest = min(widest, self.config.machine.max_width)
        return Waiting(trial.name, self.seconds_left(trial, 1), widest)

    def _typical(self, state: State, until: int) -> float:
        """Give the seconds that a typical trial of a rung takes on one slot."""
        first = self.config.search.rungs[0]
        epochs = until if until == first else until - first
        seconds = [
            epochs * self.costs.epoch_seconds(self.configs[trial.name])
            for trial in state.trials.values()
            if trial.until == until and trial.name in self.configs
        ]
        return max(statistics.median(seconds), 1e-9)
