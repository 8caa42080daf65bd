"""Peer of ``mace``, of e3nn's tensor products.

Shapes: N nodes, E edges, F features.
"""

import torch
from e3nn import o3
from pyg_parts import Geometry, Sizes, perceptron, summed
from torch import Tensor, nn

MAX_ELL, NODE_MAX_ELL = 2, 1
"""Highest degrees of the harmonics, and of what nodes send on; products are of two neighbours."""


def natural(width: int, top: int) -> o3.Irreps:
    """Give ``width`` features of each degree up to ``top``, with parity (-1)^l."""
    return o3.Irreps([(width, (ell, (-1) ** ell)) for ell in range(top + 1)])


def paths(left: int, right: int, top: int, same: bool = False) -> list[tuple[int, int, int]]:
    """List which degrees couple to which, with natural parity."""
    return [
        (one, two, three)
        for three in range(top + 1)
        for one in range(left + 1)
        for two in range(one if same else 0, right + 1)
        if abs(one - two) <= three <= one + two and (one + two + three) % 2 == 0
    ]


class MACEPeer(nn.Module):
    """Weights of products come from the scalars, as in ours."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.features
        self.scale = 1.0 / sizes.degree
        self.width = width
        reads = NODE_MAX_ELL if sizes.layer else 0
        writes = NODE_MAX_ELL if sizes.layer + 1 < sizes.layers else 0
        sent, gathered, made = (natural(width, top) for top in (reads, MAX_ELL, writes))
        self.around = o3.Irreps.spherical_harmonics(MAX_ELL)
        self.send = o3.Linear(sent, sent, biases=True)
        self._meet(sent, paths(reads, MAX_ELL, MAX_ELL), sizes.basis)
        self.gather = o3.Linear(self.meet.irreps_out, gathered)
        couplings = paths(MAX_ELL, MAX_ELL, writes, same=True)
        self.multiply = o3.TensorProduct(
            gathered,
            gathered,
            made,
            [(*path, "uuu", True) for path in couplings],
            shared_weights=False,
            internal_weights=False,
        )
        self.weights = nn.Linear(width, len(couplings) * width)
        self.mix = o3.Linear(gathered + made, made, biases=True)

    def _meet(self, sent: o3.Irreps, couplings: list[tuple[int, int, int]], basis: int) -> None:
        """Couple what is sent with harmonics; radial weights belong to the degrees that meet."""
        out = o3.Irreps([(self.width, (three, (-1) ** three)) for *_, three in couplings])
        self.meet = o3.TensorProduct(
            sent,
            self.around,
            out,
            [(one, two, row, "uvu", True) for row, (one, two, _) in enumerate(couplings)],
            shared_weights=False,
            internal_weights=False,
        )
        moments = list(dict.fromkeys((one, two) for one, two, _ in couplings))
        rows = [moments.index((one, two)) for one, two, _ in couplings]
        self.register_buffer("rows", torch.tensor(rows))
        self.radial = perceptron(basis, 64, len(moments) * self.width)

    def forward(
        self, x: Tensor, state: Tensor | None, edges: Geometry
    ) -> tuple[Tensor, Tensor | None]:
        sender, receiver = edges.edge_index
        features = self.send(x if state is None else torch.cat((x, state), dim=-1))
        around = o3.spherical_harmonics(self.around, edges.directions, False, "component")
        radial = self.radial(edges.basis) * (edges.envelope * self.scale)
        radial = radial.view(len(sender), -1, self.width).index_select(1, self.rows).flatten(1)
        messages = self.meet(features[sender], around, radial)
        single = self.gather(summed(messages, receiver, len(x)))
        double = self.multiply(single, single, self.weights(x))
        made = self.mix(torch.cat((single, double), dim=-1))
        change, rest = made[:, : self.width], made[:, self.width :]
        if not rest.shape[1]:
            return change, None
        return change, rest if state is None else state + rest
