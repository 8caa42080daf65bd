"""Predict with 8 unlike members in one engine, against 8 separate calls.

The peer is how committees are run: each member builds its own neighbour lists (``vesin``, as ours)
and PyG's ``DataLoader`` makes its batches; the nets are the same, once with our kernels
(``separate``), once without (``separate_eager``). One process, one thread, CPU time; all ways take
turns over the same structures, medians. ``HYDRAGNN_HPO_DATA`` gives real
structures, without it the molecules of ASE's G2 collection stand in.

    HYDRAGNN_HPO_DATA=... .venv/bin/python tests/benchmarks/ensemble.py
    .venv/bin/python tests/benchmarks/ensemble.py --quick     # records nothing
"""

import gzip
import io
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import torch
import vesin
from ase import Atoms
from ase.build import molecule
from ase.collections import g2
from ase.io import iread
from record import finish, make_parser

from hydragnn_hpo.config.model_config import HeadConfig, ModelConfig
from hydragnn_hpo.data.batch import Batch
from hydragnn_hpo.ensemble.engine import EDGES_PER_BATCH, EagerEngine, Engine, Member, pieces
from hydragnn_hpo.ensemble.structure_batches import columns_of_atoms, rules_for
from hydragnn_hpo.model.gnn import MultiHeadGNN
from hydragnn_hpo.training.memory import keep_freed_memory
from hydragnn_hpo.uncertainty.calibrate import Moments

if TYPE_CHECKING:
    from torch_geometric.data import Data

UNLIKE = (
    ("cgcnn", 48, 2, 4.5),
    ("schnet", 64, 3, 5.0),
    ("painn", 64, 3, 3.5),
    ("egnn", 64, 3, 4.5),
    ("pna", 48, 2, 4.0),
    ("gin", 96, 3, 5.0),
    ("sage", 64, 4, 4.0),
    ("et", 48, 2, 4.0),
)
"""Conv, width, layers, cutoff in angstrom: of the kind that the recorded campaigns keep."""

Nets = Sequence[tuple[str, int, int, float]]

DEMANDING = "1"
"""The member that takes most memory: what the micro-batch has to leave room for."""

TARGET = {"level": "graph", "shape": "scalar", "mean": 0.0, "std": 1.0, "energy": "per_atom"}
LONGEST = max(cutoff for *_, cutoff in UNLIKE)
CPU = torch.device("cpu")
PEER_BATCH = 64
FILES = {
    "perovskites": "perovskites/castelli_multitarget_7572.extxyz.gz",
    "crystals": "mp_magnetic/mp_mag_fm_afm_8000.extxyz.gz",
}


def members(nets: Nets = UNLIKE, kernels: str = "auto") -> list[Member]:
    """Build nets with random weights: what they say does not matter here."""
    made = []
    for number, (conv, features, layers, cutoff) in enumerate(nets):
        torch.manual_seed(number)
        options = {"conv": conv, "features": features, "layers": layers, "cutoff": cutoff}
        config = ModelConfig.model_validate({**options, "basis_size": 16, "kernels": kernels})
        net = MultiHeadGNN(config, {"energy": HeadConfig()}, {"energy": TARGET})
        net.eval().requires_grad_(False)
        signature = json.dumps(options)
        weights = {"energy": 1.0}
        made.append(Member(f"t{number}", weights, net, cutoff, torch.float32, signature=signature))
    return made


def structures(kind: str, count: int) -> list[Atoms]:
    """Read real structures, or repeat ASE's molecules where there are none."""
    root = os.environ.get("HYDRAGNN_HPO_DATA")
    if kind == "molecules" or root is None:
        return [molecule(g2.names[row % len(g2.names)]) for row in range(count)]
    with gzip.open(Path(root) / FILES[kind], "rt") as file:
        text = file.read(4_000 * count)
    return list(iread(io.StringIO(text), index=f":{count}", format="extxyz"))


