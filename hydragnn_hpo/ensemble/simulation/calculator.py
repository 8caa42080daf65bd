"""The ensemble as an ASE calculator: energy, forces and stress, with their spread.

Shapes: N nodes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes

from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.ensemble.inference import Ensemble, flags, head_prediction
from hydragnn_hpo.ensemble.simulation.skin import SkinList
from hydragnn_hpo.ensemble.simulation.slopes import Slopes, energy_head, forces_head, slopes_of

VOIGT = (0, 4, 8, 5, 2, 1)
"""Places of xx, yy, zz, yz, xz, xy in a matrix row by row."""


class EnsembleCalculator(Calculator):
    """Energy in eV of the ensemble's mean, forces and stress by differentiating it.

    ``results`` holds ``energy``, ``forces`` and (for fully periodic structures) ``stress``, and

    ========================== ====== =========================================================
    ``energy_std``                    calibrated standard deviation, eV
    ``energy_std_epistemic``          spread of the members as it is, eV
    ``forces_std``             [N, 3] eV/angstrom; calibrated where the ensemble has a head of
                                      forces, else the spread of the members
    ``forces_std_norm``        [N]    the same per atom: root of the sum of squares
    ``forces_std_epistemic``   [N, 3] spread of the members as it is
    ``forces_max_std``                largest deviation of the members' forces on an atom as it
                                      is: the signal of DP-GEN
    ``stress_std``             [6]    spread of the members as it is, eV/angstrom^3
    ``trust``                         ``ok``, or why this structure should not be believed
    ========================== ====== =========================================================

    The calibration of forces was fitted with the weights of their own head; here members have
    those of the energy, whose mean the forces conserve.
    """

    implemented_properties = [
        *("energy", "free_energy", "forces", "stress"),
        *("energy_std", "energy_std_epistemic", "stress_std", "trust"),
        *("forces_std", "forces_std_norm", "forces_std_epistemic", "forces_max_std"),
    ]

    def __init__(
        self,
        ensemble: Ensemble | Path | str,
        *,
        target: str | None = None,
        device: str = "cpu",
        precision: str = "fp64",
        skin: float = 0.5,
    ) -> None:
        """Take an ensemble, or read one.

        Args:
            ensemble: the ensemble, or the path of its file.
            target: the energy head; needed only where there are several.
            device: where to predict, if the ensemble is read here.
            precision: ``fp32`` or ``fp64``, if the ensemble is read here; fp64 keeps long
                runs of molecular dynamics and relaxations smooth.
            skin: in angstrom; neighbours are searched anew when an atom has moved half of it.

        Raises:
            ConfigError: the ensemble has no such energy head.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        if not isinstance(ensemble, Ensemble):
            ensemble = Ensemble.load(ensemble, device=device, precision=precision)
        self.ensemble = ensemble
        self.target = energy_head(ensemble, target)
        self.neighbors = SkinList(ensemble.rules, skin)

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
        columns = self.neighbors.columns(self.atoms)
        only = np.zeros(1, dtype=np.int64)
        found = slopes_of(self.ensemble, self.target, columns, only)
        self.results = {
            **self._energies(columns, only, found),
            **self._forces(found),
            **(_stress(found) if self.atoms.pbc.all() else {}),
        }

    def _energies(self, columns: Columns, only: np.ndarray, found: Slopes) -> dict[str, Any]:
        """Give energies in eV: a standard deviation scales as its energy does, not its square."""
        head = self.ensemble.manifest.heads[self.target]
        said = head_prediction(head, [found.energy])
        factor = float(columns.num_nodes()[0]) if head.energy == "per_atom" else 1.0
        (trust,) = flags(self.ensemble.manifest, columns, only, {self.target: said})
        return {
            "energy": factor * float(said.mean[0, 0]),
            "free_energy": factor * float(said.mean[0, 0]),
            "energy_std": factor * float(said.std[0, 0]),
            "energy_std_epistemic": factor * float(said.std_epistemic[0, 0]),
            "trust": trust,
        }

    def _forces(self, found: Slopes) -> dict[str, Any]:
        spread = np.sqrt(found.forces.variance)
        known = forces_head(self.ensemble, self.target)
        sigma = spread
        if known is not None:
            sigma = self.ensemble.manifest.heads[known].calibration.sigma(spread)
        return {
            "forces": found.forces.mean,
            "forces_std": sigma,
            "forces_std_norm": np.linalg.norm(sigma, axis=1),
            "forces_std_epistemic": spread,
            "forces_max_std": float(found.deviation.max()),
        }


def _stress(found: Slopes) -> dict[str, Any]:
    return {
        "stress": found.stress.mean[0, VOIGT],
        "stress_std": np.sqrt(found.stress.variance)[0, VOIGT],
    }
