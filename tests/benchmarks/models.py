"""Training steps of every conv beside the same mathematics in PyG.

Molecules of about 20 atoms and 330 edges, batches of 32, width 64, 3 layers, 16 radial functions,
one thread, fp32; forward, backward and AdamW. Ours and the peer (``pyg_models.py``) take turns;
medians of CPU time, denormals flushed and freed memory kept for both, as our trainer does. What
it takes to lay edges out in pairs counts for ours. ``--quick`` has few turns and is not recorded;
``--only CONV`` measures some convs; ``--profile CONV`` shows where our step spends its time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from record import finish, make_parser
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from hydragnn_hpo.config.convs import CONV_SPECS
from hydragnn_hpo.config.data_config import TargetConfig
from hydragnn_hpo.config.model_config import HeadConfig, ModelConfig
from hydragnn_hpo.config.trial_config import TrainConfig
from hydragnn_hpo.data.batch import Batch, make_batch
from hydragnn_hpo.data.columns import Columns, Graph, columns_of
from hydragnn_hpo.data.structure import find_edges
from hydragnn_hpo.model.gnn import MultiHeadGNN
from hydragnn_hpo.training.memory import keep_freed_memory
from hydragnn_hpo.training.optim import make_optimizer
from hydragnn_hpo.training.stepper import combine_losses, head_sums

if TYPE_CHECKING:
    from pyg_models import PeerNet

BATCH, CUTOFF = 32, 5.0
FEATURES, LAYERS, BASIS = 64, 3, 16
COMPILE_SECONDS = 120
"""A net that is not compiled by then counts as 0."""
WITH_LOOPS = (
    *("gat", "cgcnn", "pna", "pnaplus", "schnet", "dimenetpp", "egnn"),
    *("painn", "pnaeq", "mace", "et", "alignn", "tensornet"),
)
"""Convs that send by passes of ``model.kernels``."""
QUICK = ("gat", "cgcnn", "schnet", "egnn", "painn")
"""Convs of which a quick run measures forces and loops, too; steps of others take longer."""


def molecule(random: np.random.Generator, name: str, most: int | None) -> Graph:
    """Grow a branched molecule: bonds of 1.2 to 1.6 angstrom, no two atoms nearer than 1.

    Args:
        random: draws it.
        name: of the structure.
        most: edges that an atom receives, those of the first atoms; None for all within the cutoff.
    """
    size = int(random.integers(15, 26))
    positions = np.zeros((1, 3))
    while len(positions) < size:
        way = random.normal(size=3)
        grown = positions[random.integers(len(positions))]
        grown = grown + way / np.linalg.norm(way) * random.uniform(1.2, 1.6)
        if (np.linalg.norm(positions - grown, axis=1) > 1.0).all():
            positions = np.vstack((positions, grown))
    numbers = random.choice([1, 6, 7, 8], size, p=[0.5, 0.35, 0.05, 0.1]).astype(np.int16)
    free = np.zeros(3, dtype=bool)
    nowhere = np.zeros((3, 3))
    edges, shift = find_edges(positions, nowhere, free, CUTOFF)
    if most is not None:
        received = edges[:, 1]  # sorted
        kept = np.arange(len(edges)) - np.searchsorted(received, received) < most
        edges, shift = edges[kept], shift[kept]
    targets = {"energy": random.normal(-80.0, 5.0, 1), "forces": random.normal(size=(size, 3))}
    return Graph(name, numbers, positions, nowhere, free, edges, shift, targets, name, None)


def molecules(count: int, most: int | None = None) -> Columns:
    """Make molecules of 20 atoms and 334 edges on average, always the same ones."""
    random = np.random.default_rng(7)
    made = [molecule(random, f"m{number}", most) for number in range(count)]
    targets = {
        "energy": TargetConfig(level="graph", unit="eV", energy="total"),
        "forces": TargetConfig(
            level="node", shape="vector", unit="eV/angstrom", derived_from="energy"
        ),
    }
    return columns_of(made, targets, {"cutoff": CUTOFF})


@dataclass(frozen=True)
class Bench:
    """Batches, ours and the peer's, and what they are predicted in."""

    batches: list[Batch]
    peers: list[Any]
    degree: float
    mean: float
    std: float
    layout_seconds: float
    """CPU time per batch of laying edges out in pairs."""

    @classmethod
    def of(cls, count: int, most: int | None = None) -> "Bench":
        """Make batches; ``most`` limits the edges of an atom, see ``molecule``."""
        from pyg_models import as_batch

        columns = molecules(count * BATCH, most)
        rows = np.arange(columns.num_graphs).reshape(count, BATCH)

        def made(pairs: bool) -> list[Batch]:
            names = ("energy", "forces")
            return [
                make_batch(columns, row, cutoff=CUTOFF, targets=names, pairs=pairs) for row in rows
            ]

        made(True)
        laid = [seconds(lambda: made(True)) - seconds(lambda: made(False)) for _ in range(9)]
        batches = made(True)
        given = made(False)
        energy = columns.targets["energy"]
        edges = sum(batch.edge_index.shape[1] for batch in batches)
        atoms = sum(len(batch.numbers) for batch in batches)
        return cls(
            batches,
            [as_batch(batch) for batch in given],
            edges / atoms,
            float(energy.mean()),
            float(energy.std()),
            statistics.median(laid) / count,
        )


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of some work: the machine is shared, other processes do not count."""
    started = time.process_time()
    work()
    return time.process_time() - started


def our_net(
    conv: str, bench: Bench, forces: bool, kernels: str = "auto", pool: str = "contributions"
) -> tuple[MultiHeadGNN, dict[str, HeadConfig]]:
    """Build our net with an energy, and forces as its derivative."""
    torch.manual_seed(0)
    model = ModelConfig.model_validate(
        {
            **{"conv": conv, "features": FEATURES, "layers": LAYERS, "cutoff": CUTOFF},
            **{"basis_size": BASIS, "kernels": kernels},
        }
    )
    spread = {"mean": bench.mean, "std": bench.std}
    unit = {"mean": 0.0, "std": 1.0}
    targets = {
        "energy": {"level": "graph", "shape": "scalar", "energy": "total", **spread},
        "forces": {"level": "node", "shape": "vector", "derived_from": "energy", **unit},
    }
    names = targets if forces else ("energy",)
    heads = {name: HeadConfig.model_validate({"pool": pool}) for name in names}
    net = MultiHeadGNN(model, heads, targets)
    return net.train(), heads


def our_loss(
    net: MultiHeadGNN, heads: dict[str, HeadConfig], batch: Batch, forces: bool = False
) -> Tensor:
    """Return the loss of a training step as ``Trainer`` has it."""
    counts = {"energy": float(batch.num_graphs), "forces": 3.0 * len(batch.numbers)}
    return combine_losses(head_sums(net, net(batch), batch, heads), counts, heads, 1)


def peer_net(conv: str, bench: Bench) -> "PeerNet":
    """Build the peer's net."""
    from pyg_models import PEERS, PeerNet
    from pyg_parts import Sizes

    torch.manual_seed(0)
    sizes = Sizes(FEATURES, BASIS, CUTOFF, LAYERS, bench.degree)
    return PeerNet(PEERS[conv], sizes).train()


