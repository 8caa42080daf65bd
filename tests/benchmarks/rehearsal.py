"""The real controller, journal and link before thousands of stub agents (``stub_campaign.py``).

    python tests/benchmarks/rehearsal.py [--quick]

2,000 unlike trials run at once on 8,192 hosts, of which one is killed every two seconds. Figures
are those of the controller's process. Its link is measured by itself as well: for each agent it
holds queues that libzmq allocates by 256 messages, so its memory rises until each agent has sent
so many, and no further.
"""

import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import record
import zmq

sys.path.insert(0, str(Path(__file__).parents[1]))
import stub_campaign

from hydragnn_hpo.campaign.state import State
from hydragnn_hpo.config.schema import to_toml
from hydragnn_hpo.launching.link import AgentLink, ControllerAddress, ControllerLink, find_keys
from hydragnn_hpo.launching.protocol import DropJob, NewRecords

CARD: dict[str, Any] = {
    "name": "crystals",
    "files": [{"path": "never_read.extxyz"}],
    "targets": {"energy": {"level": "graph", "unit": "eV"}},
    "graphs": {"cutoff": 6.0},
}
STRUCTURES = 1_000_000
LEFT_OUT = ("admission_seconds", "wall_seconds")
"""Of what is reported: times of a machine that others use."""


def campaign(trials: int, epochs: int) -> dict[str, Any]:
    """Give a campaign of unlike trials, all of which run at once."""
    return {
        "name": "rehearsal",
        "data": [{"card": "crystals.toml"}],
        "trial": {"heads": {"energy": {}}, "training": {"min_graphs_per_rank": 8}},
        "space": {
            "model.conv": ["schnet", "painn", "egnn"],
            "model.features": {"low": 192, "high": 256, "step": 16},
            "model.layers": {"low": 3, "high": 4},
            "training.global_batch": [2048, 4096],
            "training.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
        },
        "search": {
            "brain": "random",
            "trials": trials,
            "initial": trials,
            "rungs": [epochs],
            "finalists": 6,
            "stop_rule": "none",
        },
        "machine": {"profile": "frontier", "max_width": 32, "lease_seconds": 30.0},
    }


def rehearse(hosts: int, trials: int, epochs: int, minutes: float) -> dict[str, float]:
    """Rehearse one campaign, and return what is reported."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "campaign.toml"
        path.write_text(to_toml(campaign(trials, epochs)))
        path.with_name("crystals.toml").write_text(to_toml(CARD))
        argv = [sys.executable, stub_campaign.__file__, str(path)]
        argv += ["--hosts", str(hosts), "--structures", str(STRUCTURES), "--minutes", str(minutes)]
        done = subprocess.run(argv, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)  # the command has said why
    result = json.loads(done.stdout)
    makespans = result["makespan"] / result["predicted_makespan"]
    figures = {name: value for name, value in result.items() if name not in LEFT_OUT}
    return figures | {"makespan_over_predicted": makespans}


LINKS, SETTLED, MESSAGES = 256, 300, 1500
"""Agents of the link measured by itself; messages of each before its memory counts, and in all."""

SPAWN = multiprocessing.get_context("spawn")

EPOCH = {"record": "epoch", "epoch": 1, "objective": 0.5, "time": 1.0, "seconds": 2.0}


def measure_link(
    links: int = LINKS, settled: int = SETTLED, messages: int = MESSAGES
) -> dict[str, float]:
    """Return the memory of this process with a link, before and after many answered messages."""
    memory: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        controller = ControllerLink("127.0.0.1", find_keys(Path(folder)))
        sender = SPAWN.Process(
            target=be_agents, args=(Path(folder), controller.port, links, messages)
        )
        sender.start()
        answered = 0
        while answered < links * messages and sender.is_alive():
            for peer, _ in controller.receive(1.0):
                controller.send(peer, DropJob("t0001.1"))
                answered += 1
                if answered in (links * settled, links * messages):
                    memory[answered // links] = (
                        stub_campaign.measure_load(State()).resident_bytes / 1e6
                    )
        controller.close()
        sender.join()
    return {
        "link_memory_settled_mb": memory[settled],
        "link_memory_last_mb": memory[messages],
    }


def be_agents(folder: Path, port: int, count: int, messages: int) -> None:
    """Send ``messages`` messages over each of ``count`` links, and read the answers."""
    to = ControllerAddress("127.0.0.1", port, 1, 60.0, "run")
    keys = find_keys(folder)
    with zmq.Context() as context:
        links = [AgentLink(to, keys, context) for _ in range(count)]
        for number in range(1, messages + 1):
            for link in links:
                link.send(NewRecords("t0001.1", [EPOCH], number))
                link.acknowledge(number)
                link.receive()
            time.sleep(0.01)
        for link in links:
            link.close(last_words=True)


def main() -> None:
    """Run the rehearsal."""
    parser = record.make_parser(__doc__, "1,024 hosts, not recorded")
    options = parser.parse_args()
    if options.smoke:
        figures = rehearse(16, 8, 2, 0.05) | measure_link(4, 2, 4)
    elif options.quick:
        figures = rehearse(1024, 250, 20, 0.3)
    else:
        figures = rehearse(8192, 2000, 90, 6.0) | measure_link()
    record.finish(__file__, figures, keep=not (options.quick or options.smoke))


if __name__ == "__main__":
    main()
