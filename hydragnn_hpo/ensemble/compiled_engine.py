"""Members as machine code, compiled once per machine and kept in a cache of the user.

A compiled net is machine code. It is never loaded from an ensemble file nor from a folder that
another user can write to (Law 10).
"""

import functools
import hashlib
import json
import logging
import os
import platform
import stat
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

import hydragnn_hpo
from hydragnn_hpo.data import GraphSet
from hydragnn_hpo.ensemble.engine import Member, member_batches, run_member
from hydragnn_hpo.ensemble.functional_model import (
    CannotCompile,
    FunctionalModel,
    Net,
    Tensors,
    check_same_output,
    export_model,
    run_eagerly,
    small_weights,
    to_tensors,
)

_PARTS = (
    "model",
    "data/batch.py",
    "config/convs",
    "config/model_config.py",
    "ensemble/functional_model.py",
    "ensemble/engine.py",
    "ensemble/compiled_engine.py",
)
"""Parts of this package that determine the compiled code of a net."""

logger = logging.getLogger(__name__)


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of compiled nets: below ``XDG_CACHE_HOME``, or ``~/.cache``."""
    root = environment.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "hydragnn-hpo" / "compiled"


def make_private(place: Path) -> bool:
    """Create a folder that nobody else can write to; return whether that worked."""
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.chmod(0o700)
    except OSError:
        return False
    return is_own(place)


def is_own(path: Path) -> bool:
    """Check whether a file or folder belongs to this user, and nobody else can write to it."""
    try:
        found = path.lstat()
    except OSError:
        return False
    plain = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    return plain and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def cache_key(signature: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the cache key of a net: a hash of all that determines its code; weights do not.

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
        "code": code_checksum(),
    }
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} {torch.cuda.get_device_capability(device)}"
    return f"{torch.backends.cpu.get_cpu_capability()} {_cpu_model()}"


@functools.cache
def _cpu_model() -> str:
    """Return model and flags of the processor: code for one may not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return "".join(line for line in lines[:40] if line.startswith(("model name", "flags")))


@functools.cache
def code_checksum() -> str:
    """Return the checksum of the parts of this package that nets are compiled from."""
    root, total = Path(hydragnn_hpo.__file__).parent, hashlib.sha256()
    for part in _PARTS:
        place = root / part
        for path in sorted(place.rglob("*.py")) if place.is_dir() else (place,):
            total.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return total.hexdigest()


@contextmanager
def torch_compile_cache(place: Path) -> Iterator[None]:
    """Point torch's compile cache to a private folder, unless the user has named one.

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


class CompiledEngine:
    """Members compiled for any number of graphs; those that cannot be stay as they are.

    A member is compiled, or taken from the cache, when it first meets a batch that compiled code
    can take, and its answers to that batch are compared with those of the net itself.
    """

    def __init__(
        self, members: Sequence[Member], device: torch.device, place: Path | None = None
    ) -> None:
        """Take members whose nets are on ``device``; nothing is compiled yet.

        Args:
            members: in the order in which they answer.
            device: where they are.
            place: folder of compiled nets; the user's own if left out.
        """
        self.members = tuple(members)
        self.device = device
        self.place = cache_folder() if place is None else place
        self.ways: dict[str, str] = {}
        """How each member that has predicted runs, in words, by trial."""
        self._nets: dict[str, Net | None] = {}

    def predict(
        self, graphs: GraphSet, indices: np.ndarray
    ) -> Iterator[tuple[Member, dict[str, Tensor]]]:
        """Yield each member's heads and variances for one batch of graphs."""
        for member, batch in member_batches(self.members, graphs, indices, self.device):
            tensors = to_tensors(batch)
            if tensors is None or self._nets.get(member.trial, self) is None:
                yield member, run_member(member, batch)
                continue
            if member.trial not in self._nets:
                self._nets[member.trial] = self._prepare(member, tensors)
            net = self._nets[member.trial]
            yield member, run_member(member, batch) if net is None else net(tensors)

    def _prepare(self, member: Member, tensors: Tensors) -> Net | None:
        """Return a member's compiled net, or ``None`` after logging why there is none."""
        conv = type(member.model.trunk.convs[0]).__name__
        try:
            net = self._compile(member, tensors)
            check_same_output(net(tensors), run_eagerly(member)(tensors), member.dtype)
        except Exception as reason:  # torch's compilers raise errors of every class
            why = str(reason).strip().partition("\n")[0] or type(reason).__name__
            self.ways[member.trial] = f"eager: {why}"
            logger.warning(
                "member %s (%s) is not compiled: %s.", member.trial, conv, why.rstrip(".")
            )
            logger.debug("why %s is not compiled", member.trial, exc_info=True)
            return None
        return net

    def _compile(self, member: Member, tensors: Tensors) -> Net:
        if member.model.energies:
            raise CannotCompile("its forces are derivatives")
        if not member.signature:
            raise CannotCompile("its conv is a user's own")
        if not make_private(self.place):
            raise CannotCompile(f"{self.place} is not a folder that this user alone can write to")
        path = self.place / f"{cache_key(member.signature, tensors)}.pt2"
        began = time.monotonic()
        there = is_own(path)
        if not there:
            logger.info("compiling member %s; once for this machine.", member.trial)
            compile_to(path, member, tensors)
        net = load_compiled(path, member)
        seconds = time.monotonic() - began
        self.ways[member.trial] = f"{'from the cache' if there else 'compiled'} in {seconds:.1f} s"
        return net


def compile_to(path: Path, member: Member, tensors: Tensors) -> None:
    """Compile a member's net, and write it whole or not at all."""
    with (
        TemporaryDirectory(dir=path.parent) as scratch,
        torch_compile_cache(path.parent / "inductor"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # torch warns of its own ways while it traces
        made = Path(scratch) / path.name
        program = export_model(member.model, tensors | small_weights(member.model))
        torch._inductor.aoti_compile_and_package(program, package_path=str(made))
        made.chmod(0o600)
        made.replace(path)


def load_compiled(path: Path, member: Member) -> Net:
    """Load a compiled net with a member's weights; another member's may have been compiled."""
    net = torch._inductor.aoti_load_package(str(path), device_index=_index(member))
    plain, small = FunctionalModel(member.model), small_weights(member.model)
    own = {**dict(plain.named_parameters()), **dict(plain.named_buffers())}
    known = {name: own[name].detach() for name in net.get_constant_fqns() if name in own}
    net.load_constants(known, check_full_update=True)

    def run(tensors: Tensors) -> Tensors:
        found: Tensors = net(tensors | small)
        return found

    return run


def _index(member: Member) -> int:
    device = next(member.model.parameters()).device
    return -1 if device.index is None else device.index
