"""SevenNet: convolutions that are equivariant to rotations, but not to reflections.

Written for frozen weights: nothing here is meant to be trained. The paths of a convolution couple
features of one degree and harmonics of another to a third one. Where the degrees of a path sum to
an odd number, it changes sign in a mirror image; the weights of a bond do not. So both images of a
structure pass through the network at once, and what it returns is the mean of both.

Shapes: N nodes, E directed edges, P pairs of edges (bonds), F features, K radial functions, I
images (1 while both are alike, else 2), L layers. Features of degree l are [N, 2 l + 1, I, F].
Source: Park et al. (2024), J. Chem. Theory Comput. 20, 4857, doi:10.1021/acs.jctc.4c00190; Batzner
et al. (2022), Nat. Commun. 13, 2453.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Annotated

import torch
import torch.nn.functional as F
from msgspec import Meta, Struct
from torch import Tensor, nn

from hydragnn_hpo.data import Batch
from hydragnn_hpo.kernels import Links, choose_kernels
from hydragnn_hpo.model.edges import pair_vectors
from hydragnn_hpo.model.messages import coupled_sum, filtered_sum
from hydragnn_hpo.model.tensor_product import coupling_coefficients, spherical_harmonics
from hydragnn_hpo.model.trunks.chgnet import Length, Size

Path = tuple[int, int, int]
"""Degrees of the features, of the harmonics, and of what they are coupled to."""


class SevenNetConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes of a SevenNet."""

    elements: Size
    """Rows of the table of elements, from hydrogen on."""
    features: Size
    """Features of an atom of degree 0, F."""
    vectors: Size
    """Features of degree 1."""
    tensors: Size
    """Features of degree 2."""
    radial: Size
    """Radial functions, K."""
    hidden: Size
    """Width of the hidden layers between radial functions and weights."""
    convolutions: Size
    """Convolutions; the last one has no vectors and no tensors."""
    cutoff: Length
    """Length of the longest bond, in angstrom."""
    fade: Length
    """Length from which bonds fade, in angstrom."""
    activation_scale: Annotated[float, Meta(gt=0, le=10)]
    """Factor of activations, by which their squares have a mean of 1 for normal inputs."""


def list_paths(inputs: int, outputs: int) -> list[Path]:
    """Return the paths between degrees, in the order of their weights.

    Args:
        inputs: highest degree of the features.
        outputs: highest degree of the product.
    """
    return [
        (one, two, three)
        for one in range(inputs + 1)
        for two in range(3)
        for three in range(abs(one - two), min(one + two, outputs) + 1)
    ]


@cache
def couple_degrees(path: Path) -> Tensor:
    """Return the coupling of any degrees up to 2, of both parities.

    Matrices of 3 x 3 hold degree 0 as their trace, 1 as their antisymmetric and 2 as their
    symmetric rest: the trace of the product of three is invariant, and couples their degrees.

    Args:
        path: the degrees.

    Returns:
        [2 one + 1, 2 two + 1, 2 three + 1], fp64; squares of each output component sum to 1.
    """
    cross = torch.zeros(3, 3, 3, dtype=torch.float64)
    for k in range(3):
        cross[k, (k + 1) % 3, (k + 2) % 3] = 1.0
        cross[k, (k + 2) % 3, (k + 1) % 3] = -1.0
    identity = torch.eye(3, dtype=torch.float64).unsqueeze(0)
    bases = (identity, cross, torch.from_numpy(coupling_coefficients(1, 1, 2)))
    traces = torch.einsum("aij,bjk,cik->abc", *(bases[ell] for ell in path))
    scaled: Tensor = traces * math.sqrt((2 * path[2] + 1) / traces.square().sum())
    return scaled


class BondBasis(nn.Module):
    """Spherical Bessel functions with learned frequencies, which fade at the cutoff."""

    def __init__(self, config: SevenNetConfig) -> None:
        super().__init__()
        self.frequencies = nn.Parameter(torch.empty(config.radial))
        self.cutoff, self.fade = config.cutoff, config.fade

    def forward(self, lengths: Tensor) -> Tensor:
        """Expand lengths in angstrom, fp64, [P], to [P, K] in the dtype of the weights."""
        square = lengths.square()
        end = self.cutoff**2
        start = self.fade**2
        weights = (end - square).square() * (end + 2.0 * square - 3.0 * start) / (end - start) ** 3
        weights = torch.where(lengths < self.fade, 1.0, weights) / lengths
        values = torch.sin(lengths.unsqueeze(1) * self.frequencies) * weights.unsqueeze(1)
        return values.to(self.frequencies.dtype)


class Couplings:
    """Matrices by which edges couple features of their senders."""

    def __init__(self, links: Links, vectors: Tensor, lengths: Tensor, dtype: torch.dtype) -> None:
        """Compute the matrices of all paths.

        Args:
            links: ends of the edges.
            vectors: of the pairs from sender to receiver, in angstrom, fp64, [P, 3].
            lengths: of the vectors, [P].
            dtype: of the features.
        """
        self.links = replace(links, kernels=choose_kernels("auto", links.sender.device.type, dtype))
        harmonics = spherical_harmonics(vectors / lengths.unsqueeze(1), 2)
        by_degree = torch.split(harmonics, [1, 3, 5], dim=1)
        self.matrices = {}
        for path in list_paths(2, 2):
            one, two, three = path
            if two == 0:
                continue
            coupling = couple_degrees(path).permute(1, 2, 0)
            forth = (by_degree[two] @ coupling.flatten(1)).to(dtype)
            both = torch.cat((forth, -forth if two == 1 else forth))
            self.matrices[path] = both.view(-1, 2 * three + 1, 2 * one + 1)

    def sum_path(self, path: Path, values: Tensor, filters: Tensor) -> Tensor:
        """Sum the coupled neighbours of all nodes.

        Args:
            path: the degrees.
            values: features of the first degree, [N, 2 one + 1, I, F].
            filters: weights of the pairs, [P, F].

        Returns:
            [N, 2 three + 1, I', F]; I' is 2 where images are alike and the path has odd parity.
        """
        nodes, _, images, width = values.shape
        filters = filters.repeat(1, images)
        flat = values.flatten(2)
        if path[1] == 0:
            sums = filtered_sum(flat, filters, self.links)
        else:
            sums = coupled_sum(flat, filters, self.matrices[path], self.links)
        sums = sums.view(nodes, -1, images, width)
        if sum(path) % 2:
            sums = sums * sums.new_tensor([[1.0], [-1.0]])
        return sums


