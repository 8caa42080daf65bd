"""The screened repulsion of nuclei, so that atoms too close for any data push each other off.

Shapes: N nodes, P pairs of edges.
"""

import torch
from torch import Tensor, nn

from hydragnn_hpo.config.model import MAX_ELEMENT
from hydragnn_hpo.data.batch import Batch
from hydragnn_hpo.model.cutoff import envelope
from hydragnn_hpo.model.edges import Edges

COULOMB = 14.399645
"""Energy of two elementary charges 1 angstrom apart, eV (CODATA 2018)."""

_SHARES = (0.18175, 0.50986, 0.28022, 0.02817)
_RATES = (3.19980, 0.94229, 0.40290, 0.20162)


class ZBL(nn.Module):
    """Ziegler-Biersack-Littmark potential; it ends smoothly where covalent radii touch.

    Source: Ziegler, Biersack, Littmark (1985), The Stopping and Range of Ions in Solids;
    radii of Cordero et al. (2008), doi:10.1039/b801115j, as in ASE.
    """

    radii: Tensor

    def __init__(self) -> None:
        """Take over the radii; nothing is learned."""
        super().__init__()
        from ase.data import covalent_radii

        known = torch.tensor(covalent_radii[: MAX_ELEMENT + 1], dtype=torch.float32)
        self.register_buffer("radii", known, persistent=False)

    def forward(self, batch: Batch, edges: Edges) -> Tensor:
        """Give each node its half of the energy of its pairs in eV, [N, 1]."""
        count = edges.pair_lengths.shape[0]
        ends = (edges.sender[:count], edges.receiver[:count])
        numbers = [batch.numbers.index_select(0, end) for end in ends]
        one, two = (each.to(edges.pair_lengths.dtype) for each in numbers)
        touch = self.radii[numbers[0]] + self.radii[numbers[1]]
        lengths = edges.pair_lengths.clamp(min=1e-3)
        screened = lengths * (one.pow(0.23) + two.pow(0.23)) / 0.46850
        decay = sum(
            c * torch.exp(-rate * screened) for c, rate in zip(_SHARES, _RATES, strict=True)
        )
        energy = COULOMB * one * two / lengths * decay * envelope(lengths / touch, 1.0)
        return edges.sum_messages(edges.expand_pairs(0.5 * energy.unsqueeze(-1)))
