"""A target for a new card, with its unit, its reasons, and whether a head predicts it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from hydragnn_hpo.config import TargetConfig
from hydragnn_hpo.inspection.unit_evidence import UnitGuess


@dataclass(frozen=True)
class TargetProposal:
    """A target for a new card, and the reasons for it."""

    name: str
    """Name in the card, an identifier."""
    config: TargetConfig
    """The target in the card. It is not validated, as its unit may be known to the user alone."""
    unit: UnitGuess
    """Its unit, and how certain it is."""
    head: bool = True
    """Whether the first campaign predicts the target."""
    heavy_tailed: bool = False
    """Whether few structures hold most of its spread, see ``has_heavy_tails``."""
    why: tuple[str, ...] = ()
    """Reasons for these values, for comments in the card."""
    spread: str = ""
    """Range of its values, in words."""

    @property
    def key(self) -> str:
        """Name in the file."""
        return self.config.key or self.name

    @property
    def lines(self) -> Mapping[str, object]:
        """Lines of the target in a card: the fields that differ from their default.

        Returns:
            Value by field, in the order of ``TargetConfig``, but ``key`` first, ``optional`` last.
        """
        unwritten = {"unit"} if self.config.shape == "class" else set[str]()
        unwritten |= {"key"} if self.key == self.name else set()
        fields = self.config.model_dump(exclude_defaults=True, exclude=unwritten)
        fields |= {"axis": self.config.axis} if self.config.axis is not None else {}
        return dict(sorted(fields.items(), key=lambda f: (f[0] != "key", f[0] == "optional")))

    @property
    def is_potential(self) -> bool:
        """Whether it is an energy or a derivative of one."""
        return self.config.energy is not None or self.config.derived_from is not None

    def with_fields(self, **fields: Any) -> Self:
        """Return the proposal with other ``fields`` of its ``config``."""
        return replace(self, config=self.config.model_copy(update=fields))

    def without_head(self, *why: str) -> Self:
        """Return the proposal without a head, for further reasons."""
        return replace(self, head=False, why=(*self.why, *why))

    def with_unit(self, unit: UnitGuess) -> Self:
        """Return the proposal with another unit."""
        changed = self.with_fields(unit=unit.name, unit_guessed=unit.sure == "guessed")
        return replace(changed, unit=unit)


@dataclass(frozen=True)
class TargetProposals:
    """Role of each property of a data set in the new card."""

    targets: tuple[TargetProposal, ...]
    """Targets, energies first."""
    attributes: tuple[str, ...]
    """Names of the properties that are attributes."""
    left_out: tuple[tuple[str, str], ...]
    """Name of each other property, and the reason why it is left out."""
    warnings: tuple[str, ...]
    """Warnings for the user."""
