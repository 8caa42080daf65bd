"""Makes the files of SevenNet-0 from its wheel: weights that ship, and what tests expect of them.

    python tests/sevennet_reference.py weights SEVENN_WHEEL
    python tests/sevennet_reference.py expected     # imports sevenn 0.13.0 and e3nn

Expected values are those of the package, run in fp64 on both mirror images, whose mean is taken,
and rounded to five digits after the point.
"""

import hashlib
import io
import json
import math
import re
import sys
import zipfile
from pathlib import Path

import numpy as np
import torch
from ase import Atoms
from chgnet_reference import FOLDER, ROOT, examples
from safetensors.torch import save

from hydragnn_hpo.model.trunks.sevennet import couple_degrees, list_paths

EXPECTED = ROOT / "tests" / "goldens" / "sevennet.json"
STEM = "sevennet-0-2024-07-11"
CHECKPOINT = "sevenn/pretrained_potentials/SevenNet_0__11Jul2024/checkpoint_sevennet_0.pth"
LICENCE = "sevenn-0.13.0.dist-info/licenses/LICENSE"
ELEMENTS = 94
WIDTHS = (128, 64, 32)


def load_checkpoint(content):
    """Return what a checkpoint holds, from its bytes."""
    # numpy 2 moved this function; the checkpoint knows its old place.
    rebuild = (np._core.multiarray._reconstruct, "numpy.core.multiarray._reconstruct")
    kinds = (np.dtypes.Float64DType, np.dtypes.Float32DType, np.dtypes.Int64DType)
    with torch.serialization.safe_globals([rebuild, np.ndarray, np.dtype, *kinds]):
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def activation_scale():
    """Return e3nn's factor of SiLU: its squares then have a mean of 1 over these normal numbers."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(1_000_000, generator=generator, dtype=torch.float64)
    return float(torch.nn.functional.silu(inputs).square().mean() ** -0.5)


def coupling_sign(path, stored):
    """Return the sign of the package's coupling of a path, in units of ours.

    Args:
        path: the degrees.
        stored: its coefficients, of squares that sum to 1, or None where a degree is 0.
    """
    ours = couple_degrees(path)
    if stored is None:  # the unit matrix of the two other degrees
        sizes = [2 * ell + 1 for ell in path]
        stored = torch.eye(max(sizes)).reshape(sizes) / math.sqrt(max(sizes))
    # Its vectors are x, y, z in our frame's z, x, y; tensors of degree 2 are then alike.
    for axis, ell in enumerate(path):
        if ell == 1:
            stored = stored.index_select(axis, torch.tensor([2, 0, 1]))
    scale = math.sqrt(2 * path[2] + 1)
    sign = float((ours * stored).sum().sign())
    assert torch.allclose(ours, sign * scale * stored.double(), atol=1e-6), path
    return sign


def convert(stored):
    """Return the package's weights under our names, with its constant factors in them."""
    state = {name: value.double() for name, value in stored["model_state_dict"].items()}
    kinds = stored["config"]["_type_map"]
    rows = torch.tensor([number - 1 for number in kinds])
    columns = torch.tensor(list(kinds.values()))
    scale = activation_scale()

    def by_element(values):
        table = values.new_zeros(ELEMENTS, *values.shape[1:])
        table[rows] = values[columns]
        return table

    embedding = state["onehot_to_feature_x.linear.weight"].view(len(kinds), -1)
    made = {
        "elements.weight": by_element(embedding / math.sqrt(len(kinds))),
        "radial.frequencies": state["edge_embedding.basis_function.coeffs"],
        "reference_energies": by_element(state["rescale_atomic_energy.shift"]),
    }
    factors = state["rescale_atomic_energy.scale"]
    assert (factors == factors[0]).all()
    hidden = state["reduce_input_to_hidden.linear.weight"].view(WIDTHS[0], -1)
    energy = hidden @ state["reduce_hidden_to_energy.linear.weight"]
    made["energy.weight"] = factors[0] * energy[None] / math.sqrt(hidden.numel())

    def add_linear(new, old, sizes):
        """Split a map of all degrees; ``sizes`` are inputs and outputs of each."""
        weights = state[f"{old}.linear.weight"].split([a * b for a, b in sizes])
        for ell, (weight, (inputs, outputs)) in enumerate(zip(weights, sizes, strict=True)):
            # The activation of a gate has its factor, which features of its degree take over.
            factor = scale if ell and new.rpartition(".")[2] != "send" else 1.0
            made[f"{new}.{ell}.weight"] = factor * weight.view(inputs, outputs).t() / inputs**0.5

    for step in range(5):
        new, old = f"convs.{step}", f"{step}_convolution"
        first, last = step == 0, step == 4
        paths = list_paths(0 if first else 2, 0 if last else 2)
        before = WIDTHS[:1] if first else WIDTHS
        after = WIDTHS[:1] if last else (sum(WIDTHS), *WIDTHS[1:])
        sums = [
            sum(WIDTHS[path[0]] for path in paths if path[2] == ell) for ell in range(len(after))
        ]
        add_linear(f"{new}.send", f"{step}_self_interaction_1", [(n, n) for n in before])
        add_linear(f"{new}.mix", f"{step}_self_interaction_2", list(zip(sums, after, strict=True)))
        add_linear(
            f"{new}.keep", f"{step}_self_connection_intro", list(zip(before, after, strict=False))
        )

        layers = [state[f"{old}.weight_nn.layer{n}.weight"] for n in range(3)]
        layers = [layer / math.sqrt(layer.shape[0]) for layer in layers]
        made[f"{new}.radial.0.weight"] = layers[0].t() * (2.0 / stored["config"]["cutoff"])
        made[f"{new}.radial.2.weight"] = layers[1].t() * scale
        pieces = []
        parts = layers[2].split([WIDTHS[path[0]] for path in paths], dim=1)
        for path, part in zip(paths, parts, strict=True):
            name = f"{old}.convolution._compiled_main_left_right._w3j_{'_'.join(map(str, path))}"
            pieces.append(part * coupling_sign(path, state.get(name)))
        sent = torch.cat(pieces, dim=1).t() * scale
        made[f"{new}.filters.weight"] = sent / state[f"{old}.denominator"]
    return {name: value.float().contiguous() for name, value in made.items()}


