"""Files whose headers announce more than they hold end in a sentence, soon and in little memory."""

import contextlib
import gzip
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.io import write

from hydragnn_hpo.data.readers import read_limits as limits
from hydragnn_hpo.data.readers import reader_of
from hydragnn_hpo.data.readers.read_limits import LimitExceeded, read_limits
from hydragnn_hpo.data.readers.source import Source
from hydragnn_hpo.errors import DataError

MEMORY, TIME = "it needs more memory than", "it takes longer than"

SALT = Atoms("NaCl", positions=[[0, 0, 0], [0, 0, 2.8]], cell=[5, 5, 5], pbc=True)

VAST = {
    "cfg": ("Number of particles = 2", "Number of particles = 1000000000", MEMORY),
    "vasp": (" 1   1\n", " 1000000000 1\n", MEMORY),
    "extxyz": ("2\n", "1000000000\n", TIME),
}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SECONDS", 0.3)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("form", VAST)
def test_a_count_that_no_file_of_its_size_can_hold(form: str, tmp_path: Path) -> None:
    old, new, why = VAST[form]
    file = tmp_path / "vast"
    write(file, SALT, format=form)
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    source = Source(file, format=form)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(DataError, match=f"vast: structure 0 cannot be read as {form} .{why}"):
        list(reader_of(source, None).read(source, 0, None))
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


READ = """
import sys
from pathlib import Path
from hydragnn_hpo.data.readers import read_limits, reader_of
from hydragnn_hpo.data.readers.source import Source
read_limits.MEMORY, read_limits.MEMORY_PER_BYTE = 1 << 26, 1
source = Source(Path(sys.argv[1]))
list(reader_of(source, None).read(source, 0, None))
"""


@pytest.mark.parametrize("form", ["cif", "extxyz"])
def test_a_small_file_that_unpacks_to_a_vast_one(form: str, tmp_path: Path) -> None:
    file = tmp_path / f"a.{form}.gz"
    with gzip.open(file, "wb", compresslevel=1) as stream:
        stream.write(b"1000000000\n\n")
        for _ in range(200):
            stream.write((b" " * 999 + b"\n") * 2**10)
    # A process of its own: one that ran other tests may hold this much memory in reserve.
    done = subprocess.run([sys.executable, "-c", READ, file], capture_output=True, text=True)
    message = f"a.{form}.gz: structure 0 cannot be read as {form} ({MEMORY}"
    assert message in done.stderr.splitlines()[-1]


def swallow_errors(most: int) -> None:
    """Do nothing without end, and swallow errors up to a number."""
    for number in range(most + 1):
        with contextlib.suppress(*([LimitExceeded] if number < most else [])):
            while True:
                pass


@pytest.mark.usefixtures("short")
def test_a_parser_that_swallows_errors_is_stopped_all_the_same() -> None:
    began = time.process_time()
    with pytest.raises(LimitExceeded, match=TIME), read_limits(0):
        swallow_errors(3)
    assert time.process_time() - began < 5.0


def test_another_thread_has_a_limit_of_memory() -> None:
    results: list[str] = []

    def read() -> None:
        try:
            with read_limits(0):
                np.ones(3 << 27)
        except LimitExceeded as error:
            results.append(str(error))

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert results[0].startswith(MEMORY)


def test_large_files_may_take_more() -> None:
    with read_limits(1 << 30):
        assert np.empty(1 << 28).nbytes == 1 << 31