def graph(atoms: Atoms, cutoff: float) -> "Data":
    """Make PyG's graph of a structure, with a neighbour list of its own."""
    from torch_geometric.data import Data

    search = vesin.NeighborList(cutoff=cutoff, full_list=True, n_threads=1)
    sender, receiver, shift = search.compute(atoms.positions, atoms.cell.array, atoms.pbc, "ijS")
    edges = np.stack((sender, receiver)).astype(np.int64)
    return Data(
        numbers=torch.from_numpy(atoms.numbers.astype(np.int64)),
        pos=torch.from_numpy(atoms.positions.astype(np.float32)),
        edge_index=torch.from_numpy(edges),
        shift=torch.from_numpy((shift @ atoms.cell.array).astype(np.float32)),
        num_nodes=len(atoms),
    )


@torch.no_grad()
def separate(nets: list[Member], atoms: list[Atoms]) -> tuple[np.ndarray, np.ndarray]:
    """Call each member for itself, then take mean and spread."""
    from torch_geometric.loader import DataLoader

    predictions = []
    for member in nets:
        graphs = [graph(each, member.cutoff) for each in atoms]
        rows = []
        for made in DataLoader(graphs, batch_size=PEER_BATCH):
            batch = Batch(
                numbers=made.numbers,
                positions=made.pos,
                edge_index=made.edge_index,
                edge_shift=made.shift,
                graph_of_node=made.batch,
                num_graphs=made.num_graphs,
                targets={},
                masks={},
                graph_index=torch.arange(made.num_graphs),
            )
            rows.append(member.model(batch)["energy"].numpy())
        predictions.append(np.concatenate(rows))
    return np.mean(predictions, axis=0), np.std(predictions, axis=0)


