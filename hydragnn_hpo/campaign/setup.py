"""Open a run directory for a campaign, and refuse a bad one before anything starts."""

import itertools
import os
import platform
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hydragnn_hpo import __version__
from hydragnn_hpo.campaign.journal import read_journal
from hydragnn_hpo.campaign.rescoring import compute_scores
from hydragnn_hpo.campaign.state import fold
from hydragnn_hpo.config import (
    ELEMENTS,
    STORE_VERSION,
    TRUNKS,
    CampaignConfig,
    CardConfig,
    Scalar,
    TrialConfig,
    TrialHeads,
    TrunkSpec,
    budget_steps,
    compute_epoch_size,
    dump_config,
    fill_arguments,
    is_extensive,
    load_config,
    parse_config,
    pool_of,
    read_trunk_file,
    targets_of,
)
from hydragnn_hpo.config.data_config import unite_targets
from hydragnn_hpo.config.trial_config import TrialDataConfig
from hydragnn_hpo.config.trunk_specs import TrunkFile
from hydragnn_hpo.errors import ConfigError, RunError, StorageError
from hydragnn_hpo.file_records import StoreStats, TargetStats
from hydragnn_hpo.files import (
    FOLDER_MODE,
    PART,
    read_json,
    remove,
    remove_partial_files,
    storage,
    write_text,
)
from hydragnn_hpo.journal_events import SearchedValues
from hydragnn_hpo.layout import RunDir, derive_seed
from hydragnn_hpo.resources import find_resource
from hydragnn_hpo.sanitize import quote
from hydragnn_hpo.search import apply_values, check_feasible_share, check_space, read_constraints
from hydragnn_hpo.search.brain import READ_PRIORS
from hydragnn_hpo.search.constraints import Constraint, complete_configuration
from hydragnn_hpo.search.space import PARTS

MAY_CHANGE = ("machine",)
"""Parts of a campaign that may differ when it goes on: they never change a result. So may what adds
trials after the last, ``_ADDED``, and ``search.objective`` as long as every result holds what it
names."""

_LONGEST_SHOWN = 80
"""Characters of a value in an error."""

_ADDED = ("reseed", "learning_curve", "fit", "configurations", "folds")
"""Settings of ``[ensemble]`` that add trials after the last."""


def open_run(config: CampaignConfig, path: Path) -> RunDir:
    """Make or reopen the directory of a campaign; several may do so at the same time.

    Raises:
        RunError: the directory holds another campaign, or something else.
        StorageError: it cannot be made.
    """
    run = RunDir(path)
    check_run_directory(config, path)
    if run.campaign.exists():
        return run
    with storage(path):
        path.mkdir(parents=True, mode=FOLDER_MODE, exist_ok=True)
    write_text(run.campaign, dump_config(config))
    return run


def check_run_directory(config: CampaignConfig, path: Path) -> None:
    """Check that a campaign can begin or go on in a directory; nothing is written.

    Raises:
        RunError: the directory holds another campaign, or something else.
        StorageError: it cannot be made.
    """
    run = RunDir(path)
    if run.campaign.exists():
        _same_campaign(config, run)
        return
    if path.is_dir() and path.stat().st_mode & stat.S_IWOTH:
        raise RunError(
            f"{path}: everybody can write into it; run 'chmod o-w {path}', or choose another "
            "directory with --run."
        )
    if path.exists() and (not path.is_dir() or any(_foreign(run, p) for p in path.iterdir())):
        raise RunError(
            f"{path}: is not empty and holds no campaign; choose another directory with --run."
        )
    near = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not near.is_dir() or not os.access(near, os.W_OK | os.X_OK) or near.is_relative_to("/proc"):
        raise StorageError(
            f"{path}: cannot be made in {near}; choose another directory with --run."
        )


def _foreign(run: RunDir, path: Path) -> bool:
    """Check whether a file is foreign: not one that a process opening this run writes."""
    return path not in (run.excluded, run.campaign) and not path.name.endswith(PART)


