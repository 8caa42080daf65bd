"""Evaluate an ensemble on labelled structures: labels, figures, curves, kinds, warnings.

Shapes: R rows of a head (graphs or nodes), w its components.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict

import numpy as np

from hydragnn_hpo.config import COMPUTED, CardConfig, TargetConfig, parse_config
from hydragnn_hpo.data import Columns, Compositions, Rules, open_store
from hydragnn_hpo.ensemble import (
    ChunkReader,
    Ensemble,
    HeadEntry,
    Manifest,
    StructureFiles,
    list_input_sources,
    read_structures,
)
from hydragnn_hpo.ensemble.baselines import CompositionModel
from hydragnn_hpo.ensemble.engine import EDGES_PER_BATCH, pieces
from hydragnn_hpo.ensemble.head_predictions import describe_heads
from hydragnn_hpo.ensemble.local_descriptors import describe_basis, predict_simply
from hydragnn_hpo.ensemble_build.verdict import judge
from hydragnn_hpo.ensemble_build.verdict_evidence import (
    HeadEvidence,
    RowFacts,
    collect_evidence,
    find_kinds,
)
from hydragnn_hpo.errors import ConfigError, DataError, unknown
from hydragnn_hpo.file_records import Curves, DistanceFigures, VerdictSentence
from hydragnn_hpo.metrics_log import replace_nonfinite
from hydragnn_hpo.uncertainty import LEVELS, Strata, compute_distance_figures
from hydragnn_hpo.uncertainty.calibrate import SYMBOLS, By, size_strata
from hydragnn_hpo.uncertainty.uncertainty_scores import (
    HeadOnLabels,
    compute_curves,
    compute_figures,
    compute_strata_figures,
    norm_errors,
)
from hydragnn_hpo.units import inside

TOGETHER = 512
"""Structures that are held as graphs at once."""
FAR = 20.0
"""Standard deviations of the training data that labels may lie from its mean, in the median,
before their unit is doubted."""
_Rows = dict[str, np.ndarray]
"""Rows of one head that have a label, [R, ...]: the fields of ``HeadOnLabels``; ``graph``, position
of the structure; ``atom``, atom within it (0 for a structure); ``distance`` to the training set (or
NaN); and what ``predict_simply`` returns."""


HeadRecord = dict[
    str, str | float | dict[str, dict[str, float | None]] | Curves | DistanceFigures | None
]
"""One head in ``evaluation.json``: ``unit``, ``level``, every figure of ``compute_figures`` by its
name (None for a missing value), ``elements_mae``, ``descriptor_mae``, ``strata`` (figures by kind
of structure), ``curves`` and ``by_distance`` (None for files without the features of the training
set)."""


class EvaluationRecord(TypedDict):
    """The content of ``evaluation.json``, but for the ensemble's path."""

    structures: int
    """Structures that were predicted."""
    errors: list[str]
    """Why others were not, a sentence each."""
    warnings: list[str]
    """Reasons to distrust the figures, a sentence each."""
    verdict: list[VerdictSentence]
    """What to conclude from the figures."""
    heads: dict[str, HeadRecord]
    """By name; those that have a label."""


def match_card_labels(manifest: Manifest, card: CardConfig) -> dict[str, TargetConfig]:
    """Choose those of a card's targets that the ensemble predicts.

    Returns:
        The labels by head, all optional: a structure may lack one.

    Raises:
        ConfigError: there is none, or one is another quantity than the head.
    """
    both = {name: card.targets[name] for name in manifest.heads if name in card.targets}
    if not both:
        raise ConfigError(
            f"card '{card.name}' has the targets {', '.join(card.targets)}, the ensemble predicts "
            f"{', '.join(manifest.heads)}: name the targets alike, or say --target HEAD=KEY."
        )
    return _check_labels(manifest, both, f"card '{card.name}'")


