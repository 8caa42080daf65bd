"""An exported program says what the ensemble says, and needs nothing of ours."""

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from ase.neighborlist import neighbor_list
from torch import Tensor
from typer.testing import CliRunner

from hydragnn_hpo.cli.command_line import app
from hydragnn_hpo.config.data_config import AttributeConfig
from hydragnn_hpo.config.model_config import HeadConfig, ModelConfig
from hydragnn_hpo.ensemble.artefact import Manifest
from hydragnn_hpo.ensemble.calculator import EnsembleCalculator
from hydragnn_hpo.ensemble.engine import Member
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble.torch_export import (
    EnsembleProgram,
    check_exportable,
    export_program,
    trace_program,
)
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.model.convs import CONVS
from hydragnn_hpo.model.gnn import MultiHeadGNN

REFUSED = {"alignn": "angles", "dimenetpp": "angles", "mfc": "number of neighbours"}


def crystal() -> Atoms:
    atoms = bulk("C", "diamond", a=3.6) * (1, 1, 2)
    atoms.numbers[1] = 7
    atoms.rattle(0.05, seed=1)
    return atoms


STRUCTURES = {
    "several": [molecule("CH3OH"), crystal(), molecule("H2O")],
    "one": [molecule("C2H6")],
    "crystal": [crystal()],
    "atom": [Atoms("C")],
    "atoms": [Atoms("O"), molecule("N2")],
}


def inputs(structures: list[Atoms], cutoff: float) -> tuple[Tensor, ...]:
    """Make the inputs as the page says, by ASE."""
    edges = []
    shifts = []
    first = 0
    for atoms in structures:
        i, j, shift = neighbor_list("ijS", atoms, cutoff)
        edges.append(np.stack((i, j)) + first)
        shifts.append(shift @ atoms.cell.array)
        first += len(atoms)
    owner = np.repeat(np.arange(len(structures)), [len(atoms) for atoms in structures])
    return (
        torch.from_numpy(np.concatenate([atoms.numbers for atoms in structures])),
        torch.from_numpy(np.concatenate([atoms.positions for atoms in structures])),
        torch.from_numpy(np.concatenate(edges, axis=1)).long(),
        torch.from_numpy(np.concatenate(shifts).astype(float)),
        torch.from_numpy(owner),
        torch.from_numpy(np.stack([atoms.cell.array for atoms in structures])),
    )


def some_of(path: Path, *trials: str, precision: str | None = None) -> Ensemble:
    """Keep some members of an ensemble, with weights 1, 2, ... of the energy."""
    whole = Ensemble.load(path, precision=precision)
    members = [member for member in whole.members if member.trial in trials]
    total = sum(range(1, len(members) + 1))
    members = [
        replace(member, weights={"charge": 1 / len(members), "energy": (k + 1) / total})
        for k, member in enumerate(members)
    ]
    values = whole.manifest.model_dump()
    values["members"] = [
        entry | {"weights": dict(member.weights)}
        for entry in values["members"]
        for member in members
        if member.trial == entry["trial"]
    ]
    return Ensemble(Manifest.model_validate(values), members)


def assert_same(outputs: dict[str, Tensor], ensemble: Ensemble, target: str, name: str) -> None:
    structures = STRUCTURES[name]
    head = ensemble.predict(structures).heads[target]
    for key in ("mean", "std", "std_epistemic"):
        expected = getattr(head, key)
        largest = float(np.abs(expected).max())
        np.testing.assert_allclose(outputs[key].numpy(), expected, rtol=1e-5, atol=1e-5 * largest)
    if ensemble.manifest.heads[target].energy and len(structures) == 1:
        assert_same_slopes(outputs, ensemble, structures[0])


def assert_same_slopes(outputs: dict[str, Tensor], ensemble: Ensemble, atoms: Atoms) -> None:
    atoms = atoms.copy()
    atoms.calc = EnsembleCalculator(ensemble)
    forces = atoms.get_forces()
    scale = max(float(np.abs(forces).max()), 1e-3)
    np.testing.assert_allclose(outputs["forces"].numpy(), forces, atol=1e-5 * scale)
    spread = atoms.calc.results["forces_std_epistemic"]
    np.testing.assert_allclose(outputs["forces_std_epistemic"].numpy(), spread, atol=1e-4 * scale)
    if atoms.pbc.all():
        stress = atoms.get_stress(voigt=False).reshape(1, 9)
        np.testing.assert_allclose(
            outputs["stress"].numpy(), stress, atol=1e-5 * np.abs(stress).max()
        )


@pytest.mark.parametrize("target", ["energy", "charge"])
@pytest.mark.parametrize("name", STRUCTURES)
def test_one_edge_list_and_a_ghost_serve_all_members(factored_zip, target, name):
    ensemble = some_of(factored_zip, "t0001", "t0002", "t0003", "t0004", precision="fp64")
    program = EnsembleProgram(ensemble.members, target, ensemble.manifest.heads[target])
    assert_same(program(*inputs(STRUCTURES[name], ensemble.cutoff)), ensemble, target, name)


