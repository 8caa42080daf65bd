"""Export one target of an ensemble as a program that needs only torch, with its description.

Shapes: G graphs, N nodes, E edges, M members, R rows of the target (G or N), w components.
"""

import hashlib
import io
import math
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.proxy_tensor import make_fx

from hydragnn_hpo import __version__
from hydragnn_hpo.data import Batch
from hydragnn_hpo.ensemble.artefact import HeadEntry, Manifest
from hydragnn_hpo.ensemble.energy_derivatives import differentiate
from hydragnn_hpo.ensemble.engine import Member
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.errors import ConfigError, unknown
from hydragnn_hpo.files import write_bytes, write_json
from hydragnn_hpo.model import variance_key
from hydragnn_hpo.model.conditioning import (
    FrozenFeatures,
    GlobalRound,
    LaplacianEncoding,
    RandomWalkEncoding,
)
from hydragnn_hpo.model.convs.alignn import AlignnConv
from hydragnn_hpo.model.convs.dimenetpp import DimeNetPPConv
from hydragnn_hpo.model.convs.mfc import MFCConv
from hydragnn_hpo.model.layers import AttentionPool, pool_max
from hydragnn_hpo.uncertainty.error_factors import LARGEST, ErrorFactors

GHOST_SHIFT = 0.75
"""Length of the ghost atom's edges, as a share of the cutoff."""

LOADING = {
    "exported": "program = torch.export.load(path).module(); out = program(*inputs)",
    "compiled": "program = torch._inductor.aoti_load_package(path); out = program(*inputs)",
}
"""Python code that loads and calls a program, by its kind."""

Shape = list[str | int]
"""Sizes of a tensor; a letter stands for any size."""


class TensorDescription(TypedDict):
    """One input or output of a program."""

    name: str
    """Key of an output; inputs are passed by position."""
    dtype: str
    """Data type, for example ``float64``."""
    shape: Shape
    """Sizes, for example ``["N", 3]``."""
    unit: str
    """Unit; ``1`` for a pure number."""
    meaning: str
    """Description of the input or output."""


class ProgramDescription(TypedDict):
    """The content of ``NAME.json`` beside a program."""

    format: int
    """Version of this description, 1."""
    kind: str
    """``exported`` or ``compiled``."""
    python: str
    """Python code that loads and calls the program."""
    warning: str
    """Warning that loading the file may run code."""
    target: str
    """Name of the head."""
    description: str
    """Description of the property."""
    unit: str
    """Unit of the head."""
    energy: str | None
    """``total`` or ``per_atom`` for an energy."""
    cutoff: float
    """Longest edge that the program needs, in angstrom."""
    edges: str
    """Instructions to make the edges."""
    elements: list[int]
    """Atomic numbers with a label of the head in the training data; give no others."""
    inputs: list[TensorDescription]
    """Inputs in their order."""
    outputs: list[TensorDescription]
    """Entries of the dictionary that the program returns."""
    intervals: dict[str, float]
    """Quantile by level: an interval is mean -+ quantile * std."""
    bounds: tuple[float | None, float | None] | None
    """Smallest and largest possible value, in the unit: mean and intervals end there."""
    strata: dict[str, dict[str, float]]
    """Quantiles by stratum, then by level, which replace ``intervals`` in that stratum."""
    stratum: str
    """What the stratum of a row is."""
    members: list[str]
    """Trials of the members."""
    data: dict[str, JsonValue]
    """Origin, licence and checksums of the training data, see ``artefact.Provenance``."""
    device: str
    """Device on which the program runs: ``cpu``."""
    made_by: dict[str, str]
    """Versions of the packages that made the program."""
    program: NotRequired[str]
    """Name of the program's file, once it is written."""
    sha256: NotRequired[str]
    """Checksum of this file."""


EDGES_TEXT = (
    "All pairs up to the cutoff, periodic images included, once per direction. An edge leads from "
    "sender edge_index[0] to receiver edge_index[1] along positions[receiver] + edge_shift - "
    "positions[sender]. With ASE: i, j, S = neighbor_list('ijS', atoms, cutoff); edge_index = "
    "[i, j]; edge_shift = S @ atoms.cell. Several structures: atoms end to end, edges counted over "
    "all of them."
)
EXAMPLE_GRAPHS, EXAMPLE_NODES, EXAMPLE_EDGES = 101, 211, 307
"""Sizes of the traced example: distinct, and unequal to any width of a net, because tracing treats
equal sizes as one."""
UNTRACEABLE: dict[type[nn.Module], str] = {
    AlignnConv: "its conv alignn lists the angles between bonds",
    DimeNetPPConv: "its conv dimenetpp lists the angles between edges",
    MFCConv: "its conv mfc sorts atoms by their number of neighbours",
    GlobalRound: "its attention lays out the atoms of the largest structure",
    AttentionPool: "its pool 'attention' lays out the atoms of the largest structure",
    RandomWalkEncoding: "its encoding lays out the atoms of the largest structure",
    LaplacianEncoding: "its encoding is computed outside of the net",
    FrozenFeatures: "the features it begins from are computed outside of the net",
}
"""Modules with tensors whose sizes depend on values, which a traced program cannot follow."""