class SevenNetConv(nn.Module):
    """Update the features of all degrees by those of the neighbours, and gate them."""

    def __init__(self, config: SevenNetConfig, inputs: int, outputs: int) -> None:
        """Allocate one convolution.

        Args:
            config: sizes.
            inputs: highest degree of the features before.
            outputs: highest degree of the features after.
        """
        super().__init__()
        widths = (config.features, config.vectors, config.tensors)
        hidden = config.hidden
        self.scale = config.activation_scale
        self.widths = list(widths[: outputs + 1])
        self.paths = list_paths(inputs, outputs)
        self.counts = [widths[one] for one, _, _ in self.paths]
        made = (sum(self.widths), *self.widths[1:])
        sums = [
            sum(widths[one] for one, _, three in self.paths if three == ell)
            for ell in range(outputs + 1)
        ]
        self.send = nn.ModuleList(nn.Linear(n, n, bias=False) for n in widths[: inputs + 1])
        self.radial = nn.Sequential(
            nn.Linear(config.radial, hidden, bias=False),
            nn.SiLU(),
            nn.Linear(hidden, hidden, bias=False),
            nn.SiLU(),
        )
        self.filters = nn.Linear(hidden, sum(self.counts), bias=False)
        self.mix = nn.ModuleList(
            nn.Linear(n, m, bias=False) for n, m in zip(sums, made, strict=True)
        )
        self.keep = nn.ModuleList(
            nn.Linear(n, m, bias=False) for n, m in zip(widths[: inputs + 1], made, strict=False)
        )

    def forward(
        self, values: Sequence[Tensor], basis: Tensor, couplings: Couplings
    ) -> list[Tensor]:
        """Return the features of each degree, [N, 2 l + 1, I', F].

        Args:
            values: features of each degree, [N, 2 l + 1, I, F].
            basis: radial functions of the pairs, [P, K].
            couplings: of the edges.
        """
        sent = [send(each) for send, each in zip(self.send, values, strict=True)]
        hidden = self.radial(basis)
        sums: list[list[Tensor]] = [[] for _ in self.widths]
        for path, weight in zip(
            self.paths, torch.split(self.filters.weight, self.counts), strict=True
        ):
            filters = hidden @ weight.t()
            sums[path[2]].append(couplings.sum_path(path, sent[path[0]], filters))
        images = max(each.shape[2] for parts in sums for each in parts)
        made = []
        for ell, (parts, mix) in enumerate(zip(sums, self.mix, strict=True)):
            total = mix(torch.cat([each.expand(-1, -1, images, -1) for each in parts], dim=3))
            if ell < len(self.keep):
                total = total + self.keep[ell](values[ell])
            made.append(total)
        scalars, *gates = torch.split(F.silu(made[0], inplace=True), self.widths, dim=3)
        gated = [gate * each for gate, each in zip(gates, made[1:], strict=True)]
        return [scalars * self.scale, *gated]


class SevenNet(nn.Module):
    """Scalable equivariance-enabled neural network: features of atoms and site energies.

    Source: Park et al. (2024), J. Chem. Theory Comput. 20, 4857.
    """

    reference_energies: Tensor

    def __init__(self, config: SevenNetConfig) -> None:
        super().__init__()
        self.config = config
        last = config.convolutions - 1
        self.elements = nn.Embedding(config.elements, config.features)
        self.radial = BondBasis(config)
        self.convs = nn.ModuleList(
            SevenNetConv(config, 2 * (step > 0), 2 * (step < last))
            for step in range(config.convolutions)
        )
        self.energy = nn.Linear(config.features, 1, bias=False)
        self.register_buffer("reference_energies", torch.empty(config.elements))

    def forward(self, batch: Batch) -> Tensor:
        """Return the embedding of each atom's element, and its scalars after each convolution.

        Args:
            batch: structures with fp64 positions, and their edges in pairs up to the cutoff.

        Returns:
            Means of both images, [N, L, F], L = 1 + ``convolutions``.
        """
        assert batch.edge_index.shape[1] == 2 * batch.num_pairs, "an edge has no reverse"
        links, vectors = pair_vectors(batch)
        lengths = torch.linalg.vector_norm(vectors, dim=1)
        basis = self.radial(lengths)
        couplings = Couplings(links, vectors, lengths, basis.dtype)
        elements = self.elements(batch.numbers - 1)
        values = [elements[:, None, None, :]]
        layers = [elements]
        for conv in self.convs:
            values = conv(values, basis, couplings)
            layers.append(values[0].mean(dim=(1, 2)))
        return torch.stack(layers, dim=1)

    def site_energies(self, features: Tensor, numbers: Tensor) -> Tensor:
        """Return each atom's share of the energy in eV, [N], from its features, [N, L, F].

        Energies are linear in the features, so that this is the mean of both images, too.
        """
        own: Tensor = self.energy(features[:, -1]).squeeze(1)
        return own + self.reference_energies.index_select(0, numbers - 1)
