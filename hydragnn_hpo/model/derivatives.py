"""Terms of an energy beyond its head: the screened repulsion of nuclei, and its derivatives.

Shapes: G graphs, N nodes, E edges, P pairs of edges.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from hydragnn_hpo.config import MAX_ELEMENT
from hydragnn_hpo.data import Batch
from hydragnn_hpo.model.edges import Edges, envelope
from hydragnn_hpo.model.layers import apply_without_autocast, without_autocast

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
        """Return each node's half of the energy of its pairs in eV, [N, 1]."""
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


def attach_strain(batch: Batch) -> tuple[Batch, Tensor, Tensor]:
    """Return the batch with positions and a strain per graph that may be differentiated by.

    Returns:
        The batch, positions in angstrom [N, 3], and strain, dimensionless and zero, [G, 3, 3].
    """
    positions = batch.positions
    if not positions.requires_grad:
        positions = positions.detach().requires_grad_(True)
    strain = positions.new_zeros(batch.num_graphs, 3, 3).requires_grad_(True)
    bend = torch.eye(3, dtype=strain.dtype, device=strain.device) + 0.5 * (strain + strain.mT)
    of_node = bend.index_select(0, batch.graph_of_node)
    moved = apply_without_autocast(torch.bmm, positions.unsqueeze(1), of_node).squeeze(1)
    of_edge = of_node.index_select(0, batch.edge_index[0])
    shift = apply_without_autocast(torch.bmm, batch.edge_shift.unsqueeze(1), of_edge).squeeze(1)
    return replace(batch, positions=moved, edge_shift=shift), positions, strain


def forces_and_stress(
    energy: Tensor, positions: Tensor, strain: Tensor, batch: Batch, *, train: bool
) -> tuple[Tensor, Tensor]:
    """Differentiate total energies.

    Args:
        energy: in eV, [G, 1].
        positions: what it depends on, in angstrom, [N, 3].
        strain: what it depends on, [G, 3, 3].
        batch: holds the cells.
        train: keep the graph, so that the result can be differentiated again.

    Returns:
        Forces in eV/angstrom, [N, 3], and stress in eV/angstrom^3, positive when tensile,
        [G, 9]; 0 where a structure has no volume.
    """
    wanted = (positions, strain)
    with without_autocast(positions):
        found = torch.autograd.grad(
            energy.sum(), wanted, create_graph=train, retain_graph=True, allow_unused=True
        )
    slope, virial = (
        torch.zeros_like(given) if each is None else each
        for each, given in zip(found, wanted, strict=True)
    )
    if batch.cell is None:
        return -slope, torch.zeros_like(virial).flatten(1)
    volume = torch.linalg.det(batch.cell).abs().view(-1, 1, 1)
    solid = volume > 0
    stress = torch.where(solid, virial / torch.where(solid, volume, 1.0), 0.0)
    return -slope, stress.flatten(1)