def load_package(dtype=torch.float64):
    """Return the package's network, of one type throughout; read without trust in the file."""
    import sevenn
    from sevenn import checkpoint, model_build
    from sevenn.scripts.backward_compatibility import patch_state_dict_if_old

    stored = load_checkpoint((Path(sevenn.__file__).parents[1] / CHECKPOINT).read_bytes())
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        config = checkpoint._config_cp_routine(stored["config"])
        network = model_build.build_E3_equivariant_model(config)
        state = {name: value.to(dtype) for name, value in stored["model_state_dict"].items()}
        weights = patch_state_dict_if_old(state, config, network)
        network.load_state_dict(weights)
    finally:
        torch.set_default_dtype(before)
    network.delete_module_by_key("force_output")

    def set_type(module, inputs, output):
        output["x"] = output["x"].to(dtype)  # the package makes it in fp32

    network._modules["onehot_idx_to_onehot"].register_forward_hook(set_type)
    return network.to(dtype).eval()


def run_image(network, atoms):
    """Return the package's scalars, [N, 6, 128], and energy per atom in eV, of one image."""
    from sevenn.atom_graph_data import AtomGraphData
    from sevenn.train.dataload import unlabeled_atoms_to_graph
    from torch_geometric.data import Batch

    graph = AtomGraphData.from_numpy_dict(unlabeled_atoms_to_graph(atoms, 5.0))
    batch = Batch.from_data_list([graph])
    dtype = next(network.parameters()).dtype
    batch["edge_vec"] = batch["edge_vec"].to(dtype)
    layers = []
    names = ["onehot_to_feature_x", *(f"{step}_equivariant_gate" for step in range(5))]
    hooks = [
        network._modules[name].register_forward_hook(
            lambda module, inputs, output: layers.append(output["x"][:, :128].clone())
        )
        for name in names
    ]
    with torch.no_grad():
        found = network(batch)
    for hook in hooks:
        hook.remove()
    return torch.stack(layers, dim=1), float(found["inferred_total_energy"]) / len(atoms)


