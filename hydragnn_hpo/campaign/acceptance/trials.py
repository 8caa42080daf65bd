"""One small trial on the shipped molecules, on whichever slots: what is compared."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from hydragnn_hpo.campaign.acceptance.bench import Bench
from hydragnn_hpo.campaign.acceptance.comparing import Weights
from hydragnn_hpo.campaign.auxiliary_job import AuxiliaryJob
from hydragnn_hpo.campaign.outcome import last_lines
from hydragnn_hpo.config.loading import dump, parse, to_toml
from hydragnn_hpo.config.trial import PlacementConfig, TrialConfig
from hydragnn_hpo.errors import JobError
from hydragnn_hpo.files import read_json, storage, write_text
from hydragnn_hpo.launching.job import Job, Slot
from hydragnn_hpo.layout import RunDir, TrialDir
from hydragnn_hpo.shipped import find

CARD = "g2_xtb"
"""The data set: it ships with us, 148 molecules."""

BUILD_SECONDS = 300.0

_SEED = 11


def store_of(bench: Bench) -> Path:
    """Give the store of all trials; built, as a job, if it is not there yet.

    Raises:
        JobError: the job did not come to a good end.
        ConfigError: its answer is an error.
    """
    run = RunDir(bench.site.folder)
    store = run.store(CARD)
    if (store / "index.json").exists():
        return store
    folder = bench.new_folder("build")
    with storage(run.data):
        run.data.mkdir(mode=0o700, exist_ok=True)
    errand = AuxiliaryJob(folder, "build", folder.name)
    card = find(CARD, "graph_datasets").resolve()
    order = errand.job({"card": str(card), "out": str(store.resolve())}, bench.backend.slots[0])
    ended = bench.run([order], BUILD_SECONDS)[order.id]
    if ended.error:
        raise JobError(f"the job that builds the store {ended.error}; see {errand.log}.")
    errand.answer()
    return store


def write_trial(
    folder: Path, store: Path, *, epochs: int, precision: str, checkpoint_seconds: float
) -> TrialDir:
    """Write a trial whose result depends on nothing but its arguments but for the store's path."""
    values: dict[str, Any] = {
        "trial": "acceptance",
        "seed": _SEED,
        "data": {"store": str(store.resolve())},
        "model": {"conv": "painn", "features": 16, "layers": 2, "cutoff": 4.0},
        "heads": {
            "atomization_energy_per_atom": {"pool": "contributions"},
            "partial_charge": {},
        },
        "training": {
            "epochs": epochs,
            "global_batch": 32,
            "learning_rate": 2e-3,
            "precision": precision,
            "checkpoint_seconds": checkpoint_seconds,
        },
    }
    trial = TrialDir(folder)
    parse(values, TrialConfig, str(trial.config))
    with storage(folder):
        folder.mkdir(mode=0o700, parents=True)
    write_text(trial.config, to_toml(values))
    return trial


def attempt_of(trial: TrialDir, slots: Sequence[Slot], *, epochs: int, store: Path) -> Job:
    """Order the next attempt of a trial, as a campaign does."""
    number = max(trial.attempts(), default=0) + 1
    place = trial.attempt(number)
    placement = PlacementConfig(
        attempt=number,
        epochs=epochs,
        width=len(slots),
        slots=tuple(slot.name for slot in slots),
        reason="acceptance",
    )
    with storage(place):
        place.mkdir(parents=True)
        trial.control.unlink(missing_ok=True)
    write_text(place / "placement.toml", dump(placement))
    one_host = len({slot.host for slot in slots}) == 1
    return Job(
        id=f"{trial.path.parent.name}.{trial.path.name}.{number}",
        kind="train",
        width=len(slots),
        spec={"trial_dir": str(trial.path.resolve()), "attempt": number, "one_host": one_host},
        log=place / "log",
        lease=place / "lease",
        watch=place / "metrics.jsonl",
        slots=tuple(slots),
        control=trial.control,
        folder=trial.path,
        needs=(store,),
    )


def result_of(trial: TrialDir) -> Mapping[str, Any]:
    """Read the result of a trial's last attempt.

    Raises:
        JobError: there is none, or it is a failure.
    """
    folder = trial.attempt(max(trial.attempts(), default=1))
    if not (folder / "result.json").exists():
        raise JobError(f"{trial.path} has no result: {last_lines(folder / 'log')}.")
    result: dict[str, Any] = read_json(folder / "result.json")
    if result["status"] == "failed":
        raise JobError(f"{trial.path} failed ({result['reason']}): {result['message']}.")
    return result


def weights_of(trial: TrialDir) -> Weights:
    """Read the weights of a trial's best epoch."""
    return load_file(trial.best)


def settled_on(slots: Sequence[Slot]) -> tuple[str, ...]:
    """Give the hosts of some slots, each once."""
    return tuple(dict.fromkeys(slot.host for slot in slots))
