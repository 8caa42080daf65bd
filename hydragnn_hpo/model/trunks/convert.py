"""Convert a foundation model from a file of the user's, once, to weights and a card.

A file of plain tensors is read by ``torch.load(weights_only=True)``. A pickled module is a program:
it is loaded here alone, and only where the user says that its source is trusted.
"""

import hashlib
import json
import pickle
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from ase import Atoms
from msgspec import Struct
from safetensors.torch import save
from torch import Tensor, nn

from hydragnn_hpo import __version__
from hydragnn_hpo.config.trunk_specs import check_own_name
from hydragnn_hpo.errors import ConfigError, DataError
from hydragnn_hpo.files import write_bytes
from hydragnn_hpo.model.trunks.chgnet import CHGNetConfig
from hydragnn_hpo.model.trunks.frozen_trunk import (
    FrozenTrunk,
    columns_to_describe,
    find_trunk,
    open_trunk,
)
from hydragnn_hpo.model.trunks.mace import INTERACTION, MACEConfig, MACENetwork, import_mace

NOT_NAMED = "structures that its file does not name"
"""Training data of a model whose converter was given none."""

TOLERANCE = 1e-4
"""Largest difference of a feature from that of the package's own module, of the largest one."""


_HALVES = {"core": "bn1", "gate": "bn2"}
"""Halves of a gated perceptron of the package, and their norms."""

CHGNET_SIZES = {
    "features": "atom_fea_dim",
    "radial": "num_radial",
    "angular": "num_angular",
    "convolutions": "n_conv",
    "cutoff": "atom_graph_cutoff",
    "angle_cutoff": "bond_graph_cutoff",
    "envelope": "cutoff_coeff",
}
"""Names of the package's sizes by ours."""

_RENAMED = {
    "elements": "atom_embedding.embedding",
    "bond": "bond_embedding",
    "weight": "bond_weights_ag",
    "short_weight": "bond_weights_bg",
    "angle": "angle_embedding",
    "moment": "site_wise",
    "energy.0": "readout_norm",
    "energy.1": "mlp.layers.0",
    "energy.3": "mlp.layers.2",
    "energy.5": "mlp.layers.4",
    "energy.7": "mlp.layers.7",
}
_FREQUENCIES = {
    "radial": "bond_basis_expansion.rbf_expansion_ag",
    "short_radial": "bond_basis_expansion.rbf_expansion_bg",
    "angular": "angle_basis_expansion.fourier_expansion",
}


@dataclass(frozen=True)
class ConvertRequest:
    """What a user says of a file."""

    file: Path
    """The file."""
    out: Path
    """Folder of the results."""
    name: str = ""
    """Name of the model in settings; that of the file if empty."""
    licence: str = ""
    """SPDX identifier of the licence of the weights; empty if it is not known."""
    trained_on: str = NOT_NAMED
    """Its training data, as a phrase."""
    trusted: bool = False
    """Whether the file may run any code, as pickled modules do."""


class _Network(NamedTuple):
    """A network of a file, under our names."""

    architecture: str
    config: Struct
    weights: dict[str, Tensor]
    elements: frozenset[int]
    package: str
    """Name and version of the package that read it."""
    original: nn.Module | None = None
    """The module of the file, run as ours, for a comparison; None where the weights are ours."""


def convert_trunk(request: ConvertRequest) -> FrozenTrunk:
    """Write ``NAME.safetensors`` and ``NAME.json`` from a file, and return the model in them.

    Raises:
        ConfigError: the file is a pickled module and not trusted, or its package is missing.
        DataError: it holds no network that is known here.
        StorageError: the disk is full.
    """
    try:
        content = request.file.read_bytes()
    except OSError as error:
        raise DataError(
            f"{request.file}: cannot be read ({error.strerror}); correct its path."
        ) from error
    name = request.name or re.sub(r"[^a-z0-9_]+", "_", request.file.stem.lower()).strip("_")[:40]
    try:
        check_own_name(name)
    except ValueError as error:
        raise ConfigError(f"{request.file}: {error}") from error
    network = _read_network(request, content)
    weights = save({key: value.contiguous() for key, value in network.weights.items()})
    record = {
        "name": name,
        "architecture": network.architecture,
        "version": hashlib.sha256(content).hexdigest()[:12],
        "licence": request.licence,
        "citation": "",
        "trained_on": request.trained_on,
        "elements": sorted(network.elements),
        "source": {
            "wheel": network.package,
            "file": request.file.name,
            "sha256": hashlib.sha256(content).hexdigest(),
        },
        "sha256": hashlib.sha256(weights).hexdigest(),
        "config": msgspec.to_builtins(network.config),
    }
    trunk = open_trunk(record, network.weights)
    if network.original is not None:
        _compare(request.file, trunk, network.original)
    request.out.mkdir(parents=True, exist_ok=True)
    write_bytes(request.out / f"{name}.safetensors", weights)
    text = re.sub(r"\n +(\d+,?)(?=\s)", r" \1", json.dumps(trunk.record, indent=1))
    write_bytes(request.out / f"{name}.json", (text + "\n").encode())
    return trunk


