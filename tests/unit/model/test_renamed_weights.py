"""Files of before open, whose weights had other names."""

import torch

from hydragnn_hpo.model import rename_weights

BEFORE = {
    "trunk.convs.0.heard.weight": "trunk.convs.0.neighbors.weight",
    "trunk.convs.11.update.talk.2.bias": "trunk.convs.11.update.context.2.bias",
    "trunk.convs.0.own.weight": "trunk.convs.0.own.weight",
    "heads.talk.0.weight": "heads.talk.0.weight",
}


def test_weights_of_before_get_the_names_of_today() -> None:
    tensors = {name: torch.tensor(float(number)) for number, name in enumerate(BEFORE)}
    renamed = rename_weights(tensors, "painn")
    assert renamed == {BEFORE[name]: value for name, value in tensors.items()}


def test_weights_of_own_convs_keep_their_names() -> None:
    tensors = {name: torch.zeros(1) for name in BEFORE}
    assert list(rename_weights(tensors, "own:Conv")) == list(BEFORE)
