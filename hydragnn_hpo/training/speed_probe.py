"""Time steps of a small net on this computer, under its present load.

``pipeline.machine_speed`` starts it in a process of its own, and compares with the formula.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

import torch
from ase.build import bulk

from hydragnn_hpo.config import CardConfig, TrialConfig, targets_of
from hydragnn_hpo.data import Columns, Place, Rules, columns_of, graph_of, size_stats
from hydragnn_hpo.file_records import StoreStats
from hydragnn_hpo.training.ddp import Ranks
from hydragnn_hpo.training.epoch import take_step
from hydragnn_hpo.training.train_state import Progress
from hydragnn_hpo.training.training_parts import build_parts

CPU_SECONDS = 0.5
"""CPU time after which no further step begins."""

LEAST_STEPS = 3
"""Steps that are timed at least; as many before them warm caches up."""

CUTOFF = 4.5
"""Longest edge in angstrom; an atom of the crystals has 18 neighbours within it."""

GRAPHS = 17
"""Crystals of eight atoms: the last one validates, the others make a step."""


class SpeedReport(TypedDict):
    """What the probe answers, as JSON."""

    seconds: float
    """Mean of a step, as the clock on the wall says."""
    config: str
    """The trial, as JSON."""
    stats: StoreStats
    """Statistics of its data."""


def make_crystals() -> Columns:
    """Return distorted crystals of sodium chloride with made-up energies."""
    card = CardConfig(
        name="probe",
        files=({"path": "none"},),
        targets={"energy": {"level": "graph", "unit": "eV/atom", "energy": "per_atom"}},
    )
    rules = Rules(CUTOFF, 0.0, card.targets)
    graphs = []
    for number in range(GRAPHS):
        atoms = bulk("NaCl", "rocksalt", a=5.6, cubic=True)
        atoms.rattle(0.1, seed=number)  # type: ignore[no-untyped-call]
        atoms.info["energy"] = float(number)
        graphs.append(graph_of(atoms, Place(Path("probe"), number, str(number)), rules))
    columns = columns_of(graphs, card.targets)
    columns.split[:] = 0
    columns.split[-1] = 1
    stats: StoreStats = {
        **columns.stats,
        **size_stats(columns, CUTOFF),
        "name": "probe",
        "num_graphs": GRAPHS,
        "splits": {"train": GRAPHS - 1, "val": 1},
        "train_nodes": 8 * (GRAPHS - 1),
        "elements": [11, 17],
        "cutoff": CUTOFF,
        "targets": {"energy": {**targets_of(card)["energy"], "mean": 8.0, "std": 5.0}},
    }
    return replace(columns, stats=stats)


def answer_speed() -> None:
    """Write a ``SpeedReport`` to standard output."""
    torch.set_num_threads(1)
    columns = make_crystals()
    config = TrialConfig.model_validate(
        {
            "trial": "probe",
            "data": {"store": "probe.bp"},
            "model": {"conv": "schnet", "features": 32, "layers": 2, "cutoff": CUTOFF},
            "heads": {"energy": {}},
            "training": {"epochs": 1000, "global_batch": GRAPHS - 1},
        }
    )
    parts = build_parts(config, columns, Ranks(0, 1, torch.device("cpu")))
    progress = Progress()
    indices = columns.indices_of("train")
    began = spent = 0.0
    while progress.step < 2 * LEAST_STEPS or time.process_time() - spent < CPU_SECONDS:
        if progress.step == LEAST_STEPS:
            began = time.monotonic()
            spent = time.process_time()
        take_step(parts, progress, indices, parts.micro.make_ahead(indices))
    seconds = (time.monotonic() - began) / (progress.step - LEAST_STEPS)
    report = SpeedReport(seconds=seconds, config=config.model_dump_json(), stats=columns.stats)
    json.dump(report, sys.stdout, default=float)