def _read_network(request: ConvertRequest, content: bytes) -> _Network:
    """Return the network of a file, without running code in it unless it is trusted."""
    try:
        stored = torch.load(BytesIO(content), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        if not request.trusted:
            raise ConfigError(
                f"{request.file}: is no file of plain tensors, and a pickled module can run any "
                "command with your rights when it is opened: use --trusted, once, if you trust "
                "its maker."
            ) from error
        return _read_mace(request.file, content)
    try:
        return _read_chgnet(stored["model"])
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise DataError(
            f"{request.file}: holds no CHGNet and no pickled MACE ({str(error)[:100]}): choose "
            "a checkpoint of one of them."
        ) from error


def _compare(file: Path, trunk: FrozenTrunk, original: nn.Module) -> None:
    """Check that features are those of the module in the file."""
    elements = sorted(trunk.elements)
    some = [elements[n * len(elements) // 8] for n in range(8)]
    random = np.random.default_rng(1)
    atoms = Atoms(some, random.uniform(0.0, 6.0, (8, 3)), cell=[6.0, 6.2, 6.4], pbc=True)
    columns = columns_to_describe([atoms])
    ours = trunk.features(columns, [0])
    theirs = msgspec.structs.replace(trunk, network=original).features(columns, [0])
    if not np.abs(ours - theirs).max() <= TOLERANCE * np.abs(theirs).max():
        raise DataError(
            f"{file}: features of the network built from its sizes differ from those of the "
            "module in it, which has parts that are not known here: choose another model."
        )


def _unpickle_trusted(file: Path, content: bytes) -> object:
    """Load a pickled module, which runs what is in it: the only place here that does (Law 10)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return torch.load(BytesIO(content), map_location="cpu", weights_only=False)
        except Exception as error:  # whatever a pickle raises
            raise DataError(
                f"{file}: cannot be unpickled ({str(error)[:100]}); install the version of its "
                "package that saved it."
            ) from error


def _read_mace(file: Path, content: bytes) -> _Network:
    """Unpickle a module of the package ``mace-torch``, which the user trusts."""
    modules = import_mace()
    from mace import __version__ as version

    module = _unpickle_trusted(file, content)
    if not isinstance(module, modules.MACE):
        raise DataError(f"{file}: holds a {type(module).__name__}, no MACE; choose another file.")
    try:
        config = _describe_mace(module)
        network = MACENetwork(config)
        state = module.state_dict()
        unused = ("readouts.", "atomic_energies_fn.", "scale_shift.", "pair_repulsion_fn.")
        kept = {key: value for key, value in state.items() if not key.startswith(unused)}
        lacking = network.model.load_state_dict(kept, strict=False)
        learned = {name for name, _ in network.model.named_parameters()}
        if lost := [*lacking.unexpected_keys, *(set(lacking.missing_keys) & learned)]:
            raise ValueError(f"it has '{lost[0]}'")
    except (AttributeError, KeyError, RuntimeError, ValueError, msgspec.ValidationError) as error:
        raise DataError(
            f"{file}: is a MACE of a kind not known here ({str(error)[:120]}); choose another."
        ) from error
    network.eval().requires_grad_(False)
    weights = {key: value.clone() for key, value in network.state_dict().items()}
    original = MACENetwork(config)
    original.model = module.eval().requires_grad_(False)
    elements = frozenset(config.elements)
    return _Network("mace", config, weights, elements, f"mace-torch {version}", original)


def _describe_mace(module: Any) -> MACEConfig:
    """Return the sizes of a module of the package, checked."""
    radial = module.radial_embedding
    transform = getattr(radial, "distance_transform", None)
    radial_parts = {type(part).__name__ for part in (radial.bessel_fn, transform)}
    if foreign := radial_parts - {"BesselBasis", "AgnesiTransform", "NoneType"}:
        raise ValueError(f"it has a {min(foreign)}")
    if not getattr(radial, "apply_cutoff", True):
        raise ValueError("its weights of edges fade at the cutoff")
    prefix, suffix = INTERACTION.split("{}")
    kinds = [type(each).__name__ for each in module.interactions]
    kinds = [name.removeprefix(prefix).removesuffix(suffix) for name in kinds]
    correlation = len(module.products[0].symmetric_contractions.contractions[0].weights) + 1
    values = {
        "elements": module.atomic_numbers.tolist(),
        "features": module.node_embedding.linear.irreps_out.dim,
        "order": module.products[0].linear.irreps_out.lmax,
        "harmonics": module.spherical_harmonics.irreps_out.lmax,
        "correlation": correlation,
        "convolutions": len(module.interactions),
        "first": kinds[0],
        "later": kinds[-1],
        "cutoff": float(module.r_max),
        "radial": int(radial.out_dim),
        "agnesi": transform is not None,
        "envelope": int(radial.cutoff_fn.p),
        "hidden": module.interactions[0].conv_tp_weights.hs[1:-1],
        "neighbors": float(module.interactions[0].avg_num_neighbors),
        "reduced_couplings": bool(getattr(module, "use_reduced_cg", False)),
    }
    return msgspec.convert(values, MACEConfig)


def _read_chgnet(stored: Any) -> _Network:
    """Return the network of a checkpoint of the package ``chgnet``, such as a fine-tuned one."""
    known = find_trunk("chgnet")
    sizes = {ours: stored["model_args"][theirs] for ours, theirs in CHGNET_SIZES.items()}
    config = msgspec.convert({"elements": known.config.elements, **sizes}, CHGNetConfig)
    weights = rename_chgnet(stored["state_dict"])
    return _Network("chgnet", config, weights, known.elements, f"hydragnn-hpo {__version__}")


def rename_chgnet(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the package's weights; layers without effect on atoms are dropped.

    Returns:
        Weights by our names.
    """
    made = {f"{new}.frequencies": state[f"{old}.frequencies"] for new, old in _FREQUENCIES.items()}
    made["reference_energies"] = state["composition_model.fc.weight"].flatten()

    def copy(new: str, old: str) -> None:
        for kind in ("weight", "bias"):
            if f"{old}.{kind}" in state:
                made[f"{new}.{kind}"] = state[f"{old}.{kind}"]

    def add_inputs(new: str, old: str, parts: Sequence[str], biased: str) -> None:
        """Split the first layer of both halves by its inputs."""
        weights = torch.cat([state[f"{old.format(half)}.weight"] for half in _HALVES])
        for part, piece in zip(parts, weights.chunk(len(parts), dim=1), strict=True):
            made[f"{new}.{part}.weight"] = piece.contiguous()
        biases = [state[f"{old.format(half)}.bias"] for half in _HALVES]
        made[f"{new}.{biased}.bias"] = torch.cat(biases)

    def add_messages(new: str, old: str, block: str) -> None:
        for half, norm in _HALVES.items():
            copy(f"{new}.message.{half}", f"{old}.{block}.mlp_{half}.layers.3")
            copy(f"{new}.message.activation.{half}_norm", f"{old}.{block}.{norm}")
        copy(f"{new}.out", f"{old}.mlp_out.layers.1")

    for new, old in _RENAMED.items():
        copy(new, old)
    ends, angle = ("receiver", "bond", "sender"), ("first", "second", "angle", "center")
    for i in range(4):
        new, old = f"atom_convs.{i}", f"atom_conv_layers.{i}"
        add_inputs(new, f"{old}.twoBody_atom.mlp_{{}}.layers.0", ends, "receiver")
        add_messages(new, old, "twoBody_atom")
    for i in range(3):
        new, old = f"bond_convs.{i}", f"bond_conv_layers.{i}"
        add_inputs(f"{new}.inputs", f"{old}.twoBody_bond.mlp_{{}}.layers.0", angle, "center")
        add_messages(new, old, "twoBody_bond")
    for i in range(2):
        new, old = f"angle_updates.{i}", f"angle_layers.{i}.twoBody_bond"
        add_inputs(f"{new}.inputs", f"{old}.mlp_{{}}.layers.1", angle, "center")
        for half, norm in _HALVES.items():
            copy(f"{new}.activation.{half}_norm", f"{old}.{norm}")
    return made
