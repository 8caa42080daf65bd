"""Batches, shares, memory, opening and neighbours of the data floor, each beside its peer.

PyG's ``DataLoader`` over the same graphs, PyG's two ways of keeping graphs on disk, random
sharding, and the neighbour lists of ASE and pymatgen. Ours and the peer take turns; medians of
5 ratios. ``--quick`` has fewer turns, a smaller store and fewer crystals. Needs
``HYDRAGNN_HPO_DATA``; pymatgen is measured where it is installed (extra ``bench``).
"""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import torch
from ase import Atoms
from ase.neighborlist import neighbor_list
from record import finish, make_parser
from torch_geometric.loader import DataLoader

from hydragnn_hpo.config.convs import CONV_SPECS
from hydragnn_hpo.config.model_config import ModelConfig
from hydragnn_hpo.data.batch import make_batch
from hydragnn_hpo.data.batch_sampler import balance_load, predict_graph_costs, shuffle_rows
from hydragnn_hpo.data.store_access import open_store
from hydragnn_hpo.data.structure import find_edges

BATCH = 64
RANKS, GLOBAL_BATCH = 8, 128


def steps_of(count: int, size: int, windows: np.ndarray | None = None) -> list[np.ndarray]:
    """Give one shuffled epoch of all graphs in steps of ``size``."""
    rows = shuffle_rows(np.arange(count), (0, 0), windows=windows)
    return np.split(rows, range(size, count, size))


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of some work: the machine is shared, other processes do not count."""
    started = time.process_time()
    work()
    return time.process_time() - started


def turns(ours: Callable[[], object], peer: Callable[[], object], count: int) -> dict[str, float]:
    """Let both do the same work in turns; medians of times, and of the ratio of neighbours."""
    pairs = [(seconds(ours), seconds(peer)) for _ in range(count)]
    return {
        "ours": statistics.median(a for a, _ in pairs),
        "peer": statistics.median(b for _, b in pairs),
        "ratio": statistics.median(b / a for a, b in pairs),
    }


def batches(path: Path, count: int) -> dict[str, float]:
    """Batches of 64 out of memory, in the same random order."""
    columns = graphs.in_memory(path)
    data = graphs.as_data(columns)
    targets = tuple(columns.targets)
    steps = steps_of(columns.num_graphs, BATCH)

    def ours() -> None:
        for indices in steps:
            make_batch(columns, indices, cutoff=columns.stats["cutoff"], targets=targets)

    order = np.concatenate(steps).tolist()
    loader = DataLoader(data, batch_size=BATCH, sampler=order, num_workers=0)
    measured = turns(ours, lambda: [None for _ in loader], count)
    graphs_per_second = {k: columns.num_graphs / measured[k] for k in ("ours", "peer")}
    return {**graphs_per_second, "ratio": measured["ratio"]}


def from_disk(path: Path, folder: Path, count: int) -> dict[str, float]:
    """One pass over a store that is on disk: opened anew each time, no object is kept."""
    columns = graphs.in_memory(path)
    data = graphs.as_data(columns)
    targets = tuple(columns.targets)
    samples = folder / "samples"
    samples.mkdir()
    for row, one in enumerate(data):
        torch.save(one, samples / f"{row}.pt")
    graphs.Stored(folder / "one_file", data)
    steps = steps_of(columns.num_graphs, BATCH)
    order = np.concatenate(steps).tolist()
    cutoff = columns.stats["cutoff"]

    def ours() -> None:
        opened = open_store(path, folder / "stage")
        for indices in steps:
            make_batch(opened, indices, cutoff=cutoff, targets=targets)

    class Samples(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(data)

        def __getitem__(self, row: int) -> object:
            return torch.load(samples / f"{row}.pt", weights_only=False)

    def one_pickle_each() -> None:
        for _ in DataLoader(Samples(), batch_size=BATCH, sampler=order):
            pass

    def one_file() -> None:
        for _ in DataLoader(graphs.Stored(folder / "one_file"), batch_size=BATCH, sampler=order):
            pass

    each = turns(ours, one_pickle_each, count)
    whole = turns(ours, one_file, count)
    return {"pickles": each["ratio"], "one_file": whole["ratio"]}


def imbalance(edges: np.ndarray, costs: np.ndarray, *, random: bool = False) -> float:
    """Largest share of edges over the mean share, averaged over the full steps of an epoch."""
    results = []
    for step in steps_of(len(edges), GLOBAL_BATCH):
        if len(step) < GLOBAL_BATCH:
            continue
        split = np.array_split(np.arange(len(step)), RANKS)
        parts = split if random else balance_load(costs[step], RANKS)
        loads = [edges[step][part].sum() for part in parts]
        results.append(max(loads) / np.mean(loads))
    return float(np.mean(results))


def bound(edges: np.ndarray) -> float:
    """Give what no sharding can be better than: the largest graph of a step is on one rank."""
    steps = [s for s in steps_of(len(edges), GLOBAL_BATCH) if len(s) == GLOBAL_BATCH]
    return float(np.mean([max(1.0, edges[s].max() * RANKS / edges[s].sum()) for s in steps]))


TOUCH = """
import sys, time
from pathlib import Path
from hydragnn_hpo.data.store_access import open_store
columns = open_store(Path(sys.argv[1]), Path(sys.argv[2]))
arrays = [columns.numbers, columns.positions, columns.edges, columns.edge_shift]
total = sum(float(a.sum(dtype=float)) for a in arrays)
print("ready", flush=True)
sys.stdin.readline()
"""


def memory_growth(path: Path, stage: Path) -> float:
    """Give what each further rank adds to the mappings of a store, as a share of the store."""
    open_store(path, stage)
    command = [sys.executable, "-c", TOUCH, str(path), str(stage)]
    ranks = []
    sums = {}
    try:
        for number in range(1, RANKS + 1):
            rank = subprocess.Popen(command, stdin=-1, stdout=-1, text=True)
            ranks.append(rank)
            assert rank.stdout
            assert rank.stdout.readline().strip() == "ready"
            sums[number] = sum(mapped_bytes(r.pid, str(stage)) for r in ranks)
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    return (sums[RANKS] - sums[1]) / (RANKS - 1) / sums[1]


def mapped_bytes(pid: int, below: str) -> int:
    """Sum the proportional set size of a process's mappings of files below a folder."""
    total, ours = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            ours = below in line
        elif ours and line.startswith("Pss:"):
            total += 1024 * int(line.split()[1])
    return total


