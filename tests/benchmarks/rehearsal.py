"""The real controller, journal and agent protocol against thousands of stub agents.

    python tests/benchmarks/rehearsal.py [--quick] [--hosts N] [--trials N] [--sample-seconds S]

All trials run at once and report an epoch about each second, hosts die all the while. Figures are
those of the controller's process: share of a core, records per second, how late the journal has
them, memory, and what was lost (nothing may be).
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import record

from hydragnn_hpo.campaign.controller import Controller
from hydragnn_hpo.campaign.journal import encode, read_journal
from hydragnn_hpo.campaign.setup import open_run
from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.config.schema import parse_config, to_toml
from hydragnn_hpo.launching.fleet.fleet import Fleet

STATS = {
    "num_graphs": 1_000_000,
    "splits": {"train": 800_000, "val": 100_000},
    "train_nodes": 24_000_000,
    "train_edges": 480_000_000,
    "nodes": {"max": 200, "mean": 30.0},
    "edges": {"max": 9000},
    "degree": {"6.0": 24.0},
    "cutoff": 6.0,
    "checksum": "rehearsal",
    "targets": {"e": {"level": "graph", "shape": "scalar", "unit": "eV", "std": 1.0}},
}
DIES_EACH_SECONDS = 2.0
"""A host dies so often."""


class StubTransport:
    """Starts stub agents: all in one other process."""

    slots = ()
    outlives = True
    allocation = ""
    address = "127.0.0.1"
    ends_at = math.inf

    def __init__(self, hosts: int, run: Path) -> None:
        self.hosts = tuple(f"h{number:05d}" for number in range(hosts))
        script = Path(__file__).with_name("stub_agents.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(run)], stdin=subprocess.PIPE
        )
        self.writer = ThreadPoolExecutor(1)  # the pipe may be full while the stubs wait for us

    def start(self, hosts, call):
        self.write("".join(f"{host}\n" for host in hosts))

    def kill(self, host):
        self.write(f"-{host}\n")

    def write(self, text):
        self.writer.submit(self._write, text)

    def _write(self, text):
        assert self.process.stdin
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def poll(self):
        return []

    def end(self, host):
        return False

    def close(self):
        self.writer.shutdown()
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(10.0)


def campaign(trials: int, epochs: int) -> CampaignConfig:
    """Give a campaign of unlike trials, all of which run at once."""
    values = {
        "name": "rehearsal",
        "data": [{"card": "rehearsal"}],
        "trial": {"heads": {"e": {}}, "training": {"min_graphs_per_rank": 8}},
        "space": {
            "model.conv": ["schnet", "painn", "egnn", "gin", "cgcnn"],
            "model.features": {"low": 64, "high": 512, "step": 64},
            "model.layers": {"low": 2, "high": 6},
            "training.global_batch": [1024, 4096, 16384],
            "training.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
        },
        "search": {
            "brain": "random",
            "trials": trials,
            "initial": trials,
            "rungs": [epochs],
            "finalists": 6,
        },
        "machine": {"profile": "frontier", "max_width": 32},
    }
    return parse_config(values, CampaignConfig, "rehearsal")


class Sampler:
    """Looks at the controller after each of its turns, and kills hosts."""

    def __init__(self, transport: StubTransport, trials: int) -> None:
        self.transport, self.trials = transport, trials
        self.samples: list[tuple[float, float, int, int]] = []
        """Time, CPU seconds, resident bytes, running trials."""
        self.next = self.next_death = 0.0
        self.random, self.killed = random.Random(1), 0

    def __call__(self, state, controller) -> None:
        now = time.monotonic()
        if now < self.next:
            return
        self.next = now + 1.0
        running = state.count("running")
        self.samples.append((time.time(), time.process_time(), resident(), running))
        if running > 0.5 * self.trials and now >= self.next_death:
            self.next_death = now + DIES_EACH_SECONDS
            self.transport.kill(self.random.choice(self.transport.hosts))
            self.killed += 1


def resident() -> int:
    """Give the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def rehearse(hosts: int, trials: int, epochs: int, sample_seconds: float) -> dict[str, float]:
    """Run one campaign and judge it."""
    with tempfile.TemporaryDirectory() as folder:
        card, run = Path(folder) / "rehearsal.toml", Path(folder) / "run"
        opened = open_run(campaign(trials, epochs), run)
        store = opened.store("rehearsal")
        store.mkdir(parents=True)
        (store / "index.json").write_text("{}")
        (store / "stats.json").write_text(json.dumps(STATS))
        card.write_text(to_toml({"name": "rehearsal"}))
        transport = StubTransport(hosts, run)
        sampler = Sampler(transport, trials)
        began = time.monotonic()
        controller = Controller(
            campaign(trials, epochs),
            opened,
            cards={card: "rehearsal"},
            make_backend=lambda: Fleet(
                transport, run_dir=run, lease_seconds=10.0, sample_seconds=sample_seconds
            ),
            watch=sampler,
        )
        try:
            state = controller.run()
        finally:
            controller.close()
        wall = time.monotonic() - began
        events = list(read_journal(opened.journal))
        return {
            "wall_seconds": wall,
            "sample_seconds": sample_seconds,
            **judge(events, state, sampler, trials),
            **weigh(events, state),
        }


