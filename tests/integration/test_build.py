"""Builds by real processes: workers, MPI ranks, kill -9, Ctrl-C; the store is always the same."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from comparing import assert_same_store
from processes import is_alive

from hydragnn_hpo.data import convert_pieces
from hydragnn_hpo.data.store_builder import BuildProgress, build_store, find_communicator
from hydragnn_hpo.data.store_index import read_index
from hydragnn_hpo.errors import ConfigError

MPIEXEC = Path(sys.executable).with_name("mpiexec")
SECONDS = 400.0
"""A hang would take longer."""

needs_mpi = pytest.mark.skipif(not MPIEXEC.is_file(), reason="no mpiexec beside this Python")

BUILD = """
import sys
from pathlib import Path
from hydragnn_hpo.data.store_builder import build_store
if __name__ == "__main__":
    build_store(Path(sys.argv[1]), Path(sys.argv[2]), window=25, processes=int(sys.argv[3]))
"""

GATE = """
import sys, time
from hydragnn_hpo.data import convert_pieces
real = convert_pieces.read_piece
def read_piece(card, piece):
    for number, graph in enumerate(real(card, piece)):
        while number and piece.number >= {first}:
            time.sleep(0.02)
        yield graph
convert_pieces.read_piece = read_piece
"""
"""However fast it is: in the middle of its later pieces whoever converts waits to be ended."""

WORK = "from hydragnn_hpo.data.convert_pieces import main\nmain()\n"

BUILD_BY_GATED_WORKERS = """
import sys
from pathlib import Path
from hydragnn_hpo.data import store_builder
store_builder._COMMAND = [sys.executable, "-c", sys.argv[3]]
store_builder.build_store(Path(sys.argv[1]), Path(sys.argv[2]), window=25, processes=2)
"""

BUILD_WITH_RANKS = """
import json, sys
from pathlib import Path
from mpi4py import MPI
from hydragnn_hpo.data.store_builder import build_with_ranks
from hydragnn_hpo.errors import HydraError
comm = MPI.COMM_WORLD
try:
    stats = build_with_ranks(comm, Path(sys.argv[1]), Path(sys.argv[2]), window=25)
    said = stats["checksum"]
except HydraError as error:
    said = str(error)
said = comm.gather(said)
if comm.rank == 0:
    print(json.dumps(said))
"""


@pytest.fixture
def two_files(hpo) -> SimpleNamespace:
    """A card of two files, 100 and 60 structures, one of them bad, and its store."""
    atoms = hpo.molecules(160)
    del atoms[130].info["energy_like"]
    hpo.card(atoms[:100])
    (hpo.folder / "tiny.extxyz").rename(hpo.folder / "first.extxyz")
    files = [{"path": "first.extxyz"}, {"path": "tiny.extxyz"}]
    card = hpo.card(atoms[100:], files=files)
    store = hpo.folder / "alone.bp"
    build_store(card, store, window=25, processes=1)
    assert read_index(store).windows[:, 0].tolist() == [25, 25, 25, 25, 25, 24, 10]
    return SimpleNamespace(card=card, store=store, folder=hpo.folder, hpo=hpo)


def mpi(two_files: SimpleNamespace, ranks: int, of_host: str) -> list[str]:
    """Build with ranks; gives what each has to say."""
    command = [MPIEXEC, "-n", str(ranks), sys.executable, "-m", "mpi4py", "-c", BUILD_WITH_RANKS]
    done = subprocess.run(
        [*map(str, command), str(two_files.card), str(two_files.folder / "mpi.bp")],
        env=os.environ | {"HYDRAGNN_HPO_RANKS_PER_HOST": of_host},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    messages: list[str] = json.loads(done.stdout)
    assert len(messages) == ranks
    return messages


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "of_host", "parts"), [pytest.param(2, "", 1, marks=pytest.mark.stress), (3, "2", 2)]
)
def test_ranks_build_the_same_store(two_files, ranks: int, of_host: str, parts: int) -> None:
    # The ranks read different files at the same time: ASE would have them read one together.
    messages = mpi(two_files, ranks, of_host)
    assert set(messages) == {read_index(two_files.store).stats["checksum"]}
    assert_same_store(two_files.folder / "mpi.bp", two_files.store)
    assert len(read_index(two_files.folder / "mpi.bp").parts) == parts
    assert not list(two_files.folder.glob(".*"))


@needs_mpi
def test_an_error_on_one_rank_ends_all_with_its_sentence(two_files) -> None:
    file = two_files.folder / "tiny.extxyz"
    file.write_text(file.read_text()[:-300])  # read by one of the ranks alone
    card = two_files.card
    card.write_text(card.read_text().replace('name = "tiny"', 'name = "tiny"\nmax_bad = 0.5'))
    messages = mpi(two_files, 2, "1")
    assert len(set(messages)) == 1
    assert messages[0].startswith(f"{file}: structure 59 ")
    assert not (two_files.folder / "mpi.bp").exists()


@needs_mpi
@pytest.mark.stress
@pytest.mark.parametrize(
    ("card", "code", "says"),
    [
        ("tiny.toml", 0, "tiny.bp: 159 graphs"),
        ("none.toml", 2, "error: none.toml: no such file; name a file."),
    ],
)
def test_the_command_speaks_once_for_all_ranks(two_files, card: str, code: int, says: str) -> None:
    command = [MPIEXEC, "-n", "2", sys.executable, "-m", "mpi4py", "-m", "hydragnn_hpo"]
    done = subprocess.run(
        [*map(str, command), "dataset", "build", card],
        cwd=two_files.folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == code, done.stderr
    both = done.stdout + done.stderr
    assert both.count(says) == 1, both
    assert "Traceback" not in both


def test_a_process_alone_leaves_mpi_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """On many login hosts MPI ends the process that begins it."""
    monkeypatch.delitem(sys.modules, "mpi4py", raising=False)
    assert find_communicator({"PMI_SIZE": "1"}) is None
    assert "mpi4py" not in sys.modules
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ConfigError, match="one of several MPI ranks, but mpi4py cannot be"):
        find_communicator({"PMI_SIZE": "2"})


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def started(hpo) -> SimpleNamespace:
    """A build by two workers that stays in the middle of its sixth piece or a later one."""
    card = hpo.card(hpo.molecules(1200))
    out = hpo.folder / "out.bp"
    work = hpo.folder / ".out.bp.work"
    worker = GATE.format(first=5) + WORK
    process = subprocess.Popen(
        [sys.executable, "-c", BUILD_BY_GATED_WORKERS, str(card), str(out), worker],
        stderr=subprocess.PIPE,
        text=True,
    )
    hpo.started.append(process)

    def finished() -> set[str]:
        return {path.name for path in work.glob("piece-*.json")}

    hpo.wait_for(lambda: len(finished()) == 5, "five finished pieces")
    return SimpleNamespace(process=process, finished=finished, card=card, out=out, hpo=hpo)


def converted_when_resumed(started: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Go on with a build; gives the pieces that were converted."""
    seen: list[int] = []
    real: Callable[..., convert_pieces.Record] = convert_pieces.convert_piece

    def noting(plan, piece, work, progress) -> convert_pieces.Record:
        seen.append(piece.number)
        return real(plan, piece, work, progress)

    monkeypatch.setattr(convert_pieces, "convert_piece", noting)
    build_store(started.card, started.out, window=25, processes=1, progress=BuildProgress())
    assert len(seen) == len(set(seen))
    return set(seen)


