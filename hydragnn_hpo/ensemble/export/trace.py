"""From an ensemble to one traced program, and which nets cannot be traced."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.proxy_tensor import make_fx

from hydragnn_hpo.ensemble.engine import Member
from hydragnn_hpo.ensemble.export.program import Program
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.errors import ConfigError, unknown
from hydragnn_hpo.model.attention import GlobalRound
from hydragnn_hpo.model.convs.alignn import AlignnConv
from hydragnn_hpo.model.convs.dimenetpp import DimeNetPPConv
from hydragnn_hpo.model.convs.mfc import MFCConv
from hydragnn_hpo.model.encodings import LaplacianEncoding, RandomWalkEncoding
from hydragnn_hpo.model.pooling import AttentionPool, pool_max

GRAPHS, NODES, EDGES = 101, 211, 307
"""Sizes of the example that is traced: unlike each other and any width of a net, since sizes that
are equal would be taken for one."""

UNTRACEABLE: dict[type[nn.Module], str] = {
    AlignnConv: "its conv alignn lists the angles between bonds",
    DimeNetPPConv: "its conv dimenetpp lists the angles between edges",
    MFCConv: "its conv mfc sorts atoms by their number of neighbours",
    GlobalRound: "its attention lays out the atoms of the largest structure",
    AttentionPool: "its pool 'attention' lays out the atoms of the largest structure",
    RandomWalkEncoding: "its encoding lays out the atoms of the largest structure",
    LaplacianEncoding: "its encoding is computed outside of the net",
}
"""What makes tensors whose sizes depend on values, which a traced program cannot follow."""


def check(ensemble: Ensemble, target: str) -> None:
    """Refuse what cannot be exported.

    Raises:
        ConfigError: the target is unknown, or a member cannot be traced.
    """
    if target not in ensemble.manifest.heads:
        raise ConfigError(unknown("target", target, ensemble.manifest.heads))
    for member in ensemble.members:
        reason = refusal(member, target) if target in member.weights else None
        if reason is not None:
            raise ConfigError(
                f"the ensemble's member {member.trial} cannot be exported: {reason}. Leave it out "
                "of the ensemble, or use predict, the calculator or serve."
            )


def refusal(member: Member, target: str) -> str | None:
    """Say why a member's net for a target cannot be traced, if so."""
    if member.max_neighbors is not None:
        return "it caps its neighbours (model.max_neighbors), by a list computed outside of the net"
    net = member.model
    head = net.heads[net.energies.get(target, target)]
    for module in (*net.trunk.modules(), *head.modules()):
        for kind, reason in UNTRACEABLE.items():
            if isinstance(module, kind):
                return reason
    if getattr(head, "pool", None) is pool_max:
        return "its pool 'max' lays out the atoms of the largest structure"
    return None


def traced(ensemble: Ensemble, target: str) -> ExportedProgram:
    """Trace all members into one program for structures of any number and size.

    Derivatives are written out as operations first (``make_fx``): ``torch.export`` would not
    follow them.

    Raises:
        ConfigError: see ``check``, or a user's conv cannot be traced.
    """
    check(ensemble, target)
    program = Program(ensemble.members, target, ensemble.manifest.heads[target]).eval()
    given = example(ensemble.manifest.elements, len(program.names))
    dynamic = tuple({1 if place == 2 else 0: Dim.DYNAMIC} for place in range(len(given)))
    try:
        flat = make_fx(program, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*given)
        return torch.export.export(flat, given, dynamic_shapes=dynamic, strict=False)
    except Exception as error:  # whatever a net does that is not one of ours
        said = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"the program of '{target}' cannot be traced ({type(error).__name__}: {said}): a conv "
            "may do what depends on values; use predict, the calculator or serve."
        ) from error


def example(elements: Sequence[int], attributes: int) -> tuple[Tensor, ...]:
    """Make up graphs to trace with; only their sizes matter.

    Args:
        elements: atomic numbers that occur.
        attributes: how many attributes the members are told.
    """
    generator = torch.Generator().manual_seed(0)
    known = torch.tensor(elements)
    owner = torch.arange(NODES) * GRAPHS // NODES
    ends = torch.randint(NODES, (2, EDGES), generator=generator)
    return (
        known[torch.randint(len(known), (NODES,), generator=generator)],
        torch.rand(NODES, 3, generator=generator, dtype=torch.float64),
        ends,
        torch.rand(EDGES, 3, generator=generator, dtype=torch.float64),
        owner,
        torch.eye(3, dtype=torch.float64).repeat(GRAPHS, 1, 1),
        *(torch.zeros(GRAPHS, dtype=torch.float64) for _ in range(attributes)),
    )