def parse_label_options(manifest: Manifest, options: Iterable[str]) -> dict[str, TargetConfig]:
    """Parse options like ``gap=band_gap:meV``.

    Args:
        manifest: of the ensemble, whose heads are labelled.
        options: ``HEAD=KEY`` or ``HEAD=KEY:UNIT``; without a unit the label is in the head's.

    Returns:
        The labels by head, all optional: a structure may lack one.

    Raises:
        ConfigError: one is no such text, names no head, or has a unit of another quantity.
    """
    labels: dict[str, TargetConfig] = {}
    for option in options:
        head, _, rest = option.partition("=")
        key, _, unit = rest.partition(":")
        if not key:
            raise ConfigError(f"--target '{option}': write HEAD=KEY or HEAD=KEY:UNIT.")
        if head not in manifest.heads:
            raise ConfigError(f"--target '{option}': {unknown('head', head, manifest.heads)}")
        if head in labels:
            raise ConfigError(f"--target '{option}': head '{head}' has a label already; give one.")
        entry = manifest.heads[head]
        inside(unit or entry.unit)
        label = entry.model_dump(include={*COMPUTED}, exclude_none=True)
        label |= {"key": key, "unit": unit or entry.unit}
        labels[head] = parse_config(label, TargetConfig, where=f"--target '{option}'")
    return _check_labels(manifest, labels, "--target")


def _list_classes(target: TargetConfig | HeadEntry) -> str:
    return ", ".join(target.classes or ()) or "none"


def _check_labels(
    manifest: Manifest, labels: Mapping[str, TargetConfig], where: str
) -> dict[str, TargetConfig]:
    """Refuse labels of other quantities than their heads.

    Args:
        manifest: of the ensemble.
        labels: by head.
        where: what named them, for the error.

    Returns:
        The labels, all optional: a structure without one does not count for its head.
    """
    for name, label in labels.items():
        head = manifest.heads[name]
        unit = inside(label.unit)[1]
        unit += "/atom" if label.per_atom else ""
        pairs = {
            "level": (label.level, head.level),
            "shape": (label.shape, head.shape),
            "size": (str(label.size), str(head.size)),
            "classes": (_list_classes(label), _list_classes(head)),
            "unit": (unit, head.unit),
            "energy": (label.energy or "none", head.energy or "none"),
        }
        for what, (value, wanted) in pairs.items():
            if value == wanted:
                continue
            converted = what == "unit" and value != label.unit
            shown = f"{label.unit}, which is {value}" if converted else value
            raise ConfigError(
                f"{where}: {what} of '{name}' is {shown}; the ensemble predicts {wanted}: "
                "correct it, or give other labels."
            )
    return {name: label.model_copy(update={"optional": True}) for name, label in labels.items()}


@dataclass(frozen=True)
class LabelledStructures:
    """Some structures of the input, with their labels."""

    columns: Columns
    """Graphs of those that could be read, with targets by head."""
    group: np.ndarray
    """Number of each structure's group, [G]: as the store says, or of one composition."""
    errors: tuple[str, ...] = ()
    """Why the others could not be read, a sentence each."""


def read_labelled(
    paths: Sequence[Path], rules: Rules, structure_column: str | None = None
) -> Iterator[LabelledStructures]:
    """Read files; a bad structure does not stop the others.

    Args:
        paths: anything the readers know; of a folder all its files; ``-`` is standard input.
        rules: how structures become graphs, and their labels.
        structure_column: for CSV files, the column with a structure's text or file name.

    Raises:
        DataError: a path does not exist.
        ConfigError: a table needs a structure column.
    """
    known: dict[bytes, int] = {}
    with ChunkReader(list_input_sources(paths), rules, StructureFiles(structure_column)) as reading:
        for some in read_structures(reading):
            group = _number_compositions(some.columns, known)
            yield LabelledStructures(some.columns, group, tuple(some.errors.values()))


