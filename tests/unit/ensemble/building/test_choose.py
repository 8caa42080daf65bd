"""Which members a run gives, which way is kept, and what the zip says of weights by head."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hydragnn_hpo.config.counting import forward_flops
from hydragnn_hpo.config.model import ModelConfig
from hydragnn_hpo.data.store.staging import open_store
from hydragnn_hpo.ensemble.artefact import archive
from hydragnn_hpo.ensemble.artefact.model_card import model_card
from hydragnn_hpo.ensemble.building.bench import flops_per_graph, open_bench
from hydragnn_hpo.ensemble.building.build import build_ensemble
from hydragnn_hpo.ensemble.building.choose import ENOUGH, choose, method_of
from hydragnn_hpo.ensemble.inference import Ensemble
from hydragnn_hpo.layout import RunDir

Make = Callable[..., Path]


def test_the_method_follows_the_number_of_groups_unless_the_campaign_says_one() -> None:
    assert method_of("auto", ENOUGH)[0] == "greedy"
    assert method_of("auto", ENOUGH - 1)[0] == "top"
    assert "12 independent groups, fewer than" in method_of("auto", 12)[1]
    assert method_of("greedy", 1) == ("greedy", "the campaign says ensemble.method = 'greedy'")
    assert method_of("top", 10**6)[0] == "top"


def test_groups_are_counted_once(make_run: Make) -> None:
    bench = open_bench(RunDir(make_run(trials=2)))
    indices = bench.graphs.indices_of("sel")
    for name in bench.targets:
        groups = bench.graphs.group[indices]
        assert bench.groups(name, "sel") == len(set(groups.tolist()))


def test_heads_weigh_members_differently_in_the_zip_and_its_predictions(make_run: Make) -> None:
    run = make_run(method="greedy", members=5)
    table = build_ensemble(run)

    manifest = archive.read(run / "ensemble.zip").manifest

    assert 4 <= len(manifest.members) <= 5
    by_head = {
        head: {m.trial: m.weights[head] for m in manifest.members if head in m.weights}
        for head in manifest.heads
    }
    assert by_head["energy"] != by_head["charge"]
    for shares in by_head.values():
        assert len(shares) >= 4
        assert sum(shares.values()) == pytest.approx(1.0)
    ensemble = Ensemble.load(run / "ensemble.zip")
    columns = open_store(run / "data/toy.bp")
    test = columns.indices_of("test")
    said = ensemble.predict(columns, test).heads["energy"]
    truth = columns.targets["energy"][test]
    assert np.abs(said.mean - truth).mean() == pytest.approx(
        table["heads"]["energy"]["test_mae_greedy"], rel=1e-6
    )
    assert table["method"] == "greedy"


def test_one_set_of_weights_for_all_heads_where_the_campaign_wants_it(make_run: Make) -> None:
    build_ensemble(run := make_run(method="greedy", per_head=False))
    for member in archive.read(run / "ensemble.zip").manifest.members:
        assert len(set(member.weights.values())) == 1
        assert set(member.weights) == {"energy", "charge"}


def test_every_way_is_told_with_its_errors_and_its_cost_on_sel(make_run: Make) -> None:
    bench = open_bench(RunDir(make_run()))
    choice = choose(bench)
    stored, seen = bench.stored("sel"), choice.selection
    truth, mask = bench.truth("energy", "sel")
    for method, weights in [*choice.weights.items(), ("single", {"energy": np.eye(6)[0]})]:
        mix = sum(w * s for w, s in zip(weights["energy"], stored["energy"], strict=True))
        expected = np.abs(mix - truth)[mask].mean()
        assert seen[method]["sel_mae"]["energy"] == pytest.approx(expected)
    flops = [flops_per_graph(c.config.model, bench.graphs.stats) for c in bench.candidates]
    assert seen["single"]["flops_per_graph"] == flops[0]
    assert seen["top"]["flops_per_graph"] == pytest.approx(sum(flops))


def test_a_high_price_leaves_the_floor_of_cheapest_members(make_run: Make) -> None:
    run = make_run(method="greedy", price=1.0)
    bench = open_bench(RunDir(run))
    flops = [flops_per_graph(c.config.model, bench.graphs.stats) for c in bench.candidates]

    told = choose(bench).selection["greedy"]

    assert len(told["members"]) == 4
    nearly_free = open_bench(RunDir(make_campaign(run, price=1e-9)))
    assert told["flops_per_graph"] < choose(nearly_free).selection["greedy"]["flops_per_graph"]
    assert told["flops_per_graph"] < sum(flops)


def test_without_a_price_the_set_is_filled_up(make_run: Make) -> None:
    table = build_ensemble(make_run(method="greedy", members=5))
    taken = {m for seen in table["diversity"].values() for m in seen["members"]}
    assert taken == {m["trial"] for m in table["selection"]["greedy"]["members"]}
    assert len(taken) == 5


def make_campaign(run: Path, price: float) -> Path:
    path = run / "campaign.toml"
    text = path.read_text()
    path.write_text(text.replace("price = 1.0", f"price = {price}"))
    return run


def test_the_cost_of_a_structure_is_that_of_the_mean_structure() -> None:
    model = ModelConfig(conv="schnet", features=16, layers=2, cutoff=3.0)
    # Two kinds of atoms in one shell: 12 neighbours within 3 angstrom, 10 atoms on average.
    stats = {"nodes": {"mean": 10.0}, "degree": {"3.0": 12.0}}
    assert flops_per_graph(model, stats) == forward_flops(model, 10.0, 120.0)
    capped = model.model_copy(update={"max_neighbors": 5})
    assert flops_per_graph(capped, stats) == forward_flops(capped, 10.0, 50.0)


def test_diversity_is_told_by_head_with_the_names_of_its_members(make_run: Make) -> None:
    table = build_ensemble(make_run(method="greedy"))
    weights = {m["trial"]: m["weights"] for m in table["members"]}
    content = archive.read(Path(table["path"]))
    card = model_card(content.manifest, content.configs)
    for head, kept in content.manifest.diversity.items():
        assert kept.rmse**2 == pytest.approx(table["diversity"][head]["mse"])
        assert f"| `{head}` | {kept.correlation:.4g} | {kept.member_rmse:.4g} |" in card
    for head, seen in table["diversity"].items():
        assert sorted(seen["members"]) == sorted(t for t, w in weights.items() if head in w)
        assert np.shape(seen["correlation"]) == (len(seen["members"]),) * 2
        assert seen["mse"] == pytest.approx(seen["mean_member_mse"] - seen["ambiguity"])
