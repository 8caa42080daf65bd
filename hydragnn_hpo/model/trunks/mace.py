"""MACE: the package of its authors builds the network, from sizes that are checked here.

The example of a trunk from a user's file: its sizes as a ``Struct`` of bounded numbers and words, a
module that turns batches into features, and in ``convert`` a function that reads the file. Known
are the parts of the models that its authors released until MACE-OMAT-0: Bessel functions, with or
without the transform of Agnesi, and four kinds of interactions.

Shapes: N nodes, E directed edges, F features, L layers.
Source: Batatia et al. (2022), arXiv:2206.07697.
"""

import contextlib
import io
import os
import warnings
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from msgspec import Meta, Struct
from torch import Tensor, nn

from hydragnn_hpo.data import Batch
from hydragnn_hpo.model.edges import pair_vectors
from hydragnn_hpo.model.trunks.chgnet import Length
from hydragnn_hpo.optional_packages import explain_missing

Degree = Annotated[int, Meta(ge=0, le=3)]
Few = Annotated[int, Meta(ge=1, le=4)]
Width = Annotated[int, Meta(ge=1, le=256)]

Interaction = Literal["", "Residual", "Density", "DensityResidual"]
"""Words in the names of the package's classes of interactions."""

INTERACTION = "RealAgnostic{}InteractionBlock"

UNSAFE = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
"""Variable by which the package, once imported, lets all of ``torch.load`` run code in files."""


class MACEConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes of a MACE without its readouts, which features do not need."""

    elements: Annotated[tuple[Annotated[int, Meta(ge=1, le=118)], ...], Meta(max_length=118)]
    """Atomic numbers in the order of its weights."""
    features: Width
    """Features of an atom of each degree, F."""
    order: Degree
    """Highest degree of an atom's features between interactions."""
    harmonics: Degree
    """Highest degree of the harmonics of edges."""
    correlation: Annotated[int, Meta(ge=1, le=3)]
    """Most neighbours that a message couples at once."""
    convolutions: Few
    """Interactions; after the last one only scalars are left."""
    first: Interaction
    """Kind of the first interaction."""
    later: Interaction
    """Kind of the others."""
    cutoff: Length
    """Longest edge, in angstrom."""
    radial: Annotated[int, Meta(ge=1, le=64)]
    """Radial functions."""
    agnesi: bool
    """Whether lengths are transformed, element by element, before they are expanded."""
    envelope: Annotated[int, Meta(ge=1, le=64)]
    """Exponent of the envelope of radial functions."""
    hidden: Annotated[tuple[Width, ...], Meta(min_length=1, max_length=8)]
    """Widths of the hidden layers between radial functions and weights."""
    neighbors: Annotated[float, Meta(gt=0, le=1e6)]
    """Mean number of neighbours, by which sums are divided."""
    reduced_couplings: bool
    """Whether couplings that are symmetric to each other are left out."""


def import_mace() -> Any:
    """Import the package, but not the unsafe loading that it switches on for the whole process.

    e3nn reads its constants by ``torch.load``, which refuses their slices unless they are allowed.

    Returns:
        Its module ``mace.modules``.

    Raises:
        MissingPackage: it is not installed.
    """
    before = os.environ.get(UNSAFE)
    try:
        with (
            explain_missing("a MACE model"),
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),  # it prints what it can do without
            torch.serialization.safe_globals([slice]),
        ):
            warnings.simplefilter("ignore")  # TorchScript, which e3nn uses, is deprecated
            from mace import modules
    finally:
        os.environ.pop(UNSAFE, None)
        if before is not None:
            os.environ[UNSAFE] = before
    return modules


class MACENetwork(nn.Module):
    """A MACE without readouts: invariant features of atoms.

    Source: Batatia et al. (2022), arXiv:2206.07697.
    """

    atomic_numbers: Tensor

    def __init__(self, config: MACEConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("atomic_numbers", torch.tensor(config.elements))
        modules = import_mace()
        degrees = range(config.order + 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from e3nn import o3

            self.model = modules.MACE(
                r_max=config.cutoff,
                num_bessel=config.radial,
                num_polynomial_cutoff=config.envelope,
                max_ell=config.harmonics,
                interaction_cls=modules.interaction_classes[INTERACTION.format(config.later)],
                interaction_cls_first=modules.interaction_classes[INTERACTION.format(config.first)],
                num_interactions=config.convolutions,
                num_elements=len(config.elements),
                hidden_irreps=o3.Irreps([(config.features, (d, (-1) ** d)) for d in degrees]),
                MLP_irreps=o3.Irreps("1x0e"),
                atomic_energies=torch.zeros(len(config.elements)).numpy(),
                avg_num_neighbors=config.neighbors,
                atomic_numbers=list(config.elements),
                correlation=config.correlation,
                gate=F.silu,
                distance_transform="Agnesi" if config.agnesi else "None",
                radial_MLP=list(config.hidden),
                use_reduced_cg=config.reduced_couplings,
            )
        self.model.readouts = nn.ModuleList()

    def forward(self, batch: Batch) -> Tensor:
        """Return the embedding of each atom's element, and its scalars after each interaction.

        Args:
            batch: structures with fp64 positions, and their edges in pairs up to the cutoff.

        Returns:
            [N, L, F], L = 1 + ``convolutions``.
        """
        links, pairs = pair_vectors(batch)
        dtype = self.model.r_max.dtype
        species = (batch.numbers.unsqueeze(1) == self.atomic_numbers).to(dtype)
        nodes = len(species)
        # The package would subtract positions in fp32: it gets vectors instead, as shifts.
        values = self.model(
            {
                "positions": torch.zeros(nodes, 3, dtype=dtype),
                "shifts": torch.cat((pairs, -pairs)).to(dtype),
                "cell": torch.zeros(3, 3, dtype=dtype),
                "edge_index": torch.stack((links.sender, links.receiver)),
                "node_attrs": species,
                "batch": torch.zeros(nodes, dtype=torch.long),
                "ptr": torch.tensor([0, nodes]),
            },
            compute_force=False,
        )["node_feats"]
        width = self.config.features
        step = width * (self.config.order + 1) ** 2
        scalars = [values[:, n * step : n * step + width] for n in range(self.config.convolutions)]
        return torch.stack([self.model.node_embedding(species), *scalars], dim=1)