def tidy(run: RunDir, *, trials_may_live: bool) -> None:
    """Remove what a killed process left unfinished.

    Args:
        run: the run directory.
        trials_may_live: whether trials may still be writing in their folders; they tidy them up
            themselves when they start.
    """
    if not trials_may_live:
        remove_partial_files(run.path)
        return
    for path in run.path.iterdir():
        if path.name.startswith(".") and path.name.endswith(PART):
            remove(path)
        elif path.is_dir() and path not in (run.trials, run.jobs):
            remove_partial_files(path)


def _same_campaign(config: CampaignConfig, run: RunDir) -> None:
    there = load_config(run.campaign, CampaignConfig).model_dump(mode="json")
    ours = config.model_dump(mode="json")
    for part in MAY_CHANGE:
        there.pop(part), ours.pop(part)
    for key in _ADDED:
        there["ensemble"].pop(key), ours["ensemble"].pop(key)
    for name in there["trunks"].keys() & ours["trunks"].keys():
        if there["trunks"][name].pop("spec") != ours["trunks"][name].pop("spec"):
            raise RunError(f"{run.path}: {_changed_trunk(name, config.trunks[name].file)}")
        there["trunks"][name].pop("file"), ours["trunks"][name].pop("file")
    for entry in (*there["data"], *ours["data"]):  # a campaign may move together with its cards
        entry["card"] = Path(entry["card"]).name
    if _can_change_objective(config, run):
        there["search"].pop("objective"), ours["search"].pop("objective")
    difference = next(_differences(there, ours, ()), None)
    if difference:
        key, old, new = difference
        raise RunError(
            f"{run.path}: holds campaign '{there['name']}' with {key} = {_show(old)}, asked was "
            f"{_show(new)}; choose another directory with --run, or undo the change."
        )


