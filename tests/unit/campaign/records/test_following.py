"""A reader follows a journal that is being written: every line once, none half, none twice."""

import os
import random

import pytest

from hydragnn_hpo.campaign.records import following as module
from hydragnn_hpo.campaign.records import journal
from hydragnn_hpo.campaign.records.following import Following, Replaced
from hydragnn_hpo.campaign.records.journal import encode, read
from hydragnn_hpo.errors import RunError

EVENTS = [{"event": "epoch", "time": float(n), "epoch": 1, "trial": "t" * n} for n in range(40)]
LINES = [encode(event) for event in EVENTS]


def append(path, content):
    with path.open("ab") as file:
        file.write(content)


def test_bytes_that_come_in_any_pieces_give_every_line_once(tmp_path):
    path, whole, chance = tmp_path / "events.jsonl", b"".join(LINES), random.Random(3)
    following, found = Following(path), []
    assert following.new() == []
    while whole:
        size = chance.randint(1, 90)
        append(path, whole[:size])
        whole = whole[size:]
        found += following.new()
    assert found == EVENTS
    assert following.new() == []
    assert following.offset == path.stat().st_size


def test_only_what_is_new_is_read(tmp_path, monkeypatch):
    path = tmp_path / "events.jsonl"
    append(path, b"".join(LINES))
    following = Following(path)
    following.new()
    decoded = []
    monkeypatch.setattr(module, "decode", lambda line: decoded.append(line) or journal.decode(line))
    append(path, LINES[0])
    assert following.new() == [EVENTS[0]]
    assert decoded == [LINES[0]]


def test_a_long_journal_is_taken_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 200)
    append(tmp_path / "events.jsonl", b"".join(LINES))
    assert Following(tmp_path / "events.jsonl").new() == EVENTS


def test_a_torn_end_that_is_cut_off_and_written_anew_is_no_damage(tmp_path):
    path = tmp_path / "events.jsonl"
    append(path, LINES[0] + LINES[1][:20])
    following = Following(path)
    assert following.new() == [EVENTS[0]]
    os.truncate(path, len(LINES[0]))
    append(path, LINES[2])
    assert following.new() == [EVENTS[2]]


def test_a_damaged_line_before_the_last_is_an_error(tmp_path):
    path = tmp_path / "events.jsonl"
    damaged = LINES[1].replace(b"epoch", b"epocH", 1)
    append(path, LINES[0] + damaged)
    following = Following(path)
    assert following.new() == [EVENTS[0]], "the last one may be torn"
    append(path, LINES[2])
    with pytest.raises(RunError, match=f"line at byte {len(LINES[0])} is damaged"):
        following.new()


@pytest.mark.parametrize("content", [b"", LINES[5], b"".join(LINES[5:])])
def test_another_journal_in_its_place_is_not_taken_for_it(tmp_path, content):
    path = tmp_path / "events.jsonl"
    append(path, b"".join(LINES[:3]))
    following = Following(path)
    following.new()
    path.write_bytes(content)
    with pytest.raises(Replaced):
        following.new()


def test_a_copy_that_has_grown_is_the_same_journal(tmp_path):
    """As rsync leaves it: another file with the same beginning."""
    path = tmp_path / "events.jsonl"
    append(path, b"".join(LINES[:3]))
    following = Following(path)
    following.new()
    path.unlink()
    append(path, b"".join(LINES[:4]))
    assert following.new() == [EVENTS[3]]


def test_a_journal_that_is_gone_is_told(tmp_path):
    path = tmp_path / "events.jsonl"
    append(path, LINES[0])
    following = Following(path)
    following.new()
    path.unlink()
    with pytest.raises(Replaced, match="was removed"):
        following.new()


def test_a_line_whose_end_comes_while_it_is_read_is_no_damage(tmp_path, monkeypatch):
    """``read`` meets half a line; before it looks behind it, the rest is there."""
    path = tmp_path / "events.jsonl"
    append(path, LINES[0] + LINES[1][:20])

    def decode(line):
        if line == LINES[1][:20]:
            append(path, LINES[1][20:] + LINES[2])
        return whole(line)

    whole = journal.decode
    monkeypatch.setattr(journal, "decode", decode)
    assert list(read(path)) == [EVENTS[0]]


def test_what_is_no_file_is_a_sentence(tmp_path):
    (tmp_path / "events.jsonl").mkdir()
    with pytest.raises(RunError, match="events.jsonl: cannot be read"):
        Following(tmp_path / "events.jsonl").new()
