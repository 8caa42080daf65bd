"""What a campaign will take: its trials are drawn, priced, and run on a simulated machine.

Prices and planner are the campaign's own; only time is not real.
"""

import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from hydragnn_hpo.campaign import CURVE_SHARES
from hydragnn_hpo.campaign.backends import start_profile
from hydragnn_hpo.campaign.chosen_values import complete_initial_points
from hydragnn_hpo.campaign.promotion import choose_curve_epochs, choose_promotions
from hydragnn_hpo.config import CampaignConfig, ProfileConfig, TrialConfig
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.journal_events import SearchedValues
from hydragnn_hpo.layout import derive_seed
from hydragnn_hpo.placement import CostModel, PlanningContext, Price
from hydragnn_hpo.planning.simulator import (
    SimulatedWork,
    SimulationResult,
    SimulationSettings,
    draw_error,
    simulate,
)
from hydragnn_hpo.search import Point, Promotion, RungResult, make_brain

Configure = Callable[[str, SearchedValues], Any]
"""Makes a trial's whole configuration from its name and searched values."""

ERROR = 0.25
"""How far the logarithm of a trial's true time is from its price, once the machine's own speed is
known: the middle case of ``placement``'s benchmark."""

BRAIN_SECONDS = {"gp": 0.1, "deephyper": 1.1, "optuna": 0.1}
"""How long a brain takes to answer; others answer at once. Measured, ``shared/reference/search.md``
and ``search/README.md``."""

TICKS = 3000.0
"""Rough number of decisions of a whole simulated campaign, at most."""

CHECKPOINT_SECONDS = 60.0
"""Assumed between the checkpoints of a command."""


FOLDED = "@fold"
"""Follows the name of a trial whose values are trained again without a fold, and precedes it."""


@dataclass(frozen=True)
class ForecastMachine:
    """The machine that a forecast assumes."""

    profile: ProfileConfig
    hosts: int
    slots_per_host: int
    failures: float = 0.0
    """Hosts that are lost, per host and hour."""
    overhead: float = 30.0
    """Seconds to build graphs, start, and make ensemble and report of a small campaign."""

    @property
    def slots(self) -> int:
        """All of them."""
        return self.hosts * self.slots_per_host


@dataclass(frozen=True)
class PricedTrial:
    """A trial that a forecast runs."""

    name: str
    label: str
    """Its conv, or what else tells its kind."""
    price: Price
    lanes: int
    truth: float
    """What its times are multiplied by, which the planner does not know."""
    checkpoint_seconds: float
    fold: Price | None = None
    """Price of its configuration on all folds but one; None where no ensemble is cross-fitted."""

    def work(self, start: float, until: int, *, fold: int | None = None) -> SimulatedWork:
        """Return what it does from one epoch to another, or does again without a fold.

        Args:
            start: epoch from which it trains.
            until: epoch up to which it trains.
            fold: the fold that it leaves out; None in the search.
        """
        price = self.price if fold is None or self.fold is None else self.fold
        predicted = price.tasks_seconds(until - start)
        return SimulatedWork(
            name=f"{self.name}@{until}" if fold is None else f"{self.name}{FOLDED}{fold}@{until}",
            widths=price.widths,
            seconds=tuple(self.truth * seconds for seconds in predicted),
            predicted=predicted,
            lanes=self.lanes,
        )


def trial_of(work: str) -> str:
    """Return the trial that a piece of work belongs to."""
    return work.rpartition("@")[0]


def configuration_of(work: str) -> str:
    """Return the trial whose values a piece of work has: its own, or one that it repeats."""
    return trial_of(work).partition("@")[0]


def rung_of(work: str) -> int:
    """Return the epoch that a piece of work ends at."""
    return int(work.rpartition("@")[2])


def shortest_seconds(work: SimulatedWork) -> float:
    """Return the seconds of a piece of work at its quickest width that is efficient enough."""
    alone = work.seconds[0] * work.widths[0]
    floor = PlanningContext().efficiency_floor
    pairs = zip(work.widths, work.seconds, strict=True)
    return min(seconds for width, seconds in pairs if alone >= floor * width * seconds)


