"""Searches replayed on recorded learning curves: ours against Optuna, Ray Tune and DeepHyper.

No training: a proposal gets the nearest recorded configuration that the same search has not had
yet (``curve_table``), its epochs take the recorded seconds on a simulated clock, and a search sees
an objective only when the clock is there. Ours are the campaign's own brains and its rule of
promotion; ``before`` is what was the default until 30 November 2026: DeepHyper, told the first of
two rungs. The others decide by their own code: Optuna's samplers and pruners, Ray Tune's
asynchronous brackets, DeepHyper at the full budget as HydraGNN's scripts run it. Thinking costs no
time. What counts is the objective that a configuration reaches as the mean over its seeds.
Figures: slot-seconds until a configuration within 2, 5, 10 or 15 % of the best known was trained to
the end, geometric means over seeds, and ratios of ours over theirs, geometric means over sets.
Sets, slots and searches can be replayed one by one: what is recorded of others stays. Then whole
campaigns of the size that ``init`` gives a few minutes, on two slots: distance of the best to the
best known, and error of the ensemble of six on structures that chose nothing.
``--quick`` replays one seed of one set on eight slots.
"""

import heapq
import itertools
import json
import math
import multiprocessing
import os
import random
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import optuna
from curve_table import SETS, CurveTable, is_recorded
from make_portfolio import make_without
from ray.tune.schedulers import AsyncHyperBandScheduler
from record import finish, make_parser, skip

from hydragnn_hpo.campaign.promotion import choose_promotions
from hydragnn_hpo.config import ParameterConfig, Scalar, SearchConfig
from hydragnn_hpo.planning.search_budget import choose_rungs
from hydragnn_hpo.search import RungResult, make_brain
from hydragnn_hpo.search.objective import TrialScore
from hydragnn_hpo.search.space import configuration_key, is_active

SLOTS = (1, 2, 8, 64)
SEEDS = 30
WITHIN = (2, 5, 10, 15)
"""Per cent above the best known."""
SHARES = {"full": 0.5, "quick": 0.3, "smoke": 0.02}
"""A replay ends when this share of all configurations could have been trained to the end, or with
the first configuration that is as near to the best known as is asked for."""
RESULTS = Path(__file__).parent / "results/search.json"


@dataclass
class Trace:
    """What a search did on the simulated clock."""

    ended: list[tuple[float, int]] = field(default_factory=list)
    """Time at which a configuration was trained to the end, and its row; in order."""


def is_over(table: CurveTable, trace: Trace, now: float, limit: float) -> bool:
    """Check whether a replay has ended; one without limit goes on to the end of its campaign.

    Args:
        table: the recorded curves.
        trace: what the search did.
        now: seconds since its begin.
        limit: seconds after which it ends; infinite for none.
    """
    if now > limit or math.isinf(limit) or not trace.ended:
        return now > limit
    return bool(table.reached[trace.ended[-1][1]] <= within(table, WITHIN[0]))


def within(table: CurveTable, percent: float) -> float:
    """Return the objective that is so many per cent above the best known."""
    return (1.0 + percent / 100.0) * float(table.reached.min())


class Worker(Protocol):
    """A search by rows of a table, with epochs reported one by one."""

    def propose(self) -> int | None:
        """Return the row of a new trial; None if there is none."""
        ...

    def goes_on(self, row: int, epoch: int) -> bool:
        """Report an epoch of a trial, and return whether it trains on."""
        ...


def replay_workers(table: CurveTable, worker: Worker, slots: int, limit: float) -> Trace:
    """Replay a search whose trials run until they are stopped, as peers' do.

    Args:
        table: the recorded curves.
        worker: the search.
        slots: trials at a time.
        limit: seconds after which the replay ends.
    """
    trace = Trace()
    order = itertools.count()
    events: list[tuple[float, int, int, int]] = []

    def start(now: float) -> None:
        row = worker.propose()
        if row is not None:
            due = now + table.start + table.seconds[row]
            heapq.heappush(events, (due, next(order), row, 1))

    for _ in range(slots):
        start(0.0)
    now = 0.0
    while events and not is_over(table, trace, now, limit):
        now, _, row, epoch = heapq.heappop(events)
        going = worker.goes_on(row, epoch)
        if epoch == table.epochs:
            trace.ended.append((now, row))
        if epoch == table.epochs or not going:
            start(now)
        else:
            heapq.heappush(events, (now + table.seconds[row], next(order), row, epoch + 1))
    return trace


