"""What the configs accept, resolve and refuse."""

import sys

import pytest
from pydantic import ValidationError

from hydragnn_hpo.config.convs import CONV_SPECS, Dimensions
from hydragnn_hpo.config.data_config import CardConfig, SplitConfig, TargetConfig
from hydragnn_hpo.config.model_config import (
    HeadConfig,
    ModelConfig,
    count_parameters,
    head_parameters,
    trunk_parameters,
)
from hydragnn_hpo.config.schema import parse_config
from hydragnn_hpo.config.search_config import ParameterConfig, SearchConfig
from hydragnn_hpo.config.trial_config import TrainConfig, TrialConfig, TrialHeads
from hydragnn_hpo.config.trial_size import forward_flops
from hydragnn_hpo.errors import ConfigError


def parameter(value):
    return ParameterConfig.model_validate(value)


def test_a_list_is_choices_that_keep_their_types():
    assert parameter([8, 16]) == parameter({"choices": [8, 16]})
    choices = parameter([True, 1, 1.0, "1"]).choices
    assert [type(value) for value in choices] == [bool, int, float, str]


def test_two_integers_make_an_integer_range():
    assert parameter({"low": 1, "high": 9}).integer
    assert not parameter({"low": 1.0, "high": 9}).integer
    assert not parameter({"low": 1e-4, "high": 1e-2, "log": True}).integer


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({}, "give either choices, or low and high"),
        ({"high": 1}, "give either choices, or low and high"),
        ({"choices": [1, 2], "high": 0}, "give either choices, or low and high"),
        ({"choices": [1, 2], "log": True}, "give either choices, or low and high"),
        ({"choices": [1, 2], "step": 1}, "give either choices, or low and high"),
        ([], "choices are empty: name at least one."),
        ([1, 2, 1], "choices repeat a value: name each once."),
        ({"choices": [1, 2], "prior": 3}, "prior 3 is outside: name a value of the key."),
        ({"low": 1, "high": 2, "prior": "a"}, "prior 'a' is outside: name a value of the key."),
        ({"low": 2, "high": 2}, "low 2 is not below high 2."),
        ({"low": 3.5, "high": 2}, "low 3.5 is not below high 2."),
        ({"low": 0, "high": 2, "log": True}, "a log range needs low > 0, found 0."),
        ({"low": 1, "high": 9, "log": True, "step": 2}, "either log or step: drop one."),
        ({"low": 1, "high": 9, "step": 0}, "greater than 0"),
        ({"low": 1, "high": float("inf")}, "finite"),
    ],
)
def test_parameters_that_make_no_sense(value, reason):
    with pytest.raises(ValidationError) as caught:
        parameter(value)
    assert reason in str(caught.value)


def search(**values):
    return parse_config({"trials": 9, "rungs": [2], **values}, SearchConfig, "x")


def test_rungs_rise_and_finalists_are_among_the_trials():
    assert search(rungs=[1, 3, 9, 27, 81]).rungs == (1, 3, 9, 27, 81)
    for rungs in ([4, 2], [3, 3]):
        with pytest.raises(ConfigError, match=r"search.rungs \[\d, \d\] must rise"):
            search(rungs=rungs)
    with pytest.raises(ConfigError, match=r"search.finalists is 6, search.trials 5: ask for fewer"):
        search(trials=5)
    assert search(trials=6).finalists == 6


@pytest.mark.parametrize(
    "wrong", [3, {}, {"gap": 0}, {"gap": "much"}, "", ["weighted", {"gap": -1}], [["a"], "b"]]
)
def test_what_is_no_goal_is_refused(wrong):
    with pytest.raises(ConfigError, match=r"'objective': .* is no goal: name a number"):
        search(objective=wrong)


def test_goals_are_one_or_several():
    several = ("val_mae.gap", {"gap": 1.0, "energy": 2.0})
    assert search().objective == "weighted"
    assert search(objective=["parameters"]).objective == "parameters"
    assert search(objective=["val_mae.gap", {"gap": 1, "energy": 2}]).objective == several
    with pytest.raises(ConfigError, match="name at least one goal"):
        search(objective=[])


def test_shares_sum_to_one():
    assert sum(SplitConfig().shares) == pytest.approx(1.0)
    assert SplitConfig(shares=(0.8, 0.05, 0.05, 0.05, 0.05))
    for shares in ((0.6, 0.1, 0.1, 0.1, 0.2), (0.6, 0.2, 0.1, 0.1), (1.0, 0.0, 0.0, 0.0, 0.0)):
        with pytest.raises(ValidationError):
            SplitConfig(shares=shares)
    with pytest.raises(ConfigError, match=r"split.shares sum to 1.1: let them sum to 1"):
        parse_config({"shares": [0.7, 0.1, 0.1, 0.1, 0.1]}, SplitConfig, "x")