def _show(value: object) -> str:
    """Return a value as Python writes it; of a long list the middle is left out."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else quote(text, _LONGEST_SHOWN)


def _can_change_objective(config: CampaignConfig, run: RunDir) -> bool:
    """Check whether an unfinished campaign may go on with another objective.

    It may if each trial with a result holds all numbers that the objective names.
    """
    before = load_config(run.campaign, CampaignConfig)
    if before.search.objective == config.search.objective:
        return True
    events = list(read_journal(run.journal))
    if fold(events).finished:
        return False
    heads = dict.fromkeys(config.trial.get("heads", {}), 1.0)
    scores = compute_scores(events, config.search.objective, heads)
    return all(score is not None for rungs in scores.values() for score in rungs.values())


def check_stores(run: RunDir, names: Iterable[str]) -> None:
    """Check that this program reads the stores that the run directory holds already.

    Args:
        run: the run directory.
        names: of the cards, and so of the stores.

    Raises:
        RunError: one is of another version: every trial would fail on it.
        StorageError: what one says about itself cannot be read.
    """
    for store in map(run.store, names):
        if not (store / "index.json").exists():
            continue
        content = read_json(store / "index.json")
        version = content.get("version") if isinstance(content, dict) else None
        if version != STORE_VERSION:
            raise RunError(
                f"{store}: is a graph store of version {version}, this program reads "
                f"{STORE_VERSION}: finish the run with {_first_program(run)}, which began it, or "
                "choose another directory with --run."
            )


def _first_program(run: RunDir) -> str:
    """Return name and version of the program that began a run, from its journal."""
    for event in read_journal(run.journal):
        if event["event"] == "opened" and "hydragnn-hpo" in event["software"]:
            return f"hydragnn-hpo {event['software']['hydragnn-hpo']}"
    return "the hydragnn-hpo"


def _differences(old: Any, new: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted(old.keys() | new.keys()):
            yield from _differences(old.get(key), new.get(key), (*path, key))
    elif old != new:
        yield ".".join(path), old, new


def find_cards(config: CampaignConfig, source: Path) -> dict[Path, CardConfig]:
    """Find the cards of a campaign: paths beside the campaign file, or shipped names.

    Returns:
        Cards by their resolved path, in the order of ``[[data]]``.

    Raises:
        ConfigError: one is missing or wrong, or two have the same name.
    """
    cards: dict[Path, CardConfig] = {}
    for entry in config.data:
        near = source.parent / entry.card
        path = near if near.is_file() else find_resource(entry.card, "graph_datasets")
        card = load_config(path, CardConfig)
        if card.name in {other.name for other in cards.values()}:
            raise ConfigError(
                f"two cards of the campaign are named '{card.name}': name one differently, or drop "
                "one."
            )
        cards[path.resolve()] = card
    return cards


def stores_of(config: CampaignConfig, names: Sequence[str]) -> list[TrialDataConfig]:
    """Return the ``[[data]]`` entries of a trial.

    Args:
        config: the campaign.
        names: of the cards, and so of the stores.
    """
    return [
        TrialDataConfig(store=f"../../data/{name}.bp", **entry.model_dump(exclude={"card"}))
        for name, entry in zip(names, config.data, strict=True)
    ]


def trial_config(
    config: CampaignConfig, name: str, values: SearchedValues, stores: list[TrialDataConfig]
) -> TrialConfig:
    """Make a trial's whole configuration from the campaign's template and searched values.

    Args:
        config: the campaign.
        name: of the trial.
        values: searched values.
        stores: where the graphs are, see ``stores_of``.

    Raises:
        ConfigError: the values do not make a valid trial.
    """
    template = {key: config.trial[key] for key in config.trial}
    made = apply_values(template, dict(values))
    epochs = values.get("training.epochs", config.search.rungs[-1])
    made["training"] = {**made.get("training", {}), "epochs": epochs}
    model = made.get("model", {})
    if own := config.trunks.get(model.get("embedding", ELEMENTS)):
        made["model"] = {**model, "embedding_trunk": own.spec}
    made |= {
        "trial": name,
        "seed": derive_seed(config.seed, name, "training"),
        "data": stores,
        "shared": config.shared,
    }
    return parse_config(made, TrialConfig, where=f"trial {name}")


def settle(config: CampaignConfig, source: Path) -> CampaignConfig:
    """Make a campaign independent of where its file lies, and so fit to be run from a copy.

    Raises:
        ConfigError: its space, constraints or objective make no sense by themselves.
    """
    if config.command is None:
        trunks = {name: _find_trunk(name, each, source) for name, each in config.trunks.items()}
        config = config.model_copy(update={"trunks": trunks})
        near = [source.parent.absolute() / entry.card for entry in config.data]
        cards = zip(config.data, near, strict=True)
        data = [e.model_copy(update={"card": str(p)}) if p.is_file() else e for e, p in cards]
        return config.model_copy(update={"data": tuple(data)})
    check_search(config, parts=None)
    here = {"here": source.parent.resolve()}
    command = config.command.model_copy(update={"argv": fill_arguments(config.command.argv, here)})
    return config.model_copy(update={"command": command})


def _find_trunk(name: str, entry: TrunkFile, source: Path) -> TrunkFile:
    """Return the entry of a user's foundation model with what its card says.

    Raises:
        ConfigError: a file is missing or damaged, or is another one than the entry says.
    """
    path = source.parent.absolute() / entry.file
    try:
        facts = read_trunk_file(path)
    except ConfigError as error:
        raise ConfigError(f"{source}: [trunks.{name}]: {error}") from error
    if facts.name != name:
        raise ConfigError(
            f"{source}: {path.name} is of the model '{facts.name}': write [trunks.{facts.name}]."
        )
    if entry.spec is not None and entry.spec != facts.spec:
        raise ConfigError(f"{source}: {_changed_trunk(name, path)}")
    return TrunkFile(file=str(path), spec=facts.spec)


def _changed_trunk(name: str, path: Path | str) -> str:
    return (
        f"the foundation model '{name}' ({path}) is another one than when the campaign began: put "
        "back the file of then, or choose another directory with --run."
    )


def check_search(
    config: CampaignConfig, parts: Sequence[str] | None = PARTS
) -> tuple[Constraint, ...]:
    """Refuse a space that cannot be searched, or of which the constraints leave nothing.

    Args:
        config: the campaign.
        parts: tables of a trial that may be searched; any if None.

    Returns:
        The constraints.

    Raises:
        ConfigError: something is wrong with it.
    """
    check_space(config.space, config.trial, parts)
    believed = [name for name, parameter in config.space.items() if parameter.prior is not None]
    if believed and config.search.brain not in READ_PRIORS:
        raise ConfigError(
            f"space.{believed[0]}: brain '{config.search.brain}' reads no prior: drop it, or "
            f"choose search.brain '{min(READ_PRIORS)}'."
        )
    rules = read_constraints(config.search.constraints, config.space, config.trial)
    check_feasible_share(config.space, rules)
    return rules


@dataclass(frozen=True)
class DataFacts:
    """What is known of a campaign's data before its first trial."""

    targets: Mapping[str, TargetStats]
    """Targets of the cards, or of the stores with their statistics."""
    cutoff: float
    """Longest edge in angstrom."""
    attributes: Collection[str] | None = None
    """Names of the graph attributes; None if they are not known."""
    laplacian: int | None = None
    """Laplacian encodings of each node; None if it is not known."""
    stats: StoreStats | None = None
    """The whole statistics, once there are stores."""
    largest: Mapping[str, float] | None = None
    """``nodes`` and ``edges`` of a graph that is at most as large as the largest; None if none of
    the graphs is known."""


