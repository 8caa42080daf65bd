"""Energies of an ensemble and their derivatives: forces, stress, and the spread of the members.

Shapes: G graphs, N nodes, E edges.
"""

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from hydragnn_hpo.config import ELEMENTS
from hydragnn_hpo.data import Batch, GraphSet
from hydragnn_hpo.ensemble.engine import Member, as_array, member_batches
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.errors import ConfigError, unknown
from hydragnn_hpo.model import variance_key
from hydragnn_hpo.model.derivatives import attach_strain, forces_and_stress, total_energy
from hydragnn_hpo.uncertainty import Moments


@dataclass(eq=False)
class EnergyDerivatives:
    """Mean and spread over members, with the member weights of the energy head."""

    energy: Moments = field(default_factory=Moments)
    """Value of the head, total in eV or per atom in eV/atom, [G, 1]."""
    forces: Moments = field(default_factory=Moments)
    """Minus the gradient of the total energy, eV/angstrom, [N, 3]."""
    stress: Moments = field(default_factory=Moments)
    """Derivative of the total energy with respect to strain, divided by the volume, eV/angstrom^3,
    [G, 9]; 0 for a structure without volume."""

    @property
    def deviation(self) -> np.ndarray:
        """Disagreement of the members on the force on each atom, eV/angstrom, [N].

        This is the root mean square distance of the members' vectors from their mean.
        ``Moments.spread`` averages over the three components, and is smaller by a factor sqrt(3).

        Source: Zhang et al. (2020), Comput. Phys. Commun. 253, 107206 (DP-GEN), eq. 1.
        """
        root: np.ndarray = np.sqrt(self.forces.variance.sum(axis=-1))
        return root


def compute_derivatives(
    ensemble: Ensemble, target: str, graphs: GraphSet, indices: np.ndarray
) -> EnergyDerivatives:
    """Differentiate the members' energies of one batch of graphs, one member after the other.

    Args:
        ensemble: ensemble whose members with a weight for ``target`` are used.
        target: the energy head.
        graphs: graphs with edges up to the ensemble's cutoff.
        indices: positions of the graphs of the batch, [G].

    Raises:
        ConfigError: a member's energy begins from features without derivatives.
    """
    if reads_features(ensemble, target):
        raise frozen_error(ensemble, target)
    derivatives = EnergyDerivatives()
    per_atom = ensemble.manifest.heads[target].energy == "per_atom"
    members = [member for member in ensemble.members if target in member.weights]
    for member, batch in member_batches(members, graphs, indices, ensemble.device):
        energy, noise, forces, stress = differentiate(member, batch, target, per_atom=per_atom)
        weight = member.weights[target]
        variance = None if noise is None else as_array(noise)
        derivatives.energy.add(as_array(energy), weight, variance)
        derivatives.forces.add(as_array(forces), weight)
        derivatives.stress.add(as_array(stress), weight)
    return derivatives


def reads_features(ensemble: Ensemble, target: str) -> bool:
    """Check whether a head rests on features that are not differentiated by positions."""
    members = [member for member in ensemble.members if target in member.weights]
    regression = ensemble.manifest.heads[target].local is not None
    return regression or any(member.model.trunk.frozen is not None for member in members)


def frozen_error(ensemble: Ensemble, target: str) -> ConfigError:
    """Return the error for forces or stress of an energy that begins from features."""
    known = ensemble.manifest
    local = known.heads[target].local
    if local is not None and local.trunk is None:
        return ConfigError(
            f"the ensemble has no forces and no stress: a regression on {local.title} is a member "
            f"of '{target}' and is not differentiated by positions: train with forces beside it, "
            'or build the ensemble again with [ensemble] local_descriptors = "never".'
        )
    titles = " and ".join(known.trunk_spec(name).title for name in known.trunks)
    return ConfigError(
        f"the ensemble has no forces and no stress: its energy begins from features of {titles}, "
        f'which are not differentiated by positions: train with model.embedding = "{ELEMENTS}".'
    )


def differentiate(
    member: Member, batch: Batch, target: str, *, per_atom: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Differentiate one member's energy.

    Args:
        member: a member with a weight for ``target``.
        batch: G graphs in the member's precision.
        target: the energy head.
        per_atom: True if the head is an energy per atom; the total is differentiated in both cases.

    Returns:
        The head, [G, 1], in eV or eV/atom; its predicted variance, [G, 1], or None; forces
        in eV/angstrom, [N, 3], and stress in eV/angstrom^3, [G, 9], of the total energy.
    """
    moved, positions, strain = attach_strain(batch)
    heads = member.model(moved, only=(target,))
    energy = heads[target]
    noise = heads.get(variance_key(target))
    total = total_energy(energy, "per_atom" if per_atom else "total", batch)
    forces, stress = forces_and_stress(total, positions, strain, batch, train=False)
    return energy.detach(), None if noise is None else noise.detach(), forces, stress


def find_energy_head(ensemble: Ensemble, target: str | None = None) -> str:
    """Choose the energy head to differentiate; ``target`` names it if there are several.

    Raises:
        ConfigError: there is no such energy head, there are several and none is named, or a
            member's energy is discontinuous (capped neighbours).
    """
    heads = {name: head for name, head in ensemble.manifest.heads.items() if head.energy}
    if not heads:
        have = ", ".join(ensemble.manifest.heads)
        raise ConfigError(
            f"the ensemble predicts {have}, none of them an energy: set 'energy' of a target in "
            "the card and train again, or use predict."
        )
    capped = [member.trial for member in ensemble.members if member.max_neighbors is not None]
    if capped:
        raise ConfigError(
            f"the ensemble's member {capped[0]} caps its neighbours (model.max_neighbors), its "
            "energy jumps and has no forces: train without the cap, or use predict."
        )
    if target is None and len(heads) == 1:
        return next(iter(heads))
    if target is None:
        raise ConfigError(f"the ensemble has several energies, {', '.join(heads)}: name one.")
    if target not in heads:
        raise ConfigError(unknown("energy head", target, heads))
    return target


def find_forces_head(ensemble: Ensemble, target: str) -> str | None:
    """Return the forces head derived from an energy head, for its calibration; None if none."""
    for name, head in ensemble.manifest.heads.items():
        if head.derived_from == target and head.shape == "vector":
            return name
    return None
