"""Run directories as a real controller leaves them, made in seconds: for whatever reads a run.

Trials compete for slots, rest at rungs and go on, fail, are lost with their hosts and start
again; nothing trains. What they reach is planted: ``log(objective)`` is a sum of a large effect of
the learning rate, a smaller one of the features, the smallest of the layers, and noise; nothing
else matters. With ``noise_only`` nothing does.
"""

import hashlib
import heapq
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from made_ensemble import ATOMS, GRAPHS, make_ensemble
from stores import write_store

from hydragnn_hpo.campaign.event_store import JournalFold
from hydragnn_hpo.campaign.journal import encode
from hydragnn_hpo.campaign.state import State, fold
from hydragnn_hpo.campaign.status import rank_trials
from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.config.data_config import SPLITS, CardConfig
from hydragnn_hpo.config.schema import dump_config, parse_config
from hydragnn_hpo.data.columns import Columns, Names
from hydragnn_hpo.layout import RunDir
from hydragnn_hpo.search.objective import read_objective
from hydragnn_hpo.search.rungs import promote_asynchronously, promote_finalists

BEGIN = 1_795_000_000.0
"""When the campaign was opened, in seconds since the epoch."""

EFFECTS = {"training.learning_rate": 1.0, "model.features": 0.8, "model.layers": 0.5}
"""Planted weights in ``log(objective)``; the ranking of importances is theirs."""

NOISE = 0.04
SPREADS = {"energy_per_atom": 1.2, "gap": 0.8, "charge": 0.2}
UNITS = {"energy_per_atom": "eV/atom", "gap": "eV", "charge": "e"}

SPACE: dict[str, Any] = {
    "model.conv": ["schnet", "painn", "gat"],
    "model.features": {"low": 16, "high": 128, "step": 16},
    "model.layers": {"low": 1, "high": 5},
    "model.cutoff": {"low": 3.5, "high": 5.0, "step": 0.5},
    "model.options.heads": {"choices": [1, 2, 4], "when": {"model.conv": "gat"}},
    "training.learning_rate": {"low": 1e-4, "high": 1e-1, "log": True},
    "training.global_batch": [16, 32, 64],
    "training.warmup": {"low": 0.0, "high": 0.2},
    "training.ema": [0.9, 0.99, 0.999],
}
"""The last four and the conv change nothing but, some of them, the cost."""

CONV_KEYS = ("model.conv", "model.options.heads")
"""What is searched only where the conv is."""

SOFTWARE = {"hydragnn-hpo": "0.1.0", "python": "3.12.4", "system": "Linux made x86_64"}

BUGS = (
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x48 and 32x48)",
    "ValueError: <script>alert('x')</script> & no such basis",
    "IndexError: index 119 is out of bounds for dimension 0 with size 119",
)


@dataclass(frozen=True)
class Wish:
    """What kind of campaign is made."""

    trials: int = 60
    hosts: int = 4
    slots: int = 2
    """Of each host."""
    seed: int = 0
    rungs: tuple[int, ...] = (3, 9, 27)
    noise_only: bool = False
    failures: bool = True
    """Trials that diverge, run out of memory or meet a bug; hosts that are lost."""
    energy: bool = True
    reseed: int = 0
    controllers: int = 1
    """With two the first one dies in the middle and a second one goes on."""
    objective: Any = "weighted"
    finished: bool = True
    """Else the journal ends in the middle of the work, and there is no ensemble."""
    conv: str | None = None
    """Fixed under ``[trial.model]``; else three are searched."""
    name: str = "made"


