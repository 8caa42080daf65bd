"""Compute the features of a store's atoms, with worker processes of this host.

A worker is ``python -m hydragnn_hpo.model.trunks.embed STORE TRUNK SEED``. Workers, and commands on
several hosts, share the pieces of one cache by their files alone.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np
import torch
from ase import Atoms
from numpy.typing import NDArray

from hydragnn_hpo.config import TRUNKS, TrunkSpec
from hydragnn_hpo.config.trunk_specs import check_elements
from hydragnn_hpo.data import Columns, FeatureCache, GraphSet, close, open_store
from hydragnn_hpo.errors import ConfigError, DataError, HydraError, JobError, answer_of
from hydragnn_hpo.files import write_json
from hydragnn_hpo.model.trunks import FrozenTrunk, find_trunk, load_trunk
from hydragnn_hpo.model.trunks.frozen_trunk import columns_to_describe, split_rows

_LEAST = 2000
"""Atoms from which a further process is worth its start, which takes seconds."""

_MEASURED_SECONDS = 2.0
"""CPU-seconds after which a price is known well enough."""

Report = Callable[[int], None]
"""Receives a number of graphs whose features are there."""


def flat_features(trunk: FrozenTrunk, columns: Columns) -> NDArray[np.float32]:
    """Return the features of all atoms of some graphs, block after block, [N, F]."""
    values = trunk.features(columns, range(columns.num_graphs))
    return values.reshape(len(values), -1)


def feature_cache(store: Path, name: str, spec: TrunkSpec | None = None) -> FeatureCache:
    """Return the cache of a store's features from a foundation model.

    Args:
        store: the store, ``NAME.bp``.
        name: the model.
        spec: what is known of it; left out for one that ships. Its network is not built.

    Raises:
        ConfigError: there is no such model.
    """
    own = "" if spec is None else spec.checksum
    return FeatureCache(store, name, own or find_trunk(name).checksum)


def embed_store(
    store: Path,
    name: str,
    *,
    processes: int | None = None,
    expected: str = "",
    report: Report = lambda graphs: None,
) -> FeatureCache:
    """Compute the features of all atoms of a store, unless they are there; a killed run is resumed.

    Args:
        store: the store, ``NAME.bp``.
        name: the foundation model, or the card of a user's (``NAME.json``).
        processes: worker processes; None means one per core, fewer for few atoms.
        expected: checksum of the model; any if empty.
        report: called with the number of graphs of each piece that this process finds or makes.

    Returns:
        The whole cache.

    Raises:
        ConfigError: there is no such model, or the store has features of another version of it.
        DataError: the store is damaged, or the model does not take a structure.
        JobError: a worker process was killed.
        StorageError: the disk is full.
    """
    trunk = load_trunk(name)
    if expected and trunk.checksum != expected:
        raise ConfigError(
            f"{name}: was changed after the campaign had begun: put back the file of then."
        )
    cache = FeatureCache(store, trunk.name, trunk.checksum)
    graphs = open_store(store, access="windows")
    try:
        if cache.is_whole:
            report(graphs.num_graphs)
            return cache
        _check_fit(trunk, cache, graphs)
        many = len(os.sched_getaffinity(0)) if processes is None else processes
        many = min(many, 1 + int(graphs.num_nodes().sum()) // _LEAST)
        with ExitStack() as stack:
            workers = [stack.enter_context(_worker(cache, name, n)) for n in range(1, many)]
            cache.compute_pieces(graphs, partial(flat_features, trunk), report=report)
            for worker in workers:
                _await(worker, store)
        if not cache.join_pieces(graphs):
            raise JobError(f"{store}: pieces of its features were removed; start again.")
    finally:
        close(graphs)
    return cache


def _check_fit(trunk: FrozenTrunk, cache: FeatureCache, graphs: GraphSet) -> None:
    """Check that the model knows all elements, and that no other version was used before."""
    try:
        check_elements(trunk.spec, graphs.stats["elements"])
    except ValueError as error:
        raise DataError(f"{cache.store}: {error}") from error
    if other := cache.find_other_version():
        made = "hydragnn-hpo that made them" if cache.trunk in TRUNKS else "files of then"
        raise ConfigError(
            f"{cache.folder}: holds features of another version of '{cache.trunk}' "
            f"({other[:12]}, here {cache.checksum[:12]}): use the {made}, or remove that "
            "folder and the trials that read it."
        )


def _worker(cache: FeatureCache, name: str, seed: int) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-m", "hydragnn_hpo.model.trunks.embed"]
    return subprocess.Popen(
        [*argv, str(cache.store.absolute()), name, str(seed)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def _await(worker: "subprocess.Popen[str]", store: Path) -> None:
    _, output = worker.communicate()
    if worker.returncode < 0:
        raise JobError(
            f"{store}: a process that computed features was killed by signal "
            f"{-worker.returncode}; if memory ran out, take fewer processes, and start again: "
            "finished pieces are kept."
        )
    if worker.returncode:
        lines = output.strip().splitlines()
        raise DataError(lines[-1].removeprefix("error: ") if lines else f"{store}: a worker failed")


def measure_price(
    trunk: FrozenTrunk, columns: Columns, clock: Callable[[], float] = time.process_time
) -> tuple[float, str]:
    """Measure what features take, in the batches of ``FrozenTrunk.features``, for about 2 s.

    The smallest structure is described once before: a first call is slower.

    Args:
        trunk: the foundation model.
        columns: structures, at least one; their edges are not read.
        clock: CPU-seconds of this process.

    Returns:
        CPU-seconds of one atom, and what they were measured on, in words.

    Raises:
        DataError: the model does not take a structure.
    """
    sizes = columns.num_nodes()
    trunk.features(columns, [int(sizes.argmin())])
    count, spent = 0, 0.0
    start = clock()
    for rows in split_rows(sizes, range(columns.num_graphs)):
        trunk.features(columns, rows)
        count += len(rows)
        spent = clock() - start
        if spent >= _MEASURED_SECONDS:
            break
    measured = f"measured on {count} structure{'s' if count > 1 else ''}"
    return spent / int(sizes[:count].sum()), measured


def answer_prices(sources: str) -> None:
    """Print the measured prices of foundation models, as JSON.

    Those that cannot be opened, or do not take the structures, are left out. Structures come as
    JSON on standard input, each as the arguments of ``ase.Atoms``.

    Args:
        sources: what ``load_trunk`` takes, by name of the model, as JSON.
    """
    torch.set_num_threads(1)
    columns = columns_to_describe(Atoms(**structure) for structure in json.load(sys.stdin))
    prices = {}
    for name, source in json.loads(sources).items():
        with suppress(HydraError):
            prices[name] = measure_price(load_trunk(source), columns)
    json.dump(prices, sys.stdout)


class EmbedJob(TypedDict):
    """Input of a job that computes the features of a store."""

    store: str
    """Path of the store."""
    trunk: str
    """Name of the foundation model, or the card of a user's."""
    checksum: NotRequired[str]
    """Checksum of a user's model; it is not compared if left out."""
    answer: str
    """JSON file to write: ``{"path": ...}``, or ``{"error": sentence}``."""
    processes: NotRequired[int]
    """Worker processes; 1 if left out, as a rank has one core."""


