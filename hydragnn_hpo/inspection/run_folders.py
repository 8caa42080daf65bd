"""Files of one run of VASP, CP2K or another program that hold the same frames."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hydragnn_hpo.data.readers.ase_file import format_of
from hydragnn_hpo.data.readers.source import OPENERS, count_lines
from hydragnn_hpo.errors import DataError

_VASP = ("vasprun", "OUTCAR", "XDATCAR", "CONTCAR", "POSCAR")
"""Names of VASP's files, the best one first."""

_STEPS = {
    "vasprun": re.compile(rb".*<calculation>"),
    "OUTCAR": re.compile(rb"\s*POSITION\s+TOTAL-FORCE"),
}
"""Beginning of a line of each ionic step, in the files that hold energies and forces."""

_VASP_NAME = re.compile("|".join(_VASP))

_CP2K_NAME = re.compile(r"(.+?)(-pos|-frc|-vel)?-(\d+)(?:_\d+)?(\.xyz|\.restart)")


def find_repeats(files: Iterable[Path]) -> dict[Path, Path]:
    """Find files that hold the frames of a better file of the same run.

    Files are of one run if they are in one folder and their names differ only in what a program
    writes into them: ``OUTCAR.relax1`` and ``vasprun.xml.relax1``, ``a.in`` and ``a.out``. Of
    VASP's files that with most ionic steps is the best one, of two the XML file.

    Returns:
        For each of these files the better one.
    """
    folders: defaultdict[Path, list[Path]] = defaultdict(list)
    for file in files:
        folders[file.parent].append(file)
    return {
        other: best
        for members in folders.values()
        for find in (_find_vasp_runs, _find_cp2k_runs, _find_outputs)
        for best, others in find(members)
        for other in others
    }


Run = tuple[Path, list[Path]]
"""The best file of a run, and the others with its frames."""


def _find_vasp_runs(files: Sequence[Path]) -> Iterator[Run]:
    runs: defaultdict[str, dict[str, Path]] = defaultdict(dict)
    for file in files:
        name = file.stem if file.suffix.lower() in OPENERS else file.name
        if match := _VASP_NAME.search(name):
            run = _VASP_NAME.sub("", name, count=1).replace(".xml", "")
            kind = match.group()
            runs[run][file.name if kind in runs[run] else kind] = file  # OUTCAR and OUTCAR.gz
    for members in runs.values():
        if len(members) == 1:
            continue
        steps = {kind: _count_steps(kind, members[kind]) for kind in _STEPS if kind in members}
        best = max(steps, key=lambda kind: steps[kind], default=None)
        if best is not None and steps[best]:
            yield members[best], [file for kind, file in members.items() if kind != best]


def _count_steps(kind: str, file: Path) -> float:
    count = count_lines(file, _STEPS[kind])
    return count if math.isfinite(count) else 0


def _find_cp2k_runs(files: Sequence[Path]) -> Iterator[Run]:
    """Find trajectories, and the files of their forces, velocities and last frames."""
    runs: defaultdict[tuple[str, str], dict[str, list[Path]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for file in files:
        if match := _CP2K_NAME.fullmatch(file.name):
            project, kind, number, suffix = match.groups()
            runs[project, number][kind or suffix].append(file)
    for run in runs.values():
        for best in run.pop("-pos", [])[:1]:
            yield best, [file for kind in ("-frc", "-vel", ".restart") for file in run[kind]]


def _find_outputs(files: Sequence[Path]) -> Iterator[Run]:
    """Find outputs beside the input of the same name, by ASE's names of their formats."""
    stems: defaultdict[str, list[Path]] = defaultdict(list)
    for file in files:
        stems[file.stem].append(file)
    for alike in stems.values():
        forms = {_try_format(file): file for file in alike} if len(alike) > 1 else {}
        for form, file in forms.items():
            if form.endswith("-out") and (given := forms.get(f"{form[:-4]}-in")) is not None:
                yield file, [given]


def _try_format(file: Path) -> str:
    try:
        return format_of(file)
    except DataError:
        return ""
