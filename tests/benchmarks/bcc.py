"""Accuracy of every conv on the deterministic BCC data of HydraGNN's own tests.

500 clusters of 1-2 x 1-2 x 1 cells of a body-centred lattice, 2 to 8 atoms of three types. With x
the mean type of an atom and its nearest neighbour, an atom's outputs are x, x^2 + type and x^3; the
graph's output is the sum of all of them. 70 / 15 / 15, width 8, 2 rounds, 100 epochs; targets run
from 0 to 1. Single head: the graph's output, AdamW at 0.02, batch 32. Several heads: all four,
weights 20 / 1 / 1 / 1, 0.01, batch 16.

Where several neighbours are equally near, the first one counts, as in HydraGNN's generator; which
one that is cannot be learned by a model that obeys symmetry. ``bcc_floor`` is the test MAE of the
best such model: the median over all ways in which the symmetry of the cluster may number the same
atoms. ``bcc_even_*`` has the mean of equally near neighbours instead, and a floor of 0.

Source of data, settings and limits: github.com/ORNL/HydraGNN, tests/test_graphs.py and
tests/deterministic_graph_data.py; written anew from this description.
"""

import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from record import finish, make_parser

from hydragnn_hpo.config.convs import CONV_SPECS
from hydragnn_hpo.config.data_config import TargetConfig
from hydragnn_hpo.config.trial_config import TrialConfig
from hydragnn_hpo.data.columns import Columns, Graph, columns_of
from hydragnn_hpo.data.graph_sizes import size_stats
from hydragnn_hpo.data.normalize import fit_target_stats
from hydragnn_hpo.data.structure import find_edges
from hydragnn_hpo.file_records import StoreStats
from hydragnn_hpo.training.ddp import Ranks
from hydragnn_hpo.training.evaluate import error_sums
from hydragnn_hpo.training.memory import keep_freed_memory
from hydragnn_hpo.training.trainer import Trainer
from hydragnn_hpo.training.training_parts import build_parts

CUTOFF = 2.0
"""Longest edge, in lattice constants."""
NUMBERS = np.array([1, 6, 8])
"""Elements that stand for the three types."""
NODE_TARGETS = ("x", "x2", "x3")
TARGETS = {
    "total": TargetConfig(level="graph", unit="1"),
    **{name: TargetConfig(level="node", unit="1") for name in NODE_TARGETS},
}
SINGLE = {"total": {"pool": "sum"}}
SEVERAL = {"total": {"pool": "sum", "weight": 20.0}, **{name: {} for name in NODE_TARGETS}}
QUICK = ("gin", "schnet", "painn")
"""Convs of the quick run."""


@dataclass(frozen=True)
class Task:
    """One setting of HydraGNN's tests."""

    heads: dict[str, Any]
    rate: float
    batch: int


TASKS = {
    "mae": (Task(SINGLE, 0.02, 32), False),
    "even": (Task(SINGLE, 0.02, 32), True),
    "multi": (Task(SEVERAL, 0.01, 16), False),
}
"""By the name of their figures; whether equally near neighbours count alike."""
Sets = Mapping[tuple[int, bool], tuple[Columns, float]]


def positions_of(cells_x: int, cells_y: int) -> np.ndarray:
    """Give corner and centre of every cell, in lattice constants."""
    corners = [(x, y, 0.0) for x in range(cells_x) for y in range(cells_y)]
    return np.array([[c[0] + d, c[1] + d, c[2] + d] for c in corners for d in (0.0, 0.5)])


def outputs_of(positions: np.ndarray, types: np.ndarray, even: bool) -> dict[str, np.ndarray]:
    """Return the outputs of the atoms; ``even``: equally near neighbours count alike."""
    far = np.linalg.norm(positions[:, None] - positions, axis=-1).round(9)
    if even:
        np.fill_diagonal(far, np.inf)
        nearest = far == far.min(axis=1, keepdims=True)
        x = (types + (nearest * types).sum(axis=1) / nearest.sum(axis=1)) / 2
    else:
        x = types[np.argsort(far, axis=1, kind="stable")[:, :2]].mean(axis=1)
    return {"x": x, "x2": x**2 + types, "x3": x**3}


def total_of(outputs: dict[str, np.ndarray]) -> float:
    """Sum all outputs of all atoms."""
    return float(sum(value.sum() for value in outputs.values()))


def symmetries(positions: np.ndarray) -> list[np.ndarray]:
    """Give every numbering of the atoms that a rotation or reflection of the cluster makes."""
    centre = positions.mean(axis=0)
    results = []
    for axes in itertools.permutations(range(3)):
        for signs in itertools.product((1, -1), repeat=3):
            turned = (positions - centre)[:, axes] * signs + centre
            far = np.linalg.norm(turned[:, None] - positions, axis=-1)
            if (far.min(axis=1) < 1e-6).all():
                results.append(far.argmin(axis=1))
    return results


