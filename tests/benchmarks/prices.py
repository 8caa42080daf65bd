"""What the cost model says against what trials took: unlike convs, small and large, on one core.

Ours is the formula, and the formula corrected by half of the trials; the peer takes all trials for
alike, as static equal subsets do. Each trial runs for a few epochs in a rank of its own, in turns.
Errors are medians of abs(log(said / was)) over trials that were not seen, each half priced with
what the other half tells; the formula and equal prices are given one common factor, for the speed
of this machine is not that of the profile. Seconds are CPU seconds: others share the machine. What
was measured is recorded beside the figures, and a unit test holds the cost model against it.
"""

import json
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from record import finish, make_parser

from hydragnn_hpo.config.data_config import TargetConfig
from hydragnn_hpo.config.trial_config import TrialConfig
from hydragnn_hpo.data.columns import Columns, Graph, columns_of
from hydragnn_hpo.data.graph_sizes import size_stats
from hydragnn_hpo.data.normalize import fit_target_stats
from hydragnn_hpo.data.structure import find_edges
from hydragnn_hpo.file_records import StoreStats
from hydragnn_hpo.launching.host_network import is_free
from hydragnn_hpo.placement.cost_model import CostModel
from hydragnn_hpo.training.ddp import join_ranks
from hydragnn_hpo.training.memory import keep_freed_memory
from hydragnn_hpo.training.trainer import Trainer
from hydragnn_hpo.training.training_parts import build_parts

TARGETS = {"energy": TargetConfig(level="graph", unit="eV")}
CUTOFF, EPOCHS = 5.0, 3
CONVS = ("schnet", "egnn", "painn", "gat", "pna", "mace")
SIZES = [(16, 2, 8), (128, 4, 32)]
"""Features, layers and global batch."""


def cluster(number: int, random: np.random.Generator) -> Graph:
    """Put 4 to 24 atoms on random places of a grid of 1.5 angstrom."""
    nodes = int(random.integers(4, 25))
    places = random.permutation(np.argwhere(np.ones((3, 3, 4))))[:nodes]
    positions = 1.5 * places + random.normal(0.0, 0.1, (nodes, 3))
    nowhere = np.zeros((3, 3))
    free = np.zeros(3, dtype=bool)
    edges, shift = find_edges(positions, nowhere, free, CUTOFF)
    numbers = random.integers(1, 9, nodes).astype(np.int16)
    targets = {"energy": random.normal(size=1)}
    return Graph(str(number), numbers, positions, nowhere, free, edges, shift, targets, "x", None)


def clusters(count: int = 160) -> Columns:
    random = np.random.default_rng(11)
    made = columns_of([cluster(n, random) for n in range(count)], TARGETS)
    split = np.where(np.arange(count) % 5 == 0, 1, 0).astype(np.int8)
    made = replace(made, split=split)
    named = {"train": int((split == 0).sum()), "val": int((split == 1).sum())}
    stats = {
        **size_stats(made, CUTOFF),
        "splits": named,
        "targets": fit_target_stats(made, TARGETS),
    }
    return replace(made, stats=cast("StoreStats", stats))


def config(conv: str, features: int, layers: int, batch: int) -> TrialConfig:
    return TrialConfig(
        trial=f"{conv}-{features}",
        data={"store": "none"},
        model={"conv": conv, "features": features, "layers": layers, "cutoff": CUTOFF},
        heads={"energy": {}},
        training={"global_batch": batch, "epochs": EPOCHS},
    )


def train(out: Path, trial: TrialConfig, columns: Columns, port: int) -> None:
    """Train as the only rank of its trial; write the CPU seconds of epochs and the peak memory."""
    os.environ |= {
        "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    ranks = join_ranks()
    ends = []
    peaks = []

    def record(kind: str, **values: Any) -> None:
        if kind == "epoch":
            ends.append(time.process_time())
            peaks.append(values["peak_bytes"])

    Trainer(build_parts(trial, columns, ranks, record)).run(EPOCHS, lambda: "go")
    out.write_text(json.dumps({"seconds": min(np.diff(ends).tolist()), "bytes": peaks[-1]}))


def measured(trials: list[TrialConfig], columns: Columns, rounds: int) -> list[dict[str, Any]]:
    """Give each trial's configuration with the medians of its seconds per epoch and peak bytes."""
    forking = multiprocessing.get_context("fork")
    taken: list[list[dict[str, float]]] = [[] for _ in trials]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "took.json"
        for _ in range(rounds):
            for trial, each in zip(trials, taken, strict=True):
                port = next(port for port in range(31_000, 32_000) if is_free(port))
                rank = forking.Process(target=train, args=(out, trial, columns, port))
                rank.start()
                rank.join()
                if rank.exitcode:
                    raise SystemExit(f"{trial.trial} ended with {rank.exitcode}.")
                each.append(json.loads(out.read_text()))
    return [
        {"config": trial.model_dump(mode="json", exclude_defaults=True)}
        | {key: statistics.median(run[key] for run in runs) for key in ("seconds", "bytes")}
        for trial, runs in zip(trials, taken, strict=True)
    ]


def halves(trials: list[Any]) -> list[tuple[list[Any], list[Any]]]:
    """Give (seen, rest) twice: of each conv the small or the large trial is seen, in turns."""
    half = len(trials) // 2
    one = [n + half * (n % 2) for n in range(half)]
    two = [n for n in range(len(trials)) if n not in one]
    return [([trials[n] for n in a], [trials[n] for n in b]) for a, b in ((one, two), (two, one))]


def off(estimate: float, was: float) -> float:
    return abs(math.log(estimate / was))


def errors(stats: StoreStats, results: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the errors of prices with and without what the other half tells, and of equal ones."""
    listed: dict[str, list[float]] = {}
    pairs = [(TrialConfig.model_validate(each["config"]), each) for each in results]
    for seen, rest in halves(pairs):
        costs = CostModel(stats)
        plain = CostModel(stats)
        for trial, took in seen:
            costs.observe(trial, 1, took["seconds"])
            costs.observe_memory(trial, 1, took["bytes"])
        ratios = [took["seconds"] / plain.price(trial).epoch_seconds(1) for trial, took in seen]
        factor = statistics.median(ratios)
        alike = statistics.median(t["seconds"] for _, t in seen)
        for trial, took in rest:
            first = plain.price(trial)
            second = costs.price(trial)
            for name, estimate in (
                ("error_formula", factor * first.epoch_seconds(1)),
                ("error_corrected", second.epoch_seconds(1)),
                ("error_all_alike", alike),
            ):
                listed.setdefault(name, []).append(off(estimate, took["seconds"]))
            for name, price in (("memory_formula", first), ("memory_corrected", second)):
                listed.setdefault(name, []).append(off(price.memory(1), took["bytes"]))
    return listed


def main() -> None:
    parser = make_parser(__doc__, "one round, nothing recorded")
    options = parser.parse_args()
    quick = options.quick or options.smoke
    convs = CONVS[:1] if options.smoke else CONVS
    trials = [config(conv, *sizes) for sizes in SIZES for conv in convs]
    columns = clusters(20 if options.smoke else 160)
    result = measured(trials, columns, 1 if quick else 7)
    listed = errors(columns.stats, result)
    figures = {name: statistics.median(each) for name, each in listed.items()}
    kept = {"stats": columns.stats, "trials": result}
    finish(__file__, figures, keep=not quick, measured=kept)


if __name__ == "__main__":
    main()