def facts_of_cards(config: CampaignConfig, cards: Collection[CardConfig]) -> DataFacts:
    """Return what the cards of a campaign say about its data.

    Raises:
        ConfigError: two data sets cannot be combined.
    """
    targets = unite_targets([targets_of(card) for card in cards], config.data, config.shared)
    return DataFacts(
        targets,
        cutoff=min(card.graphs.cutoff for card in cards),
        attributes=set.intersection(*(set(card.attributes) for card in cards)),
        laplacian=min(card.graphs.laplacian for card in cards),
    )


def facts_of_stats(stats: StoreStats) -> DataFacts:
    """Return what the statistics of a campaign's stores say about its data."""
    return DataFacts(
        stats["targets"],
        cutoff=stats["cutoff"],
        attributes=stats.get("attributes"),
        laplacian=stats.get("laplacian"),
        stats=stats,
    )


def check_corners(config: CampaignConfig, data: DataFacts) -> None:
    """Try the corners of a space before a trial is paid for.

    Raises:
        ConfigError: some value cannot make a valid trial on this data.
    """
    for where, made in corners_of(config):
        fit: dict[str, Any] = {"heads": made.heads, "targets": dict(data.targets)}
        fit |= {"model": made.model, "training": made.training, "laplacian": data.laplacian}
        if data.attributes is not None:
            fit["attributes"] = dict.fromkeys(data.attributes)
        if data.stats is not None:
            fit["elements"] = data.stats["elements"]
        parse_config(fit, TrialHeads, where=where)
        for name, head in made.heads.items():
            target = data.targets[name]
            if is_extensive(target) and pool_of(head, target) != "contributions":
                raise ConfigError(
                    f"{where}: head '{name}' has pool = '{head.pool}', by which two molecules far "
                    "apart would not have the sum of both, as a sum over atoms must: drop pool."
                )
        if made.model.cutoff > data.cutoff:
            raise ConfigError(
                f"{where}: model.cutoff is {made.model.cutoff:g} angstrom, the card's edges end "
                f"at {data.cutoff:g}: lower one or raise the other."
            )
        if data.stats is not None:
            compute_epoch_size(data.stats, made.training, [entry.ratio for entry in made.data])
        elif data.largest is not None and made.training.global_batch is None:
            largest = int(data.largest[made.training.budget[0]])
            budget_steps(made.training, total=largest, largest=largest)


