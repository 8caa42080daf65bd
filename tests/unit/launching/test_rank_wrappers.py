"""Rank wrappers, run with what each launcher would set; every value may be hostile."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from hydragnn_hpo.resources import resource_path

VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
)
OURS = {"rocm": "ROCR_VISIBLE_DEVICES", "cuda": "CUDA_VISIBLE_DEVICES", "xpu": "ZE_AFFINITY_MASK"}
REPORT = """
import json, os, sys
shown = dict(os.environ)
print(json.dumps([shown, sys.argv[1:], sorted(os.sched_getaffinity(0))]))
"""
HOSTILE = ["a b", "$(touch stolen)", "`touch stolen`", "'", '"', "line\nbreak", "-n", "", "*"]


@pytest.fixture
def run(tmp_path):
    """Return what a program behind a wrapper sees: environment, arguments, cores."""

    def wrapped(name, *arguments, code=0, **environment):
        argv = ["sh", str(resource_path(f"launch/rank/{name}.sh")), sys.executable, "-c", REPORT]
        done = subprocess.run(
            [*argv, *arguments],
            env={"PATH": os.environ["PATH"], **environment},
            capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert not list(tmp_path.iterdir()), "a value was run"
        return json.loads(done.stdout) if code == 0 else done.stderr

    return wrapped


@pytest.mark.parametrize(
    ("launcher", "number"),
    [
        ({"SLURM_LOCALID": "3"}, 3),
        ({"MPI_LOCALRANKID": "2", "SLURM_LOCALID": "0"}, 2),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1", "SLURM_LOCALID": "0"}, 1),
        ({"PALS_LOCAL_RANKID": "4"}, 4),
        ({"PMI_LOCAL_RANK": "5"}, 5),
        ({"TORCHELASTIC_RUN_ID": "x", "LOCAL_RANK": "6", "SLURM_LOCALID": "0"}, 6),
        ({}, 0),
    ],
    ids=["srun", "hydra", "openmpi", "pals", "pmi", "torchrun", "nobody"],
)
@pytest.mark.parametrize("kind", OURS)
def test_a_rank_takes_the_device_of_its_number_where_all_are_seen(run, kind, launcher, number):
    unnamed, _, _ = run(kind, **launcher)
    listed, _, _ = run(kind, **launcher, **{OURS[kind]: "7,6,5,4,3,2,1,0"})

    assert unnamed[OURS[kind]] == str(number)
    assert listed[OURS[kind]] == str(7 - number)
    assert listed["HYDRAGNN_HPO_DEVICE"] == ("xpu:0" if kind == "xpu" else "cuda:0")


@pytest.mark.parametrize("kind", OURS)
def test_a_rank_that_sees_one_device_takes_it_and_the_rest_is_unset(run, kind):
    others = dict.fromkeys(VARIABLES, "0,1,2,3")
    result, _, _ = run(kind, SLURM_LOCALID="3", **{**others, OURS[kind]: "5"})

    assert {name: result[name] for name in VARIABLES if name in result} == {OURS[kind]: "5"}


def test_a_rank_takes_what_others_chose_for_it_or_is_refused(run):
    chosen, _, _ = run("rocm", SLURM_LOCALID="1", HIP_VISIBLE_DEVICES="4,6")
    assert chosen["ROCR_VISIBLE_DEVICES"] == "6"
    error = run("cuda", code=2, SLURM_LOCALID="2", CUDA_VISIBLE_DEVICES="0,1")
    assert "rank 2 of this host has no device of its own among '0,1'" in error


@pytest.mark.parametrize("value", [value for value in HOSTILE if value])
def test_no_value_is_run(run, value):
    error = run("rocm", code=2, SLURM_LOCALID=value)
    assert "is no number" in error
    result, arguments, _ = run("cuda", *HOSTILE, CUDA_VISIBLE_DEVICES=value)
    assert result["CUDA_VISIBLE_DEVICES"] == value
    assert arguments == HOSTILE
    run("plain", HYDRAGNN_HPO_CORES=value)


def test_a_rank_is_bound_where_its_launcher_did_not(run):
    cores = sorted(os.sched_getaffinity(0))
    listed = " ".join(map(str, cores))
    for number, core in enumerate(cores):
        _, _, bound = run("plain", SLURM_LOCALID=str(number), HYDRAGNN_HPO_CORES=listed)
        assert bound == [core]
    few, all_of_them = {"HYDRAGNN_HPO_CORES": "- 4096"}, {"OMP_NUM_THREADS": "1"}
    assert run("plain", **few)[2] == cores
    assert run("plain", SLURM_LOCALID="1", **few)[2] == cores, "not ours: left as it is"
    assert run("plain", HYDRAGNN_HPO_CORES=listed, **all_of_them)[2] == [cores[0]]
    device = {"CUDA_VISIBLE_DEVICES": "5", "HYDRAGNN_HPO_CORES": f"- - - - - {cores[-1]}"}
    assert run("cuda", SLURM_LOCALID="0", **device)[2] == cores[-1:], "those of the device"
    try:
        os.sched_setaffinity(0, cores[-1:])
        assert run("plain", HYDRAGNN_HPO_CORES=listed)[2] == cores[-1:], "bound already"
    finally:
        os.sched_setaffinity(0, cores)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed.")
def test_shellcheck_finds_nothing():
    scripts = sorted(map(str, resource_path("launch/rank").glob("*.sh")))
    done = subprocess.run(
        ["shellcheck", "-x", "-s", "sh", *scripts],
        capture_output=True, text=True, timeout=60, check=False,
        cwd=resource_path("launch").parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
