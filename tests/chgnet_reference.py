"""Makes the files of CHGNet from its wheel: the weights that ship, and what tests expect of them.

    python tests/chgnet_reference.py weights CHGNET_WHEEL
    python tests/chgnet_reference.py expected     # imports chgnet 0.4.2 and pymatgen

Expected values are those of the package, run in fp64 and rounded to five digits after the point.
"""

import hashlib
import io
import json
import re
import sys
import zipfile
from pathlib import Path

import numpy as np
import torch
from ase.spacegroup import crystal
from safetensors.torch import save

from hydragnn_hpo.model.trunks.convert import CHGNET_SIZES, rename_chgnet

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "hydragnn_hpo" / "model" / "trunks"
EXPECTED = ROOT / "tests" / "goldens" / "chgnet.json"
STEM = "chgnet-0.3.0"
CHECKPOINT = "chgnet/pretrained/0.3.0/chgnet_0.3.0_e29f68s314m37.pth.tar"
LICENCE = "chgnet-0.4.2.dist-info/licenses/LICENSE"


def write_weights(wheel):
    """Write weights, card and licence into the package."""
    with zipfile.ZipFile(wheel) as archive:
        checkpoint = archive.read(CHECKPOINT)
        licence = archive.read(LICENCE)
    stored = torch.load(io.BytesIO(checkpoint), map_location="cpu", weights_only=True)["model"]
    weights = save(rename_chgnet(stored["state_dict"]))
    sizes = {ours: stored["model_args"][theirs] for ours, theirs in CHGNET_SIZES.items()}
    card = {
        "name": "chgnet",
        "version": "0.3.0",
        "licence": "BSD-3-Clause-LBNL",
        "citation": "Deng et al. (2023), Nat. Mach. Intell. 5, 1031, "
        "doi:10.1038/s42256-023-00716-3",
        "trained_on": "MPtrj: energies, forces, stresses and magnetic moments of relaxations in "
        "the Materials Project (GGA, GGA+U)",
        # All up to plutonium but polonium to radium, whose embeddings are as they were drawn.
        "elements": [number for number in range(1, 95) if not 84 <= number <= 88],
        "source": {
            "wheel": "chgnet 0.4.2",
            "file": CHECKPOINT,
            "sha256": hashlib.sha256(checkpoint).hexdigest(),
        },
        "sha256": hashlib.sha256(weights).hexdigest(),
        "config": {"elements": 94, **sizes},
    }
    (FOLDER / f"{STEM}.safetensors").write_bytes(weights)
    text = re.sub(r"\n +(\d+,?)", r" \1", json.dumps(card, indent=1))  # elements on one line
    (FOLDER / f"{STEM}.json").write_text(text + "\n", encoding="ascii")
    (FOLDER / f"{STEM}.LICENSE.txt").write_bytes(licence)