def test_the_mean_of_a_program_ends_at_the_bounds(factored_zip):
    ensemble = some_of(factored_zip, "t0001", "t0002")
    name = next(iter(STRUCTURES))
    head = ensemble.manifest.heads["charge"]
    free = EnsembleProgram(ensemble.members, "charge", head)
    given = inputs(STRUCTURES[name], ensemble.cutoff)
    middle = float(free(*given)["mean"].median())
    for bounds in ((middle, None), (None, middle)):
        bounded = head.model_copy(update={"bounds": bounds})
        mean = EnsembleProgram(ensemble.members, "charge", bounded)(*given)["mean"]
        assert torch.equal(mean, free(*given)["mean"].clamp(*bounds))


ALONE = """
import json, sys
sys.modules["hydragnn_hpo"] = None
import torch
page = json.load(open(sys.argv[1] + ".json"))
inputs = torch.load(sys.argv[2], weights_only=True)
if page["kind"] == "compiled":
    program = torch._inductor.aoti_load_package(sys.argv[1] + ".pt2")
else:
    program = torch.export.load(sys.argv[1] + ".pt2").module()
said = [dict(program(*each)) for each in inputs]
assert not [name for name in sys.modules if name.startswith("hydragnn_hpo.")]
torch.save(said, sys.argv[3])
"""


def alone(path: Path, cutoff: float, tmp_path: Path) -> dict[str, dict[str, Tensor]]:
    """Run a program on all structures in a process where this package cannot be imported."""
    torch.save([inputs(s, cutoff) for s in STRUCTURES.values()], tmp_path / "in.pt")
    run = [sys.executable, "-c", ALONE, str(path.with_suffix(""))]
    done = subprocess.run(
        [*run, str(tmp_path / "in.pt"), str(tmp_path / "out.pt")],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(STRUCTURES, torch.load(tmp_path / "out.pt", weights_only=True), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "aot",
    [
        pytest.param(False, id="exported"),
        pytest.param(True, id="compiled", marks=pytest.mark.stress),
    ],
)
def test_a_program_needs_nothing_of_ours(factored_zip, tmp_path, aot):
    if aot:
        target = "charge"
        ensemble = member_with(Ensemble.load(factored_zip), "gin", layers=1)
    else:
        target = "energy"
        ensemble = some_of(factored_zip, "t0001", "t0003", precision="fp64")
    page = export_program(ensemble, target, tmp_path / "program.pt2", aot=aot)
    assert page == json.loads((tmp_path / "program.json").read_text())
    content = (tmp_path / "program.pt2").read_bytes()
    assert page["sha256"] == hashlib.sha256(content).hexdigest()
    result = alone(tmp_path / "program.pt2", page["cutoff"], tmp_path)
    for name, outputs in result.items():
        assert_same(outputs, ensemble, target, name)
        assert list(outputs) == [row["name"] for row in page["outputs"]]
        for row in page["outputs"]:
            assert list(outputs[row["name"]].shape) == sized(row["shape"], name)
            assert str(outputs[row["name"]].dtype) == f"torch.{row['dtype']}"
    given = inputs(STRUCTURES["several"], page["cutoff"])
    for tensor, row in zip(given, page["inputs"], strict=True):
        assert str(tensor.dtype) == f"torch.{row['dtype']}"


def sized(shape: list[Any], name: str) -> list[int]:
    nodes = sum(len(atoms) for atoms in STRUCTURES[name])
    letters = {"N": nodes, "G": len(STRUCTURES[name])}
    return [letters.get(size, size) for size in shape]


def member_with(
    ensemble: Ensemble, conv: str, *, pool: str = "contributions", **model: Any
) -> Ensemble:
    """Replace the members by one that was never trained."""
    attributes = {name: {"mean": 0.5, "std": 2.0} for name in model.get("attributes", ())}
    config = ModelConfig.model_validate(
        {"conv": conv, "features": 8, "layers": 2, "cutoff": 3.5, "basis_size": 4} | model
    )
    heads = {
        "energy": HeadConfig.model_validate({"pool": pool}),
        "charge": HeadConfig.model_validate({}),
    }
    torch.manual_seed(1)
    net = MultiHeadGNN(config, heads, ensemble.manifest.targets(), stats={"attributes": attributes})
    values = ensemble.manifest.model_dump()
    values["members"] = [values["members"][0] | {"weights": {"energy": 1.0, "charge": 1.0}}]
    values["attributes"] = {name: AttributeConfig(unit="e") for name in attributes}
    member = Member(
        values["members"][0]["trial"],
        {"energy": 1.0, "charge": 1.0},
        net.double().eval().requires_grad_(False),
        3.5,
        torch.float64,
        config.max_neighbors,
    )
    return Ensemble(Manifest.model_validate(values), [member])


@pytest.mark.parametrize("conv", CONVS)
def test_every_conv_ignores_the_ghost_or_is_refused(factored_zip, conv):
    ensemble = member_with(Ensemble.load(factored_zip), conv)
    if conv in REFUSED:
        with pytest.raises(ConfigError, match=REFUSED[conv]):
            check_exportable(ensemble, "charge")
        return
    check_exportable(ensemble, "charge")
    program = EnsembleProgram(ensemble.members, "charge", ensemble.manifest.heads["charge"])
    outputs = program(*inputs(STRUCTURES["several"], ensemble.cutoff))
    assert_same(outputs, ensemble, "charge", "several")


@pytest.mark.slow
@pytest.mark.parametrize("conv", ["painn", "gat"])  # of all others: physics/test_convs.py
def test_a_conv_that_is_not_refused_is_traced(factored_zip, conv):
    ensemble = member_with(Ensemble.load(factored_zip), conv, layers=1)
    module = trace_program(ensemble, "charge").module()
    for name in ("several", "atom"):
        outputs = module(*inputs(STRUCTURES[name], ensemble.cutoff))
        assert_same(outputs, ensemble, "charge", name)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_neighbors": 12}, "caps its neighbours"),
        ({"attention": "gps"}, "attention lays out"),
        ({"encoding": "laplacian", "encoding_size": 2}, "computed outside"),
        ({"encoding": "random_walk", "encoding_size": 2}, "encoding lays out"),
        ({"pool": "max"}, "pool 'max'"),
        ({"pool": "attention"}, "pool 'attention'"),
    ],
)
def test_what_depends_on_values_is_refused(factored_zip, options, reason):
    ensemble = member_with(Ensemble.load(factored_zip), "gin", **options)
    with pytest.raises(ConfigError, match=f"member t0001 cannot be exported: .*{reason}"):
        check_exportable(ensemble, "energy")


