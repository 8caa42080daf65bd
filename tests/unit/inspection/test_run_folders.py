"""Frames of one run that stand in several files count once; other files all count."""

from pathlib import Path

import pytest
from ase.build import bulk
from ase.io import write

from hydragnn_hpo.inspection.file_inspection import inspect_files
from hydragnn_hpo.inspection.run_folders import find_repeats

STEP = """<calculation><scstep><energy><i name="e_fr_energy">{free}</i>
<i name="e_wo_entrp">{energy}</i><i name="e_0_energy">{energy}</i></energy></scstep>
<structure><crystal><varray name="basis"><v>4 0 0</v><v>0 4 0</v><v>0 0 4</v></varray></crystal>
<varray name="positions"><v>0 0 0</v><v>0.5 0.5 {z}</v></varray></structure>
<varray name="forces"><v>0 0 {force}</v><v>0 0 -{force}</v></varray>
<energy><i name="e_fr_energy">{free}</i><i name="e_wo_entrp">{energy}</i>
<i name="e_0_energy">{energy}</i></energy></calculation>
"""

VASPRUN = """<?xml version="1.0" encoding="ISO-8859-1"?>
<modeling><generator><i name="version" type="string">6.3.0 </i></generator>
<incar></incar><kpoints></kpoints><atominfo><atoms>2</atoms><types>1</types><array name="atoms">
<set><rc><c>Cu</c><c>1</c></rc><rc><c>Cu</c><c>1</c></rc></set></array></atominfo>
<structure name="initialpos"><crystal><varray name="basis"><v>4 0 0</v><v>0 4 0</v><v>0 0 4</v>
</varray></crystal><varray name="positions"><v>0 0 0</v><v>0.5 0.5 0.5</v></varray></structure>
{steps}</modeling>
"""

OUTCAR_STEP = " POSITION            TOTAL-FORCE (eV/Angst)\n ----\n"


def write_run(folder: Path, steps: int) -> None:
    """Write the files of a run; OUTCAR has what counts its steps only."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [
        STEP.format(free=n * n - 8.0, energy=n * n - 7.9, z=0.5 + n / 100, force=n + 1)
        for n in range(steps)
    ]
    (folder / "vasprun.xml").write_text(VASPRUN.format(steps="".join(made)))
    (folder / "OUTCAR").write_text("vasp.6.3.0\n" + OUTCAR_STEP * steps)
    crystal = bulk("Cu", cubic=True)
    for name in ("POSCAR", "CONTCAR"):
        write(folder / name, crystal, format="vasp")
    write(folder / "XDATCAR", [crystal] * steps, format="vasp-xdatcar")


def test_each_step_of_a_run_counts_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / "runs" / name, 5)
    seen = inspect_files([tmp_path / "runs"])
    assert [file.path.relative_to(tmp_path / "runs") for file in seen.files] == [
        Path("a/vasprun.xml"),
        Path("b/vasprun.xml"),
    ]
    assert seen.sample.total == 10
    (warning,) = (text for text in seen.warnings if "left out" in text)
    assert warning == (
        "8 files are left out, their frames are in another file of the run, as CONTCAR: "
        f"{tmp_path}/runs/a/CONTCAR: holds the same frames as vasprun.xml."
    )


def test_files_of_a_run_count_once_also_where_each_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 6)
    assert inspect_files(sorted((tmp_path / "run").iterdir())).sample.total == 6
    seen = inspect_files([tmp_path / "run" / "OUTCAR", tmp_path / "run" / "vasprun.xml"])
    assert [file.path.name for file in seen.files] == ["vasprun.xml"]


@pytest.mark.parametrize("forces", [True, False])
def test_one_energy_of_a_run_is_a_target(forces: bool, tmp_path: Path) -> None:
    write_run(tmp_path / "run", 8)
    if not forces:
        path = tmp_path / "run" / "vasprun.xml"
        path.write_text(path.read_text().replace('"forces"', '"other"'))
    seen = inspect_files([tmp_path / "run"])
    targets = {target.key: target for target in seen.proposals.targets}
    kept, other = ("free_energy", "energy") if forces else ("energy", "free_energy")
    assert kept in targets
    assert other not in targets
    assert other in dict(seen.proposals.left_out)
    if forces:
        assert targets["forces"].config.derived_from == "free_energy"
    both = inspect_files([tmp_path / "run"], wanted=["energy", "free_energy"])
    assert {"energy", "free_energy"} <= {target.key for target in both.proposals.targets}


def repeats_of(folder: Path, contents: dict[str, str]) -> dict[str, str]:
    """Write files, and return by name which file has the frames of each that is left out."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    found = find_repeats(sorted(folder / name for name in contents))
    return {
        str(file.relative_to(folder)): str(best.relative_to(folder)) for file, best in found.items()
    }


XML_STEP = "  <calculation>\n"


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ({"POSCAR_1": "", "POSCAR_2": "", "CONTCAR": "", "a/POSCAR": ""}, {}),
        ({"POSCAR": "", "OUTCAR": "a job that was killed"}, {}),
        ({"POSCAR_1": "", "OUTCAR": OUTCAR_STEP}, {}),
        ({"a/POSCAR": "", "b/OUTCAR": OUTCAR_STEP}, {}),
        ({"OUTCAR": OUTCAR_STEP, "OUTCAR.gz": ""}, {"OUTCAR.gz": "OUTCAR"}),
        ({"POSCAR": "", "OUTCAR": OUTCAR_STEP}, {"POSCAR": "OUTCAR"}),
        ({"vasprun.xml": XML_STEP, "OUTCAR": OUTCAR_STEP}, {"OUTCAR": "vasprun.xml"}),
        ({"vasprun.xml": XML_STEP, "OUTCAR": OUTCAR_STEP * 2}, {"vasprun.xml": "OUTCAR"}),
        ({"vasprun.xml": "<modeling>", "OUTCAR": OUTCAR_STEP}, {"vasprun.xml": "OUTCAR"}),
        (
            {
                "OUTCAR.relax1": OUTCAR_STEP,
                "vasprun.relax1.xml": XML_STEP,
                "OUTCAR.relax2": OUTCAR_STEP,
                "CONTCAR.relax2": "",
            },
            {"OUTCAR.relax1": "vasprun.relax1.xml", "CONTCAR.relax2": "OUTCAR.relax2"},
        ),
        (
            {
                "w-pos-1.xyz": "",
                "w-frc-1.xyz": "",
                "w-vel-1.xyz": "",
                "w-1.restart": "",
                "w-1_40.restart": "",
                "w-pos-2.xyz": "",
                "v-1.restart": "",
            },
            dict.fromkeys(
                ("w-frc-1.xyz", "w-vel-1.xyz", "w-1.restart", "w-1_40.restart"), "w-pos-1.xyz"
            ),
        ),
        (
            {
                "a.in": "&control\n/\n&system\n/\n",
                "a.out": "Program PWSCF v.7",
                "b.in": "\n&system\n",
                "c.out": "Program PWSCF v.7",
            },
            {"a.in": "a.out"},
        ),
        ({"a.xyz": "1\n\nH 0 0 0\n", "a.cif": "data_a\n"}, {}),
    ],
)
def test_files_of_one_run_are_known_by_their_names(contents, expected, tmp_path):
    assert repeats_of(tmp_path, contents) == expected
