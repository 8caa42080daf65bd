"""What a cost model learns, keeps and hands on."""

import json
import math
import statistics
from itertools import product

import numpy as np
import pytest

from hydragnn_hpo.errors import StorageError
from hydragnn_hpo.placement.cost_model import MOST_ROWS, CostModel, Ridge, probability_above
from hydragnn_hpo.placement.price import epoch_workload, estimate_bytes

CONVS = {"egnn": 1.8, "painn": 0.6, "schnet": 1.0, "gin": 2.5}
"""Factors that only a look at what ran can tell."""


def truth(costs, trial, width, random=None):
    """A machine that is 3 times slower, worse in large nets and at large widths than formulas."""
    price = costs.price(trial)
    factor = 3.0 * CONVS[trial.model.conv] * (trial.model.features / 32) ** 0.2 * width**0.1
    noise = math.exp(0.05 * random.standard_normal()) if random else 1.0
    return factor * noise * price.quote.seconds(width)


@pytest.fixture
def trials(make_trial):
    """48 unlike trials in a random order, each with a width."""
    made = [
        make_trial(conv, features=features, layers=layers, batch=batch)
        for conv, features, layers, batch in product(CONVS, (16, 32, 64), (2, 4), (16, 64))
    ]
    random = np.random.default_rng(3)
    return [(made[n], int(random.choice([1, 2, 4]))) for n in random.permutation(len(made))]


def errors(costs, pairs, correct=True):
    for trial, width in pairs:
        price = costs.price(trial)
        prediction = price.epoch_seconds(width) if correct else price.quote.seconds(width)
        yield abs(math.log(prediction / truth(costs, trial, width)))


def test_an_epoch_gone_wrong_is_not_held_against_others(machine, stats, make_trial):
    costs = CostModel(stats, machine)
    trial = make_trial()
    other = make_trial(features=24)
    for _ in range(3):
        costs.observe(trial, 1, 2.0 * costs.price(trial).quote.seconds(1))
    before = costs.price(other).factor
    costs.observe(trial, 1, 100.0 * costs.price(trial).quote.seconds(1))
    assert costs.price(other).factor == before


def test_a_trials_own_time_counts_at_once_among_many(machine, stats, make_trial):
    costs = CostModel(stats, machine)
    made = [make_trial(features=features) for features in range(4, 84)]
    for trial in made:
        costs.price(trial)
        costs.observe(trial, 1, costs.price(trial).quote.seconds(1))
    for features in range(84, 90):  # not each is worth a new fit
        last = make_trial(features=features)
        assert not costs.price(last).measured
        costs.observe(last, 1, 5.0)
        assert costs.price(last).epoch_seconds(1) == pytest.approx(5.0)


def test_widths_are_corrected_too(machine, stats, trials):
    costs = CostModel(stats, machine)
    for trial, width in trials[:40]:
        costs.observe(trial, width, truth(costs, trial, width))
    price = costs.price(trials[-1][0])
    trial = trials[-1][0]
    slope = price.epoch_seconds(4) / price.epoch_seconds(1)
    assert slope == pytest.approx(truth(costs, trial, 4) / truth(costs, trial, 1), rel=0.1)


def test_what_was_saved_is_known_again(machine, stats, trials, tmp_path):
    costs = CostModel(stats, machine)
    for trial, width in trials[:12]:
        costs.observe(trial, width, truth(costs, trial, width))
        costs.observe_memory(trial, width, 1.3 * costs.price(trial).quote.bytes(width))
        costs.observe_end(trial, "diverged" if trial.model.conv == "gin" else None)
    costs.save(tmp_path / "cost.json")
    again = CostModel(stats, machine)
    again.load(tmp_path / "cost.json")
    for trial, width in trials[12:]:
        old = costs.price(trial)
        new = again.price(trial)
        assert new.epoch_seconds(width) == pytest.approx(old.epoch_seconds(width))
        assert new.memory(width) == pytest.approx(old.memory(width))
        assert (new.sigma, new.fails) == pytest.approx((old.sigma, old.fails))
    assert not again.price(trials[0][0]).measured, "a trial of another campaign"
    again.save(tmp_path / "own.json")
    assert json.loads((tmp_path / "own.json").read_text())["seconds"] == [], "only what is its own"


def test_another_machine_lends_ratios_and_keeps_its_speed(machine, stats, trials, tmp_path):
    old = CostModel(stats, machine)
    for trial, width in trials:
        old.observe(trial, width, truth(old, trial, width))
    old.save(tmp_path / "cost.json")
    new = CostModel(stats, machine.model_copy(update={"name": "faster"}))
    new.load(tmp_path / "cost.json")
    pairs = [(trial, 1) for trial, _ in trials]
    first, rest = pairs[0], pairs[1:]
    assert math.exp(statistics.mean(errors(new, rest))) > 2, "its speed is not that of the other"
    new.observe(*first, 0.2 * truth(new, *first))
    for trial, width in rest:
        prediction = new.price(trial).epoch_seconds(width)
        assert prediction == pytest.approx(0.2 * truth(new, trial, width), rel=0.25), (
            "one was enough"
        )


