"""A net as a function of plain tensors, as compilers want it.

Shapes: G graphs, N nodes, E edges, P pairs (E / 2).
"""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.func import functional_call

from hydragnn_hpo.data import Batch
from hydragnn_hpo.ensemble.engine import Member
from hydragnn_hpo.model import MultiHeadGNN

Tensors = dict[str, Tensor]
Net = Callable[[Tensors], Tensors]

SAME = {torch.float32: 1e-5, torch.float64: 1e-10}
"""Tolerance between engines, relative to the largest value of a head."""

INLINED = 8
"""Most elements of a tensor whose values torch's compiler may write into the code.
Source: torch/_inductor/graph.py, ``GraphLowering.get_attr``, torch 2.13, 2026-11-22."""


class CannotCompile(Exception):
    """A member cannot be compiled or stacked; the message says why."""


class FunctionalModel(nn.Module):
    """A net as a function of the named tensors of a batch with edges in pairs."""

    def __init__(self, model: MultiHeadGNN) -> None:
        """Wrap a net."""
        super().__init__()
        self.model = model

    def forward(self, tensors: Tensors) -> Tensors:
        """Return every head, and the variances that heads predict."""
        sender, receiver = tensors["ends"]
        shift = tensors["shift"]
        batch = Batch(
            numbers=tensors["numbers"],
            positions=tensors["positions"],
            edge_index=torch.stack((torch.cat((sender, receiver)), torch.cat((receiver, sender)))),
            edge_shift=torch.cat((shift, -shift)),
            graph_of_node=tensors["graph_of_node"],
            num_graphs=tensors["graph_index"].shape[0],
            targets={},
            masks={},
            graph_index=tensors["graph_index"],
            attributes=_named(tensors, "attribute"),
            laplacian=tensors.get("laplacian"),
            order=tensors["order"].view(-1),
            starts=tensors["starts"],
        )
        given = _named(tensors, "weight")
        found: Tensors = functional_call(self.model, given, batch) if given else self.model(batch)
        return found


def _named(tensors: Tensors, kind: str) -> Tensors:
    """Return the inputs whose names are ``KIND:NAME``, by name."""
    split = ((name.partition(":"), tensor) for name, tensor in tensors.items())
    return {name: tensor for (found, _, name), tensor in split if found == kind}


def small_weights(model: MultiHeadGNN) -> Tensors:
    """Return the weights that are inputs of compiled code, by the names of these inputs.

    Torch's compiler writes the values of tiny tensors into the code, where those of another
    member cannot take their place.
    """
    named = itertools.chain(model.named_parameters(), model.named_buffers())
    return {f"weight:{name}": t.detach() for name, t in named if t.numel() <= INLINED}


def to_tensors(batch: Batch) -> Tensors | None:
    """Return a batch's tensors by name; ``None`` where compiled code does not fit it.

    It needs pairs, and two or more of everything: torch takes sizes of 0 and 1 for constants.
    """
    half = batch.edge_index.shape[1] // 2
    few = min(batch.num_graphs, len(batch.numbers), half)
    if batch.order is None or batch.starts is None or few < 2:
        return None
    tensors = {
        "numbers": batch.numbers,
        "positions": batch.positions,
        "ends": batch.edge_index[:, :half].contiguous(),
        "shift": batch.edge_shift[:half],
        "graph_of_node": batch.graph_of_node,
        "graph_index": batch.graph_index,
        "order": batch.order.view(2, half),
        "starts": batch.starts,
    }
    tensors |= {f"attribute:{name}": value for name, value in batch.attributes.items()}
    return tensors if batch.laplacian is None else {**tensors, "laplacian": batch.laplacian}


def export_model(model: MultiHeadGNN, tensors: Tensors) -> ExportedProgram:
    """Trace a net for any number of graphs, nodes and edges.

    Raises:
        Exception: torch cannot trace it for all sizes; it has many classes for that.
    """
    graphs, nodes, pairs = (
        Dim(name, min=2, max=2**31 - 1) for name in ("graphs", "nodes", "pairs")
    )
    sizes = {
        "numbers": {0: nodes},
        "positions": {0: nodes},
        "ends": {1: pairs},
        "shift": {0: pairs},
        "graph_of_node": {0: nodes},
        "graph_index": {0: graphs},
        "order": {1: pairs},
        "starts": {0: nodes + 1},
        "laplacian": {0: nodes},
    }
    wanted = {name: sizes.get(name, _own_size(name, graphs)) for name in tensors}
    with torch.no_grad():
        return torch.export.export(
            FunctionalModel(model), (tensors,), dynamic_shapes=(wanted,), strict=False
        )


def _own_size(name: str, graphs: Dim) -> dict[int, Dim]:
    return {0: graphs} if name.startswith("attribute:") else {}


def run_eagerly(member: Member) -> Net:
    """Return a member's net, run as it is."""

    def net(tensors: Tensors) -> Tensors:
        with torch.inference_mode():
            found: Tensors = FunctionalModel(member.model)(tensors)
        return found

    return net


def check_same_output(found: Tensors, wanted: Tensors, dtype: torch.dtype) -> None:
    """Compare outputs with those of the net itself.

    Raises:
        Unfit: they are too far off, or of other heads.
    """
    if set(found) != set(wanted):
        raise CannotCompile(
            f"it answers {', '.join(found)} where the net answers {', '.join(wanted)}"
        )
    for name, values in wanted.items():
        off = (found[name] - values).abs().max() / values.abs().max().clamp(min=1e-30)
        if not float(off) <= SAME[dtype]:
            raise CannotCompile(f"its answers for {name} are {float(off):.1e} off, relative")
