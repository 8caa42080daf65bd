"""The starter campaign is one: it parses, its corners are valid, and it asks what convs can do."""

import tomllib

import pytest

from hydragnn_hpo.campaign.chosen_values import complete_initial_points
from hydragnn_hpo.campaign.setup import check_corners, check_search, facts_of_cards, find_trunks
from hydragnn_hpo.config.campaign_config import CampaignConfig
from hydragnn_hpo.config.convs import CONV_SPECS, search_ranges
from hydragnn_hpo.config.data_config import CardConfig
from hydragnn_hpo.config.schema import load_config, parse_config
from hydragnn_hpo.errors import ConfigError
from hydragnn_hpo.pipeline.init_templates import HeadHints, render_campaign
from hydragnn_hpo.planning import SearchBudget
from hydragnn_hpo.resources import resource_path

ENERGY = {"level": "graph", "unit": "eV", "energy": "total"}
FORCES = {"level": "node", "shape": "vector", "unit": "eV/angstrom"}


def card(**targets):
    return CardConfig(name="mine", files=({"path": "x.xyz"},), targets=targets)


def campaign(text):
    return parse_config(tomllib.loads(text), CampaignConfig, "starter")


@pytest.mark.parametrize(
    "path", sorted(resource_path("graph_datasets").glob("*.toml")), ids=lambda p: p.stem
)
def test_every_shipped_card_has_a_starter_that_can_run(path):
    one = load_config(path, CardConfig)
    made = campaign(render_campaign(one, path.stem))
    check_corners(made, facts_of_cards(made, [one]))
    derived = any(target.derived_from for target in one.targets.values())
    wanted = {name for name, spec in CONV_SPECS.items() if spec.forces or not derived}
    assert set(made.space["model.conv"].choices) == wanted


@pytest.mark.parametrize("conv", list(CONV_SPECS))
def test_a_starter_of_one_conv_has_all_its_ranges(conv):
    made = campaign(render_campaign(card(energy=ENERGY), "x", [conv]))
    actual = {name.removeprefix("model.options.") for name in made.space if "options" in name}
    assert actual == set(search_ranges(CONV_SPECS[conv].options))
    check_corners(made, facts_of_cards(made, [card(energy=ENERGY)]))


def test_forces_ask_for_convs_that_see_distances():
    derived = card(energy=ENERGY, forces={**FORCES, "derived_from": "energy"})
    result = campaign(render_campaign(derived, "x"))
    convs = set(result.space["model.conv"].choices)
    assert convs == {name for name, spec in CONV_SPECS.items() if spec.forces}
    assert "gin" not in convs
    assert set(result.trial["heads"]) == {"energy", "forces"}
    with pytest.raises(ConfigError, match="conv 'gin' cannot predict all of energy, forces"):
        render_campaign(derived, "x", ["gin"])


def test_an_energy_with_forces_has_a_larger_weight_in_the_end():
    derived = card(energy=ENERGY, forces={**FORCES, "derived_from": "energy"}, other=ENERGY)
    made = campaign(render_campaign(derived, "x"))
    heads = {name: head.get("stage_two_weight") for name, head in made.trial["heads"].items()}
    assert heads.pop("energy") > 1.0
    assert heads == {"forces": None, "other": None}
    check_corners(made, facts_of_cards(made, [derived]))
    assert "stage_two" not in render_campaign(card(energy=ENERGY, push=FORCES), "x")
    one_by_one = {**derived.model_dump(), "split": {"group": "structure"}}
    assert "stage_two" not in render_campaign(CardConfig.model_validate(one_by_one), "x")
    searched = {**made.model_dump(), "space": {"heads.energy.stage_two_weight": [1.0, 30.0]}}
    check_search(CampaignConfig.model_validate(searched))


def test_every_conv_can_predict_spectra_and_classes():
    dos = {"level": "node", "shape": "spectrum", "size": 4, "unit": "1/eV"}
    phase = {"level": "graph", "shape": "class", "classes": ["a", "b"]}
    made = campaign(render_campaign(card(dos=dos, phase=phase), "x"))
    assert set(made.space["model.conv"].choices) == set(CONV_SPECS)


