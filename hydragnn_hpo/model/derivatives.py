"""Screened repulsion of nuclei, and the derivatives of energies: forces and stress.

Shapes: G graphs, N nodes, E edges, P pairs of edges.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from hydragnn_hpo.config import MAX_ELEMENT
from hydragnn_hpo.data import Batch
from hydragnn_hpo.kernels.scatter import without_autocast
from hydragnn_hpo.model.edges import Edges, envelope
from hydragnn_hpo.model.layers import apply_without_autocast, node_counts

COULOMB = 14.399645
"""Energy of two elementary charges 1 angstrom apart, eV (CODATA 2018)."""

_COEFFICIENTS = (0.18175, 0.50986, 0.28022, 0.02817)
_RATES = (3.19980, 0.94229, 0.40290, 0.20162)
"""Screening function ``sum_i coefficient_i exp(-rate_i x)``, dimensionless."""


class ZBL(nn.Module):
    """Ziegler-Biersack-Littmark potential, smoothly 0 beyond the sum of both covalent radii.

    Source: Ziegler, Biersack, Littmark (1985), The Stopping and Range of Ions in Solids;
    radii of Cordero et al. (2008), doi:10.1039/b801115j, as in ASE.
    """

    radii: Tensor

    def __init__(self) -> None:
        """Load the covalent radii in angstrom; there are no learned parameters."""
        super().__init__()
        from ase.data import covalent_radii

        radii = torch.tensor(covalent_radii[: MAX_ELEMENT + 1], dtype=torch.float32)
        self.register_buffer("radii", radii, persistent=False)

    def forward(self, batch: Batch, edges: Edges) -> Tensor:
        """Return half of the energy of each node's pairs, summed at the node, in eV, [N, 1]."""
        count = edges.pair_lengths.shape[0]
        ends = (edges.sender[:count], edges.receiver[:count])
        numbers = [batch.numbers.index_select(0, end) for end in ends]
        sender_charge, receiver_charge = (number.to(edges.pair_lengths.dtype) for number in numbers)
        contact = self.radii[numbers[0]] + self.radii[numbers[1]]
        lengths = edges.pair_lengths.clamp(min=1e-3)
        screened = lengths * (sender_charge.pow(0.23) + receiver_charge.pow(0.23)) / 0.46850
        decay = sum(
            c * torch.exp(-rate * screened) for c, rate in zip(_COEFFICIENTS, _RATES, strict=True)
        )
        energy = (
            COULOMB
            * sender_charge
            * receiver_charge
            / lengths
            * decay
            * envelope(lengths / contact, 1.0)
        )
        return edges.sum_messages(edges.expand_pairs(0.5 * energy.unsqueeze(-1)))


def attach_strain(batch: Batch) -> tuple[Batch, Tensor, Tensor]:
    """Apply a zero strain to a batch, so that autograd can differentiate by positions and strain.

    Returns:
        The batch, computed from the other two; positions in angstrom, [N, 3]; strain,
        dimensionless and zero, [G, 3, 3]. Positions and strain require gradients.
    """
    positions = batch.positions
    if not positions.requires_grad:
        positions = positions.detach().requires_grad_(True)
    strain = positions.new_zeros(batch.num_graphs, 3, 3).requires_grad_(True)
    deformation = torch.eye(3, dtype=strain.dtype, device=strain.device) + 0.5 * (
        strain + strain.mT
    )
    of_node = deformation.index_select(0, batch.graph_of_node)
    strained = apply_without_autocast(torch.bmm, positions.unsqueeze(1), of_node).squeeze(1)
    of_edge = of_node.index_select(0, batch.edge_index[0])
    shift = apply_without_autocast(torch.bmm, batch.edge_shift.unsqueeze(1), of_edge).squeeze(1)
    return replace(batch, positions=strained, edge_shift=shift), positions, strain


def total_energy(energy: Tensor, kind: str, batch: Batch) -> Tensor:
    """Return total energies, [G, 1].

    Args:
        energy: energy of each structure, [G, 1].
        kind: what it is, ``total`` or ``per_atom``.
        batch: the structures.
    """
    if kind != "per_atom":
        return energy
    return energy * node_counts(batch.positions.to(energy.dtype), batch)


def forces_and_stress(
    energy: Tensor, positions: Tensor, strain: Tensor, batch: Batch, *, train: bool
) -> tuple[Tensor, Tensor]:
    """Differentiate total energies by positions and strain.

    Args:
        energy: total energy of each structure in eV, [G, 1].
        positions: from ``attach_strain``, in angstrom, [N, 3].
        strain: from ``attach_strain``, dimensionless, [G, 3, 3].
        batch: its ``cell`` holds the cells in angstrom, [G, 3, 3], or is None.
        train: whether forces and stress can be differentiated again, as a loss of them needs.

    Returns:
        Forces in eV/angstrom, [N, 3], and stress in eV/angstrom^3, positive when tensile,
        [G, 9]; 0 where a structure has no volume.
    """
    inputs = (positions, strain)
    with without_autocast(positions):
        gradients = torch.autograd.grad(
            energy.sum(), inputs, create_graph=train, retain_graph=True, allow_unused=True
        )
    gradient, virial = (
        torch.zeros_like(variable) if each is None else each
        for each, variable in zip(gradients, inputs, strict=True)
    )
    if batch.cell is None:
        return -gradient, torch.zeros_like(virial).flatten(1)
    volume = torch.linalg.det(batch.cell).abs().view(-1, 1, 1)
    has_volume = volume > 0
    stress = torch.where(has_volume, virial / torch.where(has_volume, volume, 1.0), 0.0)
    return -gradient, stress.flatten(1)
