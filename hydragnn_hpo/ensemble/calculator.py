"""The ASE calculator: energy, forces and stress with their spread, and a rule to stop a simulation.

Shapes: N nodes, E edges.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

import ase.io
import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes, all_properties
from numpy.typing import NDArray

from hydragnn_hpo.data import Columns, Graph, Place, Rules, columns_of, edge_vectors
from hydragnn_hpo.data.structure import attributes_of, compute_laplacian_encodings
from hydragnn_hpo.ensemble.energy_derivatives import (
    EnergyDerivatives,
    compute_derivatives,
    find_energy_head,
    find_forces_head,
    frozen_error,
    reads_features,
)
from hydragnn_hpo.ensemble.head_predictions import describe_heads
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.structure_batches import graph_of_atoms
from hydragnn_hpo.errors import ConfigError, DataError, JobError

VOIGT = (0, 4, 8, 5, 2, 1)
"""Positions of xx, yy, zz, yz, xz, xy in a row-major 3 x 3 matrix."""
SPREADS = {
    "forces": ("forces_max_std", "eV/angstrom", "the members' forces on an atom lie"),
    "energy": ("energy_std_epistemic", "eV", "the members' energies lie"),
}
"""Spreads that ``StopAtSpread`` can watch: key of the results, unit, and phrase for the error."""


RESPONSES = {
    ("graph", "vector", "e*angstrom"): ("dipole", (3,)),
    ("graph", "tensor", "1"): ("dielectric_tensor", (3, 3)),
    ("graph", "tensor", "angstrom^3"): ("polarizability", (3, 3)),
    ("node", "tensor", "e"): ("born_effective_charges", (-1, 3, 3)),
}
"""Results of heads for vectors and tensors, by level, shape and unit, and the shape of the array.
ASE has no property for a polarizability, which is in ``results`` alone."""


class CalculatorResults(TypedDict, total=False):
    """The ``results`` of an ``EnsembleCalculator``; "raw" is the members' spread, not calibrated.

    Forces are the gradient of the energy, so members have the weights of the energy head here,
    whereas the calibration of forces was fitted with the weights of the forces head.
    """

    energy: float
    """Mean of the members, eV."""
    free_energy: float
    """Same as ``energy``; some ASE optimizers read it."""
    energy_std: float
    """Calibrated standard deviation, eV."""
    energy_std_epistemic: float
    """Raw spread, eV."""
    trust: str
    """``ok``, or the reason not to trust the predictions for this structure."""
    forces: np.ndarray
    """Minus the gradient of the mean energy, eV/angstrom, [N, 3]."""
    forces_std: np.ndarray
    """Standard deviation by component, eV/angstrom, [N, 3]; calibrated if the ensemble has a forces
    head, else raw."""
    forces_std_norm: np.ndarray
    """Root of the sum of squares of ``forces_std`` over components, eV/angstrom, [N]."""
    forces_std_epistemic: np.ndarray
    """Raw spread by component, eV/angstrom, [N, 3]."""
    forces_max_std: float
    """Largest raw spread of the force on an atom, eV/angstrom, as in DP-GEN."""
    stress: np.ndarray
    """Voigt order, eV/angstrom^3, [6]; only for fully periodic structures."""
    stress_std: np.ndarray
    """Raw spread, eV/angstrom^3, [6]; only for fully periodic structures."""
    dipole: np.ndarray
    """Dipole, e*angstrom, [3]; this and the following only if requested, and the ensemble has a
    single head of its kind."""
    dielectric_tensor: np.ndarray
    """Dielectric tensor, [3, 3]."""
    polarizability: np.ndarray
    """Polarizability, angstrom^3, [3, 3]."""
    born_effective_charges: np.ndarray
    """Born charges, e, [N, 3, 3]."""


class ResultsOfAse(dict[str, Any]):
    """Results whose items are what ASE has a name for; ``[]``, ``get`` and ``in`` know all of them.

    ASE's own functions go through the items and stop at a name that they do not know.
    """

    def __init__(self, results: CalculatorResults) -> None:
        """Keep the results, and list those whose names ASE knows."""
        super().__init__({key: each for key, each in results.items() if key in all_properties})
        self.more = {key: each for key, each in results.items() if key not in all_properties}
        """Results without a name in ASE."""

    def __missing__(self, key: str) -> object:
        """Return a result without a name in ASE."""
        return self.more[key]

    def __contains__(self, key: object) -> bool:
        """Check whether there is a result of this name."""
        return super().__contains__(key) or key in self.more

    def get(self, key: str, default: object = None) -> object:
        """Return a result, or the default where there is none of this name."""
        try:
            return self[key]
        except KeyError:
            return default


@dataclass(eq=False)
class VerletList:
    """Builder of graphs for a moving structure, with few neighbour searches.

    A search finds all edges up to cutoff + skin. Two atoms approach each other by at most twice
    the largest displacement, so while no atom has moved by half the skin, the list holds every
    edge within the cutoff. Filtered at the cutoff, it equals the result of a new search, in order.

    Source: Verlet (1967), Phys. Rev. 159, 98.
    """

    rules: Rules
    """Rules by which structures become graphs."""
    skin: float = 0.5
    """Length added to the cutoff of the list, in angstrom; with 0, every move needs a search."""
    searches: int = 0
    """Number of neighbour searches so far."""
    _wide: Graph | None = None
    """The graph of the last search, with edges up to cutoff + skin."""

    def columns(self, atoms: Atoms) -> Columns:
        """Return the structure's graph as columns of one row.

        Raises:
            DataError: the structure cannot become a graph.
        """
        graph = self._graph_from_list(atoms)
        if graph is None:
            wide = replace(self.rules, cutoff=self.rules.cutoff + self.skin)
            self._wide = graph_of_atoms(atoms.copy(), 0, wide)  # type: ignore[no-untyped-call]
            self.searches += 1
            graph = self._graph_from_list(atoms)
            assert graph is not None, "a new list does not hold"
        return columns_of(
            [graph], {}, {"cutoff": self.rules.cutoff}, attributes=self.rules.attributes
        )

    def _graph_from_list(self, atoms: Atoms) -> Graph | None:
        """Filter the kept list at the cutoff; return None if the list is no longer valid."""
        wide = self._wide
        if wide is None or not is_list_valid(wide, atoms, self.skin):
            return None
        positions = np.array(atoms.positions, dtype=np.float64)
        vectors = edge_vectors(positions, wide.cell, wide.edges, wide.edge_shift)
        lengths = np.linalg.norm(vectors, axis=1)
        if lengths.min(initial=np.inf) < self.rules.min_distance:
            return None  # a new search raises the error that names the atoms
        near = lengths <= self.rules.cutoff
        edges: NDArray[np.int32] = wide.edges[near]
        codes = self.rules.laplacian
        return replace(
            wide,
            positions=positions,
            edges=edges,
            edge_shift=wide.edge_shift[near],
            attributes=attributes_of(atoms, Place(Path("atoms"), 0, "0"), self.rules),
            laplacian=compute_laplacian_encodings(len(positions), edges, codes) if codes else None,
        )


def is_list_valid(kept: Graph, atoms: Atoms, skin: float) -> bool:
    """Check whether a list still holds every edge within the cutoff.

    Args:
        kept: the graph of the last search.
        atoms: the current structure.
        skin: length added to the cutoff of the list, in angstrom.
    """
    if len(kept.numbers) != len(atoms) or not np.array_equal(kept.numbers, atoms.numbers):
        return False
    if not (np.array_equal(kept.cell, atoms.cell.array) and np.array_equal(kept.pbc, atoms.pbc)):
        return False
    moved = np.linalg.norm(atoms.positions - kept.positions, axis=1).max(initial=0.0)
    return bool(moved < 0.5 * skin) or bool(moved == 0.0)


class EnsembleCalculator(Calculator):
    """ASE calculator: mean energy of the ensemble, with forces and stress as its derivatives.

    ``results`` are ``CalculatorResults``: the properties and their uncertainties.
    """

    implemented_properties = [
        *("energy", "free_energy", "forces", "stress"),
        *("energy_std", "energy_std_epistemic", "stress_std", "trust"),
        *("forces_std", "forces_std_norm", "forces_std_epistemic", "forces_max_std"),
        *(name for name, _ in RESPONSES.values()),
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
        """Use an ensemble, or read one from its file.

        Args:
            ensemble: the ensemble, or the path of its file.
            target: the energy head; needed only if there are several.
            device: device of the models, if the ensemble is read here.
            precision: ``fp32`` or ``fp64``, if the ensemble is read here; fp64 keeps long
                runs of molecular dynamics and relaxations smooth.
            skin: length in angstrom; a new neighbour search follows when an atom moves by half.

        Raises:
            ConfigError: the ensemble has no such energy head.
            DataError: the file cannot be used.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        if not isinstance(ensemble, Ensemble):
            ensemble = Ensemble.load(ensemble, device=device, precision=precision)
        self.ensemble = ensemble
        self.target = find_energy_head(ensemble, target)
        self.neighbors = VerletList(ensemble.rules, skin)

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:
        """Return what changed since the last calculation; ASE itself does not look at ``info``.

        Args:
            atoms: the structure.
            tol: largest difference of two numbers that are the same.

        Returns:
            Names of ASE's properties that changed; ``info`` if an attribute that members read did.
        """
        changes: list[str] = super().check_state(atoms, tol)  # type: ignore[no-untyped-call]
        if self.atoms is not None and self._attributes(self.atoms) != self._attributes(atoms):
            changes.append("info")
        return changes

    def _attributes(self, atoms: Atoms) -> dict[str, float] | None:
        """Read the attributes of a structure; None if they are invalid, as ``calculate`` says."""
        try:
            return attributes_of(atoms, Place(Path("atoms"), 0, "0"), self.ensemble.rules)
        except DataError:
            return None

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = tuple(all_changes),
    ) -> None:
        """Compute ``CalculatorResults`` of a structure: energy, forces, stress, and what is named.

        Args:
            atoms: the structure; that of the last call if None.
            properties: dipole and tensors are computed if named here, others always.
            system_changes: unused; the Verlet list compares the structures.

        Raises:
            DataError: the structure cannot become a graph.
            ConfigError: forces or stress are named, and the energy has none.
        """
        super().calculate(  # type: ignore[no-untyped-call]
            atoms, list(properties), list(system_changes)
        )
        assert self.atoms is not None, "ASE calculates without atoms"
        columns = self.neighbors.columns(self.atoms)
        only = np.zeros(1, dtype=np.int64)
        if reads_features(self.ensemble, self.target):
            if any(name.startswith(("forces", "stress")) for name in properties):
                raise frozen_error(self.ensemble, self.target)
            energy = EnergyDerivatives(self.ensemble.moments(columns, only)[self.target])
            self.results = ResultsOfAse(
                {
                    **self._energies(columns, only, energy),
                    **self._responses(columns, properties),
                }
            )
            return
        derivatives = compute_derivatives(self.ensemble, self.target, columns, only)
        self.results = ResultsOfAse(
            {
                **self._energies(columns, only, derivatives),
                **self._forces(columns, derivatives),
                **(_stress(derivatives) if self.atoms.pbc.all() else {}),
                **self._responses(columns, properties),
            }
        )

    def _energies(
        self, columns: Columns, only: np.ndarray, derivatives: EnergyDerivatives
    ) -> CalculatorResults:
        """Return the results for the total energy, in eV, also if the head is per atom."""
        head = self.ensemble.manifest.heads[self.target]
        parts = {self.target: [derivatives.energy]}
        predicted = describe_heads(self.ensemble.manifest, columns, parts, unlabelled=True)
        prediction = predicted.heads[self.target]
        # a standard deviation scales with the number of atoms, as the energy does
        factor = float(columns.num_nodes()[0]) if head.energy == "per_atom" else 1.0
        return {
            "energy": factor * float(prediction.mean[0, 0]),
            "free_energy": factor * float(prediction.mean[0, 0]),
            "energy_std": factor * float(prediction.std[0, 0]),
            "energy_std_epistemic": factor * float(prediction.std_epistemic[0, 0]),
            "trust": predicted.trust[0],
        }

    def _responses(self, columns: Columns, properties: Sequence[str]) -> CalculatorResults:
        """Return dipole and tensors that are requested and that one head alone predicts."""
        heads = self.ensemble.manifest.heads
        kinds = [RESPONSES.get((h.level, h.shape, h.unit), ("", ())) for h in heads.values()]
        wanted = {
            name: (result, shape)
            for name, (result, shape) in zip(heads, kinds, strict=True)
            if result in properties and [kind[0] for kind in kinds].count(result) == 1
        }
        if not wanted:
            return {}
        predicted = self.ensemble.predict(columns).heads
        return cast(
            "CalculatorResults",
            {
                result: predicted[name].mean.reshape(shape)
                for name, (result, shape) in wanted.items()
            },
        )

    def _forces(self, columns: Columns, derivatives: EnergyDerivatives) -> CalculatorResults:
        spread = np.sqrt(derivatives.forces.variance)
        head = find_forces_head(self.ensemble, self.target)
        sigma = spread
        if head is not None:
            fit, mean = self.ensemble.manifest.heads[head].calibration, derivatives.forces.mean
            sigma = fit.sigma(spread, factor=fit.factor_of_rows(columns, mean, node=True))
        return {
            "forces": derivatives.forces.mean,
            "forces_std": sigma,
            "forces_std_norm": np.linalg.norm(sigma, axis=1),
            "forces_std_epistemic": spread,
            "forces_max_std": float(derivatives.deviation.max()),
        }