@dataclass(frozen=True)
class Pair:
    """Ours and the peer, or ours with loops and without; each with its loss and its optimizer."""

    nets: tuple[nn.Module, nn.Module]
    losses: tuple[Callable[[int], Tensor], Callable[[int], Tensor]]
    optimizers: tuple[torch.optim.Optimizer, torch.optim.Optimizer]

    @classmethod
    def of(cls, conv: str, bench: Bench, forces: bool) -> "Pair":
        from pyg_models import loss_of

        net, heads = our_net(conv, bench, forces)
        peer = peer_net(conv, bench)
        scale = (bench.mean, bench.std)
        return cls(
            (net, peer),
            (
                lambda row: our_loss(net, heads, bench.batches[row]),
                lambda row: loss_of(peer, bench.peers[row], scale, forces),
            ),
            (
                make_optimizer(net, TrainConfig()),
                torch.optim.AdamW(peer.parameters(), lr=1e-3),
            ),
        )

    @classmethod
    def of_kernels(cls, conv: str, bench: Bench, forces: bool) -> "Pair":
        """Build our net twice, with compiled loops and with torch's operations."""
        (loops, heads), (eager, _) = (
            our_net(conv, bench, forces, kernels) for kernels in ("numba", "eager")
        )
        return cls(
            (loops, eager),
            (
                lambda row: our_loss(loops, heads, bench.batches[row]),
                lambda row: our_loss(eager, heads, bench.batches[row]),
            ),
            (make_optimizer(loops, TrainConfig()), make_optimizer(eager, TrainConfig())),
        )

    def step(self, side: int, row: int) -> float:
        """Take one optimizer step; gives the loss."""
        self.optimizers[side].zero_grad(set_to_none=True)
        loss = self.losses[side](row)
        loss.backward()
        self.optimizers[side].step()
        return loss.item()

    def checked(self, conv: str) -> None:
        """Compare numbers of parameters, see that losses are finite, tell of what is idle."""
        sizes = [sum(p.numel() for p in net.parameters()) for net in self.nets]
        if not abs(sizes[1] / sizes[0] - 1) < 0.02:
            raise SystemExit(f"{conv}: ours has {sizes[0]} parameters, the peer {sizes[1]}")
        for side, net in enumerate(self.nets):
            loss = self.step(side, 0)
            if not np.isfinite(loss):
                raise SystemExit(f"{conv}: the loss of {('ours', 'the peer')[side]} is {loss}")
            idle = [name for name, p in net.named_parameters() if p.grad is None]
            if idle and side == 0:
                print(f"{conv}: no gradient for {', '.join(idle)}")

    def turns(self, bench: Bench, budget: float) -> dict[str, float]:
        """Let both take the same steps in turns; medians of times and of their ratio.

        Args:
            bench: the batches.
            budget: CPU time to spend in seconds; there are at least 2 turns.
        """
        rows = len(bench.batches)
        ends = time.process_time() + budget
        results: list[tuple[float, float]] = []
        while len(results) < 2 or time.process_time() < ends:
            turn = len(results)
            ours = seconds(partial(self.step, 0, turn % rows)) + bench.layout_seconds
            results.append((ours, seconds(partial(self.step, 1, turn % rows))))
        return {
            "ours": statistics.median(a for a, _ in results),
            "ratio": statistics.median(b / a for a, b in results),
        }


