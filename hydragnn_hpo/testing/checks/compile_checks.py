"""Compiling and exporting nets give the same answers.

Shapes: N nodes, E edges.
"""

import warnings

import torch
from torch import Tensor, nn

from hydragnn_hpo.data import Batch
from hydragnn_hpo.model import Trunk
from hydragnn_hpo.testing.check_report import ConvCheck, Measurement
from hydragnn_hpo.testing.conv_under_test import ConvUnderTest, deviation
from hydragnn_hpo.testing.sample_structures import batch_of, random_structure

SAME = 1e-9
"""What fusing operations may change in fp64, relative."""


class Plain(nn.Module):
    """A trunk that takes and gives plain tensors, as a compiler wants it."""

    def __init__(self, trunk: Trunk) -> None:
        """Wrap a trunk."""
        super().__init__()
        self.trunk = trunk

    def forward(
        self, numbers: Tensor, positions: Tensor, edge_index: Tensor, shift: Tensor, pairs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return scalars, [N, F], and vectors, [N, 3, F], of the nodes of one graph."""
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
            pairs=pairs,
        )
        features = self.trunk(batch)
        return features.scalars, features.vectors


def _plain(subject: ConvUnderTest) -> tuple[Plain, tuple[Tensor, ...]]:
    """Return a shallow net and its inputs: two layers, so that one of them gets a state."""
    batch = batch_of([random_structure(2, 4, periodic=True)])
    assert batch.pairs is not None
    inputs = (batch.numbers, batch.positions, batch.edge_index, batch.edge_shift, batch.pairs)
    return Plain(subject.build(layers=2).trunk), inputs


def _worst(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> float:
    pairs = zip(found, expected, strict=True)
    return float(torch.tensor([deviation(one, other) for one, other in pairs]).max())


def compiled(subject: ConvUnderTest) -> Measurement:
    """Compile a trunk for inference, without making machine code."""
    net, inputs = _plain(subject)
    torch.compiler.reset()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of its own ways while it traces
            results = torch.compile(net, backend="aot_eager")(*inputs)
            return Measurement(_worst(results, net(*inputs)), SAME)
    finally:
        torch.compiler.reset()


def exported(subject: ConvUnderTest) -> Measurement:
    """Export a trunk as a graph of operations."""
    net, inputs = _plain(subject)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = torch.export.export(net, inputs, strict=False).module()(*inputs)
        return Measurement(_worst(results, net(*inputs)), SAME)


CHECKS = (
    ConvCheck(
        "compile",
        "torch.compile gives the same answers, for inference",
        "Look for what happens at import or outside of torch: numpy, global state, is_compiling.",
        compiled,
    ),
    ConvCheck(
        "export",
        "torch.export gives the same answers",
        "Let no branch or loop depend on values of tensors: no item(), no if on a tensor; use "
        "torch.where. If the number of its rows must depend on values, set exports = False.",
        exported,
        needs="exports",
    ),
)
