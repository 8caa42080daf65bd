"""Inspect data files without a card, for ``init``: readers, a sample, geometry, targets, split.

Shapes: N nodes, E edges.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
from ase import Atoms
from ase.data import chemical_symbols, covalent_radii

from hydragnn_hpo.config import AttributeConfig, CardConfig, mean_degree
from hydragnn_hpo.data import (
    Graph,
    Place,
    Rules,
    columns_of,
    edge_vectors,
    graph_of,
    make_identifier,
    size_stats,
)
from hydragnn_hpo.data.build_plan import exceeds_limit
from hydragnn_hpo.data.name_patterns import NAMES
from hydragnn_hpo.data.properties import (
    PropertyTable,
    collect_properties,
    explain_rejection,
    join_numbered,
)
from hydragnn_hpo.data.readers import READERS, reader_of, reads_whole
from hydragnn_hpo.data.readers.arrays import find_systems
from hydragnn_hpo.data.readers.ase_file import N2P2, choose_length
from hydragnn_hpo.data.readers.folder import TABLE as ID_PROP
from hydragnn_hpo.data.readers.folder import find_table, read_id_rows
from hydragnn_hpo.data.readers.formats import recognize
from hydragnn_hpo.data.readers.lengths import NOBLE_GASES, LengthUnit
from hydragnn_hpo.data.readers.source import (
    OPENERS,
    Reader,
    Source,
    is_number,
    read_text,
)
from hydragnn_hpo.data.readers.structure_columns import (
    KNOWN,
    are_other_molecules,
    find_structure_column,
    is_json,
    read_column,
)
from hydragnn_hpo.data.readers.table import read_head
from hydragnn_hpo.data.splits import (
    MIN_STRUCTURES,
    SplitProposal,
    is_split,
    marks_test,
    propose_split,
)
from hydragnn_hpo.data.structure import read_published
from hydragnn_hpo.data.trajectories import FoundRuns, find_runs
from hydragnn_hpo.errors import ConfigError, DataError, UnsupportedStructure, unknown
from hydragnn_hpo.file_records import SizeStats
from hydragnn_hpo.files import refuse_repeated
from hydragnn_hpo.inspection.column_kinds import (
    ColumnKind,
    PropertyColumn,
    StructureFacts,
    find_kind,
)
from hydragnn_hpo.inspection.force_check import LabelledStructure, Verdict, compare_forces
from hydragnn_hpo.inspection.run_folders import find_repeats
from hydragnn_hpo.inspection.target_proposals import TargetProposals
from hydragnn_hpo.inspection.targets import propose_classes, propose_targets, refuse_classes
from hydragnn_hpo.inspection.unit_evidence import UNKNOWN
from hydragnn_hpo.sanitize import escape_line
from hydragnn_hpo.units import inside

MAX_CUTOFF = 6.0
"""Largest cutoff at which neighbours are counted, angstrom."""

SHORT_CUTOFF = 1.5
"""Cutoff in angstrom for structures that are checked rather than counted in neighbours."""

MAX_GRAPHS, MAX_ATOMS = 100, 20_000
"""Largest numbers of structures that are converted to graphs, and of all their atoms."""

USUAL_CUTOFF, MANY_NEIGHBORS, FEW_NEIGHBORS = 5.0, 60.0, 10.0
"""The proposed cutoff in angstrom, and the mean numbers of neighbours above and below which another
one is proposed."""

LONG_BOND, SHORT_BOND = 1.5, 0.5
"""Distances over the sum of covalent radii: the median of nearest atoms above which lengths may be
in bohr, and that of any two atoms below which something is wrong with them. In bohr, 1 is 1.9."""

_DIRECTIONS = {0: "in none", 1: "in 1 direction", 2: "in 2 directions", 3: "in 3 directions"}


@dataclass(frozen=True)
class GeometrySummary:
    """Geometry of a sample of structures."""

    sizes: tuple[int, int, int]
    """Smallest, median and largest number of atoms."""
    elements: tuple[str, ...]
    """Chemical symbols, by atomic number."""
    periodic: str
    """Periodic directions in words."""
    cutoff: float
    """Proposed cutoff in angstrom."""
    degree: float
    """Mean number of neighbours within that cutoff."""
    cutoff_why: str
    """Reason for that cutoff, for a comment in the card."""
    compositions: int
    """Number of distinct compositions."""
    twins: int
    """Number of structures that are exact copies of an earlier one."""
    tried: int
    """Number of structures whose conversion was tried."""
    warnings: tuple[str, ...]
    """Warnings for the user."""
    stats: SizeStats
    """Sizes and neighbours of the converted structures, with edges up to ``MAX_CUTOFF``."""


def summarize_geometry(structures: Sequence[Atoms], names: Sequence[str]) -> GeometrySummary:
    """Summarize the geometry of structures.

    Args:
        structures: sample of a data set, at least one.
        names: name of each.

    Raises:
        DataError: no structure can be converted to a graph; the first error is raised.
    """
    graphs, tried = _make_graphs(structures, names)
    stats = size_stats(columns_of(graphs, {}), MAX_CUTOFF)
    cutoff, why = _propose_cutoff(stats)
    sizes = sorted(len(atoms) for atoms in structures)
    kinds = sorted({int(z) for atoms in structures for z in np.unique(atoms.numbers)})
    return GeometrySummary(
        sizes=(sizes[0], sizes[len(sizes) // 2], sizes[-1]),
        elements=tuple(chemical_symbols[z] for z in kinds if 0 < z < len(chemical_symbols)),
        periodic=describe_periodicity([int(atoms.pbc.sum()) for atoms in structures]),
        cutoff=cutoff,
        degree=mean_degree(stats, cutoff),
        cutoff_why=why,
        compositions=len({_composition(atoms) for atoms in structures}),
        twins=_count_copies(structures),
        tried=tried,
        warnings=tuple(_warn_of_lengths(graphs)),
        stats=stats,
    )


def _composition(atoms: Atoms) -> str:
    """Return the reduced formula, the group of ``split.group = "composition"``."""
    formula, _ = atoms.symbols.formula.reduce()
    return str(formula.format("hill"))


def describe_periodicity(directions: Sequence[int]) -> str:
    """Describe the number of periodic directions of structures.

    >>> describe_periodicity([3, 3, 0])
    'periodic in 3 directions (2), in none (1)'
    """
    counts = {n: directions.count(n) for n in (3, 2, 1, 0) if n in directions}
    if len(counts) == 1:
        return f"periodic {_DIRECTIONS[directions[0]]}" if directions[0] else "not periodic"
    return "periodic " + ", ".join(f"{_DIRECTIONS[n]} ({count})" for n, count in counts.items())


def _make_graphs(structures: Sequence[Atoms], names: Sequence[str]) -> tuple[list[Graph], int]:
    """Convert some of the structures, at equal intervals, to graphs.

    Returns:
        The graphs, and the number of structures whose conversion was tried.
    """
    step = max(1, math.ceil(len(structures) / MAX_GRAPHS))
    graphs: list[Graph] = []
    bad: list[str] = []
    total_atoms = 0
    for number in range(0, len(structures), step):
        atoms = structures[number]
        if graphs and total_atoms + len(atoms) > MAX_ATOMS:
            break
        place = Place(Path(names[number].rpartition("@")[0]), number, names[number])
        try:
            graphs.append(graph_of(atoms, place, Rules(MAX_CUTOFF, 0.1, {})))
        except DataError as error:
            bad.append(str(error))
            continue
        total_atoms += len(atoms)
    if not graphs:
        raise DataError(bad[0])
    return graphs, len(graphs) + len(bad)


def _propose_cutoff(stats: SizeStats) -> tuple[float, str]:
    """Propose a cutoff in angstrom by the number of neighbours, and the reason for it."""
    usual = mean_degree(stats, USUAL_CUTOFF)
    if usual > MANY_NEIGHBORS:
        shorter = (r for r in (4.5, 4.0, 3.5) if mean_degree(stats, r) <= MANY_NEIGHBORS)
        why = f"{usual:.0f} neighbours within {USUAL_CUTOFF:g} would make every trial slow"
        return next(shorter, 3.0), why
    if usual < FEW_NEIGHBORS:
        return MAX_CUTOFF, f"only {usual:.0f} neighbours within {USUAL_CUTOFF:g}"
    return USUAL_CUTOFF, "usual"


def _count_copies(structures: Sequence[Atoms]) -> int:
    """Count structures with the same atoms at the same places as an earlier one."""
    seen: set[tuple[bytes, bytes, bytes]] = set()
    for atoms in structures:
        positions = np.round(atoms.positions, 6) + 0.0
        seen.add((atoms.numbers.tobytes(), positions.tobytes(), atoms.cell.array.tobytes()))
    return len(structures) - len(seen)


def _warn_of_lengths(graphs: Sequence[Graph]) -> Iterator[str]:
    """Yield warnings if atoms are so far from or near each other that lengths may be wrong."""
    nearest: list[float] = []
    near: list[str] = []
    for graph in graphs:
        vectors = edge_vectors(graph.positions, graph.cell, graph.edges, graph.edge_shift)
        lengths = np.linalg.norm(vectors, axis=1)
        ratios = lengths / covalent_radii[graph.numbers[graph.edges]].sum(axis=1)
        closest = np.full(len(graph.numbers), np.inf)
        np.minimum.at(closest, graph.edges[:, 1], ratios)
        bonded = np.isfinite(closest) & ~np.isin(graph.numbers, NOBLE_GASES)
        nearest += closest[bonded].tolist()
        if len(ratios) and ratios.min() < SHORT_BOND:
            edge = int(ratios.argmin())
            pair = " and ".join(chemical_symbols[z] for z in graph.numbers[graph.edges[edge]])
            near.append(f"{pair} of {escape_line(graph.id)[:60]} {lengths[edge]:.2f} angstrom")
    middle = float(np.median(nearest)) if len(nearest) >= 5 else 0.0
    if middle > LONG_BOND:
        yield (
            f"atoms are {middle:.2g} times as far from their nearest neighbour as their covalent "
            "radii add up to: are positions in bohr? They are taken as angstrom; --unit "
            "positions=bohr converts them."
        )
    if near:
        yield (
            f"in {len(near)} of {len(graphs)} structures atoms are nearer than half of what their "
            f"covalent radii add up to, as {near[0]}: are lengths in angstrom, and are these "
            "structures meant?"
        )


MAX_FILES = 1000
"""Largest number of files of a folder that a card names one by one."""

MAX_COUNTED_FILES = 50
"""Largest number of files whose structures are counted; more files are only sampled."""

MAX_COUNTED_BYTES = 256_000_000
"""Largest decompressed size of an extxyz file whose structures are counted, which takes seconds."""

COMPRESSION = 4
"""Typical ratio of the size of a text to that of its compressed file."""

FAST_READERS = ("arrays", "extxyz", "database", "pyg", "hydragnn_bp", "sdf")
"""Readers that take about a millisecond per structure; others take ten to a hundred."""

SAMPLE_SIZES = {True: 2000, False: 300}
"""Largest number of structures that are read, by whether all readers are fast."""

SAMPLE_RUNS = 20
"""Largest number of runs of structures that are read from the second part of a file."""

MAX_KINDS = 3
"""Number of reasons to set structures aside that are shown."""

FEW_STRUCTURES = 100
"""Number of structures below which the user is warned of large errors."""

_NOT_STRUCTURES = (".md", ".py", ".pdf", ".png", ".jpg", ".toml", ".yaml", ".yml", ".log", ".sh")

_IDS = ("material_id", "mp_id", "structure_id", "uid", "identifier", "jid", "id", "name")


class SkippedFile(NamedTuple):
    """A file that is left out."""

    path: Path
    reason: str
    """The error of reading it, or whose frames it repeats."""
    repeats: bool = False
    """Whether it holds the frames of another file of the same run."""


@dataclass(frozen=True)
class DataFile:
    """One file, and how to read it."""

    path: Path
    """The file or folder."""
    reader: Reader
    """Its reader."""
    kind: str
    """Name of the reader in ``READERS``."""
    card_reader: str | None = None
    """Name of the reader, if the card must name it."""
    column: str | None = None
    """Name of the column with the structures, if the card must name it."""
    keys: tuple[str, ...] = ()
    """Names assigned to columns without a name, in the order of the columns."""
    in_folder: bool = False
    """Whether the user has named the folder of the file rather than the file itself."""
    length: str | None = None
    """Unit of its lengths, if the card must say it."""

    @property
    def source(self) -> Source:
        """The input of the reader."""
        return Source(self.path, self.keys, self.column, length=self.length)


@dataclass(frozen=True)
class StructureSample:
    """Some structures of a data set."""

    structures: tuple[Atoms, ...]
    """The structures, at least one."""
    names: tuple[str, ...]
    """Name of each."""
    total: int
    """Number of structures of all files, counted or estimated."""
    exact: bool
    """Whether ``total`` is counted."""
    bad: int
    """Number of structures that could not be read, in addition to those of the sample."""
    first_error: str | None
    """Error of the first structure that could not be read; None if there is none."""
    torn: str | None
    """Error that ended the reading of a file early; None if there is none."""
    skipped: tuple[SkippedFile, ...]
    """Files of folders that are left out."""


@dataclass(frozen=True)
class WeightColumn:
    """A property of structures that weighs their loss in training."""

    key: str
    """Name in the files."""
    texts: tuple[str, ...]
    """Its texts, most frequent first, where it has no numbers, as ``config_type``."""
    complete: bool
    """Whether all structures have it."""


@dataclass(frozen=True)
class Inspection:
    """Result of the inspection of a data set without a card."""

    name: str
    """Name for the data set, an identifier."""
    files: tuple[DataFile, ...]
    """Files to name in the card."""
    sample: StructureSample
    """Structures that were read."""
    geometry: GeometrySummary
    """Geometry of these structures."""
    split: SplitProposal
    """Proposal for ``[split]``."""
    proposals: TargetProposals
    """Proposals for targets and attributes."""
    weight: WeightColumn | None
    """Property that weighs structures in training; None if the user names none."""
    id_key: str | None
    """Property that names structures; None if there is none."""
    set_aside: tuple[str, ...]
    """Errors of those structures of the sample that a build would set aside, in addition to those
    that could not be read."""
    findings: tuple[str, ...]
    """What was found in the data, in sentences."""
    warnings: tuple[str, ...]
    """Warnings for the user."""

    @property
    def max_bad(self) -> float | None:
        """Share of bad structures that the card must allow; None for the default."""
        return _allow_bad(self.sample, self.set_aside)


def _allow_bad(sample: StructureSample, set_aside: Sequence[str]) -> float | None:
    aside = sample.bad + len(set_aside)
    read = sample.bad + len(sample.structures)
    if not exceeds_limit(aside, read, CardConfig.model_fields["max_bad"].default):
        return None
    # Where only a part was read, the rest may be worse.
    return min(0.99, math.ceil(100.0 * aside / read * (1.0 if sample.exact else 1.5)) / 100.0)


def inspect_files(
    paths: Sequence[Path],
    units: Mapping[str, str] | None = None,
    wanted: Sequence[str] = (),
    weight: str = "",
) -> Inspection:
    """Inspect files or folders that form one data set.

    Args:
        paths: the files and folders.
        units: units from the user by property in the file; ``positions`` has that of lengths.
        wanted: names of targets from the user.
        weight: name of the property that weighs structures in training; empty for none.

    Raises:
        ConfigError: a unit or its property is unknown, or a path is not a data file.
        DataError: the files cannot be read, or have no property that can be a target.
    """
    units = dict(units or {})
    length = units.pop("positions", None)
    files, skipped, sample = _read_files(paths, length)
    _check_size(paths[0], sample, ())
    table = collect_properties(sample.structures)
    runs = find_runs(sample.structures, table)
    names = {key for key in (runs.keys if runs else ()) if key not in wanted}
    table = replace(table, numbers={k: v for k, v in table.numbers.items() if k not in names})
    _check_unnamed_columns(files, table)
    weighing = _find_weight(table, weight, len(sample.structures)) if weight else None
    table = join_numbered(_drop_property(table, weight))
    proposals = _propose(files, sample, table, units, wanted)
    geometry = summarize_geometry(sample.structures, sample.names)
    split = _propose_split(sample, geometry, table, runs)
    id_key = _find_id_key(table, len(sample.structures))
    proposals = _add_texts(proposals, table, sample, {id_key, split.published}, names)
    _check_targets(paths[0], files, proposals, table)
    set_aside = _find_unusable(paths[0], sample, proposals, geometry)
    forces = list(_compare_forces(sample, table, proposals))
    warnings = [*_warn_of_files(skipped), *_warn_of_input(files, sample, length)]
    warnings += [*geometry.warnings, *_warn_of_structures(sample, geometry, set_aside)]
    warnings += [*proposals.warnings, *_warn_of_forces(forces)]
    warnings += [split.warning] if split.warning else []
    agree = tuple(words for verdict, words in forces if verdict == "agree")
    name = make_identifier(_find_stem(paths), "data")
    known = (files, sample, geometry, split, proposals, weighing, id_key, set_aside, agree)
    return Inspection(name, *known, tuple(warnings))


MOST_TEXTS = 50
"""Largest number of texts that ``init`` lists to be given a weight each."""


def _find_weight(table: PropertyTable, key: str, structures: int) -> WeightColumn:
    """Return the property by which structures are weighted: one number of 0 or more, or a text.

    Args:
        table: all properties.
        key: its name in the files.
        structures: number of structures that were read.

    Raises:
        ConfigError: there is no such property, or its values are no weights.
    """
    prop = table.numbers.get(key)
    texts = table.texts.get(key)
    place = f"--weight-column {escape_line(key)}"
    if prop is None and texts is None:
        known = ", ".join(escape_line(name) for name in sorted({*table.numbers, *table.texts})[:12])
        raise ConfigError(f"{place}: the files have no such property. Known: {known or 'none'}.")
    if prop is None and texts is not None:
        if len(texts) > MOST_TEXTS:
            raise ConfigError(
                f"{place}: has {len(texts)} different texts; name a number of 0 or more for each "
                f"structure, or one of at most {MOST_TEXTS} texts."
            )
        words = tuple(text for text, _ in texts.most_common())
        return WeightColumn(key, words, texts.total() == structures)
    assert prop is not None
    known_values = prop.values[prop.known]
    if texts is not None or not prop.scalar or not known_values.any() or known_values.min() < 0:
        raise ConfigError(
            f"{place}: is not one number of 0 or more for each structure: correct it, or name "
            "another."
        )
    return WeightColumn(key, (), prop.present == structures and bool(prop.known.all()))


def _drop_property(table: PropertyTable, key: str) -> PropertyTable:
    """Return the properties without one."""
    return replace(
        table,
        numbers={name: prop for name, prop in table.numbers.items() if name != key},
        texts={name: texts for name, texts in table.texts.items() if name != key},
    )


def _warn_of_forces(forces: Sequence[tuple[Verdict, str]]) -> Iterator[str]:
    for verdict, words in forces:
        if verdict == "contradict":
            yield f"{words}; 'run' refuses them until that is mended."


def _read_files(
    paths: Sequence[Path], length: str | None
) -> tuple[tuple[DataFile, ...], tuple[SkippedFile, ...], StructureSample]:
    """Return the files with structures, those that are left out, and a sample of structures."""
    files, skipped = detect_files(paths, length)
    sample = read_sample(files)
    skipped += sample.skipped
    left_out = {one.path for one in skipped}
    return tuple(file for file in files if file.path not in left_out), skipped, sample


def _check_size(path: Path, sample: StructureSample, set_aside: Sequence[str]) -> None:
    """Refuse a data set with too few structures for five splits, or half of them unusable."""
    usable = len(sample.structures) - len(set_aside)
    aside = sample.bad + len(set_aside)
    first = next((e for e in (sample.first_error, *set_aside, sample.torn) if e), None)
    if sample.exact and usable < MIN_STRUCTURES:
        raise DataError(
            f"{path}: holds {usable} usable structures; five splits need at least "
            f"{MIN_STRUCTURES}, a model worth believing {FEW_STRUCTURES} or more: "
            + (f"mend those that are set aside, as: {first}" if first else "add structures.")
        )
    if aside > usable:
        raise DataError(f"{path}: {aside} of {aside + usable} structures are unusable, as: {first}")


def _add_texts(
    proposals: TargetProposals,
    table: PropertyTable,
    sample: StructureSample,
    roles: Set[str | None],
    runs: Set[str],
) -> TargetProposals:
    """Add texts of few values as classes, and leave out the others and the names of runs.

    Args:
        proposals: the proposals from numbers.
        table: all properties.
        sample: the structures.
        roles: names of texts that are no targets.
        runs: names of properties that name the run of a structure.
    """
    used = {*roles, *runs, *dict(proposals.left_out), *table.numbers}
    texts = {key: counts for key, counts in table.texts.items() if key not in used}
    names = {target.name for target in proposals.targets}
    splits = {key for key, counts in texts.items() if is_split(key, counts)}
    kinds = _find_kinds(texts.keys() - splits, sample, table, proposals)
    offered = {key: kind.why for key, kind in kinds.items() if kind.offered}
    rejected = {key: kind.why for key, kind in kinds.items() if not kind.offered}
    properties = {k: v for k, v in texts.items() if k not in splits and k not in rejected}
    classes = propose_classes(properties, len(sample.structures), names, offered)
    known = {target.key for target in classes}
    split = "holds a split, but is not the one that is used"
    refused = {key: refuse_classes(counts) for key, counts in properties.items()} | rejected
    others = [(key, refused.get(key) or split) for key in texts if key not in known]
    others += [(key, "names the run that a structure is a frame of") for key in sorted(runs)]
    return replace(
        proposals,
        targets=(*proposals.targets, *classes),
        left_out=(*proposals.left_out, *others),
    )


def _find_kinds(
    keys: Set[str], sample: StructureSample, table: PropertyTable, proposals: TargetProposals
) -> dict[str, ColumnKind]:
    """Find the texts that are not predicted, whatever their values.

    Args:
        keys: names of texts.
        sample: the structures.
        table: all properties.
        proposals: the proposals from numbers.

    Returns:
        The kind of each text that is not predicted.
    """
    forces = any(t.head and t.config.derived_from is not None for t in proposals.targets)
    facts = StructureFacts(sample.structures, (*table.numbers, *table.texts), forces)
    kinds = {}
    for key in keys:
        values = enumerate(atoms.info.get(key) for atoms in sample.structures)
        texts = {place: text for place, text in values if isinstance(text, str)}
        column = PropertyColumn(key, texts=texts)
        kinds[key] = find_kind(column, facts)
    return {key: kind for key, kind in kinds.items() if kind is not None}


def _find_unusable(
    path: Path, sample: StructureSample, proposals: TargetProposals, geometry: GeometrySummary
) -> tuple[str, ...]:
    """Return the errors of structures that a build by the proposed card would set aside.

    Args:
        path: first of the user's paths, for errors.
        sample: the structures.
        proposals: the targets and attributes that the structures must have.
        geometry: their geometry.

    Raises:
        DataError: too few structures are left.
    """
    # Units do not matter here, and one may be known to the user alone.
    targets = {t.name: t.with_fields(unit="1").config for t in proposals.targets}
    attributes = {key: AttributeConfig(key=key) for key in proposals.attributes}
    errors = []
    for number, (name, atoms) in enumerate(zip(sample.names, sample.structures, strict=True)):
        place = Place(Path(name.rpartition("@")[0]), number, name)
        lengths = np.abs(np.vstack([atoms.positions, atoms.cell.array]))
        # Edges beyond the shortest distances are not needed; a wide structure needs a wide cutoff.
        cutoff = min(geometry.cutoff, max(SHORT_CUTOFF, float(lengths.max(initial=0.0)) / 50.0))
        try:
            graph_of(atoms, place, Rules(cutoff, 0.1, targets, attributes=attributes))
        except DataError as error:
            errors.append(str(error))
    _check_size(path, sample, errors)
    return tuple(errors)


def _propose(
    files: Sequence[DataFile],
    sample: StructureSample,
    table: PropertyTable,
    units: Mapping[str, str],
    wanted: Sequence[str],
) -> TargetProposals:
    for name in units:
        if name not in table.numbers:
            raise ConfigError(f"--unit: {unknown('property', name, table.numbers)}")
    unnamed = {key for file in files for key in file.keys}
    kinds = {file.kind for file in files}
    return propose_targets(
        sample.structures,
        table,
        reader=kinds.pop() if len(kinds) == 1 else "several",
        units=units,
        stated=_collect_stated_units(files, table),
        forced=[n for n, prop in table.numbers.items() if {n, *prop.columns} & unnamed],
        wanted=wanted,
    )


def _collect_stated_units(files: Sequence[DataFile], table: PropertyTable) -> dict[str, str]:
    """Collect the units that files state: in metadata, or as a text ``NAME_unit`` of structures.

    Returns:
        Unit, in any spelling, by name of a property; several are joined by ``or``.
    """
    stated = [pair for file in files for pair in file.reader.read_units(file.source)]
    for key, texts in table.texts.items():
        if named := NAMES["unit_column"].search(key):
            stated += [(named[1], unit) for unit in texts]
    units: dict[str, list[str]] = {}
    for name, unit in dict.fromkeys(stated):
        units.setdefault(name, []).append(unit)
    return {name: " or ".join(several) for name, several in units.items()}


def _compare_forces(
    sample: StructureSample, table: PropertyTable, proposals: TargetProposals
) -> Iterator[tuple[Verdict, str]]:
    """Compare each set of forces that is derived from an energy with that.

    Yields:
        The verdict on it, and what was found.
    """
    by_name = {target.name: target for target in proposals.targets}
    for target in proposals.targets:
        if target.config.level != "node" or target.config.derived_from is None:
            continue
        energy = by_name[target.config.derived_from]
        if UNKNOWN in (energy.unit.name, target.unit.name):
            continue
        factor = inside(target.unit.name)[0]
        factor_of_energy = inside(energy.unit.name)[0]
        energies = table.numbers[energy.key].by_structure()
        structures = []
        for place, forces in table.numbers[target.key].by_structure().items():
            known = place in energies and np.isfinite(energies[place]).all()
            if known and np.isfinite(forces).all():
                atoms = sample.structures[place]
                value = float(energies[place][0, 0]) * factor_of_energy
                value *= len(atoms) if energy.config.energy == "per_atom" else 1
                cell = np.asarray(atoms.cell.array)
                labels = (atoms.numbers, atoms.positions, cell, atoms.pbc, value, forces * factor)
                structures.append(LabelledStructure(*labels))
        evidence = compare_forces(structures)
        if evidence is not None:
            yield evidence.verdict, f"{target.name} {evidence.sentence}"


def _propose_split(
    sample: StructureSample,
    geometry: GeometrySummary,
    table: PropertyTable,
    runs: FoundRuns | None,
) -> SplitProposal:
    read = len(sample.structures)
    marks = (name for name, prop in table.numbers.items() if prop.binary and marks_test(name))
    labels = dict(table.texts)
    for name in marks:  # as a build reads them
        values = (read_published(atoms, name) for atoms in sample.structures)
        labels[name] = Counter(value for value in values if value is not None)
    return propose_split(
        sample.total, read, compositions=geometry.compositions, labels=labels, runs=runs
    )


def detect_files(
    paths: Sequence[Path], length: str | None = None
) -> tuple[tuple[DataFile, ...], tuple[SkippedFile, ...]]:
    """Detect how to read files and folders; a folder of plain files is replaced by its files.

    Args:
        paths: the files and folders.
        length: unit of lengths from the user.

    Returns:
        The files to read, and those that are left out.

    Raises:
        ConfigError: a path is a graph store, a folder of too many files, or given twice.
        DataError: a path is missing, empty, or a table without structures.
    """
    files: list[DataFile] = []
    skipped: list[SkippedFile] = []
    listed = [(path, path != given) for given in paths for path in _list_files(given)]
    repeats = find_repeats(path for path, _ in listed)
    for path, in_folder in listed:
        if path in repeats:
            reason = f"{path}: holds the same frames as {repeats[path].name}."
            skipped.append(SkippedFile(path, reason, repeats=True))
            continue
        try:
            files.append(replace(_detect_file(path, length), in_folder=in_folder))
        except DataError as error:
            if not in_folder:
                raise
            skipped.append(SkippedFile(path, str(error)))
    if not files:
        raise DataError(skipped[0].reason)
    refuse_repeated([file.path for file in files])
    return tuple(files), tuple(skipped)


def _list_files(path: Path) -> list[Path]:
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; correct the path.")
    if not (path.is_file() or path.is_dir()):
        raise DataError(f"{path}: is neither a file nor a folder; save the data as a file first.")
    if path.is_file() or reads_whole(path) or find_table(path):
        return [path]
    if (path / "index.json").is_file():
        raise ConfigError(f"{path}: is a store of ours already; name the card it was built from.")
    systems = find_systems(path)
    entries = (entry for entry in path.rglob("*") if _may_hold_structures(entry, path))
    files = sorted(entry for entry in entries if not set(systems) & set(entry.parents))
    files = [*systems, *files]
    if not files:
        raise DataError(f"{path}: holds no structure files; correct the path.")
    if len(files) > MAX_FILES:
        raise ConfigError(
            f"{path}: holds {len(files):,} files, a card names at most {MAX_FILES:,}: put their "
            f"names and properties into {path / ID_PROP}, or join them into one file (those of "
            "xyz and of QM9 by 'cat')."
        )
    return files


def _may_hold_structures(entry: Path, root: Path) -> bool:
    if not entry.is_file() or entry.suffix.lower() in _NOT_STRUCTURES:
        return False
    hidden = any(part.startswith(".") for part in entry.relative_to(root).parts)
    return not hidden and "readme" not in entry.name.lower()


def _detect_file(path: Path, length: str | None) -> DataFile:
    file = _detect_reader(path)
    if length is None:
        form = recognize(path)
        is_n2p2 = form is not None and form.name == N2P2
        return replace(file, length=choose_length(path)) if is_n2p2 else file
    if length not in get_args(LengthUnit):
        raise ConfigError(f"--unit positions: {unknown('unit', length, get_args(LengthUnit))}")
    if "length" not in file.reader.takes:
        raise ConfigError(
            f"{path}: lengths of this format are in angstrom: drop --unit positions, or convert "
            "the file to extended XYZ."
        )
    return replace(file, length=length)


def _detect_reader(path: Path) -> DataFile:
    reader = reader_of(Source(path), None)
    kind = next(key for key, value in READERS.items() if value is reader)
    if kind == "folder":
        return DataFile(path, reader, kind, keys=_name_table_columns(find_table(path)))
    if kind == "cfg":
        bulk = min(path.glob("*.bulk"), default=None)
        count = 0 if bulk is None else len(read_text(bulk).split("\n")[0].split())
        return DataFile(path, reader, kind, keys=_number_properties(count))
    if kind in ("table", "smiles") and not {".smi", ".smiles"} & set(path.suffixes):
        return _detect_table(path)
    return DataFile(path, reader, kind)


def _name_table_columns(table: Path | None) -> tuple[str, ...]:
    """Return names for the columns of a table without header; empty if it has one."""
    if table is None:
        return ()
    first = read_id_rows(table)[0]
    if len(first) < 2:
        raise DataError(f"{table}: its lines hold a name and no property; add a column.")
    return _number_properties(len(first) - 1) if any(map(is_number, first[1:])) else ()


def _number_properties(count: int) -> tuple[str, ...]:
    return ("property",) if count == 1 else tuple(f"property_{n}" for n in range(1, count + 1))


def _detect_table(path: Path) -> DataFile:
    """Detect the reader of a table and its column with the structures."""
    header, rows = read_head(Source(path))
    if is_json(path) and sum(name in header for name in KNOWN) == 1:
        return DataFile(path, READERS["table"], "table")
    reader, column = find_structure_column(path, header, rows)
    if reader == "table":
        return DataFile(path, READERS["table"], "table", column=column)
    _check_one_molecule(path, column, header, rows)
    named = None if column.lower() == "smiles" else column
    return DataFile(path, READERS["smiles"], "smiles", "smiles", named)


def _check_one_molecule(
    path: Path, column: str, header: Sequence[str], rows: Sequence[Any]
) -> None:
    """Refuse a table with a second column of other molecules, such as solvents.

    Args:
        path: the table.
        column: name of the column that is read.
        header: name of each column.
        rows: its first rows.

    Raises:
        DataError: there is such a column.
    """
    first = read_column(rows, list(header).index(column))
    for number, name in enumerate(header):
        cells = read_column(rows, number)
        if name != column and len(set(map(str, cells))) > 1 and are_other_molecules(first, cells):
            raise DataError(
                f"{path}: '{escape_line(name)[:60]}' holds a second molecule beside "
                f"'{escape_line(column)[:60]}', and a row is one structure here: write both in one "
                f"SMILES as 'A.B', or remove the column if it does not decide the targets."
            )


def _count_structures(file: DataFile) -> int | None:
    """Count the structures of a file; None where that would take too long."""
    if file.kind == "extxyz" and _text_size(file.path) > MAX_COUNTED_BYTES:
        return None
    return file.reader.count(file.source)


def _text_size(path: Path) -> int:
    """Return the size of a text file in bytes, estimated where it is compressed."""
    packed = path.suffix.lower() in OPENERS
    return path.stat().st_size * (COMPRESSION if packed else 1)


def _estimate_count(file: DataFile) -> int:
    """Estimate the number of structures of an extxyz file by the sizes of its first 200 frames.

    Returns:
        0 for other formats.
    """
    if file.kind != "extxyz":
        return 0
    read = seen = 0
    opener = OPENERS.get(file.path.suffix.lower(), open)
    with opener(file.path, "rt", encoding="utf-8") as lines:
        for head in lines:
            if seen == 200 or not head.strip().isdigit():
                break
            read += len(head) + sum(map(len, itertools.islice(lines, int(head) + 1)))
            seen += 1
    return round(_text_size(file.path) * seen / read) if read else 0


def read_sample(files: Sequence[DataFile]) -> StructureSample:
    """Read the first structures of all files, and runs at equal intervals from the rest.

    Raises:
        DataError: no structure can be read; the first error is raised.
    """
    limit = min(SAMPLE_SIZES[file.kind in FAST_READERS] for file in files)
    limit_of_file = max(2, limit // len(files))
    good: list[tuple[str, Atoms]] = []
    bad: list[DataError] = []
    skipped: list[SkippedFile] = []
    torn, total, exact = None, 0, True
    for number, file in enumerate(files):
        before = len(good) + len(bad)
        count = None
        if before >= limit:
            total, exact = total * len(files) // number, False
            break
        try:
            count = _count_structures(file) if len(files) <= MAX_COUNTED_FILES else None
            for name, atoms in _read_some(file, count, limit_of_file):
                if isinstance(atoms, DataError):
                    bad.append(atoms)
                else:
                    good.append((name, atoms))
        except DataError as error:
            if file.in_folder and len(good) + len(bad) == before:
                skipped.append(SkippedFile(file.path, str(error)))
                continue
            torn = torn or str(error)
        read = len(good) + len(bad) - before
        ended = count is not None or read < limit_of_file
        exact &= ended
        total += count or (read if ended else max(read, _estimate_count(file)))
    _check_supported(files[0].path, bad, len(good) + len(bad))
    if not good:
        empty = skipped[0].reason if skipped else f"{files[0].path}: holds no structure."
        raise DataError(torn or (str(bad[0]) if bad else empty))
    names, structures = zip(*good, strict=True)
    first = str(bad[0]) if bad else None
    return StructureSample(structures, names, total, exact, len(bad), first, torn, tuple(skipped))


def _check_supported(path: Path, bad: Sequence[DataError], count: int) -> None:
    """Refuse a data set with more structures of a kind that no model represents than a build does.

    Args:
        path: first of the files, for errors.
        bad: errors of all that could not be read.
        count: number of structures that were read or tried.
    """
    unsupported = [error for error in bad if isinstance(error, UnsupportedStructure)]
    if exceeds_limit(len(unsupported), count, CardConfig.model_fields["max_bad"].default):
        raise DataError(
            f"{path}: {len(unsupported)} of {count} structures cannot be represented, as: "
            f"{str(unsupported[0]).removeprefix(f'{path}: ')}"
        )


def _read_some(
    file: DataFile, count: int | None, limit: int
) -> Iterator[tuple[str, Atoms | DataError]]:
    if count is None or count <= limit:
        yield from itertools.islice(file.reader.read(file.source, 0, None), limit)
        return
    for start, stop in choose_runs(count, limit):
        yield from file.reader.read(file.source, start, stop)


def choose_runs(count: int, limit: int) -> Iterator[tuple[int, int]]:
    """Yield first structure, and one after the last, of each run to read, ascending.

    Half of the structures are the first ones of the file, the others are runs spread over the rest.

    >>> list(choose_runs(1000, 40))[:3]
    [(0, 20), (68, 69), (117, 118)]

    Args:
        count: number of structures of the file, more than ``limit``.
        limit: number of structures to read.
    """
    first = max(1, limit // 2)
    yield 0, first
    number = min(SAMPLE_RUNS, limit - first)
    if number < 1:
        return
    length = (limit - first) // number
    for place in range(number):
        end = first + (count - first) * (place + 1) // number
        yield end - length, end


def _check_unnamed_columns(files: Sequence[DataFile], table: PropertyTable) -> None:
    """Refuse a column that has no name and holds no number.

    Without names, the card's targets are the columns in order, so no column can be left out.
    """
    for file in files:
        for key in file.keys:
            if key not in table.numbers or not table.numbers[key].known.any():
                raise DataError(
                    f"{file.path}: '{key}', a column without a name, holds no number: remove it, "
                    "or write a header that names the columns."
                )


def _find_stem(paths: Sequence[Path]) -> str:
    """Return the name of a single path without suffixes, else that of the first path's folder."""
    path = paths[0].resolve()
    return path.name.split(".")[0] if len(paths) == 1 else path.parent.name


