"""Cases that run where the variables and programs of a scheduler are garbage."""

import base64
import random
import string
from dataclasses import replace

from generators import CAMPAIGN, CARD, COMMAND_CAMPAIGN, ENSEMBLE, STRUCTURES, WITH, toml
from sandbox import GOLDENS, Case, Files

Random = random.Random

WORDS = [
    *("", "x", "-1", "0", "1.5", "nan", "9" * 40, "\x1b[2J", "a b", "a,b", "\u0663", "\xff", "%s"),
    *("n[1-999999999]", "n[1-3", "n[3-1]", "n[01-1e9]", "n[1-2][1-99999]", "[[", ",,,", "-N 4"),
    *("a" * 5000, "GPU-1", "MIG-x", "0,1,99", "0,0", "-1,0", "../x", "/dev/null", "1970-01-01"),
]

VARIABLES = [
    *("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_NNODES"),
    *("SLURM_JOB_NUM_NODES", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_CPUS_ON_NODE"),
    *("SLURM_CPUS_PER_TASK", "SLURM_NTASKS", "SLURM_JOB_END_TIME", "HYDRAGNN_HPO_END"),
    *("SLURM_RESTART_COUNT", "SLURM_ARRAY_TASK_ID", "SLURM_CONF", "SLURMD_NODENAME"),
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    *("PBS_NODEFILE", "PBS_JOBID", "HYDRAGNN_HPO_BATCH_JOB", "HYDRAGNN_HPO_SCRATCH"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "LOCAL_RANK"),
    *("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
    *("HYDRAGNN_HPO_WINDOW_MEMORY", "OMP_NUM_THREADS", "TMPDIR", "HOME", "COLUMNS", "TERM"),
]

PROGRAMS = ("scontrol", "squeue", "srun", "sacct", "sinfo", "mpiexec", "nvidia-smi", "rocm-smi")

TRIAL = GOLDENS / "run" / "trials" / "t0000" / "trial.toml"

ARGVS: list[tuple[str, ...]] = [
    *(("run", "c.toml", "--run", "run", "--backend", "slurm"),) * 4,
    *(("run", "c.toml", "--run", "run", "--backend", "mpiexec"),) * 2,
    ("run", "c.toml", "--run", "run"),
    ("run", "c.toml", "--run", "run", "--dry-run", "--backend", "slurm"),
    ("doctor",),
    ("doctor", "--backend", "slurm"),
    ("submit", "c.toml", "--machine", "generic-slurm", "--account", "x", "--hosts", "1")
    + ("--time", "1:00", "--run", "run", "--pack", "none", "--dry-run"),
    ("trial", "trial"),
    ("predict", "structures.extxyz", *WITH, "--out", "out.csv"),
    ("plan", "d.toml"),
]


def _answer(reply: str, stream: str = "", code: int = 0) -> bytes:
    text = base64.b64encode(reply.encode()).decode()
    return f"#!/bin/sh\nbase64 -d {stream} <<EOF\n{text}\nEOF\nexit {code}\n".encode()


def _program(draw: Random) -> bytes:
    """Return a program that answers garbage, perhaps slowly, and ends with some code."""
    replies = ["", "JobId=7 NodeList=n[1-2]", "node1", "node1\nnode2", "NodeList=(null)", "{"]
    replies += ["StartTime=Unknown EndTime=Unknown", "slurm_load_jobs error: Invalid job id", "7"]
    replies += [*WORDS, "".join(draw.choices(string.printable, k=200)), "x\n" * 10_000]
    stream = draw.choice(["", "", ">&2"])
    code = draw.choice([0, 0, 0, 1, 127])
    return _answer(draw.choice(replies), stream, code)


def allocations(draw: Random) -> Case:
    """Run a command amid the remains of an allocation that make no sense."""
    argv = draw.choice(ARGVS)
    environment = {name: draw.choice(WORDS) for name in draw.sample(VARIABLES, draw.randint(1, 6))}
    if "slurm" in argv and draw.random() < 0.8:
        environment.setdefault("SLURM_JOB_ID", "7")
    if "mpiexec" in argv and draw.random() < 0.8:
        environment["PBS_NODEFILE"] = draw.choice(["nodes", "nodes", "fifo", "none", "."])
    files: dict[str, bytes | None] = {
        f"bin/{name}": _program(draw) for name in draw.sample(PROGRAMS, draw.randint(1, 5))
    }
    hosts = draw.choice([*WORDS, "node1", "node[1-2]"])
    words = draw.choice(["RUNNING", "RUNNING", "PENDING", draw.choice(WORDS)])
    state = f"{words}|{hosts}|{draw.choice([*WORDS, 'N/A'])}|7"  # else it is asked for minutes
    files["bin/squeue"] = _answer(draw.choice([state, state, state, hosts]))
    files["bin/scontrol"] = _answer(draw.choice([*WORDS, "NodeAddr=127.0.0.1", "NodeAddr=x"]))
    files.setdefault("bin/srun", _program(draw))
    case = allocation(argv, environment, files | {"nodes": draw.choice(WORDS).encode()})
    return replace(case, may_pause=case.may_pause or "|1970-01-01|" in state)


def allocation(argv: tuple[str, ...], environment: dict[str, str], files: Files) -> Case:
    """Run a command where these variables and programs are."""
    base: dict[str, bytes | None] = {"bin/train": _TRAIN, "c.toml": toml(COMMAND_CAMPAIGN)}
    base |= {"structures.toml": toml(CARD), "structures.extxyz": STRUCTURES, "e.zip": ENSEMBLE}
    base |= {"trial/trial.toml": TRIAL.read_bytes(), "d.toml": toml(CAMPAIGN), "fifo": None}
    return Case(
        f"allocation-{argv[0]}",
        argv,
        base | files,
        environment=environment,
        may_pause=bool({"SLURM_JOB_END_TIME", "HYDRAGNN_HPO_END"} & environment.keys()),
        cpu_seconds=90.0,
        idle_seconds=45.0,
        wall_seconds=200.0,
    )


_RESULT = base64.b64encode(b'{"status": "completed", "objective": 1.0}').decode()
_TRAIN = f"#!/bin/sh\necho {_RESULT} | base64 -d > $1/result.json\n".encode()