class EnsembleProgram(nn.Module):
    """Mean and spread of one target over all members.

    All members share one edge list. Edges beyond a member's cutoff are redirected to a ghost atom
    in an extra graph, whose output rows are dropped. Thus no tensor is empty, and no size depends
    on values, which a traced program could not follow.
    """

    def __init__(self, members: Sequence[Member], target: str, head: HeadEntry) -> None:
        """Keep the members that have a weight in the target.

        Args:
            members: members of the ensemble.
            target: name of the head.
            head: entry of the head in the manifest.
        """
        super().__init__()
        self.members = tuple(member for member in members if target in member.weights)
        self.nets = nn.ModuleList(member.model for member in self.members)
        self.target, self.head = target, head
        self.names = tuple(
            sorted({name for one in self.members for name in one.model.attribute_names(target)})
        )

    def forward(
        self,
        numbers: Tensor,
        positions: Tensor,
        edge_index: Tensor,
        edge_shift: Tensor,
        graph_of_node: Tensor,
        cell: Tensor,
        *attributes: Tensor,
    ) -> dict[str, Tensor]:
        """Predict the target for G structures.

        Args:
            numbers: atomic numbers, [N].
            positions: positions in angstrom, [N, 3].
            edge_index: sender and receiver of each edge, [2, E].
            edge_shift: translation of the receiver's image, in angstrom, [E, 3].
            graph_of_node: structure of each atom, from 0, ascending, [N].
            cell: lattice vectors as rows, in angstrom, [G, 3, 3]; 0 without a cell.
            attributes: known properties in the order of ``names``, [G] each.

        Returns:
            Outputs that ``describe_outputs`` lists, by name, in fp64.
        """
        given = Batch(
            numbers=numbers,
            positions=positions,
            edge_index=edge_index,
            edge_shift=edge_shift,
            graph_of_node=graph_of_node,
            num_graphs=cell.shape[0],
            targets={},
            masks={},
            graph_index=graph_of_node,
            attributes=dict(zip(self.names, attributes, strict=True)),
            cell=cell,
        )
        return self._mix([self._run(member, given) for member in self.members], given)

    def _mix(self, outputs: Sequence[dict[str, Tensor]], given: Batch) -> dict[str, Tensor]:
        """Return mean and spread of the members' outputs; the formulas of ``calibrate``."""
        weights = [member.weights[self.target] for member in self.members]
        moments = {
            name: _moments([output[name] for output in outputs], weights) for name in outputs[0]
        }
        mean, variance = moments["value"]
        if self.head.bounds is not None:
            mean = mean.clamp(*self.head.bounds)
        spread = variance.mean(dim=1, keepdim=True).sqrt()
        noise = moments["noise"][0] if "noise" in moments else 0.0
        fit = self.head.calibration
        std = (fit.a * spread.square() + fit.c * noise + fit.b).sqrt()
        out = {
            "mean": mean,
            "std": std if fit.factors is None else std * self._factor(fit.factors, mean, given),
            "std_epistemic": spread,
        }
        for name in ("forces", "stress"):
            if name in moments:
                out[name] = moments[name][0]
                out[f"{name}_std_epistemic"] = moments[name][1].sqrt()
        return out

    def _factor(self, factors: ErrorFactors, mean: Tensor, given: Batch) -> Tensor:
        """Return the factor of the standard deviation of each row, as ``ErrorFactors.of_rows``.

        Args:
            factors: those of the head.
            mean: predictions, [R, w].
            given: the inputs.
        """
        of_elements = mean.new_tensor(factors.logs)
        at_values = np.log(factors.at_values).tolist()
        if self.head.level == "node":
            logs = of_elements[given.numbers]
        else:
            marked = mean.new_zeros(given.num_graphs, len(factors.logs))
            place = (given.graph_of_node, given.numbers)
            one = mean.new_ones(())
            logs = torch.index_put(marked, place, one) @ of_elements
        size = mean[:, 0] if mean.shape[1] == 1 else mean.square().sum(dim=1).sqrt()
        logs = logs + at_values[0]
        for (low, high), (a, b) in zip(pairwise(factors.values), pairwise(at_values), strict=True):
            logs = logs + (b - a) * ((size - low) / (high - low)).clamp(0.0, 1.0)
        limit = math.log(LARGEST)
        factor: Tensor = logs.clamp(-limit, limit).exp().unsqueeze(1)
        return factor

    def _run(self, member: Member, given: Batch) -> dict[str, Tensor]:
        """Run one member, and drop the rows of its ghost.

        Args:
            member: a member with a weight in the target.
            given: the inputs, G structures with N atoms.

        Returns:
            ``value``, and ``noise``, ``forces`` and ``stress`` if the head has them; in fp64.
        """
        batch = add_ghost_atom(given, member.cutoff, member.dtype)
        graphs = given.num_graphs
        nodes = given.numbers.shape[0]
        rows = graphs if self.head.level == "graph" else nodes
        if self.head.energy is None:
            heads = member.model(batch, only=(self.target,))
            output = {"value": heads[self.target][:rows].detach()}
            if variance_key(self.target) in heads:
                output["noise"] = heads[variance_key(self.target)][:rows].detach()
            return {name: value.double() for name, value in output.items()}
        per_atom = self.head.energy == "per_atom"
        energy, noise, forces, stress = differentiate(member, batch, self.target, per_atom=per_atom)
        output = {"value": energy[:rows], "forces": forces[:nodes], "stress": stress[:rows]}
        if noise is not None:
            output["noise"] = noise[:rows]
        return {name: value.double() for name, value in output.items()}


