"""The ASE calculator: energy, forces and stress with their spread, and when to stop a simulation.

Shapes: N nodes, E edges.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import ase.io
import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes
from numpy.typing import NDArray

from hydragnn_hpo.data import (
    Columns,
    Graph,
    Place,
    Rules,
    attributes_of,
    columns_of,
    compute_laplacian_encodings,
    edge_vectors,
)
from hydragnn_hpo.ensemble.energy_derivatives import (
    EnergyDerivatives,
    compute_derivatives,
    find_energy_head,
    find_forces_head,
)
from hydragnn_hpo.ensemble.inference import Ensemble, compute_trust, head_prediction
from hydragnn_hpo.ensemble.structure_batches import graph_of_atoms
from hydragnn_hpo.errors import ConfigError, JobError

VOIGT = (0, 4, 8, 5, 2, 1)
"""Places of xx, yy, zz, yz, xz, xy in a matrix row by row."""
SPREADS = {
    "forces": ("forces_max_std", "eV/angstrom", "the members' forces on an atom lie"),
    "energy": ("energy_std_epistemic", "eV", "the members' energies lie"),
}
"""By what is watched: its key among the results, its unit, its words."""


@dataclass(eq=False)
class VerletList:
    """Gives the graph of a structure, searching for neighbours only now and then.

    A search finds all edges up to cutoff + skin. No distance shrinks by more than twice the
    farthest that an atom has moved, so until one has moved half the skin these hold every edge
    within the cutoff, and cutting them there gives what a new search would, in the same order.
    """

    rules: Rules
    """How structures become graphs."""
    skin: float = 0.5
    """How far the kept list reaches beyond the cutoff, in angstrom; 0 searches at every move."""
    searches: int = 0
    """Searches for neighbours so far."""
    _wide: Graph | None = None

    def columns(self, atoms: Atoms) -> Columns:
        """Return the structure's graph as columns of one row.

        Raises:
            DataError: it cannot become a graph.
        """
        graph = self._moved(atoms)
        if graph is None:
            wide = replace(self.rules, cutoff=self.rules.cutoff + self.skin)
            self._wide = graph_of_atoms(atoms.copy(), 1, wide)  # type: ignore[no-untyped-call]
            self.searches += 1
            graph = self._moved(atoms)
            assert graph is not None, "a new list does not hold"
        return columns_of(
            [graph], {}, {"cutoff": self.rules.cutoff}, attributes=self.rules.attributes
        )

    def _moved(self, atoms: Atoms) -> Graph | None:
        """Return the graph from the kept list; None where that is no longer valid."""
        wide = self._wide
        if wide is None or not is_list_valid(wide, atoms, self.skin):
            return None
        positions = np.array(atoms.positions, dtype=np.float64)
        vectors = edge_vectors(positions, wide.cell, wide.edges, wide.edge_shift)
        lengths = np.linalg.norm(vectors, axis=1)
        if lengths.min(initial=np.inf) < self.rules.min_distance:
            return None
        near = lengths <= self.rules.cutoff
        edges: NDArray[np.int32] = wide.edges[near]
        codes = self.rules.laplacian
        return replace(
            wide,
            positions=positions,
            edges=edges,
            edge_shift=wide.edge_shift[near],
            attributes=attributes_of(atoms, Place(Path("atoms"), 1, "1"), self.rules),
            laplacian=compute_laplacian_encodings(len(positions), edges, codes) if codes else None,
        )


def is_list_valid(kept: Graph, atoms: Atoms, skin: float) -> bool:
    """Check whether a list with a skin still holds every edge: the same atoms, hardly moved."""
    if len(kept.numbers) != len(atoms) or not np.array_equal(kept.numbers, atoms.numbers):
        return False
    if not (np.array_equal(kept.cell, atoms.cell.array) and np.array_equal(kept.pbc, atoms.pbc)):
        return False
    moved = np.linalg.norm(atoms.positions - kept.positions, axis=1).max(initial=0.0)
    return bool(moved < 0.5 * skin) or bool(moved == 0.0)


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
            skin: in angstrom; neighbours are searched again when an atom has moved half of it.

        Raises:
            ConfigError: the ensemble has no such energy head.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        if not isinstance(ensemble, Ensemble):
            ensemble = Ensemble.load(ensemble, device=device, precision=precision)
        self.ensemble = ensemble
        self.target = find_energy_head(ensemble, target)
        self.neighbors = VerletList(ensemble.rules, skin)

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
        found = compute_derivatives(self.ensemble, self.target, columns, only)
        self.results = {
            **self._energies(columns, only, found),
            **self._forces(found),
            **(_stress(found) if self.atoms.pbc.all() else {}),
        }

    def _energies(
        self, columns: Columns, only: np.ndarray, found: EnergyDerivatives
    ) -> dict[str, Any]:
        """Return energies in eV: a standard deviation scales as its energy does, not its square."""
        head = self.ensemble.manifest.heads[self.target]
        prediction = head_prediction(head, [found.energy])
        factor = float(columns.num_nodes()[0]) if head.energy == "per_atom" else 1.0
        (trust,) = compute_trust(self.ensemble.manifest, columns, only, {self.target: prediction})
        return {
            "energy": factor * float(prediction.mean[0, 0]),
            "free_energy": factor * float(prediction.mean[0, 0]),
            "energy_std": factor * float(prediction.std[0, 0]),
            "energy_std_epistemic": factor * float(prediction.std_epistemic[0, 0]),
            "trust": trust,
        }

    def _forces(self, found: EnergyDerivatives) -> dict[str, Any]:
        spread = np.sqrt(found.forces.variance)
        known = find_forces_head(self.ensemble, self.target)
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


def _stress(found: EnergyDerivatives) -> dict[str, Any]:
    return {
        "stress": found.stress.mean[0, VOIGT],
        "stress_std": np.sqrt(found.stress.variance)[0, VOIGT],
    }


class SpreadExceeded(JobError):
    """The members of an ensemble disagree more than was allowed."""


class StopAtSpread:
    """An observer for ASE's dynamics and optimizers: ``dynamics.attach(StopAtSpread(atoms, ...))``.

    Watched is the spread of the members as it is: how far they disagree on this structure.
    """

    def __init__(
        self,
        atoms: Atoms,
        *,
        limit: float,
        of: Literal["forces", "energy"] = "forces",
        write: Path | str | None = None,
    ) -> None:
        """Watch some atoms.

        Args:
            atoms: what is simulated, with an ``EnsembleCalculator``.
            limit: largest spread, in eV/angstrom for forces (on the worst atom) or eV for the
                energy, > 0.
            of: what is watched.
            write: file that the structure at which it stops is added to, e.g. ``label.extxyz``.

        Raises:
            ConfigError: the limit is no positive number, or the atoms have another calculator.
        """
        if of not in SPREADS:
            raise ConfigError(f"the spread of '{of}' cannot be watched: take forces or energy.")
        if not (np.isfinite(limit) and limit > 0):
            raise ConfigError(f"the limit of the spread is {limit:g}: give a number above 0.")
        if not isinstance(atoms.calc, EnsembleCalculator):
            raise ConfigError("the atoms have no EnsembleCalculator, and so no spread: set it.")
        self.atoms, self.limit, self.of = atoms, float(limit), of
        self.write = None if write is None else Path(write)
        self.looks = 0

    def __call__(self) -> None:
        """Check the spread of the present structure.

        Raises:
            SpreadExceeded: the spread is above the limit, or no number.
        """
        self.looks += 1
        key, unit, words = SPREADS[self.of]
        spread = float(self.atoms.calc.get_property(key, self.atoms))
        if spread <= self.limit:
            return
        kept = "" if self.write is None else f"; the structure is in {self._keep(spread)}"
        raise SpreadExceeded(
            f"stopped at look {self.looks}: {words} {spread:.4g} {unit} apart, more than "
            f"{self.limit:g}{kept}: label it and train again, or raise the limit."
        )

    def _keep(self, spread: float) -> Path:
        """Add the bare structure to the file: what is predicted for it is no label."""
        assert self.write is not None
        bare = self.atoms.copy()  # type: ignore[no-untyped-call]
        bare.info = {"stopped_by": SPREADS[self.of][0], "spread": spread}
        ase.io.write(self.write, bare, format="extxyz", append=self.write.exists())
        return self.write