def _check_targets(
    path: Path, files: Sequence[DataFile], proposals: TargetProposals, table: PropertyTable
) -> None:
    """Refuse a data set without a property that could be learned."""
    keys = [target.key for target in proposals.targets]
    if not all(key in table.numbers and table.numbers[key].constant for key in keys):
        return
    constant = [(key, explain_rejection(table.numbers[key])) for key in keys]
    rejected = [*constant, *proposals.left_out]
    listed = "; ".join(f"{escape_line(name)[:60]} {why}" for name, why in rejected[:6])
    there = f"what there is: {listed}" if listed else "there are atoms and cells only"
    if len(files) > 1 and not listed:
        there += ", put an id_prop.csv beside the files (file name, value)"
    raise DataError(
        f"{path}: has no property that could be learned ({there}); add energies, gaps or what else "
        "is to be predicted, or name one of these by --target."
    )


def _find_id_key(table: PropertyTable, structures: int) -> str | None:
    """Return the property that names structures, unique to each of them; None without one."""
    for key in _IDS:
        texts = table.texts.get(key)
        if texts is not None and len(texts) == structures and "" not in texts:
            return key
    return None


def _warn_of_files(skipped: Sequence[SkippedFile]) -> Iterator[str]:
    for repeats, why in (
        (False, "they hold no structure that could be read"),
        (True, "their frames are in another file of the run"),
    ):
        files = [one for one in skipped if one.repeats is repeats]
        if files:
            alone = len(files) == 1
            count = "1 file is left out" if alone else f"{len(files)} files are left out, {why}"
            yield f"{count}, as {files[0].path.name}: {files[0].reason}"


