"""``hydragnn-hpo info``: versions, extras and machine, as a bug report needs them.

No name of a user, host or folder is among them.
"""

import json
import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from typing import TypedDict

import typer

from hydragnn_hpo.cli.arguments import JsonOption
from hydragnn_hpo.host_info import host_memory_mb
from hydragnn_hpo.optional_packages import OPTIONAL, is_installed

CORE = (
    *("adios2", "ase", "msgspec", "numpy", "pydantic", "pyzmq", "safetensors", "scipy"),
    *("torch", "typer", "vesin"),
)
"""Distributions of the core whose versions matter."""

PROGRAMS = ("apptainer", "mpiexec", "qsub", "sbatch", "srun")
"""Programs that launch our work, where they are on the ``PATH``."""


class TorchInfo(TypedDict):
    """What torch says about itself; empty texts for what it lacks."""

    cuda: str
    hip: str
    devices: list[str]
    """Names of the GPUs that it can use."""
    problem: str
    """Why it cannot be imported."""


class Info(TypedDict):
    """What ``info`` prints."""

    hydragnn_hpo: str
    python: str
    system: str
    cores: int
    """Those that this process may use."""
    memory_mb: int
    core: dict[str, str]
    """Version by distribution; empty if it is not installed."""
    torch: TorchInfo
    extras: dict[str, list[str]]
    """Packages that are missing, by extra."""
    optional: dict[str, str]
    """Version by optional package that is installed; empty if it does not say."""
    programs: list[str]
    """Those of ``PROGRAMS`` that are there."""
    in_job: bool
    """Whether this process runs in a batch job."""


def info(as_json: JsonOption = False) -> None:
    """Show versions, extras, devices and programs, for a bug report."""
    facts = read_info()
    if as_json:
        typer.echo(json.dumps(facts))
        return
    torch = facts["torch"]
    kinds = {"CUDA": torch["cuda"], "ROCm": torch["hip"]}
    build = ", ".join(f"{kind} {number}" for kind, number in kinds.items() if number) or "CPU only"
    devices = torch["problem"] or f"{build}; GPUs: {', '.join(torch['devices']) or 'none'}"
    lines = {
        "hydragnn-hpo": facts["hydragnn_hpo"],
        "python": facts["python"],
        "system": f"{facts['system']}; {facts['cores']} cores, {facts['memory_mb']} MB",
        "torch": f"{facts['core']['torch']}; {devices}",
        "core": _list_versions({k: v for k, v in facts["core"].items() if k != "torch"}),
        "optional": _list_versions(facts["optional"]) or "none",
        "programs": ", ".join(facts["programs"]) or "none",
        "batch job": "yes" if facts["in_job"] else "no",
    }
    for name, text in lines.items():
        typer.echo(f"{name:15}{text}")
    for extra, missing in facts["extras"].items():
        state = f"missing: {', '.join(missing)}" if missing else "installed"
        typer.echo(f"{f'[{extra}]':15}{state}")


def _list_versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {number or '?'}" for name, number in versions.items())


def read_info() -> Info:
    """Return versions, extras and machine."""
    from hydragnn_hpo import __version__
    from hydragnn_hpo.launching import in_batch_job

    extras: dict[str, list[str]] = {}
    for module, package in OPTIONAL.items():
        if package.extra:
            missing = extras.setdefault(package.extra, [])
            missing += [] if is_installed(module) else [module]
    there = [module for module in OPTIONAL if is_installed(module) and module not in CORE]
    return {
        "hydragnn_hpo": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)),
        "memory_mb": host_memory_mb(),
        "core": {name: _version(name) for name in CORE},
        "torch": _read_torch(),
        "extras": dict(sorted(extras.items())),
        "optional": {
            module: _version(module) or _version(OPTIONAL[module].name) for module in there
        },
        "programs": [name for name in PROGRAMS if shutil.which(name)],
        "in_job": in_batch_job(os.environ),
    }


def _version(name: str) -> str:
    """Return the version of a distribution; empty if none has this name."""
    try:
        return version(name.replace("_", "-"))
    except PackageNotFoundError:
        return ""


def _read_torch() -> TorchInfo:
    """Import torch and ask for its build and devices."""
    try:
        import torch

        gpus = range(torch.cuda.device_count())
        names = [torch.cuda.get_device_name(number) for number in gpus]
        cuda, hip = torch.version.cuda or "", torch.version.hip or ""
    except (ImportError, OSError, RuntimeError) as error:
        problem = f"cannot be used ({type(error).__name__})"
        return {"cuda": "", "hip": "", "devices": [], "problem": problem}
    return {"cuda": cuda, "hip": hip, "devices": names, "problem": ""}
