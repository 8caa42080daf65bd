"""Bad input: one sentence that names file, place, what was found and what to do; exit code 2.

Nothing half-written is left, and nobody sees a traceback.
"""

import ctypes
import gzip
import json
import os
import resource
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from ase.io import write

# -- structures --------------------------------------------------------------------------


def lacks_target(atoms):
    del atoms[4].info["energy_like"]


def has_nan_target(atoms):
    atoms[4].info["energy_like"] = float("nan")


def has_nan_per_atom(atoms):
    atoms[4].arrays["charge_like"][1] = np.nan


def has_two_atoms_at_one_place(atoms):
    atoms[4].positions[1] = atoms[4].positions[0]


def has_a_place_nowhere(atoms):
    atoms[4].positions[1, 2] = np.inf


def has_an_unknown_element(atoms):
    atoms[4].numbers[0] = 0


BAD_STRUCTURES = {
    lacks_target: ("energy_like",),
    has_nan_target: ("energy_like", "nan"),
    has_nan_per_atom: ("charge_like", "atom 2"),
    has_two_atoms_at_one_place: ("atom 1 and atom 2 at one place", "remove one"),
    has_a_place_nowhere: ("atom 2", "inf"),
    has_an_unknown_element: ("unknown element", "atom 1"),
}


@pytest.mark.parametrize(
    ("spoil", "says"), BAD_STRUCTURES.items(), ids=lambda value: getattr(value, "__name__", "")
)
def test_a_bad_structure_is_named(hpo, spoil, says):
    atoms = hpo.molecules(8)
    spoil(atoms)
    card = hpo.card(atoms)
    hpo.refused("dataset", "build", card, says=("tiny.extxyz", "structure 5", *says))
    assert hpo.files_of(hpo.folder) == {"tiny.extxyz", "tiny.toml"}


def garbage(path):
    path.write_bytes(bytes(range(256)) * 40)


def empty(path):
    path.write_bytes(b"")


def missing(path):
    path.unlink(missing_ok=True)


def unknown_symbol(path):
    path.write_text(path.read_text().replace("\nO ", "\nQq ", 1))


def torn(path):
    path.write_bytes(path.read_bytes()[:-40])


@pytest.mark.parametrize("spoil", [garbage, empty, missing, unknown_symbol, torn])
def test_a_file_that_cannot_be_read_is_named(hpo, spoil):
    card = hpo.card(hpo.molecules(8))
    spoil(hpo.folder / "tiny.extxyz")
    hpo.refused("dataset", "build", card, says=("tiny.extxyz",))
    assert hpo.files_of(hpo.folder) <= {"tiny.extxyz", "tiny.toml"}