class RecordedSampler(optuna.samplers.BaseSampler):
    """Replaces each proposal of a sampler by the nearest recorded configuration.

    All values are chosen at once, key after key as far as conditions hold, so that the sampler
    learns of what was trained.
    """

    def __init__(self, sampler: optuna.samplers.BaseSampler, table: CurveTable) -> None:
        """Start with all configurations."""
        self.sampler, self.table = sampler, table
        self.used = set[int]()
        self.row = -1
        """Row of the last proposal."""
        self.kinds = {name: distribution_of(table.space[name]) for name in table.order}

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        """Return all keys."""
        return self.kinds

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        """Return the values of the nearest recorded configuration; keys may be absent."""
        inner = self.sampler
        joint = inner.sample_relative(study, trial, inner.infer_relative_search_space(study, trial))
        values: dict[str, Scalar] = {}
        for name in self.table.order:
            if is_active(self.table.space, name, values):
                alone = inner.sample_independent
                kind = self.kinds[name]
                values[name] = joint[name] if name in joint else alone(study, trial, name, kind)
        row = self.table.take_nearest(values, self.used)
        assert row is not None
        self.row = row
        return dict(self.table.values[row])

    def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
        """Refuse: every active key has a value."""
        raise AssertionError(name)

    def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
        """Tell the sampler."""
        self.sampler.after_trial(study, trial, state, values)


def distribution_of(parameter: ParameterConfig) -> optuna.distributions.BaseDistribution:
    """Return a range as Optuna has it."""
    if parameter.choices is not None:
        return optuna.distributions.CategoricalDistribution(parameter.choices)
    low, high, step = parameter.low, parameter.high, parameter.step
    assert low is not None
    assert high is not None
    if parameter.integer:
        return optuna.distributions.IntDistribution(
            int(low), int(high), log=parameter.log, step=int(step or 1)
        )
    return optuna.distributions.FloatDistribution(low, high, log=parameter.log, step=step)


class OptunaWorker:
    """A study of Optuna: its sampler proposes, its pruner ends trials."""

    def __init__(self, table: CurveTable, sampler: Any, pruner: Any) -> None:
        """Start without trials.

        Args:
            table: the recorded curves.
            sampler: proposes.
            pruner: ends trials.
        """
        self.table = table
        self.sampler = RecordedSampler(sampler, table)
        self.study = optuna.create_study(study_name="replay", sampler=self.sampler, pruner=pruner)
        self.trials = dict[int, Any]()

    def propose(self) -> int | None:
        """Ask the study."""
        if len(self.sampler.used) == len(self.table):
            return None
        trial = self.study.ask()
        chosen = trial.relative_params  # computed here
        for name in chosen:
            trial._suggest(name, self.sampler.kinds[name])
        self.trials[self.sampler.row] = trial
        return self.sampler.row

    def goes_on(self, row: int, epoch: int) -> bool:
        """Report an epoch, and ask the pruner."""
        trial = self.trials[row]
        score = float(self.table.best[row, epoch - 1])
        trial.report(score, epoch)
        if epoch == self.table.epochs:
            self.study.tell(trial, score)
        elif trial.should_prune():
            self.study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            return False
        return True


@dataclass(frozen=True)
class RayTrial:
    """What a scheduler of Ray Tune reads of a trial."""

    trial_id: str


class RayWorker:
    """Ray Tune's asynchronous successive halving; proposals come from a worker of Optuna's."""

    def __init__(self, proposer: OptunaWorker) -> None:
        """Start without trials."""
        self.proposer = proposer
        table = proposer.table
        self.scheduler = AsyncHyperBandScheduler(
            time_attr="epoch", metric="loss", mode="min", max_t=table.epochs
        )

    def propose(self) -> int | None:
        """Ask the sampler."""
        row = self.proposer.propose()
        if row is not None:
            self.scheduler.on_trial_add(None, RayTrial(str(row)))
        return row

    def goes_on(self, row: int, epoch: int) -> bool:
        """Report an epoch; the sampler is told the last one, as Ray's wrapper of Optuna does."""
        table, study = self.proposer.table, self.proposer.study
        score = float(table.best[row, epoch - 1])
        result = {"epoch": epoch, "loss": score}
        decision = self.scheduler.on_trial_result(None, RayTrial(str(row)), result)
        going = bool(decision == AsyncHyperBandScheduler.CONTINUE) and epoch < table.epochs
        if not going:
            study.tell(self.proposer.trials[row], score)
        return going


