"""Labels that belong to a head, and those of another quantity."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from hydragnn_hpo.config.data import CardConfig
from hydragnn_hpo.config.loading import parse
from hydragnn_hpo.ensemble.artefact import read_artefact
from hydragnn_hpo.ensemble.evaluation.labels import labels_of_card, labels_of_options
from hydragnn_hpo.ensemble.manifest import Manifest
from hydragnn_hpo.errors import ConfigError

ENERGY = {"level": "graph", "unit": "eV/atom", "energy": "per_atom"}
CHARGE = {"level": "node", "unit": "e"}


@pytest.fixture(scope="module")
def manifest(built_zip: Path) -> Manifest:
    return read_artefact(built_zip).manifest


def card(**targets: Mapping[str, object]) -> CardConfig:
    return parse(
        {"name": "other", "files": [{"path": "x.xyz"}], "targets": targets}, CardConfig, "card"
    )


def test_targets_of_the_same_name_are_labels(manifest: Manifest) -> None:
    found = labels_of_card(manifest, card(energy={**ENERGY, "unit": "meV/atom"}, other=CHARGE))
    assert list(found) == ["energy"]
    assert found["energy"].unit == "meV/atom"
    assert found["energy"].optional


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"unit": "meV", "energy": "total"}, "unit of 'energy' is meV, which is eV; .*eV/atom"),
        ({"unit": "eV", "energy": "total"}, "unit of 'energy' is eV; .*eV/atom"),
        ({"unit": "GPa", "energy": None}, "unit of 'energy' is GPa"),
        ({"energy": None}, "energy of 'energy' is none; the ensemble predicts per_atom"),
        ({"level": "node", "energy": None}, "level of 'energy' is node; .* predicts graph"),
        ({"level": "node", "shape": "vector", "energy": None}, "level of 'energy' is node"),
    ],
)
def test_another_quantity_is_refused(
    manifest: Manifest, wrong: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        labels_of_card(manifest, card(energy={**ENERGY, **wrong}))


def test_a_card_without_any_head_is_refused(manifest: Manifest) -> None:
    with pytest.raises(ConfigError, match="has the targets gap, the ensemble predicts"):
        labels_of_card(manifest, card(gap={"level": "graph", "unit": "eV"}))


def test_options_name_key_and_unit(manifest: Manifest) -> None:
    found = labels_of_options(manifest, ["energy=e_ref:kJ/mol/atom", "charge=q"])
    assert (found["energy"].key, found["energy"].unit) == ("e_ref", "kJ/mol/atom")
    assert (found["charge"].key, found["charge"].unit, found["charge"].level) == ("q", "e", "node")


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("energy", "write HEAD=KEY"),
        ("enrgy=e", "unknown head 'enrgy'. Did you mean 'energy'"),
        ("energy=e:eV", "unit of 'energy' is eV"),
        ("energy=e:furlong", "unknown unit 'furlong'"),
    ],
)
def test_options_that_say_nothing_or_the_wrong_thing(
    manifest: Manifest, option: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        labels_of_options(manifest, [option])


def test_a_head_has_one_label(manifest: Manifest) -> None:
    with pytest.raises(ConfigError, match="'charge=p': head 'charge' has a label already"):
        labels_of_options(manifest, ["charge=q", "energy=e", "charge=p"])
