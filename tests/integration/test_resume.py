"""A trial that was killed, stopped or moved to other ranks goes on as if nothing had happened."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from hydragnn_hpo.campaign.outcome import EndedAttempt, read_outcome
from hydragnn_hpo.config.schema import to_toml
from hydragnn_hpo.config.trial_config import DISK_FULL, INTERRUPTED, PEER_LOST
from hydragnn_hpo.metrics_log import read_records

pytestmark = pytest.mark.slow

CONV = """
from torch import nn

class Dropping(nn.Module):
    def __init__(self, dimensions, options):
        super().__init__()
        self.filter = nn.Linear(dimensions.basis_size, dimensions.features)
        self.update = nn.Linear(dimensions.features, dimensions.features)
        self.dropout = nn.Dropout(0.3)

    def forward(self, scalars, state, edges):
        filters = self.filter(edges.pair_basis) * edges.pair_envelope
        return self.dropout(self.update(edges.filtered_sum(scalars, filters))), None
"""

EPOCHS, STEPS = 4, 5
"""36 graphs to train on, in steps of 8."""

RATE = {"learning_rate": 1e-2, "warmup": 0.0}
"""Errors must fall to the end: the best epoch is what most tests compare."""


class Ranks:
    """Starts attempts in the server of ``resume_ranks.py``."""

    def __init__(self, folder: Path, code: Path) -> None:
        self.folder = folder
        self.unbroken = dict[str, Path]()
        script = Path(__file__).parent / "resume_ranks.py"
        path = os.pathsep.join([str(code), os.environ.get("PYTHONPATH", "")])
        scratch = {"PYTHONPATH": path, "HYDRAGNN_HPO_SCRATCH": str(folder / "scratch")}
        self.server = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | scratch,
        )

    def __call__(self, trial: Path, world: int, *, epochs: int = EPOCHS, **task):
        """Run the next attempt of a trial to its end."""
        attempts = trial / "attempts"
        number = len(list(attempts.iterdir())) + 1 if attempts.exists() else 1
        folder = attempts / f"{number:03d}"
        folder.mkdir(parents=True)
        placement = {"attempt": number, "epochs": epochs, "width": world}
        (folder / "placement.toml").write_text(to_toml(placement))
        settings = {"trial": str(trial), "world": world, "attempt": number, **task}
        self.server.stdin.write(json.dumps(settings) + "\n")
        self.server.stdin.flush()
        return json.loads(self.server.stdout.readline()) | {"folder": folder}

    def whole(self, make, world: int, *, epochs: int = EPOCHS, **settings) -> Path:
        """Give a trial that was never broken; the same for all tests that want it."""
        key = str((world, epochs, sorted(settings.items())))
        if key not in self.unbroken:
            self.unbroken[key] = make(f"whole-{world}", epochs=epochs, **settings)
            self.done(self.unbroken[key], world, epochs=epochs)
        return self.unbroken[key]

    def done(self, trial: Path, world: int, **task) -> Path:
        """Run an attempt that must end well."""
        result = self(trial, world, **task)
        assert result["codes"] == [0] * world, (result, (result["folder"] / "log").read_text())
        return result["folder"]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resume")
    code = folder / "code"
    code.mkdir()
    (code / "dropping_convs.py").write_text(CONV)
    made = Ranks(folder, code)
    yield made
    made.server.communicate(timeout=60)


@pytest.fixture
def trial(hpo, tiny_store):
    """Write trial directories on one store."""

    def make(name, conv="painn", parallel=None, model=None, **training):
        return hpo.trial(
            name,
            seed=6,
            data={"store": str(tiny_store)},
            model={"conv": conv, "features": 8, **(model or {})},
            training={"epochs": EPOCHS, "checkpoint_seconds": 0.0, "ema": 0.8, **RATE, **training},
            **({"parallel": parallel} if parallel else {}),
        )

    return make


def weights_of(trial):
    return load_file(trial / "checkpoints" / "best.safetensors")


def farthest(one, other):
    """Return the largest difference of two sets of weights."""
    assert one, "there are some"
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max(initial=0.0)) for name in one)


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


def ready_of(folder):
    [ready] = [r for r in read_records(folder / "metrics.jsonl") if r["record"] == "ready"]
    return ready


def same_bits(whole, cut):
    """See that two trials came to the same end."""
    one = whole / "attempts" / "001"
    other = max((cut / "attempts").iterdir())
    for key in ("objective", "val_mae", "best_epoch", "epochs", "status"):
        assert result_of(one)[key] == result_of(other)[key], key
    name = "predictions.safetensors"
    assert (one / name).read_bytes() == (other / name).read_bytes()
    first, second = map(weights_of, (whole, cut))
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert value.tobytes() == second[name].tobytes(), name
    last = whole / "checkpoints" / "last.safetensors"
    if not last.exists():
        assert result_of(one)["best_epoch"] > 2, "else little is compared"
    else:
        first = load_file(last)
        second = load_file(cut / "checkpoints" / "last.safetensors")
        assert {"model", "optimizer", "average", "best"} == {name.split("/")[0] for name in first}
        assert first.keys() == second.keys()
        assert not [n for n, v in first.items() if v.tobytes() != second[n].tobytes()]


STRESS = pytest.mark.stress


@pytest.mark.parametrize(
    ("conv", "world"),
    [
        ("painn", 1),
        pytest.param("painn", 2, marks=STRESS),
        pytest.param("dropping_convs:Dropping", 1, marks=STRESS),
        ("dropping_convs:Dropping", 2),
    ],
)
def test_killed_at_a_step_and_resumed_equals_unbroken_in_every_bit(ranks, trial, conv, world):
    draw = random.Random(7 + world)
    cut = trial("cut", conv=conv)
    whole = ranks.whole(trial, world, conv=conv)
    for step in sorted(draw.sample(range(1, EPOCHS * STEPS), 2)):
        rank = draw.randrange(world)
        result = ranks(cut, world, kill={"rank": rank, "step": step}, look_seconds=0.0)
        assert result["codes"][rank] == -signal.SIGKILL
        assert result["codes"].count(PEER_LOST) == world - 1, (result["folder"] / "log").read_text()
        outcome = read_outcome(EndedAttempt(result["folder"], result["codes"]))
        assert (outcome["outcome"], outcome["reason"]) == ("interrupted", "host_lost")
    resumed = ranks.done(cut, world)
    assert ready_of(resumed)["resumed"]
    same_bits(whole, cut)


MOMENTS = (
    *("trainer.validate_epoch", "trial.load_trial", "trainer.Trainer.run"),
    *("trial.predict_split", "trial.write_json"),
)
"""What is called when a rank is killed, attempt by attempt; the last is the result, of rank 0."""


def test_killed_between_its_steps_and_resumed_equals_unbroken_in_every_bit(ranks, trial):
    """Also again and again without a new checkpoint: the one before stays until there is one."""
    cut = trial("cut")
    whole = ranks.whole(trial, 2, conv="painn")
    for number, moment in enumerate(MOMENTS):
        kill = {"rank": number % 2, "calling": moment}
        result = ranks(cut, 2, kill=kill, look_seconds=0.0)
        assert sorted(result["codes"]) == [-signal.SIGKILL, PEER_LOST], (moment, result)
        outcome = read_outcome(EndedAttempt(result["folder"], result["codes"]))
        assert (outcome["outcome"], outcome["reason"]) == ("interrupted", "host_lost")
    ranks.done(cut, 2)
    began = [ready_of(folder)["step"] for folder in sorted((cut / "attempts").iterdir())[2:]]
    assert began[0] > 0
    assert began == [began[0]] * 2 + [EPOCHS * STEPS] * 2, "nothing was trained twice"
    same_bits(whole, cut)


def test_dropout_does_something(ranks, trial):
    one, other = (ranks.whole(trial, n, conv="dropping_convs:Dropping") for n in (1, 2))
    assert farthest(weights_of(one), weights_of(other)) > 1e-4, "other ranks draw otherwise"


@pytest.mark.parametrize("worlds", [(2, 1), (1, 2), pytest.param((2, 3), marks=STRESS)], ids=str)
def test_goes_on_with_another_number_of_ranks(ranks, trial, worlds):
    cut = trial("cut")
    whole = ranks.whole(trial, worlds[0], conv="painn")
    unbroken = whole / "attempts" / "001"
    step = random.Random(sum(worlds)).randrange(STEPS + 1, EPOCHS * STEPS)
    kill = {"rank": worlds[0] - 1, "step": step}
    assert -signal.SIGKILL in ranks(cut, worlds[0], kill=kill, look_seconds=0.0)["codes"]
    resumed = ranks.done(cut, worlds[1])
    assert ready_of(resumed)["step"] > 0
    assert result_of(unbroken)["best_epoch"] > 2, "else little is compared"
    assert farthest(weights_of(whole), weights_of(cut)) < 1e-6
    one, other = (result_of(folder) for folder in (unbroken, resumed))
    assert one["objective"] == pytest.approx(other["objective"], rel=1e-6)
    losses = [r["loss"] for r in read_records(resumed / "metrics.jsonl") if r["record"] == "epoch"]
    same = [r["loss"] for r in read_records(unbroken / "metrics.jsonl") if r["record"] == "epoch"]
    for mine, theirs in zip(losses, same[-len(losses) :], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5), "also of the epoch that was cut"


MIDDLE = 22
"""A step in the middle of an epoch of 6."""


@pytest.mark.parametrize("how", ["term", "end"])
def test_the_end_that_is_near_leaves_a_checkpoint_at_the_next_look(ranks, trial, how):
    """A signal says so, or the environment of the allocation."""
    settings = {"epochs": 6, "checkpoint_seconds": 1e6}
    cut = trial("cut", **settings)
    environment = {"SLURM_JOB_END_TIME": str(time.time() + 3600), "HYDRAGNN_HPO_END_MARGIN": "60"}
    fields = {how: MIDDLE, "environment": environment if how == "end" else {}}
    result = ranks(cut, 2, epochs=6, look_seconds=0.0, **fields)
    assert result["codes"] == [INTERRUPTED] * 2
    assert not (result["folder"] / "result.json").exists()
    *_, saved, obeyed = read_records(result["folder"] / "metrics.jsonl")
    assert (saved["record"], obeyed["record"]) == ("checkpoint", "obeyed")
    assert obeyed["reason"] == "walltime"
    assert saved["step"] == MIDDLE + 1
    resumed = ranks.done(cut, 2, epochs=6)
    assert ready_of(resumed)["step"] == saved["step"], "nothing was trained twice"
    whole = ranks.whole(trial, 2, **settings)
    same_bits(whole, cut)


SHARDED = [
    pytest.param({"shard": "full"}, (4, 2, 1), id="full, 4 to 2 to 1", marks=STRESS),
    pytest.param({"shard": "full"}, (1, 2), id="full, 1 to 2"),
    pytest.param({"shard": "gradients", "tensor": 2}, (4, 2), id="tensor, 4 to 2", marks=STRESS),
]


@pytest.mark.parametrize(("parallel", "worlds"), SHARDED)
def test_a_sharded_trial_goes_on_with_another_number_of_ranks(ranks, trial, parallel, worlds):
    cut = trial("cut", parallel=parallel, precision="fp64")
    whole = ranks.whole(trial, 1, precision="fp64")
    draw = random.Random(len(worlds))
    checkpoints = cut / "checkpoints"
    for number, world in enumerate(worlds[:-1]):
        step = draw.randrange(7 * number + 5, 7 * number + 11)
        kill = {"rank": draw.randrange(world), "step": step}
        result = ranks(cut, world, kill=kill, look_seconds=0.0)
        killed = result["codes"].pop(kill["rank"])
        assert killed == -signal.SIGKILL, (result["folder"] / "log").read_text()
        assert result["codes"] == [PEER_LOST] * (world - 1), (result["folder"] / "log").read_text()
        assert (checkpoints / "last.json").exists() == (world > 1)
        assert (checkpoints / "last.safetensors").exists() == (world == 1)
    resumed = ranks.done(cut, worlds[-1])
    assert ready_of(resumed)["step"] > 0
    assert result_of(resumed)["best_epoch"] > 2, "else little is compared"
    assert farthest(weights_of(whole), weights_of(cut)) < 1e-10
    left = {path.name for path in checkpoints.iterdir()}
    kept = {"last.json", "sharded-000000020"} if worlds[-1] > 1 else {"last.safetensors"}
    assert left == {"best.safetensors"} | kept, "nothing else is left"


WAYS = [pytest.param({}, id="whole"), pytest.param({"shard": "full"}, id="parts")]


@pytest.mark.parametrize("parallel", WAYS)
def test_killed_while_writing_goes_on_from_the_checkpoint_before(ranks, trial, parallel):
    settings = {"parallel": parallel} if parallel else {"conv": "painn"}
    cut = trial("cut", **settings)
    kill = {"rank": 0, "step": 5, "writing": True}
    result = ranks(cut, 2, kill=kill, look_seconds=0.0)
    assert result["codes"] == [-signal.SIGKILL, PEER_LOST], (result["folder"] / "log").read_text()
    before = {path.name for path in (cut / "checkpoints").iterdir()}
    half = [name for name in before if name.startswith(("sharded-", ".last.safetensors."))]
    assert len(half) == (2 if parallel else 1), "what counts, and what does not yet"
    saved = [r for r in read_records(result["folder"] / "metrics.jsonl") if "bytes" in r]
    resumed = ranks.done(cut, 2)
    assert ready_of(resumed)["step"] == saved[-1]["step"]
    same_bits(ranks.whole(trial, 2, **settings), cut)
    kept = {"last.json", "sharded-000000020"} if parallel else {"last.safetensors"}
    assert {path.name for path in (cut / "checkpoints").iterdir()} == {"best.safetensors"} | kept


def damage(checkpoints, parallel):
    """Cut off a checkpoint: of parts that of the second rank alone, so that the first can read."""
    last = checkpoints / "last.safetensors"
    if parallel:
        folder = checkpoints / json.loads((checkpoints / "last.json").read_text())["folder"]
        (last,) = folder.glob("__1_*")
    content = last.read_bytes()
    last.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize(
    ("parallel", "best"),
    [
        ({}, True),
        pytest.param({"shard": "full"}, True, marks=STRESS),
        ({"shard": "full"}, False),
    ],
)
def test_ranks_agree_on_what_to_go_on_from_where_a_checkpoint_is_damaged(
    ranks, trial, parallel, best
):
    cut = trial("cut", parallel=parallel)
    ranks.done(cut, 2, epochs=3)
    damage(cut / "checkpoints", parallel)
    if not best:
        (cut / "checkpoints" / "best.safetensors").write_bytes(b"")
    resumed = ranks.done(cut, 2)
    assert result_of(resumed)["epochs"] == EPOCHS
    records = [r["record"] for r in read_records(resumed / "metrics.jsonl")]
    assert records.count("unreadable") == 1 + (not best)
    assert ready_of(resumed)["origin"] == ("best" if best else "start")
    if not best:
        same_bits(ranks.whole(trial, 2, parallel=parallel), cut)


@pytest.mark.parametrize(
    ("rank", "seen", "best"),
    [
        pytest.param(0, "none", True, marks=STRESS),
        (1, "older", True),
        (1, "none", False),
    ],
)
def test_no_rank_goes_on_alone_from_a_checkpoint_that_another_does_not_see(
    ranks, trial, rank, seen, best
):
    cut = trial("cut")
    checkpoints, file = cut / "checkpoints", cut / "seen.safetensors"
    ranks.done(cut, 2, epochs=2)
    if seen == "older":
        shutil.copy(checkpoints / "last.safetensors", file)
    ranks.done(cut, 2, epochs=3)
    if not best:
        (checkpoints / "best.safetensors").write_bytes(b"")
    resumed = ranks.done(cut, 2, sees={"rank": rank, "file": str(file)})
    assert ready_of(resumed)["origin"] == ("best" if best else "start")
    records = [r for r in read_records(resumed / "metrics.jsonl") if r["record"] == "unreadable"]
    assert {r["checkpoint"] for r in records} >= {"last.safetensors"}
    if not best:
        same_bits(ranks.whole(trial, 2), cut)


@pytest.mark.parametrize(
    ("parallel", "rank"), [({}, 0), pytest.param({"shard": "full"}, 1, marks=STRESS)], ids=str
)
def test_a_full_disk_ends_no_trial(ranks, trial, parallel, rank):
    cut = trial("cut", parallel=parallel)
    result = ranks(cut, 2, full={"rank": rank, "step": 7}, look_seconds=0.0)
    assert DISK_FULL in result["codes"]
    assert set(result["codes"]) <= {DISK_FULL, PEER_LOST}
    log = (result["folder"] / "log").read_text()
    assert "cannot be written (No space left on device); make room" in log
    assert "Traceback" not in log
    outcome = read_outcome(EndedAttempt(result["folder"], result["codes"]))
    assert (outcome["outcome"], outcome["reason"]) == ("interrupted", "disk_full")
    assert ready_of(ranks.done(cut, 2))["step"] > 0