@dataclass(frozen=True)
class Settings:
    """What a campaign of ours is replayed with."""

    brain: str = "gp"
    rungs: Callable[[int], Sequence[int]] = choose_rungs
    """Returns the rungs up to a number of epochs."""
    trials: int | None = None
    """As many as are recorded if left out."""
    finalists: int = 6
    points: int = 0
    """Entries of the portfolio that are tried first."""
    initial: int = 6
    """Trials that are spread over the space before the brain learns, beside those."""
    at_once: bool = True
    """Whether the best of a rung goes on before there are others to compare with."""


def in_full(epochs: int) -> list[int]:
    """Return one rung."""
    return [epochs]


def in_two(epochs: int) -> list[int]:
    """Return a quarter of the epochs, and all."""
    return [max(1, round(epochs / 4)), epochs]


BEFORE = Settings("deephyper", in_two, at_once=False)


def replay_ours(
    table: CurveTable,
    settings: Settings,
    slots: int,
    limit: float,
    *,
    seed: int,
) -> Trace:
    """Replay a campaign: its brain, its queue, and its rule of promotion.

    Args:
        table: the recorded curves.
        settings: of the campaign.
        slots: trials at a time.
        limit: seconds after which the replay ends.
        seed: of the brain.
    """
    trials = settings.trials or len(table)
    known = {"brain": settings.brain, "trials": trials, "initial": settings.initial}
    known |= {"rungs": settings.rungs(table.epochs), "finalists": min(settings.finalists, trials)}
    search = SearchConfig.model_validate(known)
    points = table.portfolio[: settings.points]
    replay = CampaignReplay(table, search, slots, seed, points, at_once=settings.at_once)
    now = 0.0
    while not is_over(table, replay.trace, now, limit) and replay.fill(now):
        now = replay.advance()
    return replay.trace


class CampaignReplay:
    """A campaign on a simulated clock; the order of things is that of the controller's turn."""

    def __init__(
        self,
        table: CurveTable,
        search: SearchConfig,
        slots: int,
        seed: int,
        points: Sequence[Mapping[str, Scalar]],
        *,
        at_once: bool,
    ) -> None:
        """Start without trials.

        Args:
            table: the recorded curves.
            search: the campaign's settings.
            slots: trials at a time.
            seed: of the brain.
            points: configurations that are tried first.
            at_once: whether the best of a rung goes on before there are others to compare with.
        """
        self.table, self.search, self.slots = table, search, slots
        self.trials = min(search.trials, len(table))
        self.brain = make_brain(
            search.brain,
            table.space,
            seed=seed * 7919 + 13,
            initial=search.initial + len(points),
        )
        self.at_once = at_once
        quarter = max(search.initial, math.ceil(self.trials / 4))
        self.wave = max(1, min(slots, quarter))
        self.used = set[int]()
        self.rows: list[int] = []
        self.queue: list[tuple[int, int]] = []
        """Minus the rung that a trial is to reach, and its number: higher rungs go first."""
        self.running: list[tuple[float, int, int]] = []
        self.results: list[list[RungResult]] = [[] for _ in search.rungs]
        self.promoted: list[set[str]] = [set() for _ in search.rungs]
        self.trace = Trace()
        for values in points:
            row = self.table.take_nearest(values, self.used)
            if row is not None and len(self.rows) < self.trials:
                self.queue.append((0, len(self.rows)))
                self.rows.append(row)
        self.brain.replay([], [self.table.values[row] for row in self.rows])

    def fill(self, now: float) -> bool:
        """Propose, promote and start what there are slots for; return whether anything runs."""
        self._propose()
        self._promote()
        self.queue.sort()
        while self.queue and len(self.running) < self.slots:
            minus, number = self.queue.pop(0)
            rung = -minus
            row = self.rows[number]
            since = self.search.rungs[rung - 1] if self._has_trained(number, rung) else 0
            epochs = self.search.rungs[rung] - since
            due = now + self.table.start + epochs * float(self.table.seconds[row])
            heapq.heappush(self.running, (due, number, rung))
        self._propose()
        return bool(self.running)

    def _has_trained(self, number: int, rung: int) -> bool:
        return rung > 0 and any(r.trial == str(number) for r in self.results[rung - 1])

    def _propose(self) -> None:
        """Keep a wave of trials queued, two before the first."""
        wave = self.wave if self.rows else 2 * self.wave
        wanted = min(wave - len(self.queue), self.trials - len(self.rows))
        if wanted <= 0:
            return
        for values in self.brain.ask(wanted):
            row = self.table.take_nearest(values, self.used)
            if row is not None:
                self._replace_proposal(values, row)
                self.queue.append((0, len(self.rows)))
                self.rows.append(row)

    def _replace_proposal(self, values: Mapping[str, Scalar], row: int) -> None:
        """Let a brain that keeps its proposals in mind keep the recorded one instead."""
        pending = getattr(self.brain, "_pending", None)
        if pending is not None:
            pending.pop(configuration_key(values), None)
            self.brain.replay([], [self.table.values[row]])

    def _promote(self) -> None:
        exhausted = len(self.rows) >= self.trials
        resting = exhausted and not self.queue and not self.running
        for one in choose_promotions(self.search, self.results, self.promoted, resting=resting):
            compared = len(self.results[one.from_rung]) >= self.search.reduction
            if not (self.at_once or compared or resting):
                continue
            self.promoted[one.from_rung].add(one.trial)
            self.queue.append((-one.to_rung, int(one.trial)))

    def advance(self) -> float:
        """Let the next trial reach its rung, and return the time."""
        now, number, rung = heapq.heappop(self.running)
        row = self.rows[number]
        last = self.search.rungs[rung] - 1
        score = float(self.table.best[row, last])
        errors = tuple(map(float, self.table.best_errors[row, last]))
        self.results[rung].append(RungResult(str(number), score, errors=errors))
        self.brain.tell(TrialScore(self.table.values[row], score, rung))
        if rung + 1 == len(self.search.rungs):
            self.trace.ended.append((now, row))
        return now