def _warn_of_input(
    files: Sequence[DataFile], sample: StructureSample, length: str | None
) -> Iterator[str]:
    """Yield what was decided where the input does not say it: units, and places of parts.

    Args:
        files: the files.
        sample: their structures.
        length: unit of lengths from the user.
    """
    decided = [file for file in files if file.length is not None and length is None]
    if decided:
        units = {"bohr": "bohr and Hartree", "angstrom": "angstrom and eV"}[str(decided[0].length)]
        more = f" (and {len(decided) - 1} more)" if len(decided) > 1 else ""
        yield (
            f"{escape_line(decided[0].path.name)}{more} does not say its units: {units} by the "
            "distances of its atoms; if that is wrong, correct length under [[files]] of the card."
        )
    parts = [atoms.info.get("smiles_parts", 1) for atoms in sample.structures]
    several = [number for number, count in enumerate(parts) if count > 1]
    if several:
        example = escape_line(str(sample.structures[several[0]].info.get("smiles")))[:40]
        yield (
            f"{len(several)} of {len(parts)} SMILES have several parts, as {example}: these stand "
            "side by side, so that properties of their contact cannot be learned; one_part = true "
            "under [[files]] of the card, and a max_bad above their share, set such rows aside."
        )


def _warn_of_structures(
    sample: StructureSample, geometry: GeometrySummary, set_aside: Sequence[str]
) -> Iterator[str]:
    count = len(sample.structures)
    if sample.torn is not None:
        yield f"the file cannot be read to its end: {sample.torn}"
    if aside := sample.bad + len(set_aside):
        unread = [f"{sample.bad} cannot be read, as: {sample.first_error}"] if sample.bad else []
        reasons = " ".join((*unread, *_group_errors(set_aside)))
        usual = CardConfig.model_fields["max_bad"].default
        allowed = _allow_bad(sample, set_aside)
        cure = (
            "The store leaves them out and lists them."
            if allowed is None
            else f"A build refuses more than {100.0 * usual:g} %, so the card allows "
            f"max_bad = {allowed:g}: mend them, and remove that line."
        )
        yield f"{aside} of {count + sample.bad} structures are set aside: {reasons} {cure}"
    if geometry.twins > 0.02 * count:
        yield (
            f"{geometry.twins} of {count} structures stand there twice; 'dataset check' finds all."
        )
    usable = sample.total - sample.bad - len(set_aside)
    if sample.exact and usable < FEW_STRUCTURES:
        yield f"{usable} structures are few: errors will be large and uncertain."


def _group_errors(errors: Sequence[str]) -> Iterator[str]:
    """Yield how many errors there are of each of the most frequent kinds, with an example."""
    kinds: dict[str, list[str]] = {}
    for error in errors:
        problem = error.partition(") ")[2] or error
        kinds.setdefault(re.sub(r"\[.*?\]|[\d.e+-]+", "", problem), []).append(error)
    frequent = sorted(kinds.values(), key=len, reverse=True)
    for alike in frequent[:MAX_KINDS]:
        yield f"{len(alike)} as: {alike[0]}"
    if rest := sum(map(len, frequent[MAX_KINDS:])):
        yield f"{rest} for other reasons."
