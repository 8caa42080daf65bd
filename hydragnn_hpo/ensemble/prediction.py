"""Predictions: by head, by structure, as tables.

The columns of a head ``t`` are ``t``, ``t_std``, ``t_std_epistemic``, ``t_lo90`` and ``t_hi90``
(or of other levels); a vector has ``t_x``, ``t_y``, ``t_z`` and so on, a spectrum ``t_0``, ``t_1``
and so on, but one ``t_std``. Classes ``a`` and ``b`` have probabilities ``t_a`` and ``t_b``;
``t_hi90_a`` is 1 if the 90 % set holds ``a``, ``t_lo90_a`` if it holds no other. The value of one
member is ``t_TRIAL``. Names carry no unit, so that a script works for any ensemble.

Shapes: G graphs, N nodes, R rows of a head (G or N), w components.
"""

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, overload

import numpy as np
from ase.data import chemical_symbols
from ase.symbols import Symbols

from hydragnn_hpo.data_frames import make_frame
from hydragnn_hpo.errors import ConfigError, unknown

if TYPE_CHECKING:
    import pandas

    from hydragnn_hpo.ensemble.artefact import HeadEntry

AXES = {
    "scalar": ("",),
    "vector": ("_x", "_y", "_z"),
    "tensor": tuple(f"_{a}{b}" for a in "xyz" for b in "xyz"),
}
"""Suffixes of the columns of components, by the shape of a head; see ``name_components``."""

TABLES = {"structures": "graph", "atoms": "node"}
"""Level of the heads in each table of ``Prediction.to_frame``."""

STRUCTURE_INDEX = "structure_index"
"""Title of the column that joins atoms to the table of structures: its row there, from 0."""

SHOWN = 5
"""Structures that a short display of a prediction shows."""