def together(engine: Engine, atoms: list[Atoms], limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Predict with one list of neighbours, micro-batch by micro-batch; only moments are kept."""
    columns = columns_of_atoms(atoms, rules_for(LONGEST))
    parts = []
    for piece in pieces(columns, np.arange(len(atoms)), limit):
        moments = Moments()
        for member, heads in engine.predict(columns, piece):
            moments.add(heads["energy"].double().numpy(), member.weights["energy"])
        parts.append(moments)
    means, spreads = ([getattr(p, name) for p in parts] for name in ("mean", "spread"))
    return np.concatenate(means), np.concatenate(spreads)


def in_turns(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Time each way in CPU seconds, in turns, after one round that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            began = time.process_time()
            way()
            if number:
                taken[name].append(time.process_time() - began)
    return taken


def same(actual: tuple[np.ndarray, np.ndarray], wanted: tuple[np.ndarray, np.ndarray]) -> None:
    for one, other in zip(actual, wanted, strict=True):
        assert np.abs(one - other).max() <= 1e-5 * np.abs(wanted[0]).max(), "answers differ"


def compare(kind: str, count: int, rounds: int) -> dict[str, float]:
    """Return how much quicker one engine is than separate calls, and what it takes."""
    atoms = structures(kind, count)
    engine = EagerEngine(members(), CPU)
    peers = {"separate": members(), "separate_eager": members(kernels="eager")}
    ways: dict[str, Callable[[], object]] = {
        name: partial(separate, each, atoms) for name, each in peers.items()
    }
    wanted = separate(peers["separate"], atoms)
    same(separate(peers["separate_eager"], atoms), wanted)
    same(together(engine, atoms, EDGES_PER_BATCH), wanted)
    ways["eager"] = partial(together, engine, atoms, EDGES_PER_BATCH)
    taken = in_turns(ways, rounds)
    figures = {f"{kind}_eager_structures_per_cpu_s": count / statistics.median(taken["eager"])}
    keys = (f"{kind}_eager_over_separate", f"eager_kernels_over_separate_eager_{kind}")
    for key, peer in zip(keys, peers, strict=True):
        ratios = [a / b for a, b in zip(taken[peer], taken["eager"], strict=True)]
        figures[key] = statistics.median(ratios)
    return figures


def shares(kind: str, count: int) -> dict[str, float]:
    """Say where separate calls and ours spend their time, in milliseconds of CPU a structure."""
    atoms = structures(kind, count)
    nets = members()
    timed: dict[str, Callable[[], object]] = {
        "peer_graphs": lambda: [[graph(a, m.cutoff) for a in atoms] for m in nets],
        "peer_all": lambda: separate(nets, atoms),
        "our_graphs": lambda: columns_of_atoms(atoms, rules_for(LONGEST)),
        "our_eager_all": lambda: together(EagerEngine(nets, CPU), atoms, EDGES_PER_BATCH),
    }
    taken = in_turns(timed, 2)
    return {f"{kind}_ms_{name}": 1e3 * min(t) / count for name, t in taken.items()}


def peak(how: str, count: int, times: int = 5) -> float:
    """Return the MB that a fresh process takes at most beyond its imports, structures and weights.

    Args:
        how: ``eager``, all members; or the number of one.
        count: structures.
        times: processes, of which the median counts: one may take a fifth more than another.
    """
    command = [sys.executable, __file__, "--peak", how, "--count", str(count)]
    runs = (
        subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(times)
    )
    return statistics.median(float(run.stdout.split()[-1]) for run in runs)


def measure_peak(how: str, count: int) -> None:
    from hydragnn_hpo.training.memory import measure_peak_bytes

    atoms = structures("crystals", count)
    nets = members()
    engine = EagerEngine([nets[int(how)]] if how.isdigit() else nets, CPU)
    together(engine, atoms[:8], EDGES_PER_BATCH)
    columns = columns_of_atoms(atoms, rules_for(LONGEST))

    def work() -> None:
        for piece in pieces(columns, np.arange(len(atoms)), EDGES_PER_BATCH):
            for _ in engine.predict(columns, piece):
                pass

    print((measure_peak_bytes(work, CPU) or 0) / 2**20)


def main() -> None:
    parser = make_parser(__doc__, "a cut of it, not recorded")
    parser.add_argument("--peak", default="")
    parser.add_argument("--count", type=int, default=600)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.peak:
        return measure_peak(chosen.peak, chosen.count)
    keep_freed_memory()
    torch.set_flush_denormal(True)
    warnings.simplefilter("ignore")
    if chosen.smoke:
        figures = compare("molecules", 8, 1)
        return finish(__file__, figures | shares("molecules", 2), keep=False)
    if chosen.quick:
        return finish(__file__, quick(), keep=False)
    with TemporaryDirectory() as place:
        finish(__file__, whole(chosen.count, place), keep=True)
    return None


def quick() -> dict[str, float]:
    """Return the same figures of fewer molecules and turns."""
    from rank_scaling import PER_FILE, prepare_ranks, rank_scaling
    from unlike_members import MEMBERS

    figures = compare("molecules", 64, 3)
    one, all_of_them = (peak(how, 120, times=1) for how in (DEMANDING, "eager"))
    many = {"molecules": structures("molecules", 2 * PER_FILE)}
    with TemporaryDirectory() as place:
        prepared = prepare_ranks(many, Path(place), MEMBERS[::2])
        scaling = rank_scaling(prepared, 1)["rank_scaling_2"]
    return {
        "eager_over_separate": figures["molecules_eager_over_separate"],
        **{name: ratio for name, ratio in figures.items() if name.endswith("eager_molecules")},
        "memory_over_one": all_of_them / one,
        "rank_scaling_2": scaling,
    }


def whole(count: int, place: str) -> dict[str, float]:
    """Compare on three kinds of structures, and weigh the memory."""
    figures: dict[str, float] = {}
    kinds = (*FILES, "molecules")
    for kind in kinds:
        figures |= compare(kind, count, 5) | shares(kind, count)
    ratios = [figures[f"{kind}_eager_over_separate"] for kind in kinds]
    figures["eager_over_separate"] = statistics.median(ratios)
    ratios = [figures[f"eager_kernels_over_separate_eager_{kind}"] for kind in kinds]
    figures["eager_kernels_over_separate_eager_median"] = statistics.median(ratios)
    alone = [peak(str(number), count) for number in range(len(UNLIKE))]
    all_of_them = peak("eager", count)
    figures["memory_one_mb"] = max(alone)
    figures["memory_over_one"] = all_of_them / max(alone)
    figures["memory_over_median"] = all_of_them / statistics.median(alone)
    from rank_scaling import PER_FILE, prepare_ranks, rank_scaling

    (folder := Path(place) / "ranks").mkdir()
    many = {kind: structures(kind, 16 * PER_FILE) for kind in FILES}
    figures |= rank_scaling(prepare_ranks(many, folder), 5)
    return figures


if __name__ == "__main__":
    main()
