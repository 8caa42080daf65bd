"""What features of foundation models take: measured, from a table, or nothing as they are there."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from ase.build import bulk, molecule
from ase.io import write

from hydragnn_hpo.data.store_builder import build_store
from hydragnn_hpo.model.trunks.embed import embed_store
from hydragnn_hpo.pipeline import feature_prices, init_files
from hydragnn_hpo.pipeline.estimate_stats import DataKnown, estimate_stats
from hydragnn_hpo.pipeline.feature_prices import measure_prices, price_features
from hydragnn_hpo.pipeline.init_files import InitRequest, describe_search, init_from_files

CARD = """
name = "some"
[[files]]
path = "some.extxyz"
[targets.gap]
level = "graph"
unit = "eV"
[split]
group = "structure"
"""
CONFIG = SimpleNamespace(space={}, trial={"model": {"embedding": "chgnet"}}, trunks={})
CELLS = [bulk("NaCl", "rocksalt", a=5.6, cubic=True) for _ in range(60)]
"""Eight atoms each."""


@pytest.fixture
def _table(monkeypatch):
    monkeypatch.setattr(init_files, "measure_prices", lambda sources, structures: {})


@pytest.fixture
def data(tmp_path):
    """Twenty rattled cells of eight atoms, before and after they are built."""
    frames = [atoms.copy() for atoms in CELLS[:20]]
    for number, frame in enumerate(frames):
        frame.rattle(0.05, seed=number)
        frame.info["gap"] = float(number % 7)
    write(tmp_path / "some.extxyz", frames)
    (tmp_path / "some.toml").write_text(CARD)
    return tmp_path


def known(folder):
    """Return what a plan knows of the data."""
    store = folder / "some.bp"
    guess = estimate_stats(folder / "some.toml", [store], None)
    work = SimpleNamespace(needs=(store,))
    cards = {folder / "some.toml": "some"}
    return DataKnown(work, guess.stats, guess.origin, {"some": guess.stats}, cards)


def measured(monkeypatch, seconds):
    """Let a measurement find a price; return what it was asked."""
    asked = []

    def answer(argv, **options):
        asked.append(options["input"])
        return json.dumps({"chgnet": [seconds, "measured on 20 structures"]})

    monkeypatch.setattr(subprocess, "check_output", answer)
    return asked


def test_a_plan_measures_on_this_machine_and_else_reads_the_table(data, monkeypatch):
    """20 structures of 8 atoms, each with 5 x 64 numbers of two bytes: 102,400 bytes."""
    asked = measured(monkeypatch, 0.05)
    (price,) = price_features(CONFIG, known(data), here=True)
    assert price == ("CHGNet 0.3.0", pytest.approx(8.0), 102_400, "measured on 20 structures")
    (price,) = price_features(CONFIG, known(data), here=False)
    assert price == ("CHGNet 0.3.0", pytest.approx(0.32), 102_400, "from a table")
    assert len(asked) == 1


def test_a_built_store_is_measured_until_it_has_features(data, monkeypatch):
    build_store(data / "some.toml", data / "some.bp")
    asked = measured(monkeypatch, 0.05)
    (price,) = price_features(CONFIG, known(data), here=True)
    assert (price.seconds, price.origin) == (pytest.approx(8.0), "measured on 20 structures")
    assert asked[0].count('"numbers": [11, 17, 11, 17, 11, 17, 11, 17]') == 20
    monkeypatch.undo()
    embed_store(data / "some.bp", "chgnet", processes=1)
    asked = measured(monkeypatch, 0.05)
    (price,) = price_features(CONFIG, known(data), here=True)
    assert price == ("CHGNet 0.3.0", 0.0, 102_400, "there already")
    assert asked == []


def test_a_search_without_foundation_models_has_no_price(data):
    plain = SimpleNamespace(space={}, trial={}, trunks={})
    assert price_features(plain, known(data), here=True) == ()


def test_a_process_measures_what_it_can_open(tmp_path):
    """The first 50 of 60 structures are sent; the second model has no file."""
    sources = {"chgnet": "chgnet", "mine": str(tmp_path / "mine.json")}
    large = bulk("Cu", cubic=True) * (7, 6, 6)  # 1,008 atoms
    prices = measure_prices(sources, [large, *(atoms * (1, 1, 1) for atoms in CELLS)])
    assert prices.keys() == {"chgnet"}
    seconds, origin = prices["chgnet"]
    assert seconds > 0.0
    assert 0 < int(origin.removeprefix("measured on ").split()[0]) <= 50
    assert measure_prices(sources, [large]) == {}


@pytest.mark.parametrize(
    "fails",
    [
        "import time; time.sleep(30)",
        "raise ImportError('no torch')",
        "print('no JSON')",
    ],
)
def test_what_cannot_be_measured_has_no_price(fails, monkeypatch):
    monkeypatch.setattr(feature_prices, "_MEASURE", fails)
    monkeypatch.setattr(feature_prices, "TIMEOUT", 1.0)
    assert measure_prices({"chgnet": "chgnet"}, CELLS) == {}
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert measure_prices({"chgnet": "chgnet"}, CELLS) == {}


@pytest.mark.parametrize(
    ("atoms", "minutes", "proposed"),
    [
        (bulk("Cu"), 10.0, True),
        (bulk("Po", "sc", a=3.35), 10.0, False),
        (bulk("Cu") * (5, 5, 5), 1.0, False),
        (molecule("H2O"), 10.0, True),
    ],
    ids=["crystals", "an element it never saw", "more atoms than there is time for", "molecules"],
)
@pytest.mark.usefixtures("_table")
def test_features_are_proposed_where_they_may_help(tmp_path, atoms, minutes, proposed):
    """125 atoms x 100 structures x 2 ms are 25 s, more than 0.3 of a minute."""
    frames = [atoms.copy() for _ in range(100)]
    random = np.random.default_rng(0)
    for frame in frames:
        frame.rattle(0.1, rng=random)
        frame.info["gap"] = float(random.random())
    write(tmp_path / "some.extxyz", frames)
    for trunks in (True, False):
        request = InitRequest(targets=("gap",), minutes=minutes, trunks=trunks)
        made = init_from_files([tmp_path / "some.extxyz"], request, {"gap": "eV"}, tmp_path)
        assert ("model.embedding" in made.campaign_text) == (proposed and trunks)
        without_rounds = '"model.layers" = { low = 0' in made.campaign_text
        assert without_rounds == (proposed and trunks and bool(atoms.pbc.all()))


def init_of_large_cells(folder, minutes):
    """Return what ``init`` makes of 100 cells of 125 atoms."""
    frames = [bulk("Cu") * (5, 5, 5) for _ in range(100)]
    for number, frame in enumerate(frames):
        frame.rattle(0.1, seed=number)
        frame.info["gap"] = float(number % 7)
    write(folder / "some.extxyz", frames)
    request = InitRequest(targets=("gap",), minutes=minutes)
    return init_from_files([folder / "some.extxyz"], request, {"gap": "eV"}, folder)


@pytest.mark.parametrize(
    ("minutes", "proposed"),
    [(10.0, '["elements", "chgnet", "sevennet"]'), (2.0, '["elements", "chgnet"]')],
)
@pytest.mark.usefixtures("_table")
def test_a_second_model_is_proposed_where_its_features_take_little_time(
    tmp_path, minutes, proposed
):
    """12,500 atoms x 2 ms are 25 s: less than a tenth of 10 minutes, but more than that of 2."""
    made = init_of_large_cells(tmp_path, minutes)
    assert f'"model.embedding" = {proposed}' in made.campaign_text


@pytest.mark.parametrize(
    ("seconds", "proposed"), [(8e-4, "chgnet, sevennet"), (1e-3, "chgnet"), (3e-3, "")]
)
def test_measured_prices_decide_what_is_proposed(tmp_path, monkeypatch, seconds, proposed):
    """Of 2 minutes, 10 s are for 12,500 atoms at 0.8 ms, 12.5 s at 1 ms, 37.5 s at 3 ms.

    A first model may take 36 s, a second one 12 s. Blocks of CHGNet are 5 x 64 numbers, those of
    SevenNet 6 x 128, of two bytes: 8 and 19.2 MB.
    """
    price = (seconds, "measured on 50 structures")
    monkeypatch.setattr(
        init_files, "measure_prices", lambda sources, _: dict.fromkeys(sources, price)
    )
    made = init_of_large_cells(tmp_path, 2.0)
    names = ["elements", *filter(None, proposed.split(", "))]
    quoted = ", ".join(f'"{name}"' for name in names)
    assert (f'"model.embedding" = [{quoted}]' in made.campaign_text) == bool(proposed)
    why = [line for line in describe_search(made) if line.startswith("Features of")]
    if not proposed:
        assert why == []
        return
    assert (
        f"CHGNet 0.3.0 (about {12_500 * seconds:.0f} s, measured on 50 structures; 8 MB on"
        in why[0]
    )
    assert ("; 19.2 MB on disk" in why[0]) == ("sevennet" in proposed)
