"""Complete configuration of one trial, as a file that ``hydragnn-hpo trial`` runs unchanged.

Paths of stores are absolute, so that the file works in any directory of this computer.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from hydragnn_hpo.campaign import stores_of, trial_config
from hydragnn_hpo.campaign.history import TrialHistory
from hydragnn_hpo.config import (
    CardConfig,
    Scalar,
    TrialConfig,
    dump_config,
    load_config,
    read_toml,
    to_toml,
)
from hydragnn_hpo.errors import RunError, unknown
from hydragnn_hpo.files import storage, write_text
from hydragnn_hpo.layout import derive_seed
from hydragnn_hpo.report.export_tables import ExportedFiles
from hydragnn_hpo.report.facts import Facts
from hydragnn_hpo.sanitize import escape_controls
from hydragnn_hpo.search import apply_values


@dataclass(frozen=True)
class BestTrial:
    """The best trial of a campaign."""

    name: str
    values: Mapping[str, Scalar]
    """What was searched, by key."""
    configuration: Mapping[str, JsonValue]
    """All settings of the trial, as its file ``trial.toml`` has them; paths are absolute."""
    objective: float | None
    """Its result, see ``search.objective``."""
    val_mae: Mapping[str, float]
    """Validation MAE by head, in the head's unit."""
    epochs: int
    folder: Path
    """Directory of the trial: configuration, attempts, checkpoints."""


def read_best_trial(facts: Facts) -> BestTrial:
    """Return the best trial that a campaign has so far.

    Raises:
        RunError: no trial has a result yet.
    """
    chosen = _find_trial(facts, None)
    trial = chosen.trial
    if facts.config.command is None:
        configuration = _training_config(facts, chosen).model_dump(mode="json", exclude_none=True)
    else:
        configuration = tomllib.loads(_command_toml(facts, chosen))
    return BestTrial(
        name=trial.name,
        values=dict(trial.values),
        configuration=configuration,
        objective=trial.objective,
        val_mae={head: mae for head, mae in trial.val_mae.items() if mae is not None},
        epochs=trial.epoch,
        folder=facts.run.trial(trial.name).path,
    )


def write_best_config(facts: Facts, out: Path, trial: str | None = None) -> ExportedFiles:
    """Write the configuration of the best trial, or of a named one.

    Args:
        facts: content of the run directory.
        out: the TOML file to write.
        trial: name of the trial; None means the best one.

    Raises:
        RunError: no trial has a result yet, or the named one is unknown.
    """
    chosen = _find_trial(facts, trial)
    command = facts.config.command
    note = ""
    if command is None:
        config = _training_config(facts, chosen)
        text = dump_config(config)
        run_with = "hydragnn-hpo trial THIS_FILE"
        open_with = f"hydragnn-hpo trial {out}"
        missing = [entry.store for entry in config.data if not Path(entry.store).exists()]
        if missing:
            note = f"{missing[0]} is not there: put it back, or change 'store' before you train."
    else:
        text = _command_toml(facts, chosen)
        run_with = " ".join(command.argv)
        open_with = run_with
        note = "Its trials are a command of yours: this is the file it reads."
    path = out.absolute()
    with storage(out):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, _heading(facts, chosen, run_with) + text)
    return ExportedFiles((out,), trials=1, epochs=0, open_with=open_with, note=note)


def _find_trial(facts: Facts, name: str | None) -> TrialHistory:
    """Find a trial by its name, or the best one.

    Raises:
        RunError: no trial has a result yet, or the named one is unknown.
    """
    if name is None:
        ranked = facts.state.ranked()
        if not ranked:
            raise RunError(
                f"{facts.run.path}: no trial has a result yet: wait for the first, or name one "
                "with --trial."
            )
        return facts.trials[ranked[0].name]
    if name in facts.trials:
        return facts.trials[name]
    names = list(facts.trials)
    known = names if len(names) <= 10 else [*names[:5], "...", names[-1]]
    sentence = unknown("trial", name, names).partition(" Known:")[0]
    raise RunError(f"{facts.run.path}: {sentence} Known: {', '.join(known)}.")


def _training_config(facts: Facts, chosen: TrialHistory) -> TrialConfig:
    """Return the resolved configuration, from the trial's own file if it still exists."""
    folder = facts.run.trial(chosen.name)
    if folder.path.parent != facts.run.trials:  # a name that leads out of the run directory
        folder = facts.run.trial("t")
    elif folder.config.exists():
        return make_paths_absolute(load_config(folder.config, TrialConfig), folder.path)
    # a store is named after its card; where the card is a file, its name is inside
    cards = [entry.card for entry in facts.config.data]
    names = [load_config(Path(c), CardConfig).name if Path(c).is_file() else c for c in cards]
    stores = stores_of(facts.config, names)
    config = trial_config(facts.config, chosen.name, chosen.trial.values, stores)
    return make_paths_absolute(config, folder.path)


def make_paths_absolute(config: TrialConfig, folder: Path) -> TrialConfig:
    """Make the paths of a trial absolute, so that its file works in any directory.

    Args:
        config: configuration of the trial.
        folder: directory that its paths are relative to.
    """
    data = [
        entry.model_copy(update={"store": str((folder / entry.store).resolve())})
        for entry in config.data
    ]
    training, start = config.training, config.training.start_from
    if start is not None:
        path = str((folder / start).resolve())
        training = training.model_copy(update={"start_from": path})
    return config.model_copy(update={"data": tuple(data), "training": training})


def _command_toml(facts: Facts, chosen: TrialHistory) -> str:
    """Return the content of the TOML file that the campaign's command reads."""
    path = facts.run.trial(chosen.name).config
    if path.parent.parent == facts.run.trials and path.exists():
        return to_toml(read_toml(path))
    seed = derive_seed(facts.config.seed, chosen.name, "training")
    values: Mapping[str, Any] = apply_values(facts.config.trial, dict(chosen.trial.values))
    return to_toml({"trial": chosen.name, "seed": seed, **values})


def _heading(facts: Facts, chosen: TrialHistory, command: str) -> str:
    """Return the comment at the top of the file: trial, errors, and the command that runs it."""
    trial = chosen.trial
    errors = [
        f"{head} {error:.4g} {facts.units.get(head, '')}".strip()
        for head, error in trial.val_mae.items()
    ]
    score = trial.score if isinstance(trial.score, tuple) else (trial.score,)
    reached = ", ".join(f"{part:.4g}" for part in score if part is not None) or "no result yet"
    lines = [
        f"Trial {trial.name} of campaign {facts.config.name} ({facts.run.path.absolute()}).",
        f"It is {trial.status} after epoch {trial.epoch}; objective {reached}.",
        *([f"Validation MAE: {'; '.join(errors)}."] if errors else []),
        f"To run it: {command}",
    ]
    return "".join(f"# {' '.join(escape_controls(line).split())}\n" for line in lines) + "\n"
