"""The ensemble as an ASE calculator: energy, forces and stress, with their spread.

Shapes: N nodes, M members.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes
from torch import Tensor

from hydragnn_hpo.data.batch import Batch
from hydragnn_hpo.ensemble.member import Member
from hydragnn_hpo.ensemble.moments import Moments
from hydragnn_hpo.ensemble.predictor import Ensemble, member_batches
from hydragnn_hpo.ensemble.structures import columns_of_atoms
from hydragnn_hpo.errors import ConfigError, unknown


class EnsembleCalculator(Calculator):
    """Energy in eV of the ensemble's mean, forces and stress by differentiating it.

    Beside ``energy``, ``forces`` and (for fully periodic structures) ``stress``, ``results``
    holds ``energy_std``, the calibrated standard deviation in eV, and ``forces_std``, the
    spread of the members' forces as it is, [N, 3] in eV/angstrom: there were no forces to
    calibrate it on.
    """

    implemented_properties = [
        "energy",
        "free_energy",
        "forces",
        "stress",
        "energy_std",
        "forces_std",
    ]

    def __init__(
        self,
        ensemble: Ensemble | Path | str,
        *,
        target: str | None = None,
        device: str = "cpu",
        precision: str = "fp64",
    ) -> None:
        """Take an ensemble, or read one.

        Args:
            ensemble: the ensemble, or the path of its file.
            target: the energy head; needed only where there are several.
            device: where to predict, if the ensemble is read here.
            precision: ``fp32`` or ``fp64``, if the ensemble is read here; fp64 keeps long
                runs of molecular dynamics and relaxations smooth.

        Raises:
            ConfigError: the ensemble has no such energy head.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        if not isinstance(ensemble, Ensemble):
            ensemble = Ensemble.load(ensemble, device=device, precision=precision)
        self.ensemble = ensemble
        self.target = energy_head(ensemble, target)

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = tuple(all_changes),
    ) -> None:
        """Compute everything at once; see the class.

        Raises:
            DataError: the structure cannot become a graph.
        """
        super().calculate(  # type: ignore[no-untyped-call]
            atoms, list(properties), list(system_changes)
        )
        assert self.atoms is not None, "ASE calculates without atoms"
        head = self.ensemble.manifest.heads[self.target]
        energy, forces, virial = self._moments(self.atoms)
        factor = float(len(self.atoms)) if head.energy == "per_atom" else 1.0
        sigma = head.calibration.sigma(energy.spread)
        self.results = {
            "energy": factor * float(energy.mean[0, 0]),
            "free_energy": factor * float(energy.mean[0, 0]),
            "energy_std": factor * float(sigma[0, 0]),
            "forces": factor * forces.mean,
            "forces_std": factor * np.sqrt(forces.variance),
        }
        if self.atoms.pbc.all():
            stress = factor * virial.mean / self.atoms.get_volume()
            self.results["stress"] = stress.flat[[0, 4, 8, 5, 2, 1]]

    def _moments(self, atoms: Atoms) -> tuple[Moments, Moments, Moments]:
        """Stream members: head [1, 1], its force [N, 3] and its strain derivative [3, 3]."""
        ensemble = self.ensemble
        columns = columns_of_atoms(atoms, ensemble.rules)
        energy, forces, virial = Moments(), Moments(), Moments()
        only = np.zeros(1, dtype=np.int64)
        for member, batch in member_batches(ensemble.members, columns, only, ensemble.device):
            value, force, strain = differentiate(member, batch, self.target)
            energy.add(_array(value), member.weight)
            forces.add(_array(force), member.weight)
            virial.add(_array(strain), member.weight)
        return energy, forces, virial


def energy_head(ensemble: Ensemble, target: str | None) -> str:
    """Choose the head that is differentiated.

    Raises:
        ConfigError: the ensemble has none, or several and none was named.
    """
    heads: dict[str, Any] = {k: h for k, h in ensemble.manifest.heads.items() if h.energy}
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


def differentiate(member: Member, batch: Batch, target: str) -> tuple[Tensor, Tensor, Tensor]:
    """Differentiate one member's graph-level head by positions and by a strain.

    Returns:
        The head [1, 1], minus its gradient [N, 3] per angstrom, and its symmetric
        derivative by a strain of positions and cell [3, 3], in the head's unit.
    """
    positions = batch.positions.detach().requires_grad_(True)
    strain = torch.zeros(3, 3, dtype=positions.dtype, device=positions.device)
    strain.requires_grad_(True)
    bend = torch.eye(3, dtype=strain.dtype, device=strain.device) + 0.5 * (strain + strain.T)
    strained = replace(batch, positions=positions @ bend, edge_shift=batch.edge_shift @ bend)
    value = member.model(strained, only=(target,))[target]
    gradient, virial = torch.autograd.grad(value.sum(), (positions, strain), allow_unused=True)
    force = torch.zeros_like(positions) if gradient is None else -gradient
    return value.detach(), force, torch.zeros_like(strain) if virial is None else virial


def _array(values: Tensor) -> np.ndarray:
    array: np.ndarray = values.detach().double().cpu().numpy()
    return array
