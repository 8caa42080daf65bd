"""Train unlike trials for a few epochs, each in a forked rank; print what they took as JSON.

One line: the data's statistics, and per trial its configuration, the CPU seconds of its epochs
after the first, and ``peak_bytes``. CPU seconds, because other processes share the machine.
"""

import json
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from forking import fork_ranks

from hydragnn_hpo.config.data import TargetConfig
from hydragnn_hpo.config.trial import TrialConfig
from hydragnn_hpo.data.columns import columns_of
from hydragnn_hpo.data.graph import Graph
from hydragnn_hpo.data.neighbors import edges_of
from hydragnn_hpo.data.normalize import target_stats
from hydragnn_hpo.data.statistics import size_stats
from hydragnn_hpo.training.memory.limits import keep_freed_memory
from hydragnn_hpo.training.ranks.ddp import join
from hydragnn_hpo.training.trainer import Trainer

TARGETS = {"energy": TargetConfig(level="graph", unit="eV")}
CUTOFF, EPOCHS = 5.0, 3
SIZES = [(16, 2, 8), (64, 3, 32)]
"""Features, layers and global batch."""


def cluster(number, random):
    """Put 4 to 24 atoms on random places of a grid of 1.5 angstrom."""
    nodes = int(random.integers(4, 25))
    places = random.permutation(np.argwhere(np.ones((3, 3, 4))))[:nodes]
    positions = 1.5 * places + random.normal(0.0, 0.1, (nodes, 3))
    nowhere, free = np.zeros((3, 3)), np.zeros(3, dtype=bool)
    edges, shift = edges_of(positions, nowhere, free, CUTOFF)
    numbers = random.integers(1, 9, nodes).astype(np.int16)
    targets = {"energy": random.normal(size=1)}
    return Graph(str(number), numbers, positions, nowhere, free, edges, shift, targets, "x", None)


def clusters(count=160):
    random = np.random.default_rng(11)
    made = columns_of([cluster(n, random) for n in range(count)], TARGETS)
    split = np.where(np.arange(count) % 5 == 0, 1, 0).astype(np.int8)
    made = replace(made, split=split)
    named = {"train": int((split == 0).sum()), "val": int((split == 1).sum())}
    stats = size_stats(made, CUTOFF) | {"splits": named, "targets": target_stats(made, TARGETS)}
    return replace(made, stats=stats)


def config(conv, features, layers, batch):
    return TrialConfig(
        trial=f"{conv}-{features}",
        data={"store": "none"},
        model={"conv": conv, "features": features, "layers": layers, "cutoff": CUTOFF},
        heads={"energy": {}},
        training={"global_batch": batch, "epochs": EPOCHS},
    )


def train(out, trial, columns):
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    ranks, ends, peaks = join(), [], []

    def record(kind, **values):
        if kind == "epoch":
            ends.append(time.process_time())
            peaks.append(values["peak_bytes"])

    Trainer(trial, columns, ranks, record).run(EPOCHS, lambda: "go")
    out.write_text(json.dumps({"seconds": np.diff(ends).tolist(), "peak_bytes": peaks[-1]}))


def main():
    convs, columns, found = sys.argv[1:], clusters(), []
    with tempfile.TemporaryDirectory() as folder:
        for trial in (config(conv, *sizes) for sizes in SIZES for conv in convs):
            out = Path(folder) / "found.json"
            fork_ranks(1, partial(train, out, trial, columns))
            found.append({"config": trial.model_dump(mode="json"), **json.loads(out.read_text())})
    print(json.dumps({"stats": columns.stats, "trials": found}))


if __name__ == "__main__":
    main()