Contestant = Callable[[CurveTable, int, int, float], Trace]
"""Replays a search on a table with a seed, a number of slots, and a limit of seconds."""


def ours(settings: Settings) -> Contestant:
    """Return a campaign that runs on until it is ended."""

    def replay(table: CurveTable, seed: int, slots: int, limit: float) -> Trace:
        return replay_ours(table, settings, slots, limit, seed=seed)

    return replay


def with_optuna(sampler: Callable[[int], Any], pruner: Callable[[int], Any]) -> Contestant:
    """Return a study of Optuna's, by its sampler of a seed and its pruner of the epochs."""

    def replay(table: CurveTable, seed: int, slots: int, limit: float) -> Trace:
        worker = OptunaWorker(table, sampler(seed), pruner(table.epochs))
        return replay_workers(table, worker, slots, limit)

    return replay


def with_ray(sampler: Callable[[int], Any]) -> Contestant:
    """Return Ray Tune's asynchronous halving, with proposals of a sampler of Optuna's."""

    def replay(table: CurveTable, seed: int, slots: int, limit: float) -> Trace:
        proposer = OptunaWorker(table, sampler(seed), optuna.pruners.NopPruner())
        return replay_workers(table, RayWorker(proposer), slots, limit)

    return replay


def tpe(seed: int) -> optuna.samplers.BaseSampler:
    """Return Optuna's estimator over all keys at once."""
    return optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True)


def drawn(seed: int) -> optuna.samplers.BaseSampler:
    """Return Optuna's random sampler."""
    return optuna.samplers.RandomSampler(seed=seed)


CONTESTANTS: dict[str, Contestant] = {
    "ours": ours(Settings(points=8)),
    "before": ours(BEFORE),
    "optuna_hyperband": with_optuna(tpe, lambda n: optuna.pruners.HyperbandPruner(1, n, 3)),
    "ray_asha": with_ray(drawn),
    "ray_asha_optuna": with_ray(tpe),
    "deephyper_full": ours(Settings("deephyper", in_full)),
    "random_full": ours(Settings("random", in_full)),
}
VARIANTS: dict[str, Contestant] = {
    "ours_without_portfolio": ours(Settings()),
    "ours_2_rungs": ours(Settings(rungs=in_two)),
    "ours_compared": ours(Settings(at_once=False)),
    "random_brain": ours(Settings("random")),
    "deephyper_brain": ours(Settings("deephyper")),
    "optuna_brain": ours(Settings("optuna")),
}
"""Beside the contestants, with ``--only``."""


def measure(table: CurveTable, trace: Trace, slots: int, limit: float) -> dict[str, float]:
    """Return slot-seconds to near the best known.

    Args:
        table: the recorded curves.
        trace: what a search did.
        slots: of the replay.
        limit: its end in seconds, which counts where a search did not get there.
    """
    result = {}
    for percent in WITHIN:
        good = within(table, percent)
        times = [time for time, row in trace.ended if table.reached[row] <= good]
        result[f"to_{percent}pct"] = slots * min([*times, limit])
    return result


