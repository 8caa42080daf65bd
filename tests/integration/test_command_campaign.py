"""Whole campaigns over commands: the shipped one, and commands that behave badly."""

import importlib.util
import itertools
import json
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

MPIEXEC = Path(sys.executable).parent / "mpiexec"
WORKFLOW = Path(__file__).parents[2] / "workflows" / "parallel_strategy"


def stand_in():
    spec = importlib.util.spec_from_file_location("stand_in", WORKFLOW / "stand_in.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def layouts(config):
    """Try all values with the constraints written out by hand."""
    names = [name.partition(".")[2] for name in config["space"]]
    for values in itertools.product(*config["space"].values()):
        launch = dict(zip(names, values, strict=True))
        gpus = launch["tensor"] * launch["pipeline"]
        fits = 64 % gpus == 0 and 48 % launch["pipeline"] == 0 and 64 % launch["tensor"] == 0
        if fits and 512 % (64 // gpus * launch["micro_batch"]) == 0:
            yield launch


SPACE = {
    "tensor": [2, 4],
    "pipeline": [8, 16, 32],
    "micro_batch": [1, 8],
    "recompute": [True, False],
}
"""A part of the shipped one, with the best layout of all; constraints leave out some."""


@pytest.mark.slow
def test_the_shipped_campaign_finds_the_layout_that_trying_all_finds(hpo):
    config = tomllib.loads((WORKFLOW / "campaign.toml").read_text())
    config["space"] = {f"launch.{name}": choices for name, choices in SPACE.items()}
    shutil.copy(WORKFLOW / "stand_in.py", hpo.folder)
    step = stand_in().step
    tried = [(step(config["trial"] | {"launch": one}), one) for one in layouts(config)]
    ended = [(made["objective"], one) for made, one in tried if made["status"] == "completed"]
    fastest, best = min(ended, key=lambda item: item[0])

    done = hpo("run", hpo.toml("campaign.toml", config), "--run", "run", "--json")

    assert done.code == 0, done.err
    printed = json.loads(done.out)
    assert printed["ensemble"] is None
    rows = printed["leaderboard"]["trials"]
    assert rows[0]["objective"] == fastest
    assert rows[0]["values"] == {f"launch.{name}": value for name, value in best.items()}
    layouts_run = sorted(sorted(row["values"].items()) for row in rows)
    allowed = [{f"launch.{name}": value for name, value in one.items()} for _, one in tried]
    assert layouts_run == sorted(sorted(one.items()) for one in allowed), "each once"
    reasons = {row["reason"] for row in rows if row["status"] == "failed"}
    assert reasons == {"out_of_memory"}
    for row in rows:
        trial = hpo.folder / "run" / "trials" / row["trial"]
        launch = tomllib.loads((trial / "trial.toml").read_text())["launch"]
        assert row["values"] == {f"launch.{name}": value for name, value in launch.items()}
        result = json.loads((trial / "attempts" / "001" / "result.json").read_text())
        assert result == step(config["trial"] | {"launch": launch})


def test_the_stand_in_follows_its_sources():
    """Idle share of 8 stages and 32 micro-batches: 7/39. Parameters of 22B: 12 l h^2 = 21.7e9."""
    model = {"layers": 48, "hidden": 6144, "heads": 64, "sequence": 2048}
    launch = {"tensor": 8, "pipeline": 8, "micro_batch": 16, "recompute": True}
    config = {"ranks": 64, "batch": 512, "model": model, "launch": launch}
    result = stand_in().step(config)
    assert result["idle_share"] == pytest.approx(7 / 39)
    weights = 16 * 12 * 48 * 6144**2 / 64
    assert result["memory_bytes"] == pytest.approx(weights + 48 * 2 * 2048 * 16 * 6144)
    alone = config | {"launch": launch | {"tensor": 1, "pipeline": 1}}
    assert stand_in().step(alone)["reason"] == "out_of_memory"


TRAIN = """
import json, os, sys
from pathlib import Path
import tomllib
trial, folder, checkpoints, epochs = *map(Path, sys.argv[1:4]), int(sys.argv[4])
rate = tomllib.loads(trial.read_text())["rate"]
kept = checkpoints / "epoch"
first = int(kept.read_text()) if kept.exists() else 0
for epoch in range(first + 1, epochs + 1):
    part = checkpoints / "epoch.{}".format(os.environ["RANK"])
    part.write_text(str(epoch))
    part.rename(kept)  # other ranks read it
    with (folder / "metrics.jsonl").open("a") as file:
        record = {"record": "epoch", "epoch": epoch, "objective": rate / epoch}
        file.write(json.dumps(record) + "\\n")
with (checkpoints / "attempts").open("a") as file:
    file.write(f"{first}-{epochs} {os.environ['RANK']}\\n")
status = "completed" if epochs == 6 else "stopped"
part = folder / "part.{}".format(os.environ["RANK"])
part.write_text(json.dumps({"status": status, "objective": rate / epochs, "epochs": epochs}))
part.rename(folder / "result.json")
"""


ONE = {"trials": 1, "initial": 1, "finalists": 1, "rungs": [2]}
"""A search whose only trial is not promoted."""


def campaign(hpo, code, **changes):
    (hpo.folder / "train.py").write_text(code)
    values = {
        "name": "commands",
        "seed": 3,
        "space": {"rate": {"low": 1.0, "high": 2.0}},
        "search": {
            "brain": "random",
            "trials": 4,
            "rungs": [2, 6],
            "finalists": 2,
            "promotion": "together",
        },
        "command": {
            "argv": ["{python}", "{here}/train.py", "{trial}", "{folder}", "{checkpoints}"]
            + ["{epochs}"]
        },
        "machine": {"slots": 2, "lease_seconds": 120.0},
    }
    return hpo.toml("campaign.toml", hpo.merged(values, changes))


@pytest.mark.slow
def test_a_search_that_has_tried_all_points_says_so_before_and_after(hpo):
    """Two widths by three rates are 6 points, of which a rule leaves 5; 20 trials were wanted."""
    path = campaign(
        hpo,
        TRAIN,
        space={"width": [1, 2], "rate": [1.0, 2.0, 3.0]},
        search={**ONE, "trials": 20, "constraints": ["width * rate < 6"]},
    )
    ahead = (
        "[space] has 5 points, fewer than the 20 of search.trials: the search ends after them; add "
        "values to [space], or lower search.trials."
    )
    after = "all points of [space] were tried: the search ends after 5 of 20 trials; "
    dry = hpo("run", path, "--run", "run", "--dry-run")
    assert ahead in " ".join(dry.err.split())
    assert after not in " ".join(dry.err.split())
    done = hpo("run", path, "--run", "run", "--json")
    assert done.code == 0, done.err
    assert ahead in " ".join(done.err.split())
    assert after in " ".join(done.err.split())
    assert len(json.loads(done.out)["leaderboard"]["trials"]) == 5


@pytest.mark.slow
def test_a_huge_objective_is_written_with_an_exponent(hpo, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    code = TRAIN.replace("rate / epochs", "1e300").replace("rate / epoch", "1e300")
    path = campaign(hpo, code, search={**ONE, "trials": 2, "finalists": 1})
    done = hpo("run", path, "--run", "run")
    assert done.code == 0, done.err
    assert "1e+300" in done.out
    lines = (done.out + done.err + hpo("leaderboard", "run").out).splitlines()
    assert max(map(len, lines)) < 250, "fixed, it has 301 digits before the point"


@pytest.mark.slow
def test_a_command_climbs_rungs_from_its_own_checkpoints(hpo):
    path = campaign(hpo, TRAIN)

    done = hpo("run", path, "--run", "run", "--json")

    assert done.code == 0, done.err
    rows = json.loads(done.out)["leaderboard"]["trials"]
    assert [row["status"] for row in rows] == ["completed"] * 2 + ["stopped"] * 2
    assert [row["epochs"] for row in rows] == [6, 6, 2, 2]
    rates = [row["values"]["rate"] for row in rows]
    assert rates == sorted(rates), "the lowest rate has the lowest objective"
    for row in rows:
        assert row["objective"] == pytest.approx(row["values"]["rate"] / row["epochs"])
        notes = hpo.folder / "run" / "trials" / row["trial"] / "checkpoints" / "attempts"
        wanted = ["0-2 0", "2-6 0"] if row["epochs"] == 6 else ["0-2 0"]
        assert notes.read_text().split("\n")[:-1] == wanted
    epochs = hpo.events(hpo.folder / "run", "epoch")
    assert len(epochs) == 4 * 2 + 2 * 4


@pytest.mark.slow
def test_a_command_that_crashes_ends_the_campaign_after_three_with_a_line_of_its_script(hpo):
    lines = ("import ctypes, faulthandler", "faulthandler.enable()", "def descend():")
    path = campaign(hpo, "\n".join((*lines, "    ctypes.string_at(0)", "descend()")))

    done = hpo("run", path, "--run", "run")

    message = f"ended (exit code 139) without result.json: {hpo.folder}/train.py:4 in descend"
    assert done.code == 1
    assert message in " ".join(done.err.split())
    assert "Traceback" not in done.err
    ended = hpo.events(hpo.folder / "run", "ended")
    assert [e["message"] for e in ended if e["reason"] == "bug"][:3] == [message] * 3
    assert {e["reason"] for e in ended} <= {"bug", "paused"}, "one may run when the third fails"
    assert not hpo.events(hpo.folder / "run", "host_failed")


@pytest.mark.slow
@pytest.mark.skipif(not MPIEXEC.exists(), reason="mpiexec is not here: install the extra [mpi].")
def test_ranks_of_mpiexec_on_two_hosts_are_one_world(hpo):
    """Two slots on each of two hosts, whose agents mpiexec has started too."""
    code = TRAIN + (
        "from mpi4py import MPI\n"
        "(checkpoints / f'world.{MPI.COMM_WORLD.rank}').write_text(str(MPI.COMM_WORLD.size))\n"
    )
    nodes = hpo.folder / "nodes"
    nodes.write_text("h1\nh2\n")
    changes = {"command": {"width": 4, "launcher": "mpiexec"}}
    changes |= {"machine": {"backend": "mpiexec", "slots": 2, "interface": "lo"}}
    path = campaign(hpo, code, **changes, search=ONE)

    hosts = {"PBS_NODEFILE": str(nodes), "HYDRA_LAUNCHER": "fork"}
    done = hpo("run", path, "--run", "run", "--json", **hosts, seconds=400)

    assert done.code == 0, done.err
    rows = json.loads(done.out)["leaderboard"]["trials"]
    assert [row["epochs"] for row in rows] == [2]
    folder = hpo.folder / "run" / "trials" / "t0000" / "checkpoints"
    assert [(folder / f"world.{rank}").read_text() for rank in range(4)] == ["4"] * 4


@pytest.mark.stress
@pytest.mark.skipif(not MPIEXEC.exists(), reason="mpiexec is not here: install the extra [mpi].")
def test_ranks_that_wait_for_one_that_failed_are_ended(hpo):
    """Rank 1 ends before MPI_Init, for which the other waits; hydra leaves it alone."""
    code = (
        "import os, sys\nif os.environ['RANK'] == '1':\n    sys.exit(3)\nfrom mpi4py import MPI\n"
    )
    changes = {"command": {"width": 2, "launcher": "mpiexec"}}
    changes |= {"machine": {"backend": "local", "slots": 2}}
    path = campaign(hpo, code, **changes, search=ONE)

    done = hpo("run", path, "--run", "run", "--json", seconds=200)

    (ended,) = hpo.events(hpo.folder / "run", "ended")
    assert (ended["outcome"], ended["reason"]) == ("failed", "bug"), done.err
    log = hpo.folder / "run" / "trials" / "t0000" / "attempts" / "001" / "log"
    assert "a rank failed and others waited for it: they were ended." in log.read_text()


@pytest.mark.stress
def test_ranks_of_srun_are_where_their_slots_are(hpo, slurm, monkeypatch):
    for name, value in slurm.allocate(2).items():
        monkeypatch.setenv(name, value)
    note = (
        "seen = [os.environ[name] for name in ('SLURMD_NODENAME', 'SLURM_PROCID', 'WORLD_SIZE')]\n"
        "(checkpoints / f'node.{os.environ[\"RANK\"]}').write_text(' '.join(seen))"
    )
    changes = {"command": {"width": 2, "launcher": "srun"}}
    changes |= {"machine": {"backend": "slurm", "slots": 1}}
    code = TRAIN + note
    path = campaign(hpo, code, **changes, search=ONE)

    done = hpo("run", path, "--run", "run", "--json")

    assert done.code == 0, done.err
    rows = json.loads(done.out)["leaderboard"]["trials"]
    assert [row["epochs"] for row in rows] == [2]
    folder = hpo.folder / "run" / "trials" / "t0000" / "checkpoints"
    nodes = [(folder / f"node.{rank}").read_text() for rank in (0, 1)]
    assert nodes == ["node1 0 2", "node2 1 2"]
