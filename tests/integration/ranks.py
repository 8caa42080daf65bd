"""Train the same trial at several widths in forked ranks; print the parameters as JSON.

Run as ``python ranks.py BATCH EPOCHS``: for each line ``CONV WAY`` it answers a line. A way fills
batches. Where its name says ``random``, shares and pieces are cut at random, ``pieces`` takes a
step in four, ``single`` computes in fp32, ``replayed`` has several ranks replay their passes. Each
is trained by one rank and by three; ``graphs`` of schnet by two and by four, too. This process only
imports and forks: torch must not have run anything before a fork.
"""

import json
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import numpy as np
import torch
from forking import fork_ranks
from replays import replay_on_cpu

from hydragnn_hpo.config.data_config import SPLITS, MixedConfig, TargetConfig
from hydragnn_hpo.config.trial_config import TrialConfig
from hydragnn_hpo.config.trunk_specs import TRUNKS
from hydragnn_hpo.data.columns import Graph, columns_of
from hydragnn_hpo.data.feature_cache import FeaturedGraphs
from hydragnn_hpo.data.mixture import unite
from hydragnn_hpo.training import evaluate, micro_batches
from hydragnn_hpo.training.ddp import join_ranks
from hydragnn_hpo.training.trainer import Trainer
from hydragnn_hpo.training.training_parts import build_parts

TARGETS = {
    "energy": TargetConfig(level="graph", unit="eV"),
    "charge": TargetConfig(level="node", unit="e"),
}
FORCE = TargetConfig(level="node", shape="vector", unit="eV/angstrom", derived_from="energy")
WHOLE = {
    "model": {
        "norm": "graph", "attention": "gps", "encoding": "random_walk", "shared_layers": 1,
        "attributes": ["spin"], "repulsion": "zbl",
    },
    "heads": {
        "energy": {"loss": "beta_nll", "pool": "attention", "stage_two_weight": 9.0},
        "charge": {"kind": "conv", "loss": "nll"},
        "force": {"weight": 3.0},
    },
    "training": {"balance": "uncertainty", "stage_two_share": 0.5, "weight_by": "spin"},
}  # fmt: skip
"""Everything at once that a net can be told beside its conv."""


def random_graph(number, random):
    nodes = int(random.integers(1, 24))
    positions = random.random((nodes, 3)) * nodes
    pairs = [(j, i) for i in range(nodes) for j in range(nodes) if i != j and (i + j) % 3]
    targets = {"charge": random.normal(size=(nodes, 1)), "force": random.normal(size=(nodes, 3))}
    if number % 5:
        targets["energy"] = random.normal(size=1)
    return Graph(
        id=str(number),
        numbers=random.integers(1, 30, nodes).astype(np.int16),
        positions=positions,
        cell=np.zeros((3, 3)),
        pbc=np.zeros(3, bool),
        edges=np.array(pairs, np.int32).reshape(-1, 2),
        edge_shift=np.zeros((len(pairs), 3), np.int16),
        targets=targets,
        group="x",
        published=None,
        attributes={"spin": float(number % 3)},
    )


def random_columns(count=70):
    random = np.random.default_rng(5)
    stats = {
        "targets": {
            name: {"level": t.level, "shape": t.shape, "unit": t.unit, "mean": 0.1, "std": 0.9}
            for name, t in {**TARGETS, "force": FORCE}.items()
        }
    }
    stats["attributes"] = {"spin": {"mean": 1.0, "std": 0.8, "min": 0.0}}
    stats["targets"]["energy"]["energy"] = "total"
    stats["targets"]["force"]["derived_from"] = "energy"
    targets = {**TARGETS, "force": FORCE}
    graphs = [random_graph(n, random) for n in range(count)]
    made = columns_of(graphs, targets, stats, attributes=["spin"])
    split = np.where(np.arange(count) < 50, 0, 1).astype(np.int8)
    return replace(made, split=split)


def config(conv, batch, epochs, precision):
    return TrialConfig(
        seed=3,
        data={"store": "none"},
        model={"conv": conv, "features": 16, "layers": 2, "cutoff": 6.0, "basis_size": 6},
        heads={"energy": {"weight": 2.0}, "charge": {"loss": "mae"}},
        training={
            "epochs": epochs, "global_batch": batch, "ema": 0.9, "clip_norm": 1.0,
            "precision": precision, "learning_rate": 3e-3,
        },
    )  # fmt: skip


