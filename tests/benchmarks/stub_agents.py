"""Thousands of stub agents in one process: they speak the agents' protocol and train nothing.

    python stub_agents.py RUN_DIR

Hosts to start come as names on stdin, one line each time; ``-NAME`` kills one: its line is cut
and it comes back only when it is started again. A trial's epoch lasts about a second.
"""

import heapq
import itertools
import json
import os
import random
import sys
import time
import tomllib
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import hydragnn_hpo
from hydragnn_hpo.launching.wire.channel import Channel
from hydragnn_hpo.launching.wire.door import DoorPlate, dial
from hydragnn_hpo.launching.wire.switchboard import Switchboard

SLOTS = 8
WATTS = 2000.0
EPOCH_SECONDS = 1.0
CHECKPOINT_EPOCHS = 5


@dataclass
class Agent:
    """One host."""

    name: str
    channel: Channel
    lease_seconds: float = 10.0
    sample_seconds: float = 0.0


@dataclass
class Trial:
    """What the checkpoints of a trial would hold."""

    quality: float
    seconds: float
    epoch: int = 0
    saved: int = 0


@dataclass
class Job:
    """One attempt, with ranks on some hosts."""

    name: str
    order: dict
    hosts: dict[str, list[int]] = field(default_factory=dict)
    wish: str | None = None
    offset: int = 0
    until: int = 0

    @property
    def first(self) -> str:
        return self.order["slots"][0].rpartition(":")[0]


