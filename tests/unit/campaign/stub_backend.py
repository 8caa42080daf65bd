"""A backend without processes: a job trains one epoch per poll, and ends as a test says."""

import json
import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hydragnn_hpo.config.schema import read_toml
from hydragnn_hpo.launching.job import Event, Job, Slot


@dataclass
class Faked:
    """One job that runs."""

    job: Job
    epoch: int
    wish: str | None = None
    end_requested: bool = False


def quality(values: dict[str, Any], epoch: int) -> float:
    """Fall with the epochs to what the trial is worth."""
    return values["x"] + 1.0 / epoch


@dataclass
class StubBackend:
    """Slots of some hosts; ``fate`` decides how an epoch of a job goes.

    ``fate(trial, attempt, epoch)`` gives None (all is well), ``"killed"`` (its first rank dies),
    ``"frozen"`` (it never moves again), a reason of a failed result, or a host that is lost.
    """

    hosts: int = 1
    slots_per_host: int = 2
    fate: Callable[[str, int, int], str | None] = lambda trial, attempt, epoch: None
    quality: Callable[[dict[str, Any], int], float] = quality
    full: float = math.inf
    """Epochs after which a trial says that it is completed."""
    settled: bool = True
    ends_at: float = math.inf
    foreign_hosts: frozenset[str] = frozenset()
    started: list[Job] = field(default_factory=list)
    running: dict[str, Faked] = field(default_factory=dict)
    checkpoints: dict[str, int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    closed: bool = False

    def __post_init__(self):
        self.events.append(Event("ready", None, time.time(), {"import_seconds": 1.0}))

    @property
    def slots(self):
        names = [f"h{n}" for n in range(self.hosts) if f"h{n}" not in self.gone]
        return tuple(Slot(h, n, (n,), "cpu") for h in names for n in range(self.slots_per_host))

    def start(self, job):
        assert not {s.name for s in job.slots} & self.taken, "a slot is used twice"
        self.started.append(job)
        trial = job.id.partition(".")[0]
        self.running[job.id] = Faked(job, self.checkpoints.get(trial, 0))

    @property
    def taken(self):
        return {slot.name for faked in self.running.values() for slot in faked.job.slots}

    def stop(self, job_id, grace=5.0):
        if job_id in self.running:
            self.running[job_id].end_requested = True

    def ask(self, job_id, wish):
        if job_id in self.running:
            self.running[job_id].wish = wish

    def poll(self, timeout):
        for faked in list(self.running.values()):
            self._move(faked)
        events, self.events = self.events, []
        if not events:
            time.sleep(0.001)
        return events

    def close(self):
        self.closed = True

    def lose(self, host, reason="went away"):
        """Lose a host with all that runs there."""
        self.gone.add(host)
        for faked in list(self.running.values()):
            if any(slot.host == host for slot in faked.job.slots):
                self._end(faked, [-int(signal.SIGKILL)] * faked.job.width, away=[host])
        self._tell("host_lost", None, host=host, reason=reason)

    def _tell(self, kind, job, **data):
        self.events.append(Event(kind, job, time.time(), data))

    def _end(self, faked, codes, first=None, away=()):
        del self.running[faked.job.id]
        fields = {"codes": codes, "first": first, "signal_sent": False, "error": None, "away": away}
        self._tell("ended", faked.job.id, **fields)

    def _move(self, faked):
        job, width = faked.job, faked.job.width
        trial, _, attempt = job.id.partition(".")
        if faked.end_requested or faked.wish == "yield":
            self._end(faked, [3] * width)
            return
        if faked.wish == "stop":
            self._result(faked, status="cancelled")
            return
        faked.epoch += 1
        fate = self.fate(trial, int(attempt), faked.epoch)
        if fate == "frozen":
            faked.epoch -= 1
        elif fate == "killed":
            self._end(faked, [-9] + [-15] * (width - 1), first=0)
        elif fate and fate.startswith("h"):
            self.lose(fate)
        elif fate:
            self._write(faked, {"status": "failed", "reason": fate, "message": f"said: {fate}"})
        else:
            self._epoch(faked, trial)

    def _epoch(self, faked, trial):
        values = read_toml(faked.job.log.parents[2] / "trial.toml")
        value = self.quality(values, faked.epoch)
        seconds = 1.0 / faked.job.width
        epoch = {"record": "epoch", "epoch": faked.epoch, "objective": value}
        epoch |= {"train_seconds": seconds, "val_seconds": 0.0, "time": time.time()}
        if not self.checkpoints.get(trial):
            self._tell("record", faked.job.id, record="first_step", time=time.time())
        self._tell("record", faked.job.id, **epoch)
        self.checkpoints[trial] = faked.epoch
        self._tell("record", faked.job.id, record="checkpoint", epoch=faked.epoch, step=0)
        if faked.epoch >= faked.job.spec["epochs"]:
            status = "completed" if faked.epoch >= self.full else "stopped"
            self._result(faked, status=status, objective=value)

    def _result(self, faked, **values):
        trial = read_toml(faked.job.log.parents[2] / "trial.toml")
        value = self.quality(trial, max(faked.epoch, 1))
        self._write(faked, {"epochs": faked.epoch, "objective": value, **values})

    def _write(self, faked, result):
        folder = faked.job.log.parent
        (folder / "result.json").write_text(json.dumps(result))
        self._end(faked, [0 if result["status"] != "failed" else 1] * faked.job.width)