def kept_bytes(net: nn.Module, loss: Callable[[int], Tensor]) -> int:
    """Sum the storages that a forward pass keeps for the backward pass, without parameters."""
    own = {p.untyped_storage().data_ptr() for p in net.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        result = loss(0)
    total = sum(storage.nbytes() for storage in kept.values())
    del result
    return total


def bytes_per_second(device: torch.device, size: int) -> float:
    """Return the bandwidth of a copy of ``size`` fp32 numbers, bytes read and written."""
    source = torch.rand(size, device=device)
    target = torch.empty_like(source)
    return 8.0 * size / min(seconds(lambda: target.copy_(source)) for _ in range(10))


def bytes_of(arrays: Iterable[Any]) -> int:
    """Sum the sizes of arrays, which may stand in tuples, in bytes."""
    return sum(
        bytes_of(each) if isinstance(each, tuple) else each.numel() * each.element_size()
        for each in arrays
    )


def share_of_bandwidth(conv: str, bench: Bench, budget: float, bandwidth: float) -> float:
    """Return the bytes that a step's loops must move, over their time and the memory's bandwidth.

    A loop reads or writes each of its arrays, the indices of edges among them, at least once, so
    it moves the sum of their sizes. Forward, ``filtered_sum`` takes ``4 (2 N F + P F)`` bytes of
    values, sums and filters in fp32, and ``8 (2 E + N + 1)`` of senders, order and starts. Added up
    are all loops of ``model.kernels``, forward and backward, of steps on energies. Arrays that stay
    in a cache can exceed the bandwidth.

    Args:
        conv: that sends by loops.
        bench: the batches.
        budget: CPU time to spend in seconds; there are at least 2 steps.
        bandwidth: of the memory, see ``bytes_per_second``.

    Returns:
        Share of the bandwidth; 0 where no loop runs.
    """
    from hydragnn_hpo.kernels import numba_passes

    net, heads = our_net(conv, bench, False, "numba")
    run_loop = numba_passes.run_loop
    moved = 0
    spent = 0.0
    steps = 0

    def noted(name: str, *arrays: Any) -> None:
        nonlocal moved, spent
        moved += bytes_of(arrays)
        spent += seconds(lambda: run_loop(name, *arrays))

    our_loss(net, heads, bench.batches[0]).backward()  # compiles, or loads the loops
    ends = time.process_time() + budget
    numba_passes.run_loop = noted
    try:
        while steps < 2 or time.process_time() < ends:
            our_loss(net, heads, bench.batches[steps % len(bench.batches)]).backward()
            steps += 1
    finally:
        numba_passes.run_loop = run_loop
    return moved / spent / bandwidth if moved else 0.0


def measured(conv: str, bench: Bench, budget: float) -> dict[str, float]:
    """Measure one conv on energies: speed and memory."""
    pair = Pair.of(conv, bench, forces=False)
    pair.checked(conv)
    energy = pair.turns(bench, budget)
    sizes = [kept_bytes(n, f) for n, f in zip(pair.nets, pair.losses, strict=True)]
    return {
        f"train_over_pyg_{conv}": energy["ratio"],
        f"cpu_graphs_{conv}": BATCH / energy["ours"],
        f"memory_over_pyg_{conv}": sizes[0] / sizes[1],
        f"bytes_per_edge_{conv}": sizes[0] / bench.batches[0].edge_index.shape[1],
    }


def measured_forces(conv: str, bench: Bench, budget: float) -> dict[str, float]:
    """Measure one conv on energies and forces."""
    pair = Pair.of(conv, bench, forces=True)
    pair.checked(conv)
    result = pair.turns(bench, budget)
    return {
        f"forces_over_pyg_{conv}": result["ratio"],
        f"cpu_graphs_forces_{conv}": BATCH / result["ours"],
    }


def measured_kernels(conv: str, bench: Bench, budget: float) -> dict[str, float]:
    """Measure our steps with compiled loops beside those with torch's operations."""
    # both sides lay out edges alike
    figures = {}
    plain = replace(bench, layout_seconds=0.0)
    for name, forces in (("kernels", False), ("kernels_forces", True)):
        pair = Pair.of_kernels(conv, plain, forces)
        for side in (0, 1):
            pair.step(side, 0)  # compiles, or loads the loops
        figures[f"{name}_over_eager_{conv}"] = pair.turns(plain, budget)["ratio"]
    return figures


def compiled(conv: str) -> float:
    """Give how many times faster a step is with a compiled trunk; batches differ in size."""
    bench = Bench.of(3)
    eager, quick = (Pair.of(conv, bench, forces=False) for _ in range(2))
    quick.nets[0].trunk.compile(dynamic=True)  # type: ignore[union-attr]
    for row in range(3):
        quick.step(0, row)
        eager.step(0, row)
    results = []
    for turn in range(15):
        slow = seconds(partial(eager.step, 0, turn % 3))
        results.append(slow / seconds(partial(quick.step, 0, turn % 3)))
    return statistics.median(results)


def compiled_in_time(conv: str) -> float:
    """Measure the compiled trunk in a process of its own, 0 where it fails or takes too long."""
    command = [sys.executable, __file__, "--compiled", conv]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"{conv}: not compiled within {COMPILE_SECONDS} s")
        return 0.0
    if done.returncode:
        print(f"{conv}: not compiled: {done.stderr.strip().splitlines()[-1]}")
        return 0.0
    return float(json.loads(done.stdout.splitlines()[-1]))