def replay_once(
    table: CurveTable, replay: Contestant, slots: int, limit: float, seed: int
) -> dict[str, float]:
    """Replay a search once, and return its figures.

    Args:
        table: the recorded curves.
        replay: the search.
        slots: trials at a time.
        limit: seconds after which it ends.
        seed: of the search.
    """
    return measure(table, replay(table, seed, slots, limit), slots, limit)


JOB: list[Callable[[int], Any]] = []
"""What the processes of ``map_seeds`` do; they are forked, so it need not be pickled."""


def map_seeds(job: Callable[[int], Any], seeds: int) -> list[Any]:
    """Return what a job returns for each seed, on all cores."""
    JOB[:] = [job]
    with multiprocessing.get_context("fork").Pool(min(seeds, os.cpu_count() or 1)) as pool:
        return pool.map(_run_job, range(seeds))


def _run_job(seed: int) -> Any:
    return JOB[0](seed)


def replay_all(
    tables: Mapping[str, CurveTable],
    contestants: Mapping[str, Contestant],
    widths: Sequence[int],
    *,
    seeds: int,
    share: float,
) -> Iterator[dict[str, Any]]:
    """Yield the means of each set, number of slots and contestant.

    Args:
        tables: by set.
        contestants: by name.
        widths: numbers of slots.
        seeds: replays of each.
        share: of all configurations, after which a replay ends.
    """
    for (name, table), slots in itertools.product(tables.items(), widths):
        whole = float((table.start + table.epochs * table.seconds).sum())
        limit = share * whole / slots
        for contestant, replay in contestants.items():
            job = partial(replay_once, table, replay, slots, limit)
            rows = map_seeds(job, seeds)
            means = {key: statistics.geometric_mean(row[key] for row in rows) for key in rows[0]}
            row = {"set": name, "slots": slots, "contestant": contestant, "seeds": seeds, **means}
            print(row, file=sys.stderr)
            yield row


@dataclass
class Outcome:
    """What a whole campaign led to."""

    seconds: float
    """Slot-seconds."""
    regret: float
    """Objective of its best by its own validation, over the best known, minus 1."""
    ensemble: float
    """Error of the mean of its six best."""


SMALL = {
    "ours": Settings(trials=32, finalists=8, points=8, initial=4),
    "ours_of_12": Settings(trials=12, points=8, initial=2),
    "without_portfolio": Settings(trials=32, finalists=8),
    "before": replace(BEFORE, trials=24, finalists=8),
    "before_of_12": replace(BEFORE, trials=12),
}
"""Campaigns of ``init`` for a few minutes."""


def run_small(table: CurveTable, settings: Settings, seed: int) -> Outcome:
    """Replay a whole campaign on two slots.

    Args:
        table: the recorded curves.
        settings: of the campaign.
        seed: of its brain.
    """
    trace = replay_ours(table, settings, 2, math.inf, seed=seed)
    best = sorted((float(table.best[row, -1]), row) for _, row in trace.ended)
    reached = float(table.reached[best[0][1]] / table.reached.min())
    members = [row for _, row in best[:6]]
    return Outcome(2.0 * trace.ended[-1][0], reached - 1.0, table.measure_ensemble(members))


def compare_small(tables: Mapping[str, CurveTable], seeds: int) -> Iterator[dict[str, Any]]:
    """Yield the means of whole campaigns, by set and kind.

    Args:
        tables: by set.
        seeds: replays of each.
    """
    for (name, table), (kind, settings) in itertools.product(tables.items(), SMALL.items()):
        outcomes = map_seeds(partial(run_small, table, settings), seeds)
        keys = ("seconds", "regret", "ensemble")
        means = {key: statistics.mean(getattr(one, key) for one in outcomes) for key in keys}
        row = {"set": name, "campaign": kind, "seeds": seeds, **means}
        print(row, file=sys.stderr)
        yield row