@pytest.mark.slow
@pytest.mark.parametrize(
    "ending", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.stress)]
)
def test_a_build_goes_on_after(
    started, ending: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = children(started.process.pid)
    assert len(workers) == 2
    started.process.send_signal(ending)
    _, output = started.process.communicate(timeout=SECONDS)
    assert started.process.returncode in (-ending, 1)
    assert output.count("Traceback") == (ending == signal.SIGINT), (
        output
    )  # the script's own, no more
    started.hpo.wait_for(lambda: not any(map(is_alive, workers)), "the workers to end")
    before = {int(name[6:12]) for name in started.finished()}
    assert before == set(range(5))
    assert not started.out.exists()

    assert converted_when_resumed(started, monkeypatch) == set(range(48)) - before
    assert not list(started.out.parent.glob(".*"))
    build_store(started.card, started.out.with_name("fresh.bp"), window=25, processes=1)
    assert_same_store(started.out, started.out.with_name("fresh.bp"))


@pytest.mark.stress
@pytest.mark.parametrize("moment", [0.0, 0.5, 1.0])
def test_a_build_that_is_killed_at_any_moment_is_finished_by_the_next(hpo, moment: float) -> None:
    card = hpo.card(hpo.molecules(400))
    out = hpo.folder / "out.bp"
    process = subprocess.Popen([sys.executable, "-c", BUILD, str(card), str(out), "1"])
    hpo.started.append(process)
    hpo.wait_for(lambda: process.poll() is not None or (hpo.folder / ".out.bp.work").exists(), "it")
    time.sleep(moment)
    process.kill()
    process.wait()
    build_store(card, out, window=25, processes=1)
    build_store(card, hpo.folder / "fresh.bp", window=25, processes=1)
    assert_same_store(out, hpo.folder / "fresh.bp")
    assert not list(hpo.folder.glob(".*"))


def test_the_command_says_what_was_set_aside_and_what_was_there(hpo) -> None:
    atoms = hpo.molecules(200)
    del atoms[150].info["energy_like"]
    card = hpo.card(atoms)
    done = hpo.here("dataset", "build", card)
    assert done.code == 0, done.err
    aside = "1 of 200 structures was set aside, see tiny.bp/quarantine.jsonl"
    assert done.out.splitlines()[-1] == aside
    (line,) = (hpo.folder / "tiny.bp" / "quarantine.jsonl").read_text().splitlines()
    assert json.loads(line)["number"] == 150
    hpo.refused("dataset", "build", card, "--processes", "0", says=("--processes 0",))


def spoken(output: str) -> list[str]:
    """Give what a build says but for its progress, which it tells where it takes long."""
    progress = re.compile("converting structures: |.* structures converted$")
    return [line for line in output.splitlines() if not progress.match(line)]


@pytest.mark.slow
def test_the_command_goes_on_and_says_so(hpo) -> None:
    card = hpo.card(hpo.molecules(3000))
    gated = GATE.format(first=2) + "from hydragnn_hpo.cli.command_line import main\nmain()\n"
    command = [sys.executable, "-c", gated, "dataset", "build", card, "--processes", "1"]
    process = subprocess.Popen(command, cwd=hpo.folder, stderr=subprocess.PIPE, text=True)
    hpo.started.append(process)
    work = hpo.folder / ".tiny.bp.work"
    hpo.wait_for(lambda: len(list(work.glob("piece-*.json"))) == 2, "two pieces")
    process.send_signal(signal.SIGINT)
    _, output = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert spoken(output) == [
        "finished parts stay in .tiny.bp.work: run the same command to resume"
    ]
    done = hpo.here("dataset", "build", card)
    assert done.code == 0, done.err
    there = "resuming an earlier build: 2048 of 3000 structures are there"
    assert spoken(done.err) == [there]
    assert "3000 graphs" in done.out