@pytest.mark.parametrize("name", ["9lives", "a-b", "a.b", "a/b", "", "../x"])
def test_names_become_file_names_and_stay_harmless(name):
    target = {"level": "graph", "unit": "eV"}
    for wrong in ({"name": name}, {"targets": {name: target}}):
        values = {"name": "x", "files": [{"path": "a"}], "targets": {"e": target}, **wrong}
        with pytest.raises(ConfigError):
            parse_config(values, CardConfig, "x")


DIPOLE = {"level": "graph", "shape": "vector", "unit": "debye"}


def test_vectors_and_tensors_of_structures_have_an_origin():
    assert TargetConfig.model_validate(DIPOLE).origin == "mass"
    assert TargetConfig.model_validate({**DIPOLE, "origin": "none"}).origin == "none"
    stress = {"level": "graph", "shape": "tensor", "unit": "eV/angstrom^3", "derived_from": "e"}
    forces = {"level": "node", "shape": "vector", "unit": "eV/angstrom"}
    assert all(TargetConfig.model_validate(known).origin is None for known in (stress, forces))
    for wrong, says in (
        ({**forces, "origin": "mass"}, "origin is for vectors and tensors of structures"),
        ({**DIPOLE, "charge": "q", "origin": "none"}, "charge is for dipoles"),
        ({**DIPOLE, "charge": "q", "unit": "muB"}, "found muB: correct the unit"),
    ):
        with pytest.raises(ValidationError, match=says):
            TargetConfig.model_validate(wrong)
    card = {"name": "a", "files": [{"path": "x"}], "targets": {"d": {**DIPOLE, "charge": "q"}}}
    with pytest.raises(ConfigError, match="'q', which is no attribute: add attributes.q"):
        parse_config(card, CardConfig, "x")
    assert parse_config({**card, "attributes": {"q": {"unit": "e"}}}, CardConfig, "x")


def test_one_attribute_at_most_weighs_structures():
    weights = {name: {"weighs": True} for name in ("w_energy", "w_source")}
    card = {"name": "a", "files": [{"path": "x"}], "targets": {"d": DIPOLE}, "attributes": weights}
    with pytest.raises(ConfigError, match="w_energy, w_source all have weighs = true"):
        parse_config(card, CardConfig, "x")


def test_configs_do_not_change():
    with pytest.raises(ValidationError, match="frozen"):
        TrainConfig().epochs = 3


@pytest.mark.parametrize(
    ("epochs", "share", "first"),
    [(80, 0.25, 60), (10, 0.3, 7), (100, 0.29, 71), (1, 0.25, 1), (3, 0.25, 2), (50, 0.0, 50)],
)
def test_stage_two_is_the_last_share_of_the_full_budget(epochs, share, first):
    heads = {"energy": {"weight": 2.0, "stage_two_weight": 8.0}, "forces": {"weight": 10.0}}
    values = {
        "data": {"store": "x"},
        "model": {"conv": "egnn"},
        "heads": heads,
        "training": {"epochs": epochs, "stage_two_share": share},
    }
    config = TrialConfig.model_validate(values)
    assert config.stage_one_epochs == first
    weights = [[head.weight for head in config.heads_in(n).values()] for n in (first, first + 1)]
    assert weights == [[2.0, 10.0], [8.0, 10.0]]
    one = TrialConfig.model_validate({**values, "heads": {"energy": {}, "forces": {}}})
    assert one.stage_one_epochs == epochs


@pytest.mark.parametrize(
    ("head", "training", "says"),
    [
        ({"stage_two_weight": 0}, {}, "'heads.energy.stage_two_weight' is 0: "),
        ({}, {"stage_two_share": 1.0}, "'training.stage_two_share' is 1.0: "),
    ],
)
def test_stages_that_make_no_sense_are_refused(head, training, says):
    values = {"data": {"store": "x"}, "model": {"conv": "egnn"}, "heads": {"energy": head}}
    with pytest.raises(ConfigError, match=says):
        parse_config({**values, "training": training}, TrialConfig, "trial.toml")


def test_options_of_a_conv_are_resolved():
    assert ModelConfig(conv="schnet").options == {"filters": 64}
    assert ModelConfig(conv="schnet", options={"filters": 9}).conv_options.filters == 9
    assert ModelConfig(conv="egnn").options == {"attention": True}
    resolved = ModelConfig(conv="painn", options={"activation": "ssp"})
    assert ModelConfig.model_validate(resolved.model_dump()) == resolved
    with pytest.raises(ValidationError, match="options of conv 'egnn': unknown key 'filters'"):
        ModelConfig(conv="egnn", options={"filters": 9})
    with pytest.raises(ValidationError, match="options of conv 'schnet': 'filters' is 0: "):
        ModelConfig(conv="schnet", options={"filters": 0})