def test_a_file_that_is_none_of_ours(tmp_path, machine, stats):
    path = tmp_path / "cost.json"
    for content in ({"format": 9}, [], {"format": 1, "seconds": [[{"x:y": 1.0}, 2.0]]}):
        path.write_text(json.dumps(content))
        with pytest.raises(StorageError, match=r"cost.json: holds no costs of this version"):
            CostModel(stats, machine).load(path)


def test_memory_is_corrected_by_what_was_taken(machine, stats, make_trial):
    costs = CostModel(stats, machine)
    trials = [make_trial(features=f, layers=n) for f in (16, 32, 48, 64) for n in (2, 3)]
    for trial in trials[:7]:
        costs.observe_memory(trial, 1, 1.5 * costs.price(trial).quote.bytes(1))
    last = trials[7]
    expected = 1.5 * estimate_bytes(epoch_workload(last, stats), machine, 1)
    assert costs.price(last).memory(1) == pytest.approx(expected, rel=0.06)


def test_out_of_memory_makes_large_trials_suspect(machine, stats, make_trial):
    trial = make_trial(micro_batches=1)
    need = estimate_bytes(epoch_workload(trial, stats), machine, 1)
    little = machine.model_copy(update={"memory_gb": 1.6 * need / 1e9})
    costs = CostModel(stats, little, max_width=1)
    alike = make_trial(micro_batches=1)
    before = costs.price(alike).fails
    for _ in range(3):
        costs.observe_end(make_trial(micro_batches=1), "out_of_memory")
    after = costs.price(alike)
    assert after.fails > before
    assert after.memory(1) > 1.6 * need, "more than there is"
    small = costs.price(make_trial(micro_batches=8, features=4))
    assert small.fails == pytest.approx(0.2 / 7, abs=1e-3), "three that did not fail by their conv"


def test_failures_by_hand(machine, stats, make_trial):
    """Four of five gins diverged, none of five painns; the prior is worth 4 trials at 5 %."""
    costs = CostModel(stats, machine)
    kept = []
    for conv, failed in [("gin", n < 4) for n in range(5)] + [("painn", False)] * 5:
        kept.append(make_trial(conv, learning_rate=1e-3))
        costs.observe_end(kept[-1], "diverged" if failed else None)
    gin, painn, all_, none = (4.2 / 9), (0.2 / 9), (4.2 / 14), (0.2 / 4)
    for conv, rate, expected in [
        ("gin", 1e-3, gin),  # all had this rate: it says nothing
        ("painn", 1e-3, painn),
        ("painn", 1.1e-3, painn),
        ("egnn", 1e-3, none),
        ("gin", 1e-1, gin * none / all_),
    ]:
        actual = costs.price(make_trial(conv, learning_rate=rate)).fails
        assert actual == pytest.approx(expected), (conv, rate)


def test_chance_of_being_above_a_limit():
    assert probability_above(1.0, 1.0, 0.3) == pytest.approx(0.5)
    assert probability_above(1.0, math.exp(0.3), 0.3) == pytest.approx(
        0.1587, abs=1e-4
    )  # one sigma
    assert probability_above(1.0, math.inf, 0.3) == 0.0


def test_commands_are_priced_by_their_values(machine):
    """A law in three values, of which the price only sees their names."""
    costs = CostModel({}, machine)
    results = []

    def takes(values, width):
        factor = {"small": 1.0, "large": 4.0}[values["size"]]
        return 20.0 * factor * (1 + values["pipeline"]) ** 0.5 * width**-0.8

    every = [
        ({"size": size, "pipeline": pipeline, "fused": fused}, width)
        for size, pipeline, fused, width in product(
            ("small", "large"), (1, 2, 4, 8), (True, False), (1, 2, 4)
        )
    ]
    random = np.random.default_rng(0)
    order = [every[n] for n in random.permutation(len(every))]
    assert costs.price_values(order[0][0], (1, 2)).widths == (1, 2)
    for values, width in order[:24]:
        costs.observe_values(values, width, takes(values, width))
    for values, width in order[24:]:
        price = costs.price_values(values, (1, 2, 4))
        results.append(abs(math.log(price.epoch_seconds(width) / takes(values, width))))
    assert statistics.median(results) < 0.15, "a factor of 4 and of 3 between them"


def test_prices_are_kept_while_nothing_new_is_known(machine, stats, make_trial):
    costs = CostModel(stats, machine)
    one = make_trial()
    other = make_trial(features=24)
    assert costs.price(one) is costs.price(one)
    before = costs.price(other)
    costs.observe(one, 1, 100.0)
    assert costs.price(other).factor > before.factor
    assert costs.price(other) is costs.price(other)


PRIORS = {"one": 2.0, "size": 1.0, "kind": 1.0}


def test_one_observation_by_hand():
    """A mean with prior N(0, 2^2), seen once with noise s: the posterior of the textbook."""
    ridge = Ridge({"one": 2.0}, noise=1.0)
    ridge.put("a", {"one": 1.0}, 3.0)
    actual = ridge.predict({"one": 1.0})
    noise = ridge.noise
    assert actual == pytest.approx(3.0 * 4.0 / (4.0 + noise**2), rel=0.1)
    spread = 1.0 / (1 / 4.0 + 1 / noise**2)
    assert ridge.sigma({"one": 1.0}) == pytest.approx(math.sqrt(noise**2 + spread), rel=0.1)