def _stress(derivatives: EnergyDerivatives) -> CalculatorResults:
    return {
        "stress": derivatives.stress.mean[0, VOIGT],
        "stress_std": np.sqrt(derivatives.stress.variance)[0, VOIGT],
    }


class SpreadExceeded(JobError):
    """The spread of an ensemble's members exceeds the limit."""


class StopAtSpread:
    """Stops ASE's dynamics or optimizer: ``dynamics.attach(StopAtSpread(atoms, ...))``.

    It checks the raw spread of the members on the current structure.
    """

    def __init__(
        self,
        atoms: Atoms,
        *,
        limit: float,
        of: Literal["forces", "energy"] = "forces",
        write: Path | str | None = None,
    ) -> None:
        """Set the atoms to check and the limit.

        Args:
            atoms: the simulated atoms, with an ``EnsembleCalculator``.
            limit: largest spread, in eV/angstrom for forces (on the worst atom) or eV for the
                energy, > 0.
            of: quantity whose spread is checked.
            write: extxyz file to which the structure that exceeds the limit is appended.

        Raises:
            ConfigError: the limit is not a positive number, or the calculator is another one.
        """
        if of not in SPREADS:
            raise ConfigError(f"the spread of '{of}' cannot be watched: take forces or energy.")
        if not (np.isfinite(limit) and limit > 0):
            raise ConfigError(f"the limit of the spread is {limit:g}: give a number above 0.")
        if not isinstance(atoms.calc, EnsembleCalculator):
            raise ConfigError("the atoms have no EnsembleCalculator, and so no spread: set it.")
        self.atoms = atoms
        self.limit = float(limit)
        self.of = of
        self.write = None if write is None else Path(write)
        self.checks = 0
        """Number of structures checked so far."""

    def __call__(self) -> None:
        """Check the spread of the current structure.

        Raises:
            SpreadExceeded: the spread is above the limit, or is nan.
        """
        self.checks += 1
        key, unit, words = SPREADS[self.of]
        spread = float(self.atoms.calc.get_property(key, self.atoms))
        if spread <= self.limit:
            return
        kept = "" if self.write is None else f"; the structure is in {self._keep(spread)}"
        raise SpreadExceeded(
            f"stopped at check {self.checks}: {words} {spread:.4g} {unit} apart, more than "
            f"{self.limit:g}{kept}: label it and train again, or raise the limit."
        )

    def _keep(self, spread: float) -> Path:
        """Append the structure without predictions, which could be mistaken for labels."""
        assert self.write is not None
        bare = self.atoms.copy()  # type: ignore[no-untyped-call]
        bare.info = {"stopped_by": SPREADS[self.of][0], "spread": spread}
        ase.io.write(self.write, bare, format="extxyz", append=self.write.exists())
        return self.write
