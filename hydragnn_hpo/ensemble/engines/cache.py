"""Where compiled nets are kept: a folder of the user's own, from which alone they are loaded.

A compiled net is machine code. It is never taken from an ensemble file nor from a place that
somebody else can write to (Law 10).
"""

import hashlib
import json
import os
import platform
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

import hydragnn_hpo

_PARTS = ("model", "data/batch.py", "config/convs", "config/model.py", "ensemble/engines")
"""What decides, in our own code, what a net compiles to."""


def folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Give the folder of compiled nets: below ``XDG_CACHE_HOME``, or ``~/.cache``."""
    root = environment.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "hydragnn-hpo" / "compiled"


def made_private(place: Path) -> bool:
    """Create a folder that nobody else can write to; false where there is none to be had."""
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.chmod(0o700)
    except OSError:
        return False
    return is_own(place)


def is_own(path: Path) -> bool:
    """Tell whether a file or folder belongs to this user, and nobody else can write to it."""
    try:
        found = path.lstat()
    except OSError:
        return False
    plain = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    return plain and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def key_of(signature: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """Name the compiled code of a net: all that decides what it is, weights aside.

    Args:
        signature: of the net, see ``Member.signature``.
        tensors: its inputs by name.
    """
    known = {
        "signature": signature,
        "inputs": {name: str(tensor.dtype) for name, tensor in sorted(tensors.items())},
        "device": _device(tensors["positions"].device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "code": code_sum(),
    }
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} {torch.cuda.get_device_capability(device)}"
    return f"{torch.backends.cpu.get_cpu_capability()} {_cpu_model()}"


@cache
def _cpu_model() -> str:
    """Name the processor: code for one may not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return "".join(line for line in lines[:40] if line.startswith(("model name", "flags")))


@cache
def code_sum() -> str:
    """Give the checksum of our own code that compiled nets are made of."""
    root, total = Path(hydragnn_hpo.__file__).parent, hashlib.sha256()
    for part in _PARTS:
        place = root / part
        for path in sorted(place.rglob("*.py")) if place.is_dir() else (place,):
            total.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return total.hexdigest()


@contextmanager
def of_torch(place: Path) -> Iterator[None]:
    """Let torch keep what it compiles in a place of ours, unless the user has named one.

    Torch's default lies in a folder open to all, and torch writes it into the environment once it
    was asked for.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir  # slow

    name = "TORCHINDUCTOR_CACHE_DIR"
    before = os.environ.get(name)
    if before is None or before == default_cache_dir():
        os.environ[name] = str(place)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before