def run_package(network, atoms):
    """Return means over both mirror images: scalars, [N, 6, 128], and energy per atom in eV."""
    mirrored = atoms.copy()
    mirrored.set_cell(-atoms.cell.array)
    mirrored.positions = -atoms.positions
    features, energies = zip(*(run_image(network, each) for each in (atoms, mirrored)), strict=True)
    return sum(features) / 2, sum(energies) / 2


def write_weights(wheel):
    """Write weights, card and licence into the package."""
    with zipfile.ZipFile(wheel) as archive:
        checkpoint = archive.read(CHECKPOINT)
        licence = archive.read(LICENCE)
    stored = load_checkpoint(checkpoint)
    config = stored["config"]
    weights = save(convert(stored))
    card = {
        "name": "sevennet",
        "architecture": "sevennet",
        "version": "0 (11 July 2024)",
        "licence": "MIT",
        "citation": "Park et al. (2024), J. Chem. Theory Comput. 20, 4857, "
        "doi:10.1021/acs.jctc.4c00190",
        "trained_on": "MPtrj: energies, forces and stresses of relaxations in the Materials "
        "Project (GGA, GGA+U)",
        "elements": sorted(config["_type_map"]),
        "source": {
            "wheel": "sevenn 0.13.0",
            "file": CHECKPOINT,
            "sha256": hashlib.sha256(checkpoint).hexdigest(),
        },
        "sha256": hashlib.sha256(weights).hexdigest(),
        "config": {
            "elements": ELEMENTS,
            **dict(zip(("features", "vectors", "tensors"), WIDTHS, strict=True)),
            "radial": config["radial_basis"]["bessel_basis_num"],
            "hidden": config["weight_nn_hidden_neurons"][0],
            "convolutions": config["num_convolution_layer"],
            "cutoff": config["cutoff"],
            "fade": config["cutoff_function"]["cutoff_on"],
            "activation_scale": activation_scale(),
        },
    }
    (FOLDER / f"{STEM}.safetensors").write_bytes(weights)
    text = re.sub(r"\n +(\d+,?)", r" \1", json.dumps(card, indent=1))  # elements on one line
    (FOLDER / f"{STEM}.json").write_text(text + "\n", encoding="ascii")
    (FOLDER / f"{STEM}.LICENSE.txt").write_bytes(licence)


def write_expected():
    """Write structures and what the package finds for them."""
    network = load_package()

    def rounded(values):
        return np.asarray(values).round(5).tolist()

    rows = []
    for name, atoms in (examples() | {"atom of argon": Atoms("Ar")}).items():
        atoms.set_cell(atoms.cell.array.round(5))
        atoms.positions = atoms.positions.round(5)
        features, energy = run_package(network, atoms)
        rows.append(
            {
                "name": name,
                "numbers": atoms.numbers.tolist(),
                "pbc": atoms.pbc.tolist(),
                "cell": rounded(atoms.cell.array),
                "positions": rounded(atoms.positions),
                "energy": round(energy, 6),
                "features": rounded(features[0]),
            }
        )
    EXPECTED.write_text(json.dumps(rows).replace('{"name"', '\n{"name"') + "\n", encoding="ascii")


if __name__ == "__main__":
    if sys.argv[1] == "weights":
        write_weights(sys.argv[2])
    else:
        write_expected()