def test_vectors_of_their_own_are_left_to_the_user():
    both = card(energy=ENERGY, push=FORCES)
    text = render_campaign(both, "x")
    assert "# [trial.heads.push]" in text
    assert set(campaign(text).trial["heads"]) == {"energy"}
    config = campaign(render_campaign(both, "x", targets=["push"]))
    wanted = {name for name, spec in CONV_SPECS.items() if spec.vectors}
    assert set(config.space["model.conv"].choices) == wanted


def test_heads_that_pool_may_have_layers_on_atoms():
    gap = {"level": "graph", "unit": "eV"}
    made = campaign(render_campaign(card(energy=ENERGY, gap=gap), "x"))
    assert set(made.space["model.atom_layers"].choices) == {0, 2}
    assert "model.atom_layers" not in campaign(render_campaign(card(energy=ENERGY), "x")).space


def test_heavy_tails_are_learned_by_absolute_errors():
    gap = {"level": "graph", "unit": "eV"}
    hints = HeadHints(heavy_tailed=frozenset({"gap"}))
    made = campaign(render_campaign(card(energy=ENERGY, gap=gap), "x", hints=hints))
    assert made.trial["heads"]["gap"]["loss"] == "mae"
    assert "loss" not in made.trial["heads"]["energy"]


def test_a_search_may_begin_from_features_of_a_foundation_model():
    hints = HeadHints(trunks=("chgnet",))
    gaps = card(gap={"level": "graph", "unit": "eV"})
    made = campaign(render_campaign(gaps, "card.toml", hints=hints))
    assert made.space["model.embedding"].choices == ("elements", "chgnet")
    assert made.space["model.layers"].low == 0
    assert find_trunks(made).keys() == {"chgnet"}
    assert find_trunks(campaign(render_campaign(gaps, "card.toml"))) == {}


def test_nets_of_molecules_have_rounds_beside_features_and_are_tried_without_them_too():
    hints = HeadHints(trunks=("chgnet",), needs_rounds=True)
    gaps = card(gap={"level": "graph", "unit": "eV"})
    made = campaign(render_campaign(gaps, "card.toml", hints=hints))
    assert made.space["model.layers"].low == SearchBudget().layers[0] > 0
    points = complete_initial_points(made)
    assert [point["model.embedding"] for point in points[:3]] == ["chgnet", "elements", "chgnet"]
    without = campaign(render_campaign(gaps, "card.toml", hints=HeadHints(needs_rounds=True)))
    assert find_trunks(without) == {}


@pytest.mark.parametrize("pooled", [True, False])
def test_points_of_the_portfolio_are_valid_trials_however_narrow_the_nets(pooled):
    targets = {"gap": {"level": "graph", "unit": "eV"}} if pooled else {"energy": ENERGY}
    narrow = SearchBudget(features=(16, 32), batches=(16, 32))
    hints = HeadHints(trunks=("chgnet", "sevennet"))
    made = campaign(render_campaign(card(**targets), "card.toml", budget=narrow, hints=hints))
    points = complete_initial_points(made)
    assert len(points) == narrow.points
    embeddings = [point["model.embedding"] for point in points]
    assert {"chgnet", "sevennet"} <= set(embeddings)
    without = [place for place, each in enumerate(embeddings) if each == "elements"]
    assert without == list(range(3, len(points), 4))
    widths = [(point["model.layers"] == 0, point["model.features"]) for point in points]
    assert {width for without_rounds, width in widths if not without_rounds} == {32}
    assert {width for without_rounds, width in widths if without_rounds} == {64}
    (first,) = {point["model.conv"] for point in points[:1]}
    alone = campaign(render_campaign(card(**targets), "x", [first], budget=narrow, hints=hints))
    assert {point["model.conv"] for point in complete_initial_points(alone)} == {first}