def fit(conv, **targets):
    values = {
        "heads": {name: {} for name in targets},
        "targets": {
            name: dict(zip(("level", "shape", "origin", "charge"), kind, strict=False))
            for name, kind in targets.items()
        },
        "model": {"conv": conv},
    }
    return parse_config(values, TrialHeads, "trial.toml")


def test_heads_fit_the_targets_of_the_store():
    assert fit("schnet", a=("graph", "scalar"), b=("node", "scalar"))
    assert fit("painn", a=("graph", "scalar"), b=("node", "vector"))
    carriers = sorted(name for name, spec in CONV_SPECS.items() if spec.vectors)
    for conv in ("schnet", "egnn"):
        with pytest.raises(ConfigError) as caught:
            fit(conv, push=("node", "vector"))
        assert str(caught.value) == (
            f"trial.toml: head 'push' predicts a vector of an atom, conv '{conv}' carries no "
            f"vectors: use {', '.join(carriers)}, or drop the head."
        )
        for kind in (("graph", "vector", "none"), ("graph", "tensor", "none"), ("node", "tensor")):
            with pytest.raises(ConfigError, match=f"predicts a {kind[1]} of a.* carries no vect"):
                fit(conv, push=kind)
            assert fit("painn", push=kind)
        assert fit(conv, push=("graph", "vector", "mass"), pull=("graph", "tensor", "geometry"))
    with pytest.raises(ConfigError, match="'d' predicts dipoles .* add 'q' to model.attributes"):
        fit("painn", d=("graph", "vector", "mass", "q"))
    values = {"heads": {"enrgy": {}}, "targets": {"energy": {}}, "model": {"conv": "egnn"}}
    with pytest.raises(ConfigError, match=r"unknown target of a head 'enrgy'. Did you mean 'ener"):
        parse_config(values, TrialHeads, "x")


ENERGY = {"level": "graph", "shape": "scalar", "energy": "total"}
FORCES = {"level": "node", "shape": "vector", "derived_from": "energy"}
DOS = {"level": "graph", "shape": "spectrum", "size": 8}
STRESS = {"level": "graph", "shape": "tensor", "derived_from": "energy"}


@pytest.mark.parametrize(
    ("target", "head", "model", "says"),
    [
        (
            STRESS,
            {"gradient": False},
            {},
            "head 'it' is the stress of 'energy', a gradient of that",
        ),
        (FORCES, {}, {"max_neighbors": 12}, "head 'it' predicts forces, which jump with model.max"),
        (STRESS, {}, {"max_neighbors": 12}, "head 'it' predicts stress, which jump with model.max"),
        (FORCES, {"loss": "nll"}, {}, "head 'it' is a gradient and has no variance of its own"),
        (FORCES, {"gradient": False}, {"conv": "egnn"}, "conv 'egnn' carries no vectors"),
        (
            FORCES,
            {},
            {"layers": 0},
            "head 'it' predicts forces, and with model.layers = 0 no energy",
        ),
        (FORCES, {"gradient": False}, {"conv": "painn", "layers": 0}, "the model has no vectors"),
        (ENERGY, {"gradient": True}, {}, "head 'it' is no derivative of an energy: drop gradient"),
        (ENERGY, {"kind": "conv"}, {}, "head 'it': kind = \"conv\" is for scalars, spectra and"),
        (DOS, {"kind": "conv"}, {}, "head 'it': kind = \"conv\" is for scalars, spectra and"),
        (
            ENERGY,
            {"cumulative": True},
            {},
            "head 'it' has cumulative .* predicts a scalar",
        ),
        (
            DOS,
            {"cumulative": True, "loss": "nll"},
            {},
            "head 'it' has cumul.* whose variance",
        ),
        (ENERGY, {}, {"attributes": ["spin"]}, "model.attributes names 'spin', .* Known: charge."),
        (ENERGY, {}, {"encoding": "laplacian"}, "encoding_size is 8, the store holds 3 Laplacian"),
        (FORCES, {}, {"embedding": "chgnet"}, "'it' predicts forces, and the features of .*chgnet"),
        (ENERGY, {}, {"embedding": "chgnet"}, "CHGNet 0.3.0 was not trained on Po, Cm, which"),
    ],
)
def test_heads_that_do_not_fit_are_refused(target, head, model, says):
    values = {
        "heads": {"energy": {}, "it": head},
        "targets": {"energy": ENERGY, "it": target},
        "model": {"conv": "painn", **model},
        "attributes": {"charge": {}},
        "laplacian": 3,
        "elements": [8, 84, 96],
    }
    with pytest.raises(ConfigError, match=says):
        parse_config(values, TrialHeads, "x")