class Stubs:
    """All agents, their jobs, and what is due when."""

    def __init__(self, run: Path) -> None:
        self.run, self.lines = run, Switchboard()
        self.agents: dict[str, Agent] = {}
        self.jobs: dict[str, Job] = {}
        self.trials: dict[str, Trial] = {}
        self.due: list[tuple[float, int, str, str]] = []
        self.arriving: deque[str] = deque()
        self.count = itertools.count()
        self.buffer = b""

    def later(self, seconds: float, what: str, name: str) -> None:
        heapq.heappush(self.due, (time.monotonic() + seconds, next(self.count), what, name))

    def serve(self) -> None:
        os.set_blocking(0, False)
        self.lines.add(sys.stdin, self.hear_stdin)
        while True:
            now = time.monotonic()
            while self.due and self.due[0][0] <= now:
                _, _, what, name = heapq.heappop(self.due)
                getattr(self, what)(name)
            for _ in range(min(len(self.arriving), 32)):  # others must not wait for all of them
                self.come(self.arriving.popleft())
            soon = self.due[0][0] - now if self.due else 0.2
            self.lines.wait(0.0 if self.arriving else min(max(soon, 0.0), 0.2))

    def hear_stdin(self) -> None:
        read = os.read(0, 1 << 16)
        if not read:
            sys.exit(0)
        *names, self.buffer = (self.buffer + read).split(b"\n")
        for raw in names:
            name = raw.decode()
            if name.startswith("-"):
                self.kill(name[1:])
            else:
                self.arriving.append(name)

    # -- hosts -----------------------------------------------------------------------

    def come(self, name: str) -> None:
        self.kill(name)
        plate = DoorPlate.read(self.run)
        channel = dial(plate, 5.0) if plate else None
        if channel is None:
            self.later(0.5, "come", name)
            return
        agent = self.agents[name] = Agent(name, channel)
        self.lines.add(channel, lambda: self.hear(agent))
        life = f"{name}.{time.monotonic_ns()}"
        version = hydragnn_hpo.__version__
        self.say(agent, "hello", version=version, host=name, life=life, pid=1, jobs=[])

    def kill(self, name: str) -> None:
        """Cut the line of a host; its jobs stop without a word."""
        agent = self.agents.pop(name, None)
        if agent is not None:
            self.lines.remove(agent.channel)
            agent.channel.close()
        for job in [job for job in self.jobs.values() if name in job.hosts]:
            del job.hosts[name]
            self.end(job, -15)

    def say(self, agent: Agent, event: str, job: str | None = None, **data) -> None:
        message = {"event": event, "job": job, "time": time.time(), **data}
        self.lines.send(agent.channel, message)

    def beat(self, name: str) -> None:
        agent = self.agents.get(name)
        if agent is not None:
            self.say(agent, "beat", at=time.monotonic())
            self.later(agent.lease_seconds / 3, "beat", name)

    def hear(self, agent: Agent) -> None:
        for order in agent.channel.receive():
            match order["op"]:
                case "init":
                    self.join(agent, order)
                case "start":
                    self.start(agent, order)
                case "ask" | "stop":
                    if job := self.jobs.get(order["job"]):
                        job.wish = order.get("wish", "yield")
                case "peer_ended":
                    if order["code"] and (job := self.jobs.get(order["job"])):
                        self.end(job, -15)
        if agent.channel.closed and self.agents.get(agent.name) is agent:
            self.kill(agent.name)

    def join(self, agent: Agent, order: dict) -> None:
        agent.lease_seconds = order["lease_seconds"]
        slots = [
            {"host": agent.name, "index": n, "cores": [n], "device": "cuda:0", "visible": str(n)}
            for n in range(SLOTS)
        ]
        self.say(agent, "slots", slots=slots, address="127.0.0.1", interface="lo")
        self.say(agent, "ready", import_seconds=5.0, threads=1)
        self.later(random.uniform(0.0, agent.lease_seconds / 3), "beat", agent.name)
        agent.sample_seconds = order["sample_seconds"]
        if agent.sample_seconds:
            self.later(random.uniform(0.5, 1.0) * agent.sample_seconds, "sample", agent.name)

    def sample(self, name: str) -> None:
        """Tell what the counters of a host like Frontier's say; as long as a real one."""
        agent = self.agents.get(name)
        if agent is None:
            return
        seconds = agent.sample_seconds
        joules = WATTS * seconds / 8
        cards = [[[str(2 * n), str(2 * n + 1)], joules + n] for n in range(SLOTS // 2)]
        device = {"busy": 0.93, "celsius": 61.5}
        devices = {str(n): device for n in range(SLOTS)}
        told = {"seconds": seconds, "parts": ["host"], "rest": 4 * joules, "notes": []}
        self.say(agent, "counters", **told, cards=cards, devices=devices)
        self.later(seconds, "sample", name)

    # -- jobs ------------------------------------------------------------------------

    def start(self, agent: Agent, order: dict) -> None:
        name = order["job"]
        job = self.jobs.setdefault(name, Job(name, order))
        ranks = [place["rank"] for place in order["ranks"]]
        job.hosts[agent.name] = ranks
        self.say(agent, "started", name, pids=[1] * len(ranks))
        if agent.name == job.first:
            folder = Path(order["spec"]["trial_dir"])
            attempt = order["spec"]["attempt"]
            placement = folder / "attempts" / f"{attempt:03d}" / "placement.toml"
            job.until = tomllib.loads(placement.read_text())["epochs"]
            draw = random.Random(folder.name)
            trial = Trial(draw.random(), EPOCH_SECONDS * draw.uniform(0.7, 1.4))
            trial = self.trials.setdefault(folder.name, trial)
            trial.epoch = trial.saved
            self.later(0.2, "first_step", name)

    def tell(self, job: Job, **record) -> None:
        job.offset += 200
        record["time"] = time.time()
        agent = self.agents[job.first]
        self.say(agent, "records", job.name, records=[record], offset=job.offset)

    def first_step(self, name: str) -> None:
        if (job := self.jobs.get(name)) is not None and job.first in job.hosts:
            self.tell(job, record="first_step", epoch=0)
            self.later(self.trials[name.partition(".")[0]].seconds, "epoch", name)

    def epoch(self, name: str) -> None:
        job = self.jobs.get(name)
        if job is None or job.first not in job.hosts:
            return
        trial = self.trials[name.partition(".")[0]]
        if job.wish is not None:
            self.end(job, 3)
            return
        trial.epoch += 1
        value = trial.quality + 1.0 / trial.epoch
        seconds = {"train_seconds": 0.9 * trial.seconds, "val_seconds": 0.1 * trial.seconds}
        self.tell(job, record="epoch", epoch=trial.epoch, objective=value, **seconds)
        if trial.epoch % CHECKPOINT_EPOCHS == 0 or trial.epoch >= job.until:
            trial.saved = trial.epoch
            self.tell(job, record="checkpoint", epoch=trial.epoch, step=0)
        if trial.epoch < job.until:
            self.later(trial.seconds, "epoch", name)
            return
        spec = job.order["spec"]
        result = Path(spec["trial_dir"]) / "attempts" / f"{spec['attempt']:03d}" / "result.json"
        content = {"status": "stopped", "epochs": trial.epoch, "objective": value, "val_mae": {}}
        result.write_text(json.dumps(content))
        self.end(job, 0)

    def end(self, job: Job, code: int) -> None:
        """End the ranks of a job on all hosts that are still there."""
        del self.jobs[job.name]
        for host, ranks in job.hosts.items():
            codes = {str(rank): code for rank in ranks}
            told = {"codes": codes, "signal_sent": code < 0, "first": None, "error": None}
            self.say(self.agents[host], "ended", job.name, **told)


if __name__ == "__main__":
    Stubs(Path(sys.argv[1])).serve()