def _number_compositions(columns: Columns, known: dict[bytes, int]) -> np.ndarray:
    """Return a number for the reduced composition of each structure, [G]; ``known`` grows."""
    numbers = []
    for start, end in itertools.pairwise(columns.node_offset):
        elements, counts = np.unique(columns.numbers[start:end], return_counts=True)
        key = np.stack([elements, counts // np.gcd.reduce(counts)]).astype(np.int64).tobytes()
        numbers.append(known.setdefault(key, len(known)))
    return np.array(numbers, dtype=np.int64)


def read_split(path: Path, split: str, cutoff: float) -> Iterator[LabelledStructures]:
    """Read a split of a store, ``TOGETHER`` structures at a time.

    Args:
        path: the store.
        split: name of the split.
        cutoff: longest edge that the ensemble needs, in angstrom.

    Raises:
        DataError: it is no store, has no such split, or its edges are too short.
    """
    graphs = open_store(path)
    longest = float(graphs.stats["cutoff"])
    if longest < cutoff:
        raise DataError(
            f"{path}: holds edges up to {longest:g} angstrom, the ensemble needs {cutoff:g}: build "
            "it with that cutoff."
        )
    indices = graphs.indices_of(split)
    if not len(indices):
        raise DataError(f"{path}: has no structure in the split '{split}'; choose another.")
    for first in range(0, len(indices), TOGETHER):
        some = graphs.take(indices[first : first + TOGETHER])
        yield LabelledStructures(some, some.group.astype(np.int64))


@dataclass(frozen=True)
class HeadEvaluation:
    """One head on the structures that have its label."""

    entry: HeadEntry
    """Manifest entry of the head."""
    predicted: HeadOnLabels
    """Predictions and labels, row by row."""
    figures: dict[str, float]
    """By name, see ``compute_figures``."""
    strata: dict[str, dict[str, float]]
    """By kind of structure, see ``compute_strata_figures``; empty if no kinds were wanted."""
    graph: np.ndarray
    """Position of each row's structure, [R]."""
    atom: np.ndarray
    """Atom of each row within its structure, [R]; 0 where a row is a structure."""
    evidence: HeadEvidence
    """What the verdict needs to know."""
    distance: np.ndarray
    """Distance of each row to the training set, [R]; NaN if not known."""
    by_distance: DistanceFigures | None
    """Errors against these distances; None if not known."""

    def as_plain(self) -> HeadRecord:
        """Return plain data for JSON."""
        plain: HeadRecord = replace_nonfinite(
            {
                "unit": self.entry.shown_unit,
                "level": self.entry.level,
                **self.figures,
                "strata": self.strata,
                "curves": compute_curves(self.predicted, self.entry.calibration),
                "by_distance": self.by_distance,
            }
        )
        return plain


@dataclass
class Evaluation:
    """An ensemble on labelled structures."""

    heads: dict[str, HeadEvaluation]
    """By name; those that have a label."""
    structures: int
    """Structures that were predicted."""
    compositions: Compositions
    """Their names, elements and groups."""
    trust: list[str]
    """``ok`` for each of them, or the reasons not to trust its prediction."""
    errors: list[str] = field(default_factory=list)
    """Why others were not, a sentence each."""
    warnings: list[str] = field(default_factory=list)
    """Reasons to distrust the figures."""
    split: str = ""
    """Split of a store that they are of; empty for structures of files."""

    @property
    def verdict(self) -> list[VerdictSentence]:
        """What to conclude from the figures, see ``verdict.judge``."""
        return judge([head.evidence for head in self.heads.values()])

    def as_plain(self) -> EvaluationRecord:
        """Return plain data for JSON."""
        return {
            "structures": self.structures,
            "errors": self.errors,
            "warnings": self.warnings,
            "verdict": self.verdict,
            "heads": {name: head.as_plain() for name, head in self.heads.items()},
        }


def evaluate_ensemble(
    ensemble: Ensemble,
    labelled: Iterable[LabelledStructures],
    heads: Iterable[str],
    by: By | Literal["element"] = "all",
) -> Evaluation:
    """Predict labelled structures and compare the predictions with the labels.

    The predictions are kept in memory row by row; the structures are not.

    Args:
        ensemble: predicts them.
        labelled: structures, some at a time.
        heads: names of the heads that have labels.
        by: what gets figures of its own: kinds of structures, or elements (heads of atoms alone).

    Raises:
        DataError: no structure has a label.
    """
    parts: dict[str, list[_Rows]] = {name: [] for name in heads}
    compositions = list[Compositions]()
    chemistry = list[np.ndarray]()
    trust = list[str]()
    errors = list[str]()
    for some in labelled:
        errors.extend(some.errors)
        groups = np.asarray(some.group, dtype=np.int64)
        compositions.append(replace(Compositions.of(some.columns), groups=groups))
        chemistry.append(Strata("chemistry").names(some.columns))
        trust += _predict(ensemble, some.columns, parts, len(trust))
    facts = _collect_facts(compositions, chemistry, by)
    done = Evaluation({}, len(trust), facts.compositions, trust, errors)
    local = ensemble.local
    for name, rows in parts.items():
        if rows:
            trunk = local.find_trunk(name) if local is not None and name in local.heads else None
            entry = ensemble.manifest.heads[name]
            _evaluate_head(done, name, entry, rows, facts, describe_basis(trunk))
    done.warnings += ensemble.manifest.unguaranteed(
        [round(100 * level) for level in LEVELS], done.heads
    )
    if not done.heads:
        reason = f" ({errors[0]})" if errors else ""
        raise DataError(
            f"no structure has a label of {', '.join(parts)}{reason}: look at the keys in the "
            "card, or say --target HEAD=KEY."
        )
    return done


class _StructureFacts(NamedTuple):
    """What is known of all structures beside labels and predictions."""

    compositions: Compositions
    """Names, atoms and groups."""
    kinds: np.ndarray | None
    """Kind of each structure, [G]; None if no kinds were wanted, or those of ``by_element``."""
    by_element: bool
    """True if the element of an atom is its kind."""

    def kinds_of_rows(
        self, graph: np.ndarray, atom: np.ndarray, *, node: bool
    ) -> np.ndarray | None:
        """Return the kind of each row of a head, [R]; None if it has none.

        Args:
            graph: structure of each row, [R].
            atom: atom of each row within its structure, [R].
            node: True for a head of atoms.
        """
        if self.by_element:
            every = self.compositions
            return SYMBOLS[every.numbers[every.starts[graph] + atom]] if node else None
        return None if self.kinds is None else self.kinds[graph]


def _collect_facts(
    parts: Sequence[Compositions], chemistry: Sequence[np.ndarray], by: By | Literal["element"]
) -> _StructureFacts:
    """Return the facts of all structures; a single group says nothing, so each is then its own.

    Args:
        parts: names, atoms and groups, batch after batch.
        chemistry: kind of each structure by its anions, [G], batch after batch.
        by: what gets figures of its own.
    """
    every = Compositions.join(parts)
    sizes = every.sizes
    kinds = None
    if by == "size" and len(sizes):  # thirds of these structures, not of the calibration's
        kinds = size_strata(sizes).of_sizes(sizes)
    elif by == "chemistry" and len(sizes):
        kinds = np.concatenate(chemistry)
    if len(np.unique(every.groups)) < 2:
        every = replace(every, groups=np.arange(len(sizes)))
    return _StructureFacts(every, kinds, by == "element")


def _predict(
    ensemble: Ensemble, graphs: Columns, parts: dict[str, list[_Rows]], first: int
) -> list[str]:
    """Predict some graphs, and add the rows that have a label.

    Args:
        ensemble: predicts them.
        graphs: with labels.
        parts: rows by head; updated.
        first: number of structures before these.

    Returns:
        For each graph ``ok``, or the reasons not to trust it.
    """
    trust = list[str]()
    manifest = ensemble.manifest
    targets = manifest.targets()
    for piece in pieces(graphs, np.arange(graphs.num_graphs), EDGES_PER_BATCH):
        moments = ensemble.moments(graphs, piece)
        embedded, rows_of_piece = ensemble.embed(graphs, piece)
        columns = embedded.take(rows_of_piece)
        counts = columns.num_nodes()
        atoms = np.arange(counts.sum()) - np.repeat(columns.node_offset[:-1], counts)
        distances = ensemble.training_distances(graphs, piece)
        prediction = describe_heads(manifest, columns, {name: [moments[name]] for name in parts})
        trust += prediction.trust
        for name, rows in parts.items():
            entry = manifest.heads[name]
            node = entry.level == "node"
            graph = np.repeat(first + piece, counts) if node else first + piece
            head = prediction.heads[name]
            whole = {
                "truth": columns.targets[name],
                "mean": head.mean,
                "spread": head.std_epistemic,
                "noise": moments[name].noise,
                "stratum": manifest.strata.names_of_rows(columns, node=node),
                "factor": entry.calibration.factor_of_rows(columns, head.mean, node=node),
                "graph": graph,
                "atom": atoms if node else np.zeros_like(piece),
                "distance": distances.get(entry.level, np.full(len(graph), np.nan)),
                **predict_simply(
                    name, targets[name], columns, _open_baseline(entry), ensemble.local
                ),
            }
            mask = columns.masks[name]
            rows.append({key: values[mask] for key, values in whole.items()})
    return trust


def _open_baseline(entry: HeadEntry) -> CompositionModel | None:
    """Return the prediction of a head from the elements alone, if the file has one."""
    if entry.baseline is None:
        return None
    return CompositionModel.from_entry(entry.baseline, is_node=entry.level == "node")


def _evaluate_head(
    done: Evaluation,
    name: str,
    entry: HeadEntry,
    rows: list[_Rows],
    structures: _StructureFacts,
    described_by: str,
) -> None:
    """Compute one head's figures, or add the warning that it has none.

    Args:
        done: gets the head and warnings; updated.
        name: of the head.
        entry: of the head in the manifest.
        rows: of the head, batch after batch.
        structures: facts of all structures.
        described_by: what the regression for comparison describes atoms by.
    """
    whole = {key: np.concatenate([some[key] for some in rows]) for key in rows[0]}
    broken = ~np.isfinite(whole["mean"]).all(axis=1)
    if broken.any():
        done.warnings.append(
            f"'{name}' of {len(np.unique(whole['graph'][broken]))} structures is missing or not "
            "finite, and left out; look at the reasons with 'hydragnn-hpo predict'."
        )
        whole = {key: values[~broken] for key, values in whole.items()}
    predicted = HeadOnLabels(**{field.name: whole[field.name] for field in fields(HeadOnLabels)})
    graph = whole["graph"]
    atom = whole["atom"]
    if not len(predicted.truth):
        done.warnings.append(f"no structure has a label of '{name}'; give files with one.")
        return
    _check_unit(done, name, entry, predicted)
    node = entry.level == "node"
    known = entry.calibration
    every = structures.compositions
    figures = compute_figures(predicted, known, entry.center) | norm_errors(predicted, entry.shape)
    kinds = structures.kinds_of_rows(graph, atom, node=node)
    strata = {} if kinds is None else compute_strata_figures(predicted, known, kinds)
    own = every.numbers[every.starts[graph] + atom] if node else None
    others = {"mean": np.broadcast_to(entry.center, predicted.truth.shape)}
    others |= {key: whole[key] for key in ("elements", "descriptor") if key in whole}
    of_rows = find_kinds(every.numbers, every.sizes, graph, own)
    facts = RowFacts(every.groups[graph], of_rows, others)
    classes = tuple(entry.classes or ())
    about = HeadEvidence(
        name, entry.shown_unit, is_node=node, classes=classes, described_by=described_by
    )
    evidence = collect_evidence(about, predicted, known, facts)
    figures["elements_mae"] = evidence.elements.mae
    figures["descriptor_mae"] = evidence.descriptor.mae
    error = np.abs(predicted.residual).mean(axis=1)
    distance = whole["distance"]
    by_distance = None
    if np.isfinite(distance).all():
        by_distance = compute_distance_figures(error, distance, facts.group)
    done.heads[name] = HeadEvaluation(
        entry, predicted, figures, strata, graph, atom, evidence, distance, by_distance
    )


def _check_unit(done: Evaluation, name: str, entry: HeadEntry, predicted: HeadOnLabels) -> None:
    """Add a warning where labels are so far from the training data that their unit is doubtful."""
    if entry.shape == "class":
        return
    away = abs(float(np.median(predicted.truth - entry.center)))
    if entry.std > 0 and away > FAR * entry.std:
        done.warnings.append(
            f"labels of '{name}' lie {away / entry.std:.3g} standard deviations of the training "
            f"data from its mean; check their unit, which is that of the card or of --target (the "
            f"ensemble predicts {entry.unit})."
        )
