"""Tiny columns in memory, a trainer on them, and a real store with a trial directory."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from stores import write_store

from hydragnn_hpo.config.data_config import CardConfig, TargetConfig
from hydragnn_hpo.config.schema import dump_config
from hydragnn_hpo.config.trial_config import PlacementConfig, TrialConfig
from hydragnn_hpo.data.columns import Graph, columns_of
from hydragnn_hpo.data.graph_sizes import size_stats
from hydragnn_hpo.data.normalize import fit_target_stats
from hydragnn_hpo.layout import TrialDir
from hydragnn_hpo.training.ddp import Ranks
from hydragnn_hpo.training.trainer import Trainer
from hydragnn_hpo.training.training_parts import build_parts

ALONE = Ranks(0, 1, torch.device("cpu"))

TARGETS = {
    "energy": TargetConfig(level="graph", unit="eV", optional=True),
    "charge": TargetConfig(level="node", unit="e", optional=True),
    "push": TargetConfig(level="node", shape="vector", unit="eV/angstrom", optional=True),
}


def random_graph(number, random):
    nodes = 1 + number % 6
    pairs = [(i, j) for i in range(nodes) for j in range(nodes) if i != j]
    targets = {
        "charge": random.normal(size=(nodes, 1)),
        "push": random.normal(size=(nodes, 3)),
    }
    targets["charge"][::3] = np.nan
    if number % 5:
        targets["energy"] = random.normal(size=1)
    return Graph(
        id=str(number),
        numbers=random.integers(1, 9, nodes).astype(np.int16),
        positions=random.random((nodes, 3)) * 3,
        cell=np.zeros((3, 3)),
        pbc=np.zeros(3, bool),
        edges=np.array(pairs, np.int32).reshape(-1, 2),
        edge_shift=np.zeros((len(pairs), 3), np.int16),
        targets=targets,
        group="x",
        published=None,
    )


def make_columns(count=40, seed=5):
    """24 graphs to train on and 4 in each other split, in an order that is not ascending."""
    random = np.random.default_rng(seed)
    made = columns_of([random_graph(n, random) for n in range(count)], TARGETS)
    split = np.repeat(np.arange(5), (24, 4, 4, 4, 4)).astype(np.int8)
    made = replace(made, split=random.permutation(split))
    sizes = np.bincount(made.split, minlength=5).tolist()
    stats = {
        "splits": dict(zip(("train", "val", "sel", "cal", "test"), sizes, strict=True)),
        **size_stats(made, 4.0),
        "targets": fit_target_stats(made, TARGETS),
    }
    return replace(made, stats=stats)


def make_config(*, conv="egnn", heads=None, store="none", seed=3, model=None, **training):
    return TrialConfig(
        seed=seed,
        data={"store": store},
        model={
            "conv": conv, "features": 8, "layers": 1, "cutoff": 3.5, "basis_size": 4,
            **(model or {}),
        },
        heads=heads or {"energy": {"weight": 2.0}, "charge": {"loss": "mae"}},
        training={
            "epochs": 4, "global_batch": 7, "learning_rate": 3e-3, "precision": "fp64",
            **training,
        },
    )  # fmt: skip


def go():
    return "go"


def weights(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.parts.model.parameters()])


def difference(one, other):
    return float((weights(one) - weights(other)).abs().max())


def epochs(trainer):
    return [record for record in trainer.records if record["record"] == "epoch"]


@pytest.fixture(scope="session")
def columns():
    return make_columns()


@pytest.fixture
def train(columns):
    """Make a trainer on the tiny columns; keep its ``.records``, call ``.on_record`` with each."""

    def make(columns=columns, **settings):
        records = []
        hooks = []

        def record(kind, **values):
            records.append({"record": kind, **values})
            for hook in hooks:
                hook(kind, **values)

        trainer = Trainer(build_parts(make_config(**settings), columns, ALONE, record))
        trainer.records = records
        trainer.on_record = hooks
        return trainer

    return make


@pytest.fixture(scope="session")
def store(tmp_path_factory, columns):
    """A store on disk, written once for all tests."""
    path = tmp_path_factory.mktemp("store") / "tiny.bp"
    card = CardConfig(name="tiny", files=({"path": "nowhere.xyz"},), targets=TARGETS)
    write_store(path, [columns], columns.stats, card)
    return path


class Bench:
    """A trial directory and its attempts."""

    def __init__(self, path: Path, store: Path) -> None:
        self.trial = TrialDir(path)
        self.store = store
        path.mkdir()

    def configure(self, **settings):
        config = make_config(store=str(self.store), **settings)
        self.trial.config.write_text(dump_config(config))
        return config

    def place(self, attempt=1, epochs=4):
        folder = self.trial.attempt(attempt)
        folder.mkdir(parents=True)
        placement = PlacementConfig(attempt=attempt, epochs=epochs)
        (folder / "placement.toml").write_text(dump_config(placement))
        return {"trial_dir": str(self.trial.path), "attempt": attempt}


@pytest.fixture
def bench(tmp_path, store, monkeypatch, tmp_path_factory):
    """A trial directory beside the store; rank 0 of 1 on the CPU."""
    monkeypatch.setenv("HYDRAGNN_HPO_SCRATCH", str(tmp_path_factory.getbasetemp() / "scratch"))
    monkeypatch.setenv("HYDRAGNN_HPO_DEVICE", "cpu")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    return Bench(tmp_path / "trial", store)
