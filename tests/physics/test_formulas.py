"""What the controller counts without torch equals what the built net has, does and keeps."""

import numpy as np
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from hydragnn_hpo.config.convs import CONV_SPECS
from hydragnn_hpo.config.model_config import HeadConfig, ModelConfig, count_parameters
from hydragnn_hpo.config.trial_size import forward_flops, kept_bytes
from hydragnn_hpo.model.gnn import MultiHeadGNN, Trunk
from hydragnn_hpo.testing.sample_structures import CUTOFF, batch_structures, random_structure

ENERGY = {"level": "graph", "shape": "scalar", "mean": 0.0, "std": 1.0}
TARGETS = {"energy": ENERGY, "force": {**ENERGY, "level": "node", "shape": "vector"}}
SIZES = [(16, 1, 8), (48, 3, 20)]


@pytest.fixture(params=list(CONV_SPECS))
def conv(request):
    return request.param


@pytest.fixture
def config(conv, request):
    features, layers, basis = request.param
    sizes = {"features": features, "layers": layers, "cutoff": CUTOFF, "basis_size": basis}
    return ModelConfig(conv=conv, kernels="eager", **sizes)  # loops keep less, GPUs have none


def crystals(count):
    made = [random_structure(seed, 9, periodic=True) for seed in range(count)]
    return batch_structures(made, torch.float32)


def sizes_of(batch, config):
    """Count nodes, edges and ordered pairs of different edges that meet within the reach.

    An edge k -> j and an edge j -> i are such a pair unless one is the other turned round.
    """
    reach = config.spec.angle_cutoff and config.spec.angle_cutoff(config.conv_options)
    sender, receiver = batch.edge_index
    vectors = batch.positions[receiver] - batch.positions[sender] + batch.edge_shift
    near = vectors.norm(dim=1) <= (reach or np.inf)
    degree = torch.bincount(receiver[near], minlength=len(batch.numbers))
    triplets = int((degree * (degree - 1)).sum()) if config.spec.angle_cutoff else 0
    return len(batch.numbers), batch.edge_index.shape[1], triplets


@pytest.mark.parametrize("config", SIZES, indirect=True)
@pytest.mark.parametrize("names", [["energy"], ["energy", "force"]], ids=["scalars", "vectors"])
def test_parameters_are_counted_exactly(config, names):
    if "force" in names and not config.spec.vectors:
        names = ["energy"]
    heads = {name: HeadConfig(layers=3, hidden=24) for name in names}
    net = MultiHeadGNN(config, heads, {name: TARGETS[name] for name in names})
    assert count_parameters(config, heads, TARGETS) == sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("config", SIZES, indirect=True)
def test_operations_are_counted(config):
    batch = crystals(1)
    trunk = Trunk(config, state_is_read=False)
    with FlopCounterMode(display=False) as counter:
        trunk(batch)
    expected = forward_flops(config, *sizes_of(batch, config))
    within = 0.2 if config.spec.angle_cutoff else 0.05
    assert abs(counter.get_total_flops() / expected - 1.0) < within


@pytest.mark.parametrize("config", [(32, 2, 8), (64, 3, 16)], indirect=True)
def test_bytes_kept_for_the_backward_pass_are_counted(config):
    batch = crystals(4)
    trunk = Trunk(config, state_is_read=False)
    measured = bytes_saved(trunk, batch)
    expected = kept_bytes(config, *sizes_of(batch, config))
    assert abs(measured / expected - 1.0) < 0.2, (measured, expected)


def bytes_saved(trunk, batch):
    """Return the bytes of all storages that autograd keeps, parameters and links left out.

    Which nodes an edge joins is known once for all layers, however many they are.
    """
    edges = trunk.edges(batch)
    trunk.edges = lambda _: edges
    sorted_once = (*edges.faded_neighbors, *edges.averaged_neighbors)
    shared = [*trunk.parameters(), *edges.links.arrays, *sum(sorted_once, ())]
    own = {each.untyped_storage().data_ptr() for each in shared}
    kept = {}

    def note(tensor):
        storage = tensor.untyped_storage()  # held, so that its place is not given away
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        features = trunk(batch)
    assert features.scalars.requires_grad
    return sum(storage.nbytes() for storage in kept.values())
