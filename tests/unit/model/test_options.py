"""Norms, pools, global attention, encodings, conditioning, repulsion: by hand and by law."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from hydragnn_hpo.config.convs import CONV_SPECS
from hydragnn_hpo.config.model_config import HeadConfig, ModelConfig, count_parameters
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.model.conditioning import RandomWalkEncoding
from hydragnn_hpo.model.gnn import ZBL
from hydragnn_hpo.model.layers import AttentionPool, Padding, build_norm, pool_max
from hydragnn_hpo.testing.sample_structures import empty_batch

ENERGY = {"energy": {"pool": "contributions"}}


@pytest.fixture
def three(make):
    return make.batch(
        *(make.graph(*make.atoms(seed, count)) for seed, count in ((1, 2), (2, 5), (3, 1)))
    )


def test_norms_by_hand(three):
    values = torch.randn(8, 6, dtype=torch.float64)
    layer = build_norm("layer", 6).double()(values, three)
    centred = values - values.mean(1, keepdim=True)
    expected = centred / (values.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(layer, expected)
    rms = build_norm("rms", 6).double()(values, three)
    torch.testing.assert_close(rms, values / (values.square().mean(1, keepdim=True) + 1e-5).sqrt())
    graph = build_norm("graph", 6).double()(values, three)
    for rows in (slice(0, 2), slice(2, 7), slice(7, 8)):
        one = values[rows]
        expected = (one - one.mean(0)) / (one.var(0, unbiased=False) + 1e-5).sqrt()
        torch.testing.assert_close(graph[rows], expected)
    assert torch.equal(build_norm("none", 6)(values, three), values)


def test_pools_by_hand(three):
    values = torch.randn(8, 4, dtype=torch.float64) - 5.0
    rows = (values[:2], values[2:7], values[7:])
    torch.testing.assert_close(pool_max(values, three), torch.stack([r.amax(0) for r in rows]))
    pool = AttentionPool(4).double()
    expected = [(pool.score(r).softmax(0) * r).sum(0) for r in rows]
    torch.testing.assert_close(pool(values, three), torch.stack(expected))


VARIANTS = {
    "graph-norm": {"norm": "graph"},
    "rms": {"norm": "rms"},
    "none": {"norm": "none"},
    "gps": {"attention": "gps", "attention_heads": 3},
    "gps-graph-norm": {"attention": "gps", "norm": "graph"},
    "walk": {"encoding": "random_walk", "encoding_size": 5},
    "film": {"attributes": ["spin"], "conditioning": "film"},
    "concat": {"attributes": ["spin"], "conditioning": "concat"},
    "fuse": {"attributes": ["spin"], "conditioning": "fuse"},
    "shared": {"shared_layers": 2},
    "zbl": {"repulsion": "zbl"},
}
HEADS = {
    "energy": {"pool": "contributions", "loss": "nll"},
    "gap": {"pool": "attention", "branch": "other", "loss": "beta_nll"},
    "charge": {"kind": "conv", "loss": "nll"},
}


@pytest.fixture(params=VARIANTS)
def variant(request):
    return VARIANTS[request.param]


def known(make, seed, **more):
    return make.graph(*make.atoms(seed, **more), spin=float(seed))


def test_a_batch_is_only_a_speed_up(make, variant):
    net = make.net(HEADS, **variant)
    graphs = [known(make, 1, count=2), known(make, 2, periodic=False), known(make, 3, count=1)]
    together = net(make.batch(*graphs))
    alone = [net(make.batch(one)) for one in graphs]
    assert set(together) == {*HEADS, *(f"{name}:variance" for name in HEADS)}
    for name, values in together.items():
        torch.testing.assert_close(values, torch.cat([one[name] for one in alone]))


def test_the_order_of_nodes_does_not_matter(make, variant):
    net = make.net(HEADS, **variant)
    (numbers, positions, cell) = make.atoms(4, 6)
    order = np.random.default_rng(0).permutation(6)
    before = net(make.batch(make.graph(numbers, positions, cell, spin=1.0)))
    after = net(make.batch(make.graph(numbers[order], positions[order], cell, spin=1.0)))
    torch.testing.assert_close(after["energy"], before["energy"])
    torch.testing.assert_close(after["charge"], before["charge"][order])


def test_a_supercell_gives_the_same_answer_per_atom(make, variant):
    if variant.get("encoding"):
        pytest.skip("encodings are of the graph of one cell, see model.conditioning.")
    heads = {"gap": {"pool": "mean"}, "charge": {}}
    net = make.net(heads, **variant)
    (numbers, positions, cell) = make.atoms(5)
    twice = np.vstack((positions, positions + cell[1]))
    large = np.vstack((cell[0], 2 * cell[1], cell[2]))
    small = net(make.batch(make.graph(numbers, positions, cell, spin=1.0)))
    big = net(make.batch(make.graph(np.tile(numbers, 2), twice, large, spin=1.0)))
    torch.testing.assert_close(big["gap"], small["gap"])
    torch.testing.assert_close(big["charge"], small["charge"].repeat(2, 1))


@pytest.mark.parametrize("conditioning", ["concat", "film", "fuse"])
def test_without_rounds_elements_and_attributes_alone_count(make, conditioning):
    model = {"layers": 0, "atom_layers": 1, "attributes": ["spin"], "conditioning": conditioning}
    heads = {"gap": {"pool": "mean"}, "energy": {}, "charge": {}}
    net = make.net(heads, **model)
    numbers, positions, cell = make.atoms(5)
    here = net(make.batch(make.graph(numbers, positions, cell, spin=1.0)))
    moved = net(make.batch(make.graph(numbers, positions[::-1].copy(), 1.1 * cell, spin=1.0)))
    torch.testing.assert_close(here, moved)
    config = ModelConfig(conv="schnet", features=12, basis_size=6, cutoff=4.0, **model)
    made = {name: HeadConfig(**values) for name, values in heads.items()}
    assert sum(p.numel() for p in net.parameters()) == count_parameters(config, made, make.targets)
    other = net(make.batch(make.graph(numbers, positions, cell, spin=2.0)))
    assert (other["gap"] - here["gap"]).abs() > 1e-6, "the attribute is read"


def test_two_derivatives_vanish_at_the_cutoff(make, variant):
    net = make.net(ENERGY, **variant)

    def energy(distance):
        pair = np.array([[0.0, 0, 0], [distance, 0, 0]])
        one = make.graph(np.array([6, 8], np.int16), pair, np.zeros((3, 3)), spin=1.0)
        return net(make.batch(one))["energy"].item()

    apart = energy(4.5)
    left = [abs(energy(4.0 - h) - apart) for h in (0.04, 0.02, 0.01)]
    assert abs(energy(2.0) - apart) > 1e-5
    assert left[0] / left[1] == pytest.approx(8.0, rel=0.15)
    assert left[1] / left[2] == pytest.approx(8.0, rel=0.08)


def test_every_parameter_is_counted_and_gets_a_gradient(make, variant):
    net = make.net(HEADS, **variant).train()
    config = ModelConfig(conv="schnet", features=12, layers=2, basis_size=6, cutoff=4.0, **variant)
    heads = {name: HeadConfig(**values) for name, values in HEADS.items()}
    assert sum(p.numel() for p in net.parameters()) == count_parameters(config, heads, make.targets)
    batch = make.batch(known(make, 1), known(make, 2))
    sum(values.sum() for values in net(batch).values()).backward()
    assert [name for name, p in net.named_parameters() if p.grad is None] == []


def test_an_empty_share_has_gradients_of_zero(make, variant):
    net = make.net(HEADS, **variant).train()
    empty = replace(empty_batch(), attributes={"spin": torch.zeros(0, dtype=torch.float64)})
    sum(values.sum() for values in net(empty).values()).backward()
    assert all(p.grad is not None and not p.grad.any() for p in net.parameters())


@pytest.mark.parametrize(
    ("conv", "options"),
    [
        ("gat", {"heads": 3}),
        ("et", {"heads": 3}),
        ("mace", {"max_ell": 4}),
        ("mace", {"correlation": 4}),
        ("mace", {"max_ell": 1, "node_max_ell": 2}),
        ("alignn", {"angle_basis": 1}),
        ("alignn", {"angle_cutoff": 0.0}),
        ("dimenetpp", {"num_spherical": 1}),
        ("dimenetpp", {"num_spherical": 9}),
        ("dimenetpp", {"int_emb": 0}),
    ],
    ids=str,
)
def test_bad_options_of_a_conv_are_refused(conv, options):
    ModelConfig(conv=conv)
    with pytest.raises(ValueError, match=next(iter(options))):
        ModelConfig(conv=conv, options=options)


def test_gps_receives_atoms_beyond_the_cutoff_of_its_own_graph_only(make):
    far = np.array([[0.0, 0, 0], [30.0, 0, 0]])

    def charges(*numbers):
        graphs = [make.graph(np.array(n, np.int16), far, np.zeros((3, 3))) for n in numbers]
        return make.net({"charge": {}}, attention="gps")(make.batch(*graphs))["charge"]

    first = charges([1, 6], [1, 6])
    changed = charges([1, 8], [1, 6])
    assert (first[0] - changed[0]).abs() > 1e-4, "the far atom of the same graph is heard"
    torch.testing.assert_close(first[2:], changed[2:], rtol=0, atol=0)


def test_random_walk_of_two_atoms_by_hand(make):
    """Stay with weight 1 or step with weight w: back after one step 1/(1+w), and so on."""
    pair = np.array([[0.0, 0, 0], [2.0, 0, 0]])
    batch = make.batch(make.graph(np.array([6, 6], np.int16), pair, np.zeros((3, 3))))
    edges = make.net(ENERGY).trunk.edges(batch)
    w = 1.0 - 28 * 0.5**6 + 48 * 0.5**7 - 21 * 0.5**8
    stay, step = 1 / (1 + w), w / (1 + w)
    back = [stay, stay**2 + step**2, stay**3 + 3 * stay * step**2]
    actual = RandomWalkEncoding(3, 4).double().return_probabilities(Padding.of(batch), edges)
    np.testing.assert_allclose(actual, [back, back], rtol=1e-12)


def test_laplacian_encodings_are_needed_where_requested(make):
    net = make.net(ENERGY, encoding="laplacian", encoding_size=2)
    batch = make.batch(make.graph(*make.atoms(1)))
    with pytest.raises(
        ConfigError, match="the graphs hold 0 Laplacian encodings, the model needs 2"
    ):
        net(batch)
    object.__setattr__(batch, "laplacian", torch.randn(5, 3, dtype=torch.float64))
    first = net(batch)["energy"]
    batch.laplacian[:, 2] += 1.0
    assert torch.equal(net(batch)["energy"], first), "only the first two are read"
    batch.laplacian[:, 0] += 1.0
    assert not torch.equal(net(batch)["energy"], first)


def test_frozen_features_are_scaled_cut_and_read_by_layer(make):
    mean = torch.arange(320.0)
    std = torch.full((320,), 2.0)
    stats = {"features": {"chgnet": {"mean": mean.tolist(), "std": std.tolist()}}}
    batch = make.batch(make.graph(*make.atoms(1)))
    features = torch.randn(5, 320, dtype=torch.float64)

    def energy(values, **model):
        net = make.net(ENERGY, stats=stats, layers=0, embedding="chgnet", **model)
        object.__setattr__(batch, "features", {"chgnet": values})
        return net(batch)["energy"]

    near = mean + 2.0 * features.clamp(-6, 6)
    far = mean + 2.0 * features
    far[0, 0] = mean[0] + 2.0 * 60.0
    near[0, 0] = mean[0] + 2.0 * 6.0
    torch.testing.assert_close(energy(near), energy(far), msg="six deviations are the limit")
    changed = near.clone()
    changed[:, -1] += 1.0
    assert not torch.equal(energy(near), energy(changed))
    assert torch.equal(
        energy(near, embedding_layers="early"), energy(changed, embedding_layers="early")
    )
    changed = near.clone()
    changed[:, 0] += 1.0
    assert torch.equal(
        energy(near, embedding_layers="late"), energy(changed, embedding_layers="late")
    )
    object.__setattr__(batch, "features", {})
    with pytest.raises(ConfigError, match="features of CHGNet 0.3.0, which the graphs come withou"):
        make.net(ENERGY, embedding="chgnet")(batch)


@pytest.mark.parametrize("way", ["film", "concat", "fuse"])
def test_attributes_matter_and_are_scaled(make, way):
    stats = {"attributes": {"spin": {"mean": 10.0, "std": 2.0}}}
    net = make.net(ENERGY, stats=stats, attributes=["spin"], conditioning=way)
    plain = make.net(ENERGY, attributes=["spin"], conditioning=way)

    def energy(model, spin):
        return model(make.batch(make.graph(*make.atoms(1), spin=spin)))["energy"]

    assert not torch.equal(energy(net, 8.0), energy(net, 12.0))
    torch.testing.assert_close(energy(net, 14.0), energy(plain, 2.0))
    with pytest.raises(ConfigError, match="the model is conditioned on 'spin', which"):
        net(make.batch(make.graph(*make.atoms(1))))


def test_zbl_by_hand(make):
    """Carbon and oxygen 0.9 angstrom apart; radii 0.76 and 0.66 touch at 1.42."""
    pair = np.array([[0.0, 0, 0], [0.9, 0, 0]])
    batch = make.batch(make.graph(np.array([6, 8], np.int16), pair, np.zeros((3, 3))))
    length = 0.46850 / (6**0.23 + 8**0.23)
    shares, rates = (0.18175, 0.50986, 0.28022, 0.02817), (3.1998, 0.94229, 0.4029, 0.20162)
    decay = sum(c * np.exp(-r * 0.9 / length) for c, r in zip(shares, rates, strict=True))
    x = 0.9 / 1.42
    fade = 1 - 28 * x**6 + 48 * x**7 - 21 * x**8
    expected = 14.399645 * 48 / 0.9 * decay * fade
    edges = make.net(ENERGY).trunk.edges(batch)
    result = ZBL().double()(batch, edges)
    assert result.flatten().tolist() == pytest.approx([expected / 2] * 2, rel=1e-6)
    repulsion = (
        make.net(ENERGY, repulsion="zbl")(batch)["energy"] - make.net(ENERGY)(batch)["energy"]
    )
    assert repulsion.item() == pytest.approx(expected, rel=1e-6)


def test_zbl_leaves_other_targets_alone(make):
    batch = make.batch(make.graph(*make.atoms(1)))
    with_it, without = (make.net({"gap": {}}, repulsion=r)(batch) for r in ("zbl", "none"))
    assert torch.equal(with_it["gap"], without["gap"])


def test_branches_share_within_and_not_across(make):
    heads = {"energy": {"branch": "a"}, "gap": {"branch": "b"}}
    net = make.net(heads, shared_layers=1)
    assert set(net.shared) == {"branch_a", "branch_b"}
    batch = make.batch(make.graph(*make.atoms(1)))
    before = {name: values.clone() for name, values in net(batch).items()}
    nn.init.zeros_(net.shared["branch_a"][0].weight)
    after = net(batch)
    assert torch.equal(after["gap"], before["gap"])
    assert not torch.equal(after["energy"], before["energy"])


def test_variances_of_contributions_add_up(make):
    """Two atoms far apart are independent: their variances are the sum of both alone."""
    net = make.net({"energy": {"pool": "contributions", "loss": "nll"}})

    def variance(*numbers):
        positions = np.arange(len(numbers))[:, None] * np.array([[30.0, 0, 0]])
        one = make.graph(np.array(numbers, np.int16), positions, np.zeros((3, 3)))
        return net(make.batch(one))["energy:variance"].item()

    floor = 1e-6 * 2.0**2
    together = variance(1, 8) - floor
    assert together == pytest.approx(variance(1) + variance(8) - 2 * floor, rel=1e-12)
    assert variance(1) > floor


def test_a_users_conv_is_found_by_its_name(make, tmp_path, monkeypatch):
    (tmp_path / "my_conv.py").write_text(
        "from torch import nn\n"
        "from hydragnn_hpo.config.schema import Config\n"
        "class Options(Config):\n"
        "    depth: int = 1\n"
        "class Mine(nn.Module):\n"
        "    Options = Options\n"
        "    def __init__(self, dimensions, options):\n"
        "        super().__init__()\n"
        "        self.map = nn.Linear(dimensions.features, dimensions.features)\n"
        "        self.depth = options.depth\n"
        "    def forward(self, scalars, state, edges):\n"
        "        heard = edges.sum_messages(edges.at_sender(scalars) * edges.envelope)\n"
        "        return self.map(heard) * self.depth, None\n"
        "class Wrong:\n"
        "    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    net = make.net(ENERGY, conv="my_conv:Mine", options={"depth": 2})
    assert net.trunk.convs[0].depth == 2
    assert net(make.batch(make.graph(*make.atoms(1))))["energy"].isfinite()
    with pytest.raises(ConfigError, match="options of conv 'my_conv:Mine': unknown key 'dept'"):
        make.net(ENERGY, conv="my_conv:Mine", options={"dept": 2})
    with pytest.raises(ConfigError, match="conv 'my_conv:Wrong': 'my_conv' holds no torch module"):
        make.net(ENERGY, conv="my_conv:Wrong")
    vector = {"level": "node", "shape": "vector", "mean": 0.0, "std": 1.0}
    monkeypatch.setitem(make.targets, "it", vector)
    with pytest.raises(
        ConfigError, match="vector per atom from vectors of atoms, conv 'my_conv:Mi"
    ):
        make.net({"it": {}}, conv="my_conv:Mine")


@pytest.mark.parametrize("conv", list(CONV_SPECS))
def test_weights_alone_make_the_same_net_again(make, conv):
    """A member of an ensemble is built without the statistics of the data it learned from."""
    stats = {"degree": {"4.0": 31.0}, "attributes": {}}
    taught = make.net(ENERGY, stats=stats, conv=conv, features=16)
    other = make.net(ENERGY, conv=conv, seed=4, features=16)
    other.load_state_dict(taught.state_dict())
    batch = make.batch(make.graph(*make.atoms(1)))
    torch.testing.assert_close(other(batch)["energy"], taught(batch)["energy"], rtol=0, atol=0)