def examples():
    """Return one structure of each crystal system, a layer and a molecule, by name."""
    from ase import Atoms
    from ase.build import graphene, molecule

    found = {
        "cubic SrTiO3": crystal(
            ("Sr", "Ti", "O"),
            [(0, 0, 0), (0.5, 0.5, 0.5), (0.5, 0.5, 0)],
            spacegroup=221,
            cellpar=[3.905] * 3 + [90] * 3,
        ),
        "hexagonal ZnO": crystal(
            ("Zn", "O"),
            [(1 / 3, 2 / 3, 0), (1 / 3, 2 / 3, 0.3819)],
            spacegroup=186,
            cellpar=[3.25, 3.25, 5.207, 90, 90, 120],
        ),
        "trigonal Fe2O3": crystal(
            ("Fe", "O"),
            [(0, 0, 0.35534), (0.3056, 0, 0.25)],
            spacegroup=167,
            cellpar=[5.038, 5.038, 13.772, 90, 90, 120],
            primitive_cell=True,
        ),
        "tetragonal TiO2": crystal(
            ("Ti", "O"),
            [(0, 0, 0), (0.305, 0.305, 0)],
            spacegroup=136,
            cellpar=[4.594, 4.594, 2.959, 90, 90, 90],
        ),
        "orthorhombic FeB": crystal(
            ("Fe", "B"),
            [(0.18, 0.25, 0.125), (0.036, 0.25, 0.61)],
            spacegroup=62,
            cellpar=[5.506, 2.952, 4.061, 90, 90, 90],
        ),
        "monoclinic CuO": crystal(
            ("Cu", "O"),
            [(0.25, 0.25, 0), (0, 0.4184, 0.25)],
            spacegroup=15,
            cellpar=[4.684, 3.423, 5.129, 90, 99.54, 90],
        ),
        "triclinic KMnF3, made up": Atoms(
            "KMnF3",
            scaled_positions=[(0, 0, 0), (0.52, 0.47, 0.5), (0.5, 0.51, 0.03)]
            + [(0.48, 0, 0.5), (0.02, 0.5, 0.46)],
            cell=[4.1, 4.3, 4.5, 83, 95, 99],
            pbc=True,
        ),
        "layer of graphene": graphene(),
        "molecule of ethanol": molecule("CH3CH2OH"),
    }
    assert found["layer of graphene"].pbc.tolist() == [True, True, False]
    return found


def load_package():
    """Return the package's network, run in fp64, without its model of compositions."""
    import chgnet.graph.converter
    import chgnet.model.model

    for module in (chgnet.graph.converter, chgnet.model.model):
        module.TORCH_DTYPE = torch.float64
    network = chgnet.model.model.CHGNet.load(use_device="cpu", verbose=False).double().eval()
    network.reference_energies = network.composition_model.fc.weight.detach().flatten()
    network.composition_model = None
    return network


def run_package(network, atoms, vacuum=30.0):
    """Return features, [N, 5, 64], energy per atom in eV, and moments in Bohr magnetons, [N].

    Args:
        network: what ``load_package`` returns.
        atoms: a structure; directions without a period get a box with a vacuum, in angstrom.
        vacuum: its width.
    """
    from pymatgen.core import Structure

    boxed = atoms.copy()
    for axis in np.flatnonzero(~atoms.pbc):
        boxed.center(vacuum=vacuum / 2, axis=int(axis))
    structure = Structure(
        boxed.cell.array, boxed.numbers, boxed.positions, coords_are_cartesian=True
    )
    layers = []
    hooks = [
        layer.register_forward_hook(lambda module, inputs, output: layers.append(output))
        for layer in (network.atom_embedding, *network.atom_conv_layers)
    ]
    with torch.no_grad():
        found = network([network.graph_converter(structure)], task="em")
    for hook in hooks:
        hook.remove()
    own = network.reference_energies[torch.as_tensor(atoms.numbers) - 1].mean()
    return torch.stack(layers, dim=1), float(found["e"][0] + own), found["m"][0]


def write_expected():
    """Write structures and what the package finds for them."""
    network = load_package()

    def rounded(values):
        return np.asarray(values).round(5).tolist()

    rows = []
    for name, atoms in examples().items():
        atoms.set_cell(atoms.cell.array.round(5))
        atoms.positions = atoms.positions.round(5)
        features, energy, moments = run_package(network, atoms)
        rows.append(
            {
                "name": name,
                "numbers": atoms.numbers.tolist(),
                "pbc": atoms.pbc.tolist(),
                "cell": rounded(atoms.cell.array),
                "positions": rounded(atoms.positions),
                "energy": round(energy, 5),
                "moments": rounded(moments),
                "first": rounded(features[0]),
                "last": rounded(features[-1]),
            }
        )
    EXPECTED.write_text(json.dumps(rows).replace('{"name"', '\n{"name"') + "\n", encoding="ascii")


if __name__ == "__main__":
    if sys.argv[1] == "weights":
        write_weights(sys.argv[2])
    else:
        write_expected()