def law(random, count, noise):
    kinds = {"kind:a": 0.5, "kind:b": -0.5, "kind:c": 0.0}
    for _ in range(count):
        kind = random.choice(list(kinds))
        size = random.normal()
        value = 0.7 + 0.3 * size + kinds[kind]
        features = {"one": 1.0, "size": size, str(kind): 1.0}
        yield features, value, value + noise * random.standard_normal()


def test_a_known_law_is_found():
    random = np.random.default_rng(0)
    ridge = Ridge(PRIORS, noise=0.15)
    for key, (features, _, value) in enumerate(law(random, 200, 0.1)):
        ridge.put(key, features, value)
    errors = [ridge.predict(f) - true for f, true, _ in law(random, 100, 0.0)]
    assert statistics.pstdev(errors) < 0.03, "0.1 / sqrt(200 / 5 coefficients)"
    assert ridge.coefficient("size") == pytest.approx(0.3, abs=0.03)
    assert ridge.coefficient("kind:a") - ridge.coefficient("kind:b") == pytest.approx(1.0, abs=0.05)


def test_a_tenth_of_wild_observations_changes_little():
    random = np.random.default_rng(1)
    ridge = Ridge(PRIORS, noise=0.15)
    for key, (features, _, value) in enumerate(law(random, 200, 0.1)):
        ridge.put(key, features, value + 3.0 * (key % 10 == 0))
    errors = [ridge.predict(f) - true for f, true, _ in law(random, 100, 0.0)]
    assert statistics.median(map(abs, errors)) < 0.1, "without weights it is 0.3"


def test_the_spread_is_honest():
    """Two thirds of what comes lie within one standard deviation, after 6 and after 60."""
    for known in (6, 60):
        inside = []
        for seed in range(60):
            random = np.random.default_rng(seed)
            ridge = Ridge(PRIORS, noise=0.15)
            for key, (features, _, value) in enumerate(law(random, known, 0.15)):
                ridge.put(key, features, value)
            for features, _, value in law(random, 5, 0.15):
                inside.append(abs(ridge.predict(features) - value) < ridge.sigma(features))
        assert 0.58 < statistics.mean(inside) < 0.82


@pytest.mark.parametrize(("known", "within"), [(8, 0.1), (400, 0.03)])
def test_the_noise_is_found(known, within):
    """Whatever its first guess; five coefficients use up observations."""
    results = []
    for seed in range(40):
        random = np.random.default_rng(seed)
        ridge = Ridge({"one": 9.0, "size": 9.0, "kind": 9.0}, noise=0.3)
        for key, (features, _, value) in enumerate(law(random, known, 0.3)):
            ridge.put(key, features, value)
        features, *_ = next(law(np.random.default_rng(seed), 1, 0.0))
        results.append(ridge.noise)
        assert ridge.sigma(features) > ridge.noise
    assert statistics.mean(results) == pytest.approx(0.3, rel=within)


def test_what_was_never_seen_is_less_certain():
    ridge = Ridge(PRIORS, noise=0.1)
    for key in range(20):
        ridge.put(key, {"one": 1.0, "kind:a": 1.0}, 1.0)
    known, new = {"one": 1.0, "kind:a": 1.0}, {"one": 1.0, "kind:z": 1.0}
    assert ridge.sigma(known) < 0.3 < 1.0 < ridge.sigma(new)
    assert ridge.sigma(known | {"size": 2.0}) == pytest.approx(2.0, rel=0.01)


def test_a_later_observation_of_the_same_replaces_the_first():
    ridge = Ridge(PRIORS, noise=0.1)
    ridge.put("a", {"one": 1.0}, 9.0)
    ridge.put("a", {"one": 1.0}, 1.0)
    assert ridge.rows() == [({"one": 1.0}, 1.0)]
    assert ridge.predict({"one": 1.0}) == pytest.approx(1.0, abs=0.02)


def test_predictions_of_one_version_are_the_same():
    ridge = Ridge(PRIORS, noise=0.1)
    for key in range(100):
        ridge.put(key, {"one": 1.0}, 1.0)
    before = ridge.version
    prediction = ridge.predict({"one": 1.0})
    ridge.put(100, {"one": 1.0}, 5.0)
    assert (ridge.version, ridge.predict({"one": 1.0})) == (before, prediction), (
        "1 % is not worth a fit"
    )
    for key in range(101, 104):
        ridge.put(key, {"one": 1.0}, 5.0)
    assert ridge.version > before
    assert ridge.predict({"one": 1.0}) != prediction


def test_the_oldest_are_forgotten():
    ridge = Ridge(PRIORS, noise=0.1)
    for key in range(MOST_ROWS + 10):
        ridge.put(key, {"one": float(key)}, 1.0)
    rows = ridge.rows()
    assert len(rows) == MOST_ROWS
    assert rows[0][0]["one"] == 10.0
