"""Versions, where torch comes from and how long it takes, and what the environment says."""

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import hydragnn_hpo
from hydragnn_hpo.launching.doctor.filesystems import filesystem_of
from hydragnn_hpo.launching.doctor.order import Order
from hydragnn_hpo.launching.doctor.probes.storage import host_id
from hydragnn_hpo.launching.wire.package import digest

TELLING = (
    *("NCCL_", "RCCL_", "FI_", "HSA_", "MIOPEN_", "MIOOPEN_", "ROCR_", "HIP_", "ZE_", "GLOO_"),
    *("CUDA_VISIBLE", "GPU_MAX", "OMP_", "TORCH_NCCL", "MPICH_", "OFI_", "UCX_", "AMD_"),
)
"""How variables begin that may be told: others can hold secrets."""

_IMPORT = "import torch; import sys; sys.stdout.write(torch.__version__)"


def look_at_software(order: Order) -> dict[str, Any]:
    """Give what must be equal on all hosts, and what the environment sets."""
    spec = importlib.util.find_spec("torch")
    where = spec.origin if spec and spec.origin else ""
    return {
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "package": digest(),
        "version": hydragnn_hpo.__version__,
        "torch_at": where,
        "torch_filesystem": filesystem_of(Path(where)) if where else "",
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(TELLING)},
    }


def look_at_torch(order: Order) -> dict[str, Any]:
    """Time the import of torch, in a process of its own; by hosts of the sample only."""
    if not order.samples(host_id()) or importlib.util.find_spec("torch") is None:
        return {}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-P", "-c", _IMPORT],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        said = done.stderr.strip().splitlines()
        return {"problem": said[-1] if said else f"ended with code {done.returncode}"}
    return {"seconds": seconds, "version": done.stdout}
