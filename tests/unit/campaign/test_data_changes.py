"""What changed between two runs of a campaign is noticed: data files, and every byte of a store."""

import hashlib
import json
import os
import shutil

import pytest
from processes import until

from hydragnn_hpo.campaign.data_changes import (
    StoreVerifier,
    check_description,
    find_changes,
    note_seen,
    stamp_sources,
)
from hydragnn_hpo.config.data_config import CardConfig, FileConfig
from hydragnn_hpo.errors import StorageError

CONTENT = b"columns" * 1000


def sha256(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def store(tmp_path):
    """A store as ``data.store_index`` describes it, of one part with one file."""
    path = tmp_path / "run" / "data" / "tiny.bp"
    (path / "part-0.bp").mkdir(parents=True)
    (path / "part-0.bp" / "data.0").write_bytes(CONTENT)
    (path / "windows.npy").write_bytes(b"windows")
    (path / "stats.json").write_text('{"name": "tiny"}')
    entry = {"path": "data.0", "bytes": len(CONTENT), "sha256": sha256(CONTENT)}
    index = {"parts": [{"name": "part-0.bp", "windows": 2, "files": [entry]}]}
    (path / "index.json").write_text(json.dumps(index))
    return path


@pytest.fixture
def card(tmp_path):
    (tmp_path / "cards").mkdir()
    (tmp_path / "cards" / "a.xyz").write_text("1\n\nH 0 0 0\n")
    (tmp_path / "cards" / "many").mkdir()
    (tmp_path / "cards" / "many" / "b.cif").write_text("data_b")
    files = (FileConfig(path="a.xyz"), FileConfig(path="many"), FileConfig(path="away.xyz"))
    return tmp_path / "cards" / "tiny.toml", CardConfig.model_construct(files=files)


def test_nothing_changed_nothing_is_reported(store, card):
    assert find_changes(store, stamp_sources(*card)) == [], "an older version noted nothing"
    note_seen(store, stamp_sources(*card))
    assert find_changes(store, stamp_sources(*card)) == []
    check_description(store)
    verifier = StoreVerifier([store])
    assert verifier.finish(60.0) is None
    assert verifier.damage is None


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("a.xyz", lambda file: file.write_text("1\n\nHe 0 0 0\n"), "had 11 bytes, has 12"),
        ("a.xyz", lambda file: os.utime(file, (1, 1)), "was written to"),
        ("a.xyz", lambda file: file.unlink(), "is gone"),
        ("many/b.cif", lambda file: file.write_text("data_c\n"), "had 6 bytes, has 7"),
    ],
)
def test_a_data_file_that_changed_is_one_sentence(store, card, name, change, message):
    note_seen(store, stamp_sources(*card))
    file = card[0].parent / name
    change(file)
    (sentence,) = find_changes(store, stamp_sources(*card))
    assert sentence == (
        f"{file} ({message}) changed since {store} was built: the campaign goes on with the graphs "
        "in that store; to use the changed data, start one with another --run."
    )


def test_a_copy_of_card_and_data_is_compared_with_what_the_store_was_built_from(store, card):
    note_seen(store, stamp_sources(*card))
    copy = shutil.copytree(card[0].parent, card[0].parent.parent / "elsewhere")
    assert find_changes(store, stamp_sources(copy / "tiny.toml", card[1])) == []
    (copy / "many" / "b.cif").write_text("data_c\n")
    (sentence,) = find_changes(store, stamp_sources(copy / "tiny.toml", card[1]))
    assert sentence.startswith(f"{copy}/many/b.cif (had 6 bytes, has 7) changed since ")
    (copy / "many" / "b.cif").unlink()
    (sentence,) = find_changes(store, stamp_sources(copy / "tiny.toml", card[1]))
    assert "is gone" not in sentence  # the first one is still where it was
    shutil.rmtree(card[0].parent / "many")
    (sentence,) = find_changes(store, stamp_sources(*card))
    assert sentence.startswith(f"{card[0].parent}/many/b.cif (is gone) changed since ")


def test_a_store_that_was_written_to_is_reported_and_read(store, card):
    note_seen(store, stamp_sources(*card))
    os.utime(store / "part-0.bp" / "data.0", (1, 1))
    (sentence,) = find_changes(store, stamp_sources(*card))
    assert sentence == (
        f"{store}: part-0.bp/data.0 (was written to) changed since it was built: its checksums are "
        "compared while the campaign runs."
    )


def flip(file, place=-1):
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def test_a_byte_of_the_columns_that_changed_is_found_in_the_background(store):
    note_seen(store, {})
    data = store / "part-0.bp" / "data.0"
    times = data.stat().st_atime_ns, data.stat().st_mtime_ns
    flip(data, 3000)
    os.utime(data, ns=times)
    check_description(store)
    verifier = StoreVerifier([store])
    assert verifier.finish(60.0) is None
    assert verifier.damage == (
        f"{data}: was altered (its SHA-256 differs); restore it from a copy, or start the campaign "
        "again in another directory, with --run."
    )


def test_the_end_reads_the_rest_at_full_speed_and_says_what_was_not_compared(store):
    slow = StoreVerifier([store], share=1e-12)  # a pause of hours after the first chunk
    until(lambda: slow.read_bytes == len(CONTENT), "first chunk")
    assert slow.finish(60.0) is None, "nothing is left to be read"

    (store / "part-0.bp" / "data.0").unlink()
    os.mkfifo(store / "part-0.bp" / "data.0")  # opening it waits for a writer
    assert StoreVerifier([store]).finish(0.0) == (
        "only 0 of 7e-06 GB of the stores were compared with their checksums; compare all with "
        f"'hydragnn-hpo dataset check {store}'."
    )


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("windows.npy", flip, "windows.npy: was altered"),
        ("windows.npy", lambda file: file.unlink(), "windows.npy: is gone"),
        ("stats.json", lambda file: flip(file, 12), "stats.json: was altered"),
        ("index.json", lambda file: flip(file, 20), "index.json: was altered"),
        ("index.json", lambda file: file.write_text("[]"), "index.json: has 2 bytes instead of"),
        ("part-0.bp/data.0", lambda file: os.truncate(file, 5), "has 5 bytes instead of 7000"),
        ("part-0.bp/data.0", lambda file: file.unlink(), "data.0: is gone"),
    ],
)
def test_a_store_whose_description_or_sizes_changed_is_refused(store, name, change, message):
    note_seen(store, {})
    change(store / name)
    with pytest.raises(StorageError, match=r"; restore it from a copy, or start") as caught:
        check_description(store)
    assert message in str(caught.value)
