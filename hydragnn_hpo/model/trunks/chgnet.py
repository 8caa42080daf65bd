"""CHGNet: convolutions of atoms over bonds, and of bonds over the angles between short bonds.

Written for frozen weights: nothing here is meant to be trained. A bond is a pair of directed edges;
its features are stored once. A linear map of concatenated inputs is the sum of one map for each
input, so that atoms and bonds are mapped before their rows are gathered.

Shapes: N nodes, E directed edges, P pairs of edges (bonds), S short bonds, T angles, F features,
K radial functions, A angular functions, L layers.
Source: Deng et al. (2023), Nat. Mach. Intell. 5, 1031, doi:10.1038/s42256-023-00716-3.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from msgspec import Meta, Struct
from torch import Tensor, nn

from hydragnn_hpo.data import Batch
from hydragnn_hpo.kernels import Links
from hydragnn_hpo.model.edges import pair_vectors

Size = Annotated[int, Meta(ge=1, le=1024)]
Length = Annotated[float, Meta(gt=0, le=20)]


class CHGNetConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes of a CHGNet."""

    elements: Size
    """Rows of the table of elements, from hydrogen on."""
    features: Size
    """Features of an atom, a bond and an angle, F."""
    radial: Size
    """Radial functions, K."""
    angular: Size
    """Angular functions, A: a constant, and as many sines as cosines."""
    convolutions: Size
    """Convolutions of atoms; bonds are convolved between them."""
    cutoff: Length
    """Length of the longest bond, in angstrom."""
    angle_cutoff: Length
    """Length of the longest bond that forms angles, in angstrom."""
    envelope: Size
    """Exponent p of the envelope of radial functions."""


class RadialBasis(nn.Module):
    """Spherical Bessel functions with learned frequencies, under a polynomial envelope.

    Phases are up to 100: in fp32 their rounding would be the largest error of all features.
    Source: Gasteiger et al. (2020), arXiv:2003.03123, eqs. 7 and 8.
    """

    def __init__(self, size: int, cutoff: float, exponent: int) -> None:
        """Allocate ``size`` = K frequencies.

        Args:
            size: number of functions, K.
            cutoff: length from which the functions are 0, in angstrom.
            exponent: p of the envelope.
        """
        super().__init__()
        self.frequencies = nn.Parameter(torch.empty(size))
        self.cutoff, self.exponent = cutoff, exponent

    def forward(self, lengths: Tensor) -> Tensor:
        """Expand lengths in angstrom, fp64, [P], to [P, K] in the dtype of the weights."""
        x = (lengths / self.cutoff).clamp(max=1.0).unsqueeze(-1)
        p = self.exponent
        polynomial = (p + 1) * (p + 2) / 2 - p * (p + 2) * x + p * (p + 1) / 2 * x * x
        scale = math.sqrt(2.0 / self.cutoff) * (1.0 - x**p * polynomial) / (x * self.cutoff)
        return torch.sin(x * self.frequencies).mul_(scale).to(self.frequencies.dtype)


