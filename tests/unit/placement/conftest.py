"""A trial, statistics and a machine that are easy to count by hand."""

import pytest

from hydragnn_hpo.config.machine import find_profile
from hydragnn_hpo.config.trial_config import TrialConfig


@pytest.fixture
def stats():
    """90 graphs alike with 1000 nodes, which have 10 neighbours within 4 angstrom."""
    return {
        "splits": {"train": 90, "val": 0},
        "train_nodes": 1000,
        "nodes": {"mean": 10.0, "min": 10, "max": 10},
        "degree": {"3.0": 4.0, "4.0": 10.0},
        "targets": {"e": {"level": "graph", "shape": "scalar"}},
    }


@pytest.fixture
def make_trial():
    """Makes trials that differ in what is named."""
    return _trial


def _trial(conv="egnn", *, batch=32, features=16, layers=2, parallel=(), **training):
    return TrialConfig(
        data={"store": "x"},
        model={"conv": conv, "features": features, "layers": layers, "cutoff": 4.0},
        heads={"e": {}},
        training={"global_batch": batch, **training},
        parallel=dict(parallel),
    )


@pytest.fixture
def machine():
    """A GPU machine of two slots per host with round numbers."""
    return find_profile("generic-slurm").model_copy(
        update={
            "name": "round",
            "slots_per_host": 2,
            "memory_gb": 10.0,
            "process_gb": 0.0,
            "flops_per_second": 1e9,
            "bytes_per_second": 1e8,
            "step_seconds": 0.01,
            "layer_seconds": 0.001,
        }
    )
