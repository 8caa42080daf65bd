"""Stop a simulation that leaves what the ensemble knows, and keep the structure for labelling."""

from pathlib import Path
from typing import Literal

import ase.io
import numpy as np
from ase import Atoms

from hydragnn_hpo.ensemble.simulation.calculator import EnsembleCalculator
from hydragnn_hpo.errors import ConfigError, JobError

SPREADS = {
    "forces": ("forces_max_std", "eV/angstrom", "the members' forces on an atom lie"),
    "energy": ("energy_std_epistemic", "eV", "the members' energies lie"),
}
"""By what is watched: its key among the results, its unit, its words."""


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
        """Look at the structure as it is now.

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
