"""Rules of a space: what can be said, what is refused, and points that meet them."""

import pytest

from hydragnn_hpo.config.search_config import ParameterConfig, Scalar, Space
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.search.constraints import (
    check_feasible_share,
    complete_configuration,
    count_configurations,
    find_broken_constraint,
    read_constraints,
)

SPACE: Space = {
    "model.conv": ParameterConfig(choices=("gat", "schnet")),
    "model.features": ParameterConfig(low=8, high=64, step=8),
    "model.options.heads": ParameterConfig(choices=(1, 3, 4), when={"model.conv": "gat"}),
    "training.warmup": ParameterConfig(low=0.0, high=0.5),
}
TEMPLATE = {"model": {"basis": "bessel", "layers": 3}, "parallel": {"tensor": 4}}


def met(text: str, **values: Scalar) -> bool:
    dotted = {name.replace("__", "."): value for name, value in values.items()}
    (rule,) = read_constraints([text], SPACE, TEMPLATE)
    return rule.met(dotted)


@pytest.mark.parametrize(
    ("text", "features", "expected"),
    [
        ("model.features % 16 == 0", 48, True),
        ("model.features % 16 == 0", 40, False),
        ("model.features * parallel.tensor <= 160", 40, True),
        ("model.features * parallel.tensor <= 160", 48, False),
        ("16 < model.features <= 40", 16, False),
        ("16 < model.features <= 40", 40, True),
        ("model.features // 3 == 5 or model.features / 3 > 20", 16, True),
        ("model.features // 3 == 5 or model.features / 3 > 20", 24, False),
        ("not model.features - 8 >= 2 * 16 + 1", 40, True),
        ("not (model.features + -8 >= 32)", 40, False),
        ("model.basis != 'bessel' or model.features > 8", 8, False),
        ("(model.features > 8) == true", 16, True),
        ("model.features > 8 and model.features != 16", 16, False),
        ("1 / (model.features - 8) > 0", 8, False),
        ("-" * 100 + "model.features == 8", 8, True),
    ],
)
def test_rules_say_what_they_say(text: str, features: int, expected: bool) -> None:
    assert met(text, model__features=features) is expected


def test_a_rule_about_an_inactive_key_is_met() -> None:
    text = "model.features % model.options.heads == 0"
    assert met(text, model__features=32, model__options__heads=4)
    assert not met(text, model__features=32, model__options__heads=3)
    assert met(text, model__features=32)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("model.features ==", "cannot be read"),
        ("__import__('os').system('true')", "is none of these"),
        ("model.features ** 9 > 1", "is none of these"),
        ("[model.features] == 8", "is none of these"),
        ("(lambda: model.features)() == 8", "is none of these"),
        ("model.features in (8, 16)", "is none of these"),
        ("f'{model.features}' == '8'", "is none of these"),
        ("model.conv.upper() == 'GAT'", "is none of these"),
        ("'model'.features == 8", "is no name"),
        ("model.features == None", "is none of these"),
        ("(" * 240 + "1 == model.features" + ")" * 240, "cannot be read"),
        ("-" * 499 + "1 == model.features", "cannot be read"),
        ("1 + " * 125 + "model.features > 0", "more than 500 characters"),
        ("model.featurs > 8", "Did you mean 'model.features'"),
        ("model.layers > 2", "names no searched key"),
    ],
)
def test_what_is_no_rule_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match="search.constraints") as caught:
        read_constraints([text], SPACE, TEMPLATE)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("text", ["model.conv < model.features", "model.conv * 2 == 'gatgat'"])
def test_texts_and_numbers_do_not_mix(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot be reckoned with model.conv = 'gat'"):
        met(text, model__conv="gat", model__features=8)


LISTED: Space = {
    "parallel.tensor": ParameterConfig(choices=(1, 2, 4, 8)),
    "training.micro_batches": ParameterConfig(low=1, high=40),
}


def test_one_point_of_a_small_space_is_enough() -> None:
    # 8 * 40 is the only product of 320.
    product = "parallel.tensor * training.micro_batches"
    check_feasible_share(LISTED, read_constraints([f"{product} == 320"], LISTED, {}))
    nothing = read_constraints([f"{product} > 320"], LISTED, {})
    with pytest.raises(ConfigError, match="leave 0 of 160 points"):
        check_feasible_share(LISTED, nothing)


def test_a_large_space_needs_more_than_a_sliver() -> None:
    space: Space = {
        "a.x": ParameterConfig(low=0.0, high=1.0),
        "a.y": ParameterConfig(low=0.0, high=1.0),
    }
    # Shares of the unit square: a triangle of 0.02, and one of 0.005.
    check_feasible_share(space, read_constraints(["a.x + a.y <= 0.2"], space, {}))
    sliver = read_constraints(["a.x < 0.9", "a.x + a.y <= 0.1"], space, {})
    with pytest.raises(ConfigError, match=r"the narrowest, 'a.x \+ a.y <= 0.1', is met by"):
        check_feasible_share(space, sliver)


def test_points_are_counted_up_to_a_limit() -> None:
    """By hand: 4 convs with 3 choices under one of them make 3 + 3; a rule leaves 2 + 3."""
    space: Space = {
        "model.conv": ParameterConfig(choices=("gat", "schnet", "gin", "pna")),
        "model.heads": ParameterConfig(choices=(1, 2, 4), when={"model.conv": "gat"}),
    }
    rules = read_constraints(["model.heads < 4"], space, {})
    assert count_configurations(space, (), 20) == 6
    assert count_configurations(space, rules, 20) == 5
    assert count_configurations(space, rules, 4) == 4
    assert count_configurations(LISTED, (), 1000) == 160
    for wide in (ParameterConfig(low=0.0, high=1.0), ParameterConfig(low=1, high=10**9)):
        assert count_configurations({**space, "a.x": wide}, rules, 20) == 20


def test_a_space_without_rules_is_not_looked_through() -> None:
    check_feasible_share({"a.x": ParameterConfig(low=0, high=10**12)}, ())


def test_values_are_completed_to_what_the_rules_allow() -> None:
    texts = ["model.features % model.options.heads == 0", "model.features < 50"]
    rules = read_constraints(texts, SPACE, TEMPLATE)
    plain: dict[str, Scalar] = {
        "model.conv": "gat",
        "model.features": 8,
        "model.options.heads": 1,
        "training.warmup": 0.0,
    }
    assert complete_configuration(SPACE, rules, {"model.features": 40}, plain) == {
        **plain,
        "model.features": 40,
    }
    # Of 8, 16, ... 48 three divides 24 and 48.
    result = complete_configuration(
        SPACE, rules, {"model.options.heads": 3, "model.conv": "gat"}, plain
    )
    assert result is not None
    assert result["model.features"] in (24, 48)
    assert complete_configuration(SPACE, rules, {"model.features": 64}, plain) is None
    first, second = rules
    assert find_broken_constraint(rules, {"model.features": 52, "model.options.heads": 3}) == first
    assert find_broken_constraint(rules, {"model.features": 52, "model.options.heads": 4}) == second
    assert find_broken_constraint(rules, {"model.features": 48}) is None