class AngularBasis(nn.Module):
    """Fourier series of an angle with learned frequencies. Source: Deng et al. (2023), methods."""

    def __init__(self, size: int) -> None:
        """Allocate the frequencies of ``size`` = A functions: 1 constant, sines and cosines."""
        super().__init__()
        self.frequencies = nn.Parameter(torch.empty(size // 2))

    def forward(self, cosines: Tensor) -> Tensor:
        """Expand cosines of angles, fp64, [T], to [T, A] in the dtype of the weights."""
        # The factor keeps the arc cosine away from its infinite slope, as in training.
        phases = torch.acos(cosines * (1.0 - 1e-6)).unsqueeze(1) * self.frequencies
        constant = phases.new_full((len(phases), 1), math.sqrt(0.5))
        series = torch.cat((constant, phases.sin(), phases.cos_()), dim=1)
        return series.div_(math.sqrt(math.pi)).to(self.frequencies.dtype)


def add_rows(tables: Sequence[Tensor], rows: Tensor) -> Tensor:
    """Add one row of each table, in a quarter of the time of gathers and additions.

    Args:
        tables: arrays of F columns.
        rows: a row of each table, counted over all tables end to end, [n, tables].

    Returns:
        [n, F].
    """
    return F.embedding_bag(rows, torch.cat(tuple(tables)), mode="sum")


class GatedActivation(nn.Module):
    """Product of a SiLU and a gate, both of normalised values."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.core_norm = nn.LayerNorm(features)
        self.gate_norm = nn.LayerNorm(features)

    def forward(self, core: Tensor, gate: Tensor) -> Tensor:
        """Combine two arrays, [n, F] each, to [n, F]."""
        core = F.silu(self.core_norm(core), inplace=True)
        return core.mul_(self.gate_norm(gate).sigmoid_())


class GatedMessages(nn.Module):
    """Second layer of the gated perceptron of messages."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.core = nn.Linear(features, features)
        self.gate = nn.Linear(features, features)
        self.activation = GatedActivation(features)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return messages, [n, F], from hidden values of both halves, [n, 2 F]; overwrites them."""
        core, gate = F.silu(hidden, inplace=True).chunk(2, dim=1)
        messages: Tensor = self.activation(self.core(core), self.gate(gate))
        return messages


class AtomConv(nn.Module):
    """Update atoms by messages of their neighbours along bonds."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.receiver = nn.Linear(features, 2 * features)
        self.sender = nn.Linear(features, 2 * features, bias=False)
        self.bond = nn.Linear(features, 2 * features, bias=False)
        self.message = GatedMessages(features)
        self.out = nn.Linear(features, features, bias=False)

    def forward(
        self, atoms: Tensor, bonds: Tensor, weights: Tensor, links: Links, rows: Tensor
    ) -> Tensor:
        """Return the change of the atoms, [N, F].

        Args:
            atoms: features, [N, F].
            bonds: features, [P, F].
            weights: of messages, which are 0 at the cutoff, [P, F].
            links: ends of the edges.
            rows: receiver, N + sender and 2 N + bond of each edge, [E, 3].
        """
        tables = (self.receiver(atoms), self.sender(atoms), self.bond(bonds))
        messages = self.message(add_rows(tables, rows))
        change: Tensor = self.out(links.sum_messages(links.filter_messages(messages, weights)))
        return change


@dataclass(frozen=True, eq=False)
class Angles:
    """Ordered pairs of short bonds that meet in an atom.

    An arm is an end of a short bond: arm b is the sender of short bond b, arm S + b its receiver.
    """

    arms: Tensor
    """Arms sorted by their atom, [2 S]."""
    starts: Tensor
    """First angle of each of ``arms``, and the end, [2 S + 1]; angles are in this order."""
    first: Tensor
    """First arm of each angle, [T]."""
    second: Tensor
    """Second arm of each angle, [T]."""
    rows: Tensor
    """First arm, and 2 S + bond of the second arm, of each angle, [T, 2]."""


def find_angles(centers: Tensor, num_nodes: int) -> Angles:
    """Combine each arm with every other arm of its atom.

    Args:
        centers: atom of each arm, [2 S].
        num_nodes: number of atoms, N.
    """
    arms = torch.argsort(centers, stable=True)
    counts = torch.bincount(centers, minlength=num_nodes)
    center = centers.index_select(0, arms)
    others = counts.index_select(0, center) - 1
    starts = F.pad(others.cumsum(0), (1, 0))
    row = torch.repeat_interleave(others)
    # ``column`` counts up from the first arm of the atom, and leaves out ``row`` itself.
    begin = (counts.cumsum(0) - counts).index_select(0, center) - starts[:-1]
    column = begin.index_select(0, row) + torch.arange(len(row))
    column += column >= row
    first = arms.index_select(0, row)
    second = arms.index_select(0, column)
    bond = torch.where(second < len(arms) // 2, second + len(arms), second + len(arms) // 2)
    return Angles(arms, starts, first, second, torch.stack((first, bond), dim=1))


def measure_angles(directions: Tensor, angles: Angles) -> Tensor:
    """Return the cosine of each angle, [T].

    Args:
        directions: unit vectors of the short bonds from sender to receiver, [S, 3].
        angles: their arms.
    """
    arms = torch.cat((directions, -directions))
    cosines: Tensor = torch.linalg.vecdot(arms[angles.first], arms[angles.second])
    return cosines


class AngleInputs(nn.Module):
    """First layer of a gated perceptron of two bonds, the angle between them, and its atom."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, 2 * features, bias=False)
        self.second = nn.Linear(features, 2 * features, bias=False)
        self.angle = nn.Linear(features, 2 * features, bias=False)
        self.center = nn.Linear(features, 2 * features)

    def forward(self, centers: Tensor, bonds: Tensor, values: Tensor, angles: Angles) -> Tensor:
        """Return both halves of the layer, [T, 2 F].

        Args:
            centers: features of the atom of each arm, [2 S, F].
            bonds: features of the short bonds, [S, F].
            values: features of the angles, [T, F].
            angles: their arms.
        """
        arms = self.center(centers)
        arms.view(2, len(bonds), arms.shape[1]).add_(self.first(bonds))
        hidden = add_rows((arms, self.second(bonds)), angles.rows)
        return hidden.addmm_(values, self.angle.weight.t())


class BondConv(nn.Module):
    """Update short bonds by messages of the bonds that meet them at an angle."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.inputs = AngleInputs(features)
        self.message = GatedMessages(features)
        self.out = nn.Linear(features, features, bias=False)

    def forward(
        self, centers: Tensor, bonds: Tensor, weights: Tensor, values: Tensor, angles: Angles
    ) -> Tensor:
        """Return the change of the short bonds, [S, F].

        Args:
            centers: features of the atom of each arm, [2 S, F].
            bonds: features of the short bonds, [S, F].
            weights: of messages, which are 0 where a bond has the angle cutoff, [T, F].
            values: features of the angles, [T, F].
            angles: their arms.
        """
        messages = self.message(self.inputs(centers, bonds, values, angles)).mul_(weights)
        order = torch.arange(len(messages))
        sums = torch.empty_like(centers)
        sums[angles.arms] = F.embedding_bag(
            order, messages, angles.starts, mode="sum", include_last_offset=True
        )
        change: Tensor = self.out(sums[: len(bonds)] + sums[len(bonds) :])
        return change


class AngleUpdate(nn.Module):
    """Update angles by their bonds and their atom."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.inputs = AngleInputs(features)
        self.activation = GatedActivation(features)

    def forward(self, centers: Tensor, bonds: Tensor, values: Tensor, angles: Angles) -> Tensor:
        """Return the change of the angles, [T, F]; the arguments are those of ``AngleInputs``.

        Args:
            centers: [2 S, F].
            bonds: [S, F].
            values: [T, F].
            angles: their arms.
        """
        change: Tensor = self.activation(
            *self.inputs(centers, bonds, values, angles).chunk(2, dim=1)
        )
        return change


class CHGNet(nn.Module):
    """Crystal Hamiltonian graph network: features of atoms, site energies and moments.

    Source: Deng et al. (2023), Nat. Mach. Intell. 5, 1031.
    """

    reference_energies: Tensor

    def __init__(self, config: CHGNetConfig) -> None:
        super().__init__()
        self.config = config
        features, radial = config.features, config.radial
        rounds = range(config.convolutions)
        self.elements = nn.Embedding(config.elements, features)
        self.radial = RadialBasis(radial, config.cutoff, config.envelope)
        self.short_radial = RadialBasis(radial, config.angle_cutoff, config.envelope)
        self.angular = AngularBasis(config.angular)
        self.bond = nn.Linear(radial, features, bias=False)
        self.weight = nn.Linear(radial, features, bias=False)
        self.short_weight = nn.Linear(radial, features, bias=False)
        self.angle = nn.Linear(config.angular, features, bias=False)
        self.atom_convs = nn.ModuleList(AtomConv(features) for _ in rounds)
        self.bond_convs = nn.ModuleList(BondConv(features) for _ in rounds[1:])
        self.angle_updates = nn.ModuleList(AngleUpdate(features) for _ in rounds[2:])
        hidden = [layer for _ in range(3) for layer in (nn.Linear(features, features), nn.SiLU())]
        self.energy = nn.Sequential(nn.LayerNorm(features), *hidden, nn.Linear(features, 1))
        self.moment = nn.Linear(features, 1)
        self.register_buffer("reference_energies", torch.empty(config.elements))

    def forward(self, batch: Batch) -> Tensor:
        """Return the embedding of each atom's element, and its features after each convolution.

        Args:
            batch: structures with fp64 positions, and their edges in pairs up to the cutoff.

        Returns:
            [N, L, F], L = 1 + ``convolutions``.
        """
        assert batch.edge_index.shape[1] == 2 * batch.num_pairs, "an edge has no reverse"
        links, vectors = pair_vectors(batch)
        lengths = torch.linalg.vector_norm(vectors, dim=1)
        short = (lengths < self.config.angle_cutoff).nonzero().squeeze(1)
        centers = torch.cat((links.sender[short], links.receiver[short]))
        angles = find_angles(centers, links.num_nodes)
        values = self.angle(
            self.angular(measure_angles(vectors[short] / lengths[short, None], angles))
        )
        basis = self.radial(lengths)
        bonds = self.bond(basis)
        weights = self.weight(basis)
        arm_weights = self.short_weight(self.short_radial(lengths[short])).repeat(2, 1)
        angle_weights = arm_weights.index_select(0, angles.first)
        angle_weights *= arm_weights.index_select(0, angles.second)
        bond_of_edge = torch.arange(len(links.sender)) % max(len(lengths), 1)
        nodes = links.num_nodes
        rows = torch.stack((links.receiver, links.sender + nodes, bond_of_edge + 2 * nodes), dim=1)

        layers = [self.elements(batch.numbers - 1)]
        for step, convolve in enumerate(self.atom_convs):
            layers.append(layers[-1] + convolve(layers[-1], bonds, weights, links, rows))
            if step == len(self.bond_convs):
                break
            at_centers = layers[-1].index_select(0, centers)
            near = bonds.index_select(0, short)
            near += self.bond_convs[step](at_centers, near, angle_weights, values, angles)
            bonds[short] = near
            if step < len(self.angle_updates):
                values += self.angle_updates[step](at_centers, near, values, angles)
        return torch.stack(layers, dim=1)

    def site_energies(self, features: Tensor, numbers: Tensor) -> Tensor:
        """Return each atom's share of the energy in eV, [N], from its features, [N, L, F]."""
        own: Tensor = self.energy(features[:, -1]).squeeze(1)
        return own + self.reference_energies.index_select(0, numbers - 1)

    def moments(self, features: Tensor) -> Tensor:
        """Return the size of each magnetic moment in Bohr magnetons, [N], from [N, L, F]."""
        moments: Tensor = self.moment(features[:, -2]).abs().squeeze(1)
        return moments