def add_ghost_atom(given: Batch, cutoff: float, dtype: torch.dtype) -> Batch:
    """Return a batch in a member's type, with edges beyond its cutoff redirected to a ghost atom.

    Args:
        given: G structures with N atoms and E edges.
        cutoff: cutoff of the member, in angstrom.
        dtype: type of the member's weights.

    Returns:
        G + 1 structures, N + 1 atoms and E + 2 edges: the last two join the ghost to itself.
    """
    positions = given.positions.to(dtype)
    sender, receiver = given.edge_index[0], given.edge_index[1]
    shift = given.edge_shift
    vectors = (
        given.positions.index_select(0, receiver) - given.positions.index_select(0, sender) + shift
    )
    far = vectors.detach().square().sum(dim=1) > cutoff * cutoff
    nodes = given.numbers.shape[0]
    graphs = given.num_graphs
    away = torch.tensor([GHOST_SHIFT * cutoff, 0.0, 0.0], dtype=shift.dtype, device=shift.device)
    ghosts = given.edge_index.new_full((2,), nodes)
    ends = [torch.cat((torch.where(far, nodes, end), ghosts)) for end in (sender, receiver)]
    shifts = torch.where(far.unsqueeze(1), away, shift)
    assert given.cell is not None
    return Batch(
        numbers=torch.cat((given.numbers, given.numbers.new_ones(1))),
        positions=torch.cat((positions, positions.new_zeros(1, 3))),
        edge_index=torch.stack(ends),
        edge_shift=torch.cat((shifts, torch.stack((away, -away)))).to(dtype),
        graph_of_node=torch.cat((given.graph_of_node, given.graph_of_node.new_full((1,), graphs))),
        num_graphs=graphs + 1,
        targets={},
        masks={},
        graph_index=given.graph_index,
        attributes={
            name: torch.cat((value, value.new_zeros(1))).to(dtype)
            for name, value in given.attributes.items()
        },
        cell=torch.cat((given.cell, given.cell.new_zeros(1, 3, 3))).to(dtype),
    )


