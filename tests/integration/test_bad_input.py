"""Bad input: one sentence that names file, place, what was found and what to do; exit code 2.

Nothing half-written is left, and nobody sees a traceback. What each reader and schema refuses is
told by ``contracts/test_readers.py``, ``unit/data`` and ``unit/config``, what is wrong with a
campaign by ``test_campaign_checks.py``.
"""

import ctypes
import json
import os
import resource
import shutil
import signal
from pathlib import Path

import pytest
from ase.io import write

from hydragnn_hpo.layout import TrialDir
from hydragnn_hpo.training import run_by_hand

GOLDENS = Path(__file__).parents[1] / "goldens"

# -- structures --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_bad_structure_is_named_by_whoever_builds(hpo):
    atoms = hpo.molecules(8)
    atoms[4].positions[1] = atoms[4].positions[0]
    card = hpo.card(atoms)
    says = ("tiny.extxyz", "structure 4", "atom 1 and atom 2 at one place", "remove one")
    hpo.refused("dataset", "build", card, says=says)
    assert hpo.files_of(hpo.folder) == {"tiny.extxyz", "tiny.toml"}
    hpo.refused("run", hpo.campaign(), "--run", "run", says=says)
    left = hpo.files_of(hpo.folder / "run")
    assert not [name for name in left if name.startswith(("data/", "trials/", "."))], left
    assert hpo.strays(hpo.folder / "run") == []


# -- trials ------------------------------------------------------------------------------

BAD_TRIALS = {
    "store": ({"data": {"store": "../none.bp"}}, ("none.bp", "is not a graph store")),
    "head": ({"heads": {"energy_lik": {}}}, ("energy_lik", "Did you mean 'energy_like'?")),
    "vector": (
        {"model": {"conv": "schnet"}, "heads": {"force_like": {}}},
        ("force_like", "schnet", "painn"),
    ),
    "cutoff": ({"model": {"cutoff": 9.0}}, ("model.cutoff", "9", "4")),
}


def test_a_wrong_trial_is_refused(hpo):
    hpo.store()
    for name, (change, says) in BAD_TRIALS.items():
        trial = hpo.trial(name, **change)
        code, sentence = run_by_hand(TrialDir(trial))
        assert code == 2
        assert sentence.startswith("error: ")
        assert not [word for word in says if word not in sentence], sentence
        assert not (trial / "checkpoints").exists()


def test_a_trial_that_diverges_says_at_which_epoch(hpo):
    hpo.store()
    trial = hpo.trial(training={"learning_rate": 1e30, "clip_norm": None, "warmup": 0.0})
    code, sentence = run_by_hand(TrialDir(trial))
    assert code == 1
    assert sentence.startswith("error: diverged: epoch 1, step ")
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


@pytest.fixture
def old_run(hpo):
    """A run directory that was left by Ctrl-C."""
    return Path(shutil.copytree(GOLDENS / "run", hpo.folder / "run"))


def test_the_directory_of_another_campaign_is_refused(hpo, old_run):
    before = (old_run / "campaign.toml").read_text()
    assert before.count("trials = 4\n") == 1
    shutil.copy(GOLDENS / "structures.toml", hpo.folder)
    shutil.copy(GOLDENS / "structures.extxyz", hpo.folder)
    (hpo.folder / "other.toml").write_text(before.replace("trials = 4\n", "trials = 7\n"))
    says = (str(old_run), "search.trials = 4", "7", "--run")
    hpo.refused("run", "other.toml", "--run", old_run, says=says)
    assert (old_run / "campaign.toml").read_text() == before


def test_what_is_no_directory_for_a_run_is_refused(hpo):
    folder = hpo.folder / "photos"
    folder.mkdir()
    (folder / "cat.jpg").write_text("meow")
    (hpo.folder / "taken").write_text("")
    hpo.refused("run", "ci", "--run", folder, says=("photos", "not empty", "--run"))
    hpo.refused("run", "ci", "--run", "taken", says=("taken", "--run"))
    assert hpo.files_of(hpo.folder) == {"photos/cat.jpg", "taken"}


def test_a_damaged_journal_is_named(hpo, old_run):
    journal = old_run / "events.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    assert b"trial" in lines[3]
    lines[3] = lines[3].replace(b"trial", b"tiral")
    journal.write_bytes(b"".join(lines))
    shutil.copy(GOLDENS / "structures.toml", hpo.folder)
    for command in (("status",), ("leaderboard",), ("run", "run/campaign.toml", "--run")):
        hpo.judge(hpo.here(*command, old_run), ("events.jsonl", "line 4", "damaged"), code=1)
    assert journal.read_bytes() == b"".join(lines)


# -- a full disk -------------------------------------------------------------------------


class SmallDisk:
    """A small file system, mounted on a folder; only root may."""

    def __init__(self, folder: Path, size: str) -> None:
        self.folder = os.fsencode(folder)
        self.size = size
        self.libc = ctypes.CDLL(None, use_errno=True)

    def __enter__(self):
        if self.libc.mount(
            b"none", self.folder, b"tmpfs", 0, f"size={self.size},mode=755".encode()
        ):
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
    card = hpo.card(hpo.molecules(300))
    disk = hpo.folder / "disk"
    disk.mkdir()
    with SmallDisk(disk, "64k"):
        out = ("--out", disk / "tiny.bp")
        hpo.refused("dataset", "build", card, *out, says=("tiny.bp", "space"))
        assert not any(disk.iterdir())


@pytest.mark.slow
def test_a_run_on_a_full_disk_leaves_nothing(hpo):
    hpo.card(hpo.molecules(300))
    run = hpo.folder / "run"
    run.mkdir()
    with SmallDisk(run, "96k"):
        hpo.refused("run", hpo.campaign(), "--run", run, says=("tiny.bp", "make room"))
        left = hpo.files_of(run)
        assert not [name for name in left if name.startswith(("data/", "trials/"))], left
        assert hpo.strays(run) == []


@pytest.mark.stress
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


@pytest.mark.parametrize("what", ["store", "predictions"])
def test_files_without_room_are_not_written(hpo, what):
    if what == "store":
        command = ("dataset", "build", hpo.card(hpo.molecules(300)), "--out", "out/tiny.bp")
    else:
        write(hpo.folder / "many.xyz", hpo.molecules(60), format="extxyz")
        ensemble = GOLDENS / "ensemble" / "ensemble.zip"
        command = ("predict", "many.xyz", "--ensemble", ensemble, "--out", "new.csv")
    before = hpo.files_of(hpo.folder)
    size = {"store": 20_000, "predictions": 1000}[what]
    limit = small_files(size)
    hpo.refused(*command, says=(Path(command[-1]).name,), alone=True, preexec_fn=limit)
    assert hpo.files_of(hpo.folder) == before