@dataclass(frozen=True)
class HeadPrediction:
    """Prediction of an ensemble for one head, in the head's unit."""

    mean: np.ndarray
    """Mean of the members, [R, w]."""
    std: np.ndarray
    """Calibrated standard deviation, [R, 1]; one for all components of a vector or spectrum."""
    std_epistemic: np.ndarray
    """Spread of the members without calibration, [R, 1]."""
    lo90: np.ndarray
    """Lower end of the 90 % interval, [R, w]."""
    hi90: np.ndarray
    """Upper end of the 90 % interval, [R, w]."""
    bounds: Mapping[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    """Lower and upper ends of the intervals at other levels, by percent, [R, w] each; empty unless
    levels were requested."""
    members: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Predictions of each member with weight in the head, by trial, [R, w]; empty unless
    requested."""

    def rows(self, some: slice) -> "HeadPrediction":
        """Return the prediction of some rows."""
        return replace(
            self,
            mean=self.mean[some],
            std=self.std[some],
            std_epistemic=self.std_epistemic[some],
            lo90=self.lo90[some],
            hi90=self.hi90[some],
            bounds={level: (low[some], high[some]) for level, (low, high) in self.bounds.items()},
            members={name: values[some] for name, values in self.members.items()},
        )

    def columns(self, levels: Sequence[int] = (90,), trials: Sequence[str] = ()) -> np.ndarray:
        """Return all columns of the head, in the order of ``head_titles``, [R, columns].

        Args:
            levels: levels of the intervals, in percent, ascending.
            trials: members that have columns of their own.
        """
        bounds = {**self.bounds, 90: (self.lo90, self.hi90)}
        ends = [array for level in levels for array in bounds[level]]
        own = [self.members[trial] for trial in trials]
        return np.hstack([self.mean, self.std, self.std_epistemic, *ends, *own])


def name_components(head: "HeadEntry") -> tuple[str, ...]:
    """Return the suffixes of the columns of a head's components.

    Returns:
        One for each component; those of a spectrum are numbers, counted from 0, those of classes
        their names.
    """
    if head.classes is not None:
        return tuple(f"_{name}" for name in head.classes)
    if head.shape == "spectrum":
        return tuple(f"_{place}" for place in range(head.width))
    return AXES[head.shape]


def name_most_probable(head: "HeadPrediction", classes: Sequence[str]) -> list[str]:
    """Return the name of the most probable class of each row; empty where it is missing."""
    known = np.isfinite(head.mean).all(axis=1)
    places = np.where(np.isnan(head.mean), 0.0, head.mean).argmax(axis=1)
    return [classes[place] if k else "" for place, k in zip(places, known.tolist(), strict=True)]


def head_titles(
    name: str, head: "HeadEntry", levels: Sequence[int] = (90,), trials: Sequence[str] = ()
) -> list[str]:
    """Return the titles of all columns of a head.

    Args:
        name: name of the head.
        head: its shape.
        levels: levels of the intervals, in percent, ascending.
        trials: members that have columns of their own.
    """
    axes = name_components(head)
    bounds = [f"_{end}{level}" for level in levels for end in ("lo", "hi")]
    ends = [bound + axis for bound in bounds for axis in axes]
    own = [f"_{trial}{axis}" for trial in trials for axis in axes]
    return [name + tail for tail in (*axes, "_std", "_std_epistemic", *ends, *own)]


@dataclass(frozen=True, eq=False)
class PredictedStructures:
    """Which structures were predicted, and what the heads are."""

    given_names: Sequence[str]
    """Name of each structure, [G]; empty where it has none."""
    numbers: np.ndarray
    """Atomic numbers, [N]."""
    node_offset: np.ndarray
    """First atom of each structure, and the end, [G + 1]."""
    heads: Mapping[str, "HeadEntry"]
    """Level, shape and unit of each head."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Name of each structure.

        Returns:
            Names, [G]: those given, else number and formula.
        """
        named = list(self.given_names)
        for row, name in enumerate(named):
            if not name:  # a formula takes longer than a graph, so it is made only where it is read
                atoms = self.numbers[self.node_offset[row] : self.node_offset[row + 1]]
                named[row] = f"{row + 1} {Symbols(atoms).formula.format('hill')}"
        return tuple(named)


@dataclass(frozen=True, eq=False)
class StructurePrediction:
    """Prediction of an ensemble for one structure."""

    name: str
    """Name of the structure."""
    symbols: tuple[str, ...]
    """Chemical symbols of its atoms."""
    heads: Mapping[str, HeadPrediction]
    """Prediction by head: one row, or one for each atom."""
    trust: str
    """``ok``, or the reasons to distrust the prediction."""
    units: Mapping[str, str]
    """Unit by head."""
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of the classes, by head; only of heads that predict classes."""

    def __getitem__(self, head: str) -> HeadPrediction:
        return self.heads[_known_head(head, self.heads)]

    def __repr__(self) -> str:
        parts = [
            _describe_class(name, of, self.classes[name])
            if name in self.classes
            else _describe_head(name, of, self.units[name])
            for name, of in self.heads.items()
        ]
        return f"{self.name}: {'; '.join(parts)}; trust: {self.trust}"


@dataclass(frozen=True, eq=False)
class Prediction:
    """Prediction of an ensemble for some structures, in their order.

    ``len``, iteration and a position give structures; the name of a head gives that head.
    """

    heads: dict[str, HeadPrediction]
    """Predictions by head; rows of a node-level head are ordered structure by structure."""
    trust: tuple[str, ...]
    """``ok``, or the reasons to distrust a structure's predictions, [G]."""
    structures: PredictedStructures | None = None
    """Names and atoms of the structures; None where only the numbers are needed."""

    def __len__(self) -> int:
        return len(self.trust)

    def __iter__(self) -> Iterator[StructurePrediction]:
        return (self[row] for row in range(len(self)))

    @overload
    def __getitem__(self, key: int) -> StructurePrediction: ...
    @overload
    def __getitem__(self, key: str) -> HeadPrediction: ...
    def __getitem__(self, key: int | str) -> StructurePrediction | HeadPrediction:
        if isinstance(key, str):
            return self.heads[_known_head(key, self.heads)]
        row = range(len(self))[key]
        of = self._structures()
        atoms = slice(int(of.node_offset[row]), int(of.node_offset[row + 1]))
        places = {"graph": slice(row, row + 1), "node": atoms}
        rows = {name: places[head.level] for name, head in of.heads.items()}
        return StructurePrediction(
            name=of.names[row],
            symbols=tuple(chemical_symbols[z] for z in of.numbers[atoms].tolist()),
            heads={name: each.rows(rows[name]) for name, each in self.heads.items()},
            trust=self.trust[row],
            units={name: head.shown_unit for name, head in of.heads.items()},
            classes={name: head.classes for name, head in of.heads.items() if head.classes},
        )

    def to_frame(self, table: str = "structures") -> "pandas.DataFrame":
        """Return the predictions as a pandas DataFrame.

        ``frame.attrs["units"]`` has the unit of each column.

        Args:
            table: ``structures``: a row for each structure, with the heads of whole structures and
                with ``trust``. ``atoms``: a row for each atom, with the heads of atoms and
                ``structure_index``, the row of its structure in the first table.

        Raises:
            ConfigError: there is no such table, or pandas is not installed.
        """
        if table not in TABLES:
            raise ConfigError(unknown("table", table, TABLES))
        of = self._structures()
        level = TABLES[table]
        columns: dict[str, Sequence[str] | Sequence[int] | np.ndarray] = {"structure": [*of.names]}
        if level == "node":
            counts = np.diff(of.node_offset)
            columns["structure"] = np.repeat(np.array([*of.names], dtype=object), counts)
            columns[STRUCTURE_INDEX] = np.repeat(np.arange(len(counts)), counts)
            columns["atom"] = np.arange(len(of.numbers)) - np.repeat(of.node_offset[:-1], counts)
            columns["element"] = [chemical_symbols[z] for z in of.numbers.tolist()]
        units: dict[str, str] = {}
        for name, head in of.heads.items():
            if head.level == level:
                if head.classes is not None:
                    columns[name] = name_most_probable(self.heads[name], head.classes)
                titles, values = self._table_of(name, head)
                columns |= dict(zip(titles, values.T, strict=True))
                units |= dict.fromkeys(titles, head.shown_unit)
        if level == "graph":
            columns["trust"] = self.trust
        return make_frame(columns, units)

    def _table_of(self, name: str, head: "HeadEntry") -> tuple[list[str], np.ndarray]:
        """Return the titles of a head's columns, and their values, [R, columns]."""
        values = self.heads[name]
        levels = sorted({90, *values.bounds})
        trials = sorted(values.members)
        return head_titles(name, head, levels, trials), values.columns(levels, trials)

    def _structures(self) -> PredictedStructures:
        assert self.structures is not None, "made without its structures"
        return self.structures

    def __repr__(self) -> str:
        count = f"{len(self):,} structure{'' if len(self) == 1 else 's'}"
        if self.structures is None:
            return f"Prediction of {count}: {', '.join(self.heads)}"
        more = [f"... and {len(self) - SHOWN:,} more"] if len(self) > SHOWN else []
        lines = [repr(self[row]) for row in range(min(SHOWN, len(self)))]
        return "\n".join([f"Prediction of {count}", *lines, *more])

    def _repr_html_(self) -> str:
        """Show the table of structures, and that of atoms where heads of atoms stand alone."""
        if self.structures is None:
            return f"<pre>{html.escape(repr(self))}</pre>"
        levels = {head.level for head in self.structures.heads.values()}
        frame = self.to_frame("structures" if "graph" in levels else "atoms")
        shown: str = frame.to_html(max_rows=4 * SHOWN, border=0, float_format="{:.5g}".format)
        units = {name: head.shown_unit for name, head in self.structures.heads.items()}
        named = ", ".join(f"{name} [{unit}]" for name, unit in units.items())
        atoms = '; heads of atoms: <code>.to_frame("atoms")</code>' if len(levels) > 1 else ""
        return f"<p>{len(self):,} structures: {html.escape(named)}{atoms}</p>{shown}"


def _known_head(name: str, heads: Mapping[str, HeadPrediction]) -> str:
    """Return the name of a head.

    Raises:
        ConfigError: there is no such head.
    """
    if name not in heads:
        raise ConfigError(unknown("head", name, heads))
    return name


def _describe_class(name: str, head: HeadPrediction, classes: Sequence[str]) -> str:
    """Return the most probable class with its probability, or the number of rows, in words."""
    if len(head.mean) != 1:
        return f"{name} of {len(head.mean)} rows"
    [most] = name_most_probable(head, classes)
    return f"{name} {most} ({head.mean.max():.2f})" if most else f"{name} missing"


def _describe_head(name: str, head: HeadPrediction, unit: str) -> str:
    """Return a value with its standard deviation, or the number of rows, in words."""
    shown = "" if unit == "1" else f" {unit}"
    if np.isnan(head.mean).all():
        return f"{name} missing"
    if head.mean.shape == (1, 1):
        mean = float(head.mean[0, 0])
        std = float(head.std[0, 0])
        return f"{name} {mean:.5g} +- {std:.2g}{shown}"
    return f"{name} {head.mean.shape[0]} x {head.mean.shape[1]}{shown}"