def judge(events, state, sampler: Sampler, trials: int) -> dict[str, float]:
    """Compute figures from the journal and the samples while nearly all trials ran."""
    most = max(sample[3] for sample in sampler.samples)
    full = [sample for sample in sampler.samples if sample[3] > 0.75 * most]
    first, last = full[0], full[-1]
    seconds = last[0] - first[0]
    counted = ("first_step", "epoch", "checkpoint")
    steady = [e for e in events if e["event"] in counted and first[0] <= e["time"] < last[0]]
    ends = Counter(
        e["trial"] for e in events if e["event"] == "ended" and e["outcome"] == "stopped"
    )
    lost = [e for e in events if e["event"] == "ended" and e["outcome"] == "interrupted"]
    resident = [sample[2] for sample in full]
    half = len(resident) // 2
    return {
        "controller_cores": (last[1] - first[1]) / seconds,
        "records_per_second": len(steady) / seconds,
        "steady_seconds": seconds,
        "running_trials": statistics.median(sample[3] for sample in full),
        "hosts_killed": sampler.killed,
        "attempts_lost": len(lost),
        "results": sum(1 for t in state.trials.values() if t.score is not None),
        "results_lost": trials - len(ends),
        "results_twice": sum(count - 1 for count in ends.values()),
        "memory_mb": resident[-1] / 1e6,
        "memory_growth_mb_per_million_records": (resident[-1] - resident[half])
        / 1e6
        / max(len(steady) / 2 / 1e6, 1e-9),
    }


def weigh(events, state) -> dict[str, float]:
    """Compute what the counters of hosts add to the journal, and whether their joules add up."""
    lines = [e for e in events if e["event"] == "energy"]
    if not lines:
        return {}
    charged = sum(t.energy or 0.0 for t in state.trials.values()) + state.energy.idle
    seconds = lines[-1]["time"] - lines[0]["time"]
    return {
        "energy_lines": len(lines),
        "energy_bytes_per_second": sum(len(encode(e)) for e in lines[1:]) / max(seconds, 1e-9),
        "journal_bytes": sum(len(encode(e)) for e in events),
        "energy_megajoules": state.energy.joules / 1e6,
        "energy_lost": abs(charged / state.energy.joules - 1.0),
    }


def main() -> None:
    """Run the rehearsal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--hosts", type=int)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--sample-seconds", type=float, default=30.0)
    given = parser.parse_args()
    hosts, trials, epochs = (1024, 250, 12) if given.quick else (8192, 2000, 90)
    figures = rehearse(
        given.hosts or hosts,
        given.trials or trials,
        given.epochs or epochs,
        given.sample_seconds,
    )
    record.finish(__file__, figures, keep=not given.quick)


if __name__ == "__main__":
    main()
