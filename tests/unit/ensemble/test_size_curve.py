"""The error against the number of members: means counted by hand, and who may be asked."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from hydragnn_hpo.ensemble.build import MOST, build_ensemble, compute_size_curves, errors_alone
from hydragnn_hpo.ensemble.select import ScoredHead, greedy_order

Make = Callable[..., Path]


def head(*errors: list[float], weight: float = 1.0) -> ScoredHead:
    """Make a head whose truth is zero: predictions are errors."""
    predictions = np.array(errors)[..., None]
    return ScoredHead(predictions, np.zeros(predictions.shape[1:]), weight)


def test_means_grow_by_one_member_at_a_time() -> None:
    # Errors of +3 and -1 cancel to 1; those of 2 and 2 do not.
    sel = {"e": head([3.0, 3.0], [2.0, 2.0], [-1.0, -1.0])}
    test = {"e": head([4.0], [0.0])}  # said by candidates 1 and 0, in that order

    found = compute_size_curves(sel, [0.1, 0.2, 0.3], ([1, 0], test))

    assert [s["added"] for s in found["top"]] == [0, 1, 2]
    assert [s["sel_mae"]["e"] for s in found["top"]] == pytest.approx([3.0, 2.5, 4 / 3])
    assert [s["test_mae"] and s["test_mae"]["e"] for s in found["top"]] == [0.0, 2.0, None]
    # Greedily: -1 first; then 2 gives a mean of 0.5, 3 of 1.
    assert [s["added"] for s in found["greedy"]] == [2, 1, 0]
    assert [s["sel_mae"]["e"] for s in found["greedy"]] == pytest.approx([1.0, 0.5, 4 / 3])
    assert [s["test_mae"] for s in found["greedy"]] == [None, None, None]
    assert errors_alone(sel, 2) == {"e": 1.0}


def test_the_greedy_order_is_that_of_a_slow_search() -> None:
    rng = np.random.default_rng(4)
    heads = [
        ScoredHead(rng.normal(size=(6, 9, 2)), rng.normal(size=(9, 2)), 0.7),
        ScoredHead(rng.normal(size=(6, 4, 1)), rng.normal(size=(4, 1)), 2.0),
    ]

    def loss(members: list[int]) -> float:
        return sum(
            h.weight * np.abs(np.mean([h.predictions[m] for m in members], axis=0) - h.truth).mean()
            for h in heads
        )

    slow: list[int] = []
    for _ in range(5):
        slow.append(min((c for c in range(6) if c not in slow), key=lambda c: loss([*slow, c])))
    assert greedy_order(heads, 5) == slow


def test_equal_candidates_come_in_their_order_and_sizes_end_somewhere() -> None:
    same = {"e": head(*[[1.0]] * (MOST + 5))}
    found = compute_size_curves(same, [0.0] * (MOST + 5), ([], {"e": head([0.0])}))
    for method in ("top", "greedy"):
        assert [s["added"] for s in found[method]] == list(range(MOST))


def test_the_table_tells_of_every_size_and_asks_no_new_model_about_test(make_run: Make) -> None:
    build_ensemble(run := make_run(method="top", members=3))
    table = json.loads((run / "report/ensemble.json").read_text())

    top = table["by_size"]["top"]
    assert [size["members"] for size in top] == list(range(1, 7))
    assert [size["added"] for size in top[:3]] == [m["trial"] for m in table["members"]]
    for name, scores in table["heads"].items():
        assert top[0]["test_mae"][name] == pytest.approx(scores["single_mae"])
        assert top[2]["test_mae"][name] == pytest.approx(scores["test_mae"])
        assert top[2]["sel_mae"][name] == pytest.approx(table["selection"]["top"]["sel_mae"][name])
        assert table["candidates"][0]["sel_mae"][name] == pytest.approx(top[0]["sel_mae"][name])
    kept = {m["trial"] for method in ("top", "greedy") for m in members(table, method)}
    for sizes in table["by_size"].values():
        joined = itertools.accumulate(([size["added"]] for size in sizes), list.__add__)
        for size, trials in zip(sizes, joined, strict=True):
            assert (size["test_mae"] is not None) == (set(trials) <= kept)


def members(table: dict, method: str) -> list[dict]:
    return table["selection"][method]["members"]


def test_curves_and_sigmas_are_left_for_the_report(make_run: Make) -> None:
    build_ensemble(run := make_run())
    table = json.loads((run / "report/ensemble.json").read_text())
    arrays = load_file(run / "report/test_predictions.safetensors")
    for name, scores in table["heads"].items():
        error = np.abs(arrays[f"{name}/truth"] - arrays[f"{name}/mean"])
        assert (error <= arrays[f"{name}/half90"]).mean() == pytest.approx(scores["coverage90"])
        sigma = arrays[f"{name}/sigma"]
        assert np.sqrt((sigma**2).mean()) == pytest.approx(scores["sharpness"])
        raw = np.broadcast_to(arrays[f"{name}/raw_sigma"], error.shape)
        assert np.sqrt((raw**2).mean()) == pytest.approx(scores["raw_sharpness"])
        curves = table["curves"][name]
        inside = dict(
            zip(curves["conformal"]["level"], curves["conformal"]["covered"], strict=True)
        )
        assert inside[0.9] == pytest.approx(scores["coverage90"])
        promised = curves["calibration"]["level"].index(0.9)
        assert curves["calibration"]["raw"][promised] == pytest.approx(scores["raw_coverage90"])
