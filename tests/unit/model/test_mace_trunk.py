"""MACE as a trunk against its package: descriptors, energies, and files that are not ours.

pip install --no-deps mace-torch e3nn==0.4.4 matscipy opt_einsum_fx opt_einsum
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from ase.spacegroup import crystal
from trunk_structures import columns_without_edges as columns

from hydragnn_hpo.errors import DataError
from hydragnn_hpo.model.trunks import load_trunk, open_trunk
from hydragnn_hpo.model.trunks.convert import ConvertRequest, convert_trunk
from hydragnn_hpo.model.trunks.mace import INTERACTION, UNSAFE, import_mace
from hydragnn_hpo.optional_packages import is_installed

pytestmark = [
    pytest.mark.skipif(not is_installed("mace"), reason="no mace: see the head of this file"),
    pytest.mark.filterwarnings("ignore"),  # of the package, TorchScript and old numpy
]

ELEMENTS = [1, 6, 8, 14, 29]
KINDS = {
    "first of MP": {},
    "all residual": {"first": "Residual", "order": 2, "harmonics": 3, "correlation": 2},
    "density": {"first": "Density", "later": "DensityResidual", "transform": "Agnesi"},
    "scalars, three layers": {"order": 0, "layers": 3},
    "one layer": {"order": 0, "layers": 1, "transform": "Agnesi", "hidden": [16]},
    "two heads": {"heads": ["one", "two"], "repulsion": True},
    "whole couplings": {"reduced": False},
}


def build(kind):
    """Return a random MACE, as its package makes it in a training."""
    modules = import_mace()
    from e3nn import o3

    torch.manual_seed(3)
    order = kind.get("order", 1)
    heads = kind.get("heads", ["Default"])
    made = modules.ScaleShiftMACE(
        r_max=4.5,
        num_bessel=8,
        num_polynomial_cutoff=5,
        max_ell=kind.get("harmonics", 2),
        interaction_cls=modules.interaction_classes[
            INTERACTION.format(kind.get("later", "Residual"))
        ],
        interaction_cls_first=modules.interaction_classes[
            INTERACTION.format(kind.get("first", ""))
        ],
        num_interactions=kind.get("layers", 2),
        num_elements=5,
        hidden_irreps=o3.Irreps([(16, (d, (-1) ** d)) for d in range(order + 1)]),
        MLP_irreps=o3.Irreps("8x0e"),
        atomic_energies=np.outer(np.ones(len(heads)), [-13.6, -1029, -2042, -7860, -45000.0]),
        avg_num_neighbors=12.3,
        atomic_numbers=ELEMENTS,
        correlation=kind.get("correlation", 3),
        gate=torch.nn.functional.silu,
        radial_type=kind.get("radial", "bessel"),
        distance_transform=kind.get("transform", "None"),
        radial_MLP=kind.get("hidden"),
        pair_repulsion=kind.get("repulsion", False),
        use_reduced_cg=kind.get("reduced", True),
        apply_cutoff=not kind.get("cutoff_on_weights", False),
        heads=heads,
        atomic_inter_scale=[0.8] * len(heads),
        atomic_inter_shift=[0.1] * len(heads),
    )
    return made.eval()


def structures():
    """Return crystals of several systems, a layer of copper and a molecule."""
    random = np.random.default_rng(0)
    found = [
        bulk("Cu", "fcc", a=3.6),
        bulk("Si"),
        crystal(
            ("Cu", "O"),
            [(0.25, 0.25, 0), (0, 0.4184, 0.25)],
            spacegroup=15,
            cellpar=[4.684, 3.423, 5.129, 90, 99.54, 90],
        ),
        crystal(
            ("Si", "O"),
            [(0.4697, 0, 0), (0.4135, 0.2669, 0.1191)],
            spacegroup=154,
            cellpar=[4.916, 4.916, 5.405, 90, 90, 120],
        ),
        Atoms(
            "SiC",
            positions=[(0, 0, 0), (1.0, 1.1, 1.2)],
            cell=[[3, 0, 0], [0.4, 3, 0], [0.2, 0.7, 3.3]],
            pbc=True,
        ),
        bulk("Cu", "fcc", a=3.6, cubic=True) * (2, 2, 1),
        molecule("CH3CH2OH"),
    ]
    found[5].pbc = (True, True, False)
    found[5].rattle(0.1, rng=random)
    return found


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS)
def converted(request, tmp_path_factory):
    """A module of the package, and what we make of its file."""
    folder = tmp_path_factory.mktemp("mace")
    module = build(request.param)
    torch.save(module, folder / "small.model")
    file = folder / "small.model"
    trunk = convert_trunk(ConvertRequest(file, folder, "small", "MIT", trusted=True))
    return module, trunk, folder


def calculator(module):
    before = os.environ.get(UNSAFE)
    from mace.calculators import MACECalculator

    os.environ.pop(UNSAFE, None)
    if before is not None:
        os.environ[UNSAFE] = before
    head = {} if len(module.heads) == 1 else {"head": module.heads[0]}
    return MACECalculator(models=[module], device="cpu", default_dtype="float32", **head)


def test_features_are_the_descriptors_of_the_package(converted):
    """The package leaves the embedding of the elements out, which is our first block."""
    module, trunk, _ = converted
    package = calculator(module)
    for atoms in structures():
        features = trunk.features(columns(atoms), [0])
        assert features.shape == (len(atoms), 1 + len(module.interactions), 16)
        expected = package.get_descriptors(atoms, invariants_only=True)
        expected = expected.reshape(len(atoms), -1, 16)
        size = np.abs(expected).max()
        assert np.abs(features[:, 1:] - expected).max() < 1e-5 * size
        species = (atoms.numbers[:, None] == np.array(ELEMENTS)).astype(np.float32)
        first = module.node_embedding(torch.from_numpy(species)).detach().numpy()
        assert np.abs(features[:, 0] - first).max() < 1e-6


def test_energies_of_the_packages_readouts_are_its_own(converted):
    """Readouts see scalars alone: put ours into them, and compare with the calculator."""
    module, trunk, _ = converted
    if hasattr(module, "pair_repulsion_fn"):
        pytest.skip("this one adds a repulsion that no readout sees")
    package = calculator(module)
    for atoms in structures():
        features = torch.from_numpy(trunk.features(columns(atoms), [0]))
        species = torch.from_numpy((atoms.numbers[:, None] == np.array(ELEMENTS)) * np.float32(1))
        heads = torch.zeros(len(atoms), dtype=torch.long)
        rows = torch.arange(len(atoms))
        total = torch.zeros(len(atoms))
        for n, readout in enumerate(module.readouts):
            width = module.products[n].linear.irreps_out.dim
            padded = torch.zeros(len(atoms), width)
            padded[:, :16] = features[:, n + 1]
            total = total + readout(padded, heads)[rows, heads]
        total = module.scale_shift(total, heads) + module.atomic_energies_fn(species)[rows, heads]
        atoms.calc = package
        expected = atoms.get_potential_energy()
        assert abs(float(total.detach().double().sum()) - expected) < 1e-5 * max(1.0, abs(expected))


def test_the_files_hold_no_code_and_open_again(converted):
    _, trunk, folder = converted
    again = load_trunk(str(folder / "small.json"))
    assert again.checksum == trunk.checksum
    crystals = columns(*structures())
    rows = range(crystals.num_graphs)
    np.testing.assert_array_equal(again.features(crystals, rows), trunk.features(crystals, rows))
    card = json.loads((folder / "small.json").read_text())
    assert card["source"]["wheel"].startswith("mace-torch ")
    assert card["elements"] == ELEMENTS


def test_features_do_not_depend_on_the_batch_or_the_frame(converted):
    _, trunk, _ = converted
    several = structures()
    together = trunk.features(columns(*several), range(len(several)), batch_nodes=10_000)
    alone = np.concatenate([trunk.features(columns(atoms), [0]) for atoms in several])
    assert np.abs(together - alone).max() < 2e-5 * np.abs(alone).max()
    for atoms in several:
        atoms.rotate(35, (1, 2, 3), rotate_cell=True)
    turned = trunk.features(columns(*several), range(len(several)))
    assert np.abs(together - turned).max() < 5e-5 * np.abs(alone).max()


def test_an_atom_without_neighbours_has_features(converted):
    _, trunk, _ = converted
    assert np.isfinite(trunk.features(columns(Atoms("H")), [0])).all()


def test_the_package_does_not_switch_safety_off(monkeypatch):
    monkeypatch.delenv(UNSAFE, raising=False)
    import_mace()
    assert UNSAFE not in os.environ


def test_a_trial_imports_no_package_of_a_users_model():
    """A rank attaches stored features: it may import neither the package nor e3nn."""
    code = (
        "import sys, hydragnn_hpo.training.trial, hydragnn_hpo.ensemble_build.build, "
        "hydragnn_hpo.model.trunks.embed;"
        "print([name for name in ('mace', 'e3nn') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ({"radial": "gaussian"}, "it has a GaussianBasis"),
        ({"radial": "chebyshev"}, "it has a ChebychevBasis"),
        ({"transform": "Soft"}, "it has a SoftTransform"),
        ({"cutoff_on_weights": True}, "its weights of edges fade at the cutoff"),
        ({"later": "AttResidual"}, "Invalid enum value 'AttResidual'"),
    ],
)
def test_parts_that_no_released_model_has_are_refused(tmp_path, kind, part):
    torch.save(build(kind), tmp_path / "odd.model")
    with pytest.raises(DataError, match=rf"of a kind not known here \({part}.*\); choose another"):
        convert_trunk(ConvertRequest(tmp_path / "odd.model", tmp_path, trusted=True))


def test_what_our_schema_does_not_know_is_refused(tmp_path):
    module = build({})
    module.products[0].linear = torch.nn.Identity()
    torch.save(module, tmp_path / "odd.model")
    with pytest.raises(DataError, match="is a MACE of a kind not known here"):
        convert_trunk(ConvertRequest(tmp_path / "odd.model", tmp_path, trusted=True))
    torch.save(torch.nn.Linear(2, 2), tmp_path / "other.model")
    with pytest.raises(DataError, match="holds a Linear, no MACE"):
        convert_trunk(ConvertRequest(tmp_path / "other.model", tmp_path, trusted=True))
    assert not list(tmp_path.glob("*.json"))


def test_a_network_that_computes_otherwise_is_refused(tmp_path):
    """A part without weights, which sizes do not tell, shows in the features."""
    module = build({})
    module.interactions[1].avg_num_neighbors = 3.0
    torch.save(module, tmp_path / "odd.model")
    with pytest.raises(DataError, match="features of the network built from its sizes differ"):
        convert_trunk(ConvertRequest(tmp_path / "odd.model", tmp_path, trusted=True))


def test_a_file_in_fp64_is_read_in_fp32(tmp_path):
    module = build({})
    torch.save(module.double(), tmp_path / "small.model")
    trunk = convert_trunk(ConvertRequest(tmp_path / "small.model", tmp_path, trusted=True))
    assert trunk.features(columns(bulk("Si")), [0]).dtype == np.float32


def test_weights_of_another_size_are_refused(converted):
    _, trunk, _ = converted
    sizes = {**trunk.record["config"], "features": 24}
    record = {**trunk.record, "config": sizes}
    with pytest.raises(DataError, match="its sizes are not those of this network"):
        open_trunk(record, trunk.network.state_dict())
