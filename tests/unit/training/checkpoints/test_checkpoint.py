"""Checkpoints: what goes in comes out, and damage is told in a sentence."""

import json
import struct

import pytest
import torch
from torch import nn

from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.training.checkpoints import checkpoint


def test_round_trip_with_state(tmp_path):
    path = tmp_path / "last.safetensors"
    tensors = {
        "a": torch.randn(3, 4, dtype=torch.float64).T,
        "b": torch.tensor(7.0),
        "same": torch.arange(5),
    }
    tensors["shared"] = tensors["same"]
    state = {"progress": {"epoch": 3, "best": 0.1 + 0.2, "nothing": None}, "seed": 5, "u": "\u00e5"}
    checkpoint.write(path, tensors, state)
    found, said = checkpoint.read(path)
    assert said == state
    assert found.keys() == tensors.keys()
    for name, value in tensors.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["last.safetensors"]


def test_no_pickle_inside(tmp_path):
    path = tmp_path / "x.safetensors"
    checkpoint.write(path, {"a": torch.ones(2)}, {"k": 1})
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    assert json.loads(header["__metadata__"]["state"]) == {"k": 1}
    assert len(content) == 8 + length + 8


@pytest.mark.parametrize("damage", ["cut", "header", "empty", "missing", "folder"])
def test_damage_is_a_sentence(tmp_path, damage):
    path = tmp_path / "last.safetensors"
    checkpoint.write(path, {"a": torch.ones(100)}, {})
    content = path.read_bytes()
    if damage == "cut":
        path.write_bytes(content[:-7])
    elif damage == "header":
        path.write_bytes(b"\xff" * 8 + content[8:])
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
        if damage == "folder":
            path.mkdir()
    with pytest.raises(StorageError, match=r"last.safetensors: cannot be read as a checkpoint \("):
        checkpoint.read(path)


def steps(model, optimizer, count):
    for number in range(count):
        optimizer.zero_grad()
        model(torch.full((4, 3), number + 1.0)).square().sum().backward()
        optimizer.step()


def test_optimizer_goes_on_bit_for_bit(tmp_path):
    def fresh():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
        return model, torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)

    model, optimizer = fresh()
    steps(model, optimizer, 3)
    path = tmp_path / "last.safetensors"
    tensors = checkpoint.prefixed("model", model.state_dict())
    checkpoint.write(path, tensors | checkpoint.optimizer_tensors(optimizer, model), {})
    steps(model, optimizer, 3)

    again, restored = fresh()
    read, _ = checkpoint.read(path)
    again.load_state_dict(checkpoint.under("model", read))
    checkpoint.load_optimizer(restored, again, read)
    steps(again, restored, 3)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    ours, theirs = optimizer.state_dict(), restored.state_dict()
    assert ours["param_groups"] == theirs["param_groups"]
    for index, values in ours["state"].items():
        for name, value in values.items():
            assert torch.equal(value, theirs["state"][index][name]), name


def test_names_under_a_prefix_do_not_mix():
    tensors = {"model/a": torch.ones(1), "modelling/a": torch.zeros(1), "best/model/a": None}
    assert checkpoint.under("model", tensors) == {"a": tensors["model/a"]}
    assert checkpoint.under("best", checkpoint.prefixed("best", {"x/y": 1})) == {"x/y": 1}
