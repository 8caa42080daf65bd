"""Selection against brute force over all draws, and its floor."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from hydragnn_hpo.config.model_config import ModelConfig
from hydragnn_hpo.config.trial_size import forward_flops
from hydragnn_hpo.data.store_access import open_store
from hydragnn_hpo.ensemble.artefact import read_artefact
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.ensemble_build.build import build_ensemble
from hydragnn_hpo.ensemble_build.candidates import flops_per_graph, open_build_context
from hydragnn_hpo.ensemble_build.member_selection import (
    BAGS,
    MOST,
    ScoredHead,
    Terms,
    add_price,
    average_bags,
    choose_method,
    compute_diversity,
    compute_errors,
    compute_size_curves,
    greedy_order,
    loss,
    make_scored_heads,
    select_greedy,
    select_members,
    select_top_k,
    weigh_alone,
    weigh_by_loss,
    weigh_members,
)
from hydragnn_hpo.layout import RunDir


def heads_of(seed: int, candidates: int, rows: int = 12) -> list[ScoredHead]:
    rng = np.random.default_rng(seed)
    heads = []
    for width, weight in ((1, 0.75), (3, 0.25)):
        truth = rng.normal(size=(rows, width))
        predictions = truth + rng.normal(size=(candidates, rows, width))
        heads.append(ScoredHead(predictions, truth, weight, np.arange(rows) // 3))
    return heads


def test_ties_go_to_the_earlier_candidate():
    heads = heads_of(3, candidates=6)
    for head in heads:
        head.predictions[:] = head.predictions[0]

    np.testing.assert_array_equal(select_greedy(heads, Terms(9)), np.eye(6)[0])
    np.testing.assert_array_equal(select_top_k([0.5, 0.3, 0.3, 0.3], 2), [0, 0.5, 0.5, 0])
    np.testing.assert_array_equal(select_top_k([0.5, 0.3], 5), [0.5, 0.5])


def obvious_greedy(heads: list[ScoredHead], terms: Terms) -> np.ndarray:
    """Draw by looking at every candidate and writing every rule out."""
    candidates = len(heads[0].predictions)
    drawn = list[int]()
    seen = []
    costs = terms.costs or [1.0] * candidates
    for _ in range(terms.rounds):
        scores = {}
        for c in range(candidates):
            mix = np.bincount([*drawn, c], minlength=candidates) / (len(drawn) + 1)
            doublings = np.log2(sum(costs[m] for m in {*drawn, c}))
            scores[c] = loss(heads, mix) * (1 + terms.price) ** doublings
        drawn.append(min(scores, key=lambda c: (scores[c], c)))
        seen.append((scores[drawn[-1]], np.bincount(drawn, minlength=candidates) / len(drawn)))
    return min(seen, key=lambda pair: pair[0])[1]


@given(
    seed=st.integers(0, 10_000),
    rounds=st.integers(1, 9),
    price=st.sampled_from([0.0, 0.01, 0.1, 1.0]),
    costs=st.lists(st.floats(0.5, 50.0), min_size=6, max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_greedy_equals_a_slow_obvious_loop(seed, rounds, price, costs):
    heads = heads_of(seed, candidates=6)
    terms = Terms(rounds, price, costs)
    np.testing.assert_allclose(
        select_greedy(heads, terms), obvious_greedy(heads, terms), atol=1e-15
    )


def test_a_price_of_one_percent_pays_one_percent_of_the_loss_for_half_the_cost():
    assert add_price(1.01, cost=5.0, price=0.01) == pytest.approx(
        add_price(1.0, cost=10.0, price=0.01)
    )
    assert add_price(1.01**3, cost=1.0, price=0.01) == pytest.approx(
        add_price(1.0, cost=8.0, price=0.01)
    )
    assert add_price(0.7, cost=1e12, price=0.0) == 0.7


def test_bags_are_greedy_selections_on_groups_drawn_with_replacement():
    heads = heads_of(5, candidates=4)  # 12 rows in 4 groups of 3
    rng = np.random.default_rng(0)
    total = np.zeros(4)
    for _ in range(BAGS):
        rows = [row for group in rng.integers(4, size=4) for row in range(3 * group, 3 * group + 3)]
        sample = [ScoredHead(h.predictions[:, rows], h.truth[rows], h.weight, rows) for h in heads]
        total += obvious_greedy(sample, Terms())
    np.testing.assert_allclose(average_bags(heads), total / BAGS, atol=1e-15)


def one_head(errors: np.ndarray, group: np.ndarray | None = None) -> ScoredHead:
    """Return a head with the truth 0 and these predictions, [C, R], each row its own group."""
    rows = errors.shape[1]
    group = np.arange(rows) if group is None else group
    return ScoredHead(errors[..., None], np.zeros((rows, 1)), 1.0, group)


def test_a_candidate_is_as_good_as_the_best_by_its_standard_errors():
    # Losses 1 and 1.5; the differences 0.4, 0.6 by group have the standard error 0.1: z = 5.
    head = one_head(np.array([[1.0, 1.0, 1.0, 1.0], [1.3, 1.5, 1.6, 1.6]]), np.array([0, 0, 1, 1]))
    other = np.exp(-12.5) / 1.5**2  # times the inverse square of the losses
    np.testing.assert_allclose(weigh_by_loss([head])[1], other / (1 + other), rtol=1e-9)
    always_worse = one_head(np.array([[1.0, 2.0], [1.5, 2.5], [1.0, 2.0]]))
    np.testing.assert_allclose(weigh_by_loss([always_worse]), [0.5, 0, 0.5])
    in_one_group = one_head(np.array([[1.0, 2.0], [1.5, 9.0]]), np.array([7, 7]))
    # No standard error in one group; losses 1.5 and 5.25 remain.
    np.testing.assert_allclose(weigh_by_loss([in_one_group]), [12.25 / 13.25, 1 / 13.25])
    perfect = one_head(np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]))
    np.testing.assert_allclose(weigh_by_loss([perfect]), [0.5, 0.5, 0.0])


def test_a_member_of_nearly_twice_the_error_never_has_an_equal_weight():
    """Errors .058 and .108 in eight groups that scatter too much to tell them apart: z = .46."""
    good = [0.4, *[0.064 / 7] * 7]
    weak = [*[0.02] * 7, 0.724]
    weights = weigh_alone([one_head(np.array([good, weak]))], rounds=12)
    assert weights[1] < 0.3


@pytest.mark.parametrize("groups", [12, 40, 1000])
def test_alike_members_share_the_weight_and_a_weak_one_gets_none(groups):
    rng = np.random.default_rng(groups)
    errors = rng.normal(size=(5, groups))
    errors[4] *= 5.0  # as .82 and 3.97 eV of members that had the same weight
    weights = weigh_alone([one_head(errors)], rounds=12)
    assert weights[4] == 0.0
    assert weights[:4].max() < 0.5
    assert weights[:4].min() > 0.05


def test_members_for_the_spread_alone_cost_little_or_are_left_out():
    rng = np.random.default_rng(0)
    best = rng.normal(size=400)
    errors = np.stack([best, best + 0.1 * np.abs(best) * np.sign(best), 100.0 * best, 1.1 * best])
    weights = weigh_alone([one_head(errors)], rounds=12)
    # A share of 5 % of a member that is 10 % worse costs 0.5 %; of one 100 times worse, 495 %.
    np.testing.assert_allclose(weights, [0.95**2, 0.95 * 0.05, 0, 0.05], atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_each_head_weighs_the_members_by_its_own_errors(seed):
    heads = heads_of(seed, candidates=7)
    results = weigh_members(heads, Terms(10), 5)
    taken = np.flatnonzero(np.any(results, axis=0))
    assert len(taken) <= 5
    for weights in results:
        assert weights.sum() == pytest.approx(1.0)
        assert not np.delete(weights, taken).any()
    assert not np.array_equal(*results)
    shared = weigh_members(heads, Terms(10), 5, per_head=False)
    np.testing.assert_array_equal(*shared)


def test_a_candidate_that_one_head_needs_is_a_member():
    """Both heads count alike, however large their errors are."""
    rng = np.random.default_rng(2)
    one, other = rng.normal(size=(2, 4, 300))
    one[3], other[:3] = 20.0 * one[3], 20.0 * other[:3]
    result = weigh_members([one_head(one), one_head(100.0 * other)], Terms(), 4)
    assert result[0][3] == 0.0
    assert result[1][3] > 0.9


MEMBERS = [f"t000{number}" for number in range(7)]


@given(
    seed=st.integers(0, 10_000),
    members=st.integers(1, 7),
    rows=st.integers(1, 20),
    width=st.sampled_from([1, 3]),
)
def test_the_error_of_the_mix_is_the_mean_error_less_the_ambiguity(seed, members, rows, width):
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(rows, width))
    predictions = truth + rng.normal(size=(members, rows, width))
    weights = rng.dirichlet(np.ones(members))

    seen = compute_diversity(MEMBERS[:members], predictions, truth, weights)

    slow = np.mean([np.sum((weights @ predictions[:, r] - truth[r]) ** 2) for r in range(rows)])
    assert seen["mse"] == pytest.approx(slow, rel=1e-9)
    assert seen["mse"] == pytest.approx(
        seen["mean_member_mse"] - seen["ambiguity"], rel=1e-9, abs=1e-12
    )
    assert seen["ambiguity"] >= 0.0


def test_two_members_that_err_against_each_other():
    truth = np.zeros((4, 1))
    errors = np.array([1.0, -1.0, 1.0, -1.0])[:, None]
    seen = compute_diversity(MEMBERS[:2], np.stack([errors, -errors]), truth, np.array([0.5, 0.5]))
    assert (seen["mse"], seen["mean_member_mse"], seen["ambiguity"]) == (0.0, 1.0, 1.0)
    assert seen["correlation"] == pytest.approx(np.array([[1.0, -1.0], [-1.0, 1.0]]))
    assert seen["mean_correlation"] == pytest.approx(-1.0)


def test_the_correlation_is_numpys():
    rng = np.random.default_rng(3)
    truth = rng.normal(size=(30, 1))
    errors = 2.0 + rng.normal(size=(4, 30, 1))
    seen = compute_diversity(MEMBERS[:4], truth + errors, truth, np.full(4, 0.25))
    expected = np.corrcoef(errors[..., 0])
    np.testing.assert_allclose(seen["correlation"], expected, atol=1e-12)
    assert seen["mean_correlation"] == pytest.approx(expected[np.triu_indices(4, 1)].mean())


def test_members_that_never_err_are_alike_and_one_alone_has_no_pair():
    truth = np.ones((3, 1))
    both = compute_diversity(MEMBERS[:2], np.stack([truth, truth]), truth, np.array([0.5, 0.5]))
    assert both["correlation"] == [[1.0, 1.0], [1.0, 1.0]]
    assert (
        compute_diversity(MEMBERS[:1], truth[None], truth, np.ones(1))["mean_correlation"] is None
    )


def test_the_method_is_greedy_unless_the_campaign_says_one():
    assert choose_method("auto", 50)[0] == "greedy"
    assert "50 independent groups, so their errors count 50%" in choose_method("auto", 50)[1]
    assert choose_method("greedy", 1) == ("greedy", "the campaign says ensemble.method = 'greedy'")
    assert choose_method("top", 10**6)[0] == "top"


def test_rows_of_val_and_sel_follow_one_another_with_their_groups(make_run):
    context = open_build_context(RunDir(make_run(trials=2)))
    heads = make_scored_heads(context, ("val", "sel"))
    indices = np.concatenate([context.graphs.indices_of(split) for split in ("val", "sel")])
    np.testing.assert_array_equal(heads["energy"].group, context.graphs.group[indices])
    truth = np.concatenate([context.truth("energy", split)[0] for split in ("val", "sel")])
    np.testing.assert_array_equal(heads["energy"].truth, truth)
    stored = [context.stored(split)["energy"] for split in ("val", "sel")]
    np.testing.assert_array_equal(heads["energy"].predictions, np.concatenate(stored, axis=1))


def test_heads_weigh_members_differently_in_the_zip_and_its_predictions(make_run):
    run = make_run(method="greedy", members=5)
    table = build_ensemble(run)

    manifest = read_artefact(run / "ensemble.zip").manifest

    assert 4 <= len(manifest.members) <= 5
    by_head = {
        head: {m.trial: m.weights[head] for m in manifest.members if head in m.weights}
        for head in manifest.heads
    }
    assert by_head["energy"] != by_head["charge"]
    for shares in by_head.values():
        assert len(shares) >= 4
        assert sum(shares.values()) == pytest.approx(1.0)
    for head, alike in manifest.diversity.items():
        seen = table["diversity"][head]
        assert sorted(seen["members"]) == sorted(by_head[head])
        assert alike.rmse**2 == pytest.approx(seen["mse"])
        assert alike.member_rmse**2 == pytest.approx(seen["mean_member_mse"])
    ensemble = Ensemble.load(run / "ensemble.zip")
    columns = open_store(run / "data/toy.bp")
    test = columns.indices_of("test")
    prediction = ensemble.predict(columns, test).heads["energy"]
    truth = columns.targets["energy"][test]
    assert np.abs(prediction.mean - truth).mean() == pytest.approx(
        table["heads"]["energy"]["test_mae_greedy"], rel=1e-6
    )
    assert table["method"] == "greedy"


def test_one_set_of_weights_for_all_heads_where_the_campaign_wants_it(make_run):
    build_ensemble(run := make_run(method="greedy", per_head=False))
    for member in read_artefact(run / "ensemble.zip").manifest.members:
        assert len(set(member.weights.values())) == 1
        assert set(member.weights) == {"energy", "charge"}


def test_every_way_is_reported_with_its_errors_and_its_cost_on_sel(make_run):
    context = open_build_context(RunDir(make_run()))
    choice = select_members(context)
    stored = context.stored("sel")
    seen = choice.selection
    truth, mask = context.truth("energy", "sel")
    targets = context.graphs.stats["targets"]
    for method, weights in [*choice.weights.items(), ("single", {"energy": np.eye(6)[0]})]:
        mix = sum(w * s for w, s in zip(weights["energy"], stored["energy"], strict=True))
        expected = np.abs(mix - truth)[mask].mean()
        errors = seen[method]["sel_mae"]
        assert errors["energy"] == pytest.approx(expected)
        shares = {"energy": 2 / 3, "charge": 1 / 3}  # weights 2 and 1 of the campaign
        parts = [shares[name] * errors[name] / targets[name]["std"] for name in shares]
        assert seen[method]["sel_loss"] == pytest.approx(sum(parts))
    flops = [flops_per_graph(c.config.model, context.graphs.stats) for c in context.candidates]
    assert seen["single"]["flops_per_graph"] == flops[0]
    assert seen["top"]["flops_per_graph"] == pytest.approx(sum(flops))


def test_a_high_price_leaves_the_floor_of_members_and_none_fills_the_set(make_run):
    run = make_run(method="greedy", members=5, price=1.0)
    path = run / "campaign.toml"
    cheap = select_members(open_build_context(RunDir(run))).selection["greedy"]
    path.write_text(path.read_text().replace("price = 1.0", "price = 0.0"))

    table = build_ensemble(run)

    taken = {m for seen in table["diversity"].values() for m in seen["members"]}
    assert taken == {m["trial"] for m in table["selection"]["greedy"]["members"]}
    assert (len(cheap["members"]), len(taken)) == (4, 5)
    assert cheap["flops_per_graph"] < table["selection"]["greedy"]["flops_per_graph"]


def test_the_cost_of_a_structure_is_that_of_the_mean_structure():
    model = ModelConfig(conv="schnet", features=16, layers=2, cutoff=3.0)
    # Two kinds of atoms in one shell: 12 neighbours within 3 angstrom, 10 atoms on average.
    stats = {"nodes": {"mean": 10.0}, "degree": {"3.0": 12.0}}
    assert flops_per_graph(model, stats) == forward_flops(model, 10.0, 120.0)
    capped = model.model_copy(update={"max_neighbors": 5})
    assert flops_per_graph(capped, stats) == forward_flops(capped, 10.0, 50.0)


def test_means_grow_by_one_member_at_a_time():
    # Errors of +3 and -1 cancel to 1; those of 2 and 2 do not.
    sel = {"e": one_head(np.array([[3.0, 3.0], [2.0, 2.0], [-1.0, -1.0]]))}
    test = {"e": one_head(np.array([[4.0], [0.0]]))}  # said by candidates 1 and 0, in that order

    result = compute_size_curves(sel, [0.1, 0.2, 0.3], ["a", "b", "c"], ([1, 0], test))

    assert [s["added"] for s in result["top"]] == ["a", "b", "c"]
    assert [s["sel_mae"]["e"] for s in result["top"]] == pytest.approx([3.0, 2.5, 4 / 3])
    assert [s["test_mae"] and s["test_mae"]["e"] for s in result["top"]] == [0.0, 2.0, None]
    # Greedily: -1 first; then 2 gives a mean of 0.5, 3 of 1.
    assert [s["added"] for s in result["greedy"]] == ["c", "b", "a"]
    assert [s["sel_mae"]["e"] for s in result["greedy"]] == pytest.approx([1.0, 0.5, 4 / 3])
    assert [s["test_mae"] for s in result["greedy"]] == [None, None, None]
    assert compute_errors(sel, [2]) == {"e": 1.0}


def test_the_greedy_order_is_that_of_a_slow_search():
    rng = np.random.default_rng(4)
    heads = [
        ScoredHead(rng.normal(size=(6, 9, 2)), rng.normal(size=(9, 2)), 0.7, np.arange(9)),
        ScoredHead(rng.normal(size=(6, 4, 1)), rng.normal(size=(4, 1)), 2.0, np.arange(4)),
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


def test_equal_candidates_come_in_their_order_and_sizes_end_somewhere():
    same = {"e": one_head(np.ones((MOST + 5, 1)))}
    names = [f"t{number}" for number in range(MOST + 5)]
    result = compute_size_curves(
        same, [0.0] * (MOST + 5), names, ([], {"e": one_head(np.zeros((1, 1)))})
    )
    for method in ("top", "greedy"):
        assert [s["added"] for s in result[method]] == names[:MOST]


def test_the_table_tells_of_every_size_and_asks_no_new_model_about_test(make_run):
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


def test_curves_and_sigmas_are_left_for_the_report(built_run):
    run, _ = built_run
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
