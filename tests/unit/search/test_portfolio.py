"""A portfolio's entries are moved into a space, or skipped where it has no such net."""

import tomllib
from pathlib import Path
from typing import get_args

import pytest

from hydragnn_hpo.config.search_config import ParameterConfig, Scalar, Space
from hydragnn_hpo.search.portfolio import (
    PORTFOLIOS,
    Kind,
    choose_points,
    find_nearest_value,
    fit_to_space,
)

SPACE: Space = {
    "model.conv": ParameterConfig(choices=("painn", "et")),
    "model.features": ParameterConfig(choices=(16, 32)),
    "model.layers": ParameterConfig(low=2, high=3),
    "model.cutoff": ParameterConfig(low=3.0, high=4.0, step=0.25),
    "model.options.heads": ParameterConfig(choices=(1, 4), when={"model.conv": "et"}),
}
ENTRY: dict[str, Scalar] = {
    "model.conv": "painn",
    "model.features": 96,
    "model.layers": 0,
    "model.cutoff": 4.75,
    "training.learning_rate": 0.004,
    "model.options.heads": 8,
}


def test_values_move_to_the_nearest_of_the_space_and_others_are_left_out() -> None:
    moved = {"model.conv": "painn", "model.features": 32, "model.layers": 2, "model.cutoff": 4.0}
    assert fit_to_space(ENTRY, SPACE) == moved
    other = fit_to_space(ENTRY | {"model.conv": "et"}, SPACE)
    assert other == moved | {"model.conv": "et", "model.options.heads": 4}


@pytest.mark.parametrize(
    "values", [{"model.conv": "gat"}, {"model.embedding": "chgnet"}], ids=["conv", "features"]
)
def test_an_entry_with_another_net_is_skipped(values: dict[str, Scalar]) -> None:
    assert fit_to_space(ENTRY | values, SPACE) is None
    offered = SPACE | {"model.embedding": ParameterConfig(choices=("elements", "sevennet"))}
    assert fit_to_space(ENTRY | values, offered) is None


def test_an_entry_without_features_begins_from_elements() -> None:
    offered = SPACE | {"model.embedding": ParameterConfig(choices=("chgnet", "elements"))}
    assert (fit_to_space(ENTRY, offered) or {})["model.embedding"] == "elements"
    assert fit_to_space(ENTRY | {"model.embedding": "elements"}, SPACE) is not None


@pytest.mark.parametrize(
    ("parameter", "value", "nearest"),
    [
        (ParameterConfig(low=1e-3, high=1e-2, log=True), 0.05, 0.01),
        (ParameterConfig(low=1, high=5), 3, 3),
        (ParameterConfig(choices=(16, 64)), 20, 16),
        (ParameterConfig(choices=(True, False)), False, False),
        (ParameterConfig(choices=("silu", "ssp")), "softplus", None),
        (ParameterConfig(choices=("silu", "ssp")), 3, None),
        (ParameterConfig(choices=(1, 2)), True, None),
        (ParameterConfig(choices=(True, False)), 3, None),
    ],
)
def test_the_nearest_value(
    parameter: ParameterConfig, value: Scalar, nearest: Scalar | None
) -> None:
    found = find_nearest_value(parameter, value)
    assert (found, type(found)) == (nearest, type(nearest))


def test_points_are_unlike_and_the_first_that_the_space_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = [f'[[elements]]\n"model.conv" = "{conv}"\n' for conv in ("gat", "et", "et", "painn")]
    (tmp_path / "portfolio.toml").write_text("".join(blocks))
    monkeypatch.setattr("hydragnn_hpo.search.portfolio.PORTFOLIOS", tmp_path / "portfolio.toml")
    points = choose_points("elements", SPACE, 4)
    assert points == [{"model.conv": "et"}, {"model.conv": "painn"}]
    assert choose_points("elements", SPACE, 1) == points[:1]


def test_what_is_shipped_has_12_entries_or_more_over_several_convs() -> None:
    shipped = tomllib.loads(PORTFOLIOS.read_text())
    assert set(shipped) == set(get_args(Kind))
    for entries in shipped.values():
        assert len({tuple(sorted(entry.items())) for entry in entries}) == len(entries) >= 12
        assert len({entry["model.conv"] for entry in entries}) >= 3
