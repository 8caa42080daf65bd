r"""Training steps beside HydraGNN's: release 3.0, the one that PyPI has.

The molecules of ``models.py``: batches of 32, width 64, 3 layers, one thread, fp32; forward,
backward and AdamW. ``capped`` has at most 20 edges an atom, as HydraGNN's radius graphs do, so that
some bonds are one-way; ``whole`` has all edges within 5 angstrom. HydraGNN reads the atomic number
as one column, as in its examples, but for CGCNN, whose width is that of its input. It is measured
``plain``, as a user starts it, and ``tuned``, with denormals flushed and freed memory kept, as our
trials are; ``wide`` reads 64 columns, plain. Each is a process of its own. They take turns of four
steps, as in training one step follows another; medians of ratios of CPU time count. Release 3.0
trains no forces: those are autograd's of its energies. Needs it and PyG's own extensions, which
are compiled:

    .venv/bin/pip install --no-deps --target PEER hydragnn==3.0
    .venv/bin/pip install --no-deps --no-build-isolation --target PEER \
        torch_cluster torch_scatter torch_sparse
    PYTHONPATH=PEER .venv/bin/python tests/benchmarks/over_hydragnn.py
"""

import importlib.util
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from models import BATCH, CUTOFF, FEATURES, LAYERS, Bench, our_loss, our_net, seconds
from record import finish, make_parser, skip
from torch import Tensor, nn
from torch.nn import functional as F

from hydragnn_hpo.config.trial_config import TrainConfig
from hydragnn_hpo.training.memory import keep_freed_memory
from hydragnn_hpo.training.optim import make_optimizer

THEIRS = {
    **{"gin": "GIN", "sage": "SAGE", "gat": "GAT", "mfc": "MFC", "cgcnn": "CGCNN", "pna": "PNA"},
    **{"schnet": "SchNet", "dimenetpp": "DimeNet", "egnn": "EGNN"},
}
"""Our convs and HydraGNN's names of the same."""
WITH_FORCES = ("schnet", "dimenetpp", "egnn")
WITH_LENGTHS = ("cgcnn", "pna", "egnn")
"""Of which HydraGNN takes the lengths of edges as a column; others have none, or find their own."""
EDGES = {"capped": 20, "whole": None}
SIDES = ("ours", "plain", "tuned", "wide")
DIMENET = {
    **{"num_before_skip": 1, "num_after_skip": 2, "num_radial": 6, "num_spherical": 7},
    **{"basis_emb_size": 8, "int_emb_size": 64, "out_emb_size": 64, "envelope_exponent": 5},
}
"""Sizes of the blocks of DimeNet++, those of the paper at half its width."""
HEAD = {"num_sharedlayers": 1, "dim_sharedlayers": FEATURES, "num_headlayers": 1}


@cache
def bench_of(edges: str, count: int) -> Bench:
    """Return the batches with edges of one kind."""
    return Bench.of(count, EDGES[edges])


def their_batches(bench: Bench, columns: int) -> list[Any]:
    """Give the batches as HydraGNN reads them: ``x``, ``pos``, ``edge_attr`` and ``y``."""
    table = torch.randn(100, columns, generator=torch.Generator().manual_seed(0))
    for data in bench.peers:
        sender, receiver = data.edge_index
        data.x = data.z[:, None].float() if columns == 1 else table[data.z.long()]
        data.pos = data.pos.detach().float()
        data.edge_attr = (data.pos[sender] - data.pos[receiver]).norm(dim=1, keepdim=True)
        data.y = (data.energy.reshape(-1, 1) - bench.mean) / bench.std
    return bench.peers


def their_net(conv: str, batches: list[Any], columns: int) -> nn.Module:
    """Build HydraGNN's net with one head of energies."""
    import torch_cluster  # type: ignore[import-not-found]
    from hydragnn.models import create_model
    from torch_geometric.nn.models import schnet

    schnet.radius_graph = torch_cluster.radius_graph  # PyG has that of pyg-lib by now
    degrees = torch.cat([torch.bincount(b.edge_index[1], minlength=len(b.x)) for b in batches])
    net: nn.Module = create_model(
        THEIRS[conv],
        **{"input_dim": columns, "hidden_dim": FEATURES, "num_conv_layers": LAYERS},
        **{"output_dim": [1], "output_type": ["graph"], "task_weights": [1.0]},
        output_heads={"graph": {**HEAD, "dim_headlayers": [FEATURES]}},
        activation_function="relu",
        loss_function_type="mse",
        max_neighbours=int(degrees.max()),
        edge_dim=1 if conv in WITH_LENGTHS else 0,
        pna_deg=torch.bincount(degrees).tolist(),
        **{"num_gaussians": 16, "num_filters": FEATURES, "radius": CUTOFF},
        **DIMENET,
        use_gpu=False,
    )
    return net.train()


def their_loss(net: nn.Module, data: Any, std: float, forces: bool) -> Tensor:
    """Return the squared error of energies in their spread, and of forces beside it."""
    data.pos = data.pos.detach().requires_grad_(forces)
    (energy,) = net(data)
    loss = F.mse_loss(energy, data.y)
    if not forces:
        return loss
    (slope,) = torch.autograd.grad(energy.sum(), data.pos, create_graph=True)
    return loss + F.mse_loss(-std * slope, data.forces)