def _moments(values: Sequence[Tensor], weights: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return weighted mean and variance over members, both of the shape of one member's values."""
    stacked = torch.stack(list(values))
    share = stacked.new_tensor(weights).view(-1, *[1] * (stacked.dim() - 1))
    share = share / share.sum()
    mean = (share * stacked).sum(dim=0)
    return mean, (share * (stacked - mean).square()).sum(dim=0)


def describe_program(
    manifest: Manifest, program: EnsembleProgram, *, compiled: bool
) -> ProgramDescription:
    """Describe a program: inputs and outputs with shapes, types and units.

    Args:
        manifest: manifest of the ensemble.
        program: the program before tracing.
        compiled: True for machine code, False for a traced program.
    """
    head = program.head
    kind = "compiled" if compiled else "exported"
    return {
        "format": 1,
        "kind": kind,
        "python": LOADING[kind],
        "warning": "a .pt2 file may run code when it is loaded: take it only from who you trust",
        "target": program.target,
        "description": head.description,
        "unit": head.shown_unit,
        "energy": head.energy,
        "cutoff": manifest.cutoff,
        "edges": EDGES_TEXT,
        "elements": list(manifest.elements if head.elements is None else head.elements),
        "inputs": describe_inputs(manifest, program.names),
        "outputs": describe_outputs(head),
        "intervals": head.calibration.quantiles,
        "bounds": head.bounds,
        "strata": head.calibration.tables,
        "stratum": manifest.strata.describe(node=head.level == "node"),
        "members": [member.trial for member in program.members],
        "data": manifest.data.model_dump(mode="json"),
        "device": "cpu",
        "made_by": {"hydragnn_hpo": __version__, "torch": str(torch.__version__)},
    }


def describe_inputs(manifest: Manifest, names: tuple[str, ...]) -> list[TensorDescription]:
    """Describe the inputs in order; ``names`` are the names of the attributes."""
    of_graphs: Shape = ["G"]
    rows: list[tuple[str, str, Shape, str, str]] = [
        ("numbers", "int64", ["N"], "1", "atomic numbers"),
        ("positions", "float64", ["N", 3], "angstrom", "positions"),
        ("edge_index", "int64", [2, "E"], "1", "sender and receiver of each edge"),
        ("edge_shift", "float64", ["E", 3], "angstrom", "translation of the receiver's image"),
        ("graph_of_node", "int64", ["N"], "1", "structure of each atom, from 0, rising"),
        ("cell", "float64", ["G", 3, 3], "angstrom", "lattice vectors as rows; 0 without"),
        *(
            (name, "float64", of_graphs, manifest.attributes[name].unit, "known property")
            for name in names
        ),
    ]
    return [_row(*row) for row in rows]


def describe_outputs(head: HeadEntry) -> list[TensorDescription]:
    """Describe the entries of the dictionary that a program returns; all are fp64."""
    rows = "G" if head.level == "graph" else "N"
    width = head.width
    unit = head.shown_unit
    interval = "calibrated standard deviation; mean -+ intervals['0.9'] * std covers 90 %"
    entries: list[tuple[str, Shape, str, str]] = [
        ("mean", [rows, width], unit, "mean of the members"),
        ("std", [rows, 1], unit, interval),
        ("std_epistemic", [rows, 1], unit, "spread of the members as it is"),
    ]
    if head.energy is not None:
        apart = "spread of the members as it is, by component"
        pressure = "slope of the total energy by strain over the volume, row by row; 0 without"
        entries += [
            ("forces", ["N", 3], "eV/angstrom", "minus the slope of the total energy"),
            ("forces_std_epistemic", ["N", 3], "eV/angstrom", apart),
            ("stress", ["G", 9], "eV/angstrom^3", pressure),
            ("stress_std_epistemic", ["G", 9], "eV/angstrom^3", apart),
        ]
    return [_row(name, "float64", shape, unit, text) for name, shape, unit, text in entries]


def _row(name: str, dtype: str, shape: Shape, unit: str, meaning: str) -> TensorDescription:
    return {"name": name, "dtype": dtype, "shape": shape, "unit": unit, "meaning": meaning}


def check_exportable(ensemble: Ensemble, target: str) -> None:
    """Raise an error unless a target can be exported.

    Raises:
        ConfigError: the target is unknown, or a member cannot be traced.
    """
    if target not in ensemble.manifest.heads:
        raise ConfigError(unknown("target", target, ensemble.manifest.heads))
    if ensemble.manifest.heads[target].shape == "class":
        raise ConfigError(
            f"target '{target}' is a class, whose sets a program does not make: predict it with "
            "'hydragnn-hpo predict', or export another target."
        )
    if (local := ensemble.manifest.heads[target].local) is not None:
        raise ConfigError(
            f"target '{target}' has a regression on {local.title} among its members, which "
            "cannot be traced: predict it with 'hydragnn-hpo predict', or build the ensemble again "
            "with [ensemble] local_descriptors = 'never'."
        )
    for member in ensemble.members:
        reason = explain_untraceable(member, target) if target in member.weights else None
        if reason is not None:
            raise ConfigError(
                f"the ensemble's member {member.trial} cannot be exported: {reason}. Leave it out "
                "of the ensemble, or use predict, the calculator or serve."
            )


def explain_untraceable(member: Member, target: str) -> str | None:
    """Return why a member's net for a target cannot be traced; None if it can."""
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


def trace_program(ensemble: Ensemble, target: str) -> ExportedProgram:
    """Trace all members into one program for any number of structures of any size.

    ``torch.export`` cannot trace derivatives, so ``make_fx`` first turns them into operations.

    Raises:
        ConfigError: see ``check_exportable``, or a user's conv cannot be traced.
    """
    check_exportable(ensemble, target)
    program = EnsembleProgram(ensemble.members, target, ensemble.manifest.heads[target]).eval()
    given = make_example(ensemble.manifest.elements, len(program.names))
    dynamic = tuple({1 if place == 2 else 0: Dim.DYNAMIC} for place in range(len(given)))
    try:
        flat = make_fx(program, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*given)
        return torch.export.export(flat, given, dynamic_shapes=dynamic, strict=False)
    except Exception as error:  # a user's conv may raise anything
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"the program of '{target}' cannot be traced ({type(error).__name__}: {reason}): a "
            "conv may do what depends on values; use predict, the calculator or serve."
        ) from error


