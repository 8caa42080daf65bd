"""A whole ensemble as one function of plain tensors.

Shapes: G graphs, N nodes, E edges, M members, R rows of the target (G or N), w components.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hydragnn_hpo.data.batch import Batch
from hydragnn_hpo.ensemble.artefact.manifest import HeadEntry
from hydragnn_hpo.ensemble.engine import Member
from hydragnn_hpo.ensemble.simulation.slopes import differentiate
from hydragnn_hpo.model.gnn import variance_of

GHOST_SHIFT = 0.75
"""Length of the ghost's edges, as a share of the cutoff."""


class Program(nn.Module):
    """Mean and spread of one target over all members.

    All members read one edge list. Edges beyond a member's cutoff are led to a ghost: one more
    atom, in a graph of its own, whose rows are dropped. So no tensor's size depends on its
    values, which a traced program could not follow, and none is ever empty.
    """

    def __init__(self, members: Sequence[Member], target: str, head: HeadEntry) -> None:
        """Take the members that take part in the target."""
        super().__init__()
        self.members = tuple(member for member in members if target in member.weights)
        self.nets = nn.ModuleList(member.model for member in self.members)
        self.target, self.head = target, head
        self.names = tuple(sorted({name for member in self.members for name in told(member)}))

    def forward(
        self,
        numbers: Tensor,
        positions: Tensor,
        edge_index: Tensor,
        edge_shift: Tensor,
        graph_of_node: Tensor,
        cell: Tensor,
        *attributes: Tensor,
    ) -> dict[str, Tensor]:
        """Predict; what goes in and comes out is said in ``sidecar.py``."""
        given = Batch(
            numbers=numbers,
            positions=positions,
            edge_index=edge_index,
            edge_shift=edge_shift,
            graph_of_node=graph_of_node,
            num_graphs=cell.shape[0],
            targets={},
            masks={},
            graph_index=graph_of_node,
            attributes=dict(zip(self.names, attributes, strict=True)),
            cell=cell,
        )
        return self._answer([self._said(member, given) for member in self.members])

    def _answer(self, said: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Turn what the members say into mean and spread."""
        weights = [member.weights[self.target] for member in self.members]
        found = {name: _moments([each[name] for each in said], weights) for name in said[0]}
        mean, variance = found["value"]
        spread = variance.mean(dim=1, keepdim=True).sqrt()
        noise = found["noise"][0] if "noise" in found else 0.0
        known = self.head.calibration
        out = {
            "mean": mean,
            "std": (known.a * spread.square() + known.c * noise + known.b).sqrt(),
            "std_epistemic": spread,
        }
        for name in ("forces", "stress"):
            if name in found:
                out[name] = found[name][0]
                out[f"{name}_std_epistemic"] = found[name][1].sqrt()
        return out

    def _said(self, member: Member, given: Batch) -> dict[str, Tensor]:
        """Give what one member says, fp64: the value, its noise, and slopes of energies."""
        batch = with_ghost(given, member.cutoff, member.dtype)
        graphs, nodes = given.num_graphs, given.numbers.shape[0]
        rows = graphs if self.head.level == "graph" else nodes
        if self.head.energy is None:
            heads = member.model(batch, only=(self.target,))
            said = {"value": heads[self.target][:rows].detach()}
            if variance_of(self.target) in heads:
                said["noise"] = heads[variance_of(self.target)][:rows].detach()
            return {name: value.double() for name, value in said.items()}
        per_atom = self.head.energy == "per_atom"
        energy, noise, forces, stress = differentiate(member, batch, self.target, per_atom=per_atom)
        said = {"value": energy[:rows], "forces": forces[:nodes], "stress": stress[:rows]}
        if noise is not None:
            said["noise"] = noise[:rows]
        return {name: value.double() for name, value in said.items()}


def told(member: Member) -> tuple[str, ...]:
    """Give the attributes that a member is told."""
    known = member.model.trunk.known
    return () if known is None else known.names


def with_ghost(given: Batch, cutoff: float, dtype: torch.dtype) -> Batch:
    """Give the batch as a member sees it: its cutoff, its type, and a ghost of one atom.

    The ghost has two edges to its own images, and all edges beyond the cutoff besides.
    """
    positions = given.positions.to(dtype)
    sender, receiver = given.edge_index[0], given.edge_index[1]
    shift = given.edge_shift
    vectors = (
        given.positions.index_select(0, receiver) - given.positions.index_select(0, sender) + shift
    )
    far = vectors.detach().square().sum(dim=1) > cutoff * cutoff
    nodes, graphs = given.numbers.shape[0], given.num_graphs
    away = torch.tensor([GHOST_SHIFT * cutoff, 0.0, 0.0], dtype=shift.dtype, device=shift.device)
    ghosts = given.edge_index.new_full((2,), nodes)
    ends = [torch.cat((torch.where(far, nodes, end), ghosts)) for end in (sender, receiver)]
    led = torch.where(far.unsqueeze(1), away, shift)
    assert given.cell is not None
    return Batch(
        numbers=torch.cat((given.numbers, given.numbers.new_ones(1))),
        positions=torch.cat((positions, positions.new_zeros(1, 3))),
        edge_index=torch.stack(ends),
        edge_shift=torch.cat((led, torch.stack((away, -away)))).to(dtype),
        graph_of_node=torch.cat((given.graph_of_node, given.graph_of_node.new_full((1,), graphs))),
        num_graphs=graphs + 1,
        targets={},
        masks={},
        graph_index=given.graph_index,
        attributes={
            name: torch.cat((value, value.new_zeros(1))).to(dtype)
            for name, value in given.attributes.items()
        },
        cell=torch.cat((given.cell, given.cell.new_zeros(1, 3, 3))).to(dtype),
    )


def _moments(values: Sequence[Tensor], weights: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Give weighted mean and variance over members."""
    stacked = torch.stack(list(values))
    share = stacked.new_tensor(weights).view(-1, *[1] * (stacked.dim() - 1))
    share = share / share.sum()
    mean = (share * stacked).sum(dim=0)
    return mean, (share * (stacked - mean).square()).sum(dim=0)