@dataclass(frozen=True)
class Trainee:
    """A net with its loss on a batch and its optimizer."""

    net: nn.Module
    loss_of: Callable[[int], Tensor]
    optimizer: torch.optim.Optimizer

    @classmethod
    def ours(cls, conv: str, bench: Bench, forces: bool) -> "Trainee":
        pool = "contributions" if forces else "mean"  # release 3.0 has no energies of atoms
        net, heads = our_net(conv, bench, forces, pool=pool)
        optimizer = make_optimizer(net, TrainConfig())
        return cls(net, lambda row: our_loss(net, heads, bench.batches[row]), optimizer)

    @classmethod
    def theirs(cls, conv: str, bench: Bench, forces: bool, columns: int) -> "Trainee":
        batches = their_batches(bench, columns)
        net = their_net(conv, batches, columns)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        return cls(net, lambda row: their_loss(net, batches[row], bench.std, forces), optimizer)

    def step(self, row: int) -> None:
        """Take an optimizer step on a batch."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss_of(row)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        if not np.isfinite(loss.item()):
            raise SystemExit(f"the loss of {type(self.net).__name__} is {loss.item()}")


def work(side: str, count: int, pipe: Connection) -> None:
    """Build nets and take steps as the other end says; answers with sizes and CPU seconds."""
    torch.set_num_threads(1)
    if side in ("ours", "tuned"):
        torch.set_flush_denormal(True)
        keep_freed_memory()
    while (message := pipe.recv()) is not None:
        if isinstance(message, tuple):
            conv, edges, forces = message
            bench = bench_of(edges, count)
            layout = bench.layout_seconds if side == "ours" else 0.0
            if side == "ours":
                trainee = Trainee.ours(conv, bench, forces)
            else:
                columns = FEATURES if side == "wide" or conv == "cgcnn" else 1
                trainee = Trainee.theirs(conv, bench, forces, columns)
            trainee.step(0)
            pipe.send(sum(each.numel() for each in trainee.net.parameters()))
        else:
            spent = seconds(partial(list, map(trainee.step, range(count))))
            pipe.send(spent / count + layout)


def take_turns(pipes: dict[str, Connection], budget: float) -> dict[str, float]:
    """Let all sides take the same steps; medians of ours, and of the others' over ours.

    Args:
        pipes: to the processes.
        budget: seconds to spend; there are at least 2 turns.

    Returns:
        Per side: our CPU seconds of a step, the others' over ours.
    """
    results: list[dict[str, float]] = []
    ends = time.monotonic() + budget
    while len(results) < 2 or time.monotonic() < ends:
        turn = {}
        for side, pipe in pipes.items():
            pipe.send("step")
            turn[side] = pipe.recv()
        results.append(turn)
    return {
        side: statistics.median(t[side] / (1.0 if side == "ours" else t["ours"]) for t in results)
        for side in pipes
    }


def measured(
    pipes: dict[str, Connection], what: tuple[str, str, bool], budget: float
) -> dict[str, float]:
    """Measure one conv on edges of one kind, on energies or with forces."""
    conv, edges, forces = what
    sizes = {}
    for side, pipe in pipes.items():
        pipe.send(what)
        sizes[side] = pipe.recv()
    result = take_turns(pipes, budget)
    name = f"{'forces' if forces else 'train'}_over_{{}}_{edges}_{conv}"
    figures = {name.format(side): result[side] for side in pipes if side != "ours"}
    figures[name.replace("over_{}", "graphs_per_cpu_second")] = BATCH / result["ours"]
    if not forces:
        figures |= {f"parameters_{side}_{edges}_{conv}": sizes[side] for side in ("ours", "plain")}
    return figures


def summary(figures: dict[str, float]) -> dict[str, float]:
    """Return the least and the median of the ratios over HydraGNN, plain and tuned."""
    result = {}
    for side in ("plain", "tuned"):
        ratios = [value for name, value in figures.items() if f"_over_{side}_" in name]
        result[f"over_{side}_least"] = min(ratios)
        result[f"over_{side}_median"] = statistics.median(ratios)
    return result


def main() -> None:
    parser = make_parser(__doc__, "fewer turns, not recorded")
    parser.add_argument("--only", nargs="+", choices=THEIRS, metavar="CONV", help="not recorded")
    parser.add_argument("--seconds", type=float, default=16.0, help="for a conv, edges of a kind")
    args = parser.parse_args()
    if importlib.util.find_spec("hydragnn") is None:
        skip(__file__, "HydraGNN is not installed: see what this script says about itself.")
        return
    if args.quick or args.smoke:
        args.seconds = 0.5 if args.quick else 0.0
    convs = args.only or (["egnn"] if args.smoke else list(THEIRS))
    count = 1 if args.quick or args.smoke else 4
    started = time.monotonic()
    spawn = multiprocessing.get_context("spawn")
    pipes = {}
    for side in SIDES:
        pipes[side], theirs = spawn.Pipe()
        spawn.Process(target=work, args=(side, count, theirs), daemon=True).start()
        theirs.close()
    figures: dict[str, float] = {}
    for conv in convs:
        for edges in EDGES:
            for forces in (False, True) if conv in WITH_FORCES else (False,):
                figures |= measured(pipes, (conv, edges, forces), args.seconds)
                print(f"{conv}, {edges}: {time.monotonic() - started:.0f} s")
    for pipe in pipes.values():
        pipe.send(None)
    rounded = {k: float(f"{v:.4g}") for k, v in (figures | summary(figures)).items()}
    finish(__file__, rounded, keep=not (args.quick or args.smoke or args.only))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
