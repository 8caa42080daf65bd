"""The journal survives what a crash can do to its end, and refuses what it cannot."""

import errno
import json
import os

import pytest

from hydragnn_hpo.campaign.records import journal as module
from hydragnn_hpo.campaign.records.journal import Journal, decode, encode, read
from hydragnn_hpo.errors import RunError, StorageError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.jsonl"


def filled(path, count=3):
    journal = Journal(path, 1, clock=lambda: 10.0)
    for number in range(count):
        journal.append("placed", trial=f"t{number}", objective=0.1 + number)
    journal.close()


def test_events_come_back_as_they_were_written(path):
    filled(path)
    assert [e["trial"] for e in read(path)] == ["t0", "t1", "t2"]
    assert next(read(path)) == {
        "event": "placed", "time": 10.0, "epoch": 1, "trial": "t0", "objective": 0.1
    }  # fmt: skip


def test_every_torn_end_is_cut_off_before_the_next_line(path):
    filled(path)
    whole = path.read_bytes()
    second = whole[: -len(whole.splitlines(keepends=True)[-1])]
    for end in range(len(second) + 1, len(whole)):
        path.write_bytes(whole[:end])
        seen = []
        journal = Journal(path, 2, clock=lambda: 11.0, see=seen.append)
        assert [e["trial"] for e in seen] == ["t0", "t1"]
        journal.append("ended", trial="t1")
        journal.close()
        assert [e["event"] for e in read(path)] == ["placed", "placed", "ended"]


def test_a_damaged_middle_is_an_error_that_names_the_line(path):
    filled(path)
    content = bytearray(path.read_bytes())
    content[content.index(b'"t1"') + 1] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"events\.jsonl: line 2 "):
        list(read(path))
    with pytest.raises(RunError, match="line 2"):
        Journal(path, 2, clock=lambda: 11.0)


def test_one_flipped_bit_anywhere_is_seen():
    line = encode({"event": "ended", "objective": 0.25})
    assert decode(line) == {"event": "ended", "objective": 0.25}
    for place in range(len(line)):
        damaged = bytearray(line)
        damaged[place] ^= 1
        assert decode(bytes(damaged)) is None, damaged


def test_nan_becomes_null_because_json_has_none():
    assert decode(encode({"objective": float("nan")})) == {"objective": None}


def test_a_full_disk_leaves_no_half_line(path, monkeypatch):
    journal = Journal(path, 1, clock=lambda: 10.0)
    journal.append("placed", trial="t0")
    before = path.read_bytes()
    real = os.write

    def half(descriptor, content):
        real(descriptor, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, "write", half)
    with pytest.raises(StorageError, match="No space left on device"):
        journal.append("placed", trial="t1")
    monkeypatch.undo()
    assert path.read_bytes() == before
    journal.append("placed", trial="t2")
    assert [json.loads(line)["e"]["trial"] for line in path.read_text().splitlines()] == [
        "t0",
        "t2",
    ]
