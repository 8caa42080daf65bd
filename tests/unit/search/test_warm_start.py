"""Which results of earlier campaigns fit, and why others do not."""

import math

from hydragnn_hpo.config.search_config import ParameterConfig, Space
from hydragnn_hpo.search.brain import select_warm_start

SPACE: Space = {
    "model.conv": ParameterConfig(choices=("schnet", "egnn")),
    "model.features": ParameterConfig(low=16, high=64, step=16),
    "model.cutoff": ParameterConfig(low=3.0, high=6.0),
    "model.options.filters": ParameterConfig(choices=(8, 16), when={"model.conv": "schnet"}),
}
EGNN = {"model.conv": "egnn", "model.features": 32, "model.cutoff": 4.5}
SCHNET = {**EGNN, "model.conv": "schnet", "model.options.filters": 16}


def test_rows_that_fit_are_kept_with_the_types_of_the_space() -> None:
    far = {**SCHNET, "model.cutoff": 6.0}
    inactive = {**EGNN, "model.options.filters": 8}
    rows = [
        (far, 0.4),
        ({**EGNN, "model.features": 32.0, "model.cutoff": 3}, None),
        (inactive, 0.1),
    ]
    kept, skipped = select_warm_start(SPACE, (), rows)
    assert kept == [(far, 0.4), ({**EGNN, "model.cutoff": 3.0}, None), (EGNN, 0.1)]
    assert [type(value) for value in kept[1][0].values()] == [str, int, float]
    assert skipped == {}


def test_each_cause_of_skipping_is_counted() -> None:
    rows = [
        ({**EGNN, "model.cutoff": 6.5}, 0.1),
        ({**EGNN, "model.cutoff": 2.0}, 0.2),
        ({**EGNN, "model.features": 40}, 0.3),
        ({**EGNN, "model.conv": "gin"}, 0.4),
        ({**EGNN, "model.cutoff": math.nan}, 0.4),
        ({**EGNN, "model.cutoff": "far"}, 0.4),
        ({**EGNN, "model.conv": "schnet"}, 0.5),
        ({"model.conv": "egnn"}, 0.6),
        ({**EGNN, "model.layers": 3}, 0.7),
        (EGNN, 0.8),
        (dict(reversed(EGNN.items())), 0.9),
        ({**EGNN, "model.features": 64}, 1.0),
    ]
    kept, skipped = select_warm_start(SPACE, ["model.features * 2 < 100"], rows)
    assert kept == [(EGNN, 0.8)]
    assert skipped == {
        "'model.cutoff' is outside its range": 4,
        "'model.features' is outside its range": 1,
        "'model.conv' is outside its range": 1,
        "lacks a searched key": 2,
        "'model.layers' is not searched here": 1,
        "is there already": 1,
        "breaks 'model.features * 2 < 100'": 1,
    }
    assert sum(skipped.values()) + len(kept) == len(rows)


def test_a_key_that_is_fixed_at_the_same_value_is_not_foreign() -> None:
    template = {"model": {"layers": 3}}
    rows = [({**EGNN, "model.layers": 3}, 0.1), ({**EGNN, "model.layers": 4}, 0.2)]
    kept, skipped = select_warm_start(SPACE, (), rows, template)
    assert kept == [(EGNN, 0.1)]
    assert skipped == {"'model.layers' is not searched here": 1}