def make_campaign(path: Path, **wishes: Any) -> RunDir:
    """Write a run directory; the same wishes give the same bytes.

    Args:
        path: the directory; created.
        wishes: see ``Wish``.
    """
    wish = Wish(**wishes)
    run = RunDir(path)
    run.report.mkdir(parents=True)
    config = _config(wish)
    run.campaign.write_text(dump_config(config))
    card = _write_store(run)
    events = Simulation(wish, config).run()
    if not wish.finished:
        events = events[: 2 * len(events) // 3]
    run.journal.write_bytes(b"".join(map(encode, events)))
    if wish.finished:
        state = fold(events)
        table = make_ensemble(run, state, card, seed=wish.seed)
        _write_summary(run, config, events, table)
    return run


def planted(values: Mapping[str, Any]) -> float:
    """Return ``log(objective)`` of fully trained values, without noise."""
    rate = (math.log10(values["training.learning_rate"]) + 4.0) / 3.0
    features = (values["model.features"] - 16) / 112
    layers = (values["model.layers"] - 1) / 4
    shape = {
        "training.learning_rate": (2.0 * (rate - 0.4)) ** 2,
        "model.features": 1.0 - features,
        "model.layers": 1.0 - layers,
    }
    return math.log(0.05) + sum(weight * shape[key] for key, weight in EFFECTS.items())


def _config(wish: Wish) -> CampaignConfig:
    space = SPACE
    model = {}
    if wish.conv is not None:
        model = {"model": {"conv": wish.conv}}
        space = {key: SPACE[key] for key in SPACE if key not in CONV_KEYS}
    plain = {
        "name": wish.name,
        "seed": wish.seed,
        "data": [{"card": "made_molecules"}],
        "trial": {"heads": {name: {} for name in UNITS}, **model},
        "space": space,
        "search": {
            "brain": "random",
            "trials": wish.trials,
            "rungs": list(wish.rungs),
            "objective": wish.objective,
        },
        "ensemble": {"members": 6, "reseed": wish.reseed},
        "machine": {"max_width": 4},
    }
    return parse_config(plain, CampaignConfig, "made campaign")


def _write_store(run: RunDir) -> CardConfig:
    """Write a store that holds the structures of the test split alone, with figures of all."""
    published = [{"mae": 0.07, "by": "somebody's model", "source": "a made-up paper, 2026-11-22"}]
    targets: dict[str, Any] = {
        "energy_per_atom": {"level": "graph", "unit": "eV/atom", "energy": "per_atom"},
        "gap": {"level": "graph", "unit": "eV", "published": published},
        "charge": {"level": "node", "unit": "e"},
    }
    files = [{"path": "made.extxyz", "sha256": hashlib.sha256(b"made").hexdigest()}]
    plain = {"name": "made_molecules", "title": "Made", "files": files, "targets": targets}
    card = parse_config(plain, CardConfig, "made card")
    spreads = {name: {"unit": UNITS[name], "std": spread} for name, spread in SPREADS.items()}
    splits = {"train": 1200, "val": 200, "sel": 200, "cal": 200, "test": 200}
    levels = {name: target.level for name, target in card.targets.items()}
    stats = {"name": card.name, "title": "", "splits": splits, "cutoff": 5.0}
    stats["targets"] = {name: {**of, "level": levels[name]} for name, of in spreads.items()}
    run.data.mkdir(parents=True)
    write_store(run.store(card.name), [made_structures(levels)], stats, card)
    return card


def made_structures(levels: dict[str, str]) -> Columns:
    """Return the 200 molecules of the test split: bent, of three atoms, ten of each group."""
    graphs = GRAPHS
    atoms = ATOMS // GRAPHS
    elements = np.array([[8, 1, 1], [16, 1, 1], [6, 8, 8], [8, 17, 1], [7, 8, 8]], dtype=np.int16)
    bent = np.array([[0.0, 0.0, 0.0], [0.96, 0.0, 0.0], [-0.24, 0.93, 0.0]])
    counts = {"graph": graphs, "node": graphs * atoms}
    return Columns(
        numbers=elements[np.arange(graphs) // 10 % len(elements)].ravel(),
        positions=(bent * (1.0 + 0.01 * np.arange(graphs))[:, None, None]).reshape(-1, 3),
        cell=np.zeros((graphs, 3, 3)),
        pbc=np.zeros((graphs, 3), dtype=bool),
        node_offset=atoms * np.arange(graphs + 1),
        edge_offset=np.zeros(graphs + 1, dtype=np.int64),
        edges=np.zeros((0, 2), dtype=np.int32),
        edge_shift=np.zeros((0, 3), dtype=np.int16),
        targets={name: np.zeros((counts[level], 1)) for name, level in levels.items()},
        masks={name: np.ones(counts[level], dtype=bool) for name, level in levels.items()},
        levels=levels,
        split=np.full(graphs, SPLITS.index("test"), dtype=np.int8),
        group=(np.arange(graphs) // 10).astype(np.int32),
        ids=Names.of(f"made.extxyz:{k}" for k in range(graphs)),
    )


def _checksum() -> str:
    return hashlib.sha256(b"made store").hexdigest()


def _write_summary(
    run: RunDir, config: CampaignConfig, events: list[dict[str, Any]], table: Mapping[str, Any]
) -> None:
    board = rank_trials(fold(events), config).to_plain()
    figures = JournalFold(events).figures()
    _write_json(run.summary, {"ensemble": table, "leaderboard": board, "figures": figures})


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


@dataclass
class Made:
    """A trial of the simulation."""

    name: str
    values: dict[str, Any]
    until: int
    goal: float
    """Its objective after endless training."""
    tau: float
    """Epochs in which what is above its goal falls to 1/e."""
    seconds: float
    """Of an epoch on one rank."""
    watts: float
    """Of each of its slots."""
    parent: str | None = None
    epoch: int = 0
    saved: int = 0
    best: float = math.inf
    best_epoch: int = 0
    attempt: int = 0
    least: int = 1
    slots: tuple[str, ...] = ()
    placed: float = 0.0
    trained: float = 0.0
    fate: str | None = None
    """How its first attempt ends, if not at its rung."""


@dataclass
class Simulation:
    """Slots, trials that want them, and what happens when, as a controller notes it."""

    wish: Wish
    config: CampaignConfig
    events: list[dict[str, Any]] = field(default_factory=list)
    time: float = BEGIN
    epoch: int = 1

    def __post_init__(self) -> None:
        """Build hosts and begin with nothing proposed."""
        self.random = np.random.default_rng(self.wish.seed)
        self.state = State()
        self.trials: dict[str, Made] = {}
        self.queue: list[str] = []
        self.heap: list[tuple[float, int, str, tuple[Any, ...]]] = []
        self.counter = 0
        hosts = [f"host{number:04d}" for number in range(self.wish.hosts)]
        self.all = {host: [f"{host}:{k}" for k in range(self.wish.slots)] for host in hosts}
        self.free = [slot for slots in self.all.values() for slot in slots]
        self.closed: set[str] = set()
        self.charged: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self.metered = BEGIN
        self.turning = False
        self.over = False

    # -- the course --------------------------------------------------------------------

    def run(self) -> list[dict[str, Any]]:
        """Return all events, in the order of time."""
        for host in self.all:
            self.note("zygote_ready", host=host, import_seconds=float(self.random.uniform(5, 7)))
        self.time += 1.3
        self._open()
        if self.wish.energy:
            self._at(30.0, "meter")
        if self.wish.failures and self.wish.hosts >= 4:
            for number, share in enumerate((0.2, 0.35, 0.45)):
                self._at(share * self._guess(), "lose", list(self.all)[0 if number < 2 else 1])
        if self.wish.controllers > 1:
            self._at(0.5 * self._guess(), "die")
        self._wake()
        while self.heap and not self.over:
            self.time, _, kind, what = heapq.heappop(self.heap)
            getattr(self, f"_{kind}")(*what)
        assert self.over, "nothing happens any more, and there is no end"
        return self.events

    def note(self, kind: str, **values: Any) -> None:
        """Write an event down and take it in."""
        event = {"event": kind, "time": round(self.time, 6), "epoch": self.epoch, **values}
        self.events.append(event)
        self.state.apply(event)

    def _open(self) -> None:
        slots = [
            slot for host, known in self.all.items() if host not in self.closed for slot in known
        ]
        self.note("opened", units=UNITS, slots=slots, data=_checksum(), software=SOFTWARE)

    def _guess(self) -> float:
        """Return roughly how long all will take, in seconds."""
        reduction, rungs = self.config.search.reduction, self.wish.rungs
        steps = [b - a for a, b in zip((0, *rungs), rungs, strict=False)]
        epochs = sum(step / reduction**k for k, step in enumerate(steps))
        return 14.0 * epochs * self.wish.trials / (self.wish.hosts * self.wish.slots)

    def _at(self, seconds: float, kind: str, *what: Any) -> None:
        self.counter += 1
        heapq.heappush(self.heap, (self.time + seconds, self.counter, kind, what))

    def _wake(self) -> None:
        if not self.turning:
            self.turning = True
            self._at(0.5, "turn")

    def _turn(self) -> None:
        """Send on, propose, place: one turn of the controller's loop."""
        self.turning = False
        self._climb()
        wave = min(len(self.free) + 4, max(6, self.wish.trials // 4))
        while len(self.queue) < wave and self._searched() < self.wish.trials:
            self._propose()
        self._place()
        if not self.state.count("running", "queued") and not self.turning:
            self._end()

    def _searched(self) -> int:
        return self.state.searched

    def _climb(self) -> None:
        if self.state.closed:
            return
        search, rungs = self.config.search, self.wish.rungs
        results = [self.state.results.get(rung, []) for rung in rungs]
        gone = [self.state.promoted.get(rung, set()) for rung in rungs]
        resting = self._searched() >= self.wish.trials and not self.state.count("queued", "running")
        if resting:
            promotions = promote_finalists(results, gone, finalists=search.finalists)
        else:
            promotions = promote_asynchronously(results, gone, reduction=search.reduction)
        promotions = [p for p in promotions if self.state.trials[p.trial].status == "stopped"]
        for rung in sorted({p.to_rung for p in promotions}, reverse=True):
            names = [p.trial for p in promotions if p.to_rung == rung]
            self.note("promoted", trials=names, until=rungs[rung], last=False)
            self.queue = names + self.queue
            for name in names:
                self.trials[name].until = rungs[rung]
        if resting and not promotions:
            self.note("promoted", trials=[], until=rungs[-1], last=True)

    def _end(self) -> None:
        """Train the best again with other seeds, or end the campaign."""
        best = [t for t in self.state.ranked() if t.parent is None][: self.wish.reseed]
        fresh = [t for t in best if t.name not in self.state.reseeded]
        if fresh:
            self.note("reseed", count=self.wish.reseed)
        for trial in fresh:
            self._propose(trial.values, trial.name)
        if fresh:
            self._wake()
            return
        if self.wish.energy:
            self._charge()
        self.time += 4.0
        self.note("finished")
        self.over = True

    # -- trials ------------------------------------------------------------------------

    def _propose(self, values: dict[str, Any] | None = None, parent: str | None = None) -> None:
        name = f"t{len(self.trials):04d}"
        values = values or self._sample()
        until = self.wish.rungs[0 if parent is None else -1]
        known = {} if parent is None else {"parent": parent}
        self.note("proposed", trial=name, values=values, until=until, **known)
        trial = self.trials[name] = self._made(name, values, until)
        trial.parent = parent
        if self.wish.failures and parent is None and len(self.trials) == 9:
            message = "trial: model.options.heads: 4 does not divide 'model.features' 16."
            self.note(
                "ended",
                trial=name,
                outcome="failed",
                reason="bad_config",
                message=message,
                score=None,
            )
            return
        self.queue.append(name)

    def _sample(self) -> dict[str, Any]:
        """Draw values from the space, those of inactive keys left out."""
        values: dict[str, Any] = {}
        for key, one in self.config.space.items():
            if any(values.get(other) != wanted for other, wanted in one.when.items()):
                continue
            if one.choices is not None:
                values[key] = one.choices[int(self.random.integers(len(one.choices)))]
                continue
            low, high = one.low, one.high
            assert low is not None
            assert high is not None
            if one.log:
                drawn = math.exp(self.random.uniform(math.log(low), math.log(high)))
                values[key] = float(f"{drawn:.6g}")
            elif one.integer:
                step = int(one.step or 1)
                values[key] = int(low + step * self.random.integers((high - low) // step + 1))
            elif one.step:
                count = round((high - low) / one.step) + 1
                values[key] = float(low + one.step * self.random.integers(count))
            else:
                values[key] = float(f"{self.random.uniform(low, high):.6g}")
        return values

    def _made(self, name: str, values: dict[str, Any], until: int) -> Made:
        chance = self.random.normal()
        goal = -1.5 + 0.4 * chance if self.wish.noise_only else planted(values) + NOISE * chance
        features, layers = values["model.features"], values["model.layers"]
        conv = values.get("model.conv", self.wish.conv)
        slow = {"schnet": 1.0, "painn": 2.2, "gat": 0.8}[conv]
        seconds = 2.0 + slow * layers * (features / 32) ** 1.3 * float(
            self.random.uniform(0.9, 1.1)
        )
        watts = float(self.random.uniform(80, 120))
        tau = float(self.random.uniform(2.0, 4.0))
        trial = Made(name, values, until, math.exp(goal), tau, seconds, watts)
        if self.wish.failures:
            trial.fate = self._fate(values)
        return trial

    def _fate(self, values: Mapping[str, Any]) -> str | None:
        """Draw whether a trial fails: large rates diverge, large models run out of memory."""
        number = len(self.trials)
        dice = float(self.random.uniform())
        if number in (14, 31, 47):
            return "bug"
        if number % 37 == 20:
            return "stale"
        if self.wish.noise_only:
            return "diverged" if dice < 0.06 else None
        rate = (math.log10(values["training.learning_rate"]) + 4.0) / 3.0
        if dice < 0.9 / (1.0 + math.exp((0.93 - rate) / 0.03)):
            return "diverged"
        large = values["model.features"] >= 112 and values["model.layers"] >= 4
        return "out_of_memory" if large and dice < 0.6 else None

    # -- attempts ----------------------------------------------------------------------

    def _place(self) -> None:
        waiting = []
        crowd = len(self.queue) > len(self.free)
        for name in self.queue:
            trial = self.trials[name]
            width = max(trial.least, 1 if crowd else self._width(trial))
            if len(self.free) < width:
                waiting.append(name)
                continue
            trial.slots, self.free = tuple(self.free[:width]), self.free[width:]
            self._start(trial, width)
        self.queue = waiting

    def _width(self, trial: Made) -> int:
        """Return more ranks for long trials where there is room."""
        return min(4 if trial.seconds > 10.0 else 2 if trial.seconds > 5.0 else 1, self._widest)

    @property
    def _widest(self) -> int:
        """Slots that are always there: hosts are lost one at a time."""
        return max(1, (self.wish.hosts - 1) * self.wish.slots)

    def _pace(self, trial: Made) -> float:
        """Return seconds of an epoch on the slots it has: 85 % efficiency at each doubling."""
        width = len(trial.slots)
        return trial.seconds / (width * 0.85 ** math.log2(width))

    def _start(self, trial: Made, width: int) -> None:
        trial.attempt, trial.placed, trial.trained = trial.attempt + 1, self.time, 0.0
        pace = self._pace(trial)
        predicted = pace * math.exp(0.25 * self.random.normal())
        self.note(
            "placed",
            trial=trial.name,
            attempt=trial.attempt,
            until=trial.until,
            width=width,
            slots=list(trial.slots),
            reason=f"number 1 of {len(self.queue)} by length",
            predicted_epoch_seconds=predicted,
            predicted_seconds=predicted * (trial.until - trial.epoch),
        )
        job = (trial.name, trial.attempt)
        first = float(self.random.uniform(0.3, 1.5))
        self._at(first, "first", *job)
        self._at(first + pace, "step", *job, pace)
        if trial.fate is not None:
            share = 0.1 if trial.fate == "out_of_memory" else self.random.uniform(0.4, 2.4)
            self._at(first + share * pace, "fail", *job)

    def _runs(self, name: str, attempt: int) -> Made | None:
        trial = self.trials[name]
        return trial if trial.slots and trial.attempt == attempt else None

    def _first(self, name: str, attempt: int) -> None:
        if trial := self._runs(name, attempt):
            self.note("first_step", trial=name, seconds=self.time - trial.placed)

    def _step(self, name: str, attempt: int, seconds: float) -> None:
        """End an epoch."""
        trial = self._runs(name, attempt)
        if trial is None:
            return
        trial.epoch += 1
        trial.trained += seconds
        above = 1.5 * math.exp(-trial.epoch / trial.tau)
        promotions = trial.goal * (1.0 + above) * math.exp(0.01 * self.random.normal())
        if promotions < trial.best:
            trial.best = promotions
            trial.best_epoch = trial.epoch
        self.note(
            "epoch",
            trial=name,
            reached=trial.epoch,
            objective=promotions,
            best_objective=trial.best,
            seconds=seconds,
            width=len(trial.slots),
        )
        if trial.epoch >= trial.until or trial.epoch % 4 == 0:
            trial.saved = trial.epoch
            self.note("checkpoint", trial=name, reached=trial.epoch, step=trial.epoch * 40)
        if trial.epoch >= trial.until:
            self._at(0.05, "rest", name, attempt)
            return
        pace = self._pace(trial) * float(self.random.uniform(0.95, 1.1))
        self._at(pace + 0.02, "step", name, attempt, pace)

    def _rest(self, name: str, attempt: int) -> None:
        trial = self._runs(name, attempt)
        if trial is None:
            return
        off = {head: 0.1 * math.sin(1.0 + int(name[1:])) for head in SPREADS}
        off = {h: (-2.0 if k == 0 else 1.0) * v for k, (h, v) in enumerate(off.items())}
        features, layers = trial.values["model.features"], trial.values["model.layers"]
        ended: dict[str, Any] = {
            "outcome": "completed" if trial.until == self.wish.rungs[-1] else "stopped",
            "reason": None,
            "reached": trial.epoch,
            "best_epoch": trial.best_epoch,
            "objective": trial.best,
            "val_mae": {h: trial.best * s * (1.0 + off[h]) for h, s in SPREADS.items()},
            "parameters": 3 * layers * features**2 + 200 * features,
            "micro_batches": 1,
            "peak_bytes": 300_000_000
            + 2000 * features * layers * trial.values["training.global_batch"],
            "train_seconds": trial.trained,
        }
        score = read_objective(self.config.search.objective, ended, SPREADS)
        self._leave(trial, **ended, score=score)

    def _fail(self, name: str, attempt: int) -> None:
        """End an attempt without a result."""
        trial = self._runs(name, attempt)
        if trial is None:
            return
        fate = trial.fate
        if fate == "stale":
            trial.fate = None
            self._interrupt(trial, "stale", codes=[75], message="rank 1 was waited for 60 s")
        elif fate == "out_of_memory" and len(trial.slots) < 2 <= self._widest:
            trial.least = 2
            self._interrupt(trial, fate, message="CUDA out of memory", least=2)
        else:
            message = {
                "diverged": "the loss is nan in step 31 of epoch 2: lower the learning rate.",
                "out_of_memory": "one graph of 96 atoms does not fit 16 GiB",
                "bug": f"Traceback (most recent call last):\n{BUGS[int(name[1:]) % 3]}",
            }[str(fate)]
            self._leave(trial, outcome="failed", reason=fate, message=message, score=None)

    def _interrupt(self, trial: Made, reason: str, **values: Any) -> None:
        self._leave(trial, outcome="interrupted", reason=reason, **values)
        trial.epoch = trial.saved
        self.queue.insert(0, trial.name)

    def _leave(self, trial: Made, **values: Any) -> None:
        """Note an end and give the slots back."""
        self._hold(trial)
        slots, trial.slots = trial.slots, ()
        self.note("ended", trial=trial.name, attempt=trial.attempt, **values)
        free = {*self.free, *(s for s in slots if s.rpartition(":")[0] not in self.closed)}
        self.free = sorted(free)
        self._wake()

    # -- hosts, controllers, energy ----------------------------------------------------

    def _lose(self, host: str) -> None:
        """Lose a host and what runs there; it comes back, the second time to no avail."""
        if host in self.closed:
            return
        times = sum(cause.startswith("lost") for cause in self.state.hosts.failures[host])
        self.note("host_failed", host=host, cause=f"lost {times + 1}")
        self.note("host_lost", host=host, reason=f"host {host} has not been heard of for 10 s")
        self.closed.add(host)
        self.free = [slot for slot in self.free if slot.rpartition(":")[0] != host]
        for trial in list(self.trials.values()):
            if any(slot.rpartition(":")[0] == host for slot in trial.slots):
                self._interrupt(trial, "host_lost", codes=[-9] * len(trial.slots), message=None)
        self._at(30.0, "join", host)
        if times == 1:
            reason = "failed 2 times: lost 1, lost 2"
            self._at(30.5, "quarantine", host, reason)

    def _join(self, host: str) -> None:
        self.note("host_joined", host=host, slots=self.all[host])
        if sum(c.startswith("lost") for c in self.state.hosts.failures[host]) > 1:
            return
        self.closed.discard(host)
        self.free = sorted({*self.free, *self.all[host]})
        self._wake()

    def _quarantine(self, host: str, reason: str) -> None:
        self.note("quarantined", host=host, reason=reason)

    def _die(self) -> None:
        """End the controller; another one goes on 20 s later."""
        self.metered = self.time + 20.0
        self.charged.clear()
        self.time, self.epoch = self.time + 20.0, self.epoch + 1
        late = [(max(t, self.time + 0.1), n, k, w) for t, n, k, w in self.heap if k != "turn"]
        self.heap = late
        self.turning = False
        heapq.heapify(self.heap)
        self._open()
        for trial in list(self.trials.values()):
            if trial.slots:
                self._interrupt(trial, "host_lost", codes=[], message=None)
        self._wake()

    def _meter(self) -> None:
        self._charge()
        self._at(30.0, "meter")

    def _hold(self, trial: Made) -> None:
        """Charge a trial for the time that it held its slots since the last reading."""
        seconds = len(trial.slots) * max(0.0, self.time - max(trial.placed, self.metered))
        self.charged[trial.name][0] += seconds * trial.watts
        self.charged[trial.name][1] += seconds

    def _charge(self) -> None:
        for trial in self.trials.values():
            if trial.slots:
                self._hold(trial)
        passed = self.time - self.metered
        if passed <= 0.0:
            return
        here = sum(len(slots) for host, slots in self.all.items() if host not in self.closed)
        spent = {name: [round(j, 2), round(s, 2)] for name, (j, s) in self.charged.items() if s}
        busy = sum(seconds for _, seconds in self.charged.values())
        idle = max(0.0, here * passed - busy) * 30.0
        watts = (sum(j for j, _ in spent.values()) + idle) / passed
        self.note(
            "energy",
            trials=spent,
            idle=round(idle, 2),
            watts=round(watts, 1),
            hosts=len(self.all) - len(self.closed),
            parts=["cpu", "gpu"],
        )
        self.charged.clear()
        self.metered = self.time


def scored_by_conv(lines: Iterable[bytes]) -> Counter[str]:
    """Count the trials of a journal that stand with a score by their conv, from its lines alone.

    One that was promoted goes on, and has no final score until it rests again.
    """
    convs = {}
    scored = set()
    for line in lines:
        event = json.loads(line)["e"]
        trial = event.get("trial")
        match event["event"]:
            case "proposed":
                convs[trial] = event["values"]["model.conv"]
            case "ended" if event.get("score") is not None:
                scored.add(trial)
            case "promoted":
                scored.difference_update(event["trials"])
            case "rested":
                scored.add(trial)
    return Counter(convs[trial] for trial in scored)
