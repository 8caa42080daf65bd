"""Laws of compilers: compiled and exported nets have the same outputs.

Shapes: N nodes, E edges, P pairs of edges, F features.
"""

import warnings

import torch
from torch import Tensor, nn

from hydragnn_hpo.data import Batch
from hydragnn_hpo.model import Trunk
from hydragnn_hpo.testing.check_report import ConvCheck, Measurement
from hydragnn_hpo.testing.conv_under_test import ConvUnderTest, relative_deviation
from hydragnn_hpo.testing.sample_structures import batch_structures, random_structure

SAME = 1e-9
"""Largest relative difference by fused operations in fp64."""


class TensorTrunk(nn.Module):
    """A trunk whose inputs and outputs are tensors, as compilers need them."""

    def __init__(self, trunk: Trunk) -> None:
        """Wrap a trunk."""
        super().__init__()
        self.trunk = trunk

    def forward(
        self,
        numbers: Tensor,
        positions: Tensor,
        edge_index: Tensor,
        shift: Tensor,
        orders: Tensor,
        starts: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Run the trunk on one graph.

        Args:
            numbers: atomic numbers, int64, [N].
            positions: in angstrom, [N, 3].
            edge_index: senders and receivers, int64, [2, E].
            shift: of periodic images in angstrom, [E, 3].
            orders: edges sorted by receiver and by sender, int64, [2, E].
            starts: where those of each node begin in either, and the end, int64, [2, N + 1].

        Returns:
            Scalars, [N, F], and vectors, [N, 3, F], of the nodes.
        """
        graph_of_node = torch.zeros_like(numbers)
        batch = Batch(
            numbers,
            positions,
            edge_index,
            shift,
            graph_of_node,
            num_graphs=1,
            targets={},
            masks={},
            graph_index=graph_of_node[:1],
            by_receiver=orders[0],
            receiver_starts=starts[0],
            by_sender=orders[1],
            sender_starts=starts[1],
        )
        features = self.trunk(batch)
        return features.scalars, features.vectors


def _trunk_and_inputs(subject: ConvUnderTest) -> tuple[TensorTrunk, tuple[Tensor, ...]]:
    """Return a trunk of two layers, of which one receives a state, and its inputs."""
    batch = batch_structures([random_structure(2, 4, periodic=True)])
    assert batch.by_receiver is not None
    assert batch.receiver_starts is not None
    assert batch.by_sender is not None
    assert batch.sender_starts is not None
    orders = torch.stack((batch.by_receiver, batch.by_sender))
    starts = torch.stack((batch.receiver_starts, batch.sender_starts))
    inputs = (batch.numbers, batch.positions, batch.edge_index, batch.edge_shift)
    return TensorTrunk(subject.build(layers=2).trunk), (*inputs, orders, starts)


def _largest_deviation(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> float:
    pairs = zip(found, expected, strict=True)
    return float(torch.tensor([relative_deviation(one, other) for one, other in pairs]).max())


def measure_compile(subject: ConvUnderTest) -> Measurement:
    """Compile a trunk for inference, without making machine code."""
    net, inputs = _trunk_and_inputs(subject)
    torch.compiler.reset()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about itself while it traces
            results = torch.compile(net, backend="aot_eager")(*inputs)
            return Measurement(_largest_deviation(results, net(*inputs)), SAME)
    finally:
        torch.compiler.reset()


def measure_export(subject: ConvUnderTest) -> Measurement:
    """Export a trunk as a graph of operations."""
    net, inputs = _trunk_and_inputs(subject)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = torch.export.export(net, inputs, strict=False).module()(*inputs)
        return Measurement(_largest_deviation(results, net(*inputs)), SAME)


CHECKS = (
    ConvCheck(
        "compile",
        "torch.compile gives the same answers, for inference",
        "Look for what happens at import or outside of torch: numpy, global state, is_compiling.",
        measure_compile,
    ),
    ConvCheck(
        "export",
        "torch.export gives the same answers",
        "Let no branch or loop depend on values of tensors: no item(), no if on a tensor; use "
        "torch.where. If the number of its rows must depend on values, set exports = False.",
        measure_export,
        needs="exports",
    ),
)
