"""Features of a store by worker processes and by jobs; on files, as a campaign does it."""

import json
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from ase.build import bulk
from ase.io import write
from own_trunks import write_own
from trunk_structures import columns_without_edges

from hydragnn_hpo.data import feature_cache as cache_module
from hydragnn_hpo.data import open_store
from hydragnn_hpo.data.store_builder import build_store
from hydragnn_hpo.errors import ConfigError, DataError, JobError
from hydragnn_hpo.model.trunks import embed, find_trunk

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


def made_store(folder: Path, symbol: str = "Cu") -> Path:
    random = np.random.default_rng(0)
    frames = [bulk(symbol, "fcc", a=3.6) * (1, 1, 1 + n % 3) for n in range(20)]
    for frame in frames:
        frame.rattle(0.1, rng=random)
        frame.info["gap"] = float(random.random())
    folder.mkdir()
    write(folder / "some.extxyz", frames)
    (folder / "some.toml").write_text(CARD)
    build_store(folder / "some.toml", folder / "some.bp")
    return folder / "some.bp"


@pytest.fixture(autouse=True)
def _pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "PIECE", 4)
    monkeypatch.setattr(embed, "_LEAST", 1)


def test_two_processes_find_what_one_finds(tmp_path):
    one, two = (made_store(tmp_path / name) for name in ("one", "two"))
    counted: list[int] = []
    embed.embed_store(one, "chgnet", processes=1, report=counted.append)
    embed.embed_store(two, "chgnet", processes=2)
    assert sum(counted) == 20
    values, stats = embed.feature_cache(one, "chgnet").open()
    others, same = embed.feature_cache(two, "chgnet").open()
    np.testing.assert_array_equal(values, others)
    assert stats == same
    graphs = open_store(one)
    direct = find_trunk("chgnet").features(graphs.take(np.arange(20)), range(20))
    np.testing.assert_allclose(values, direct.reshape(len(values), -1), rtol=1e-3, atol=1e-4)


def test_a_job_answers_with_the_place_or_a_sentence(tmp_path):
    store = made_store(tmp_path / "one")
    answer = tmp_path / "answer.json"
    spec = {"store": str(store), "trunk": "chgnet", "answer": str(answer)}
    assert embed.job_main(spec) == 0
    assert Path(json.loads(answer.read_text())["path"]).exists()
    embed.job_main({**spec, "trunk": "chgnett"})
    assert "unknown trunk 'chgnett'" in json.loads(answer.read_text())["error"]


def test_elements_and_versions_are_checked_before_anything_is_computed(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"some.bp: CHGNet 0.3.0 was not trained on Po, which"):
        embed.embed_store(made_store(tmp_path / "po", "Po"), "chgnet")
    store = made_store(tmp_path / "cu")
    done = embed.embed_store(store, "chgnet", processes=1)
    record = done.path.with_suffix(".json")
    old = {**json.loads(record.read_text()), "checksum": "0" * 64}
    record.with_name("chgnet-0123456789abcdef.json").write_text(json.dumps(old))
    record.unlink()
    with pytest.raises(ConfigError, match="holds features of another version of 'chgnet'"):
        embed.embed_store(store, "chgnet", processes=1)


def test_a_killed_worker_is_told(tmp_path, monkeypatch):
    store = made_store(tmp_path / "one")
    start = subprocess.Popen

    def killed(*args, **options):
        child = start(*args, **options)
        child.send_signal(signal.SIGKILL)
        return child

    monkeypatch.setattr(embed.subprocess, "Popen", killed)
    with pytest.raises(JobError, match="was killed by signal 9; .* finished pieces are kept"):
        embed.embed_store(store, "chgnet", processes=2)


def test_features_of_a_users_model_are_named_by_its_files(tmp_path):
    store = made_store(tmp_path / "one")
    own = write_own(tmp_path / "models")
    card = tmp_path / "models/mine.json"
    done = embed.embed_store(store, str(card), processes=2)
    assert done.path == embed.feature_cache(store, "mine", own.spec).path
    assert done.path.name.startswith("mine-")
    values, _ = done.open()
    graphs = open_store(store)
    direct = own.features(graphs.take(np.arange(20)), range(20)).reshape(len(values), -1)
    np.testing.assert_allclose(values, direct, rtol=1e-3, atol=1e-4)

    write_own(tmp_path / "models", factor=1.03)
    with pytest.raises(ConfigError, match="another version of 'mine' .* use the files of"):
        embed.embed_store(store, str(card), processes=1)
    answer = tmp_path / "answer.json"
    spec = {"store": str(store), "trunk": str(card), "checksum": own.checksum}
    embed.job_main({**spec, "answer": str(answer)})
    assert "was changed after the campaign had begun" in json.loads(answer.read_text())["error"]


def test_a_price_is_measured_in_full_batches_for_two_seconds():
    """Of 8 atoms at 10 ms, a batch of 8 structures takes 0.64 s: the fourth one ends it.

    The first call takes 5 s and does not count.
    """
    seconds = [0.0]
    described = []

    def features(columns, rows):
        seconds[0] += 0.01 * 8 * len(rows) if described else 5.0
        described.append(len(rows))

    crystals = columns_without_edges(*[bulk("Cu") * (2, 2, 2) for _ in range(50)])
    trunk = SimpleNamespace(features=features)
    price = embed.measure_price(trunk, crystals, clock=lambda: seconds[0])
    assert price == (pytest.approx(0.01), "measured on 32 structures")
    assert described == [1, 8, 8, 8, 8]