def test_attributes_are_inputs(factored_zip):
    ensemble = member_with(
        Ensemble.load(factored_zip), "schnet", attributes=["charge"], conditioning="film"
    )
    program = EnsembleProgram(ensemble.members, "energy", ensemble.manifest.heads["energy"])
    structures = [molecule("CH3OH"), molecule("H2O")]
    for number, atoms in enumerate(structures):
        atoms.info["charge"] = 1.0 - number
    given = inputs(structures, ensemble.cutoff)
    outputs = program(*given, torch.tensor([1.0, 0.0], dtype=torch.float64))
    expected = ensemble.predict(structures).heads["energy"].mean
    np.testing.assert_allclose(outputs["mean"].numpy(), expected, rtol=1e-9)
    other = program(*given, torch.tensor([0.0, 0.0], dtype=torch.float64))
    assert abs(other["mean"][0] - outputs["mean"][0]) > 1e-6


def test_a_total_that_values_sum_to_is_an_input(summed_run):
    ensemble = Ensemble.load(summed_run / "ensemble.zip")
    structures = [molecule("CH3OH"), molecule("H2O"), molecule("NH3")]
    totals = [1.0, 0.0, -1.0]
    for atoms, total in zip(structures, totals, strict=True):
        atoms.info["total"] = total
    energy = EnsembleProgram(ensemble.members, "energy", ensemble.manifest.heads["energy"])
    assert energy.names == ()
    program = trace_program(ensemble, "charge").module()
    given = inputs(structures, ensemble.cutoff)
    outputs = program(*given, torch.tensor(totals, dtype=torch.float64))["mean"]
    expected = ensemble.predict(structures)["charge"].mean
    np.testing.assert_allclose(outputs.numpy(), expected, rtol=0, atol=1e-6)
    summed = torch.zeros(3, dtype=torch.float64).index_add(0, given[4], outputs.flatten())
    assert summed.tolist() == pytest.approx(totals, abs=1e-12)


class Guesser(torch.nn.Module):
    """A user's conv that looks at values."""

    def forward(self, scalars: Tensor, state: Any, edges: Any) -> tuple[Tensor, Any]:
        return (scalars if float(scalars.sum()) > 0 else -scalars), state


def test_a_conv_that_looks_at_values_is_one_sentence(factored_zip):
    ensemble = member_with(Ensemble.load(factored_zip), "gin")
    ensemble.members[0].model.trunk.convs[0] = Guesser()
    with pytest.raises(ConfigError, match="'charge' cannot be traced .*depends on values"):
        trace_program(ensemble, "charge")


def test_wrong_names_are_one_sentence(factored_zip, tmp_path):
    run = CliRunner()
    arguments = ["ensemble", "export", str(factored_zip), "--out", str(tmp_path / "x.pt2")]
    done = run.invoke(app, [*arguments, "--target", "enrgy"])
    assert isinstance(done.exception, ConfigError)
    assert "unknown target 'enrgy'. Did you mean 'energy'?" in str(done.exception)
    arguments[-1] = str(tmp_path / "x.zip")
    done = run.invoke(app, [*arguments, "--target", "energy"])
    assert isinstance(done.exception, ConfigError)
    assert "is called NAME.pt2" in str(done.exception)
    assert not list(tmp_path.iterdir())
