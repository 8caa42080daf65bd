"""What features of foundation models take: measured here on a few structures, or from a table."""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from hydragnn_hpo.campaign.setup import find_trunks
from hydragnn_hpo.config import CampaignConfig, CardConfig, TrunkSpec, load_config
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.file_records import StoreStats
from hydragnn_hpo.pipeline.estimate_stats import DataKnown, read_first
from hydragnn_hpo.planning import FeaturesPrice

if TYPE_CHECKING:
    from ase import Atoms

    from hydragnn_hpo.data import Graph

MOST_STRUCTURES = 50
"""Structures on which a price is measured at most."""

MOST_ATOMS = 1000
"""Larger structures are left out: one alone takes seconds."""

TIMEOUT = 120.0
"""Seconds after which a measurement is given up."""

Structure: TypeAlias = "Atoms | Graph"
"""What was read of a structure: both have its elements, positions and cell."""

SENT = ("numbers", "positions", "cell", "pbc")
"""What is sent of a structure: arguments of ``ase.Atoms``."""

AtomPrice: TypeAlias = tuple[float, str]
"""CPU-seconds of the features of one atom on one thread, and where they are from, in words."""

_MEASURE = """
import sys
from hydragnn_hpo.model.trunks.embed import answer_prices
answer_prices(sys.argv[1])
"""


def measure_prices(
    sources: Mapping[str, str], structures: Iterable[Structure]
) -> dict[str, AtomPrice]:
    """Measure the features of foundation models in a process of its own, which loads torch.

    Args:
        sources: name or card of each model, by its name.
        structures: of the data; the first that are small enough are described.

    Returns:
        Price by name; models without one could not be measured.
    """
    small = (each for each in structures if len(each.numbers) <= MOST_ATOMS)
    sent = [
        {name: np.asarray(getattr(each, name)).tolist() for name in SENT}
        for each in itertools.islice(small, MOST_STRUCTURES if sources else 0)
    ]
    if not sent:
        return {}
    argv = [sys.executable, "-c", _MEASURE, json.dumps({**sources})]
    none = subprocess.DEVNULL
    try:
        answer = subprocess.check_output(
            argv, input=json.dumps(sent), stderr=none, text=True, timeout=TIMEOUT
        )
        prices: dict[str, AtomPrice] = json.loads(answer)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    return prices


def price_trunk(spec: TrunkSpec, stats: StoreStats, price: AtomPrice | None) -> FeaturesPrice:
    """Price the features of a foundation model.

    Args:
        spec: what is known of it.
        stats: of the data.
        price: of one atom; None takes that of the table.
    """
    atoms = stats["num_graphs"] * stats["nodes"]["mean"]
    seconds, origin = price or (spec.atom_seconds, "from a table")
    return FeaturesPrice(spec.title, atoms * seconds, round(2 * spec.count * atoms), origin)


def price_features(
    config: CampaignConfig, known: DataKnown, *, here: bool
) -> tuple[FeaturesPrice, ...]:
    """Price the features that a campaign computes before its trials.

    Args:
        config: the campaign.
        known: its data.
        here: whether this computer is the machine, so that its time counts.

    Returns:
        A price for each foundation model that some trial may begin from.
    """
    specs = find_trunks(config)
    if known.stats is None:
        return ()
    there = {name for name in specs if all(_has_features(s, name) for s in known.work.needs)}
    own = {name: entry.file for name, entry in config.trunks.items()}
    sources = {name: own.get(name, name) for name in specs.keys() - there if here}
    prices = measure_prices(sources, read_structures(known.cards))
    prices |= dict.fromkeys(there, (0.0, "there already"))
    return tuple(price_trunk(spec, known.stats, prices.get(name)) for name, spec in specs.items())


def read_structures(cards: Iterable[Path]) -> "Iterator[Graph]":
    """Yield the first structures of the first file of each card; none where it cannot be read."""
    from hydragnn_hpo.data.build_plan import find_file

    for path in cards:
        card = load_config(path, CardConfig)
        with suppress(DataError):
            file = find_file(card.files[0].path, path)
            yield from read_first(card, 0, file, MOST_STRUCTURES)


def _has_features(store: Path, name: str) -> bool:
    """Check whether a store has features of a model; a run refuses those of another version."""
    from hydragnn_hpo.data import FeatureCache

    built = (store / "index.json").exists()
    return built and FeatureCache(store, name, "").find_other_version() is not None
