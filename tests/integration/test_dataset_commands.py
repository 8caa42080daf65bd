"""``dataset info`` and ``dataset check``: what they print, draw, and end with."""

from types import SimpleNamespace
from typing import Any

import pytest
from ase import Atoms


@pytest.fixture
def atoms(hpo: Any) -> list[Atoms]:
    """Chains, of which one is turned and moved, and two have a label that went astray."""
    made: list[Atoms] = hpo.molecules(60)
    twin = made[2][::-1]
    twin.rotate(40, (1, 2, 3))
    twin.translate((3.0, -1.0, 0.5))
    made.append(twin)
    made[4].info["energy_like"] = 500.0
    made[5].arrays["charge_like"][0] = -70.0
    for number, one in enumerate(made):
        one.info["name"] = f"chain[{number}]"
    return made


@pytest.fixture
def split(hpo: Any, atoms: list[Atoms]) -> SimpleNamespace:
    """A store of the chains in which the twin alone is the published test split."""
    for one in atoms:
        one.info["part"] = "train"
    atoms[-1].info["part"] = "test"
    card = hpo.card(atoms, id_key="name", split={"published": "part", "group": "structure"})
    done = hpo.here("dataset", "build", card, "--out", "tiny.bp")
    assert done.code == 0, done.err
    return SimpleNamespace(store="tiny.bp", atoms=atoms)


def test_info_says_what_is_there(hpo: Any, split: SimpleNamespace) -> None:
    nodes = sum(len(one) for one in split.atoms)
    result = hpo.json("dataset", "info", split.store)
    assert (result["num_graphs"], result["nodes"]["total"]) == (61, nodes)
    store = result["store"]
    assert (store["windows"], store["parts"], store["quarantined"]) == (1, 1, 0)
    # Four bytes per node more or less would show: it is the sum of the columns.
    assert store["bytes"] == result["bytes"]["total"]
    splits = result["target_splits"]["energy_like"]
    assert splits["test"]["values"] == 1
    assert splits["test"]["mean"] == splits["test"]["max"]
    assert sum(splits["train"]["counts"]) == splits["train"]["values"] == result["splits"]["train"]
    charges = result["target_splits"]["charge_like"]
    assert sum(charges[name]["values"] for name in result["splits"]) == nodes


def test_info_fits_eighty_columns(hpo: Any, split: SimpleNamespace) -> None:
    done = hpo.here("dataset", "info", split.store)
    assert done.code == 0
    for word in (
        "energy_like (graph scalar in eV)",
        "those of its",
        "Neighbours",
        "Elements",
        "in memory",
    ):
        assert word in done.out
    tables = [line.rstrip() for line in done.out.splitlines() if not line.startswith(("tiny", "6"))]
    assert max(len(line) for line in tables[1:]) <= 80, max(tables, key=len)


def test_check_in_words(hpo: Any, split: SimpleNamespace) -> None:
    done = hpo.here("dataset", "check", split.store)
    assert done.code == 1
    for words in (
        "test chain[60] is chain[2] of train",
        "energy_like of chain[4] (",
        "is 500 eV (z ",
        "SERIOUS: train knows structures of other splits",
        "All checksums of 61 graphs hold.",
    ):
        assert words in done.out, done.out
    assert "Traceback" not in done.err


def test_a_limit_shortens_the_list(hpo: Any, split: SimpleNamespace) -> None:
    done = hpo.here("dataset", "check", split.store, "--z", "1.5", "--limit", "1")
    assert "more, see --json" in done.out
    assert done.out.count("energy_like of chain[") == 1


def test_a_sound_store_is_well(hpo: Any) -> None:
    hpo.here("dataset", "build", hpo.card(hpo.molecules(60)))
    done = hpo.here("dataset", "check", "tiny.bp")
    assert done.code == 0, done.out
    assert "Nothing serious." in done.out


@pytest.mark.parametrize("verb", ["info", "check"])
def test_what_is_no_store_is_one_sentence(hpo: Any, verb: str) -> None:
    (hpo.folder / "thesis").mkdir()
    hpo.refused("dataset", verb, "thesis", says=("thesis", "is not a graph store"))
    hpo.refused("dataset", verb, "card.toml", says=("card.toml", "is a card", "dataset build"))


@pytest.mark.slow
def test_a_figure_is_drawn_and_repeats(hpo: Any, split: SimpleNamespace) -> None:
    for verb, name in (("check", "a.png"), ("info", "b.png")):
        hpo.here("dataset", verb, split.store, "--figure", name)
    one, other = ((hpo.folder / name).read_bytes() for name in ("a.png", "b.png"))
    assert one[:8] == other[:8] == b"\x89PNG\r\n\x1a\n"
    assert one != other
    assert not list(hpo.folder.glob(".*.part"))


def test_a_figure_that_cannot_be_written_is_one_sentence(hpo: Any, split: SimpleNamespace) -> None:
    hpo.refused(
        "dataset", "info", split.store, "--figure", "no/where.png", says=("where.png", "written")
    )