OPEN = """
import json, resource, sys, time
from pathlib import Path
import numpy as np
from hydragnn_hpo.data.batch import make_batch
from hydragnn_hpo.data.batch_sampler import shuffle_rows
from hydragnn_hpo.data.store_access import open_store
def resident():
    line = next(l for l in open("/proc/self/status") if l.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
before, started = resident(), time.perf_counter()
columns = open_store(Path(sys.argv[1]), Path(sys.argv[2]), access=sys.argv[3])
opened = time.perf_counter() - started
train = columns.indices_of("train")
first = shuffle_rows(train, (0, 0), windows=columns.windows)[:64]
make_batch(columns, first, cutoff=5.0, targets=("energy",))
batch = time.perf_counter() - started
print(json.dumps({"open": opened, "batch": batch, "rss": resident(), "base": before}))
"""


def opening(path: Path, stage: Path, access: str, count: int) -> dict[str, float]:
    """Open a store and make the first batch in fresh processes; wall time, peak memory in MB."""
    runs = []
    for _ in range(count):
        command = [sys.executable, "-c", OPEN, str(path), str(stage), access]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        runs.append(json.loads(done.stdout))
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def neighbors(count: int, times: int, files: Sequence[str] = graphs.FILES) -> dict[str, float]:
    """Neighbour lists within 5 angstrom, the crystals cut into as many parts as there are turns."""
    every = np.array_split(np.arange(count), times)
    atoms = graphs.structures(count, files)
    has_pymatgen = importlib.util.find_spec("pymatgen") is not None
    ratios: dict[str, list[float]] = {"ase": [], "pymatgen": []}
    rates = []
    for part in every:
        chosen = [atoms[row] for row in part]
        mine = seconds(partial(with_vesin, chosen))
        rates.append(len(chosen) / mine)
        ratios["ase"].append(seconds(partial(with_ase, chosen)) / mine)
        if has_pymatgen:
            peer = seconds(partial(with_pymatgen, in_pymatgen(chosen)))
            ratios["pymatgen"].append(peer / mine)
    medians = {name: statistics.median(result) for name, result in ratios.items() if result}
    return {"rate": statistics.median(rates), **medians}


def with_vesin(crystals: list[Atoms]) -> None:
    for each in crystals:
        find_edges(each.positions, each.cell.array, each.pbc, 5.0)


def with_ase(crystals: list[Atoms]) -> None:
    for each in crystals:
        neighbor_list("ijS", each, 5.0)


def with_pymatgen(crystals: list[Any]) -> None:
    for each in crystals:
        each.get_neighbor_list(5.0)


