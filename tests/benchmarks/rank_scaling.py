"""Two ranks that share a prediction against one, without their start: ``predict`` as it is used.

Compared are seconds of CPU, which hold what ranks do twice or slow each other down with, but not
what others take on a shared machine; and seconds by the clock, which also hold waiting for the last
piece, and mean something on a quiet machine alone. Used by ``ensemble.py``.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ase import Atoms
from ase.io import write
from unlike_members import MEMBERS, unlike_members

PER_FILE = 200
"""Structures of a file: more than 64 KiB, so that each is a piece of its own."""

SECONDS = 600.0


Prepared = dict[str, tuple[Path, list[Path]]]
"""An ensemble and files to predict, for each kind of structures."""


def prepare_ranks(
    kinds: dict[str, list[Atoms]], folder: Path, members: Sequence[dict[str, object]] = MEMBERS
) -> Prepared:
    """Train an ensemble, and write files, for each kind of structures.

    Args:
        kinds: structures, some multiple of ``PER_FILE`` of each kind.
        folder: for whatever is made.
        members: models of the members.
    """
    os.environ.setdefault("HYDRAGNN_HPO_SCRATCH", str(folder))
    made: Prepared = {}
    for kind, structures in kinds.items():
        (place := folder / kind).mkdir()
        made[kind] = unlike_members(place, structures, members), _files(place, structures)
    return made


def rank_scaling(prepared: Prepared, rounds: int) -> dict[str, float]:
    """Measure how two ranks compare with one.

    Args:
        prepared: see ``prepare_ranks``; outputs are written beside the files.
        rounds: in which one and two ranks take turns.

    Returns:
        ``rank_scaling_2``: CPU-seconds of one rank over those of two, the smallest of all kinds;
        for each kind also half the speed-up by the clock, and structures per CPU-second.
    """
    result: dict[str, float] = {}
    for kind, (ensemble, files) in prepared.items():
        place = files[0].parent
        runs: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
        for number in range(rounds):
            for ranks, measured in runs.items():
                out = place / f"out{number}-{ranks}.csv"
                measured.append(_measure(out, ensemble, files, ranks))
        pairs = list(zip(runs[1], runs[2], strict=True))
        result[f"{kind}_rank_scaling_2"] = statistics.median(a[0] / b[0] for a, b in pairs)
        result[f"{kind}_clock_scaling_2"] = statistics.median(a[1] / b[1] / 2 for a, b in pairs)
        seconds = statistics.median(cpu for cpu, _ in runs[1])
        result[f"{kind}_screened_per_core_s"] = PER_FILE * len(files) / seconds
    result["rank_scaling_2"] = min(v for k, v in result.items() if k.endswith("_rank_scaling_2"))
    return result


def _files(place: Path, structures: list[Atoms]) -> list[Path]:
    """Write them into some files, so that there are pieces for several ranks."""
    count = len(structures) // PER_FILE
    paths = [place / f"part{number}.extxyz" for number in range(count)]
    for number, path in enumerate(paths):
        bare = [
            Atoms(a.numbers, a.positions, cell=a.cell, pbc=a.pbc) for a in structures[number::count]
        ]
        write(path, bare)
        assert path.stat().st_size > 1 << 16, "it would be taken together with others"
    return paths


def _measure(out: Path, ensemble: Path, files: list[Path], ranks: int) -> tuple[float, float]:
    """Return the seconds of a prediction: of CPU, by all ranks together, and by the clock."""
    go = out.with_suffix(".go")
    command = [sys.executable, __file__, str(out), str(ensemble), str(go)]
    cores = sorted(os.sched_getaffinity(0))
    children = [
        subprocess.Popen(
            [*command, str(cores[rank % len(cores)]), *map(str, files)],
            stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for rank in range(ranks)
    ]  # fmt: skip
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    go.touch()
    began = time.perf_counter()
    seconds = sum(float(child.communicate(timeout=SECONDS)[0]) for child in children)
    return seconds, time.perf_counter() - began


def _be_rank(out: str, ensemble: str, go: str, core: str, *files: str) -> None:
    """Load all, wait for the sign, share the work, and say how many seconds of CPU it took."""
    os.sched_setaffinity(0, {int(core)})
    from hydragnn_hpo.ensemble.multi_rank import claims_of
    from hydragnn_hpo.ensemble.predict_file import PredictRequest, predict_chunks

    request = PredictRequest(files, ensemble, out)
    with request.open_output() as pipeline, claims_of(request) as claims:
        warm = PredictRequest((files[0],), ensemble, f"{out}.{core}.warm.csv")
        with warm.open_output() as first:
            predict_chunks(first)
        print("ready", flush=True)
        while not Path(go).exists():
            time.sleep(0.01)
        began = time.process_time()
        predict_chunks(pipeline, claims)
        print(time.process_time() - began)


if __name__ == "__main__":
    _be_rank(*sys.argv[1:])