def summarize_small(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return ratios of whole campaigns, geometric means over sets; of regrets, those of sums."""
    known = {(row["set"], row["campaign"]): row for row in rows}
    sets = sorted({name for name, _ in known})

    def ratios(key: str, mine: str, other: str) -> list[float]:
        return [known[name, mine][key] / known[name, other][key] for name in sets]

    def total(key: str, campaign: str) -> float:
        return math.fsum(known[name, campaign][key] for name in sets)

    figures = {}
    for mine, other in (
        *(("ours", "before"), ("ours_of_12", "before_of_12"), ("ours_of_12", "before")),
        ("ours", "without_portfolio"),
    ):
        pair = f"{mine}_over_{other}"
        for key in ("seconds", "ensemble"):
            figures[f"small_{key}_{pair}"] = statistics.geometric_mean(ratios(key, mine, other))
        regrets = total("regret", mine) / max(total("regret", other), 1e-9)  # a set's may be 0
        figures[f"small_regret_{pair}"] = regrets
    figures["regret_init8_over_before"] = figures["small_regret_ours_over_before"]
    figures["ensemble_error_over_before"] = figures["small_ensemble_ours_over_before"]
    figures["ensemble_error_over_before_max"] = max(ratios("ensemble", "ours", "before"))
    return figures


def compare_portfolio(tables: Mapping[str, CurveTable], draws: int = 2000) -> dict[str, float]:
    """Return the best of the portfolio's first four over the best of 16 drawn at random.

    Args:
        tables: by set, each with the portfolio that the others make.
        draws: of 16 configurations, over which the mean is taken.
    """
    ratios = []
    for name, table in tables.items():
        generator = random.Random(0)
        rows = range(len(table))
        drawn = [float(table.reached[generator.sample(rows, 16)].min()) for _ in range(draws)]
        used = set[int]()
        first = [table.take_nearest(point, used) for point in table.portfolio[:4]]
        best = min(table.reached[row] for row in first if row is not None)
        ratios.append(float(best) / statistics.mean(drawn))
        print({"set": name, "portfolio4_over_random16": ratios[-1]}, file=sys.stderr)
    return {"portfolio4_over_random16": statistics.geometric_mean(ratios)}


def summarize(rows: list[dict[str, Any]], slots: int = 8) -> dict[str, float]:
    """Return ratios of ours over others, geometric means over sets."""
    figures: dict[str, float] = {}
    known = {(r["set"], r["contestant"]): r for r in rows if r["slots"] == slots}
    sets = sorted({name for name, _ in known})
    for other in ("before", "optuna_hyperband", "ray_asha", "deephyper_full", "random_full"):
        for percent in WITHIN:
            key = f"to_{percent}pct"
            ratios = [
                math.log(known[name, "ours"][key] / known[name, other][key])
                for name in sets
                if (name, other) in known
            ]
            figures[f"seconds_{key}_over_{other}"] = math.exp(statistics.mean(ratios))
    return figures


def main() -> None:
    parser = make_parser(__doc__, "one seed of one set on eight slots, not recorded")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--slots", type=int, nargs="+", default=SLOTS)
    parser.add_argument("--only", nargs="*", choices=(*CONTESTANTS, *VARIANTS), default=CONTESTANTS)
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore")
    tables = {name: CurveTable(name) for name in options.sets if is_recorded(name)}
    if not tables:
        return skip(__file__, "No table is recorded: run record_curves.py.")
    known = CONTESTANTS | VARIANTS
    chosen = {name: known[name] for name in options.only}
    kind = "smoke" if options.smoke else "quick" if options.quick else "full"
    keep = kind == "full"
    seeds = options.seeds if keep else 1
    everything = {name: tables.get(name) or CurveTable(name) for name in SETS if is_recorded(name)}
    tables = tables if keep else dict(itertools.islice(tables.items(), 1))
    for table in (everything if keep else tables).values():
        table.portfolio = make_without(list(everything.values()), table)
    widths = options.slots if keep else (8,)
    recorded = json.loads(RESULTS.read_text()) if keep else {"rows": [], "small": []}
    rows, small = recorded["rows"], recorded["small"]
    for row in replay_all(tables, chosen, widths, seeds=seeds, share=SHARES[kind]):
        replace_row(rows, row, ("set", "slots", "contestant"))
        if keep:
            finish(__file__, recorded["figures"], keep=True, rows=rows, small=small)
    for row in compare_small(tables, seeds):
        replace_row(small, row, ("set", "campaign"))
    figures = summarize(rows) | summarize_small(small)
    if keep:
        figures |= compare_portfolio(everything)
    return finish(__file__, figures, keep=keep, rows=rows, small=small)


def replace_row(rows: list[dict[str, Any]], row: dict[str, Any], keys: Sequence[str]) -> None:
    """Add a row, in place of the one that has the same keys."""
    place = [row[key] for key in keys]
    rows[:] = [other for other in rows if [other[key] for key in keys] != place]
    rows.append(row)


if __name__ == "__main__":
    main()