def in_pymatgen(chosen: list[Atoms]) -> list[Any]:
    """Return the crystals as pymatgen has them."""
    from pymatgen.core import Lattice, Structure

    return [
        Structure(Lattice(a.cell.array), a.symbols, a.positions, coords_are_cartesian=True)
        for a in chosen
    ]


def main() -> None:
    parser = make_parser(__doc__, "fewer turns, not recorded")
    options = parser.parse_args()
    if options.smoke:
        return finish(__file__, smoke(), keep=False)
    quick = options.quick
    count, many = (3, 50_000) if quick else (5, 2_000_000)
    torch.set_num_threads(1)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        sets = {"molecules": graphs.molecules(folder), "crystals": graphs.crystals(folder)}
        for name, path in sets.items():
            result = batches(path, count)
            figures[f"{name}_per_second"] = result["ours"]
            figures[f"{name}_batches_over_pyg"] = result["ratio"]
            (folder / name).mkdir()
            disk = from_disk(path, folder / name, count)
            figures[f"{name}_disk_over_pickles"] = disk["pickles"]
            figures[f"{name}_disk_over_one_file"] = disk["one_file"]
        figures["batches_over_pyg"] = min(figures[f"{n}_batches_over_pyg"] for n in sets)
        figures["disk_over_pyg"] = min(
            figures[f"{name}_disk_over_{peer}"] for name in sets for peer in ("pickles", "one_file")
        )
        figures |= balance(sets["crystals"])
        figures |= stores(folder, many, count)
    result = neighbors(600 if quick else 20_000, count)
    figures["neighbors_per_second"] = result["rate"]
    figures["neighbors_over_ase"] = result["ase"]
    if "pymatgen" in result:
        figures["neighbors_over_pymatgen"] = result["pymatgen"]
    rounded = {name: float(f"{value:.4g}") for name, value in figures.items()}
    return finish(__file__, rounded, keep=not quick)


def smoke() -> dict[str, float]:
    """Measure on small graphs; neighbours of crystals where there are some, memory not at all."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        small = Path(scratch) / "small.bp"
        graphs.small_graphs(small, 256)
        result = batches(small, 1) | from_disk(small, folder, 1)
        result |= balance(small, 1280, ("schnet", "painn"))
        result |= opening(small, folder / "stage", "stage", 1)
    return result | (neighbors(6, 1, graphs.FILES[:1]) if graphs.PUBLIC else {})


class Sizes:
    """As much of a data set as its balance needs."""

    def __init__(self, nodes: np.ndarray, edges: np.ndarray) -> None:
        self.nodes, self.edges = nodes, edges
        self.stats: dict[str, Any] = {}  # no cutoff: every edge is one that convs with angles see

    def num_nodes(self) -> np.ndarray:
        return self.nodes

    def num_edges(self) -> np.ndarray:
        return self.edges


def balance(path: Path, count: int = 12_800, convs: Iterable[str] = CONV_SPECS) -> dict[str, float]:
    """Shares of edges among 8 ranks: ours (of the worst conv), random ones, what is possible."""
    every: dict[str, Any] = {
        "crystals": graphs.in_memory(path),
        "skewed": Sizes(*graphs.skewed_sizes(count, "uniform")),
        "lognormal": Sizes(*graphs.skewed_sizes(count, "lognormal")),
    }
    figures = {}
    for name, sizes in every.items():
        edges = sizes.num_edges()
        results = [imbalance(edges, predict_graph_costs(sizes, ModelConfig(conv=c))) for c in convs]
        figures[f"imbalance_{name}"] = max(results)
        figures[f"imbalance_{name}_random"] = imbalance(edges, edges, random=True)
        figures[f"imbalance_{name}_bound"] = bound(edges)
    return figures


def stores(folder: Path, many: int, count: int) -> dict[str, float]:
    """A store of many small graphs: opened, first batch, resident memory, shared by ranks."""
    path, stage = folder / "small.bp", folder / "stage"
    graphs.small_graphs(path, many)
    windows = opening(path, stage, "windows", count)
    started = time.perf_counter()
    opening(path, stage, "stage", 1)
    staging = time.perf_counter() - started
    staged = opening(path, stage, "stage", count)
    return {
        "graphs_opened": many,
        "stage_once_seconds": staging,
        "open_seconds": staged["open"],
        "first_batch_seconds": staged["batch"],
        "open_rss_mb": staged["rss"],
        "import_rss_mb": staged["base"],
        "open_seconds_windows": windows["open"],
        "first_batch_seconds_windows": windows["batch"],
        "open_rss_mb_windows": windows["rss"],
        "rank_memory_growth": memory_growth(path, stage),
    }


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
