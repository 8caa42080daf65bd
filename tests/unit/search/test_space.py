"""Conditions, types, steps and dotted keys of a searched space."""

import json
import math
from collections import Counter

import pytest

from hydragnn_hpo.config.search_config import ParameterConfig, Scalar, Space
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.search import space

CHAIN: Space = {
    "model.options.filters": ParameterConfig(low=8, high=64, when={"model.conv": "schnet"}),
    "model.conv": ParameterConfig(choices=("schnet", "egnn", "painn")),
    "training.warmup": ParameterConfig(
        low=0.0, high=0.5, when={"model.options.filters": tuple(range(32, 65))}
    ),
}
"""warmup depends on filters, filters on conv; written in no helpful order."""


def test_conditions_hold_through_a_chain() -> None:
    values = {"model.conv": "schnet", "model.options.filters": 40, "training.warmup": 0.1}
    assert space.active_parameters(CHAIN, values) == values
    inactive = space.active_parameters(CHAIN, {**values, "model.conv": "egnn"})
    assert inactive == {"model.conv": "egnn"}
    small = space.active_parameters(CHAIN, {**values, "model.options.filters": 16})
    assert set(small) == {"model.conv", "model.options.filters"}


def test_conditions_that_meet_again_take_no_time_of_their_own() -> None:
    """Each key depends on both before it: 2^30 paths lead to the first."""
    diamond: Space = {"k0": ParameterConfig(choices=(1, 2)), "k1": ParameterConfig(choices=(1, 2))}
    for number in range(2, 60):
        when = {f"k{number - 1}": 1, f"k{number - 2}": 1}
        diamond[f"k{number}"] = ParameterConfig(choices=(1, 2), when=when)
    values = dict.fromkeys(diamond, 1)
    assert space.active_parameters(diamond, values) == values
    assert set(space.active_parameters(diamond, {**values, "k1": 2})) == {"k0", "k1"}


def test_inactive_keys_take_one_canonical_value() -> None:
    one = {"model.conv": "egnn", "model.options.filters": 64, "training.warmup": 0.4}
    expected = {"model.options.filters": 8, "model.conv": "egnn", "training.warmup": 0.0}
    assert space.canonical_values(CHAIN, one) == expected
    assert space.canonical_values(CHAIN, {"model.conv": "egnn"}) == expected


def test_an_active_key_without_a_value_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"'model.options.filters' is active but has no value"):
        space.canonical_values(CHAIN, {"model.conv": "schnet"})


def test_keys_ignore_order_and_survive_json() -> None:
    values: dict[str, Scalar] = {"model.layers": 3, "training.learning_rate": 0.00123456}
    turned = dict(reversed(json.loads(json.dumps(values)).items()))
    assert space.configuration_key(values) == space.configuration_key(turned)
    assert space.configuration_key(values) != space.configuration_key({**values, "model.layers": 4})


@pytest.mark.parametrize(
    ("parameter", "raw", "expected"),
    [
        (ParameterConfig(low=16, high=64, step=16), 39, 32),
        (ParameterConfig(low=16, high=60, step=16), 60, 48),
        (ParameterConfig(low=0.1, high=0.7, step=0.1), 0.33, 0.3),
        (ParameterConfig(low=2, high=6), 9.2, 6),
        (ParameterConfig(low=2, high=6), 3.4, 3),
        (ParameterConfig(low=1e-4, high=1e-2, log=True), 0.00123456789, 0.00123457),
        (ParameterConfig(low=1e-4, high=1e-2, log=True), 5e-5, 1e-4),
        (ParameterConfig(low=3.0, high=6.0), 4.123456789, 4.12346),
        (ParameterConfig(low=3, high=6.5), 4, 4.0),
        (ParameterConfig(choices=(1, True, "1")), True, True),
        (ParameterConfig(choices=(32, 64)), 64.0, 64),
    ],
)
def test_snap_gives_the_nearest_allowed_value(
    parameter: ParameterConfig, raw: Scalar, expected: Scalar
) -> None:
    actual = space.snap_value(parameter, raw)
    assert actual == expected
    assert type(actual) is type(expected)


@pytest.mark.parametrize("raw", [math.nan, "fast", True])
def test_snap_refuses_what_is_no_number_and_no_choice(raw: Scalar) -> None:
    with pytest.raises(ConfigError, match="not a number"):
        space.snap_value(ParameterConfig(low=1, high=9), raw)
    with pytest.raises(ConfigError, match=r"none of the choices. Known: egnn, painn"):
        space.snap_value(CONV, raw)