def check_labels(config: CampaignConfig, stats: StoreStats) -> list[str]:
    """Check that each head has labels in each split on which an ensemble is chosen and judged.

    Args:
        config: the campaign.
        stats: statistics of its stores.

    Returns:
        A sentence for each head that the ensemble will leave out, and for each with a class that
        some split lacks.

    Raises:
        ConfigError: a head has no label to validate trials on, or the ensemble would have no head.
    """
    folds = ("sel", "cal") if config.ensemble.fit == "cross" else ()
    heads = config.trial.get("heads", {})
    sentences = list[str]()
    for name in heads:
        unlabelled = stats["targets"][name].get("unlabelled", ())
        lacking = [split for split in unlabelled if split not in folds]
        if not lacking:
            continue
        cure = "add labels, raise the shares in the card's [split], or drop the head"
        if "val" in stats["targets"][name].get("empty", ()):
            raise ConfigError(
                f"head '{name}': no structure of the split 'val', on which trials are validated, "
                f"has this target: {cure}."
            )
        sentences.append(
            f"head '{name}': no structure of the split {' or '.join(map(repr, lacking))} has a "
            "label of an element that has labels in train, so that the ensemble will leave it out: "
            f"{cure}."
        )
    if sentences and len(sentences) == len(heads):
        raise ConfigError(sentences[0].replace("will leave it out", "would have no head"))
    return sentences + list(_name_unseen_classes(heads, stats))


def _name_unseen_classes(heads: Iterable[str], stats: StoreStats) -> Iterator[str]:
    """Yield a sentence for each split that lacks a class of a head."""
    for name in heads:
        for split, classes in stats["targets"][name].get("unseen", {}).items():
            others = f" or {len(classes) - 1} others" if len(classes) > 1 else ""
            yield (
                f"head '{name}': no structure of the split '{split}' has the class "
                f"{classes[0]!r}{others}: add some that have, or take another seed in the card's "
                "[split]."
            )


def corners_of(config: CampaignConfig) -> Iterator[tuple[str, TrialConfig]]:
    """Yield ordinary trials with every choice, every lowest and highest value of a space.

    Returns:
        What the trial tries, for a message, and its configuration.

    Raises:
        ConfigError: the space cannot be searched, or some value makes no valid trial.
    """
    rules = check_search(config)
    plain = {key: _values(config, key)[0] for key in config.space}
    for key in config.space:
        for value in _values(config, key):
            wanted = _activate(config, {key: value}, key)
            chosen = complete_configuration(config.space, rules, wanted, plain)
            if chosen is None:  # the constraints leave no trial with this value
                continue
            entries = stores_of(config, [entry.card for entry in config.data])
            made = trial_config(config, f"with {key} = {value}", chosen, entries)
            yield f"campaign '{config.name}', {key} = {value}", made


def find_trunks(config: CampaignConfig) -> dict[str, TrunkSpec]:
    """Return the foundation models whose features some trial may begin from.

    Returns:
        What is known of them, by name.
    """
    key = "model.embedding"
    fixed = config.trial.get("model", {}).get("embedding", ELEMENTS)
    named = _values(config, key) if key in config.space else [fixed]
    own = {name: entry.spec for name, entry in config.trunks.items() if entry.spec is not None}
    known = TRUNKS | own
    return {name: known[name] for name in sorted({str(name) for name in named} - {ELEMENTS})}


def _values(config: CampaignConfig, key: str) -> list[Scalar]:
    parameter = config.space[key]
    if parameter.choices is not None:
        return list(parameter.choices)
    return [value for value in (parameter.low, parameter.high) if value is not None]


def _activate(config: CampaignConfig, values: dict[str, Scalar], key: str) -> dict[str, Scalar]:
    """Set the conditions that make a key active, and theirs in turn."""
    pending = [key]
    for _ in itertools.takewhile(lambda _: pending, range(len(config.space) + 1)):
        for name, wanted in config.space[pending.pop()].when.items():
            if name in config.space:
                values[name] = wanted[0] if isinstance(wanted, tuple) else wanted
                pending.append(name)
    return values


PACKAGES = ("torch", "torch-geometric", "numpy", "scipy", "adios2", "vesin", "deephyper", "optuna")
"""What may change a number, or the next proposal."""


def read_software_versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of Python and of packages, without importing them.

    Returns:
        Version by name, ``python`` first; packages that are not installed are absent.
    """
    versions = {"python": platform.python_version()}
    for name in packages:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def controller_versions() -> dict[str, str]:
    """Return what the journal says of the controller's software and system.

    Returns:
        Version by name: this package, Python and packages; ``system`` is name, release and machine.
    """
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return {"hydragnn-hpo": __version__, **read_software_versions(), "system": system}
