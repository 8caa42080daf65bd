"""The real controller, journal and link before thousands of stub agents: ``hydragnn-hpo rehearse``.

    python tests/benchmarks/rehearsal.py [--quick]

2,000 unlike trials run at once on 8,192 hosts, of which one is killed every two seconds. Figures
are those of the controller's process.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import record

from hydragnn_hpo.config.schema import to_toml

CARD: dict[str, Any] = {
    "name": "crystals",
    "files": [{"path": "never_read.extxyz"}],
    "targets": {"energy": {"level": "graph", "unit": "eV"}},
    "graphs": {"cutoff": 6.0},
}
STRUCTURES = 1_000_000
LEFT_OUT = ("campaign", "machine", "problems", "admission_seconds", "wall_seconds")
"""Of what the command reports: words, and times of a machine that others use."""


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
    """Rehearse one campaign, and give what the command reports."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "campaign.toml"
        path.write_text(to_toml(campaign(trials, epochs)))
        path.with_name("crystals.toml").write_text(to_toml(CARD))
        argv = [sys.executable, "-m", "hydragnn_hpo", "rehearse", str(path), "--json"]
        argv += ["--hosts", str(hosts), "--structures", str(STRUCTURES), "--minutes", str(minutes)]
        done = subprocess.run(argv, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)  # the command has said why
    found = json.loads(done.stdout)
    makespans = found["makespan"] / found["predicted_makespan"]
    figures = {name: value for name, value in found.items() if name not in LEFT_OUT}
    return figures | {"makespan_over_predicted": makespans}


def main() -> None:
    """Run the rehearsal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1,024 hosts, not recorded")
    quick = parser.parse_args().quick
    sizes = (1024, 250, 20, 0.3) if quick else (8192, 2000, 90, 2.5)
    record.finish(__file__, rehearse(*sizes), keep=not quick)


if __name__ == "__main__":
    main()