def make_example(elements: Sequence[int], attributes: int) -> tuple[Tensor, ...]:
    """Make random graphs to trace with; only their sizes matter.

    Args:
        elements: atomic numbers to draw from.
        attributes: number of attributes that the members read.

    Returns:
        The inputs of ``EnsembleProgram.forward`` in their order.
    """
    generator = torch.Generator().manual_seed(0)
    choices = torch.tensor(elements)
    owner = torch.arange(EXAMPLE_NODES) * EXAMPLE_GRAPHS // EXAMPLE_NODES
    ends = torch.randint(EXAMPLE_NODES, (2, EXAMPLE_EDGES), generator=generator)
    return (
        choices[torch.randint(len(choices), (EXAMPLE_NODES,), generator=generator)],
        torch.rand(EXAMPLE_NODES, 3, generator=generator, dtype=torch.float64),
        ends,
        torch.rand(EXAMPLE_EDGES, 3, generator=generator, dtype=torch.float64),
        owner,
        torch.eye(3, dtype=torch.float64).repeat(EXAMPLE_GRAPHS, 1, 1),
        *(torch.zeros(EXAMPLE_GRAPHS, dtype=torch.float64) for _ in range(attributes)),
    )


def export_program(
    ensemble: Ensemble, target: str, out: Path, *, aot: bool = False
) -> ProgramDescription:
    """Write ``NAME.pt2`` and ``NAME.json``.

    Args:
        ensemble: ensemble on the CPU, in the precision of the program.
        target: name of the head.
        out: path of ``NAME.pt2``.
        aot: True compiles for this kind of processor (AOTInductor; needs a C++ compiler).

    Returns:
        The content of ``NAME.json``.

    Raises:
        ConfigError: the name is wrong, the target unknown, or a member cannot be exported.
    """
    if out.suffix != ".pt2":
        raise ConfigError(f"{out}: a program is called NAME.pt2; give --out such a name.")
    program = trace_program(ensemble, target)
    content = compile_program(program) if aot else save_program(program)
    plain = EnsembleProgram(ensemble.members, target, ensemble.manifest.heads[target])
    description: ProgramDescription = {
        **describe_program(ensemble.manifest, plain, compiled=aot),
        "program": out.name,
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(out, content)
    write_json(out.with_suffix(".json"), description)
    return description


def save_program(program: ExportedProgram) -> bytes:
    """Return the content of the file of a traced program."""
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()


def compile_program(program: ExportedProgram) -> bytes:
    """Compile a traced program ahead of time, and return the content of its file.

    Raises:
        ConfigError: there is no working compiler.
    """
    from torch._inductor import aoti_compile_and_package
    from torch._inductor.exc import InductorError

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.pt2"
        try:
            with torch_compile_cache(Path(folder) / "inductor"), warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # torch warns about its own code
                aoti_compile_and_package(program, package_path=str(path))
        except (InductorError, RuntimeError, OSError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise ConfigError(
                f"the program cannot be compiled ({reason}): install a C++ compiler, or export "
                "without --aot."
            ) from error
        return path.read_bytes()


@contextmanager
def torch_compile_cache(place: Path) -> Iterator[None]:
    """Point torch's compile cache to a private folder, unless the user has set one.

    Torch's default is a folder that all users can write to. Torch itself sets the environment
    variable to this default, so a variable with the default value is not the user's choice.
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