def several(columns):
    """Cut the graphs into two data sets of which the second knows no energy."""
    first, second = (columns.take(rows) for rows in (np.arange(0, 70, 2), np.arange(1, 70, 2)))
    known = {name: {**target, "count": 1, "min": 0.0, "max": 1.0, "mad": 1.0}
             for name, target in columns.stats["targets"].items()}  # fmt: skip
    sizes = {"total": 1, "min": 1, "max": 1}
    common = {"name": "x", "num_graphs": 1, "cutoff": 6.0, "elements": [], "nodes": sizes,
              "edges": sizes, "degree": {"6.0": 1.0}, "train_nodes": 1, "train_edges": 1,
              "splits": dict.fromkeys(SPLITS, 1)}  # fmt: skip
    first = replace(first, stats={**common, "targets": known})
    second = replace(second, stats={**common, "targets": {"charge": known["charge"]}},
                     levels={"charge": "node"}, targets={"charge": second.targets["charge"]},
                     masks={"charge": second.masks["charge"]})  # fmt: skip
    entries = [MixedConfig(ratio=2.0), MixedConfig(ratio=1.0)]
    return unite([first, second], entries, ["charge"])


def featured(columns):
    """Give all nodes features as a foundation model would, whatever they mean."""
    random = np.random.default_rng(6)
    shape = (int(columns.num_nodes().sum()), TRUNKS["chgnet"].count)
    values = random.normal(size=shape).astype(np.float16)
    some = values[:1000].astype(float)
    known = {"chgnet": {"mean": some.mean(0).tolist(), "std": some.std(0).tolist()}}
    stats = {**columns.stats, "features": known}
    return FeaturedGraphs(columns, "chgnet", values, stats)


def random_shares(costs, world):
    """Cut at random, the same on all ranks; some shares are empty, some hold nearly all."""
    random = np.random.default_rng(len(costs) * 8 + world)
    owner = (random.random(len(costs)) ** 2 * world).astype(int)
    return [np.flatnonzero(owner == rank) for rank in range(world)]


def train(out, conv, batch, epochs, way):
    torch.set_num_threads(1)
    ranks = join_ranks()
    precision = "fp32" if "single" in way else "fp64"
    made = config(conv, batch, epochs, precision)
    graphs = random_columns()
    if "random" in way:
        evaluate.balance_load = micro_batches.balance_load = random_shares
    if "pieces" in way or "single" in way:
        update = {"micro_batches": 4, "learning_rate": 1e-3 if "single" in way else 3e-3}
        training = made.training.model_copy(update=update)
        made = made.model_copy(update={"training": training})
    if way == "mixture":
        graphs = several(graphs)
        sets = [made.data[0].model_copy(update={"ratio": ratio}) for ratio in (2.0, 1.0)]
        made = made.model_copy(update={"data": tuple(sets)})
    if way == "budget":
        training = made.training.model_copy(update={"global_batch": None, "batch_atoms": 200})
        made = made.model_copy(update={"training": training})
    if way == "whole":
        update = {part: made.model_dump()[part] | values for part, values in WHOLE.items()}
        made = TrialConfig.model_validate(made.model_dump() | update | {"heads": WHOLE["heads"]})
    if way == "features":
        graphs = featured(graphs)
        made = made.model_copy(
            update={"model": made.model.model_copy(update={"embedding": "chgnet"})}
        )
    if "replayed" in way and ranks.world > 1:
        replay_on_cpu()
    trainer = Trainer(build_parts(made, graphs, ranks))
    trainer.run(epochs, lambda: "go")
    trainer.load_best_weights()
    predictions = evaluate.predict_split(trainer.parts.model, trainer.parts.feed, trainer.parts.val)
    if ranks.first:
        result = {
            "objective": trainer.progress.best_objective,
            "val_mae": trainer.progress.best_val,
            "steps": trainer.progress.step,
            "predictions": {name: p.ravel().tolist() for name, p in predictions.items()},
            "parameters": torch.cat(
                [p.detach().flatten() for p in trainer.parts.model.parameters()]
            ).tolist(),
        }
        out.write_text(json.dumps(result))
    ranks.barrier()


def trained(batch, epochs, conv, way):
    """Give what each number of ranks ends with, by that number."""
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for world in (1, 2, 3, 4) if (conv, way) == ("schnet", "graphs") else (1, 3):
            out = Path(folder) / f"{world}.json"
            fork_ranks(world, partial(train, out, conv, batch, epochs, way))
            results[world] = json.loads(out.read_text())
    return results


def main():
    batch = int(sys.argv[1])
    epochs = int(sys.argv[2])
    for line in sys.stdin:
        conv, _, way = line.rstrip("\n").partition(" ")
        print(json.dumps(trained(batch, epochs, conv, way)), flush=True)


if __name__ == "__main__":
    main()
