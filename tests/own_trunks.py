"""Foundation models of a user's: a checkpoint as the package ``chgnet`` saves it, and its files."""

from pathlib import Path

import torch

from hydragnn_hpo.model.trunks import FrozenTrunk, find_trunk
from hydragnn_hpo.model.trunks.convert import (
    _FREQUENCIES,
    _RENAMED,
    CHGNET_SIZES,
    ConvertRequest,
    convert_trunk,
)

ENDS = ("receiver", "bond", "sender")
ANGLE = ("first", "second", "angle", "center")


def packaged(weights):
    """Return weights by the names of the package: what ``rename_chgnet`` undoes."""
    made = {
        f"{old}.frequencies": weights[f"{new}.frequencies"] for new, old in _FREQUENCIES.items()
    }
    made["composition_model.fc.weight"] = weights["reference_energies"].unsqueeze(0)
    for new, old in _RENAMED.items():
        for kind in ("weight", "bias"):
            if f"{new}.{kind}" in weights:
                made[f"{old}.{kind}"] = weights[f"{new}.{kind}"]

    def join_inputs(new, old, layer, parts, biased):
        joined = torch.cat([weights[f"{new}.{part}.weight"] for part in parts], dim=1)
        biases = weights[f"{new}.{biased}.bias"].chunk(2)
        for half, weight, bias in zip(("core", "gate"), joined.chunk(2), biases, strict=True):
            made[f"{old}.mlp_{half}.layers.{layer}.weight"] = weight.clone()
            made[f"{old}.mlp_{half}.layers.{layer}.bias"] = bias.clone()

    def copy_activation(new, old):
        for half, norm in (("core", "bn1"), ("gate", "bn2")):
            for kind in ("weight", "bias"):
                made[f"{old}.{norm}.{kind}"] = weights[f"{new}.{half}_norm.{kind}"]

    def copy_messages(new, old, block):
        for half in ("core", "gate"):
            for kind in ("weight", "bias"):
                name = f"{old}.{block}.mlp_{half}.layers.3.{kind}"
                made[name] = weights[f"{new}.message.{half}.{kind}"]
        copy_activation(f"{new}.message.activation", f"{old}.{block}")
        made[f"{old}.mlp_out.layers.1.weight"] = weights[f"{new}.out.weight"]

    for i in range(4):
        join_inputs(f"atom_convs.{i}", f"atom_conv_layers.{i}.twoBody_atom", 0, ENDS, "receiver")
        copy_messages(f"atom_convs.{i}", f"atom_conv_layers.{i}", "twoBody_atom")
    for i in range(3):
        old = f"bond_conv_layers.{i}"
        join_inputs(f"bond_convs.{i}.inputs", f"{old}.twoBody_bond", 0, ANGLE, "center")
        copy_messages(f"bond_convs.{i}", old, "twoBody_bond")
    for i in range(2):
        old = f"angle_layers.{i}.twoBody_bond"
        join_inputs(f"angle_updates.{i}.inputs", old, 1, ANGLE, "center")
        copy_activation(f"angle_updates.{i}.activation", old)
    return made


def tuned_weights(factor=1.02):
    """Return CHGNet's weights, a little changed, as fine-tuning leaves them."""
    weights = {name: w.clone() for name, w in find_trunk("chgnet").network.state_dict().items()}
    weights["atom_convs.1.out.weight"] *= factor
    return weights


def write_checkpoint(path: Path, factor: float = 1.02) -> Path:
    """Write a fine-tuned CHGNet as its package saves it."""
    config = find_trunk("chgnet").config
    sizes = {theirs: getattr(config, ours) for ours, theirs in CHGNET_SIZES.items()}
    state = packaged(tuned_weights(factor))
    torch.save({"model": {"state_dict": state, "model_args": sizes}}, path)
    return path


def write_own(folder: Path, *, licence: str = "MIT", factor: float = 1.02) -> FrozenTrunk:
    """Write the card and the weights of a fine-tuned CHGNet, ``mine.json``; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = write_checkpoint(folder / "tuned.pth.tar", factor)
    return convert_trunk(ConvertRequest(file, folder, "mine", licence, "our own relaxations"))