@dataclass(frozen=True)
class Forecast:
    """A campaign, or what is left of one, as it went in the simulation."""

    machine: ForecastMachine
    priced: Mapping[str, PricedTrial]
    """All trials by name."""
    refused: int
    """Drawn configurations that are no valid trial."""
    simulated: SimulationResult
    works: tuple[SimulatedWork, ...]
    """All that was to be done."""
    curve: frozenset[str] = frozenset()
    """Names of the fits of the learning curve; they are not counted as trials."""
    folds: frozenset[str] = frozenset()
    """Names of the fits on folds; they are not counted as trials."""

    @property
    def trials(self) -> int:
        """Trials that had something to do, without fits of the learning curve and on folds."""
        return len({trial_of(work.name) for work in self.works} - self.curve - self.folds)

    @property
    def curve_works(self) -> list[SimulatedWork]:
        """What the fits of the learning curve had to do, one piece each."""
        return [work for work in self.works if trial_of(work.name) in self.curve]

    @property
    def fold_works(self) -> list[SimulatedWork]:
        """What the fits of a cross-fitted ensemble had to do, one piece each."""
        return [work for work in self.works if trial_of(work.name) in self.folds]

    @property
    def host_hours(self) -> float:
        """What the campaign is billed for."""
        return self.machine.hosts * self.simulated.makespan / 3600.0

    @cached_property
    def longest(self) -> tuple[str, float]:
        """Return the trial that takes longest at its quickest efficient width, and its seconds.

        Returns:
            Name and seconds; an empty name and 0 where there is no work.
        """
        seconds: dict[str, float] = {}
        for work in self.works:
            name = trial_of(work.name)
            seconds[name] = seconds.get(name, 0.0) + shortest_seconds(work)
        return max(seconds.items(), key=lambda pair: pair[1], default=("", 0.0))

    @property
    def widths(self) -> dict[int, int]:
        """Count the pieces of work by the ranks they ended with.

        Returns:
            Number of pieces of work by ranks, rising.
        """
        lanes = {work.name: work.lanes for work in self.works}
        counts = Counter(slots // lanes[name] for name, slots in self.simulated.widths.items())
        return dict(sorted(counts.items()))

    @property
    def sigma(self) -> float:
        """Typical standard deviation of the logarithm of a price."""
        sigmas = [each.price.sigma for each in self.priced.values()]
        return statistics.median(sigmas) if sigmas else 0.0


def sample_configurations(
    config: CampaignConfig, count: int, known: Sequence[SearchedValues] = ()
) -> list[SearchedValues]:
    """Draw configurations as a campaign may propose them, spread evenly over its space.

    Args:
        config: the campaign.
        count: how many; fewer come back where the space holds no more.
        known: what was proposed already.
    """
    brain = make_brain(
        "sobol",
        config.space,
        seed=derive_seed(config.seed, "campaign", "forecast"),
        initial=min(config.search.initial, count),
        constraints=config.search.constraints,
        template=config.trial,
    )
    named = [point for point in complete_initial_points(config) if point not in known]
    brain.replay([], [*known, *named])
    return [*named, *brain.ask(max(0, count - len(named)))][:count]


class TrialPricer:
    """Prices the trials of a campaign on a machine."""

    def __init__(
        self,
        config: CampaignConfig,
        machine: ForecastMachine,
        costs: CostModel,
        configure: Configure,
    ) -> None:
        """Keep what to price with.

        Args:
            config: the campaign.
            machine: where the trials run.
            costs: prices, corrected by whatever ran before.
            configure: makes a trial's whole configuration, or raises ``ConfigError``.
        """
        self.config, self.machine = config, machine
        self.costs, self.configure = costs, configure

    def price(self, name: str, values: SearchedValues) -> PricedTrial | None:
        """Price a trial; None if its values make no valid one."""
        try:
            trial = self.configure(name, values)
        except ConfigError:
            return None
        return self.price_configured(name, values, trial)

    def price_configured(self, name: str, values: SearchedValues, trial: Any) -> PricedTrial:
        """Price a trial whose configuration is known.

        Args:
            name: of the trial.
            values: its searched values, which alone price a command.
            trial: its whole configuration: a ``TrialConfig``, or a table of a command.
        """
        command = self.config.command
        every = CHECKPOINT_SECONDS
        if isinstance(trial, TrialConfig):
            price = self.costs.price(trial)
            label = trial.model.conv
            every = max(trial.training.checkpoint_seconds, 1.0)
        else:
            widths = (command.width,) if command else (1,)
            price = self.costs.price_values(values, widths)
            label = "command"
        spread = 0.0 if price.measured else ERROR
        truth = draw_error(self.config.seed, name, spread)
        lanes = self._lanes(price)
        fold = self._price_fold(trial) if isinstance(trial, TrialConfig) else None
        return PricedTrial(name, label, price, lanes, truth, every, fold)

    def _price_fold(self, trial: TrialConfig) -> Price | None:
        """Price a trial on all folds but one; None where no ensemble is cross-fitted."""
        ensemble = self.config.ensemble
        if ensemble.fit == "split":
            return None
        training = trial.training.model_copy(update={"fold": 0, "folds": ensemble.folds})
        return self.costs.price(trial.model_copy(update={"training": training}))

    def _lanes(self, price: Price) -> int:
        """Return the slots that each rank takes, as ``Dispatch`` does."""
        lanes = self.config.machine.lanes
        alone = price.memory(price.widths[0]) > self.machine.profile.memory_bytes / lanes
        return lanes if alone else 1


def price_draws(
    pricer: TrialPricer,
    number: int,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[dict[str, PricedTrial], int]:
    """Price configurations that are drawn from a campaign's space.

    Args:
        pricer: prices trials.
        number: how many are drawn; fewer where the space holds no more.
        report: called with the draws that are priced and with all.

    Returns:
        The valid trials by name, and the number of draws that are no valid trial.
    """
    draws = sample_configurations(pricer.config, number)
    priced = {}
    for number, values in enumerate(draws):
        trial = pricer.price(f"t{number:04d}", values)
        if trial is not None:
            priced[trial.name] = trial
        report(number + 1, len(draws))
    return priced, len(draws) - len(priced)


def forecast_campaign(
    config: CampaignConfig,
    machine: ForecastMachine,
    priced: Mapping[str, PricedTrial],
    *,
    refused: int = 0,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Forecast:
    """Run a campaign on a simulated machine.

    Args:
        config: the campaign.
        machine: the machine.
        priced: its trials, in the order in which they are proposed.
        refused: trials that could not be priced.
        report: called with the pieces of work that have ended and with all so far.
    """
    works = [each.work(0, config.search.rungs[0]) for each in priced.values()]
    promotion = PromotionSimulation(config, works, priced)

    def promote(work: str, now: float) -> Iterator[SimulatedWork]:
        yield from promotion.ended(work, now)
        total = len(works) + len(promotion.added)
        report(total - promotion.left, total)

    simulated = simulate(works, _setting(config, machine, priced, works), promote=promote)
    every = (*works, *promotion.added)
    repeats = frozenset(promotion.curve), frozenset(promotion.folds)
    return Forecast(machine, priced, refused, simulated, every, *repeats)


def _least(works: Sequence[SimulatedWork], slots: int) -> float:
    """Return seconds that the works take at least."""
    longest = max((shortest_seconds(work) for work in works), default=0.0)
    return max(longest, math.fsum(work.useful for work in works) / slots)


def _setting(
    config: CampaignConfig,
    machine: ForecastMachine,
    priced: Mapping[str, PricedTrial],
    works: Sequence[SimulatedWork],
) -> SimulationSettings:
    """Describe the machine and the campaign's habits to the simulation."""
    profile = start_profile(machine.profile, config)
    search = config.search
    first = search.rungs[0]
    every = [each.checkpoint_seconds for each in priced.values()]
    quarter = max(search.initial, math.ceil(len(priced) / 4))
    hours = profile.longest_hours(machine.hosts)
    return SimulationSettings(
        hosts=machine.hosts,
        slots_per_host=machine.slots_per_host,
        hosts_per_group=profile.hosts_per_group,
        slot_order=profile.slot_order,
        cold_seconds=profile.cold_start_seconds,
        start_seconds=profile.start_seconds,
        restart_seconds=profile.restart_seconds,
        checkpoint_every=statistics.median(every) if every else CHECKPOINT_SECONDS,
        probe=max(0.02, 1.0 / first),
        tick=min(10.0, max(0.05, _least(works, machine.slots) / TICKS)),
        wave=min(machine.slots, quarter),
        brain_seconds=BRAIN_SECONDS.get(search.brain, 0.0),
        failures=machine.failures,
        seed=config.seed,
        wall_time=math.inf if hours is None else 3600.0 * hours,
    )


NAMED_RANK = 0.6
"""Worst rank of ``initial_points`` among random configurations, of 1: on recorded data sets those
of ``init`` had .3 in the mean (``tests/benchmarks/make_portfolio.py``)."""

AGAIN = "@again"
"""Follows the name of a trial whose values are trained once more, with another seed."""


class PromotionSimulation:
    """Simulated promotion: the real rules applied to made-up results."""

    def __init__(
        self,
        config: CampaignConfig,
        works: Sequence[SimulatedWork],
        trials: Mapping[str, PricedTrial],
    ) -> None:
        """Start with what is to be done.

        Args:
            config: the campaign.
            works: what its trials do first, named ``TRIAL@EPOCHS``.
            trials: all its trials by name.
        """
        self.config = config
        self.search = config.search
        self.trials = trials
        self._named = set(list(trials)[: len(config.search.initial_points)])
        self.left = len(works)
        self.added: list[SimulatedWork] = []
        self.results: list[list[RungResult]] = [[] for _ in self.search.rungs]
        self.promoted: list[set[str]] = [set() for _ in self.search.rungs]
        self.reseeded: dict[str, str] = {}
        self.curve = set[str]()
        self.folds = set[str]()
        self.no_curve = False
        self.no_folds = config.ensemble.fit != "cross"

    def ended(self, work: str, now: float) -> Iterator[SimulatedWork]:
        """Yield the work that follows when a piece of work has ended."""
        name, _, until = work.rpartition("@")
        self.left -= 1
        if name in self.reseeded.values() or name in self.curve or name in self.folds:
            return
        rung = self.search.rungs.index(int(until))
        self.results[rung].append(RungResult(name, self._objective(name)))
        resting = self.left == 0
        promotions = choose_promotions(self.search, self.results, self.promoted, resting=resting)
        for promotion in promotions:
            yield self._promote(promotion)
        if not promotions and self.left == 0:
            yield from self._train_again()
            yield from self._measure_learning_curve()
            yield from self._fit_folds()

    def _train_again(self) -> Iterator[SimulatedWork]:
        """Train the best again with new seeds, as ``Replicates`` does when all rest."""
        last = self.search.rungs[-1]
        done = self.results[-1]
        best = sorted((r.objective, r.trial) for r in done if r.objective is not None)
        for _, parent in best[: self.config.ensemble.reseed]:
            if parent not in self.reseeded:
                self.reseeded[parent] = parent + AGAIN
                work = self.trials[parent].work(0, last)
                yield self._add(replace(work, name=f"{parent}{AGAIN}@{last}"))

    def _measure_learning_curve(self) -> Iterator[SimulatedWork]:
        """Fit the best configuration on shares of the data, as ``LearningCurveFits`` does."""
        done = [r for r in self.results[-1] if r.objective is not None]
        if self.no_curve or not done:
            return
        self.no_curve = True
        best = min(done, key=lambda r: (r.objective, r.trial)).trial
        by_rung = zip(self.search.rungs, self.results, strict=True)
        reached = {row.trial: rung for rung, rows in by_rung for row in rows}
        costs = [(epochs, self._cost(name)) for name, epochs in reached.items()]
        epochs = choose_curve_epochs(self.config, costs, self._cost(best))
        for share in CURVE_SHARES if epochs else ():
            name = f"{best}@{share:g}"
            self.curve.add(name)
            yield self._add(replace(self.trials[best].work(0, epochs), name=f"{name}@{epochs}"))

    def _fit_folds(self) -> Iterator[SimulatedWork]:
        """Train the best configurations on folds, as ``FoldFits`` does when all rest."""
        done = [(r.objective, r.trial) for r in self.results[-1] if r.objective is not None]
        if self.no_folds or not done:
            return
        self.no_folds = True
        ensemble = self.config.ensemble
        for _, name in sorted(done)[: ensemble.configurations]:
            for fold in range(ensemble.folds):
                work = self.trials[name].work(0, self.search.rungs[-1], fold=fold)
                self.folds.add(trial_of(work.name))
                yield self._add(work)

    def _cost(self, name: str) -> float:
        return self.trials[name].price.epoch_seconds(1)

    def _objective(self, name: str) -> Point:
        """Make up a result, the same at every rung; of as many goals as there are."""
        draws = random.Random(derive_seed(self.config.seed, name, "forecast"))
        worst = NAMED_RANK if name in self._named else 1.0
        objective = self.search.objective
        if isinstance(objective, tuple):
            return tuple(worst * draws.random() for _ in objective)
        return worst * draws.random()

    def _promote(self, promotion: Promotion) -> SimulatedWork:
        rungs = self.search.rungs
        self.promoted[promotion.from_rung].add(promotion.trial)
        start, until = rungs[promotion.from_rung], rungs[promotion.to_rung]
        return self._add(self.trials[promotion.trial].work(start, until))

    def _add(self, work: SimulatedWork) -> SimulatedWork:
        self.left += 1
        self.added.append(work)
        return work
