"""Forces and stress by differentiating an energy.

Shapes: G graphs, N nodes, E edges.
"""

from dataclasses import replace

import torch
from torch import Tensor

from hydragnn_hpo.data import Batch
from hydragnn_hpo.model.autocast import apply_without_autocast, without_autocast


def attach_strain(batch: Batch) -> tuple[Batch, Tensor, Tensor]:
    """Give the batch with positions and a strain per graph that may be differentiated by.

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