def test_a_truncated_archive_is_named(hpo):
    card = hpo.card(hpo.molecules(40), files=[{"path": "tiny.extxyz.gz"}])
    packed = gzip.compress((hpo.folder / "tiny.extxyz").read_bytes())
    (hpo.folder / "tiny.extxyz.gz").write_bytes(packed[: len(packed) // 2])
    hpo.refused("dataset", "build", card, says=("tiny.extxyz.gz",))
    assert not (hpo.folder / "tiny.bp").exists()


@pytest.mark.slow
def test_an_older_store_survives_a_failed_build(hpo):
    store = hpo.store()
    before = {name: (store / name).read_bytes() for name in hpo.files_of(store)}
    (hpo.folder / "tiny.extxyz").write_text("2\n\nC 0 0 0\nO 0 0 0\n")
    hpo.refused("dataset", "build", "tiny.toml", says=("structure 1",))
    assert {name: (store / name).read_bytes() for name in hpo.files_of(store)} == before


@pytest.mark.slow
def test_a_campaign_on_bad_structures_says_the_same_sentence(hpo):
    atoms = hpo.molecules(8)
    has_two_atoms_at_one_place(atoms)
    hpo.card(atoms)
    says = ("tiny.extxyz", "structure 5", "at one place")
    hpo.refused("run", hpo.campaign(), "--run", "run", says=says, alone=True)
    left = hpo.files_of(hpo.folder / "run")
    assert not [name for name in left if name.startswith(("data/", "trials/", "."))], left
    assert hpo.strays(hpo.folder / "run") == []


# -- settings ----------------------------------------------------------------------------


def test_an_unknown_key_in_a_card_is_named(hpo):
    card = hpo.card(hpo.molecules(4), graphs={"cutof": 3.0})
    hpo.refused("dataset", "build", card, says=("tiny.toml", "graphs.cutof", "mean 'cutoff'"))


BAD_CAMPAIGNS = {
    "key": ({"serch": {}}, ("'serch'", "Did you mean 'search'?")),
    "nested_key": ({"search": {"trails": 3}}, ("search.trails", "Did you mean 'trials'?")),
    "key_of_trial": (
        {"trial": {"training": {"learning_rat": 0.1}}},
        ("learning_rat", "Did you mean 'learning_rate'?"),
    ),
    "key_of_model": (
        {"trial": {"model": {"feature": 8}}},
        ("model.feature", "Did you mean 'features'?"),
    ),
    "conv": ({"space": {"model.conv": ["schent"]}}, ("schent", "Did you mean 'schnet'?")),
    "head": (
        {"trial": {"heads": {"energy_lik": {}}}},
        ("energy_lik", "Did you mean 'energy_like'?"),
    ),
    "vector_head": (
        {"trial": {"heads": {"force_like": {}}}},
        ("force_like", "vector", "schnet", "painn"),
    ),
    "cutoff": ({"trial": {"model": {"cutoff": 9.0}}}, ("model.cutoff", "9", "4")),
    "searched_key": (
        {"space": {"training.learning_rat": {"low": 1e-3, "high": 1e-2}}},
        ("learning_rat", "Did you mean"),
    ),
    "range": (
        {"space": {"model.features": {"low": 9, "high": 3}}},
        ("model.features", "low 9 is not below high 3"),
    ),
    "value_in_range": (
        {"space": {"model.layers": {"low": 0, "high": 3}}},
        ("model.layers", "greater than 0"),
    ),
    "rungs": ({"search": {"rungs": [6, 3]}}, ("search.rungs", "rise")),
    "type": ({"search": {"trials": "many"}}, ("search.trials", '"many"')),
    "brain": ({"search": {"brain": "deephyperr"}}, ("search.brain", "deephyper")),
    "card": ({"data": [{"card": "g2_xtbb"}]}, ("g2_xtbb", "Did you mean 'g2_xtb'?")),
}


@pytest.mark.parametrize(("change", "says"), BAD_CAMPAIGNS.values(), ids=BAD_CAMPAIGNS)
def test_a_wrong_campaign_is_refused_before_it_starts(hpo, change, says):
    hpo.card(hpo.molecules(8))
    before = hpo.files_of(hpo.folder) | {"campaign.toml"}
    hpo.refused("run", hpo.campaign(**change), "--run", "run", says=("campaign", *says))
    assert hpo.files_of(hpo.folder) == before
    assert not (hpo.folder / "run").exists()


@pytest.mark.parametrize(
    ("verb", "name"),
    [(("run",), "campaign.toml"), (("dataset", "build"), "card.toml"), (("trial",), "trial.toml")],
    ids=["campaign", "card", "trial"],
)
@pytest.mark.parametrize("content", [b"this is = = no TOML", b"\xff\xfe\x00", None])
def test_a_file_that_is_no_toml_is_named(hpo, verb, name, content):
    path = hpo.folder / name
    if content is not None:
        path.write_bytes(content)
    argument = hpo.folder if name == "trial.toml" else path
    hpo.refused(*verb, argument, says=(name,))
    assert hpo.files_of(hpo.folder) <= {name}


# -- trials ------------------------------------------------------------------------------

BAD_TRIALS = {
    "key": ({"training": {"epoch": 3}}, ("training.epoch", "Did you mean 'epochs'?")),
    "conv": ({"model": {"conv": "pain"}}, ("pain", "Did you mean 'painn'?")),
    "option": ({"model": {"options": {"activatio": 1}}}, ("activatio", "'activation'")),
    "store": ({"data": {"store": "../none.bp"}}, ("none.bp", "is not a graph store")),
    "head": ({"heads": {"energy_lik": {}}}, ("energy_lik", "Did you mean 'energy_like'?")),
    "vector": (
        {"model": {"conv": "schnet"}, "heads": {"force_like": {}}},
        ("force_like", "schnet", "painn"),
    ),
    "cutoff": ({"model": {"cutoff": 9.0}}, ("model.cutoff", "9", "4")),
}


@pytest.mark.slow
def test_a_wrong_trial_is_refused(hpo):
    hpo.store()
    for name, (change, says) in BAD_TRIALS.items():
        trial = hpo.trial(name, **change)
        done = hpo("trial", trial)
        assert done.code == 2, done.err
        assert "Traceback" not in done.err
        sentence = done.err.strip().splitlines()[-1]
        assert sentence.startswith("error: ")
        assert not [word for word in says if word not in sentence], sentence
        assert not (trial / "checkpoints").exists()


@pytest.mark.slow
def test_a_trial_that_diverges_says_at_which_epoch(hpo):
    hpo.store()
    trial = hpo.trial(training={"learning_rate": 1e30, "clip_norm": None, "warmup": 0.0})
    done = hpo("trial", trial)
    assert done.code == 1
    sentence = done.err.strip().splitlines()[-1]
    assert sentence.startswith("error: diverged: epoch 1, step ")
    assert "Traceback" not in done.err
    result = json.loads((trial / "attempts" / "001" / "result.json").read_text())
    assert (result["status"], result["reason"]) == ("failed", "diverged")
    assert "objective" not in result, "a failed trial is never a score"


@pytest.mark.slow
def test_a_campaign_in_which_every_trial_fails_says_so(hpo):
    hpo.card(hpo.molecules(60))
    wild = {"learning_rate": 1e30, "clip_norm": 1e30, "warmup": 0.0}
    campaign = hpo.campaign(
        trial={"training": wild}, space={"training.learning_rate": None}, search={"trials": 3}
    )
    done = hpo("run", campaign, "--run", "run")
    assert done.code == 1, done.err
    assert "Traceback" not in done.err
    [sentence] = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert "no trial has a result" in sentence
    assert "diverged" in sentence
    run = hpo.folder / "run"
    assert {e["reason"] for e in hpo.events(run, "ended")} == {"diverged"}
    assert not (run / "ensemble.zip").exists()
    assert hpo.strays(run) == []


# -- directories -------------------------------------------------------------------------


def test_the_directory_of_another_campaign_is_refused(finished):
    hpo = finished.hpo
    before = (finished.run / "campaign.toml").read_bytes()
    other = hpo.toml("other.toml", hpo.ci_campaign(search={"trials": 7}))
    says = (str(finished.run), "search.trials = 6", "7", "--run")
    hpo.refused("run", other, "--run", finished.run, says=says)
    assert (finished.run / "campaign.toml").read_bytes() == before


def test_a_foreign_directory_is_refused(hpo):
    folder = hpo.folder / "photos"
    folder.mkdir()
    (folder / "cat.jpg").write_text("meow")
    hpo.refused("run", "ci", "--run", folder, says=("photos", "not empty", "--run"))
    assert hpo.files_of(folder) == {"cat.jpg"}


def test_a_file_in_place_of_a_directory_is_refused(hpo):
    (hpo.folder / "taken").write_text("")
    hpo.refused("run", "ci", "--run", "taken", says=("taken", "--run"))


@pytest.mark.parametrize("verb", [("status",), ("leaderboard",), ("ensemble", "build")])
def test_what_is_no_run_directory_is_refused(hpo, verb):
    for place in (hpo.folder, hpo.folder / "nowhere"):
        hpo.refused(*verb, place, says=(str(place), "holds no campaign"))
    assert not any(hpo.folder.iterdir())


def test_a_damaged_journal_is_named(finished, hpo):
    run = hpo.folder / "run"
    run.mkdir()
    shutil.copy(finished.run / "campaign.toml", run)
    lines = (finished.run / "events.jsonl").read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b"trial", b"tiral")
    (run / "events.jsonl").write_bytes(b"".join(lines))
    for verb in ("status", "leaderboard"):
        hpo.refused(verb, run, says=("events.jsonl", "line 4", "damaged"))
    hpo.refused("run", "ci", "--run", run, says=("events.jsonl", "line 4", "damaged"))
    assert (run / "events.jsonl").read_bytes() == b"".join(lines)


# -- ensembles ---------------------------------------------------------------------------


def molecule(folder: Path) -> Path:
    (folder / "co.xyz").write_text("2\n\nC 0 0 0\nO 0 0 1.1\n")
    return folder / "co.xyz"


def test_a_broken_ensemble_is_named(finished, hpo):
    whole = (finished.run / "ensemble.zip").read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for content in (b"", b"no zip", whole[:-100], bytes(flipped)):
        (hpo.folder / "broken.zip").write_bytes(content)
        hpo.refused(
            "predict", molecule(hpo.folder), "--ensemble", "broken.zip", says=("broken.zip",)
        )
    hpo.refused("ensemble", "info", "broken.zip", says=("broken.zip",))
    hpo.refused("ensemble", "info", "none.zip", says=("none.zip",))
    hpo.refused("ensemble", "info", hpo.folder, says=(str(hpo.folder),))


def test_a_file_to_predict_must_exist_and_its_output_have_a_format(finished, hpo):
    ensemble = ("--ensemble", finished.run / "ensemble.zip")
    hpo.refused("predict", "none.xyz", *ensemble, says=("none.xyz", "no such file"))
    molecule(hpo.folder)
    hpo.refused("predict", "co.xyz", *ensemble, "--out", "new.pdf", says=("new.pdf", ".csv"))
    hpo.refused("predict", "co.xyz", *ensemble, "--out", "no/new.csv", says=("no/new.csv",))
    hpo.refused("predict", "co.xyz", *ensemble, "--device", "gpu", says=("'gpu'", "cpu"))
    ranks = ("--ranks", "2", "--out", "new.csv", "--device", "cpu")
    hpo.refused("predict", "co.xyz", *ensemble, *ranks, says=("--device", "slot"))
    hpo.refused("ensemble", "pick", "co.xyz", *ensemble, "--device", "cpu,cpu", says=("only one",))
    assert hpo.files_of(hpo.folder) == {"co.xyz"}


# -- a full disk -------------------------------------------------------------------------


class SmallDisk:
    """A small file system, mounted on a folder; only root may."""

    def __init__(self, folder: Path, size: str) -> None:
        self.folder, self.size = os.fsencode(folder), size
        self.libc = ctypes.CDLL(None, use_errno=True)

    def __enter__(self):
        if self.libc.mount(b"none", self.folder, b"tmpfs", 0, f"size={self.size}".encode()):
            why = os.strerror(ctypes.get_errno())
            pytest.skip(f"no file system can be mounted here ({why}); root may.")
        return self

    def grow(self, size: str) -> None:
        remount = 32
        assert not self.libc.mount(b"none", self.folder, b"tmpfs", remount, f"size={size}".encode())

    def __exit__(self, *error: object) -> None:
        self.libc.umount2(self.folder, 2)


def small_files(size: int):
    """Let the command write no file beyond a size, as a full disk would."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def test_a_build_on_a_full_disk_leaves_nothing(hpo):
    card = hpo.card(hpo.molecules(800))
    disk = hpo.folder / "disk"
    disk.mkdir()
    with SmallDisk(disk, "64k"):
        hpo.refused(
            "dataset",
            "build",
            card,
            "--out",
            disk / "tiny.bp",
            says=("tiny.bp", "space"),
            alone=True,
        )
        assert not any(disk.iterdir())


def test_a_build_without_room_for_its_files_leaves_nothing(hpo):
    card = hpo.card(hpo.molecules(800))
    out = ("--out", hpo.folder / "out" / "tiny.bp")
    limit = small_files(20_000)
    hpo.refused("dataset", "build", card, *out, says=("tiny.bp",), alone=True, preexec_fn=limit)
    assert not hpo.files_of(hpo.folder / "out")


@pytest.mark.slow
def test_a_run_on_a_full_disk_leaves_nothing(hpo):
    hpo.card(hpo.molecules(800))
    run = hpo.folder / "run"
    run.mkdir()
    with SmallDisk(run, "96k"):
        hpo.refused("run", hpo.campaign(), "--run", run, says=("tiny.bp", "make room"), alone=True)
        left = hpo.files_of(run)
        assert not [name for name in left if name.startswith(("data/", "trials/"))], left
        assert hpo.strays(run) == []


@pytest.mark.slow
def test_a_campaign_that_fills_the_disk_goes_on_when_there_is_room(hpo):
    hpo.card(hpo.molecules(150))
    campaign = hpo.campaign(
        trial={"training": {"checkpoint_seconds": 0.0}}, search={"trials": 4, "rungs": [6]}
    )
    disk = hpo.folder / "disk"
    disk.mkdir()
    run = disk / "run"
    with SmallDisk(disk, "900k") as mounted:
        hpo.refused("run", campaign, "--run", run, says=("disk is full", "make room"), alone=True)
        reasons = {event["reason"] for event in hpo.events(run, "ended")}
        assert "disk_full" in reasons
        no_fault = {"disk_full", "paused", "walltime", None}
        assert reasons <= no_fault, "a full disk is no trial's fault"
        assert not list(run.rglob(".*.safetensors.*"))
        assert hpo.strays(run) == []
        mounted.grow("50m")
        done = hpo("run", campaign, "--run", run)
        assert done.code == 0, done.err
        ends = {event["trial"]: event["outcome"] for event in hpo.events(run, "ended")}
        assert ends == dict.fromkeys(ends, "completed")
        assert len(ends) == 4


@pytest.mark.slow
def test_predictions_without_room_are_not_written(finished, hpo):
    write(hpo.folder / "many.xyz", hpo.molecules(60), format="extxyz")
    arguments = ("predict", "many.xyz", "--ensemble", finished.run / "ensemble.zip")
    limit = small_files(1000)
    hpo.refused(*arguments, "--out", "new.csv", says=("new.csv",), alone=True, preexec_fn=limit)
    assert hpo.files_of(hpo.folder) == {"many.xyz"}