class OpTimes(TorchDispatchMode):
    """CPU time of every operation, forward and backward, by name and shapes.

    torch's own profiler makes so many objects between blocks of memory that these are no longer
    used again: page faults then hide what operations cost.
    """

    def __init__(self) -> None:
        super().__init__()
        self.timings: dict[tuple[str, str], list[float]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        started = time.process_time()
        result = func(*args, **(kwargs or {}))
        spent = time.process_time() - started
        shapes = " ".join(str(list(each.shape)) for each in args if isinstance(each, Tensor))
        self.timings.setdefault((func.__name__, shapes), []).append(spent)
        return result


def profiled(conv: str, forces: bool, count: int = 15) -> None:
    """Print the operations that our training step spends its time in."""
    bench = Bench.of(1)
    pair = Pair.of(conv, bench, forces)
    for _ in range(5):
        pair.step(0, 0)
    whole = seconds(lambda: [pair.step(0, 0) for _ in range(count)]) / count
    with OpTimes() as times:
        for _ in range(count):
            pair.step(0, 0)
    rows = sorted(times.timings.items(), key=lambda row: -sum(row[1]))
    inside = sum(sum(spent) for _, spent in rows) / count
    print(f"a step takes {1000 * whole:.1f} ms, {1000 * inside:.1f} of them in operations")
    for (name, shapes), spent in rows[:20]:
        each = 1000 * sum(spent) / count
        calls = len(spent) // count
        print(f"{each:6.2f} ms in {calls:3} calls: {name} {shapes}"[:110])


def chosen(wanted: list[str] | None) -> list[str]:
    """Return the convs to measure, in the order of the table."""
    from pyg_models import PEERS

    missing = [conv for conv in CONV_SPECS if conv not in PEERS]
    if missing:
        print(f"no peer (mace: without the extra [bench]) for {', '.join(missing)}")
    convs = [conv for conv in CONV_SPECS if conv in PEERS and (not wanted or conv in wanted)]
    if not convs:
        raise SystemExit(f"choose among {', '.join(PEERS)}")
    return convs


def main() -> None:
    parser = make_parser(__doc__, "fewer turns, not recorded")
    parser.add_argument("--only", nargs="+", metavar="CONV", help="these convs, not recorded")
    parser.add_argument("--seconds", type=float, default=12.0, help="CPU time per measurement")
    parser.add_argument("--profile", metavar="CONV", help="where our step spends its time")
    parser.add_argument("--forces", action="store_true", help="with --profile: train on forces")
    parser.add_argument("--compiled", metavar="CONV", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick:
        args.seconds = 0.15
    if args.smoke:
        args.quick = True
        args.seconds = 0.0
        args.only = ["schnet"]
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    warnings.filterwarnings("ignore", message=".*torch.jit.*")
    if args.profile:
        profiled(args.profile, args.forces)
        return
    if args.compiled:
        print(compiled(args.compiled))
        return
    bench = Bench.of(1 if args.quick else 4)
    figures: dict[str, float] = {
        "atoms_per_graph": statistics.mean(len(b.numbers) for b in bench.batches) / BATCH,
        "edges_per_graph": statistics.mean(b.edge_index.shape[1] for b in bench.batches) / BATCH,
        "layout_ms": 1000 * bench.layout_seconds,
    }
    convs = chosen(args.only)
    for conv in convs:
        figures |= measured(conv, bench, args.seconds)
    more = [conv for conv in convs if conv in QUICK or not args.quick]
    for conv in (conv for conv in more if CONV_SPECS[conv].forces):
        figures |= measured_forces(conv, bench, args.seconds)
    for conv in (conv for conv in convs if conv in WITH_LOOPS and not args.quick):
        figures |= measured_kernels(conv, bench, args.seconds)
    bandwidth = bytes_per_second(torch.device("cpu"), 2**24)
    for conv in (conv for conv in more if conv in WITH_LOOPS):
        share = share_of_bandwidth(conv, bench, args.seconds / 4, bandwidth)
        figures[f"share_of_bandwidth_{conv}"] = share
    if not args.quick:
        figures |= {f"compiled_over_eager_{conv}": compiled_in_time(conv) for conv in convs}
    figures["train_over_pyg_median"] = statistics.median(
        figures[f"train_over_pyg_{conv}"] for conv in convs
    )
    rounded = {name: float(f"{value:.4g}") for name, value in figures.items()}
    finish(__file__, rounded, keep=not (args.quick or args.only))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
