"""What may befall a store while it is staged and read: never a wrong batch, never a hang."""

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from stores import read_store

from hydragnn_hpo.data.columns import Columns
from hydragnn_hpo.data.store_access import LAYOUT, open_store
from hydragnn_hpo.errors import DataError
from hydragnn_hpo.files import read_json

pytestmark = pytest.mark.timeout(600)

JOB = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
from hydragnn_hpo import files
from hydragnn_hpo.data import store_access as stage
from hydragnn_hpo.data.store_access import open_store

store, scratch, log, moment = sys.argv[1:]
stage.RUN_BYTES = 1

def before(module, name, act):
    inner = getattr(module, name)
    def wrapped(*args, **kwargs):
        act(*args)
        return inner(*args, **kwargs)
    setattr(module, name, wrapped)

def note(*_):
    with open(log, "a") as file:
        file.write("staged\\n")

appended = []
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
def die_late(*_):
    appended.append(1)
    if len(appended) == 6:
        die()

before(stage, "_write_stage", note)
if moment == "slow":
    before(stage, "_put", lambda *_: time.sleep(0.05))
elif moment == "reserving":
    before(os, "posix_fallocate", die)
elif moment == "sixth window":
    before(stage, "_put", die_late)
elif moment == "manifest":
    before(stage, "write_json", die)
elif moment == "renaming":
    before(os, "rename", die)
elif moment == "mapping":
    before(stage, "_map_arrays", die)
graphs = open_store(Path(store), Path(scratch))
taken = graphs.take(np.arange(60))
print(type(graphs).__name__, float(taken.positions.sum()).hex(), taken.ids[59])
"""


def start(
    store: Path, scratch: Path, moment: str, *, limit: Callable[[], None] | None = None
) -> "subprocess.Popen[str]":
    arguments = [str(store), str(scratch), str(store.parent / "log"), moment]
    return subprocess.Popen(
        [sys.executable, "-B", "-c", JOB, *arguments],  # a file of code may not be cut off either
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limit,
    )


def expected(store: Path, how: str) -> str:
    columns = read_store(store)
    return f"{how} {float(columns.positions.sum()).hex()} {columns.ids[59]}\n"


def ended(job: "subprocess.Popen[str]") -> str:
    out, err = job.communicate(timeout=250)
    assert job.returncode == 0, err
    return out


MOMENTS = [
    "sixth window",
    "renaming",
    *(
        pytest.param(moment, marks=pytest.mark.stress)
        for moment in ("reserving", "manifest", "mapping")
    ),
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_after_a_kill_the_next_one_cleans_up_and_stages(
    many_windows: Path, tmp_path: Path, moment: str
) -> None:
    job = start(many_windows, tmp_path / "scratch", moment)
    job.communicate(timeout=250)
    assert job.returncode == -signal.SIGKILL
    (stage,) = tmp_path.glob("scratch/*/stage")
    torn = list(stage.glob(".*.part"))
    assert len(torn) == (0 if moment == "mapping" else 1)
    columns = open_store(many_windows, tmp_path / "scratch")
    whole = read_store(many_windows)
    assert isinstance(columns, Columns)
    assert columns.positions.tobytes() == whole.positions.tobytes()
    assert columns.edge_offset.tobytes() == whole.edge_offset.tobytes()
    assert list(stage.glob(".*.part")) == []
    (target,) = (path for path in stage.iterdir() if path.is_dir())
    assert read_json(target / "manifest.json")["layout"] == LAYOUT


@pytest.mark.slow
def test_jobs_at_once_stage_once(many_windows: Path, tmp_path: Path) -> None:
    started = [start(many_windows, tmp_path / "scratch", "slow") for _ in range(3)]
    assert {ended(job) for job in started} == {expected(many_windows, "Columns")}
    assert (tmp_path / "log").read_text() == "staged\n"


@pytest.mark.slow
def test_those_who_wait_for_a_killed_one_go_on(many_windows: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    started = [start(many_windows, scratch, m) for m in ("sixth window", "slow", "slow")]
    started[0].communicate(timeout=250)
    assert {ended(job) for job in started[1:]} == {expected(many_windows, "Columns")}


def small_files() -> None:
    """Let every file end after 1500 bytes, the nearest thing to a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))


@pytest.mark.slow
def test_a_full_place_is_read_around(many_windows: Path, tmp_path: Path) -> None:
    job = start(many_windows, tmp_path / "scratch", "never", limit=small_files)
    out, err = job.communicate(timeout=250)
    assert job.returncode == 0, err
    assert out == expected(many_windows, "WindowCache")
    assert "is read in windows, which is slower" in err
    assert "File too large" in err
    assert [path for path in tmp_path.glob("scratch/*/stage/*") if path.is_dir()] == []


def test_altered_statistics_are_an_error(many_windows: Path, tmp_path: Path) -> None:
    stats = read_json(many_windows / "stats.json")
    (many_windows / "stats.json").write_text(json.dumps(stats | {"cutoff": 9.0}))
    with pytest.raises(DataError, match=r"stats\.json: was altered; build the store again"):
        open_store(many_windows, tmp_path / "scratch")
