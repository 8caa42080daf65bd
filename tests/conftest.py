"""What every test may use, and what makes each begin alike."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Threads of numpy's products spin where cores are shared: they take four times the CPU time of one.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest
from alike import begin, seed
from hypothesis import HealthCheck, settings
from ray_cluster import RayCluster
from second_try import pytest_addoption, pytest_configure
from stores import write_store
from virtual_slurm import VirtualSlurm, started

from hydragnn_hpo.config.data_config import CardConfig, FileConfig, TargetConfig
from hydragnn_hpo.data.columns import Columns, Names, offsets

# Triton interprets its loops where there is no GPU; it reads this when it is imported.
if not (Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()):
    os.environ.setdefault("TRITON_INTERPRET", "1")

pytest_plugins = ["pytester", "messages", "checkout_guard", "cpu_budget", "slices"]
__all__ = ["pytest_addoption", "pytest_configure"]

settings.register_profile(
    "alike", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("alike")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin alike; skip tests marked ``gpu`` where torch finds none, and load it for them only."""
    begin()
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("this machine has no GPU.")


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> None:
    """Let a fixture draw the same, whichever test asks for it first."""
    seed(fixturedef.argname)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Let a test draw the same, whatever was set up for it, or ran before it."""
    seed(item.nodeid)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what ``make test`` leaves out as slow, too."""
    if item.get_closest_marker("stress") or item.get_closest_marker("release"):
        item.add_marker(pytest.mark.slow)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with files of slow tests: they wait much, and quick tests fill the cores meanwhile."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder of the public data sets, which are not part of the repository."""
    root = os.environ.get("HYDRAGNN_HPO_DATA")
    if not root:
        pytest.skip("HYDRAGNN_HPO_DATA is unset: point it at the folder of public data sets.")
    return Path(root)


@pytest.fixture
def usual_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let prices be those of the profile: to measure this computer takes seconds, and varies."""
    speed = "hydragnn_hpo.pipeline.machine_speed.measure_slowdown"
    monkeypatch.setattr(speed, lambda profile: 1.0)


@pytest.fixture
def random_columns() -> Columns:
    """Sixty graphs with all kinds of columns, random numbers in them; some have no edges."""
    random = np.random.default_rng(5)
    nodes = random.integers(1, 6, 60)
    edges = random.integers(0, 9, 60)
    shapes = {"energy": (60, 1), "charge": (nodes.sum(), 1), "push": (nodes.sum(), 3)}
    values = {name: random.normal(size=shape) for name, shape in shapes.items()}
    masks = {name: random.random(len(value)) < 0.8 for name, value in values.items()}
    for name, value in values.items():
        value[~masks[name]] = np.nan
    return Columns(
        numbers=random.integers(1, 90, nodes.sum()).astype(np.int16),
        positions=random.normal(size=(nodes.sum(), 3)),
        cell=random.normal(size=(60, 3, 3)),
        pbc=random.random((60, 3)) < 0.5,
        node_offset=offsets(nodes),
        edge_offset=offsets(edges),
        edges=random.integers(0, np.repeat(nodes, edges)[:, None], (edges.sum(), 2), np.int32),
        edge_shift=random.integers(-2, 3, (edges.sum(), 3)).astype(np.int16),
        targets=values,
        masks=masks,
        levels={"energy": "graph", "charge": "node", "push": "node"},
        split=random.integers(-1, 5, 60).astype(np.int8),
        group=random.integers(0, 20, 60).astype(np.int32),
        ids=Names.of("graph" * (row % 3) + f"-{row}" for row in range(60)),
        attributes={"spin": random.normal(size=60)},
        laplacian=random.normal(size=(nodes.sum(), 2)).astype(np.float32),
    )


@pytest.fixture
def many_windows(random_columns: Columns, tmp_path: Path) -> Path:
    """A store of the random columns in 2 parts and 9 windows of up to 7 graphs."""
    levels = random_columns.levels
    targets = {name: TargetConfig(level=levels[name], unit="eV") for name in levels}
    card = CardConfig(name="random", files=(FileConfig(path="none"),), targets=targets)
    stats = {"cutoff": 4.0, "targets": {name: {"level": level} for name, level in levels.items()}}
    parts = [random_columns.take(np.arange(25)), random_columns.take(np.arange(25, 60))]
    write_store(tmp_path / "random.bp", parts, stats, card, window=7)
    return tmp_path / "random.bp"


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VirtualSlurm]:
    """A real Slurm of four virtual hosts."""
    with started(tmp_path_factory.mktemp("slurm"), 4) as cluster:
        yield cluster


@pytest.fixture
def slurm(slurm_cluster: VirtualSlurm) -> Iterator[VirtualSlurm]:
    """A real Slurm whose hosts are all idle, and will be again."""
    yield slurm_cluster
    slurm_cluster.release()


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """A real Ray cluster of four hosts and a head without CPUs."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("no Ray: pip install 'hydragnn-hpo[ray]'.")
    cluster = RayCluster(tmp_path_factory.mktemp("ray"), 4)
    try:
        yield cluster
    finally:
        cluster.close()
