"""What a person asks to be predicted, and what it takes to do so, on this process or on ranks."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from hydragnn_hpo.ensemble.inference.ensemble import Ensemble
from hydragnn_hpo.ensemble.output import Layout, format_of
from hydragnn_hpo.ensemble.sharing.devices import load_on
from hydragnn_hpo.ensemble.streaming.asked import asked_for
from hydragnn_hpo.ensemble.streaming.files import Files
from hydragnn_hpo.ensemble.streaming.lots import identity, lots_of, refuse_to_replace
from hydragnn_hpo.ensemble.streaming.parts import Parts
from hydragnn_hpo.ensemble.streaming.reading import Reading
from hydragnn_hpo.ensemble.streaming.work import Work, plan_of

Begin = Callable[[Parts, dict[str, str]], None]
_LISTS = ("files", "levels", "keep", "trust")


@dataclass(frozen=True)
class Order:
    """One prediction."""

    files: tuple[str, ...]
    """Input, as lots are cut from it."""
    archive: str
    """The ensemble's file."""
    out: str = ""
    """The output; empty where it is no file."""
    levels: tuple[str, ...] = ("90",)
    """Intervals in percent."""
    members: bool = False
    """Whether each member has columns of its own."""
    keep: tuple[str, ...] = ()
    """Keys of the input to take along."""
    structure_column: str | None = None
    """For tables: the column with a structure."""
    form: str = "extxyz"
    """Format of standard input."""
    trust: tuple[str, ...] = ()
    """Packages whose convs may run."""
    compiled: bool = False
    """Whether members run as machine code."""

    def as_json(self) -> dict[str, Any]:
        """Give what ``from_json`` takes; paths lead to the same files from any folder."""
        files = [str(Path(file).absolute()) for file in self.files]
        absolute = {key: str(Path(getattr(self, key)).absolute()) for key in ("archive", "out")}
        return {**asdict(self), "files": files, **absolute}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read what ``as_json`` gave."""
        return cls(**{**content, **{key: tuple(content[key]) for key in _LISTS}})

    @property
    def parts(self) -> Parts:
        """Give the folder of what is done."""
        return Parts(Path(self.out))

    @contextlib.contextmanager
    def prepared(self, device: str = "cpu") -> Iterator[tuple[Ensemble, Layout, Reading]]:
        """Give what predicts, which columns an output has, and what reads the structures.

        Args:
            device: where to predict, see ``sharing.devices.devices_of``.

        Raises:
            HydraError: something that is asked for is not there.
        """
        model = load_on(device, Path(self.archive), trust=self.trust, compiled=self.compiled)
        layout = asked_for(
            model, Path(self.archive), levels=self.levels, members=self.members, keep=self.keep
        )
        lots = lots_of([Path(file) for file in self.files])
        files = Files(self.structure_column, self.form)
        with Reading(lots, model.rules, files, layout.keep) as reading:
            yield model, layout, reading

    @contextlib.contextmanager
    def opened(self, device: str = "cpu", *, begin: Begin = Parts.begin) -> Iterator[Work]:
        """Begin to write the output, or go on with it.

        Args:
            device: where to predict, see ``sharing.devices.devices_of``.
            begin: called when all is well, with the folder of parts and what decides the output.

        Raises:
            HydraError: something that is asked for is not there, or was begun otherwise.
        """
        with self.prepared(device) as (model, layout, reading):
            out, parts = Path(self.out), self.parts
            form = format_of(out, layout)
            refuse_to_replace(reading.lots, out)
            if (known := identity(reading.lots)) is None:
                parts.remove()  # what came through standard input does not come again
            others = [str(self.structure_column), self.form, *["compiled"] * self.compiled]
            suffix = out.suffix
            begin(parts, plan_of(known or "standard input", layout, suffix=suffix, others=others))
            yield Work(model, reading, form, layout, parts)
