"""Estimate the statistics of a data set before it is built, from a few of its structures."""

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hydragnn_hpo.campaign import CheckedCampaign, check_campaign, find_cards
from hydragnn_hpo.campaign.campaign_checks import name_source
from hydragnn_hpo.campaign.setup import (
    DataFacts,
    check_run_directory,
    facts_of_cards,
    facts_of_stats,
)
from hydragnn_hpo.campaign.trial_kind import TrialKind, make_trial_kind
from hydragnn_hpo.config import (
    SPLITS,
    CampaignConfig,
    CardConfig,
    load_config,
    read_stats,
    targets_of,
    unite_stats,
)
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.file_records import SizeStats, StoreStats
from hydragnn_hpo.layout import RunDir

if TYPE_CHECKING:
    from hydragnn_hpo.data import Graph

SAMPLE_SIZE = 200
"""Structures that are read to estimate the size of the others."""

FORCE_SAMPLE, FORCE_FILES = 300, 20
"""Structures whose forces are compared with energies, and files that they are from."""

ATOMS, DENSITY = 30.0, 0.08
"""Atoms of a structure, and atoms per cubic angstrom, where none can be read: middling crystals."""


@dataclass(frozen=True)
class StatsEstimate:
    """Statistics of a data set and their origin."""

    stats: StoreStats
    origin: str
    """In words: a store, a sample, an assumption."""
    built: bool
    sampled: bool = False
    """Whether the sizes are those of structures that were read."""
    crystals: bool = False
    """Whether all structures that were read are periodic in three directions."""


def estimate_stats(card_path: Path, stores: list[Path], structures: int | None) -> StatsEstimate:
    """Return the statistics of a store if one is built, else estimate them.

    Args:
        card_path: its card.
        stores: where its store may be.
        structures: how many structures there are; counted in the files if left out.

    Raises:
        DataError: it is not built, its files are missing, and ``structures`` is left out.
    """
    for store in stores:
        if (store / "index.json").exists() and structures is None:
            return StatsEstimate(read_stats(store), f"the store {store}", built=True)
    card = load_config(card_path, CardConfig)
    try:
        sample, counted, crystals = _read_sample(card, card_path)
    except DataError:
        if structures is None:
            raise
        sample = _assume_stats(card)
        counted = None
        crystals = False
    total = structures or counted
    if total is None:
        raise DataError(
            f"{card_path}: its files do not say how many structures they hold: give --structures."
        )
    source = f"{sample['num_graphs']} structures of it" if sample["num_graphs"] > 1 else "a guess"
    return StatsEstimate(
        scale_stats(sample, total, card),
        f"{total:,} structures, sizes by {source}",
        built=False,
        sampled=counted is not None or sample["num_graphs"] > 1,
        crystals=crystals,
    )


def _read_sample(card: CardConfig, card_path: Path) -> tuple[SizeStats, int | None, bool]:
    """Read the first structures of the first file, and count all where that costs nothing.

    Returns:
        Their sizes, the number of all structures, and whether those read are crystals.
    """
    from hydragnn_hpo.data import columns_of, size_stats
    from hydragnn_hpo.data.build_plan import find_file, make_source
    from hydragnn_hpo.data.readers import reader_of

    total: int | None = 0
    paths = [find_file(entry.path, card_path) for entry in card.files]
    for number, path in enumerate(paths):
        source = make_source(card, number, path)
        count = reader_of(source, card.files[number].reader).count(source)
        total = None if total is None or count is None else total + count
    graphs = read_first(card, 0, paths[0], SAMPLE_SIZE)
    if not graphs:
        raise DataError(f"{paths[0]}: none of its structures can be used; see 'dataset check'.")
    sizes = size_stats(columns_of(graphs, card.targets), card.graphs.cutoff)
    return sizes, total, all(graph.pbc.all() for graph in graphs)


def read_first(card: CardConfig, entry: int, path: Path, count: int) -> "list[Graph]":
    """Read the first usable structures of a file.

    Args:
        card: the card.
        entry: position of the file in the card's ``files``, counted from 0.
        path: where the file was found.
        count: largest number of structures.
    """
    from hydragnn_hpo.data import Graph
    from hydragnn_hpo.data.build_plan import Piece
    from hydragnn_hpo.data.convert_pieces import read_piece

    piece = Piece(0, entry, path, 0, None, "", "")
    converted = (graph for _, graph in read_piece(card, piece))
    return list(itertools.islice((g for g in converted if isinstance(g, Graph)), count))


