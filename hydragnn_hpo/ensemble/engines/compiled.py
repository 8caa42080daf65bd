"""Members as machine code, made once per machine and kept."""

import logging
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from hydragnn_hpo.data.graph_set import GraphSet
from hydragnn_hpo.ensemble.engine import Member, member_batches, run_member
from hydragnn_hpo.ensemble.engines import cache
from hydragnn_hpo.ensemble.engines.plain import (
    Net,
    Plain,
    Tensors,
    Unfit,
    check,
    exported,
    plainly,
    small_weights,
    tensors_of,
)

logger = logging.getLogger(__name__)


class Compiled:
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
        self.place = cache.folder() if place is None else place
        self.ways: dict[str, str] = {}
        """How each member that was asked runs, in words, by trial."""
        self._nets: dict[str, Net | None] = {}

    def predict(
        self, graphs: GraphSet, indices: np.ndarray
    ) -> Iterator[tuple[Member, dict[str, Tensor]]]:
        """Give each member's heads and variances for one batch of graphs."""
        for member, batch in member_batches(self.members, graphs, indices, self.device):
            tensors = tensors_of(batch)
            if tensors is None or self._nets.get(member.trial, self) is None:
                yield member, run_member(member, batch)
                continue
            if member.trial not in self._nets:
                self._nets[member.trial] = self._prepared(member, tensors)
            net = self._nets[member.trial]
            yield member, run_member(member, batch) if net is None else net(tensors)

    def _prepared(self, member: Member, tensors: Tensors) -> Net | None:
        """Give a member's compiled net, or ``None`` after saying why there is none."""
        conv = type(member.model.trunk.convs[0]).__name__
        try:
            net = self._compiled(member, tensors)
            check(net(tensors), plainly(member)(tensors), member.dtype)
        except Exception as reason:  # torch's compilers raise errors of every class
            why = str(reason).strip().partition("\n")[0] or type(reason).__name__
            self.ways[member.trial] = f"eager: {why}"
            logger.warning(
                "member %s (%s) is not compiled: %s.", member.trial, conv, why.rstrip(".")
            )
            logger.debug("why %s is not compiled", member.trial, exc_info=True)
            return None
        return net

    def _compiled(self, member: Member, tensors: Tensors) -> Net:
        if member.model.energies:
            raise Unfit("its forces are derivatives")
        if not member.signature:
            raise Unfit("its conv is a user's own")
        if not cache.made_private(self.place):
            raise Unfit(f"{self.place} is not a folder that this user alone can write to")
        path = self.place / f"{cache.key_of(member.signature, tensors)}.pt2"
        began = time.monotonic()
        there = cache.is_own(path)
        if not there:
            logger.info("compiling member %s; once for this machine.", member.trial)
            compile_to(path, member, tensors)
        net = loaded(path, member)
        seconds = time.monotonic() - began
        self.ways[member.trial] = f"{'from the cache' if there else 'compiled'} in {seconds:.1f} s"
        return net


def compile_to(path: Path, member: Member, tensors: Tensors) -> None:
    """Compile a member's net, and write it whole or not at all."""
    with (
        TemporaryDirectory(dir=path.parent) as scratch,
        cache.of_torch(path.parent / "inductor"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # torch warns of its own ways while it traces
        made = Path(scratch) / path.name
        program = exported(member.model, tensors | small_weights(member.model))
        torch._inductor.aoti_compile_and_package(program, package_path=str(made))
        made.chmod(0o600)
        made.replace(path)


def loaded(path: Path, member: Member) -> Net:
    """Load a compiled net and give it a member's weights: the code was perhaps another's."""
    net = torch._inductor.aoti_load_package(str(path), device_index=_index(member))
    plain, small = Plain(member.model), small_weights(member.model)
    own = {**dict(plain.named_parameters()), **dict(plain.named_buffers())}
    known = {name: own[name].detach() for name in net.get_constant_fqns() if name in own}
    net.load_constants(known, check_full_update=True)

    def asked_with(tensors: Tensors) -> Tensors:
        found: Tensors = net(tensors | small)
        return found

    return asked_with


def _index(member: Member) -> int:
    device = next(member.model.parameters()).device
    return -1 if device.index is None else device.index