def job_main(spec: EmbedJob) -> int:
    """Compute features as a job, and write where they are, or the text of the error, to a file.

    Returns:
        0, even where it has failed.
    """
    torch.set_num_threads(1)
    try:
        processes = int(spec.get("processes", 1))
        expected = spec.get("checksum", "")
        cache = embed_store(
            Path(spec["store"]), spec["trunk"], processes=processes, expected=expected
        )
        answer: dict[str, str | bool] = {"path": str(cache.path)}
    except HydraError as error:
        answer = answer_of(error)
    write_json(Path(spec["answer"]), answer)
    return 0


def main(store: str, name: str, seed: str) -> None:
    """Compute pieces as a worker, until all are there.

    Args:
        store: path of the store.
        name: the foundation model, or the card of a user's.
        seed: of the order of the pieces.
    """
    torch.set_num_threads(1)
    graphs = open_store(Path(store), access="windows")
    try:
        trunk = load_trunk(name)
        cache = FeatureCache(Path(store), trunk.name, trunk.checksum)
        cache.compute_pieces(graphs, partial(flat_features, trunk), seed=int(seed))
    except HydraError as error:
        sys.exit(f"error: {error}")
    finally:
        close(graphs)


if __name__ == "__main__":
    main(*sys.argv[1:])
