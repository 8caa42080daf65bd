"""A conv as a PyG layer computes what it computes in the trunk, and obeys the same laws."""

import pytest
import torch
from torch import nn

from hydragnn_hpo.config import Config, ModelConfig
from hydragnn_hpo.config.convs import CONV_SPECS, Dimensions
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.model import Trunk, as_pyg
from hydragnn_hpo.model.convs import CONVS
from hydragnn_hpo.testing import check_conv
from hydragnn_hpo.testing.sample_structures import batch_structures, random_structure

LAYERS, FEATURES, CUTOFF, BASIS = 3, 16, 4.0, 8
SETTINGS = {"features": FEATURES, "cutoff": CUTOFF, "basis_size": BASIS}
LAWS = ("rotation", "reflection", "translation", "node order", "edge order", "batch", "supercell")


def structures():
    """A crystal with several images of an atom, and two molecules, as one batch."""
    samples = [random_structure(2, 5, periodic=True), random_structure(1), random_structure(5, 3)]
    return batch_structures(samples)


def stir(module):
    """Move all parameters off what they begin with: some begin at zero, and change nothing."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))


@pytest.mark.parametrize(
    ("name", "basis"), [*((name, "bessel") for name in CONVS), ("schnet", "gaussian")]
)
def test_a_stack_of_layers_is_the_trunk(name, basis):
    config = ModelConfig(conv=name, layers=LAYERS, norm="none", basis=basis, **SETTINGS)
    trunk = Trunk(config, state_is_read=True).double()
    stir(trunk)
    batch = structures()
    expected = trunk(batch)
    x = trunk.embedding(batch.numbers)
    state = None
    for number, conv in enumerate(trunk.convs):
        layer = as_pyg(name, layer=number, return_state=True, basis=basis, **SETTINGS).double()
        layer.conv.load_state_dict(conv.state_dict())
        x, state = layer(x, batch.edge_index, batch.positions, batch.edge_shift, state)
    torch.testing.assert_close(x, expected.scalars, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(x, trunk.embedding(batch.numbers), atol=1e-3)
    if CONV_SPECS[name].vectors:
        torch.testing.assert_close(state[:, :3], expected.vectors, rtol=1e-10, atol=1e-10)
        assert state.shape[2] == FEATURES
        assert state[:, :3].abs().max() > 1e-3


class Rewrapped(nn.Module):
    """A conv whose every message goes through the PyG layer, for the suite of the convs."""

    name = ""

    def __init__(self, dimensions: Dimensions, options: Config) -> None:
        super().__init__()
        self.layer = as_pyg(
            self.name,
            features=dimensions.features,
            cutoff=dimensions.cutoff,
            basis_size=dimensions.basis_size,
            layer=dimensions.layer,
            return_state=True,
        )

    def forward(self, scalars, state, edges):
        links = torch.stack((edges.sender, edges.receiver))
        vectors = edges.lengths.unsqueeze(-1) * edges.directions
        pos = scalars.new_zeros(len(scalars), 3)
        changed, state = self.layer(scalars, links, pos, vectors, state)
        return changed - scalars, state


@pytest.mark.parametrize("name", CONVS)
def test_a_layer_obeys_the_laws_of_space(name):
    of = {"name": name, "vectors": CONV_SPECS[name].vectors, "forces": CONV_SPECS[name].forces}
    report = check_conv(type("Layer", (Rewrapped,), of), only=LAWS)
    assert not [finding for finding in report.findings if finding.failed]
    assert len(report.findings) == len(LAWS)


@pytest.mark.parametrize("name", CONVS)
def test_convs_with_vectors_return_them_and_others_features_alone(name):
    batch = structures()
    layer = as_pyg(name, **SETTINGS)
    x = torch.randn(len(batch.numbers), FEATURES)
    out = layer(x, batch.edge_index, batch.positions.float(), batch.edge_shift.float())
    if CONV_SPECS[name].vectors:
        x, state = out
        assert state.shape[0] == len(batch.numbers)
    else:
        x = out
    assert x.shape == (len(batch.numbers), FEATURES)
    assert x.dtype == torch.float32


def test_a_class_of_ones_own_is_a_layer_too():
    class Mean(nn.Module):
        class Options(Config):
            scale: float = 1.0

        def __init__(self, dimensions, options):
            super().__init__()
            self.scale = options.scale

        def forward(self, scalars, state, edges):
            return self.scale * edges.sum_messages(edges.at_sender(scalars) * edges.envelope), None

    pos = torch.tensor([[0.0, 0, 0], [1.0, 0, 0]])
    links = torch.tensor([[0, 1], [1, 0]])
    x = torch.tensor([[1.0], [10.0]])
    layer = as_pyg(Mean, features=1, cutoff=2.0, scale=3.0)
    fade = 1 - 28 / 2**6 + 48 / 2**7 - 21 / 2**8  # the envelope at half the cutoff, by hand
    torch.testing.assert_close(layer(x, links, pos), x + 3.0 * fade * x.flip(0))
    far = as_pyg(Mean, features=1, cutoff=1.0)
    assert torch.equal(far(x, links, pos), x)
    with pytest.raises(ConfigError, match="options of conv .*Mean'.*unknown key 'scal'"):
        as_pyg(Mean, scal=3.0)


def test_pyg_stacks_layers_and_differentiates_through_positions():
    from torch_geometric.nn import Sequential

    batch = structures()
    layers = [
        (as_pyg("schnet", **SETTINGS), "x, edge_index, pos -> x"),
        nn.SiLU(),
        (as_pyg("egnn", **SETTINGS), "x, edge_index, pos -> x"),
    ]
    net = Sequential("x, edge_index, pos", layers).double()
    pos = batch.positions.clone().requires_grad_()
    x = torch.randn(len(batch.numbers), FEATURES, dtype=torch.float64)
    (slope,) = torch.autograd.grad(net(x, batch.edge_index, pos).sum(), pos)
    assert slope.abs().max() > 0


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: as_pyg("schent"), "unknown conv 'schent'. Did you mean 'schnet'?"),
        (lambda: as_pyg("gat", head=4), "unknown key 'head'.*Did you mean 'heads'?"),
        (lambda: as_pyg("gat", features=6, heads=4), "heads is 4, which does not divide"),
        (lambda: as_pyg("gin", cutoff=-1.0), "cutoff"),
        (lambda: as_pyg("gin", basis="bessle"), "basis"),
        (lambda: as_pyg("no.such:Conv"), "package 'no', which is not installed"),
    ],
)
def test_what_does_not_fit_is_one_sentence(make, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_features_of_another_width_are_refused():
    layer = as_pyg("gin", features=8)
    with pytest.raises(
        ConfigError, match=r"x has the shape \(2, 4\), this layer takes \[nodes, 8\]"
    ):
        layer(torch.zeros(2, 4), torch.zeros(2, 0, dtype=torch.long), torch.zeros(2, 3))