def cluster(number: int, random: np.random.Generator, even: bool) -> tuple[Graph, float]:
    """Make one cluster with its outputs, and the best guess of its total."""
    positions = positions_of(int(random.integers(1, 3)), int(random.integers(1, 3)))
    types = random.integers(0, 3, len(positions))
    outputs = outputs_of(positions, types, even)
    open_ = np.zeros(3, dtype=bool)
    edges, shift = find_edges(positions, np.zeros((3, 3)), open_, CUTOFF)
    targets = {name: value[:, None] for name, value in outputs.items()}
    targets["total"] = np.array([total_of(outputs)])
    alike = [outputs_of(positions, types[order], even) for order in symmetries(positions)]
    made = Graph(
        str(number), NUMBERS[types].astype(np.int16), positions, np.zeros((3, 3)), open_, edges,
        shift, targets, str(number), None,
    )  # fmt: skip
    return made, float(np.median([total_of(each) for each in alike]))


def data(seed: int, even: bool = False, count: int = 500) -> tuple[Columns, float]:
    """Make all clusters, with targets from 0 to 1, split 70 / 15 / 15; and the floor of the test.

    The floor is a mean absolute error in units of the graph's output.
    """
    random = np.random.default_rng(seed)
    graphs, guesses = zip(*(cluster(n, random, even) for n in range(count)), strict=True)
    made = columns_of(graphs, TARGETS)
    train = int(0.7 * count)
    rest = int(0.15 * count)
    split = random.permutation(np.repeat([0, 1, 4], (train, rest, count - train - rest)))
    totals = made.targets["total"][:, 0]
    missed = np.abs(totals - guesses)[split == 4].mean() / np.ptp(totals)
    for values in made.targets.values():
        values -= values.min()
        values /= values.max()
    made = replace(made, split=split.astype(np.int8))
    sizes = np.bincount(split, minlength=5).tolist()
    stats = {
        "splits": dict(zip(("train", "val", "sel", "cal", "test"), sizes, strict=True)),
        **size_stats(made, CUTOFF),
        "targets": fit_target_stats(made, TARGETS),
    }
    return replace(made, stats=cast("StoreStats", stats)), float(missed)


def errors_on_test(
    conv: str, graphs: Columns, task: Task, seed: int, epochs: int
) -> dict[str, float]:
    """Train one net; gives the test MAE of each head at the best epoch of the validation split."""
    config = TrialConfig(
        seed=seed,
        data={"store": "none"},
        model={"conv": conv, "features": 8, "layers": 2, "cutoff": CUTOFF, "basis_size": 8},
        heads=task.heads,
        training={"epochs": epochs, "global_batch": task.batch, "learning_rate": task.rate},
    )
    trainer = Trainer(build_parts(config, graphs, Ranks(0, 1, torch.device("cpu"))))
    trainer.run(epochs, lambda: "go")
    trainer.load_best_weights()
    sums = error_sums(trainer.parts.model, trainer.parts.feed, graphs.indices_of("test"))
    return {name: float(row[0] / row[1]) for name, row in zip(task.heads, sums, strict=True)}


def figures_of(conv: str, sets: Sets, seeds: Sequence[int], epochs: int) -> dict[str, float]:
    """Return the mean over data sets of every head's test MAE, by the name of the figure."""
    result = {}
    for prefix, (task, even) in TASKS.items():
        runs = [errors_on_test(conv, sets[seed, even][0], task, seed, epochs) for seed in seeds]
        for name in task.heads:
            key = f"bcc_multi_{name}_{conv}" if prefix == "multi" else f"bcc_{prefix}_{conv}"
            result[key] = round(statistics.mean(run[name] for run in runs), 5)
    return result


def main() -> None:
    parser = make_parser(__doc__, "a few convs and epochs")
    parser.add_argument("--convs", nargs="*", help="only these; not recorded")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    seeds, epochs, count = ((0,), 20, 500) if options.quick else ((0, 1, 2), 100, 500)
    if options.smoke:
        seeds = (0,)
        epochs = 1
        count = 40
        options.convs = ["gin"]
    sets = {(seed, even): data(seed, even, count) for seed in seeds for even in (False, True)}
    figures = {"bcc_floor": round(statistics.mean(sets[s, False][1] for s in seeds), 5)}
    for conv in options.convs or (QUICK if options.quick else CONV_SPECS):
        started = time.process_time()
        figures |= figures_of(conv, sets, seeds, epochs)
        figures[f"bcc_cpu_seconds_{conv}"] = round(time.process_time() - started, 1)
    finish(__file__, figures, keep=not (options.quick or options.convs))


if __name__ == "__main__":
    main()