RANGES = [
    ParameterConfig(choices=("a", "b", "c")),
    ParameterConfig(choices=(1, 0, True, "1")),
    ParameterConfig(low=2, high=6),
    ParameterConfig(low=1, high=500, log=True),
    ParameterConfig(low=16, high=64, step=16),
    ParameterConfig(low=0.0, high=1.0, step=0.25),
    ParameterConfig(low=3.0, high=6.0),
    ParameterConfig(low=1e-5, high=1e-1, log=True),
]


@pytest.mark.parametrize("parameter", RANGES, ids=str)
def test_positions_lead_back_to_their_values(parameter: ParameterConfig) -> None:
    for index in range(101):
        value = space.value_at(parameter, index / 101)
        again = space.value_at(parameter, space.position_of(parameter, value))
        assert (again, type(again)) == (value, type(value))


COUNTABLE = [p for p in RANGES if not p.log and space.list_values(p) is not None]


@pytest.mark.parametrize("parameter", COUNTABLE, ids=str)
def test_equal_shares_of_positions_go_to_every_value(parameter: ParameterConfig) -> None:
    values = space.list_values(parameter)
    assert values is not None
    total = 60 * len(values)
    counts = Counter(repr(space.value_at(parameter, (i + 0.5) / total)) for i in range(total))
    assert counts == dict.fromkeys(map(repr, values), 60)


def test_half_of_a_log_range_lies_below_its_geometric_mean() -> None:
    assert space.value_at(ParameterConfig(low=1e-4, high=1e-2, log=True), 0.5) == 1e-3


def test_apply_makes_tables_and_leaves_the_template_alone() -> None:
    template = {"model": {"conv": "egnn"}, "heads": {"gap": {}}}
    values: dict[str, Scalar] = {
        "model.features": 32,
        "model.options.filters": 16,
        "heads.gap.weight": 2.0,
        "training.global_batch": 64,
    }
    filled = space.apply_values(template, values)
    assert filled == {
        "model": {"conv": "egnn", "features": 32, "options": {"filters": 16}},
        "heads": {"gap": {"weight": 2.0}},
        "training": {"global_batch": 64},
    }
    assert template == {"model": {"conv": "egnn"}, "heads": {"gap": {}}}


def test_leaves_list_each_active_configuration_once() -> None:
    small: Space = {
        "model.options.filters": ParameterConfig(low=1, high=4, when={"model.conv": "schnet"}),
        "model.conv": ParameterConfig(choices=("schnet", "egnn", "painn")),
    }
    listed = list(space.list_configurations(small))
    assert len(listed) == 4 + 1 + 1
    assert len({space.configuration_key(values) for values in listed}) == 6


def when(**conditions: Scalar | tuple[Scalar, ...]) -> ParameterConfig:
    dotted = {name.replace("_", ".", 1): value for name, value in conditions.items()}
    return ParameterConfig(low=1, high=4, when=dotted)


CONV = ParameterConfig(choices=("egnn", "painn"))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"modle.layers": CONV}, "Did you mean 'model.layers'"),
        ({"model": CONV}, "'model' is no part of a trial"),
        ({"data.store": CONV}, "'data.store' is no part of a trial"),
        ({"model.options": CONV, "model.options.x": CONV}, "contains 'model.options.x'"),
        ({"model.cutoff.x": CONV}, "leads through trial.cutoff"),
        ({"model.layers": when(model_convv="egnn"), "model.conv": CONV}, "mean 'model.conv'"),
        ({"model.layers": when(model_conv="gin"), "model.conv": CONV}, "which it never is"),
        ({"model.layers": when(model_conv=True), "model.conv": CONV}, "which it never is"),
        ({"model.layers": when(model_basis="gaussian")}, "trial.model.basis is 'bessel'"),
        ({"model.a": when(model_b=2), "model.b": when(model_a=3)}, "run in a circle"),
        ({"model.a": when(model_b=7), "model.b": when(model_cutoff=5.0)}, "which it never is"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_check_refuses_a_space_that_cannot_be_searched(wrong: Space, sentence: str) -> None:
    template = {"model": {"basis": "bessel", "cutoff": 5.0}}
    with pytest.raises(ConfigError, match=sentence):
        space.check_space(wrong, template)


def test_a_command_has_keys_of_its_own() -> None:
    own: Space = {"tensor": CONV, "launch.pipeline": CONV}
    space.check_space(own, {"model": "gpt"}, parts=None)
    with pytest.raises(ConfigError, match="'tensor' is no part of a trial"):
        space.check_space(own, {"model": "gpt"})


def test_check_accepts_conditions_on_searched_and_on_fixed_keys() -> None:
    good = {
        **CHAIN,
        "model.basis_size": when(model_basis=("bessel", "gaussian")),
        "model.layers": when(model_cutoff=5),
    }
    space.check_space(good, {"model": {"basis": "bessel", "cutoff": 5.0}})