def check_forces(card: CardConfig, card_path: Path, heads: Collection[str]) -> None:
    """Check that forces that are to be learned do not contradict their energies.

    Args:
        card: the data set.
        card_path: path of the card.
        heads: names of the targets that are learned.

    Raises:
        DataError: they contradict them, and the card does not trust them.
    """
    from hydragnn_hpo.data import columns_of
    from hydragnn_hpo.data.build_plan import find_file
    from hydragnn_hpo.inspection.force_check import compare_forces, read_labels

    derived = {
        name: target.derived_from
        for name, target in card.targets.items()
        if name in heads and target.level == "node" and target.derived_from is not None
    }
    if not derived or card.trust_forces:
        return
    entries = range(0, len(card.files), -(-len(card.files) // FORCE_FILES))
    graphs: list[Graph] = []
    for entry in entries:
        path = find_file(card.files[entry].path, card_path)
        graphs += read_first(card, entry, path, FORCE_SAMPLE // len(entries))
    if not graphs:
        return  # the build tells why
    columns = columns_of(graphs, card.targets)
    for name, energy in derived.items():
        per_atom = card.targets[energy].energy == "per_atom"
        labels = list(read_labels(columns, energy, name, per_atom=per_atom))
        evidence = compare_forces(labels)
        if evidence is not None and evidence.verdict == "contradict":
            raise DataError(
                f"{card_path}: {name} {evidence.sentence}; mend data or unit, or drop the head of "
                f"{name}; to learn them as they are, write 'trust_forces = true' at the top of the "
                "card."
            )


def _assume_stats(card: CardConfig) -> SizeStats:
    """Return the statistics of one average crystal."""
    reach = [float(r) for r in range(3, math.ceil(card.graphs.cutoff))] + [card.graphs.cutoff]
    degree = {str(r): DENSITY * 4.0 / 3.0 * math.pi * r**3 for r in reach}
    edges = ATOMS * degree[str(reach[-1])]
    return {
        "num_graphs": 1,
        "cutoff": card.graphs.cutoff,
        "elements": [],
        "degree": degree,
        "nodes": {"mean": ATOMS, "min": ATOMS, "max": ATOMS},
        "edges": {"mean": edges, "min": edges, "max": edges},
    }


def scale_stats(
    sample: SizeStats, total: int, card: CardConfig, test_share: float | None = None
) -> StoreStats:
    """Scale the statistics of a sample to the whole data set.

    Args:
        sample: as ``data.graph_sizes`` makes them.
        total: structures of the whole.
        card: the data set.
        test_share: share that a published split keeps for test; that of the card if None.
    """
    *dealt, test = card.split.shares
    if test_share is not None:
        dealt = [share * (1.0 - test_share) / sum(dealt) for share in dealt]
        test = test_share
    shares = zip(SPLITS, (*dealt, test), strict=True)
    splits = {split: max(1, round(share * total)) for split, share in shares}
    nodes, edges = sample["nodes"], sample["edges"]
    scaled = {
        **sample,
        "nodes": {**nodes, "total": nodes["mean"] * total},
        "edges": {**edges, "total": edges["mean"] * total},
        "name": card.name,
        "title": card.title,
        "num_graphs": total,
        "splits": splits,
        "attributes": {},
        "laplacian": card.graphs.laplacian,
        "train_nodes": round(splits["train"] * nodes["mean"]),
        "train_edges": round(splits["train"] * edges["mean"]),
        "targets": targets_of(card),
    }
    return cast("StoreStats", scaled)


NO_DATA = "none: trials are a command of yours"


@dataclass(frozen=True)
class DataKnown:
    """The data of a campaign, as far as a forecast needs it."""

    work: TrialKind
    """What its trials are."""
    stats: StoreStats | None
    """Statistics of all data sets as one; None where trials are a command."""
    origin: str
    """Where the statistics are from, in words."""
    by_card: Mapping[str, StoreStats] = field(default_factory=dict)
    """Statistics of each data set, by the name of its card."""
    cards: Mapping[Path, str] = field(default_factory=dict)
    """Path and name of each card."""


def data_of_campaign(
    config: CampaignConfig, source: Path, run: RunDir, structures: int | None
) -> DataKnown:
    """Estimate the statistics of a campaign's data: from its stores, or a few of its structures.

    Args:
        config: the campaign.
        source: its file.
        run: the run directory in which its stores may be.
        structures: how many there are of each data set; counted if left out.

    Raises:
        ConfigError: a card is wrong, or the space does not fit the data.
        DataError: nothing is known about the data.
    """
    if config.command is not None:
        check_campaign(CheckedCampaign(config, run.path, None), source)
        return DataKnown(make_trial_kind(config, run, {}), None, NO_DATA)
    with name_source(source):
        cards = find_cards(config, source)
        facts = facts_of_cards(config, list(cards.values()))
    guesses = [
        estimate_stats(path, [run.store(card.name), Path(f"{card.name}.bp")], structures)
        for path, card in cards.items()
    ]
    stats = unite_stats([guess.stats for guess in guesses], config.data, config.shared)
    built = all(guess.built for guess in guesses)
    facts = _facts(config, facts, guesses)
    check_campaign(CheckedCampaign(config, run.path, facts), source)
    origin = "; ".join(guess.origin for guess in guesses)
    names = {path: card.name for path, card in cards.items()}
    by_card = {name: guess.stats for name, guess in zip(names.values(), guesses, strict=True)}
    origin = origin if built else f"not built yet, estimated: {origin}"
    return DataKnown(make_trial_kind(config, run, names), stats, origin, by_card, names)


def _facts(config: CampaignConfig, facts: DataFacts, guesses: Sequence[StatsEstimate]) -> DataFacts:
    """Return what cards, stores and samples say about the data of a campaign.

    Args:
        config: the campaign.
        facts: of its cards.
        guesses: statistics of each data set.
    """
    if all(guess.built for guess in guesses):
        every = [guess.stats for guess in guesses]
        return facts_of_stats(unite_stats(every, config.data, config.shared))
    read = [guess.stats for guess in guesses if guess.built or guess.sampled]
    sizes = {"nodes": [s["nodes"]["max"] for s in read], "edges": [s["edges"]["max"] for s in read]}
    largest = {name: max(each) for name, each in sizes.items()} if read else None
    return replace(facts, largest=largest)


def check_campaign_file(
    config: CampaignConfig, source: Path, path: Path, *, packed_later: bool = False
) -> dict[Path, str]:
    """Find the cards of a campaign, and make all checks of it and of its run directory.

    Structures are read only for a campaign with batches of atoms or edges, or with forces.

    Args:
        config: the campaign.
        source: its file.
        path: its run directory, which need not exist.
        packed_later: whether the archive of its software is written after the checks.

    Returns:
        Name of each card, by the card's path.

    Raises:
        HydraError: something is wrong with the campaign, its cards or its files.
    """
    from hydragnn_hpo.data.build_plan import find_files

    check_run_directory(config, path)
    run = RunDir(path)
    if config.command is not None:
        check_campaign(CheckedCampaign(config, path, None, packed_later), source)
        return {}
    with name_source(source):
        cards = find_cards(config, source)
        facts = facts_of_cards(config, list(cards.values()))
    names = {path: card.name for path, card in cards.items()}
    built = all((run.store(name) / "index.json").exists() for name in names.values())
    if not built:
        for card in cards:
            find_files(card)
    if built or _has_budget(config):
        guesses = [estimate_stats(p, [run.store(card.name)], None) for p, card in cards.items()]
        facts = _facts(config, facts, guesses)
    check_campaign(CheckedCampaign(config, path, facts, packed_later), source)
    _check_forces(config, {} if built else cards)
    return names


def _check_forces(config: CampaignConfig, cards: Mapping[Path, CardConfig]) -> None:
    """Check the forces that a campaign learns, see ``check_forces``."""
    learned = config.trial.get("heads", {})
    for (path, card), entry in zip(cards.items(), config.data, strict=False):
        check_forces(card, path, [name.removeprefix(entry.prefix) for name in learned])


def _has_budget(config: CampaignConfig) -> bool:
    """Check whether some trial may have a budget of atoms or edges."""
    budgets = ("batch_atoms", "batch_edges")
    fixed = config.trial.get("training", {})
    return any(name in fixed or f"training.{name}" in config.space for name in budgets)