@pytest.mark.parametrize(
    ("stats", "says"),
    [
        ({}, "weight_by is 'w', which is no attribute of the data. Known: none."),
        ({"w": {"mean": 1.0, "std": 1.0}}, "the store is too old to tell its sign: build it again"),
        ({"w": {"mean": 1.0, "std": 1.0, "min": -0.5}}, "on train are -0.5 at least and 1 on av"),
        ({"w": {"mean": 0.0, "std": 1.0, "min": 0.0}}, "let weights be 0 or more, and not all 0."),
    ],
)
def test_weights_that_do_not_fit_are_refused(stats, says):
    values = {
        "heads": {"energy": {}},
        "targets": {"energy": ENERGY},
        "model": {"conv": "painn"},
        "training": {"weight_by": "w"},
    }
    with pytest.raises(ConfigError, match=says):
        parse_config({**values, "attributes": stats}, TrialHeads, "x")
    fine = {"w": {"mean": 1.0, "std": 1.0, "min": 0.0}}
    assert parse_config({**values, "attributes": fine}, TrialHeads, "x")


def test_a_gradient_needs_the_head_of_its_energy():
    values = {"heads": {"it": {}}, "targets": {"it": FORCES}, "model": {"conv": "painn"}}
    with pytest.raises(ConfigError, match="head 'it' is the gradient of 'energy', which has no he"):
        parse_config(values, TrialHeads, "x")
    assert parse_config({**values, "heads": {"it": {"gradient": False}}}, TrialHeads, "x")


def test_a_users_conv_is_named_without_being_imported():
    config = ModelConfig(conv="antigravity:Conv", options={"depth": 2})
    assert config.options == {"depth": 2}
    assert "antigravity" not in sys.modules


def test_parameters_by_hand():
    """SchNet of 4 channels, 3 filters, 2 radial functions; a head of 4 -> 5 -> 1."""
    model = ModelConfig(conv="schnet", features=4, layers=2, basis_size=2, options={"filters": 3})
    filters = (2 * 3 + 3) + (3 * 3 + 3)
    layer = filters + 4 * 3 + (3 * 4 + 4) + (4 * 4 + 4)
    head = (4 * 5 + 5) + (5 + 1)
    expected = 119 * 4 + 2 * (layer + 2 * 4) + head
    target = {"level": "graph", "shape": "scalar"}
    assert head_parameters(model, HeadConfig(hidden=5), target) == head
    assert count_parameters(model, {"e": HeadConfig(hidden=5)}, {"e": target}) == expected


@pytest.mark.parametrize(("layers", "blocks"), [("all", 5), ("early", 3), ("late", 3)])
def test_an_embedding_of_features_adds_a_perceptron(layers, blocks):
    """Of 64 numbers in each block, through 4 channels to 4."""
    plain = ModelConfig(conv="schnet", features=4, layers=0)
    frozen = ModelConfig(
        conv="schnet", features=4, layers=0, embedding="chgnet", embedding_layers=layers
    )
    more = trunk_parameters(frozen, False) - trunk_parameters(plain, False)
    assert more == (64 * blocks * 4 + 4) + (4 * 4 + 4)
    assert forward_flops(frozen, 10, 80) == 2 * 10 * (64 * blocks * 4 + 4 * 4)


def test_an_unknown_embedding_is_named():
    with pytest.raises(ValidationError, match="unknown embedding 'chgnett'"):
        ModelConfig(conv="schnet", embedding="chgnett")


@pytest.mark.parametrize("conv", list(CONV_SPECS))
def test_cost_grows_with_every_dimension(conv):
    def flops(nodes=10, edges=80, **settings):
        return forward_flops(ModelConfig(conv=conv, **settings), nodes, edges)

    assert flops(layers=6) > 1.4 * flops(layers=3), "only the first layers may cost more"
    assert flops(20, 160) == pytest.approx(2 * flops(), rel=0.01)
    assert flops(nodes=11) > flops()
    assert flops(features=72) > flops()
    if CONV_SPECS[conv].edge_features:  # others only add up what neighbours are
        assert flops(edges=81) > flops()
        assert flops(basis_size=17) > flops()


def test_a_layer_knows_its_place():
    model = ModelConfig(conv="schnet", features=7, basis_size=5, layers=3, cutoff=4.0)
    wanted = [
        Dimensions(7, 5, 4.0, 9.0, layer, read) for layer, read in enumerate([True, True, False])
    ]
    assert list(model.dimensions(False, 9.0)) == wanted
    assert all(each.state_is_read for each in model.dimensions(True))
